#include "cli/progress.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/limits.h"
#include "base/mem.h"

/* Of `open`. Steps count from 0. */
enum { OPEN_NONE = -1, OPEN_BASE = -2, OPEN_START = -3 };
enum { TICK_MS = 500, HELD_US = 500000, NARROW = 20, WIDE = 500 };

/* ---- steps ---- */

static bool is_shown(const struct dockerfile_step *step)
{
    return step->line > 0;
}

/* Those of the file, as the API counts. SIZE_MAX: not one of these. */
static size_t step_index(const struct progress *progress, struct str step)
{
    uint64_t number;

    return str_to_u64(step, progress->file->step_count, &number) && number > 0 ? (size_t)number - 1 : SIZE_MAX;
}

uint32_t progress_line_of(const struct progress *progress, struct str step)
{
    size_t index = step_index(progress, step);

    if (index != SIZE_MAX)
        return progress->file->steps[index].line;
    return str_eq(step, STR("base"))       ? progress->file->from_line
           : str_eq(step, STR("finalize")) ? progress->file->start_line
                                           : 0;
}

void progress_init(struct progress *progress, struct arena *arena, FILE *out, const struct dockerfile *file,
                   struct str start_cmd)
{
    const char *term = getenv("TERM");
    bool is_terminal = isatty(fileno(out)) && term && strcmp(term, "dumb") != 0;

    *progress = (struct progress){ .arena = arena,
                                   .out = out,
                                   .is_terminal = is_terminal,
                                   .is_colored = is_terminal && !getenv("NO_COLOR"),
                                   .file = file,
                                   .start_cmd = start_cmd,
                                   .total = 1 + (start_cmd.len > 0),
                                   .open = OPEN_NONE,
                                   .last = STR("") };
    for (size_t i = 0; i < file->step_count; i++)
        progress->total += is_shown(&file->steps[i]);
    progress->kept = mem_new(PROGRESS_KEPT * sizeof *progress->kept);
    for (size_t i = 0; i < PROGRESS_KEPT; i++)
        progress->kept[i] = buf_make(NULL, LIMIT_BUILD_LINE_BYTES * 4);
}

void progress_done(struct progress *progress)
{
    for (size_t i = 0; i < PROGRESS_KEPT; i++)
        buf_done(&progress->kept[i]);
    free(progress->kept);
}

/* ---- text ---- */

static size_t width_of(const struct progress *progress)
{
    struct winsize size;

    if (ioctl(fileno(progress->out), TIOCGWINSZ, &size) < 0 || size.ws_col < NARROW)
        return 80;
    return MIN((size_t)size.ws_col, (size_t)WIDE);
}

/*
 * Text of a sandbox, for a terminal: without escape sequences, control characters and what would change the direction of
 * others; one line; at most `most` characters. It is well-formed, because it was JSON.
 */
static void add_clean(struct buf *out, struct str text, size_t most)
{
    size_t count = 0;

    while (text.len && count < most) {
        struct str rest = text;
        uint32_t c = utf8_next(&rest);
        struct str bytes = str_of(text.at, text.len - rest.len);
        text = rest;
        if (c == 0x1b && text.len && text.at[0] == '[') {
            do
                text = str_of(text.at + 1, text.len - 1);
            while (text.len && !(text.at[0] >= '@' && text.at[0] <= '~'));
            if (text.len)
                text = str_of(text.at + 1, text.len - 1);
            continue;
        }
        if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0xa0) || utf8_is_hidden(c)) {
            if (c == '\t' || c == '\n') {
                buf_add_char(out, ' ');
                count++;
            }
            continue;
        }
        buf_add(out, bytes);
        count++;
    }
    if (text.len && most > 1)
        buf_add(out, STR("…"));
}

static void print_clean(const struct progress *progress, struct str text, size_t most)
{
    auto_buf struct buf line = buf_make(NULL, LIMIT_DOCKERFILE_BYTES * 2);

    add_clean(&line, text, most);
    fprintf(progress->out, "%.*s", STR_ARG(buf_str(&line)));
}

/* "[ 3/12] ", with the number among the lines that are shown. */
static int print_number(const struct progress *progress)
{
    unsigned number = 1;

    if (progress->open == OPEN_START)
        number = progress->total;
    for (int64_t i = 0; i <= progress->open; i++)
        number += is_shown(&progress->file->steps[i]);
    int digits = snprintf(NULL, 0, "%u", progress->total);
    return fprintf(progress->out, "[%*u/%u] ", digits, number, progress->total);
}

static struct str shown_of(const struct progress *progress, int64_t open)
{
    if (open == OPEN_BASE)
        return arena_format(progress->arena, "FROM %.*s", STR_ARG(progress->file->from));
    if (open == OPEN_START)
        return arena_format(progress->arena, "start: %.*s", STR_ARG(progress->start_cmd));
    /* Lines that were continued are indented. */
    struct str shown = progress->file->steps[open].shown;
    struct buf text = buf_make(progress->arena, LIMIT_DOCKERFILE_BYTES);
    for (size_t i = 0; i < shown.len; i++)
        if (shown.at[i] != ' ' || !i || shown.at[i - 1] != ' ')
            buf_add_char(&text, shown.at[i]);
    return buf_str(&text);
}

static void print_time(const struct progress *progress, int64_t us)
{
    double seconds = us > 0 ? (double)us / 1e6 : 0;

    if (seconds < 60)
        fprintf(progress->out, "%.1f s", seconds);
    else
        fprintf(progress->out, "%d min %d s", (int)(seconds / 60), (int)seconds % 60);
}

static const char *code(const struct progress *progress, const char *text)
{
    return progress->is_colored ? text : "";
}
#define DIM(progress) code((progress), "\033[2m")
#define RED(progress) code((progress), "\033[31m")
#define GREEN(progress) code((progress), "\033[32m")
#define PLAIN(progress) code((progress), "\033[0m")

/* ---- drawing ---- */

enum { TIME_ROOM = 24 };

static void print_step(const struct progress *progress)
{
    int used = print_number(progress);
    size_t width = progress->is_terminal ? width_of(progress) : WIDE;

    print_clean(progress, progress->shown, width > (size_t)used + TIME_ROOM ? width - (size_t)used - TIME_ROOM : 1);
}

/* The cursor is below the step's line, and stays there. */
static void draw_open(struct progress *progress, int64_t now_us)
{
    fprintf(progress->out, "\033[A\r\033[K");
    print_step(progress);
    fprintf(progress->out, "  ");
    print_time(progress, now_us - progress->since_us);
    fprintf(progress->out, "\n\r\033[K%s", DIM(progress));
    print_clean(progress, progress->last, width_of(progress) - 2);
    fprintf(progress->out, "%s", PLAIN(progress));
    fflush(progress->out);
    progress->drawn_ms = clock_mono_ms();
}

static void step_begin(struct progress *progress, int64_t open, int64_t at_us)
{
    progress->open = open;
    progress->since_us = at_us;
    progress->kept_count = 0;
    progress->last = STR("");
    if (open >= 0 && !is_shown(&progress->file->steps[open]))
        return;
    progress->shown = shown_of(progress, open); /* once: its line is drawn often */
    if (progress->is_terminal) {
        fputc('\n', progress->out);
        draw_open(progress, at_us);
    }
    progress->is_held = !progress->is_terminal;
    fflush(progress->out);
}

static void release(struct progress *progress)
{
    if (!progress->is_held)
        return;
    progress->is_held = false;
    print_step(progress);
    fputc('\n', progress->out);
    fflush(progress->out);
}

static void print_kept(const struct progress *progress)
{
    size_t count = MIN(progress->kept_count, (size_t)PROGRESS_KEPT);

    if (progress->kept_count > count)
        fprintf(progress->out, "    %s… %zu lines before these%s\n", DIM(progress), progress->kept_count - count,
                PLAIN(progress));
    for (size_t i = progress->kept_count - count; i < progress->kept_count; i++) {
        fprintf(progress->out, "    ");
        print_clean(progress, buf_str(&progress->kept[i % PROGRESS_KEPT]), LIMIT_BUILD_LINE_BYTES);
        fputc('\n', progress->out);
    }
}

static void step_end(struct progress *progress, int64_t at_us, enum progress_how how)
{
    if (progress->open == OPEN_NONE)
        return;
    bool is_hidden = progress->open >= 0 && !is_shown(&progress->file->steps[progress->open]);
    if (!is_hidden) {
        if (progress->is_terminal) {
            fprintf(progress->out, "\r\033[K\033[A\r\033[K");
            print_step(progress);
            fprintf(progress->out, "  ");
        } else if (progress->is_held) {
            print_step(progress);
            fprintf(progress->out, "  ");
        } else {
            fprintf(progress->out, "    ");
        }
        if (how == PROGRESS_FAILED)
            fprintf(progress->out, "%sfailed%s after ", RED(progress), PLAIN(progress));
        else if (how == PROGRESS_STOPPED)
            fprintf(progress->out, "stopped after ");
        else if (!progress->is_terminal && !progress->is_held)
            fprintf(progress->out, "done in ");
        print_time(progress, at_us - progress->since_us);
        fputc('\n', progress->out);
        if (how == PROGRESS_FAILED && progress->is_terminal)
            print_kept(progress); /* elsewhere they are above */
    }
    progress->open = OPEN_NONE;
    fflush(progress->out);
}

static void step_cached(struct progress *progress, int64_t open)
{
    if (open >= 0 && !is_shown(&progress->file->steps[open]))
        return;
    progress->open = open;
    progress->shown = shown_of(progress, open);
    print_step(progress);
    fprintf(progress->out, "  %scached%s\n", GREEN(progress), PLAIN(progress));
    fflush(progress->out);
    progress->open = OPEN_NONE;
}

static void output(struct progress *progress, int64_t at_us, struct str text)
{
    bool is_hidden =
        progress->open == OPEN_NONE || (progress->open >= 0 && !is_shown(&progress->file->steps[progress->open]));
    struct buf *kept = &progress->kept[progress->kept_count++ % PROGRESS_KEPT];

    buf_clear(kept);
    buf_add(kept, text);
    if (is_hidden)
        return;
    if (!progress->is_terminal) {
        release(progress);
        fprintf(progress->out, "    ");
        print_clean(progress, text, LIMIT_BUILD_LINE_BYTES);
        fputc('\n', progress->out);
        fflush(progress->out);
        return;
    }
    progress->last = kept->overflowed ? STR("") : buf_str(kept);
    draw_open(progress, at_us);
}

/* ---- the log ---- */

/* "[anything] [stdout]: text" is output. */
static bool cut_output(struct str message, struct str *out)
{
    static const struct str marks[] = { STR_INIT("] [stdout]: "), STR_INIT("] [stderr]: ") };

    for (size_t i = 0; str_starts(message, STR("[")) && i < COUNT_OF(marks); i++) {
        const char *at = memmem(message.at, MIN(message.len, (size_t)64), marks[i].at, marks[i].len);
        if (at) {
            size_t from = (size_t)(at - message.at) + marks[i].len;
            *out = str_of(message.at + from, message.len - from);
            return true;
        }
    }
    return false;
}

static void take_base(struct progress *progress, int64_t at_us, struct str message)
{
    struct str rest = message;
    bool is_cached = str_skip(&rest, STR("CACHED "));

    if (str_starts(rest, STR("[base] FROM"))) {
        if (is_cached)
            step_cached(progress, OPEN_BASE);
        else
            step_begin(progress, OPEN_BASE, at_us);
    } else if (!str_starts(rest, STR("[base] DEFAULT USER")) && progress->open == OPEN_BASE) {
        output(progress, at_us, message);
    }
}

static void take_step(struct progress *progress, int64_t at_us, int64_t index, struct str message)
{
    if (str_starts(message, STR("CACHED [builder "))) {
        step_end(progress, at_us, PROGRESS_DONE);
        step_cached(progress, index);
    } else if (progress->open != index) {
        step_end(progress, at_us, PROGRESS_DONE);
        step_begin(progress, index, at_us);
    }
}

static void take_finalize(struct progress *progress, int64_t at_us, struct str message)
{
    if (progress->open != OPEN_START)
        step_end(progress, at_us, PROGRESS_DONE);
    if (!progress->start_cmd.len || str_starts(message, STR("[finalize]")))
        return;
    if (str_starts(message, STR("Running start command:"))) {
        step_begin(progress, OPEN_START, at_us);
    } else if (str_eq(message, STR("Template is ready"))) {
        step_end(progress, at_us, PROGRESS_DONE);
    } else if (progress->open == OPEN_START) {
        output(progress, at_us, message);
    } else if (!str_starts(message, STR("Build "))) {
        print_clean(progress, message, LIMIT_BUILD_LINE_BYTES);
        fputc('\n', progress->out);
    }
}

void progress_take(struct progress *progress, int64_t at_us, struct str step, struct str message)
{
    size_t index = step_index(progress, step);
    struct str text;

    if (str_starts(message, STR("Build failed: ")) || str_starts(message, STR("Build finished, ")))
        return;
    if (cut_output(message, &text))
        output(progress, at_us, text);
    else if (str_eq(step, STR("base")))
        take_base(progress, at_us, message);
    else if (index != SIZE_MAX)
        take_step(progress, at_us, (int64_t)index, message);
    else if (str_eq(step, STR("finalize")))
        take_finalize(progress, at_us, message);
}

void progress_tick(struct progress *progress, int64_t now_us)
{
    if (progress->open == OPEN_NONE || (progress->open >= 0 && !is_shown(&progress->file->steps[progress->open])))
        return;
    if (!progress->is_terminal && now_us > progress->since_us + HELD_US)
        release(progress);
    else if (progress->is_terminal && clock_mono_ms() >= progress->drawn_ms + TICK_MS)
        draw_open(progress, MAX(now_us, progress->since_us));
}

void progress_end(struct progress *progress, int64_t now_us, enum progress_how how)
{
    step_end(progress, now_us, how);
}
