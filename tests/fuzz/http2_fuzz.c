/*
 * The bytes of an HTTP/2 client. Unless bit 5 of the first byte is set, they follow the preface and empty SETTINGS.
 */
#include "http_fuzz.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define NO_SETTINGS "\0\0\0\4\0\0\0\0\0"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    bool is_raw = size && (data[0] & 32);

    fuzz_server(&http2_protocol, is_raw ? STR("") : STR(PREFACE NO_SETTINGS), data, size);
    return 0;
}
