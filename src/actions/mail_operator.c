/*
 * What needs the operator: one-time codes and grants.
 *
 * Codes. A request that needs the operator's consent is first made without a code. Then the server makes one and keeps it,
 * encrypted, until the operator looks (`cloister mail codes`) and gives it to whoever asked. The second request is the same
 * with the code; the row is found by a hash of the whole request, so a code is good for exactly what the operator read. A try
 * is counted before the code is compared, and the row is deleted when the code is right: one use, five tries, a day.
 *
 * Grants. The operator names a key that may list or read an inbox. Only the inbox's own credential can give the right to
 * read, so the grant waits for the inbox's credential to be used (mail_grants_settle()). Then the inbox's worker wraps the
 * inbox's private key under a fresh key, which front seals to the grantee: each mail key stands for a key pair that is
 * derived from its text, and the public half is in its row. The grantee opens the fresh key with its own text. Revoking
 * removes the wrap and the sealed key.
 */
#include <stdio.h>
#include <string.h>

#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/log.h"
#include "base/pack.h"
#include "base/random.h"

enum {
    CODE_CHARS = 7, /* XXX-XXX */
    CODE_TRIES = 5,
    CODES_EACH = 50, /* of one key or sandbox, in the time that a code is good for */
    GRANT_MOST_S = 90 * 86400,
};
static const int64_t CODE_US = INT64_C(86400) * 1000000;

/* ---- codes ---- */

static void code_make(char out[CODE_CHARS + 1])
{
    static const char letters[] = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"; /* 32, without those that look alike */
    unsigned char bytes[CODE_CHARS];

    random_bytes(bytes, sizeof bytes);
    for (int i = 0; i < CODE_CHARS; i++)
        out[i] = i == 3 ? '-' : letters[bytes[i] % 32];
    out[CODE_CHARS] = '\0';
}

/* As it is stored: upper case, with the dash. False: it does not have the form. */
static bool code_form(struct str text, char out[CODE_CHARS + 1])
{
    size_t count = 0;

    text = str_trim(text);
    for (size_t i = 0; i < text.len; i++) {
        char c = char_lower(text.at[i]);
        if (c == '-' || c == ' ')
            continue;
        if (!char_is_alnum(c) || count >= CODE_CHARS)
            return false;
        if (count == 3)
            out[count++] = '-';
        out[count++] = char_is_digit(c) ? c : (char)(c - 'a' + 'A');
    }
    out[count] = '\0';
    return count == CODE_CHARS;
}

static struct str code_about(struct str id, struct arena *arena)
{
    return arena_format(arena, "code:%.*s", STR_ARG(id));
}

/* Keyed, because the parts may be addresses. */
static void asked_hash(const struct actions *actions, const struct mail_caller *caller, const struct mail_asked *asked,
                       struct arena *arena, char out[65])
{
    struct buf whole = buf_make(arena, LIMIT_CALL_BODY_BYTES);

    pack_str(&whole, str_from(asked->action));
    pack_str(&whole, asked->tenant_id);
    pack_str(&whole, asked->inbox_id);
    pack_str(&whole, asked->by_any_key ? STR("") : str_from(caller->actor));
    for (size_t i = 0; i < asked->part_count; i++)
        pack_str(&whole, asked->parts[i]);
    mail_keyed_hash(actions, "asked", buf_str(&whole), out);
}

static bool code_ask(const struct actions *actions, const struct mail_caller *caller, const struct mail_asked *asked,
                     const char *hash, struct arena *arena, struct err *err)
{
    int64_t now_us = clock_wall_us();
    struct mail_code_row row = { 0 }, *waiting;
    char id[MAIL_KEY_ID_BYTES], code[CODE_CHARS + 1];
    uint32_t retry_s;
    size_t count;

    /* The same request again: the operator has its code already. One for any key says what it is for in its row. */
    if (!asked->by_any_key) {
        if (store_mail_code_find(actions->store, str_from(hash), now_us, arena, &row, err)) {
            if (row.tries < CODE_TRIES)
                return true;
        } else if (err->kind != ERR_NOT_FOUND) {
            return false;
        }
    }
    if (!store_mail_rate(actions->store, "code", str_from(caller->actor), CODES_EACH, CODE_US, &retry_s, err) ||
        !store_mail_code_list(actions->store, asked->tenant_id, now_us, arena, &waiting, &count, err))
        return false;
    if (count >= LIMIT_MAIL_CODES)
        return err_set(err, ERR_LIMIT, "%zu requests of this tenant wait for the operator: ask the operator first",
                       count);
    mail_ulid(id);
    code_make(code);
    struct buf text = buf_make(arena, LIMIT_MAIL_PROFILE_BYTES);
    pack_str(&text, str_from(code));
    pack_str(&text, asked->what);
    if (text.overflowed)
        return err_set(err, ERR_LIMIT, "the request is too long to be shown to the operator");
    row = (struct mail_code_row){
        .id = str_from(id),
        .tenant_id = asked->tenant_id,
        .inbox_id = asked->inbox_id,
        .asked = str_from(hash),
        .cipher = mail_encrypt(actions, buf_str(&text), code_about(str_from(id), arena), arena),
        .target = asked->target,
        .created_us = now_us,
        .expires_us = now_us + CODE_US,
    };
    explicit_bzero(code, sizeof code);
    if (!store_mail_code_put(actions->store, &row, err))
        return false;
    log_info("operator's code: %s asks for %s; `cloister mail codes` shows it", caller->actor, asked->action);
    return true;
}

static bool code_open(const struct actions *actions, const struct mail_code_row *row, struct arena *arena,
                      struct str *out_code, struct str *out_what, struct err *err)
{
    struct str text;

    if (!mail_decrypt(actions, row->cipher, code_about(row->id, arena), arena, &text, err))
        return false;
    struct unpack in = unpack_from(text);
    *out_code = unpack_str(&in, CODE_CHARS);
    *out_what = unpack_str(&in, LIMIT_MAIL_PROFILE_BYTES);
    return unpack_done(&in, err);
}

static bool code_check(const struct actions *actions, const struct mail_caller *caller, const struct mail_asked *asked,
                       const char *hash, struct str guess, struct arena *arena, int64_t *out_target, struct err *err)
{
    char formed[CODE_CHARS + 1];
    auto_wipe struct secret right = { 0 };
    struct mail_code_row row;
    struct str code, what;

    if (!store_mail_code_find(actions->store, str_from(hash), clock_wall_us(), arena, &row, err))
        return err->kind == ERR_NOT_FOUND
                   ? err_set(
                         err, ERR_NOT_FOUND,
                         "no request like this waits for a code: make it without a code first, with the same fields")
                   : false;
    if (!store_mail_code_try(actions->store, row.id, CODE_TRIES, err) ||
        !code_open(actions, &row, arena, &code, &what, err))
        return false;
    bool is_right = code_form(guess, formed) && secret_set(&right, code) && secret_eq(&right, str_from(formed));
    explicit_bzero(formed, sizeof formed);
    if (!is_right) {
        mail_note(actions, row.inbox_id.len ? row.inbox_id : row.tenant_id, "code.wrong", STR(""), caller,
                  arena_format(arena, "{\"action\":\"%s\"}", asked->action));
        unsigned left = CODE_TRIES - MIN(row.tries + 1, (uint32_t)CODE_TRIES);
        return err_set(err, ERR_DENIED, "the code is wrong; %u of %d tries are left", left, CODE_TRIES);
    }
    if (!store_mail_code_spend(actions->store, row.id, err))
        return false;
    *out_target = row.target;
    return true;
}

bool mail_consent(const struct actions *actions, const struct mail_caller *caller, const struct mail_asked *asked,
                  struct str code, struct arena *arena, bool *out_pending, int64_t *out_target, struct err *err)
{
    int64_t target = asked->target;
    char hash[65];

    if (caller->kind != MAIL_CALLER_OPERATOR) {
        asked_hash(actions, caller, asked, arena, hash);
        if (!(code.len ? code_check(actions, caller, asked, hash, code, arena, &target, err)
                       : code_ask(actions, caller, asked, hash, arena, err)))
            return err_wrap(err, "the operator's consent to %s", asked->action);
    }
    *out_pending = caller->kind != MAIL_CALLER_OPERATOR && code.len == 0;
    if (out_target)
        *out_target = target;
    return true;
}

bool action_mail_codes(const struct actions *actions, const struct mail_caller *operator_, struct arena *arena,
                       struct mail_code **out, size_t *out_count, struct err *err)
{
    struct mail_code_row *rows;
    struct mail_tenant_row tenant = { 0 };
    size_t count, shown = 0;

    if (!mail_is_on(actions, err) || !mail_need_operator(operator_, err) ||
        !store_mail_code_list(actions->store, STR(""), clock_wall_us(), arena, &rows, &count, err))
        return false;
    struct mail_code *list = ARENA_ARRAY(arena, struct mail_code, count);
    for (size_t i = 0; i < count; i++) {
        struct mail_code *code = &list[shown];
        if (rows[i].tries >= CODE_TRIES)
            continue;
        if (!code_open(actions, &rows[i], arena, &code->code, &code->what, err) ||
            (!str_eq(rows[i].tenant_id, tenant.id) &&
             !store_mail_tenant_get(actions->store, rows[i].tenant_id, STR(""), arena, &tenant, err)))
            return err_wrap(err, "show codes");
        code->inbox_id = rows[i].inbox_id;
        code->tenant = tenant.name;
        code->created_us = rows[i].created_us;
        code->expires_us = rows[i].expires_us;
        shown++;
    }
    *out = list;
    *out_count = shown;
    return true;
}

/* ---- grants ---- */

static struct str grant_about(struct str id, struct arena *arena)
{
    return arena_format(arena, "grant:%.*s", STR_ARG(id));
}

static bool grant_info(const struct actions *actions, const struct mail_grant_row *row, struct arena *arena,
                       struct mail_grant *out, struct err *err)
{
    struct mail_grant grant = { .verbs = row->verbs,
                                .created_us = row->created_us,
                                .expires_us = row->expires_us,
                                .revoked_us = row->revoked_us,
                                .is_effective = row->sealed.len > 0 };

    if (!mail_decrypt(actions, row->reason, grant_about(row->id, arena), arena, &grant.reason, err))
        return err_wrap(err, "grant %.*s", STR_ARG(row->id));
    (void)snprintf(grant.id, sizeof grant.id, "%.*s", STR_ARG(row->id));
    (void)snprintf(grant.grantee_key_id, sizeof grant.grantee_key_id, "%.*s", STR_ARG(row->grantee_key_id));
    (void)snprintf(grant.inbox_id, sizeof grant.inbox_id, "%.*s", STR_ARG(row->inbox_id));
    *out = grant;
    return true;
}

static bool grantee_find(const struct actions *actions, const struct mail_caller *operator_, struct str to,
                         struct arena *arena, struct mail_key_row *out, struct err *err)
{
    struct mail_inbox_row inbox;

    if (mail_inbox_id_valid(to) && store_mail_key_get(actions->store, to, arena, out, err))
        return true;
    if (!mail_row_for(actions, operator_, to, arena, &inbox, err) ||
        !store_mail_key_own(actions->store, inbox.id, arena, out, err))
        return err->kind == ERR_NOT_FOUND ? err_set(err, ERR_NOT_FOUND, "there is no key or inbox '%.*s' to grant to",
                                                    (int)MIN(to.len, (size_t)64), to.at)
                                          : false;
    return true;
}

static bool grant_check(unsigned verbs, uint64_t expires_s, struct str reason, struct err *err)
{
    if (verbs == 0 || (verbs & ~(unsigned)(MAIL_GRANT_LIST | MAIL_GRANT_READ)))
        return err_set(err, ERR_INVALID, "a grant has the verbs list, read or both: nothing else can be granted");
    if (expires_s == 0 || expires_s > GRANT_MOST_S)
        return err_set(err, ERR_INVALID, "a grant ends after 1 to %d seconds", GRANT_MOST_S);
    if (reason.len == 0 || reason.len > LIMIT_MAIL_REASON_BYTES || !utf8_valid(reason))
        return err_set(err, ERR_INVALID, "a grant needs a reason of up to %d bytes", LIMIT_MAIL_REASON_BYTES);
    return true;
}

static struct str verbs_text(unsigned verbs)
{
    return verbs == (MAIL_GRANT_LIST | MAIL_GRANT_READ) ? STR("list,read")
           : verbs == MAIL_GRANT_READ                   ? STR("read")
                                                        : STR("list");
}

bool action_grant_create(const struct actions *actions, const struct mail_caller *operator_, struct str to,
                         struct str inbox_ref, unsigned verbs, uint64_t expires_s, struct str reason,
                         struct arena *arena, struct mail_grant *out, struct err *err)
{
    struct mail_grant_row *grants;
    struct mail_inbox_row inbox;
    struct mail_key_row grantee;
    char id[MAIL_KEY_ID_BYTES];
    size_t count;

    if (!mail_is_on(actions, err) || !mail_need_operator(operator_, err) ||
        !grant_check(verbs, expires_s, reason, err) ||
        !mail_row_for(actions, operator_, inbox_ref, arena, &inbox, err) ||
        !grantee_find(actions, operator_, to, arena, &grantee, err))
        return false;
    if (!str_eq(grantee.tenant_id, inbox.tenant_id))
        return err_set(err, ERR_INVALID, "the key and the inbox belong to different tenants");
    if (str_eq(grantee.inbox_id, inbox.id))
        return err_set(err, ERR_INVALID, "that key belongs to this inbox already");
    if (!mail_scope_allows(grantee.scopes, MAIL_SCOPE_READ) || (grantee.scopes & MAIL_SCOPE_OVERSIGHT))
        return err_set(err, ERR_INVALID, "the key that gets a grant needs the scope read, and is no approver's");
    struct mail_grant_filter in_force = { .inbox_id = inbox.id, .in_force_us = clock_wall_us() };
    if (!store_mail_grant_list(actions->store, &in_force, arena, &grants, &count, err))
        return false;
    if (count >= LIMIT_MAIL_GRANTS)
        return err_set(err, ERR_LIMIT, "the inbox has %zu grants already: revoke some first", count);
    mail_ulid(id);
    struct mail_grant_row row = {
        .id = str_from(id),
        .tenant_id = inbox.tenant_id,
        .grantee_key_id = grantee.id,
        .inbox_id = inbox.id,
        .verbs = verbs,
        .reason = mail_encrypt(actions, reason, grant_about(str_from(id), arena), arena),
        .created_us = in_force.in_force_us,
        .expires_us = in_force.in_force_us + (int64_t)expires_s * 1000000,
    };
    /* The audit first: no grant without its row there. */
    struct str detail = arena_format(arena, "{\"grantee\":\"%.*s\",\"verbs\":\"%.*s\",\"expires_us\":%lld}",
                                     STR_ARG(grantee.id), STR_ARG(verbs_text(verbs)), (long long)row.expires_us);
    if (!mail_audit_add(actions->mail->mail, arena_text(arena, inbox.id), STR("grant.create"), row.id,
                        str_from(operator_->actor), detail, err) ||
        !store_mail_grant_add(actions->store, &row, err))
        return false;
    return grant_info(actions, &row, arena, out, err);
}

bool action_grant_list(const struct actions *actions, const struct mail_caller *caller, struct arena *arena,
                       struct mail_grant **out, size_t *out_count, struct err *err)
{
    struct mail_grant_filter filter = { 0 };
    struct mail_grant_row *rows;
    size_t count;

    if (!mail_is_on(actions, err))
        return false;
    /* A grantee sees what it was given; an inbox's grants are in its audit. */
    if (caller->kind != MAIL_CALLER_OPERATOR) {
        filter.tenant_id = str_from(caller->tenant_id);
        filter.grantee_key_id = str_from(caller->key_id);
        if (filter.grantee_key_id.len == 0) {
            *out = NULL;
            *out_count = 0;
            return true;
        }
    }
    if (!store_mail_grant_list(actions->store, &filter, arena, &rows, &count, err))
        return false;
    struct mail_grant *list = ARENA_ARRAY(arena, struct mail_grant, count);
    for (size_t i = 0; i < count; i++)
        if (!grant_info(actions, &rows[i], arena, &list[i], err))
            return false;
    *out = list;
    *out_count = count;
    return true;
}

/* The grant's id is the name of its wrap in the inbox's file. */
static void wrap_remove(const struct actions *actions, const struct mail_grant_row *row, const char *actor,
                        struct arena *arena)
{
    struct err err;

    if (!mail_reader_remove(actions->mail->mail, arena_text(arena, row->inbox_id), arena_text(arena, row->id),
                            str_from(actor), &err) &&
        err.kind != ERR_NOT_FOUND)
        log_warn("grant %.*s: its wrap stays in the inbox's file, but its key is gone: %s", STR_ARG(row->id),
                 err_text(&err));
}

bool action_grant_revoke(const struct actions *actions, const struct mail_caller *operator_, struct str id,
                         struct arena *arena, struct err *err)
{
    struct mail_grant_row row;

    if (!mail_is_on(actions, err) || !mail_need_operator(operator_, err) ||
        !store_mail_grant_get(actions->store, id, arena, &row, err) ||
        !store_mail_grant_revoke(actions->store, row.id, err))
        return false;
    wrap_remove(actions, &row, operator_->actor, arena);
    mail_note(actions, row.inbox_id, "grant.revoke", row.id, operator_, STR("{}"));
    return true;
}

/* One grant: a fresh key for the wrap, sealed to the grantee. */
static bool grant_settle(const struct actions *actions, const struct mail_grant_row *row,
                         const struct mail_reader *reader, struct arena *arena, struct err *err)
{
    char *inbox_id = arena_text(arena, row->inbox_id);
    struct mail_reader added = { .key_id = arena_text(arena, row->id) };
    struct mail_caller server = { .actor = "server" };
    unsigned char sealed[SEAL_SEALED_KEY_BYTES];
    struct seal_key grantee_public;
    struct mail_key_row grantee;

    if (!store_mail_key_get(actions->store, row->grantee_key_id, arena, &grantee, err)) /* revoked: nothing to do */
        return err->kind == ERR_NOT_FOUND && store_mail_grant_revoke(actions->store, row->id, err);
    if (grantee.grant_public.len != sizeof grantee_public.bytes)
        return err_set(err, ERR_INTERNAL, "a key in mail's rows is damaged");
    memcpy(grantee_public.bytes, grantee.grant_public.at, sizeof grantee_public.bytes);
    /* Left by a server that ended between the two steps. */
    if (!mail_reader_remove(actions->mail->mail, inbox_id, added.key_id, str_from(server.actor), err) &&
        err->kind != ERR_NOT_FOUND)
        return false;
    seal_random_key(&added.kek);
    seal_to(&grantee_public, &added.kek, sealed);
    bool ok = mail_reader_add(actions->mail->mail, inbox_id, reader, &added, str_from(server.actor), err);
    seal_key_wipe(&added.kek);
    if (!ok)
        return false;
    if (!store_mail_grant_effective(actions->store, row->id, str_of(sealed, sizeof sealed), err)) {
        wrap_remove(actions, row, server.actor, arena); /* revoked meanwhile */
        return err->kind == ERR_NOT_FOUND;
    }
    mail_note(actions, row->inbox_id, "grant.effective", row->id, &server, STR("{}"));
    return true;
}

void mail_grants_settle(const struct actions *actions, const struct mail_inbox_row *row,
                        const struct mail_reader *reader)
{
    struct mail_grant_filter filter = { .inbox_id = row->id, .in_force_us = clock_wall_us() };
    struct mail_grant_row *rows;
    struct arena arena;
    struct err err;
    size_t count;
    bool ok;

    arena_init(&arena);
    ok = store_mail_grant_list(actions->store, &filter, &arena, &rows, &count, &err);
    for (size_t i = 0; ok && i < count; i++)
        ok = rows[i].sealed.len > 0 || grant_settle(actions, &rows[i], reader, &arena, &err);
    ok = ok && store_mail_grant_settled(actions->store, row->id, filter.in_force_us, &err);
    if (!ok)
        log_warn("inbox %.*s: a grant is not effective yet: %s", STR_ARG(row->id), err_text(&err));
    arena_done(&arena);
}

void mail_grants_expire(const struct actions *actions, int64_t now_us)
{
    struct mail_grant_row *rows;
    struct arena arena;
    struct err err;
    size_t count;

    arena_init(&arena);
    if (!store_mail_grant_ended(actions->store, now_us, LIMIT_MAIL_SHRED, &arena, &rows, &count, &err)) {
        log_warn("mail: %s", err_text(&err));
        count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        wrap_remove(actions, &rows[i], "server", &arena);
        if (!store_mail_grant_revoke(actions->store, rows[i].id, &err) && err.kind != ERR_NOT_FOUND)
            log_warn("grant %.*s: cannot be ended: %s", STR_ARG(rows[i].id), err_text(&err));
    }
    arena_done(&arena);
}

bool mail_grant_reader(const struct actions *actions, const struct mail_caller *caller,
                       const struct mail_inbox_row *row, unsigned verb, struct arena *arena, struct mail_reader *out,
                       struct err *err)
{
    struct mail_grant_filter filter = { .tenant_id = str_from(caller->tenant_id),
                                        .grantee_key_id = str_from(caller->key_id),
                                        .inbox_id = row->id,
                                        .in_force_us = clock_wall_us() };
    auto_seal_key struct seal_key private_key;
    struct seal_key public_key;
    struct mail_grant_row *rows;
    bool waits = false;
    size_t count;

    if (!caller->key_id[0] || !caller->credential.len)
        return mail_no_such(err);
    if (!store_mail_grant_list(actions->store, &filter, arena, &rows, &count, err))
        return false;
    if (!str_eq(row->tenant_id, str_from(caller->tenant_id)))
        return mail_no_such(err);
    for (size_t i = 0; i < count; i++) {
        if (!(rows[i].verbs & verb))
            continue;
        if (rows[i].sealed.len == 0) {
            waits = true;
            continue;
        }
        struct mail_reader reader = { .key_id = arena_text(arena, rows[i].id) };
        seal_pair_of(secret_reveal(&caller->credential), "grant", &public_key, &private_key);
        if (!seal_open(&public_key, &private_key, rows[i].sealed, &reader.kek, err))
            return err_wrap(err, "grant %.*s", STR_ARG(rows[i].id));
        reader.grant = arena_format(arena, "grant:%.*s key:%s", STR_ARG(rows[i].id), caller->key_id);
        *out = reader;
        seal_key_wipe(&reader.kek);
        return true;
    }
    if (waits)
        return err_set(err, ERR_CONFLICT,
                       "the grant is not effective yet: it becomes so when the inbox's own key is used the next time");
    return mail_no_such(err);
}
