/* The rules by themselves, for all numbers that an int can be. */
#include "model.h"

static void check_scopes(void)
{
    uint32_t scopes = nondet_u32();
    bool is_composer = nondet_int() & 1;
    enum mail_scope needed = (enum mail_scope)nondet_int();
    enum mail_state state = (enum mail_state)nondet_int();
    bool sends = mail_scope_allows(scopes, MAIL_SCOPE_SEND), decides = mail_may_decide(scopes, is_composer);

    __CPROVER_assert(!(sends && decides), "a key with send never approves");
    __CPROVER_assert(!(decides && is_composer), "the composer never approves");
    __CPROVER_assert(!decides || (scopes & MAIL_SCOPE_OVERSIGHT), "deciding needs oversight");
    __CPROVER_assert(!(scopes & MAIL_SCOPE_SEND) || !(scopes & MAIL_SCOPE_OVERSIGHT) || !mail_scopes_valid(scopes),
                     "send and oversight are never together");
    __CPROVER_assert(!(scopes & MAIL_SCOPE_ADMIN) || !decides, "admin does not stand for oversight");
    __CPROVER_assert(mail_scopes_valid(scopes) || !mail_scope_allows(scopes, needed),
                     "a set that is not valid allows nothing");
    __CPROVER_assert(!mail_scopes_valid(scopes) || (scopes && scopes <= MAIL_SCOPE_ALL), "only known scopes are valid");
    __CPROVER_assert(!mail_may_cancel(scopes, is_composer, state) || sends || (decides && state == MAIL_UNDO),
                     "a message is cancelled by its sender, or by an approver in time");
}

static void check_modes(void)
{
    enum mail_mode mode = (enum mail_mode)nondet_int(), other = (enum mail_mode)nondet_int();
    bool listed = nondet_int() & 1, approved = nondet_int() & 1, has_code = nondet_int() & 1;
    enum mail_verdict verdict = mail_judge(mode, listed, approved);

    __CPROVER_assert(mode != MAIL_READ_ONLY || verdict == MAIL_REFUSE, "nothing leaves a read_only inbox");
    __CPROVER_assert(!oracle_needs_person(mode, listed) || approved || verdict == MAIL_HOLD, "gated mail is held");
    __CPROVER_assert(verdict != MAIL_RELEASE || approved || mode == MAIL_MONITORED || mode == MAIL_AUTONOMOUS ||
                         (mode == MAIL_GATED_SEND && listed),
                     "only these ways out need no approval");
    __CPROVER_assert(mode != MAIL_MONITORED || verdict == MAIL_RELEASE, "monitored mail leaves");
    __CPROVER_assert(mode != MAIL_AUTONOMOUS || verdict == MAIL_RELEASE, "autonomous mail leaves");
    __CPROVER_assert(mode != MAIL_GATED_SEND || !listed || verdict == MAIL_RELEASE, "the allowlist lets mail go");

    bool may_change = mail_mode_may_change(mode, other, has_code);
    __CPROVER_assert(!may_change || (mode >= 0 && mode < MAIL_MODE_COUNT && other >= 0 && other < MAIL_MODE_COUNT),
                     "only modes are changed to modes");
    __CPROVER_assert(!may_change || has_code || other <= mode, "up only with a code");
    if (may_change && other <= mode) /* enum mail_verdict is in the order of strictness */
        __CPROVER_assert(mail_judge(other, listed, approved) >= verdict, "a lower mode never lets more go");
    __CPROVER_assert(mode < 0 || mode >= MAIL_MODE_COUNT || mail_mode_may_change(mode, MAIL_READ_ONLY, false),
                     "down is free");
}

static void check_states(void)
{
    enum mail_state from = (enum mail_state)nondet_int(), to = (enum mail_state)nondet_int();
    bool may = gate_may_become(from, to);

    __CPROVER_assert(!may || !oracle_is_final(from), "the table has nothing after a final state");
    __CPROVER_assert(!may || from != to, "the table has no edge from a state to itself");
    __CPROVER_assert(!may || !oracle_has_left(from) || oracle_has_left(to), "the table has no way back from SENDING");
    __CPROVER_assert(!may || to != MAIL_SENDING || from == MAIL_QUEUED, "SENDING follows only QUEUED");
    __CPROVER_assert(mail_state_is_final(from) == oracle_is_final(from), "final states are these five");
    __CPROVER_assert(mail_state_has_left(from) == oracle_has_left(from), "these six have left");
}

int main(void)
{
    check_scopes();
    check_modes();
    check_states();
    return 0;
}
