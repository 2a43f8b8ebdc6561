#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

#include "base/attr.h"

static volatile sig_atomic_t came;

static void on_signal(int number)
{
    came = number;
}

void interrupt_watch(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction before, action = { .sa_handler = on_signal, .sa_flags = (int)(SA_RESTART | SA_RESETHAND) };

    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &action, NULL);
}

int interrupt_signal(void)
{
    return came;
}
