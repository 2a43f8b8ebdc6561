/* What a registry sends in WWW-Authenticate. */
#include "registry/challenge.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct challenge list[CHALLENGES_MOST];
    struct arena arena;
    uint32_t count = 0;

    arena_init(&arena);
    (void)!challenges_parse(&arena, str_of(data, size), list, &count);
    if (count > CHALLENGES_MOST)
        __builtin_trap();
    arena_done(&arena);
    return 0;
}
