/*
 * The manifest of a snapshot, which keeper reads as root: what parses is printed again, and is then the same.
 */
#include "isolation/native/manifest.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    auto_buf struct buf first = buf_make(NULL, MANIFEST_BYTES), second = buf_make(NULL, MANIFEST_BYTES);
    struct manifest manifest, again;
    struct err err;

    if (!manifest_parse(str_of(data, size), &manifest, &err))
        return 0;
    if (manifest.layer_count == 0 || manifest.layer_count > LIMIT_LAYERS)
        abort();
    manifest_print(&first, &manifest);
    if (first.overflowed || !manifest_parse(buf_str(&first), &again, &err))
        abort();
    manifest_print(&second, &again);
    if (!str_eq(buf_str(&first), buf_str(&second)))
        abort();
    return 0;
}
