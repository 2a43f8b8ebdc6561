/*
 * Eight calls in any order with any input, from a new message on: whenever SENDING is entered in a mode that needs a person,
 * an earlier call was an approver's yes to the bytes that leave, and no edit and no other sending came between them.
 *
 * step.c proves more. This one says it without the oracle, so that a mistake in the oracle does not hide one in the gate.
 */
#include "model.h"

enum { STEPS = 8 };

int main(void)
{
    struct gate_message m = new_message();
    bool is_yes = false; /* to the bytes as they are now */
    unsigned sent = 0, yes = 0, spent = 0;

    for (unsigned i = 0; i < STEPS; i++) {
        struct gate_input in = some_input();
        enum gate_event event = (enum gate_event)nondet_int();
        enum mail_state from = m.state;
        bool is_these_bytes = oracle_same(in.hash, m.hash), was_spent = m.approval.is_spent;
        struct err err;

        if (!gate_step(&m, event, &in, &err))
            continue;
        if (event == GATE_EDIT)
            is_yes = false;
        if (event == GATE_APPROVE) {
            __CPROVER_assert(is_these_bytes, "an approval is of exactly these bytes");
            __CPROVER_assert(!(in.scopes & MAIL_SCOPE_SEND) && !in.is_composer, "a key with send never approves");
            is_yes = true;
            yes++;
        }
        if (!was_spent && m.approval.is_spent)
            spent++;
        __CPROVER_assert(spent <= yes && spent <= 1, "each approval is spent at most once");
        if (from != MAIL_SENDING && m.state == MAIL_SENDING) {
            sent++;
            __CPROVER_assert(in.mode != MAIL_READ_ONLY, "nothing leaves a read_only inbox");
            if (in.mode == MAIL_GATED_ALL || (in.mode == MAIL_GATED_SEND && !in.all_allowlisted))
                __CPROVER_assert(is_yes, "in gated modes SENDING needs an approval of exactly these bytes");
            is_yes = false;
        }
        __CPROVER_assert(sent <= 1, "a message is sent at most once");
        __CPROVER_assert(from != MAIL_REJECTED && from != MAIL_CANCELLED && from != MAIL_FAILED &&
                             from != MAIL_EXPIRED && from != MAIL_BOUNCED,
                         "nothing leaves a final state");
    }
    return 0;
}
