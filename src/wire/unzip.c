/*
 * The first bytes decide: SNIFF gathers up to four of them and then becomes PLAIN, GZIP or ZSTD. A gzip stream may have several
 * members, and zeros to fill a block: between two of them it is BETWEEN. zstd finds its frames by itself, also those that are
 * to be skipped.
 */
#include "wire/unzip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/limits.h"
#include "base/mem.h"

enum { MAGIC_BYTES = 4 };

enum state { SNIFF, PLAIN, GZIP, BETWEEN, ZSTD };

struct unzip {
    enum state state;
    bool is_over; /* ZSTD: the frame is complete… */
    bool is_full; /* …or it has more to give than there was room for */
    uint64_t done, most;
    unsigned char first[MAGIC_BYTES];
    size_t have, given; /* of `first` */
    z_stream gzip;
    bool has_gzip;
    ZSTD_DStream *zstd;
};

struct unzip *unzip_new(uint64_t most_bytes)
{
    struct unzip *unzip = NEW(struct unzip);

    unzip->most = most_bytes;
    return unzip;
}

void unzip_free(struct unzip *unzip)
{
    if (!unzip)
        return;
    if (unzip->has_gzip)
        (void)inflateEnd(&unzip->gzip);
    (void)ZSTD_freeDStream(unzip->zstd);
    free(unzip);
}

/* ---- what it is ---- */

static bool could_be(const struct unzip *unzip, const unsigned char *magic, size_t len)
{
    return memcmp(unzip->first, magic, MIN(unzip->have, len)) == 0;
}

static bool begin_gzip(struct unzip *unzip, struct err *err)
{
    if (inflateInit2(&unzip->gzip, 15 + 16) != Z_OK) /* the largest window; gzip and nothing else */
        return err_set(err, ERR_UNAVAILABLE, "there is no memory to unpack gzip");
    unzip->has_gzip = true;
    unzip->state = GZIP;
    return true;
}

static bool begin_zstd(struct unzip *unzip, struct err *err)
{
    unzip->zstd = ZSTD_createDStream();
    if (!unzip->zstd || ZSTD_isError(ZSTD_DCtx_setParameter(unzip->zstd, ZSTD_d_windowLogMax, LIMIT_ZSTD_WINDOW)))
        return err_set(err, ERR_UNAVAILABLE, "there is no memory to unpack zstd");
    unzip->state = ZSTD;
    return true;
}

/* The bytes in `first` are given to whoever is next. */
static bool sniff(struct unzip *unzip, struct str *in, struct err *err)
{
    static const unsigned char gzip[] = { 0x1f, 0x8b }, zstd[] = { 0x28, 0xb5, 0x2f, 0xfd };
    static const unsigned char skipped[] = { 0x2a, 0x4d, 0x18 }; /* after 0x50 to 0x5f */

    while (in->len && unzip->state == SNIFF) {
        unzip->first[unzip->have++] = (unsigned char)in->at[0];
        in->at++;
        in->len--;
        bool is_gzip = could_be(unzip, gzip, sizeof gzip), is_zstd = could_be(unzip, zstd, sizeof zstd);
        bool is_skipped = unzip->first[0] >> 4 == 5 && memcmp(unzip->first + 1, skipped, unzip->have - 1) == 0;
        if (!is_gzip && !is_zstd && !is_skipped)
            unzip->state = PLAIN;
        else if (is_gzip && unzip->have == sizeof gzip && !begin_gzip(unzip, err))
            return false;
        else if (!is_gzip && unzip->have == MAGIC_BYTES && !begin_zstd(unzip, err))
            return false;
    }
    return true;
}

/* ---- unpacking ---- */

struct room {
    char *at;
    size_t left;
};

static void use(struct str *in, size_t used, struct room *room, size_t made)
{
    in->at += used;
    in->len -= used;
    room->at += made;
    room->left -= made;
}

static bool pass(struct str *in, struct room *room)
{
    size_t n = MIN(in->len, room->left);

    memcpy(room->at, in->at, n);
    use(in, n, room, n);
    return true;
}

static bool inflate_some(struct unzip *unzip, struct str *in, struct room *room, struct err *err)
{
    z_stream *z = &unzip->gzip;
    uInt given = (uInt)MIN(in->len, (size_t)1 << 30), space = (uInt)MIN(room->left, (size_t)1 << 30);

    z->next_in = (Bytef *)(uintptr_t)in->at;
    z->avail_in = given;
    z->next_out = (Bytef *)room->at;
    z->avail_out = space;
    int got = inflate(z, Z_NO_FLUSH);
    use(in, given - z->avail_in, room, space - z->avail_out);
    if (got == Z_STREAM_END)
        unzip->state = BETWEEN;
    else if (got == Z_MEM_ERROR)
        return err_set(err, ERR_UNAVAILABLE, "there is no memory to unpack gzip");
    else if (got != Z_OK && got != Z_BUF_ERROR)
        return err_set(err, ERR_INVALID, "the gzip stream is damaged: %.80s", z->msg ? z->msg : "wrong sum");
    return true;
}

static bool next_member(struct unzip *unzip, struct str *in, struct err *err)
{
    while (in->len && in->at[0] == '\0') {
        in->at++;
        in->len--;
    }
    if (!in->len)
        return true;
    if ((unsigned char)in->at[0] != 0x1f)
        return err_set(err, ERR_INVALID, "something that is no gzip follows the gzip stream");
    (void)inflateReset(&unzip->gzip); /* fails only on a stream that was never begun */
    unzip->state = GZIP;
    return true;
}

static bool decompress_some(struct unzip *unzip, struct str *in, struct room *room, struct err *err)
{
    ZSTD_inBuffer from = { in->at, in->len, 0 };
    ZSTD_outBuffer to = { room->at, room->left, 0 };

    if (!in->len && !unzip->is_full)
        return true; /* it takes calls without effect for a mistake */
    size_t got = ZSTD_decompressStream(unzip->zstd, &to, &from);
    if (ZSTD_isError(got))
        return err_set(err, ERR_INVALID, "the zstd stream is damaged: %.80s", ZSTD_getErrorName(got));
    use(in, from.pos, room, to.pos);
    unzip->is_over = got == 0;
    unzip->is_full = to.pos == to.size && got != 0;
    return true;
}

static bool some(struct unzip *unzip, struct str *in, struct room *room, struct err *err)
{
    switch (unzip->state) {
    case SNIFF:
        return sniff(unzip, in, err);
    case GZIP:
        return inflate_some(unzip, in, room, err);
    case BETWEEN:
        return next_member(unzip, in, err);
    case ZSTD:
        return decompress_some(unzip, in, room, err);
    default:
        return pass(in, room);
    }
}

bool unzip_read(struct unzip *unzip, struct str *in, char *room, size_t size, size_t *out_len, struct err *err)
{
    struct room to = { room, size };

    *out_len = 0;
    if (unzip->state == SNIFF && !sniff(unzip, in, err))
        return false;
    for (;;) {
        struct str held = str_of(unzip->first + unzip->given, unzip->have - unzip->given);
        bool is_held = unzip->state != SNIFF && held.len;
        struct str *from = is_held ? &held : in;
        size_t len = from->len, left = to.left;
        enum state state = unzip->state;
        if (!to.left)
            break;
        if (!some(unzip, from, &to, err))
            return false;
        if (is_held)
            unzip->given = unzip->have - held.len;
        if (from->len == len && to.left == left && unzip->state == state)
            break; /* nothing moves without more */
    }
    unzip->done += size - to.left;
    if (unzip->done > unzip->most)
        return err_set(err, ERR_LIMIT, "the archive unpacks to more than %" PRIu64 " bytes", unzip->most);
    *out_len = size - to.left;
    return true;
}

bool unzip_finish(const struct unzip *unzip, struct err *err)
{
    bool is_whole = unzip->state == PLAIN || unzip->state == BETWEEN || (unzip->state == ZSTD && unzip->is_over) ||
                    (unzip->state == SNIFF && !unzip->have);

    return is_whole || err_set(err, ERR_INVALID, "the compressed archive is cut short");
}
