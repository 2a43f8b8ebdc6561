/*
 * A Dockerfile. What was taken has an image, steps of known kinds with as many arguments as the API wants, no source of COPY
 * above the directory, and lines that are in the file; all its texts can be read.
 */
#include <stdlib.h>

#include "base/limits.h"
#include "wire/dockerfile.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static size_t touch(struct str text)
{
    size_t sum = text.len;

    for (size_t i = 0; i < text.len; i++)
        sum += (unsigned char)text.at[i];
    return sum;
}

static void check_step(const struct dockerfile_step *step, uint32_t lines)
{
    bool is_copy = str_eq(step->type, STR("COPY")), is_env = str_eq(step->type, STR("ENV")),
         is_run = str_eq(step->type, STR("RUN"));

    if (!is_copy && !is_env && !is_run && !str_eq(step->type, STR("USER")) && !str_eq(step->type, STR("WORKDIR")))
        abort();
    if (step->line > lines || (is_copy && step->arg_count != 4) || (is_env && step->arg_count % 2) ||
        (is_run && step->arg_count > 2) || !step->arg_count)
        abort();
    if (is_copy && (!step->args[0].len || step->args[0].at[0] == '/' || str_eq(step->args[0], STR(".."))))
        abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct dockerfile_arg args[] = { { STR("V"), STR("1"), false } };
    struct dockerfile file;
    struct arena arena;
    struct err err;
    uint32_t lines = 1;
    size_t sum = 0;

    arena_init(&arena);
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    if (dockerfile_parse(&arena, str_of(data, size), args, 1, &file, &err)) {
        if (!file.from.len || !file.from_line || file.step_count > LIMIT_BUILD_STEPS || file.start_line > lines)
            abort();
        sum += touch(file.from) + touch(file.start_cmd);
        for (size_t i = 0; i < file.step_count; i++) {
            check_step(&file.steps[i], lines);
            sum += touch(file.steps[i].shown);
            for (uint32_t k = 0; k < file.steps[i].arg_count; k++)
                sum += touch(file.steps[i].args[k]);
        }
        for (size_t i = 0; i < file.note_count; i++)
            sum += touch(file.notes[i].text);
    }
    if (sum == SIZE_MAX)
        abort(); /* never: it keeps the sum from being left out */
    arena_done(&arena);
    return 0;
}
