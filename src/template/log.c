/* The log of a build: lines for people, in the words of E2B's builder, because its clients show and search them. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "template/inside.h"

void log_begin(struct build *build)
{
    arena_init(&build->log.arena);
}

void log_flush(struct build *build)
{
    struct build_log *log = &build->log;
    struct err err;

    if (log->count && !log->is_gone &&
        !store_build_log(build->builder->config.store, build->want.build_id, log->lines, log->count, &err)) {
        log_warn("build %.*s: lines of its log are lost: %s", STR_ARG(build->want.build_id), err_text(&err));
        log->is_gone = err.kind == ERR_NOT_FOUND;
    }
    log->count = 0;
    arena_done(&log->arena);
}

void log_tick(struct build *build)
{
    if (build->log.count && clock_mono_ms() >= build->log.since_ms + BUILD_LOOK_MS)
        log_flush(build);
}

/* Asked before a line is copied. */
static bool takes_lines(const struct build_log *log)
{
    return log->bytes <= LIMIT_BUILD_LOG_BYTES && !log->is_gone;
}

static void add_line(struct build *build, enum build_level level, struct str text)
{
    struct build_log *log = &build->log;

    /* Never more than the store counts, which cuts a long line before a character: its last line says that it is full. */
    log->bytes += MIN(text.len, (size_t)LIMIT_BUILD_LINE_BYTES - 3) + 1;
    if (!log->count)
        log->since_ms = clock_mono_ms();
    log->lines[log->count++] = (struct build_line){
        .at_us = clock_wall_us(), .level = level, .step = arena_copy(&log->arena, str_from(build->step)), .text = text
    };
    if (log->count == BUILD_LINES)
        log_flush(build);
    else
        log_tick(build);
}

void build_say(struct build *build, enum build_level level, const char *format, ...)
{
    auto_buf struct buf text = buf_make(NULL, 64 * 1024);
    char *room = buf_reserve(&text, LIMIT_BUILD_LINE_BYTES);
    va_list args;

    va_start(args, format);
    int len = vsnprintf(room, LIMIT_BUILD_LINE_BYTES, format, args);
    va_end(args);
    if (len > 0 && takes_lines(&build->log))
        add_line(build, level,
                 arena_copy(&build->log.arena, str_of(room, MIN((size_t)len, (size_t)LIMIT_BUILD_LINE_BYTES - 1))));
}

struct lines lines_of(struct build *build, const char *prefix, enum build_level level)
{
    return (struct lines){ .build = build,
                           .prefix = prefix,
                           .level = level,
                           .rest = { buf_make(NULL, LIMIT_BUILD_LINE_BYTES), buf_make(NULL, LIMIT_BUILD_LINE_BYTES) } };
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

struct str trim_all(struct str text)
{
    while (text.len && is_space(text.at[text.len - 1]))
        text.len--;
    while (text.len && is_space(text.at[0]))
        text = str_of(text.at + 1, text.len - 1);
    return text;
}

/* A line is what is left of it after a carriage return: progress bars end up as their last state. */
static void end_line(struct lines *lines, enum run_stream stream)
{
    struct build *build = lines->build;
    struct str line = trim_all(buf_str(&lines->rest[stream]));

    for (size_t i = line.len; i > 0; i--)
        if (line.at[i - 1] == '\r') {
            line = str_of(line.at + i, line.len - i);
            break;
        }
    if (line.len && takes_lines(&build->log))
        add_line(build, lines->level,
                 arena_format(&build->log.arena, "[%s] [%s]: %.*s", lines->prefix,
                              stream == RUN_STDOUT ? "stdout" : "stderr", STR_ARG(line)));
    buf_clear(&lines->rest[stream]);
}

void lines_take(struct lines *lines, enum run_stream stream, struct str bytes)
{
    struct buf *rest = &lines->rest[stream];

    for (size_t i = 0; i < bytes.len; i++) {
        if (bytes.at[i] == '\n')
            end_line(lines, stream);
        else if (bytes.at[i] && rest->len < LIMIT_BUILD_LINE_BYTES) /* what is too long is cut */
            buf_add_char(rest, bytes.at[i]);
    }
}

void lines_done(struct lines *lines)
{
    for (int i = 0; i < 2; i++) {
        end_line(lines, (enum run_stream)i);
        buf_done(&lines->rest[i]);
    }
}

void log_done(struct build *build)
{
    log_flush(build);
    arena_done(&build->log.arena);
}
