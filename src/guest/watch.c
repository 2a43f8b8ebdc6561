#include "guest/watch.h"

#include <stdlib.h>

#include "base/mem.h"

struct watchers {
    struct guest *guest;
};

struct watchers *watchers_new(struct guest *guest)
{
    struct watchers *watchers = NEW(struct watchers);

    watchers->guest = guest;
    return watchers;
}

void watchers_free(struct watchers *watchers)
{
    free(watchers);
}
