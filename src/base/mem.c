#include "base/mem.h"

#include <string.h>

#include "base/log.h"

void *mem_new(size_t size)
{
    void *p = calloc(1, size ? size : 1);

    if (!p)
        log_die("out of memory (%zu bytes)", size);
    return p;
}

void *mem_grow(void *old, size_t size)
{
    void *p = realloc(old, size ? size : 1);

    if (!p)
        log_die("out of memory (%zu bytes)", size);
    return p;
}

char *mem_copy_text(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = mem_new(size);

    memcpy(copy, text, size);
    return copy;
}
