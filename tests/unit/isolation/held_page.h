/*
 * held_page.h - a page of a template that the kernel cannot take back, because this process has locked it.
 */
#ifndef TESTS_UNIT_ISOLATION_HELD_PAGE_H
#define TESTS_UNIT_ISOLATION_HELD_PAGE_H

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test.h"

enum { HELD_PAGE_BYTES = 4 };

/* The template's file, changed, on disk and not in memory: the first to read it is charged for the page. */
static inline int held_page_open(int data_fd, const char *layer)
{
    char path[128];

    (void)snprintf(path, sizeof path, "layers/%s/etc/template-file", layer);
    int fd = openat(data_fd, path, O_RDWR | O_CLOEXEC);
    assert_int_equal(write(fd, "held", HELD_PAGE_BYTES), HELD_PAGE_BYTES);
    assert_int_equal(fsync(fd), 0); /* a dirty page is not dropped */
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    return fd;
}

static inline void *held_page_lock(int fd)
{
    void *page = mmap(NULL, HELD_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);

    assert_true(page != MAP_FAILED);
    assert_int_equal(syscall(SYS_mlock, page, HELD_PAGE_BYTES), 0); /* the sanitizers' mlock() does nothing */
    return page;
}

static inline void held_page_unlock(void *page)
{
    assert_int_equal(munmap(page, HELD_PAGE_BYTES), 0);
}

#endif
