/*
 * The list beside an image of memory, which a helper with root's power reads: what parses is printed again, and is then
 * the same.
 */
#include "isolation/native/image.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    auto_image struct image image = { 0 }, again = { 0 };
    auto_buf struct buf first = buf_make(NULL, 2 * size + 4096), second = buf_make(NULL, 2 * size + 4096);
    struct err err;

    if (!image_parse(str_of(data, size), &image, &err))
        return 0;
    image_print(&first, &image);
    if (first.overflowed)
        return 0;
    if (!image_parse(buf_str(&first), &again, &err))
        abort();
    image_print(&second, &again);
    if (!str_eq(buf_str(&first), buf_str(&second)))
        abort();
    return 0;
}
