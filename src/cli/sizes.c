#include "cli/sizes.h"

#include "cli/client.h"
#include "cli/command.h"
#include "cli/text.h"

bool sizes_take(const json_t *row, struct sizes *out, struct err *err)
{
    int64_t files = 0, memory = 0, raw = 0;

    if (!json_take_int(row, "diskBytes", JSON_OPTIONAL, 0, INT64_MAX / 2, &files, err) ||
        !json_take_int(row, "memoryBytes", JSON_OPTIONAL, 0, INT64_MAX / 2, &memory, err) ||
        !json_take_int(row, "memoryRawBytes", JSON_OPTIONAL, 0, INT64_MAX / 2, &raw, err))
        return false;
    *out = (struct sizes){ .is_known = json_object_get(row, "diskBytes") != NULL,
                           .files = (uint64_t)files,
                           .memory = (uint64_t)memory,
                           .raw = (uint64_t)MAX(raw, memory) };
    return true;
}

struct str sizes_memory_text(struct arena *arena, const struct sizes *sizes)
{
    if (!sizes->memory)
        return STR("-");
    if (sizes->raw == sizes->memory)
        return text_bytes(arena, sizes->memory);
    return arena_format(arena, "%.*s of %.*s", STR_ARG(text_bytes(arena, sizes->memory)),
                        STR_ARG(text_bytes(arena, sizes->raw)));
}

bool sizes_note(struct cli *cli, const json_t *list, const char *begins, struct err *err)
{
    uint64_t bytes = 0, saved = 0;
    bool is_known = false;
    const json_t *row;
    struct sizes sizes;
    size_t i;

    json_array_foreach(list, i, row)
    {
        if (!sizes_take(row, &sizes, err))
            return client_misread(err);
        is_known |= sizes.is_known;
        bytes += sizes.files + sizes.memory;
        saved += sizes.raw - sizes.memory;
    }
    if (is_known && saved)
        fprintf(cli->note, "%s %.*s on disk; %.*s more if no memory were compressed.\n", begins,
                STR_ARG(text_bytes(&cli->arena, bytes)), STR_ARG(text_bytes(&cli->arena, saved)));
    else if (is_known)
        fprintf(cli->note, "%s %.*s on disk.\n", begins, STR_ARG(text_bytes(&cli->arena, bytes)));
    return true;
}
