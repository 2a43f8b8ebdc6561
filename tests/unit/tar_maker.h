/*
 * tar_maker.h - makes archives for tests, also wrong ones.
 */
#ifndef TESTS_UNIT_TAR_MAKER_H
#define TESTS_UNIT_TAR_MAKER_H

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

struct made {
    char type;
    const char *name, *link;
    unsigned mode, uid, gid;
    long mtime;
    struct str data; /* also of a directory or a link, if its size is to be wrong */
    unsigned major, minor;
};

static inline void made_sum(char block[512])
{
    unsigned sum = 0;

    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < 512; i++)
        sum += (unsigned char)block[i];
    (void)snprintf(block + 148, 8, "%06o", sum);
}

static inline void made_pad(struct buf *out)
{
    while (out->len % 512)
        buf_add_char(out, '\0');
}

static inline void made_add(struct buf *out, const struct made *made)
{
    char block[512 + 1] = { 0 };

    memcpy(block, made->name, strnlen(made->name, 100));
    (void)snprintf(block + 100, 8, "%07o", made->mode);
    (void)snprintf(block + 108, 8, "%07o", made->uid);
    (void)snprintf(block + 116, 8, "%07o", made->gid);
    (void)snprintf(block + 124, 12, "%011zo", made->data.len);
    (void)snprintf(block + 136, 12, "%011lo", made->mtime);
    block[156] = made->type;
    if (made->link)
        memcpy(block + 157, made->link, strnlen(made->link, 100));
    memcpy(block + 257, "ustar\00000", 8);
    (void)snprintf(block + 329, 8, "%07o", made->major);
    (void)snprintf(block + 337, 8, "%07o", made->minor);
    made_sum(block);
    buf_add(out, str_of(block, 512));
    buf_add(out, made->data);
    made_pad(out);
}
#define MADE(out, ...) made_add((out), &(struct made){ __VA_ARGS__ })

/* "LENGTH KEY=VALUE\n": the length counts itself. */
static inline void made_record(struct buf *out, const char *key, struct str value)
{
    size_t rest = strlen(key) + value.len + 3, len = rest;
    char digits[24];

    for (int i = 0; i < 3; i++)
        len = rest + (size_t)snprintf(digits, sizeof digits, "%zu", len);
    buf_format(out, "%zu %s=", len, key);
    buf_add(out, value);
    buf_add_char(out, '\n');
}

/* One record of a pax header, in a header of its own; several may stand before an entry. */
static inline void made_pax(struct buf *out, const char *key, struct str value)
{
    struct buf record = buf_make(NULL, 4 << 20);

    made_record(&record, key, value);
    MADE(out, .type = 'x', .name = "pax", .data = buf_str(&record));
    buf_done(&record);
}

static inline void made_end(struct buf *out)
{
    static const char zeros[1024];

    buf_add(out, str_of(zeros, sizeof zeros));
}

#endif
