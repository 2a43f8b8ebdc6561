/* A kernel.json, which the template or whoever runs in the sandbox has written. */
#include "guest/interpreter/kernelspec.c" /* its decoder is its own */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_spec(const struct kernelspec *spec)
{
    check(spec->argc > 0 && spec->argc <= ARGS_MAX && !spec->argv[spec->argc]);
    for (size_t i = 0; i < spec->argc; i++)
        check(spec->argv[i] != NULL);
    check(strnlen(spec->language, sizeof spec->language) < sizeof spec->language);
    for (const char *c = spec->language; *c; c++)
        check(*c < 'A' || *c > 'Z');
    check(!spec->env || json_is_object(spec->env));
}

/* Named in a sentence that has little room, as often as there are kernels. */
static void try_list(const char *name, struct kernelspec *spec)
{
    char room[100] = "";
    struct listing listing = { room, sizeof room };

    for (int i = 0; i < 3; i++)
        check(!add_name(&listing, name, spec));
    check(strnlen(room, sizeof room) < sizeof room);
    check(strcmp(spec->language, "python") != 0 || !room[0]);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    char name[256];

    if (size > SPEC_BYTES)
        return 0;
    struct kernelspec *spec = parse_new(str_of(data, size));
    if (!spec)
        return 0;
    check_spec(spec);
    (void)snprintf(name, sizeof name, "%.*s", (int)MIN(size, sizeof name - 1), (const char *)data);
    try_list(name, spec);
    struct search search = { .language = spec->language };
    check(matches(&search, "another name", spec) && search.found == spec);
    kernelspec_free(spec);
    return 0;
}
