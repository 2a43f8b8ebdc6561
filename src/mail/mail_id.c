/*
 * ULIDs: 48 bits of milliseconds, 80 random bits, in Crockford's base32. Within one process each is greater than the one
 * before: for the same or an earlier millisecond the last random part is counted up.
 */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/random.h"
#include "mail/mail.h"

enum { ULID_CHARS = 26, HANDLE_CHARS = 10, RANDOM_BYTES = 10 };
enum { BEHIND_MS = 60000 }; /* two processes make ids for one inbox at the same time */

static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_ms;
static unsigned char last_random[RANDOM_BYTES];

/* Not by one, so that an id does not tell the next one. */
static void count_up(unsigned char random[RANDOM_BYTES])
{
    unsigned char step[4];
    unsigned carry = 1;

    random_bytes(step, sizeof step);
    for (int i = RANDOM_BYTES - 1; i >= 0; i--) {
        unsigned sum = random[i] + carry + (i >= RANDOM_BYTES - 4 ? step[i - (RANDOM_BYTES - 4)] : 0U);
        random[i] = (unsigned char)sum;
        carry = sum >> 8;
    }
}

static void next_random(uint64_t *ms, unsigned char out[RANDOM_BYTES])
{
    auto_unlock pthread_mutex_t *held = lock_mutex(&lock);

    if (*ms > last_ms) {
        last_ms = *ms;
        random_bytes(last_random, sizeof last_random);
        last_random[0] &= 0x7f; /* room to count */
        memcpy(out, last_random, RANDOM_BYTES);
        return;
    }
    *ms = last_ms;
    count_up(last_random);
    memcpy(out, last_random, RANDOM_BYTES);
}

static void encode(const unsigned char bytes[16], char out[MAIL_INBOX_ID_BYTES])
{
    /* 130 bits for 128: the first character has two zero bits in front. */
    for (int i = 0; i < ULID_CHARS; i++) {
        unsigned value = 0;
        for (int bit = 0; bit < 5; bit++) {
            int at = i * 5 + bit - 2;
            value = value << 1 | (at < 0 ? 0U : (bytes[at / 8] >> (7 - at % 8) & 1U));
        }
        out[i] = digits[value];
    }
    out[ULID_CHARS] = '\0';
}

void mail_ulid(char out[MAIL_INBOX_ID_BYTES])
{
    uint64_t ms = (uint64_t)clock_wall_us() / 1000;
    unsigned char bytes[16];

    next_random(&ms, bytes + 6);
    for (int i = 0; i < 6; i++)
        bytes[i] = (unsigned char)(ms >> (40 - 8 * i));
    encode(bytes, out);
}

/* The reverse of encode(); of characters that are none of the digits nothing follows. */
static bool decode(struct str id, unsigned char bytes[16])
{
    memset(bytes, 0, 16);
    if (id.len < ULID_CHARS)
        return false;
    for (int i = 0; i < ULID_CHARS; i++) {
        const char *digit = id.at[i] ? strchr(digits, id.at[i]) : NULL;
        if (!digit)
            return false;
        for (int bit = 0; bit < 5; bit++) {
            int at = i * 5 + bit - 2;
            if (at >= 0 && ((digit - digits) >> (4 - bit) & 1))
                bytes[at / 8] |= (unsigned char)(0x80 >> at % 8);
        }
    }
    return true;
}

static uint64_t ms_of(const unsigned char bytes[16])
{
    uint64_t ms = 0;

    for (int i = 0; i < 6; i++)
        ms = ms << 8 | bytes[i];
    return ms;
}

void mail_ulid_follow(struct str id)
{
    unsigned char bytes[16];

    if (!decode(id, bytes))
        return;
    uint64_t ms = ms_of(bytes);
    auto_unlock pthread_mutex_t *held = lock_mutex(&lock);
    if (ms < last_ms || (ms == last_ms && memcmp(bytes + 6, last_random, RANDOM_BYTES) <= 0))
        return;
    last_ms = ms;
    memcpy(last_random, bytes + 6, RANDOM_BYTES);
}

void mail_message_id(const char *inbox_id, char out[MAIL_MESSAGE_ID_BYTES])
{
    mail_ulid(out);
    memcpy(out + ULID_CHARS, inbox_id + ULID_CHARS - HANDLE_CHARS, HANDLE_CHARS + 1);
}

bool mail_message_id_behind(struct str id, struct str last)
{
    unsigned char bytes[16], last_bytes[16];

    return decode(id, bytes) && decode(last, last_bytes) && ms_of(bytes) + BEHIND_MS < ms_of(last_bytes);
}

void mail_message_id_after(const char *inbox_id, struct str last, char out[MAIL_MESSAGE_ID_BYTES])
{
    unsigned char bytes[16];

    mail_message_id(inbox_id, out);
    if (!decode(last, bytes))
        return;
    count_up(bytes + 6);
    encode(bytes, out);
    memcpy(out + ULID_CHARS, inbox_id + ULID_CHARS - HANDLE_CHARS, HANDLE_CHARS + 1);
}

static bool is_base32(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.at[i] == '\0' || !strchr(digits, text.at[i]))
            return false;
    return true;
}

bool mail_inbox_id_valid(struct str id)
{
    return id.len == ULID_CHARS && is_base32(id);
}

bool mail_message_id_handle(struct str id, char out_handle[MAIL_HANDLE_BYTES])
{
    if (id.len != ULID_CHARS + HANDLE_CHARS || !is_base32(id))
        return false;
    memcpy(out_handle, id.at + ULID_CHARS, HANDLE_CHARS);
    out_handle[HANDLE_CHARS] = '\0';
    return true;
}
