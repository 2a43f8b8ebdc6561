/*
 * What guestd reads out of a request, and what a path in it means. Nothing is carried out: a fuzzer that found its way to
 * Remove would be sorry.
 *
 * The first byte says what the rest is.
 */
#include "guest/process_rpc.c" /* its decoders are its own */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void fuzz_start(const json_t *request, struct arena *arena)
{
    struct process_want want = { 0 };
    struct str cwd = STR("");
    struct err err;

    if (!decode_start(request, arena, &want, &cwd, &err))
        return;
    check(want.arg_count <= LIMIT_ARGS && want.env_count <= LIMIT_ENV_PAIRS);
    for (size_t i = 0; i < want.env_count; i++)
        check(want.envs[i].name.len && !str_has_char(want.envs[i].name, '='));
    check(strlen(command_line(arena, &want)) <= 1024);
    auto_json json_t *echoed = json_parse(want.config, &err);
    check(json_is_object(echoed));
}

static void fuzz_input(const json_t *request)
{
    enum process_input_to to;
    struct process_want size = { 0 };
    struct str text;
    struct err err;

    if (decode_input(request, &to, &text, &err)) {
        size_t len = 0;
        unsigned char *room = malloc(text.len / 4 * 3 + 3);
        check(room && (!base64_decode(text, room, &len) || len <= text.len / 4 * 3 + 3));
        free(room);
    }
    (void)!decode_size(request, &size, &err);
    (void)rpc_field(request, "watcherId", "watcher_id");
}

static void fuzz_path(struct str path, struct arena *arena)
{
    const struct user user = { .name = STR("user"), .home = STR("/home/user"), .uid = 1000, .gid = 1000 };
    const char *found;
    struct err err;

    struct str clean = path_clean(arena, path);
    check(clean.len && clean.at[0] == '/' && (clean.len == 1 || clean.at[clean.len - 1] != '/'));
    struct str rest = str_of(clean.at + 1, clean.len - 1), part;
    while (rest.len && str_cut(&rest, '/', &part))
        check(part.len && !str_eq(part, STR(".")) && !str_eq(part, STR("..")));
    if (!path_resolve(arena, path, &user, STR("/work"), &found, &err))
        return;
    check(found[0] == '/' && strlen(found) < LIMIT_PATH_BYTES);
    const char *parent = path_parent(arena, found);
    check(parent[0] == '/' && strlen(parent) <= strlen(found));
    check(path_base(str_from(found)).len > 0);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct arena arena;
    struct err err;

    if (size < 1)
        return 0;
    struct str rest = str_of(data + 1, size - 1);
    arena_init(&arena);
    if (data[0] == 'p') {
        fuzz_path(rest, &arena);
    } else {
        auto_json json_t *request = json_parse_object(rest, &err);
        if (request && data[0] == 's')
            fuzz_start(request, &arena);
        else if (request)
            fuzz_input(request);
    }
    arena_done(&arena);
    return 0;
}
