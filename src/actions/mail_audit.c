/*
 * Audits: of each inbox in its own file, and of each tenant for what concerns no single inbox (approvers' keys, accounts, the
 * oversight address). A tenant's audit is kept in the same way as an inbox's, under the tenant's id, in a file that holds
 * nothing else: no address leads there, and the key that could read messages in it is thrown away when it is made.
 */
#include <stdio.h>

#include "actions/mail_inside.h"
#include "base/log.h"

#define TENANT_PREFIX STR("tenant:")

/* ---- writing ---- */

void mail_note(const struct actions *actions, struct str id, const char *action, struct str resource,
               const struct mail_caller *caller, struct str detail)
{
    char text[MAIL_INBOX_ID_BYTES];
    struct err err;

    (void)snprintf(text, sizeof text, "%.*s", STR_ARG(id));
    if (!mail_audit_add(actions->mail->mail, text, str_from(action), resource, str_from(caller->actor), detail, &err))
        log_error("mail: %s: no audit row for %s by %s: %s", text, action, caller->actor, err_text(&err));
}

bool mail_tenant_audit_make(const struct actions *actions, struct str tenant_id, struct str actor, struct err *err)
{
    char id[MAIL_INBOX_ID_BYTES];
    struct mail_reader nobody = { .key_id = "nobody" };
    struct mail_inbox_new want = { .inbox_id = id, .readers = &nobody, .reader_count = 1, .actor = actor };
    struct seal_key public_key;

    (void)snprintf(id, sizeof id, "%.*s", STR_ARG(tenant_id));
    seal_random_key(&nobody.kek);
    bool made = mail_inbox_make(actions->mail->mail, &want, &public_key, err);
    seal_key_wipe(&nobody.kek);
    return made || err->kind == ERR_CONFLICT; /* it is there already */
}

/* ---- reading ---- */

/* The id of the file. The audit of a deleted inbox stays: the operator finds it by its id. */
static bool file_of(const struct actions *actions, const struct mail_caller *caller, struct str ref,
                    struct arena *arena, char **out, struct err *err)
{
    bool is_operator = caller->kind == MAIL_CALLER_OPERATOR;
    struct mail_tenant_row tenant;
    struct mail_inbox_row row;

    if (!mail_is_on(actions, err) || !(is_operator || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)))
        return false;
    if (is_operator && str_skip(&ref, TENANT_PREFIX)) {
        if (!store_mail_tenant_get(actions->store, STR(""), ref, arena, &tenant, err))
            return false;
        *out = arena_text(arena, tenant.id);
        return true;
    }
    if (!(is_operator && ref.len ? mail_row_by_ref(actions, ref, arena, &row, err)
                                 : mail_row_for(actions, caller, ref, arena, &row, err)))
        return false;
    *out = arena_text(arena, row.id);
    return true;
}

bool action_audit_list(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                       uint64_t before, uint32_t limit, struct arena *arena, struct mail_audit **out, size_t *out_count,
                       struct err *err)
{
    char *id;

    return file_of(actions, caller, inbox_ref, arena, &id, err) &&
           mail_audit_list(actions->mail->mail, id, before,
                           MIN(limit ? limit : LIMIT_MAIL_PAGE, (uint32_t)LIMIT_MAIL_PAGE), arena, out, out_count, err);
}

bool action_audit_refs(const struct actions *actions, const struct mail_caller *operator_, struct arena *arena,
                       struct str **out, size_t *out_count, struct err *err)
{
    struct mail_tenant_row *tenants;
    struct str *inboxes;
    size_t tenant_count, inbox_count;

    if (!mail_is_on(actions, err) || !mail_need_operator(operator_, err) ||
        !store_mail_tenant_list(actions->store, arena, &tenants, &tenant_count, err) ||
        !store_mail_inbox_ids(actions->store, arena, &inboxes, &inbox_count, err))
        return false;
    struct str *refs = ARENA_ARRAY(arena, struct str, tenant_count + inbox_count);
    for (size_t i = 0; i < tenant_count; i++)
        refs[i] = arena_format(arena, "tenant:%.*s", STR_ARG(tenants[i].name));
    for (size_t i = 0; i < inbox_count; i++)
        refs[tenant_count + i] = inboxes[i];
    *out = refs;
    *out_count = tenant_count + inbox_count;
    return true;
}

bool action_audit_verify(const struct actions *actions, const struct mail_caller *operator_, struct str inbox_ref,
                         struct arena *arena, uint64_t *out_rows, struct err *err)
{
    char *id;

    if (!mail_is_on(actions, err) || !mail_need_operator(operator_, err))
        return false;
    if (inbox_ref.len == 0)
        return err_set(err, ERR_INVALID, "say whose audit is meant: an inbox, or tenant:NAME");
    return file_of(actions, operator_, inbox_ref, arena, &id, err) &&
           (mail_audit_verify(actions->mail->mail, id, out_rows, err) || err_wrap(err, "audit of %s", id));
}
