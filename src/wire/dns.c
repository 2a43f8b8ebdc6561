#include "wire/dns.h"

#include <string.h>

#include "base/limits.h"

/*
 * A message is a head of 12 bytes (id, flags, four counts), then questions, answers, authorities and additionals. A name
 * is a list of labels, each with its length in front, ended by a zero byte or by a pointer to an earlier place in the
 * message. We follow a pointer only to a place before the name's own start and before every earlier pointer's, and at most
 * POINTERS_MAX of them, so the work for one name is bounded, whatever the message says.
 */

enum {
    HEAD_BYTES = 12,
    NAME_BYTES = 255,  /* on the wire, RFC 1035 */
    POINTERS_MAX = 32, /* in one name: a label each is usual, and no name that we know has so many */
    ASK_ROOM = 1232,   /* what we take in one datagram: not fragmented on any usual path */
    CLASS_IN = 1,

    FLAG_ANSWER = 0x8000,
    FLAG_OPCODE = 0x7800,
    FLAG_TRUNCATED = 0x0200,
    FLAG_RECURSION_DESIRED = 0x0100,
    FLAG_RECURSION_AVAILABLE = 0x0080,
    FLAG_CODE = 0x000f,

    OPTION_EDE = 15,
};

/* ---- types ---- */

/* What a record's data is made of. */
enum layout {
    LAYOUT_NONE,
    LAYOUT_ADDRESS,
    LAYOUT_NUMBERS_AND_NAME,
    LAYOUT_SOA,
    LAYOUT_DATA,
    LAYOUT_TEXT,
};

static const struct type_row {
    uint16_t type;
    enum layout layout;
    uint8_t size; /* LAYOUT_ADDRESS: bytes; LAYOUT_NUMBERS_AND_NAME: numbers */
} types[] = {
    /* SVCB, HTTPS and ANY are not here: we do not decode them */
    { DNS_A, LAYOUT_ADDRESS, 4 },
    { DNS_AAAA, LAYOUT_ADDRESS, 16 },
    { DNS_CNAME, LAYOUT_NUMBERS_AND_NAME, 0 },
    { DNS_NS, LAYOUT_NUMBERS_AND_NAME, 0 },
    { DNS_PTR, LAYOUT_NUMBERS_AND_NAME, 0 },
    { DNS_MX, LAYOUT_NUMBERS_AND_NAME, 1 },
    { DNS_SRV, LAYOUT_NUMBERS_AND_NAME, 3 },
    { DNS_SOA, LAYOUT_SOA, 0 },
    { DNS_TXT, LAYOUT_TEXT, 0 },
    { DNS_SSHFP, LAYOUT_DATA, 0 },
    { DNS_TLSA, LAYOUT_DATA, 0 },
    { DNS_CAA, LAYOUT_DATA, 0 },
};

static const struct type_row *type_find(uint16_t type)
{
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (types[i].type == type)
            return &types[i];
    return NULL;
}

bool dns_type_is_known(uint16_t type)
{
    return type_find(type);
}

/* ---- reading ---- */

/* A place in a message. After the first failure everything reads as zero. */
struct reader {
    const uint8_t *at;
    size_t len;
    size_t next;
    bool failed;
};

static size_t left(const struct reader *r)
{
    return r->failed ? 0 : r->len - r->next;
}

static const uint8_t *take(struct reader *r, size_t bytes)
{
    if (left(r) < bytes || r->failed) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *at = r->at + r->next;
    r->next += bytes;
    return at;
}

static uint16_t take_u16(struct reader *r)
{
    const uint8_t *at = take(r, 2);

    return at ? (uint16_t)(at[0] << 8 | at[1]) : 0;
}

static uint32_t take_u32(struct reader *r)
{
    uint32_t high = take_u16(r);

    return high << 16 | take_u16(r);
}

static bool label_char(uint8_t *c)
{
    *c = (uint8_t)char_lower((char)*c);
    return char_is_alnum((char)*c) || *c == '-' || *c == '_';
}

/*
 * Reads a name, also where it is compressed. False in *out_plain: well-formed, but with characters that we do not use;
 * the text is then empty.
 */
static void take_name(struct reader *r, char out[DNS_NAME_TEXT], bool *out_plain)
{
    size_t at = r->next, lowest = r->next, wire = 1, text = 0;
    unsigned pointers = 0;
    bool jumped = false, plain = true;

    out[0] = '\0';
    *out_plain = false;
    for (;;) {
        if (r->failed || at >= r->len)
            goto bad;
        uint8_t size = r->at[at++];
        if (size == 0)
            break;
        if ((size & 0xc0) == 0xc0) {
            if (at >= r->len)
                goto bad;
            size_t to = (size_t)(size & 0x3f) << 8 | r->at[at++];
            if (!jumped)
                r->next = at;
            jumped = true;
            if (to >= lowest || to < HEAD_BYTES || ++pointers > POINTERS_MAX)
                goto bad;
            at = lowest = to;
            continue;
        }
        wire += 1 + (size_t)size;
        if (size > 63 || size > r->len - at || wire > NAME_BYTES)
            goto bad;
        if (text)
            out[text++] = '.';
        for (size_t i = 0; i < size; i++) {
            uint8_t c = r->at[at++];
            plain = label_char(&c) && plain;
            out[text++] = (char)c; /* 253 at most: `wire` counts one more for the first label, and the zero byte */
        }
    }
    if (!jumped)
        r->next = at;
    out[plain ? text : 0] = '\0';
    *out_plain = plain;
    return;
bad:
    r->failed = true;
    out[0] = '\0';
}

struct head {
    uint16_t id, flags, questions, answers, authorities, additionals;
};

static void take_head(struct reader *r, struct head *out)
{
    out->id = take_u16(r);
    out->flags = take_u16(r);
    out->questions = take_u16(r);
    out->answers = take_u16(r);
    out->authorities = take_u16(r);
    out->additionals = take_u16(r);
}

/* A record's fixed part; its data is the `size` bytes at r->next. */
struct record_head {
    char name[DNS_NAME_TEXT];
    bool is_plain, is_root;
    uint16_t type, class;
    uint32_t ttl;
    uint16_t size;
};

static void take_record_head(struct reader *r, struct record_head *out)
{
    size_t start = r->next;

    take_name(r, out->name, &out->is_plain);
    out->is_root = !r->failed && r->at[start] == 0;
    out->type = take_u16(r);
    out->class = take_u16(r);
    out->ttl = take_u32(r);
    out->size = take_u16(r);
    if (out->size > left(r))
        r->failed = true;
}

enum dns_parse dns_question_parse(struct str message, struct dns_question *out)
{
    struct reader r = { (const uint8_t *)message.at, message.len, 0, false };
    struct head head;
    bool is_plain;

    *out = (struct dns_question){ .udp_room = DNS_UDP_BYTES };
    take_head(&r, &head);
    if (r.failed || (head.flags & FLAG_ANSWER))
        return DNS_NOISE;
    out->id = head.id;
    out->recursion_desired = head.flags & FLAG_RECURSION_DESIRED;
    if (head.flags & FLAG_OPCODE) {
        out->code = DNS_NOT_IMPLEMENTED;
        return DNS_WRONG;
    }
    out->code = DNS_FORMAT_ERROR;
    if (head.questions != 1 || head.answers || head.authorities)
        return DNS_WRONG;
    take_name(&r, out->name, &is_plain);
    out->type = take_u16(&r);
    uint16_t class = take_u16(&r);
    /* Nothing but the head is in front of it, so a pointer in it leads nowhere, and it is as long as it looks. */
    if (r.failed || r.next - HEAD_BYTES > sizeof out->raw)
        return DNS_WRONG;
    out->raw_len = (uint16_t)(r.next - HEAD_BYTES);
    memcpy(out->raw, r.at + HEAD_BYTES, out->raw_len);

    uint32_t version = 0;
    for (unsigned i = 0; i < head.additionals && !r.failed; i++) {
        struct record_head record;
        take_record_head(&r, &record);
        if (record.type == DNS_OPT) {
            if (out->has_edns || !record.is_root)
                r.failed = true;
            out->has_edns = true;
            out->udp_room = MIN(MAX(record.class, DNS_UDP_BYTES), DNS_UDP_ROOM_MAX);
            version = record.ttl >> 16 & 0xff;
        }
        (void)take(&r, record.size);
    }
    if (r.failed || left(&r)) {
        out->has_edns = false;
        return DNS_WRONG;
    }
    if (version)
        out->code = DNS_BAD_VERSION;
    else if (class != CLASS_IN || !is_plain)
        out->code = DNS_REFUSED;
    else if (out->type == DNS_OPT || (out->type >= DNS_META_FIRST && out->type <= DNS_META_LAST))
        out->code = DNS_NOT_IMPLEMENTED;
    else
        out->code = DNS_FINE;
    return out->code == DNS_FINE ? DNS_PARSED : DNS_WRONG;
}

/* Character strings to the end of the data: a reader inside a sandbox should not be the first to find out. */
static bool is_text(const uint8_t *at, size_t size)
{
    size_t i = 0;

    while (i < size)
        i += 1 + (size_t)at[i];
    return i == size && size > 0;
}

/* The data of one record. False: malformed. *out_plain: usable. Names may point to anywhere before them. */
static bool take_data(struct reader *r, const struct record_head *head, struct arena *arena, struct dns_record *out,
                      bool *out_plain)
{
    const struct type_row *row = type_find(head->type);
    size_t end = r->next + head->size;
    char name[DNS_NAME_TEXT];
    bool is_plain = true;

    switch (row ? row->layout : LAYOUT_NONE) {
    case LAYOUT_ADDRESS:
        if (head->size != row->size)
            return false;
        memcpy(out->address, r->at + r->next, row->size);
        break;
    case LAYOUT_NUMBERS_AND_NAME:
        for (size_t i = 0; i < row->size; i++)
            out->numbers[i] = take_u16(r);
        take_name(r, name, &is_plain);
        if (r->failed || r->next != end)
            return false;
        out->target = arena_copy(arena, str_from(name));
        break;
    case LAYOUT_SOA:
        take_name(r, name, &is_plain);
        if (r->failed || !is_plain)
            break;
        out->target = arena_copy(arena, str_from(name));
        take_name(r, name, &is_plain);
        if (r->failed || !is_plain)
            break;
        out->mailbox = arena_copy(arena, str_from(name));
        if (r->next + 20 != end)
            return false;
        out->data = arena_copy(arena, str_of(r->at + r->next, 20));
        break;
    case LAYOUT_TEXT:
    case LAYOUT_DATA:
        if (row->layout == LAYOUT_TEXT && !is_text(r->at + r->next, head->size))
            return false;
        out->data = arena_copy(arena, str_of(r->at + r->next, head->size));
        break;
    case LAYOUT_NONE:
        is_plain = false;
        break;
    }
    if (r->failed)
        return false;
    r->next = end;
    *out_plain = is_plain;
    return true;
}

/* TTLs are 31 bits (RFC 2181), and no answer is kept for longer than a day. */
static uint32_t clean_ttl(uint32_t ttl)
{
    return ttl > INT32_MAX ? 0 : MIN(ttl, (uint32_t)LIMIT_DNS_TTL_S);
}

struct section {
    uint32_t count;
    struct dns_record *records;
};

/* Answers, as far as they are usable: of the types that we know, with names that we use. */
static bool take_answers(struct reader *r, uint16_t claimed, uint16_t type, struct arena *arena, struct section *out)
{
    uint32_t room = MIN(claimed, LIMIT_DNS_RECORDS);

    out->records = ARENA_ARRAY(arena, struct dns_record, room);
    for (unsigned i = 0; i < claimed; i++) {
        struct record_head head;
        take_record_head(r, &head);
        if (r->failed)
            return false;
        bool is_wanted = head.class == CLASS_IN && (head.type == type || head.type == DNS_CNAME) && head.is_plain;
        if (!is_wanted || out->count == room) {
            (void)take(r, head.size);
            continue;
        }
        struct dns_record record = { .type = head.type, .ttl_s = clean_ttl(head.ttl) };
        bool is_plain;
        if (!take_data(r, &head, arena, &record, &is_plain))
            return false;
        if (!is_plain)
            continue;
        record.name = arena_copy(arena, str_from(head.name));
        out->records[out->count++] = record;
    }
    return true;
}

/* How long "there is no such thing" holds: the smaller of the SOA's TTL and its last field, RFC 2308. */
static bool take_authorities(struct reader *r, uint16_t claimed, uint32_t *out_ttl)
{
    for (unsigned i = 0; i < claimed; i++) {
        struct record_head head;
        take_record_head(r, &head);
        if (r->failed)
            return false;
        if (head.type == DNS_SOA && head.class == CLASS_IN && head.size >= 22) {
            const uint8_t *last = r->at + r->next + head.size - 4;
            uint32_t least = (uint32_t)last[0] << 24 | (uint32_t)last[1] << 16 | (uint32_t)last[2] << 8 | last[3];
            *out_ttl = MIN(clean_ttl(least), clean_ttl(head.ttl));
        }
        (void)take(r, head.size);
    }
    return true;
}

static bool take_additionals(struct reader *r, uint16_t claimed, unsigned *out_code)
{
    for (unsigned i = 0; i < claimed; i++) {
        struct record_head head;
        take_record_head(r, &head);
        if (r->failed)
            return false;
        if (head.type == DNS_OPT && head.is_root)
            *out_code |= head.ttl >> 24 << 4;
        (void)take(r, head.size);
    }
    return true;
}

static const struct dns_record *alias_of(const struct section *from, struct str name)
{
    for (uint32_t i = 0; i < from->count; i++)
        if (from->records[i].type == DNS_CNAME && str_eq(from->records[i].name, name))
            return &from->records[i];
    return NULL;
}

/* From all answers, those that begin at the name that was asked for. False: the aliases go in a circle. */
static bool follow(const struct section *from, struct str name, uint16_t type, struct arena *arena,
                   struct dns_answer *out)
{
    struct str at = name;

    out->records = ARENA_ARRAY(arena, struct dns_record, (size_t)LIMIT_DNS_CHAIN + from->count);
    for (unsigned hops = 0; type != DNS_CNAME; hops++) {
        const struct dns_record *alias = alias_of(from, at);
        if (!alias)
            break;
        if (hops == LIMIT_DNS_CHAIN)
            return false;
        out->records[out->count++] = *alias;
        at = alias->target;
    }
    for (uint32_t i = 0; i < from->count; i++)
        if (from->records[i].type == type && str_eq(from->records[i].name, at))
            out->records[out->count++] = from->records[i];
    for (uint32_t i = 0; i < out->count; i++)
        out->ttl_s = i ? MIN(out->ttl_s, out->records[i].ttl_s) : out->records[i].ttl_s;
    return true;
}

bool dns_answer_parse(struct str message, uint16_t id, struct str name, uint16_t type, struct arena *arena,
                      struct dns_answer *out, struct err *err)
{
    struct reader r = { (const uint8_t *)message.at, message.len, 0, false };
    struct head head;
    char asked[DNS_NAME_TEXT];
    bool is_plain;

    take_head(&r, &head);
    if (r.failed || !(head.flags & FLAG_ANSWER) || (head.flags & FLAG_OPCODE) || head.id != id || head.questions != 1)
        return err_set(err, ERR_INVALID, "not an answer to the question");
    take_name(&r, asked, &is_plain);
    uint16_t asked_type = take_u16(&r), asked_class = take_u16(&r);
    if (r.failed || !is_plain || !str_eq_nocase(str_from(asked), name) || asked_type != type || asked_class != CLASS_IN)
        return err_set(err, ERR_INVALID, "an answer to another question");

    struct dns_answer answer = { .ede = DNS_EDE_NONE };
    if (head.flags & FLAG_TRUNCATED) {
        answer.is_truncated = true; /* what came may be cut anywhere */
        *out = answer;
        return true;
    }
    struct section section = { 0 };
    uint32_t negative_ttl = 0;
    unsigned code = head.flags & FLAG_CODE;
    if (!take_answers(&r, head.answers, type, arena, &section) ||
        !take_authorities(&r, head.authorities, &negative_ttl) || !take_additionals(&r, head.additionals, &code))
        return err_set(err, ERR_INVALID, "malformed answer");
    if (left(&r))
        return err_set(err, ERR_INVALID, "malformed answer: %zu bytes left over", left(&r));
    answer.code = code == DNS_FINE || code == DNS_NO_SUCH_NAME ? code : DNS_SERVER_FAILURE;
    if (answer.code != DNS_SERVER_FAILURE && !follow(&section, str_from(asked), type, arena, &answer))
        return err_set(err, ERR_INVALID, "aliases that go in a circle, or more than %d of them", LIMIT_DNS_CHAIN);
    bool is_negative = answer.count == 0 || answer.records[answer.count - 1].type != type;
    if (is_negative)
        answer.ttl_s = answer.count ? MIN(answer.ttl_s, negative_ttl) : negative_ttl;
    *out = answer;
    return true;
}

/* ---- writing ---- */

static void add_u16(struct buf *out, unsigned value)
{
    buf_add_char(out, (char)(value >> 8));
    buf_add_char(out, (char)value);
}

static void add_u32(struct buf *out, uint32_t value)
{
    add_u16(out, value >> 16);
    add_u16(out, value & 0xffff);
}

/* Our own names: dns_question_parse(), dns_answer_parse() or net_name_is_valid() have let them through. */
static void add_name(struct buf *out, struct str name)
{
    struct str rest = name, label;

    while (name.len && str_cut(&rest, '.', &label)) {
        buf_add_char(out, (char)label.len);
        buf_add(out, label);
    }
    buf_add_char(out, '\0');
}

static void set_u16(struct buf *out, size_t at, size_t value)
{
    if (out->overflowed)
        return;
    out->data[at] = (char)(value >> 8);
    out->data[at + 1] = (char)value;
}

static void add_data(struct buf *out, const struct dns_record *record)
{
    const struct type_row *row = type_find(record->type);

    switch (row ? row->layout : LAYOUT_NONE) {
    case LAYOUT_ADDRESS:
        buf_add(out, str_of(record->address, row->size));
        break;
    case LAYOUT_NUMBERS_AND_NAME:
        for (size_t i = 0; i < row->size; i++)
            add_u16(out, record->numbers[i]);
        add_name(out, record->target);
        break;
    case LAYOUT_SOA:
        add_name(out, record->target);
        add_name(out, record->mailbox);
        buf_add(out, record->data);
        break;
    case LAYOUT_TEXT:
    case LAYOUT_DATA:
        buf_add(out, record->data);
        break;
    case LAYOUT_NONE:
        break;
    }
}

static void add_record(struct buf *out, const struct dns_question *question, const struct dns_record *record)
{
    if (str_eq(record->name, str_from(question->name)))
        add_u16(out, 0xc000 | HEAD_BYTES); /* as the question has it */
    else
        add_name(out, record->name);
    add_u16(out, record->type);
    add_u16(out, CLASS_IN);
    add_u32(out, record->ttl_s);
    size_t size_at = out->len;
    add_u16(out, 0);
    add_data(out, record);
    set_u16(out, size_at, out->len - size_at - 2);
}

/* RFC 6891, with RFC 8914's option. */
static void add_edns(struct buf *out, uint16_t udp_room, const struct dns_answer *answer, struct str reason)
{
    buf_add_char(out, '\0');
    add_u16(out, DNS_OPT);
    add_u16(out, udp_room);
    add_u32(out, (uint32_t)(answer->code >> 4) << 24);
    if (answer->ede == DNS_EDE_NONE) {
        add_u16(out, 0);
        return;
    }
    add_u16(out, (unsigned)(4 + 2 + reason.len));
    add_u16(out, OPTION_EDE);
    add_u16(out, (unsigned)(2 + reason.len));
    add_u16(out, (unsigned)answer->ede);
    buf_add(out, reason);
}

enum { EDNS_BYTES = 11, EDE_BYTES = 6, REASON_BYTES = 200 };

void dns_write_answer(struct buf *out, const struct dns_question *question, const struct dns_answer *answer,
                      size_t room)
{
    struct str reason = answer->ede == DNS_EDE_NONE ? STR("") : answer->reason;
    auto_buf struct buf message = buf_make(NULL, DNS_MESSAGE_MAX);
    unsigned written = 0;

    reason.len = MIN(reason.len, (size_t)REASON_BYTES);
    /* At least 512, so head, question and EDNS always fit. */
    size_t end = MIN(MAX(room, (size_t)DNS_UDP_BYTES), (size_t)DNS_MESSAGE_MAX);
    if (question->has_edns)
        end -= EDNS_BYTES + (answer->ede == DNS_EDE_NONE ? 0 : EDE_BYTES + reason.len);
    unsigned flags = FLAG_ANSWER | FLAG_RECURSION_AVAILABLE | ((unsigned)answer->code & FLAG_CODE) |
                     (question->recursion_desired ? FLAG_RECURSION_DESIRED : 0);
    add_u16(&message, question->id);
    add_u16(&message, flags);
    add_u16(&message, question->raw_len ? 1 : 0);
    add_u16(&message, 0);
    add_u16(&message, 0);
    add_u16(&message, question->has_edns ? 1 : 0);
    buf_add(&message, str_of(question->raw, question->raw_len));
    for (uint32_t i = 0; i < answer->count; i++) {
        size_t before = message.len;
        add_record(&message, question, &answer->records[i]);
        if (message.overflowed || message.len > end) {
            message.overflowed = false;
            message.len = before;
            set_u16(&message, 2, flags | FLAG_TRUNCATED);
            break;
        }
        written++;
    }
    set_u16(&message, 6, written);
    if (question->has_edns)
        add_edns(&message, DNS_UDP_ROOM_MAX, answer, reason);
    buf_add(out, buf_str(&message));
}

void dns_write_question(struct buf *out, uint16_t id, struct str name, uint16_t type)
{
    struct dns_answer none = { .ede = DNS_EDE_NONE };

    add_u16(out, id);
    add_u16(out, FLAG_RECURSION_DESIRED);
    add_u16(out, 1);
    add_u16(out, 0);
    add_u16(out, 0);
    add_u16(out, 1);
    add_name(out, name);
    add_u16(out, type);
    add_u16(out, CLASS_IN);
    add_edns(out, ASK_ROOM, &none, STR(""));
}
