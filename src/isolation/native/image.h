/*
 * image.h - what an image of processes needs besides CRIU's own files: the file `cloister` in its directory. Pure text.
 *
 *   where it was made: kernel, CPU, guestd, CRIU; it can be restored only where these are the same
 *   how many layers its sandbox had: a copy has one more, with what the sandbox has written, which its programs do not use
 *   what it has from outside: mounts of its devices, files of keeper's or of a zygote that its processes have open
 *
 * Written by the helper that has made the image, read by the one that restores it.
 */
#ifndef ISOLATION_NATIVE_IMAGE_H
#define ISOLATION_NATIVE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

/* Beside that file: what /proc/sys/kernel/random/boot_id shows inside. */
#define IMAGE_BOOT_ID "boot_id"
enum { IMAGE_TEXT_BYTES = 160, IMAGE_BOOT_ID_BYTES = 37 };

struct image_origin {
    char kernel[IMAGE_TEXT_BYTES], cpu[IMAGE_TEXT_BYTES], guestd[IMAGE_TEXT_BYTES], criu[IMAGE_TEXT_BYTES];
};

enum image_from {
    IMAGE_MOUNT,  /* where: a mount point; path: what of the devices is mounted there */
    IMAGE_GUESTD, /* the program of guestd */
    IMAGE_CGROUP, /* number: which of guestd's cgroup.procs */
    IMAGE_FILE,   /* path: a file of the layers, that came in with an interpreter from the zygote; size, changed_ns */
    IMAGE_ENTER,  /* enter.so, by which such an interpreter came in */
    IMAGE_SOCKET, /* number: the inode of the socket that guestd listens on for keeper */
    IMAGE_FROM_COUNT,
};

struct image_part {
    enum image_from from;
    uint64_t mount_id, inode; /* CRIU's name for a file */
    uint64_t number;
    uint64_t size, changed_ns; /* so that no other file of this name is taken for it */
    char *where, *path;        /* or NULL */
};

struct image {
    struct image_origin origin;
    uint32_t layer_count;
    size_t count, room;
    struct image_part *parts; /* LIMIT_IMAGE_FILES at most */
};

void image_done(struct image *image);
#define auto_image __attribute__((cleanup(image_done)))
/* Copies the texts. ERR_LIMIT; ERR_INVALID for a path that a line cannot hold. */
bool image_add(struct image *image, const struct image_part *part, struct err *err) must_use;
bool image_has_file(const struct image *image, uint64_t mount_id, uint64_t inode);

/* Of a file. */
uint64_t image_changed_ns(const struct stat *st);

void image_print(struct buf *out, const struct image *image);
bool image_parse(struct str text, struct image *out, struct err *err) must_use;

/* ERR_CONFLICT if it was made elsewhere: says what differs, and that a reboot works. */
bool image_fits(const struct image_origin *made, const struct image_origin *here, struct err *err) must_use;

#endif
