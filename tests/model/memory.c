/*
 * Two functions of the C library for CBMC: memchr(), which it does not know, and memcmp() in a form that the solver likes.
 * This memcmp() says only equal or not; what is checked here does not use the order.
 */
#include <stddef.h>

void *memchr(const void *s, int c, size_t n)
{
    const unsigned char *bytes = s;

    for (size_t i = 0; i < n; i++)
        if (bytes[i] == (unsigned char)c)
            return (void *)(bytes + i);
    return NULL;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *left = a, *right = b;
    unsigned char differs = 0;

    for (size_t i = 0; i < n; i++)
        differs |= left[i] ^ right[i];
    return differs;
}
