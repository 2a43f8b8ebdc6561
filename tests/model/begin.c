/* The base case of step.c: a new message meets the invariant. */
#include "model.h"

int main(void)
{
    struct gate_message m = new_message();
    struct oracle oracle;

    oracle_begin(&oracle, &m);
    __CPROVER_assert(oracle_agrees(&oracle, &m), "a new message and a new record agree");
    return 0;
}
