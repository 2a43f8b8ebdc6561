/*
 * sizes.h - what kept things take on disk: fields of the API's rows that SDKs do not know.
 */
#ifndef CLI_SIZES_H
#define CLI_SIZES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "wire/json.h"

struct cli;

struct sizes {
    bool is_known;
    uint64_t files, memory, raw; /* raw: the memory before it was compressed */
};
bool sizes_take(const json_t *row, struct sizes *out, struct err *err) must_use;
/* "19 MiB of 84 MiB" if it is compressed; "-": none. */
struct str sizes_memory_text(struct arena *arena, const struct sizes *sizes);
/* A line about all of them, that begins so; none if nothing of the list was measured. */
bool sizes_note(struct cli *cli, const json_t *list, const char *begins, struct err *err) must_use;

#endif
