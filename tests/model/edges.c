/*
 * Which edges are taken by some step, and which are in the table? The assertions claim that none is, and run.py compares
 * the two sets of claims that CBMC refutes: an edge that only one of them has is unreachable, or missing from the table.
 */
#include "model.h"

#define PAIR(from, to)                                                                             \
    __CPROVER_assert(!gate_may_become(MAIL_##from, MAIL_##to), "in the table: " #from " to " #to); \
    __CPROVER_assert(!is_taken(MAIL_##from, MAIL_##to, &before, event, &after), "taken: " #from " to " #to);
#define ROW(from)         \
    PAIR(from, SCAN)      \
    PAIR(from, HELD)      \
    PAIR(from, APPROVED)  \
    PAIR(from, SCHEDULED) \
    PAIR(from, UNDO)      \
    PAIR(from, QUEUED)    \
    PAIR(from, SENDING)   \
    PAIR(from, DEFERRED)  \
    PAIR(from, SENT)      \
    PAIR(from, UNCERTAIN) \
    PAIR(from, REJECTED)  \
    PAIR(from, CANCELLED) \
    PAIR(from, FAILED)    \
    PAIR(from, EXPIRED)   \
    PAIR(from, BOUNCED)

static bool is_taken(enum mail_state from, enum mail_state to, const struct gate_message *before, enum gate_event event,
                     const struct gate_message *after)
{
    if (event == GATE_APPROVE) /* two at once */
        return (from == before->state && to == MAIL_APPROVED) || (from == MAIL_APPROVED && to == after->state);
    return from != to && from == before->state && to == after->state;
}

int main(void)
{
    struct gate_message before = some_message(), after = before;
    struct oracle oracle = some_oracle();
    struct gate_input input = some_input();
    enum gate_event event = (enum gate_event)nondet_int();
    struct err err;

    __CPROVER_assume(oracle_agrees(&oracle, &before));
    __CPROVER_assume(gate_step(&after, event, &input, &err));
    ROW(SCAN)
    ROW(HELD)
    ROW(APPROVED)
    ROW(SCHEDULED)
    ROW(UNDO)
    ROW(QUEUED)
    ROW(SENDING)
    ROW(DEFERRED)
    ROW(SENT)
    ROW(UNCERTAIN)
    ROW(REJECTED)
    ROW(CANCELLED)
    ROW(FAILED)
    ROW(EXPIRED)
    ROW(BOUNCED)
    return 0;
}
