/*
 * However an archive is cut, the same entries come out, and a file's pieces are as long as its size. The first byte chooses
 * the size of the pieces; if it is odd, blocks that look like headers get the right checksum, which mutations never have.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/limits.h"
#include "wire/tar.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void read_in_pieces(struct str archive, size_t piece, struct buf *out)
{
    struct tar *tar = tar_new();
    const struct tar_entry *entry = NULL;
    enum tar_event event = TAR_MORE;
    uint64_t left = 0;
    struct err err;
    bool fine = true;

    for (size_t at = 0; fine && at < archive.len; at += piece) {
        struct str in = str_of(archive.at + at, MIN(piece, archive.len - at)), bytes;
        while ((fine = tar_read(tar, &in, &event, &entry, &bytes, &err)) && event != TAR_MORE) {
            if (event == TAR_ENTRY) {
                if (left || !entry->name.len || str_has_char(entry->name, '\0') || str_has_char(entry->link, '\0') ||
                    entry->xattr_count > LIMIT_TAR_XATTRS || entry->mtime_ns > 999999999 || entry->mode > 07777)
                    abort();
                left = entry->size;
                buf_format(out, "<%d,%.*s,%.*s,%" PRIu64 ",%u,%u,%u,%" PRId64 ",%u,%u", entry->type,
                           STR_ARG(entry->name), STR_ARG(entry->link), entry->size, entry->mode, entry->uid, entry->gid,
                           entry->mtime_s, entry->mtime_ns, entry->xattr_count);
                for (uint32_t i = 0; i < entry->xattr_count; i++) {
                    buf_add(out, entry->xattrs[i].name);
                    buf_add(out, entry->xattrs[i].value);
                }
                buf_add_char(out, '>');
            } else if (event == TAR_DATA) {
                if (!bytes.len || bytes.len > left)
                    abort();
                left -= bytes.len;
                buf_add(out, bytes);
            } else {
                buf_add_char(out, '.');
            }
        }
        if (fine && in.len)
            abort(); /* MORE means that all was used */
    }
    fine = fine && tar_finish(tar, &err);
    if (fine && left)
        abort();
    buf_add_char(out, fine ? '=' : '!');
    tar_free(tar);
}

static void sum_up(char *block)
{
    unsigned sum = 0;
    char text[16];

    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < 512; i++)
        sum += (unsigned char)block[i];
    (void)snprintf(text, sizeof text, "%06o", sum);
    memcpy(block + 148, text, 7);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    if (size < 2)
        return 0;
    auto_buf struct buf bytes = buf_make(NULL, size);
    buf_add(&bytes, str_of(data + 1, size - 1));
    for (size_t at = 0; data[0] & 1 && at + 512 <= bytes.len; at += 512)
        if (memcmp(bytes.data + at + 257, "ustar", 5) == 0)
            sum_up(bytes.data + at);
    struct str archive = buf_str(&bytes);
    auto_buf struct buf whole = buf_make(NULL, 1 << 24), pieces = buf_make(NULL, 1 << 24);
    read_in_pieces(archive, archive.len, &whole);
    read_in_pieces(archive, (size_t)data[0] + 1, &pieces);
    if (!str_eq(buf_str(&whole), buf_str(&pieces)))
        abort();
    return 0;
}
