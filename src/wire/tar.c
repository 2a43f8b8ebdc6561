/*
 * An archive is a row of blocks of 512 bytes: a header, then the data of that entry, filled up to a whole block. Two empty
 * blocks end it. What does not fit into a header comes before it, in entries of its own: a pax header ('x', records of text)
 * or a long name of GNU ('L', 'K'). tar_read() gathers these and applies them to the next entry:
 *
 *   HEADER → EXTRA → SKIP → HEADER          an entry that is about the next one
 *   HEADER → DATA → SKIP → HEADER           a file
 *   HEADER → HEADER                         an entry without data
 *   HEADER → LONE → END                     two empty blocks
 *
 * Where archives are read differently by the tools, this follows Go's reader, with which images are made and unpacked.
 * Global headers apply to owner and time only.
 */
#include "wire/tar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"

enum {
    BLOCK = 512,
    MANY_BYTES = 2 * LIMIT_TAR_HEADER_BYTES, /* of all headers about one entry; tools write three at most */
};

enum state { HEADER, EXTRA, DATA, SKIP, LONE, END, BROKEN };

/* What comes before an entry. */
struct extras {
    bool has_name, has_link, has_size, has_uid, has_gid, has_mtime;
    struct str name, link;
    uint64_t size;
    uint32_t uid, gid;
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint32_t xattr_count;
    struct tar_xattr xattrs[LIMIT_TAR_XATTRS];
};

struct tar {
    enum state state;
    uint64_t at;        /* bytes read */
    size_t have;        /* of `block` */
    uint64_t left;      /* of the data, or of what is skipped or gathered */
    uint32_t pad;       /* …and what is skipped after it */
    char kind;          /* type of the entry that `text` is gathered for */
    bool is_about_next; /* extras were read, and their entry must follow */
    bool is_used;       /* …and has: the extras go with the next call */
    struct buf text;
    struct arena arena; /* strings of the entry */
    struct extras next;
    struct extras all; /* of a global header */
    struct tar_entry entry;
    char block[BLOCK];
};

/* The fields of a header: where each is, and how long. */
struct field {
    unsigned short at, len;
};
static const struct field NAME = { 0, 100 }, MODE = { 100, 8 }, UID = { 108, 8 }, GID = { 116, 8 }, SIZE = { 124, 12 },
                          MTIME = { 136, 12 }, SUM = { 148, 8 }, LINK = { 157, 100 }, MAGIC = { 257, 8 },
                          MAJOR = { 329, 8 }, MINOR = { 337, 8 }, PREFIX = { 345, 155 };
enum { TYPE_AT = 156 };

struct tar *tar_new(void)
{
    struct tar *tar = NEW(struct tar);

    tar->text = buf_make(NULL, LIMIT_TAR_HEADER_BYTES);
    arena_init(&tar->arena);
    return tar;
}

void tar_free(struct tar *tar)
{
    if (!tar)
        return;
    buf_done(&tar->text);
    arena_done(&tar->arena);
    free(tar);
}

static bool broken(const struct tar *tar, struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "the archive is damaged before byte %" PRIu64 ": %s", tar->at, what);
}

/* ---- numbers ---- */

static struct str field_of(const struct tar *tar, struct field field)
{
    struct str s = str_of(tar->block + field.at, field.len);
    const char *zero = memchr(s.at, '\0', s.len);

    return zero ? str_of(s.at, (size_t)(zero - s.at)) : s;
}

/* Big-endian with the top bit as a mark: what octal digits have no room for. Two's complement. */
static bool read_binary(const unsigned char *at, size_t len, int64_t *out)
{
    bool is_negative = at[0] & 0x40;
    uint64_t value = is_negative ? UINT64_MAX : 0;

    for (size_t i = 0; i < len; i++) {
        unsigned char byte = i ? at[i] : (unsigned char)(is_negative ? at[0] | 0x80 : at[0] & 0x7f);
        if (value >> 56 != (is_negative ? 0xff : 0))
            return false;
        value = value << 8 | byte;
    }
    if ((value >> 63) != is_negative)
        return false;
    *out = (int64_t)value;
    return true;
}

/* Empty is 0. */
static bool read_number(const struct tar *tar, struct field field, int64_t *out)
{
    const unsigned char *at = (const unsigned char *)tar->block + field.at;
    uint64_t value = 0;
    size_t i = 0, end = field.len;

    if (at[0] & 0x80)
        return read_binary(at, field.len, out);
    while (i < end && (at[i] == ' ' || at[i] == '\0'))
        i++;
    while (end > i && (at[end - 1] == ' ' || at[end - 1] == '\0'))
        end--;
    for (; i < end && at[i] >= '0' && at[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(at[i] - '0'); /* twelve digits are 36 bits */
    if (i < end && at[i] != ' ' && at[i] != '\0')
        return false;
    *out = (int64_t)value;
    return true;
}

/* Of the header with its own field as spaces. Old programs have added signed bytes. */
static bool sum_fits(const struct tar *tar)
{
    int64_t plain = 0, with_sign = 0, want;

    for (size_t i = 0; i < BLOCK; i++) {
        char c = i >= SUM.at && i < (size_t)SUM.at + SUM.len ? ' ' : tar->block[i];
        plain += (unsigned char)c;
        with_sign += (signed char)c;
    }
    return read_number(tar, SUM, &want) && (want == plain || want == with_sign);
}

/* "-1.25" is -2 seconds and 750 milliseconds. */
static bool read_time(struct str text, int64_t *out_s, uint32_t *out_ns)
{
    bool is_negative = str_skip(&text, STR("-"));
    struct str whole;
    uint64_t seconds, ns = 0, unit = 100000000;

    if (!str_cut(&text, '.', &whole) || !str_to_u64(whole, INT64_MAX / 2, &seconds))
        return false;
    for (size_t i = 0; text.at && i < text.len; i++, unit /= 10) {
        if (!char_is_digit(text.at[i]))
            return false;
        ns += (uint64_t)(text.at[i] - '0') * unit; /* digits past the ninth have a unit of 0 */
    }
    *out_s = is_negative ? -(int64_t)seconds - (ns > 0) : (int64_t)seconds;
    *out_ns = (uint32_t)(is_negative && ns ? 1000000000 - ns : ns);
    return true;
}

/* ---- what comes before an entry ---- */

static bool take_name(struct tar *tar, struct str value, bool *out_has, struct str *out, struct err *err)
{
    if (value.len > LIMIT_TAR_NAME_BYTES)
        return broken(tar, err, "a name is longer than 4096 bytes");
    if (str_has_char(value, '\0'))
        return broken(tar, err, "a name has a zero byte in it");
    *out_has = true;
    *out = arena_copy(&tar->arena, value);
    return true;
}

static bool take_id(struct tar *tar, struct str value, bool *out_has, uint32_t *out, struct err *err)
{
    uint64_t id;

    if (!str_to_u64(value, UINT32_MAX - 1, &id))
        return broken(tar, err, "an owner is no number");
    *out_has = true;
    *out = (uint32_t)id;
    return true;
}

static bool take_xattr(struct tar *tar, struct str name, struct str value, struct err *err)
{
    struct extras *next = &tar->next;

    if (!name.len || name.len > 255)
        return broken(tar, err, "an extended attribute's name must have 1 to 255 bytes");
    if (str_has_char(name, '\0'))
        return broken(tar, err, "an extended attribute's name has a zero byte in it");
    if (next->xattr_count == LIMIT_TAR_XATTRS)
        return err_set(err, ERR_INVALID, "an entry of the archive has more than %d extended attributes",
                       LIMIT_TAR_XATTRS);
    next->xattrs[next->xattr_count++] =
        (struct tar_xattr){ arena_copy(&tar->arena, name), arena_copy(&tar->arena, value) };
    return true;
}

static bool take_record(struct tar *tar, struct str key, struct str value, struct err *err)
{
    bool is_global = tar->kind == 'g';
    struct extras *to = is_global ? &tar->all : &tar->next;

    if (!value.len)
        return true; /* the header's own value holds */
    if (str_eq(key, STR("uid")))
        return take_id(tar, value, &to->has_uid, &to->uid, err);
    if (str_eq(key, STR("gid")))
        return take_id(tar, value, &to->has_gid, &to->gid, err);
    if (str_eq(key, STR("mtime"))) {
        to->has_mtime = true;
        return read_time(value, &to->mtime_s, &to->mtime_ns) || broken(tar, err, "a time is no number");
    }
    if (is_global)
        return true;
    if (str_eq(key, STR("path")))
        return take_name(tar, value, &to->has_name, &to->name, err);
    if (str_eq(key, STR("linkpath")))
        return take_name(tar, value, &to->has_link, &to->link, err);
    if (str_eq(key, STR("size"))) {
        to->has_size = true;
        return str_to_u64(value, INT64_MAX, &to->size) || broken(tar, err, "a size is no number");
    }
    if (str_skip(&key, STR("SCHILY.xattr.")))
        return take_xattr(tar, key, value, err);
    if (str_starts(key, STR("GNU.sparse.")))
        return err_set(err, ERR_INVALID, "the archive has sparse files, which cannot be read here: make it without");
    return true;
}

/* "LENGTH KEY=VALUE\n", where the length counts all of that. */
static bool take_records(struct tar *tar, struct err *err)
{
    struct str rest = buf_str(&tar->text);

    while (rest.len) {
        const char *space = memchr(rest.at, ' ', MIN(rest.len, (size_t)20));
        struct str digits = str_of(rest.at, space ? (size_t)(space - rest.at) : 0), key;
        uint64_t len;
        if (!str_to_u64(digits, rest.len, &len) || len < digits.len + 3 || rest.at[len - 1] != '\n')
            return broken(tar, err, "a record of a pax header has a wrong length");
        struct str record = str_of(space + 1, (size_t)len - digits.len - 2);
        if (!str_has_char(record, '=') || !str_cut(&record, '=', &key) || !key.len)
            return broken(tar, err, "a record of a pax header has no name");
        if (!take_record(tar, key, record, err))
            return false;
        rest = str_of(rest.at + len, rest.len - (size_t)len);
    }
    return true;
}

static bool take_text(struct tar *tar, struct err *err)
{
    struct str text = buf_str(&tar->text);

    if (tar->kind == 'x' || tar->kind == 'g')
        return take_records(tar, err);
    while (text.len && text.at[text.len - 1] == '\0')
        text.len--;
    if (tar->kind == 'L')
        return take_name(tar, text, &tar->next.has_name, &tar->next.name, err);
    return take_name(tar, text, &tar->next.has_link, &tar->next.link, err);
}

/* ---- headers ---- */

static bool is_empty(const struct tar *tar)
{
    for (size_t i = 0; i < BLOCK; i++)
        if (tar->block[i])
            return false;
    return true;
}

static enum tar_type type_of(char flag)
{
    switch (flag) {
    case '\0':
    case '0':
    case '7': /* a contiguous file, on no system of today */
        return TAR_FILE;
    case '1':
        return TAR_HARD_LINK;
    case '2':
        return TAR_SYMLINK;
    case '3':
        return TAR_CHAR_DEVICE;
    case '4':
        return TAR_BLOCK_DEVICE;
    case '5':
        return TAR_DIRECTORY;
    case '6':
        return TAR_FIFO;
    default:
        return TAR_OTHER;
    }
}

static bool read_id(const struct tar *tar, struct field field, uint32_t *out)
{
    int64_t value;

    if (!read_number(tar, field, &value) || value < 0 || value >= UINT32_MAX) /* the last one means "leave it" */
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool read_names(struct tar *tar, struct err *err)
{
    struct tar_entry *entry = &tar->entry;
    bool is_ustar = memcmp(tar->block + MAGIC.at, "ustar\00000", MAGIC.len) == 0;
    struct str name = field_of(tar, NAME), prefix = is_ustar ? field_of(tar, PREFIX) : STR("");

    if (tar->next.has_name)
        entry->name = tar->next.name;
    else if (prefix.len)
        entry->name = arena_format(&tar->arena, "%.*s/%.*s", STR_ARG(prefix), STR_ARG(name));
    else
        entry->name = arena_copy(&tar->arena, name);
    entry->link = tar->next.has_link ? tar->next.link : arena_copy(&tar->arena, field_of(tar, LINK));
    if (!entry->name.len)
        return broken(tar, err, "an entry has no name");
    return true;
}

static bool read_numbers(struct tar *tar, int64_t size, struct err *err)
{
    const struct extras *next = &tar->next, *all = &tar->all;
    struct tar_entry *entry = &tar->entry;
    int64_t mode, major = 0, minor = 0;
    bool is_device = entry->type == TAR_CHAR_DEVICE || entry->type == TAR_BLOCK_DEVICE;

    entry->uid = next->has_uid ? next->uid : all->uid;
    entry->gid = next->has_gid ? next->gid : all->gid;
    entry->mtime_s = next->has_mtime ? next->mtime_s : all->mtime_s;
    entry->mtime_ns = next->has_mtime ? next->mtime_ns : all->mtime_ns;
    if (!next->has_uid && !all->has_uid && !read_id(tar, UID, &entry->uid))
        return broken(tar, err, "an owner is no number");
    if (!next->has_gid && !all->has_gid && !read_id(tar, GID, &entry->gid))
        return broken(tar, err, "a group is no number");
    if (!next->has_mtime && !all->has_mtime && !read_number(tar, MTIME, &entry->mtime_s))
        return broken(tar, err, "a time is no number");
    if (!read_number(tar, MODE, &mode) || mode < 0)
        return broken(tar, err, "a mode is no number");
    entry->mode = (uint32_t)mode & 07777;
    if (is_device && (!read_number(tar, MAJOR, &major) || !read_number(tar, MINOR, &minor) || major < 0 || minor < 0 ||
                      major > UINT32_MAX || minor > UINT32_MAX))
        return broken(tar, err, "a device has no number");
    entry->major = (uint32_t)major;
    entry->minor = (uint32_t)minor;
    entry->size = next->has_size ? next->size : (uint64_t)size;
    return true;
}

static void expect(struct tar *tar, enum state state, uint64_t size)
{
    tar->state = size ? state : HEADER;
    tar->left = size;
    tar->pad = (uint32_t)(-size % BLOCK);
    if (state == SKIP)
        tar->left += tar->pad;
}

static void skip_padding(struct tar *tar)
{
    tar->left = tar->pad;
    tar->state = tar->pad ? SKIP : HEADER;
}

/* The block is a header of something about the next entry. */
static bool begin_text(struct tar *tar, char flag, int64_t size, struct err *err)
{
    if (size > LIMIT_TAR_HEADER_BYTES)
        return err_set(err, ERR_INVALID, "the archive has a header of %" PRId64 " bytes; at most %d are read", size,
                       LIMIT_TAR_HEADER_BYTES);
    if (tar->arena.used > MANY_BYTES)
        return broken(tar, err, "too many headers are about one entry");
    tar->kind = flag;
    tar->is_about_next |= flag != 'g';
    buf_clear(&tar->text);
    expect(tar, EXTRA, (uint64_t)size);
    return size != 0 || take_text(tar, err);
}

static bool begin_entry(struct tar *tar, char flag, int64_t size, struct err *err)
{
    struct tar_entry *entry = &tar->entry;

    *entry =
        (struct tar_entry){ .type = type_of(flag), .xattr_count = tar->next.xattr_count, .xattrs = tar->next.xattrs };
    if (!read_names(tar, err) || !read_numbers(tar, size, err))
        return false;
    if (entry->type == TAR_FILE && !entry->size && str_ends(entry->name, STR("/")))
        entry->type = TAR_DIRECTORY; /* before there was a type for it */
    if (entry->size > INT64_MAX - BLOCK)
        return broken(tar, err, "an entry is larger than any file");
    if (entry->type == TAR_FILE)
        expect(tar, DATA, entry->size);
    else
        expect(tar, SKIP, entry->type == TAR_OTHER ? entry->size : 0);
    entry->size = entry->type == TAR_FILE ? entry->size : 0;
    tar->is_about_next = false;
    tar->is_used = true;
    return true;
}

/* The block is whole. */
static bool read_block(struct tar *tar, enum tar_event *out, struct err *err)
{
    int64_t size;
    char flag = tar->block[TYPE_AT];

    *out = TAR_MORE;
    if (is_empty(tar)) {
        *out = tar->state == LONE ? TAR_END : TAR_MORE;
        tar->state = tar->state == LONE ? END : LONE;
        return !tar->is_about_next || broken(tar, err, "a header is about an entry that does not follow");
    }
    if (tar->state == LONE)
        return broken(tar, err, "an empty block is followed by another that is not");
    if (!sum_fits(tar))
        return broken(tar, err, "a header has a wrong checksum, or this is no tar archive");
    if (!read_number(tar, SIZE, &size) || size < 0)
        return broken(tar, err, "a size is no number");
    if (flag == 'S')
        return err_set(err, ERR_INVALID, "the archive has sparse files, which cannot be read here: make it without");
    if (flag == 'x' || flag == 'g' || flag == 'L' || flag == 'K')
        return begin_text(tar, flag, size, err);
    *out = TAR_ENTRY;
    return begin_entry(tar, flag, size, err);
}

/* ---- reading ---- */

static struct str take(struct tar *tar, struct str *in, uint64_t most)
{
    struct str piece = str_of(in->at, (size_t)MIN((uint64_t)in->len, most));

    in->at += piece.len;
    in->len -= piece.len;
    tar->at += piece.len;
    return piece;
}

static bool step(struct tar *tar, struct str *in, enum tar_event *out, struct str *out_data, struct err *err)
{
    struct str piece;

    *out = TAR_MORE;
    switch (tar->state) {
    case HEADER:
    case LONE:
        piece = take(tar, in, BLOCK - tar->have);
        memcpy(tar->block + tar->have, piece.at, piece.len);
        tar->have += piece.len;
        if (tar->have < BLOCK)
            return true;
        tar->have = 0;
        return read_block(tar, out, err);
    case EXTRA:
        piece = take(tar, in, tar->left);
        buf_add(&tar->text, piece);
        tar->left -= piece.len;
        if (tar->left)
            return true;
        skip_padding(tar);
        return take_text(tar, err);
    case DATA:
        *out = TAR_DATA;
        *out_data = take(tar, in, tar->left);
        tar->left -= out_data->len;
        if (!tar->left)
            skip_padding(tar);
        return true;
    case SKIP:
        tar->left -= take(tar, in, tar->left).len;
        tar->state = tar->left ? SKIP : HEADER;
        return true;
    case END:
        (void)take(tar, in, in->len);
        return true;
    default:
        return err_set(err, ERR_INVALID, "the archive is damaged");
    }
}

bool tar_read(struct tar *tar, struct str *in, enum tar_event *out, const struct tar_entry **out_entry,
              struct str *out_data, struct err *err)
{
    *out = TAR_MORE;
    while (in->len && *out == TAR_MORE) {
        if (tar->is_used && tar->state == HEADER) {
            /* The entry's strings were good until this call. */
            tar->is_used = false;
            tar->next = (struct extras){ 0 };
            arena_done(&tar->arena);
        }
        if (!step(tar, in, out, out_data, err)) {
            tar->state = BROKEN;
            return false;
        }
    }
    if (*out == TAR_ENTRY)
        *out_entry = &tar->entry;
    return true;
}

bool tar_finish(const struct tar *tar, struct err *err)
{
    if (tar->state == END || ((tar->state == HEADER || tar->state == LONE) && !tar->have && !tar->is_about_next))
        return true;
    return err_set(err, ERR_INVALID, "the archive is cut short at byte %" PRIu64, tar->at);
}
