/*
 * doctor.c - prints the results of `cloister doctor`. daemon/doctor.c runs the checks.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "wire/json.h"

static const struct {
    const char *word;
    const char *color;
} verdicts[DOCTOR_VERDICT_COUNT] = {
    [DOCTOR_OK] = { "ok", "\033[32m" },
    [DOCTOR_WARN] = { "warn", "\033[33m" },
    [DOCTOR_FAIL] = { "FAIL", "\033[31;1m" },
    [DOCTOR_SKIP] = { "skip", "\033[33m" },
};

static void print_json(FILE *out, const struct doctor_row *rows, size_t count, bool is_fine)
{
    auto_buf struct buf text = buf_make(NULL, 1 << 20);
    struct json_out json = json_out_to(&text);
    static const char *const names[DOCTOR_VERDICT_COUNT] = { "ok", "warn", "fail", "skip" };

    json_out_object(&json, NULL);
    json_out_bool(&json, "ok", is_fine);
    json_out_array(&json, "checks");
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        json_out_str(&json, "check", str_from(rows[i].what));
        json_out_str(&json, "verdict", str_from(names[rows[i].verdict]));
        json_out_str(&json, "found", str_from(rows[i].found));
        if (rows[i].fix && rows[i].verdict != DOCTOR_OK)
            json_out_str(&json, "fix", str_from(rows[i].fix));
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
    fprintf(out, "%.*s\n", STR_ARG(buf_str(&text)));
}

static void print_lines(FILE *out, const struct doctor_row *rows, size_t count)
{
    bool is_colored = isatty(fileno(out)) && !getenv("NO_COLOR");
    size_t width = 0;

    for (size_t i = 0; i < count; i++)
        width = MAX(width, strlen(rows[i].what));
    for (size_t i = 0; i < count; i++) {
        const struct doctor_row *row = &rows[i];
        fprintf(out, "%s%-4s%s  %-*s  %s\n", is_colored ? verdicts[row->verdict].color : "",
                verdicts[row->verdict].word, is_colored ? "\033[0m" : "", (int)width, row->what, row->found);
        if (row->fix && row->verdict != DOCTOR_OK)
            fprintf(out, "      %-*s  → %s\n", (int)width, "", row->fix);
    }
}

static void print_conclusion(FILE *out, const size_t counts[DOCTOR_VERDICT_COUNT], size_t count, const char *data)
{
    struct cli same;

    cli_init(&same, out, out);
    same.data = strcmp(data, CLI_DATA_DEFAULT) == 0 ? NULL : data;
    fputc('\n', out);
    if (counts[DOCTOR_FAIL])
        fprintf(out, "Sandboxes cannot run here yet: %zu of %zu checks failed.\n", counts[DOCTOR_FAIL], count);
    if (counts[DOCTOR_SKIP])
        fprintf(out, "%s%zu of %zu checks need root and were skipped. To run them all: %s doctor%s\n",
                counts[DOCTOR_FAIL] ? "" : "It is not known whether sandboxes can run here: ", counts[DOCTOR_SKIP],
                count, cli_program_as_root(), cli_same_server(&same));
    else if (!counts[DOCTOR_FAIL] && counts[DOCTOR_WARN])
        fprintf(out, "Sandboxes can run here; %zu of %zu checks could be better.\n", counts[DOCTOR_WARN], count);
    else if (!counts[DOCTOR_FAIL])
        fprintf(out, "Sandboxes can run here.\n");
    cli_done(&same);
}

int cli_doctor_print(FILE *out, const struct doctor_row *rows, size_t count, const char *data, bool json)
{
    size_t counts[DOCTOR_VERDICT_COUNT] = { 0 };

    for (size_t i = 0; i < count; i++)
        counts[rows[i].verdict]++;
    bool is_fine = counts[DOCTOR_FAIL] == 0 && counts[DOCTOR_SKIP] == 0;
    if (json) {
        print_json(out, rows, count, is_fine);
    } else {
        print_lines(out, rows, count);
        print_conclusion(out, counts, count, data);
    }
    return cli_exit_code(is_fine ? ERR_NONE : counts[DOCTOR_FAIL] ? ERR_UNAVAILABLE : ERR_DENIED);
}
