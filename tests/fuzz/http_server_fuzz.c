#include "http_fuzz.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    fuzz_server(&http1_protocol, STR(""), data, size);
    return 0;
}
