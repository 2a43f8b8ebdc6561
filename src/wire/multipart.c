/*
 * A state machine over the input. A delimiter is CR LF "--" boundary; scan() finds it, also when it is cut into pieces,
 * and passes on everything else without a copy. multipart_next() moves PREAMBLE → DELIMITED → LINE_END → HEAD → DATA
 * and back to DELIMITED for each part, until "--" after a delimiter leads to EPILOGUE.
 */
#include "wire/multipart.h"

enum {
    PREAMBLE,  /* before the first delimiter; the body may begin with one, so its CR LF counts as read */
    DELIMITED, /* after a delimiter: "--" ends the body, white space and CR LF begin a part */
    CLOSING,   /* one "-" of two was read */
    LINE_END,  /* CR was read, LF must follow */
    HEAD,      /* the headers of a part, gathered up to the empty line */
    DATA,      /* its bytes */
    PART_OVER, /* its delimiter was read together with its last bytes; the next call reports the end */
    EPILOGUE,  /* done */
    BROKEN,
};

/* The value of a quoted or bare parameter at the front of *rest; *rest moves behind it. */
static struct str take_value(struct str *rest, bool *out_quoted)
{
    struct str value;

    *out_quoted = str_skip(rest, STR("\""));
    if (!*out_quoted) {
        const char *end = rest->len ? memchr(rest->at, ';', rest->len) : NULL;
        value = str_of(rest->at, end ? (size_t)(end - rest->at) : rest->len);
        rest->at += value.len;
        rest->len -= value.len;
        return str_trim(value);
    }
    size_t i = 0;
    while (i < rest->len && rest->at[i] != '"')
        i += rest->at[i] == '\\' && i + 1 < rest->len ? 2 : 1;
    value = str_of(rest->at, i);
    i += i < rest->len; /* the closing quote */
    rest->at += i;
    rest->len -= i;
    return value;
}

bool multipart_param(struct str value, struct str name, struct str *out, bool *out_quoted)
{
    struct str rest = value, before;

    if (!str_cut(&rest, ';', &before))
        return false;
    while (rest.at && rest.len) {
        rest = str_trim(rest);
        const char *equals = rest.len ? memchr(rest.at, '=', rest.len) : NULL;
        if (!equals)
            return false;
        struct str key = str_trim(str_of(rest.at, (size_t)(equals - rest.at)));
        rest = str_trim(str_of(equals + 1, rest.len - (size_t)(equals + 1 - rest.at)));
        bool quoted;
        struct str found = take_value(&rest, &quoted);
        if (str_eq_nocase(key, name)) {
            *out = found;
            *out_quoted = quoted;
            return true;
        }
        struct str junk; /* between the value and the next semicolon */
        if (!str_cut(&rest, ';', &junk))
            return false;
    }
    return false;
}

bool multipart_init(struct multipart *mp, struct str content_type, struct err *err)
{
    struct str boundary, type = content_type;
    bool quoted;

    if (!str_skip_nocase(&type, STR("multipart/")))
        return err_set(err, ERR_INVALID, "not a multipart content type");
    if (!multipart_param(content_type, STR("boundary"), &boundary, &quoted) || boundary.len == 0)
        return err_set(err, ERR_INVALID, "no multipart boundary param in Content-Type");
    if (boundary.len > MULTIPART_BOUNDARY_MAX || str_has_char(boundary, '\r') || str_has_char(boundary, '\n'))
        return err_set(err, ERR_INVALID, "malformed multipart boundary");
    *mp = (struct multipart){
        .state = PREAMBLE, .matched = 2, .borrowed = 2, .head = buf_make(NULL, MULTIPART_HEAD_BYTES_MAX)
    };
    arena_init(&mp->arena);
    memcpy(mp->delimiter, "\r\n--", 4);
    memcpy(mp->delimiter + 4, boundary.at, boundary.len);
    mp->delimiter_len = 4 + boundary.len;
    return true;
}

void multipart_done(struct multipart *mp)
{
    buf_done(&mp->head);
    arena_done(&mp->arena);
}

static void consume(struct str *in, size_t count)
{
    in->at += count;
    in->len -= count;
}

/*
 * Data up to the next delimiter. Returns true when the delimiter was consumed. *out_data is the data before it, or,
 * without a delimiter, all that is certainly data. A tail that may begin a delimiter is held back and counted in
 * `matched`. If it turns out to be data, it is returned from our copy of the delimiter, which has the same bytes. The
 * first `borrowed` bytes of it are the line end in front of the data and not part of it.
 */
static bool scan(struct multipart *mp, struct str *in, struct str *out_data)
{
    *out_data = str_of("", 0);
    while (mp->matched && in->len) {
        if (in->at[0] == mp->delimiter[mp->matched]) {
            consume(in, 1);
            if (++mp->matched == mp->delimiter_len) {
                mp->matched = mp->borrowed = 0;
                return true;
            }
        } else {
            *out_data = str_of(mp->delimiter + mp->borrowed, mp->matched - mp->borrowed);
            mp->matched = mp->borrowed = 0;
            return false;
        }
    }
    if (!in->len)
        return false;
    const char *found = memmem(in->at, in->len, mp->delimiter, mp->delimiter_len);
    if (found) {
        *out_data = str_of(in->at, (size_t)(found - in->at));
        consume(in, out_data->len + mp->delimiter_len);
        return true;
    }
    size_t tail = MIN(in->len, mp->delimiter_len - 1);
    const char *cr = memrchr(in->at + in->len - tail, '\r', tail);
    size_t held = cr ? (size_t)(in->at + in->len - cr) : 0;
    if (held && memcmp(cr, mp->delimiter, held) != 0)
        held = 0;
    *out_data = str_of(in->at, in->len - held);
    mp->matched = held;
    consume(in, in->len);
    return false;
}

/* Browsers escape quotes and line ends as %22, %0D and %0A; other clients use \" and \\. */
static struct str unescape(struct arena *arena, struct str text, bool quoted)
{
    static const struct {
        struct str from;
        char to;
    } table[] = {
        { STR_INIT("%22"), '"' },  { STR_INIT("%0D"), '\r' },  { STR_INIT("%0A"), '\n' },
        { STR_INIT("\\\""), '"' }, { STR_INIT("\\\\"), '\\' },
    };
    char *room = arena_alloc(arena, text.len + 1);
    size_t len = 0;

    if (!quoted)
        return arena_copy(arena, text);
    while (text.len) {
        size_t i = 0;
        while (i < COUNT_OF(table) && !str_skip_nocase(&text, table[i].from))
            i++;
        if (i < COUNT_OF(table)) {
            room[len++] = table[i].to;
        } else {
            room[len++] = text.at[0];
            consume(&text, 1);
        }
    }
    return str_of(room, len);
}

static bool read_head(struct multipart *mp, struct multipart_part *out, struct err *err)
{
    struct str rest = buf_str(&mp->head), line, found;
    bool quoted;

    arena_done(&mp->arena);
    *out = (struct multipart_part){ .content_type = STR("") };
    while (str_cut(&rest, '\n', &line)) {
        if (!str_ends(line, STR("\r")))
            return line.len == 0 || err_set(err, ERR_INVALID, "malformed multipart header");
        line.len--;
        if (line.len == 0)
            continue;
        struct str name;
        struct str value = line;
        if (!str_has_char(line, ':') || !str_cut(&value, ':', &name))
            return err_set(err, ERR_INVALID, "malformed multipart header");
        value = str_trim(value);
        if (str_eq_nocase(name, STR("content-disposition"))) {
            out->has_name = multipart_param(value, STR("name"), &found, &quoted);
            if (out->has_name)
                out->name = unescape(&mp->arena, found, quoted);
            out->has_filename = multipart_param(value, STR("filename"), &found, &quoted);
            if (out->has_filename)
                out->filename = unescape(&mp->arena, found, quoted);
        } else if (str_eq_nocase(name, STR("content-type"))) {
            out->content_type = arena_copy(&mp->arena, value);
        }
    }
    return true;
}

/* Gather up to the empty line. True when the head is complete. */
static bool gather_head(struct multipart *mp, struct str *in)
{
    while (in->len && !mp->head.overflowed) {
        const char *lf = memchr(in->at, '\n', in->len);
        size_t take = lf ? (size_t)(lf - in->at) + 1 : in->len;
        buf_add(&mp->head, str_of(in->at, take));
        consume(in, take);
        struct str so_far = buf_str(&mp->head);
        if (lf && (str_eq(so_far, STR("\r\n")) || str_ends(so_far, STR("\r\n\r\n"))))
            return true;
    }
    return false;
}

static enum multipart_event bad(struct multipart *mp, struct err *err, const char *why)
{
    mp->state = BROKEN;
    (void)err_set(err, ERR_INVALID, "%s", why);
    return MULTIPART_BAD;
}

enum multipart_event multipart_next(struct multipart *mp, struct str *in, struct multipart_part *out_part,
                                    struct str *out_data, struct err *err)
{
    for (;;) {
        switch (mp->state) {
        case PREAMBLE:
            if (scan(mp, in, out_data))
                mp->state = DELIMITED;
            else if (!in->len)
                return MULTIPART_MORE;
            break;
        case DELIMITED:
            if (!in->len)
                return MULTIPART_MORE;
            if (in->at[0] == '-')
                mp->state = CLOSING;
            else if (in->at[0] == '\r')
                mp->state = LINE_END;
            else if (in->at[0] != ' ' && in->at[0] != '\t')
                return bad(mp, err, "malformed multipart delimiter");
            consume(in, 1);
            break;
        case CLOSING:
        case LINE_END:
            if (!in->len)
                return MULTIPART_MORE;
            if (in->at[0] != (mp->state == CLOSING ? '-' : '\n'))
                return bad(mp, err, "malformed multipart delimiter");
            consume(in, 1);
            buf_clear(&mp->head);
            if (mp->state == LINE_END) {
                mp->state = HEAD;
                break;
            }
            mp->state = EPILOGUE;
            return MULTIPART_DONE;
        case HEAD:
            if (!gather_head(mp, in)) {
                if (mp->head.overflowed)
                    return bad(mp, err, "the headers of a multipart part are too long");
                return MULTIPART_MORE;
            }
            if (!read_head(mp, out_part, err)) {
                mp->state = BROKEN;
                return MULTIPART_BAD;
            }
            /* The empty line's own CR LF may be the start of the delimiter: a part without any bytes. */
            mp->matched = mp->borrowed = 2;
            mp->state = DATA;
            return MULTIPART_PART;
        case DATA:
            if (!in->len)
                return MULTIPART_MORE;
            if (scan(mp, in, out_data)) {
                mp->state = PART_OVER;
                if (out_data->len)
                    return MULTIPART_DATA;
            } else if (out_data->len) {
                return MULTIPART_DATA;
            }
            break;
        case PART_OVER:
            mp->state = DELIMITED;
            return MULTIPART_PART_END;
        case EPILOGUE:
            consume(in, in->len);
            return MULTIPART_MORE;
        default:
            return bad(mp, err, "the multipart body is already broken");
        }
    }
}

bool multipart_is_whole(const struct multipart *mp)
{
    return mp->state == EPILOGUE;
}
