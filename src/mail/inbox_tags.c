/*
 * Tags of messages, and contacts: what the agent writes down for itself. Both are sealed: tags under their message's
 * content key, contacts under a key that is derived from the inbox's private key. So both need a reader, and a grant, which
 * only reads, changes neither.
 */
#include <string.h>

#include "base/clock.h"
#include "mail/inside.h"

enum { TAG_SET = INBOX_TAG_FIRST, CONTACT_ADD, CONTACT_LIST, CONTACT_REMOVE };

static bool refuse_grant(const struct mail_reading_who *who, struct err *err)
{
    return !who->grant.len || err_set(err, ERR_DENIED, "a grant may list and read, and change nothing");
}

static void pairs_pack(struct buf *out, const struct mail_pair *pairs, uint32_t count)
{
    pack_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        pack_str(out, pairs[i].key);
        pack_str(out, pairs[i].value);
    }
}

/* ---- tags ---- */

static bool tags_valid(const struct mail_pair *tags, uint32_t count, struct err *err)
{
    if (count > LIMIT_MAIL_TAGS)
        return err_set(err, ERR_LIMIT, "a message has at most %d tags", LIMIT_MAIL_TAGS);
    for (uint32_t i = 0; i < count; i++)
        if (!tags[i].key.len || tags[i].key.len > LIMIT_MAIL_TAG_BYTES || tags[i].value.len > LIMIT_MAIL_TAG_BYTES)
            return err_set(err, ERR_INVALID, "a tag needs a name; name and value have at most %d bytes each",
                           LIMIT_MAIL_TAG_BYTES);
    return true;
}

bool mail_tags_set(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str message_id,
                   const struct mail_pair *tags, uint32_t count, struct arena *arena, struct mail_pair **out,
                   uint32_t *out_count, struct err *err)
{
    struct buf request = mail_request(arena);
    char handle[MAIL_HANDLE_BYTES];
    struct mail_pair *all;
    uint32_t all_count;
    struct unpack reply;

    if (!tags_valid(tags, count, err))
        return false;
    if (!mail_message_id_handle(message_id, handle))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    mail_reading_pack(&request, reader);
    pack_str(&request, message_id);
    pairs_pack(&request, tags, count);
    if (!mail_reading_call(mail, inbox_id, TAG_SET, &request, arena, &reply, err))
        return false;
    mail_pairs_unpack(&reply, arena, &all, &all_count);
    if (!unpack_done(&reply, err))
        return false;
    *out = all;
    *out_count = all_count;
    return true;
}

struct tag_set {
    struct mail_pair pairs[2 * LIMIT_MAIL_TAGS];
    uint32_t count;
};

static void tag_put(struct tag_set *set, const struct mail_pair *tag)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (str_eq(set->pairs[i].key, tag->key)) {
            if (tag->value.len)
                set->pairs[i].value = tag->value;
            else
                memmove(&set->pairs[i], &set->pairs[i + 1], (--set->count - i) * sizeof set->pairs[0]);
            return;
        }
    if (tag->value.len)
        set->pairs[set->count++] = *tag;
}

static bool key_of(struct inbox_reading *reading, const char *message_id, struct seal_key *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    bool there;

    if (!sql_select(reading->inbox->sql, "SELECT sealed FROM content_keys WHERE message_id = $1 AND holder = 'inbox'",
                    SQL_ARGS(sql_text(str_from(message_id))), &rows, err) ||
        !sql_next(&rows, &there, err))
        return false;
    return inbox_reading_key(reading, message_id, there ? sql_row_text(&rows, 0) : STR(""), out, err);
}

static bool store_tags(struct inbox_reading *reading, const char *message_id, const struct tag_set *set,
                       struct arena *arena, struct err *err)
{
    auto_seal_key struct seal_key key;
    struct buf packed = mail_request(arena);
    char room[MAIL_ABOUT_BYTES];

    pairs_pack(&packed, set->pairs, set->count);
    if (!key_of(reading, message_id, &key, err))
        return false;
    struct str cipher = seal_encrypt(&key, buf_str(&packed), mail_about(str_from(message_id), "tags", room), arena);
    /* They count as part of the message. */
    return sql_exec(reading->inbox->sql,
                    "UPDATE messages SET size = size - COALESCE(length(tags_cipher), 0) + length($1), "
                    "tags_cipher = $1 WHERE id = $2",
                    SQL_ARGS(sql_blob(cipher), sql_text(str_from(message_id))), err);
}

static bool run_tag_set(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out, struct err *err)
{
    auto_reading struct inbox_reading reading = { 0 };
    struct mail_reading_who who;
    struct mail_message m;
    struct tag_set set;
    struct mail_pair *tags;
    uint32_t count;

    mail_reading_unpack(in, &who);
    struct str message_id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);
    mail_pairs_unpack(in, arena, &tags, &count);
    if (!unpack_done(in, err) || (count && !refuse_grant(&who, err)) ||
        !inbox_reading_begin(inbox, &who, "grant.read", message_id, arena, &reading, err) ||
        !inbox_reading_one(&reading, message_id, false, arena, &m, err))
        return false;
    if (!m.has_content)
        return err_set(err, ERR_CONFLICT, "the message is held: an approver decides about it first");
    set.count = m.tag_count;
    if (m.tag_count)
        memcpy(set.pairs, m.tags, m.tag_count * sizeof m.tags[0]);
    for (uint32_t i = 0; i < count; i++)
        tag_put(&set, &tags[i]);
    if (set.count > LIMIT_MAIL_TAGS)
        return err_set(err, ERR_LIMIT, "a message has at most %d tags", LIMIT_MAIL_TAGS);
    if (count) {
        if (!sql_begin(inbox->sql, SQL_DURABLE, err))
            return false;
        bool fine = store_tags(&reading, m.id, &set, arena, err);
        if (!sql_end(inbox->sql, fine, err))
            return false;
    }
    pairs_pack(out, set.pairs, set.count);
    return true;
}

/* ---- contacts ---- */

static void contact_pack(struct buf *out, const struct mail_contact *c)
{
    pack_str(out, c->name);
    pack_str(out, c->email);
    pack_u32(out, c->tag_count);
    for (uint32_t i = 0; i < c->tag_count; i++)
        pack_str(out, c->tags[i]);
}

static void contact_unpack(struct unpack *in, struct arena *arena, struct mail_contact *out)
{
    out->name = unpack_str(in, LIMIT_MAIL_NAME_BYTES);
    out->email = unpack_str(in, LIMIT_MAIL_ADDRESS_BYTES);
    uint32_t count = unpack_count(in, LIMIT_MAIL_CONTACT_TAGS);
    out->tags = ARENA_ARRAY(arena, struct str, count);
    for (uint32_t i = 0; i < count; i++)
        out->tags[i] = unpack_str(in, LIMIT_MAIL_NAME_BYTES);
    out->tag_count = count;
}

/* With what front adds to it: between the processes, not in the file. */
static void contact_row_pack(struct buf *out, const struct mail_contact *c)
{
    pack_str(out, str_from(c->id));
    pack_i64(out, c->created_us);
    contact_pack(out, c);
}

static void contact_row_unpack(struct unpack *in, struct arena *arena, struct mail_contact *out)
{
    *out = (struct mail_contact){ 0 };
    unpack_text(in, out->id, sizeof out->id);
    out->created_us = unpack_i64(in);
    contact_unpack(in, arena, out);
}

static bool contact_valid(const struct mail_contact *c, struct err *err)
{
    if (!c->email.len || c->email.len > LIMIT_MAIL_ADDRESS_BYTES || !str_has_char(c->email, '@'))
        return err_set(err, ERR_INVALID, "a contact needs an address, such as ann@example.com");
    if (c->name.len > LIMIT_MAIL_NAME_BYTES || c->tag_count > LIMIT_MAIL_CONTACT_TAGS)
        return err_set(err, ERR_INVALID, "a contact's name has at most %d bytes, and a contact at most %d tags",
                       LIMIT_MAIL_NAME_BYTES, LIMIT_MAIL_CONTACT_TAGS);
    for (uint32_t i = 0; i < c->tag_count; i++)
        if (c->tags[i].len > LIMIT_MAIL_NAME_BYTES)
            return err_set(err, ERR_INVALID, "a contact's tag has at most %d bytes", LIMIT_MAIL_NAME_BYTES);
    return true;
}

bool mail_contact_add(struct mail *mail, const char *inbox_id, const struct mail_reader *reader,
                      const struct mail_contact *contact, struct arena *arena, struct mail_contact *out,
                      struct err *err)
{
    struct buf request = mail_request(arena);
    struct mail_contact added;
    struct unpack reply;

    if (!contact_valid(contact, err))
        return false;
    mail_reading_pack(&request, reader);
    contact_pack(&request, contact);
    if (!mail_reading_call(mail, inbox_id, CONTACT_ADD, &request, arena, &reply, err))
        return false;
    contact_row_unpack(&reply, arena, &added);
    if (!unpack_done(&reply, err))
        return false;
    *out = added;
    return true;
}

bool mail_contact_list(struct mail *mail, const char *inbox_id, const struct mail_reader *reader, struct str query,
                       struct arena *arena, struct mail_contact **out, size_t *out_count, struct err *err)
{
    struct buf request = mail_request(arena);
    struct unpack reply;

    if (query.len > LIMIT_MAIL_QUERY_BYTES)
        return err_set(err, ERR_INVALID, "a text to search for is too long: at most %d bytes", LIMIT_MAIL_QUERY_BYTES);
    mail_reading_pack(&request, reader);
    pack_str(&request, query);
    if (!mail_reading_call(mail, inbox_id, CONTACT_LIST, &request, arena, &reply, err))
        return false;
    uint32_t count = unpack_count(&reply, LIMIT_MAIL_CONTACTS);
    struct mail_contact *contacts = ARENA_ARRAY(arena, struct mail_contact, count);
    for (uint32_t i = 0; i < count; i++)
        contact_row_unpack(&reply, arena, &contacts[i]);
    if (!unpack_done(&reply, err))
        return false;
    *out = contacts;
    *out_count = count;
    return true;
}

bool mail_contact_remove(struct mail *mail, const char *inbox_id, struct str id, struct err *err)
{
    char handle[MAIL_HANDLE_BYTES];
    struct arena arena;
    struct unpack reply;

    if (!mail_message_id_handle(id, handle))
        return err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE);
    arena_init(&arena);
    struct buf request = mail_request(&arena);
    pack_str(&request, id);
    bool fine = mail_call(mail, inbox_id, CONTACT_REMOVE, &request, &arena, &reply, err) && unpack_done(&reply, err);
    arena_done(&arena);
    return fine;
}

/* ---- contacts in the file ---- */

static void contacts_key(const struct inbox_reading *reading, struct seal_key *out)
{
    seal_derive(str_of(reading->private_key.bytes, sizeof reading->private_key.bytes), "contacts", out);
}

struct contacts {
    struct mail_contact *rows;
    uint32_t count;
};

/* All of them: there are at most LIMIT_MAIL_CONTACTS. */
static bool load(struct inbox_reading *reading, struct arena *arena, struct contacts *out, struct err *err)
{
    auto_rows struct sql_rows rows = { 0 };
    auto_seal_key struct seal_key key;
    char room[MAIL_ABOUT_BYTES];
    bool there;

    *out = (struct contacts){ .rows = ARENA_ARRAY(arena, struct mail_contact, LIMIT_MAIL_CONTACTS) };
    contacts_key(reading, &key);
    if (!sql_select(reading->inbox->sql, "SELECT id, cipher, created_us FROM contacts ORDER BY id", SQL_NO_ARGS, &rows,
                    err))
        return false;
    for (;;) {
        struct mail_contact *c = &out->rows[out->count];
        struct str packed;
        if (!sql_next(&rows, &there, err))
            return false;
        if (!there || out->count == LIMIT_MAIL_CONTACTS)
            return true;
        struct str id = sql_row_text(&rows, 0);
        memcpy(c->id, id.at, MIN(id.len, sizeof c->id - 1));
        if (!seal_decrypt(&key, sql_row_text(&rows, 1), mail_about(str_from(c->id), "contact", room), arena, &packed,
                          err))
            return err_wrap(err, "contact %s", c->id);
        struct unpack in = unpack_from(packed);
        contact_unpack(&in, arena, c);
        if (!unpack_done(&in, err))
            return err_set(err, ERR_INTERNAL, "the stored contact %s is damaged", c->id);
        c->created_us = sql_row_int(&rows, 2);
        out->count++;
    }
}

/* A contact with the same address is replaced, and keeps its id. */
static bool add(struct inbox_reading *reading, struct mail_contact *c, struct arena *arena, struct err *err)
{
    auto_seal_key struct seal_key key;
    struct buf packed = mail_request(arena);
    struct contacts all;
    char room[MAIL_ABOUT_BYTES];

    if (!load(reading, arena, &all, err))
        return false;
    c->created_us = clock_wall_us();
    mail_message_id(reading->inbox->id, c->id);
    bool is_new = true;
    for (uint32_t i = 0; is_new && i < all.count; i++)
        if (str_eq_nocase(all.rows[i].email, c->email)) {
            is_new = false;
            c->created_us = all.rows[i].created_us;
            memcpy(c->id, all.rows[i].id, sizeof c->id);
        }
    if (is_new && all.count >= LIMIT_MAIL_CONTACTS)
        return err_set(err, ERR_LIMIT, "an inbox has at most %d contacts: remove one", LIMIT_MAIL_CONTACTS);
    contact_pack(&packed, c);
    contacts_key(reading, &key);
    struct str cipher = seal_encrypt(&key, buf_str(&packed), mail_about(str_from(c->id), "contact", room), arena);
    return sql_exec(reading->inbox->sql, "INSERT OR REPLACE INTO contacts (id, cipher, created_us) VALUES ($1, $2, $3)",
                    SQL_ARGS(sql_text(str_from(c->id)), sql_blob(cipher), sql_int(c->created_us)), err);
}

static bool run_contact_add(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                            struct err *err)
{
    auto_reading struct inbox_reading reading = { 0 };
    struct mail_reading_who who;
    struct mail_contact c = { 0 };

    mail_reading_unpack(in, &who);
    contact_unpack(in, arena, &c);
    if (!unpack_done(in, err) || !refuse_grant(&who, err) ||
        !inbox_reading_begin(inbox, &who, "", STR(""), arena, &reading, err) ||
        !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = add(&reading, &c, arena, err);
    if (!sql_end(inbox->sql, fine, err))
        return false;
    contact_row_pack(out, &c);
    return true;
}

static bool contact_matches(const struct mail_contact *c, struct str query)
{
    if (mail_has_part(c->name, query) || mail_has_part(c->email, query))
        return true;
    for (uint32_t i = 0; i < c->tag_count; i++)
        if (str_eq_nocase(c->tags[i], query))
            return true;
    return false;
}

static bool run_contact_list(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                             struct err *err)
{
    auto_reading struct inbox_reading reading = { 0 };
    struct buf packed = mail_request(arena);
    struct mail_reading_who who;
    struct contacts all;
    uint32_t count = 0;

    mail_reading_unpack(in, &who);
    struct str query = unpack_str(in, LIMIT_MAIL_QUERY_BYTES);
    if (!unpack_done(in, err) ||
        !inbox_reading_begin(inbox, &who, "grant.list", str_from(inbox->id), arena, &reading, err) ||
        !load(&reading, arena, &all, err))
        return false;
    for (uint32_t i = 0; i < all.count; i++)
        if (contact_matches(&all.rows[i], query)) {
            contact_row_pack(&packed, &all.rows[i]);
            count++;
        }
    pack_u32(out, count);
    buf_add(out, buf_str(&packed));
    return true;
}

static bool run_contact_remove(struct inbox *inbox, struct unpack *in, struct arena *arena, struct buf *out,
                               struct err *err)
{
    struct str id = unpack_str(in, MAIL_MESSAGE_ID_BYTES - 1);

    (void)arena;
    (void)out;
    if (!unpack_done(in, err) || !sql_begin(inbox->sql, SQL_DURABLE, err))
        return false;
    bool fine = sql_exec(inbox->sql, "DELETE FROM contacts WHERE id = $1", SQL_ARGS(sql_text(id)), err) &&
                (sql_changed(inbox->sql) > 0 || err_set(err, ERR_NOT_FOUND, MAIL_NO_MESSAGE));
    return sql_end(inbox->sql, fine, err);
}

const struct inbox_operation inbox_tag_operations[] = {
    { TAG_SET, run_tag_set },
    { CONTACT_ADD, run_contact_add },
    { CONTACT_LIST, run_contact_list },
    { CONTACT_REMOVE, run_contact_remove },
    { 0 },
};
