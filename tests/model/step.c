/* One step from any situation that the invariant permits: with new.c, a proof for sequences of every length. */
#include "model.h"

int main(void)
{
    struct gate_message before = some_message(), after = before;
    struct oracle oracle = some_oracle();
    struct gate_input input = some_input();
#ifdef ONLY_EVENT
    enum gate_event event = ONLY_EVENT; /* for mutants; the proof is without it */
#else
    enum gate_event event = (enum gate_event)nondet_int();
#endif
    struct err err;

    __CPROVER_assume(oracle_agrees(&oracle, &before));
    bool worked = gate_step(&after, event, &input, &err);
    oracle_step(&oracle, &before, event, &input, worked, &after);
    return 0;
}
