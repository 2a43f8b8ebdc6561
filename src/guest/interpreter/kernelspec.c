#include "guest/interpreter/kernelspec.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/mem.h"
#include "guest/interpreter/limits.h"
#include "wire/json.h"

enum { SPEC_BYTES = 64 * 1024, ARGS_MAX = 64, DIRS = 3 };

static void dirs_of(const struct user *user, struct arena *arena, const char *out[DIRS])
{
    out[0] = arena_format(arena, "%.*s/.local/share/jupyter/kernels", STR_ARG(user->home)).at;
    out[1] = "/usr/local/share/jupyter/kernels";
    out[2] = "/usr/share/jupyter/kernels";
}

static bool take_argv(struct kernelspec *spec, const json_t *argv)
{
    size_t count = json_array_size(argv);

    if (count == 0 || count > ARGS_MAX)
        return false;
    spec->argv = mem_new((count + 1) * sizeof *spec->argv);
    for (size_t i = 0; i < count; i++) {
        const json_t *word = json_array_get(argv, i);
        if (!json_is_string(word))
            return false;
        spec->argv[spec->argc++] = mem_copy_text(json_string_value(word));
    }
    return true;
}

static struct kernelspec *parse_new(struct str text)
{
    struct err ignored;
    struct str word = STR("");
    const json_t *argv = NULL;

    auto_json json_t *json = json_parse_object(text, &ignored);
    struct kernelspec *spec = NEW(struct kernelspec);
    if (!json || !json_take_array(json, "argv", JSON_REQUIRED, &argv, &ignored) || !take_argv(spec, argv) ||
        !json_take_str(json, "language", JSON_OPTIONAL, &word, &ignored)) {
        kernelspec_free(spec);
        return NULL;
    }
    (void)snprintf(spec->language, sizeof spec->language, "%.*s", (int)MIN(word.len, 63), word.at);
    text_lower(spec->language, strlen(spec->language));
    word = STR("");
    (void)!json_take_str(json, "interrupt_mode", JSON_OPTIONAL, &word, &ignored);
    spec->interrupts_by_message = str_eq(word, STR("message"));
    json_t *env = json_object_get(json, "env");
    spec->env = json_is_object(env) ? json_incref(env) : NULL;
    return spec;
}

static struct kernelspec *read_new(int dir_fd, const char *name)
{
    char path[300];
    auto_free char *text = NULL;
    size_t len;
    struct err ignored;

    (void)snprintf(path, sizeof path, "%s/kernel.json", name);
    /* Without blocking: the guest may have put a FIFO there, and we are on the loop. */
    if (!fd_read_regular(dir_fd, path, SPEC_BYTES, &text, &len, &ignored))
        return NULL;
    return parse_new(str_of(text, len));
}

void kernelspec_free(struct kernelspec *spec)
{
    if (!spec)
        return;
    for (size_t i = 0; i < spec->argc; i++)
        free(spec->argv[i]);
    free(spec->argv);
    json_decref(spec->env);
    free(spec);
}

/* Calls fn for each kernelspec until it returns true; then fn owns the spec. */
typedef bool visit_fn(void *context, const char *name, struct kernelspec *spec);
static void visit(const struct user *user, visit_fn *fn, void *context)
{
    struct arena arena;
    const char *dirs[DIRS];
    bool stop = false;

    arena_init(&arena);
    dirs_of(user, &arena, dirs);
    for (size_t i = 0; i < DIRS && !stop; i++) {
        int fd = open(dirs[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        unsigned seen = 0;
        for (struct dirent *entry; dir && !stop && seen < LIMIT_KERNELSPECS && (entry = readdir(dir));) {
            if (entry->d_name[0] == '.')
                continue;
            seen++;
            struct kernelspec *spec = read_new(fd, entry->d_name);
            if (spec && !(stop = fn(context, entry->d_name, spec)))
                kernelspec_free(spec);
        }
        if (dir)
            (void)closedir(dir);
    }
    arena_done(&arena);
}

struct search {
    const char *language;
    struct kernelspec *found;
};

static bool matches(void *context, const char *name, struct kernelspec *spec)
{
    struct search *search = context;

    if (strcasecmp(name, search->language) != 0 && strcmp(spec->language, search->language) != 0)
        return false;
    search->found = spec;
    return true;
}

struct kernelspec *kernelspec_find_new(const struct user *user, const char *language)
{
    struct search search = { .language = language };

    visit(user, matches, &search);
    /* A kernel that takes TypeScript takes JavaScript. */
    if (!search.found && strcmp(language, "javascript") == 0) {
        search.language = "typescript";
        visit(user, matches, &search);
    }
    return search.found;
}

struct listing {
    char *room;
    size_t size;
};

static bool has_word(const char *list, const char *word)
{
    struct str rest = str_from(list), item;

    while (str_cut(&rest, ',', &item))
        if (str_eq(str_trim(item), str_from(word)))
            return true;
    return false;
}

static bool add_name(void *context, const char *name, struct kernelspec *spec)
{
    struct listing *listing = context;
    const char *word = spec->language[0] ? spec->language : name;
    size_t len = strlen(listing->room);

    if (strcmp(word, "python") != 0 && !has_word(listing->room, word))
        (void)snprintf(listing->room + len, listing->size - len, "%s%s", len ? ", " : "", word);
    return false;
}

void kernelspec_list(const struct user *user, struct arena *arena, char *room, size_t size)
{
    struct listing listing = { room, size };

    (void)arena;
    room[0] = '\0';
    visit(user, add_name, &listing);
    /* As kernelspec_find_new() does. */
    size_t len = strlen(room);
    if (has_word(room, "typescript") && !has_word(room, "javascript"))
        (void)snprintf(room + len, size - len, ", javascript");
}
