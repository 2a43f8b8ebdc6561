#include "actions/mail_inside.h"

/* The audit of a deleted inbox stays: the operator finds it by its id. */
static bool row_of(const struct actions *actions, const struct mail_caller *caller, struct str ref, struct arena *arena,
                   struct mail_inbox_row *out, struct err *err)
{
    if (!mail_is_on(actions, err))
        return false;
    if (caller->kind == MAIL_CALLER_OPERATOR && ref.len)
        return mail_row_by_ref(actions, ref, arena, out, err);
    return (caller->kind == MAIL_CALLER_OPERATOR || mail_need_scope(caller, MAIL_SCOPE_ADMIN, err)) &&
           mail_row_for(actions, caller, ref, arena, out, err);
}

bool action_audit_list(const struct actions *actions, const struct mail_caller *caller, struct str inbox_ref,
                       uint64_t before, uint32_t limit, struct arena *arena, struct mail_audit **out, size_t *out_count,
                       struct err *err)
{
    struct mail_inbox_row row;

    return row_of(actions, caller, inbox_ref, arena, &row, err) &&
           mail_audit_list(actions->mail->mail, arena_text(arena, row.id), before,
                           MIN(limit ? limit : LIMIT_MAIL_PAGE, (uint32_t)LIMIT_MAIL_PAGE), arena, out, out_count, err);
}

bool action_audit_verify(const struct actions *actions, const struct mail_caller *operator_, struct str inbox_ref,
                         struct arena *arena, uint64_t *out_rows, struct err *err)
{
    struct mail_inbox_row row, *rows = &row;
    uint64_t all = 0, one;
    size_t count = 1;

    if (!mail_is_on(actions, err) || !mail_need_operator(operator_, err) ||
        !(inbox_ref.len ? mail_row_by_ref(actions, inbox_ref, arena, &row, err)
                        : mail_rows_of(actions, operator_, arena, &rows, &count, err)))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!mail_audit_verify(actions->mail->mail, arena_text(arena, rows[i].id), &one, err))
            return err_wrap(err, "audit of inbox %.*s", STR_ARG(rows[i].id));
        all += one;
    }
    *out_rows = all;
    return true;
}
