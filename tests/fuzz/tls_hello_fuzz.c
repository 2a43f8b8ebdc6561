/*
 * A hello read whole, and the same one byte by byte: the results agree, and what was not refused early is not refused
 * later for less. What is said to be missing at least is not more than was.
 */
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "wire/tls_hello.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct tls_hello whole = { 0 }, part = { 0 };
    struct err err;
    enum tls_hello_parse at_once = tls_hello_parse(str_of(data, size), &whole, &err);

    if (at_once == TLS_HELLO_MORE && size >= LIMIT_TLS_HELLO_RECORD_BYTES)
        abort();
    if (at_once == TLS_HELLO_DONE && memchr(whole.name, '\0', sizeof whole.name) == NULL)
        abort();
    enum tls_hello_parse got = TLS_HELLO_MORE;
    size_t step = size > 2048 ? size / 64 : 1;
    for (size_t len = 0; len < size && got == TLS_HELLO_MORE; len += step) {
        got = tls_hello_parse(str_of(data, len), &part, &err);
        if (got == TLS_HELLO_MORE && at_once == TLS_HELLO_DONE && (part.more == 0 || part.more > size - len))
            abort();
    }
    if (got == TLS_HELLO_MORE)
        return 0;
    if (got != at_once || (got == TLS_HELLO_DONE && strcmp(whole.name, part.name) != 0))
        abort();
    return 0;
}
