/*
 * The compressed pages of an image, which a helper of keeper reads. The first byte says whether the rest is the whole file, or
 * its contents behind a head that is fine. What is taken is never more than the head says.
 */
#include "isolation/native/zpages.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

struct taken {
    uint64_t left;
    bool is_open;
};

static bool begin(void *context, const struct zpages *pages, size_t which, struct err *err)
{
    struct taken *taken = context;

    (void)err;
    if (taken->is_open || which >= pages->count || !zpages_is_name(pages->files[which].name))
        abort();
    *taken = (struct taken){ .left = pages->files[which].bytes, .is_open = true };
    return true;
}

static bool take(void *context, struct str bytes, struct err *err)
{
    struct taken *taken = context;

    (void)err;
    if (bytes.len > taken->left)
        abort();
    taken->left -= bytes.len;
    return true;
}

static bool end(void *context, struct err *err)
{
    struct taken *taken = context;

    (void)err;
    if (taken->left)
        abort();
    taken->is_open = false;
    return true;
}

static void check_head(struct str head)
{
    auto_buf struct buf again = buf_make(NULL, LIMIT_PAGES_HEAD_BYTES);
    auto_zpages struct zpages pages = { 0 };
    struct err err;

    if (!zpages_parse(head, &pages, &err))
        return;
    zpages_print(&again, &pages);
    if (!str_eq(buf_str(&again), head))
        abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct zpages_file files[] = { { "pages-1.img", 4096 }, { "pages-2.img", 100000 } };
    struct taken taken = { 0 };
    const struct zpages_sink sink = { .begin = begin, .take = take, .end = end, .context = &taken };
    auto_close int fd = memfd_create("pages", MFD_CLOEXEC);
    struct err err;

    if (fd < 0 || size == 0)
        return 0;
    if (data[0] & 1) {
        auto_buf struct buf head = buf_make(NULL, 256);
        zpages_print(&head, &(struct zpages){ .count = 2, .files = files });
        if (!fd_write_all(fd, buf_str(&head), &err))
            abort();
    } else {
        check_head(str_of(data + 1, size - 1));
    }
    if (!fd_write_all(fd, str_of(data + 1, size - 1), &err) || lseek(fd, 0, SEEK_SET) < 0)
        abort();
    (void)!zpages_read(fd, &sink, &err);
    return 0;
}
