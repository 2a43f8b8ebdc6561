/* What parses prints again, and what was printed parses. */
#include <stdlib.h>

#include "base/encode.h"
#include "base/limits.h"
#include "wire/json.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct err err;
    auto_json json_t *value = json_parse(str_of(data, size), &err);
    auto_buf struct buf text = buf_make(NULL, 8 * size + 64);
    struct json_out out = json_out_to(&text);
    int64_t number;

    /* Any bytes at all are a string for the writer. */
    json_out_object(&out, NULL);
    json_out_pair(&out, str_of(data, size / 2), str_of(data + size / 2, size - size / 2));
    json_out_end(&out);
    auto_json json_t *again = NULL;
    if (!memchr(data, 0, size)) {
        again = json_parse(buf_str(&text), &err);
        if (!again)
            abort();
    }
    if (json_is_object(value)) {
        const char *name;
        json_t *member;
        json_object_foreach(value, name, member)(void) !json_take_int(value, name, JSON_OPTIONAL, INT64_MIN, INT64_MAX,
                                                                      &number, &err);
    }
    return 0;
}
