/*
 * A path in the first line, and a .dockerignore. What a file is in does not depend on being asked twice, and a file in a
 * directory that is left out is in only if the directory may hold an exception.
 */
#include <stdlib.h>
#include <string.h>

#include "wire/ignore.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* As the command line makes them: no empty parts. */
static bool is_path(struct str path)
{
    struct str rest = path, part;

    while (str_cut(&rest, '/', &part))
        if (!part.len)
            return false;
    return path.len > 0 && path.at[path.len - 1] != '/';
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str text = str_of(data, size), path;
    const struct ignore *ignore;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    if (str_cut(&text, '\n', &path) && is_path(path) && ignore_parse(&arena, text, &ignore, &err)) {
        bool is_out = ignore_matches(ignore, path);
        if (is_out != ignore_matches(ignore, path))
            abort();
        const char *slash = memrchr(path.at, '/', path.len);
        struct str dir = str_of(path.at, slash ? (size_t)(slash - path.at) : 0);
        if (dir.len && !is_out && ignore_matches(ignore, dir) && !ignore_may_return(ignore, dir))
            abort();
    }
    arena_done(&arena);
    return 0;
}
