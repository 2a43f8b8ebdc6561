/*
 * temp_data.h - a data directory of its own, for tests of what image/ keeps there. For a group: temp_data_set_up().
 */
#ifndef TESTS_IMAGE_TEMP_DATA_H
#define TESTS_IMAGE_TEMP_DATA_H

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/remove.h"
#include "image/layers.h"
#include "test.h"

static char temp_data_path[] = "/tmp/cloister-image.XXXXXX";
static int data_fd;

/* layers/, tmp/ and templates/, whatever is there already. */
static inline void temp_data_prepare(void)
{
    auto_close int lock_fd = -1;
    struct err err;

    if (!layers_prepare(data_fd, &lock_fd, &err))
        fail_msg("%s", err_text(&err));
}

static inline int temp_data_set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(temp_data_path));
    data_fd = open(temp_data_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    temp_data_prepare();
    return 0;
}

static inline int temp_data_tear_down(void **state)
{
    static const char *const parts[] = { "layers", "tmp", "templates", "trash" };
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        assert_true(remove_tree(data_fd, parts[i], &err));
    fd_close(&data_fd);
    return rmdir(temp_data_path);
}

#endif
