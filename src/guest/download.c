/*
 * download.c - GET /files. A small file is read and answered in one piece; a large one is sent by sendfile(2); one
 * without a size (in /proc) is read to its end. It is compressed only if the client accepts nothing else: compressing
 * costs more time than it saves.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "base/encode.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "guest/answer.h"
#include "guest/files.h"
#include "guest/files_common.h"
#include "guest/path.h"

enum {
    SMALL_BYTES = 64 * 1024,
    PIECE_BYTES = 64 * 1024,
    SNIFF_BYTES = 512,
    DATE_BYTES = 40,
    FIELDS_MAX = 8,
};

/* ---- headers ---- */

bool files_accepts(const struct str *accept, struct str coding)
{
    bool is_identity = str_eq(coding, STR("identity"));
    int any = -1; /* the weight of "*", if given */

    if (!accept)
        return is_identity;
    struct str rest = *accept, item;
    while (str_cut(&rest, ',', &item)) {
        struct str name, params = item;
        if (!str_cut(&params, ';', &name))
            continue;
        name = str_trim(name);
        params = str_trim(params.at ? params : STR(""));
        /* q=0, q=0.0, q=0.00…: all other values mean yes. */
        bool yes = true;
        if (str_skip_nocase(&params, STR("q="))) {
            yes = false;
            for (size_t i = 0; i < params.len; i++)
                yes |= params.at[i] >= '1' && params.at[i] <= '9';
        }
        if (str_eq_nocase(name, coding))
            return yes;
        if (str_eq(name, STR("*")))
            any = yes;
    }
    return any >= 0 ? any : is_identity;
}

enum files_range files_range_parse(struct str header, uint64_t size, uint64_t *out_from, uint64_t *out_len)
{
    struct str first, last = header;
    uint64_t from = 0, to = 0;

    if (!str_skip_nocase(&last, STR("bytes=")) || str_has_char(last, ',') || !str_has_char(last, '-') ||
        !str_cut(&last, '-', &first))
        return FILES_WHOLE;
    first = str_trim(first);
    last = str_trim(last.at ? last : STR(""));
    if (!first.len) {
        /* The last so many bytes. */
        if (!str_to_u64(last, UINT64_MAX, &to))
            return FILES_WHOLE;
        if (to == 0 || size == 0)
            return FILES_NOT_THERE;
        *out_len = MIN(to, size);
        *out_from = size - *out_len;
        return FILES_PART;
    }
    if (!str_to_u64(first, UINT64_MAX, &from) || (last.len && !str_to_u64(last, UINT64_MAX, &to)))
        return FILES_WHOLE;
    if (last.len && to < from)
        return FILES_WHOLE;
    if (from >= size)
        return FILES_NOT_THERE;
    *out_from = from;
    *out_len = last.len ? MIN(to, size - 1) - from + 1 : size - from;
    return FILES_PART;
}

static struct str type_of(struct str name, struct str beginning)
{
    static const struct {
        struct str ending, type;
    } table[] = {
        { STR_INIT(".css"), STR_INIT("text/css; charset=utf-8") },
        { STR_INIT(".gif"), STR_INIT("image/gif") },
        { STR_INIT(".htm"), STR_INIT("text/html; charset=utf-8") },
        { STR_INIT(".html"), STR_INIT("text/html; charset=utf-8") },
        { STR_INIT(".jpeg"), STR_INIT("image/jpeg") },
        { STR_INIT(".jpg"), STR_INIT("image/jpeg") },
        { STR_INIT(".js"), STR_INIT("text/javascript; charset=utf-8") },
        { STR_INIT(".json"), STR_INIT("application/json") },
        { STR_INIT(".mjs"), STR_INIT("text/javascript; charset=utf-8") },
        { STR_INIT(".pdf"), STR_INIT("application/pdf") },
        { STR_INIT(".png"), STR_INIT("image/png") },
        { STR_INIT(".svg"), STR_INIT("image/svg+xml") },
        { STR_INIT(".wasm"), STR_INIT("application/wasm") },
        { STR_INIT(".webp"), STR_INIT("image/webp") },
        { STR_INIT(".xml"), STR_INIT("text/xml; charset=utf-8") },
    };

    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (name.len > table[i].ending.len &&
            str_eq_nocase(str_of(name.at + name.len - table[i].ending.len, table[i].ending.len), table[i].ending))
            return table[i].type;
    for (size_t i = 0; i < beginning.len; i++) {
        unsigned char c = (unsigned char)beginning.at[i];
        if (c < 0x20 && !strchr("\t\n\f\r\x1b", c))
            return STR("application/octet-stream");
    }
    return STR("text/plain; charset=utf-8");
}

/* inline; filename=name, quoted or encoded if the name needs it. */
static struct str disposition(struct arena *arena, struct str name)
{
    struct buf out = buf_make(arena, 3 * name.len + 64);
    bool is_ascii = true, is_token = str_is_token(name);

    for (size_t i = 0; i < name.len; i++) {
        unsigned char c = (unsigned char)name.at[i];
        is_ascii &= c >= 0x20 && c < 0x7f;
    }
    if (!is_ascii) {
        buf_add(&out, STR("inline; filename*=utf-8''"));
        percent_encode(&out, name);
        return buf_str(&out);
    }
    buf_add(&out, is_token ? STR("inline; filename=") : STR("inline; filename=\""));
    for (size_t i = 0; i < name.len; i++) {
        if (name.at[i] == '"' || name.at[i] == '\\')
            buf_add_char(&out, '\\');
        buf_add_char(&out, name.at[i]);
    }
    if (!is_token)
        buf_add_char(&out, '"');
    return buf_str(&out);
}

static const char *http_date(time_t time, char room[DATE_BYTES])
{
    struct tm utc;

    (void)gmtime_r(&time, &utc);
    (void)strftime(room, DATE_BYTES, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    return room;
}

/* ---- content that has no size, or must be compressed ---- */

struct reading {
    struct http_exchange *ex;
    int fd;
    bool compresses, at_end;
    z_stream deflate;
};

static void reading_step(struct reading *r)
{
    unsigned char in[PIECE_BYTES / 4], out[PIECE_BYTES / 4];

    while (!r->at_end && !http_is_full(r->ex) && !r->ex->gone) {
        ssize_t n = read(r->fd, in, sizeof in);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            http_abort(r->ex);
            return;
        }
        /* Some files in /proc would block for ever: what can be read now is the file. */
        r->at_end = n <= 0;
        if (!r->compresses) {
            http_write(r->ex, str_of(in, n > 0 ? (size_t)n : 0));
            continue;
        }
        r->deflate.next_in = in;
        r->deflate.avail_in = n > 0 ? (unsigned)n : 0;
        do {
            r->deflate.next_out = out;
            r->deflate.avail_out = sizeof out;
            (void)deflate(&r->deflate, r->at_end ? Z_FINISH : Z_NO_FLUSH);
            http_write(r->ex, str_of(out, sizeof out - r->deflate.avail_out));
        } while (r->deflate.avail_out == 0);
    }
    if (r->at_end)
        http_end(r->ex);
}

static void on_reading_drained(struct http_exchange *ex)
{
    reading_step(ex->owner);
}

static void on_reading_gone(struct http_exchange *ex)
{
    struct reading *r = ex->owner;

    if (r->compresses)
        (void)deflateEnd(&r->deflate);
    fd_close(&r->fd);
}

static const struct http_events reading_events = { .on_drained = on_reading_drained, .on_gone = on_reading_gone };

/* Takes the descriptor. */
static void read_to_end(struct http_exchange *ex, int fd, bool compresses, struct http_field *fields, size_t count)
{
    struct reading *r = ARENA_NEW(&ex->arena, struct reading);

    r->ex = ex;
    r->fd = fd;
    r->compresses = compresses;
    if (compresses) {
        enum { GZIP_FORMAT = 15 + 16 };
        if (deflateInit2(&r->deflate, Z_BEST_SPEED, Z_DEFLATED, GZIP_FORMAT, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
            fd_close(&r->fd);
            answer_error(ex, 500, "no memory to compress");
            return;
        }
        fields[count++] = (struct http_field){ STR("Content-Encoding"), STR("gzip") };
    }
    ex->owner = r;
    ex->events = &reading_events;
    answer_start(ex, 200, fields, count, HTTP_LENGTH_UNKNOWN);
    reading_step(r);
}

/* ---- GET /files ---- */

static int open_file(struct http_exchange *ex, const char *path, struct stat *st)
{
    auto_close int fd = path_open(path, O_RDONLY, 0);
    bool is_open = fd >= 0 && fstat(fd, st) == 0;
    int number = errno;
    char reason[64];

    if (fd < 0 && (number == ENOENT || number == ENOTDIR))
        answer_error(ex, 404, "path '%s' does not exist", path);
    else if (fd < 0 && number == ENAMETOOLONG)
        answer_error(ex, 400, "path '%s' is too long", path);
    else if (fd < 0 && number == ELOOP)
        answer_error(ex, 400, "path '%s' is a cycle of links, or leads through /proc to an open file", path);
    else if (!is_open)
        answer_error(ex, 500, "error opening file '%s': %s", path, strerror_r(number, reason, sizeof reason));
    else if (S_ISDIR(st->st_mode))
        answer_error(ex, 400, "path '%s' is a directory", path);
    else if (!S_ISREG(st->st_mode))
        answer_error(ex, 500, "path '%s' is not a regular file", path);
    else
        return take_fd(&fd);
    return -1;
}

void files_download(struct guest *guest, struct http_exchange *ex)
{
    struct files_request request;
    const char *path;
    struct stat st;
    struct err err;

    if (!files_begin(&request, guest, ex, STR("read")) || !files_take_user(&request))
        return;
    if (!path_resolve(&ex->arena, request.path, &request.user, guest->default_workdir, &path, &err)) {
        answer_error(ex, 400, "%s", err.message);
        return;
    }
    auto_close int fd = open_file(ex, path, &st);
    if (fd < 0)
        return;

    const struct str *accept = http_header(&ex->head, STR("accept-encoding"));
    const struct str *range = http_header(&ex->head, STR("range"));
    const struct str *since = http_header(&ex->head, STR("if-modified-since"));
    bool takes_identity = files_accepts(accept, STR("identity"));
    if (!takes_identity && (range || since || !files_accepts(accept, STR("gzip")))) {
        answer_error(ex, 406, "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]");
        return;
    }

    struct http_field fields[FIELDS_MAX];
    size_t count = 0;
    char date[DATE_BYTES];
    struct str modified = str_from(http_date(st.st_mtime, date));
    fields[count++] = (struct http_field){ STR("Vary"), STR("Accept-Encoding") };
    fields[count++] = (struct http_field){ STR("Last-Modified"), modified };
    if (since && str_eq(*since, modified)) {
        answer(ex, 304, fields, count, STR(""));
        return;
    }
    uint64_t size = (uint64_t)st.st_size, from = 0, len = size;
    enum files_range part = range && size ? files_range_parse(*range, size, &from, &len) : FILES_WHOLE;
    if (part == FILES_NOT_THERE) {
        struct http_field all = { STR("Content-Range"),
                                  arena_format(&ex->arena, "bytes */%llu", (unsigned long long)size) };
        answer(ex, 416, &all, 1, STR(""));
        return;
    }

    /* Most files are small: then this is the only read. */
    size_t first_len = (size_t)MIN(len, (uint64_t)SMALL_BYTES);
    bool is_whole_here = size > 0 && len <= SMALL_BYTES;
    char *first = arena_alloc(&ex->arena, is_whole_here ? first_len : SNIFF_BYTES);
    ssize_t n = pread(fd, first, is_whole_here ? first_len : SNIFF_BYTES, (off_t)from);
    struct str name = path_base(str_from(path));
    fields[count++] =
        (struct http_field){ STR("Content-Type"), type_of(name, str_of(first, (size_t)MIN(MAX(n, 0), SNIFF_BYTES))) };
    fields[count++] = (struct http_field){ STR("Content-Disposition"), disposition(&ex->arena, name) };
    fields[count++] = (struct http_field){ STR("Accept-Ranges"), STR("bytes") };
    if (part == FILES_PART)
        fields[count++] =
            (struct http_field){ STR("Content-Range"),
                                 arena_format(&ex->arena, "bytes %llu-%llu/%llu", (unsigned long long)from,
                                              (unsigned long long)(from + len - 1), (unsigned long long)size) };
    unsigned status = part == FILES_PART ? 206 : 200;

    if (!takes_identity || (size == 0 && n > 0)) {
        read_to_end(ex, take_fd(&fd), !takes_identity, fields, count);
    } else if (size == 0 || (is_whole_here && n == (ssize_t)first_len)) {
        answer(ex, status, fields, count, str_of(first, size ? first_len : 0));
    } else {
        answer_start(ex, status, fields, count, len);
        http_send_file(ex, take_fd(&fd), (off_t)from, len);
        http_end(ex);
    }
}
