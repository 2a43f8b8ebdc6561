#include "wire/tar_write.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    BLOCK = 512,
    NAME_AT = 0,
    MODE_AT = 100,
    UID_AT = 108,
    GID_AT = 116,
    SIZE_AT = 124,
    MTIME_AT = 136,
    SUM_AT = 148,
    TYPE_AT = 156,
    LINK_AT = 157,
    MAGIC_AT = 257,
    NAME_ROOM = 100,
};
#define SIZE_MOST UINT64_C(077777777777)

static void put_octal(char *field, size_t room, uint64_t value)
{
    field[room - 1] = '\0';
    for (size_t i = room - 1; i-- > 0; value >>= 3)
        field[i] = (char)('0' + (value & 7));
}

static void put_text(char *field, size_t room, struct str text)
{
    if (text.len)
        memcpy(field, text.at, MIN(text.len, room)); /* a pax header has all of it */
}

static void write_block(struct buf *out, char type, const struct tar_entry *entry, uint64_t size)
{
    char block[BLOCK] = { 0 };
    unsigned sum = 0;

    put_text(block + NAME_AT, NAME_ROOM, entry->name);
    put_octal(block + MODE_AT, 8, entry->mode & 07777);
    put_octal(block + UID_AT, 8, entry->uid & 07777777);
    put_octal(block + GID_AT, 8, entry->gid & 07777777);
    put_octal(block + SIZE_AT, 12, MIN(size, SIZE_MOST));
    put_octal(block + MTIME_AT, 12, entry->mtime_s < 0 ? 0 : MIN((uint64_t)entry->mtime_s, SIZE_MOST));
    block[TYPE_AT] = type;
    put_text(block + LINK_AT, NAME_ROOM, entry->link);
    memcpy(block + MAGIC_AT, "ustar\00000", 8);
    memset(block + SUM_AT, ' ', 8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += (unsigned char)block[i];
    put_octal(block + SUM_AT, 7, sum);
    buf_add(out, str_of(block, BLOCK));
}

/* "LENGTH KEY=VALUE\n", where the length counts itself. */
static void add_record(struct buf *out, const char *key, struct str value)
{
    size_t rest = strlen(key) + value.len + 3, len = rest;
    char digits[24];

    for (;;) {
        size_t whole = rest + (size_t)snprintf(digits, sizeof digits, "%zu", len);
        if (whole == len)
            break;
        len = whole;
    }
    buf_format(out, "%zu %s=", len, key);
    buf_add(out, value);
    buf_add_char(out, '\n');
}

void tar_write_padding(struct buf *out, uint64_t size)
{
    static const char zeros[BLOCK];

    buf_add(out, str_of(zeros, (size_t)(BLOCK - size % BLOCK) % BLOCK));
}

void tar_write_entry(struct buf *out, const struct tar_entry *entry)
{
    uint64_t size = entry->type == TAR_FILE ? entry->size : 0;
    auto_buf struct buf records = buf_make(NULL, out->cap);
    char digits[24];

    assert(entry->type == TAR_FILE || entry->type == TAR_DIRECTORY || entry->type == TAR_SYMLINK);
    if (entry->name.len > NAME_ROOM)
        add_record(&records, "path", entry->name);
    if (entry->link.len > NAME_ROOM)
        add_record(&records, "linkpath", entry->link);
    if (size > SIZE_MOST) {
        (void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)size);
        add_record(&records, "size", str_from(digits));
    }
    if (records.len) {
        struct tar_entry head = { .name = STR("pax"), .link = STR(""), .mode = 0644 };
        write_block(out, 'x', &head, records.len);
        buf_add(out, buf_str(&records));
        tar_write_padding(out, records.len);
    }
    write_block(out, entry->type == TAR_DIRECTORY ? '5' : entry->type == TAR_SYMLINK ? '2' : '0', entry, size);
}

void tar_write_end(struct buf *out)
{
    static const char zeros[2 * BLOCK];

    buf_add(out, str_of(zeros, sizeof zeros));
}
