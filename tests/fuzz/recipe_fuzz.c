/*
 * The body that starts a build, and the User-Agent that goes with it (up to the first line end). A recipe that was taken has
 * no more steps than it may, and all its texts can be read.
 */
#include <stdlib.h>

#include "api/builds.h"
#include "base/limits.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static size_t touch(struct str text)
{
    size_t sum = text.len;

    for (size_t i = 0; i < text.len; i++)
        sum += (unsigned char)text.at[i];
    return sum;
}

static void fuzz_recipe(struct str text, struct arena *arena)
{
    struct build_recipe recipe;
    size_t sum = 0;
    struct err err;

    auto_json json_t *body = json_parse_object(text, &err);
    if (!body || !recipe_decode(body, arena, &recipe, &err))
        return;
    if (recipe.step_count > LIMIT_BUILD_STEPS || (recipe.from_template.len && recipe.login.kind != LOGIN_NONE))
        abort();
    sum += touch(recipe.from_image) + touch(recipe.start_cmd) + touch(recipe.ready_cmd) + touch(recipe.login.user) +
           touch(recipe.login.password) + touch(recipe.login.key) + touch(recipe.login.account);
    for (uint32_t i = 0; i < recipe.step_count; i++) {
        sum += touch(recipe.steps[i].type_text) + touch(recipe.steps[i].files_hash);
        for (uint32_t k = 0; k < recipe.steps[i].arg_count; k++)
            sum += touch(recipe.steps[i].args[k]);
    }
    if (sum == SIZE_MAX)
        abort(); /* never: it keeps the sum from being left out */
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str rest = str_of(data, size), agent = STR("");
    struct arena arena;

    arena_init(&arena);
    (void)str_cut(&rest, '\n', &agent);
    enum build_dialect dialect = dialect_of(agent);
    if (dialect != DIALECT_2_0 && dialect != DIALECT_2_1)
        abort();
    fuzz_recipe(rest, &arena);
    arena_done(&arena);
    return 0;
}
