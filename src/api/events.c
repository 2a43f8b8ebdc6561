/*
 * The history of sandboxes: as events, and as log lines for a dashboard or a command line. Log lines also report
 * commands that started and ended inside, in the words of upstream's daemon.
 */
#include "api/request.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/log.h"

enum {
    EVENTS_MOST = 100,
    EVENTS_USUAL = 10,
    LOGS_MOST = 1000,
    SEARCH_BYTES = 256,
};

static const uint64_t MS_MOST = UINT64_C(253402300799999); /* the end of the year 9999 */
static const int64_t WINDOW_US = INT64_C(7) * 24 * 3600 * 1000000;

/* ---- events ---- */

static bool types_decode(const struct request *rq, unsigned *out_types, struct err *err)
{
    struct str rest = rq->ex->head.query, name, list, type;
    unsigned types = 0;

    while (http_query_next(&rest, &name, &list)) {
        if (!str_eq(name, STR("types")) || !percent_decode(rq->arena, list, PERCENT_PLUS_IS_SPACE, &list))
            continue; /* query_check() has refused broken escapes */
        while (str_cut(&list, ',', &type)) {
            unsigned found = 0;
            for (int i = 0; i < EVENT_TYPE_COUNT; i++)
                if (str_eq(type, event_type_name[i]))
                    found = BIT(i);
            if (!found)
                return err_set(err, ERR_INVALID, "'types' has '%.*s', which is not a type of event",
                               (int)MIN(type.len, (size_t)40), type.at);
            types |= found;
        }
    }
    *out_types = types;
    return true;
}

static bool order_decode(const struct request *rq, bool *out_oldest_first, struct err *err)
{
    struct str order;

    if (!query(rq, STR("orderAsc"), &order) || str_eq(order, STR("false")))
        return true;
    *out_oldest_first = str_eq(order, STR("true"));
    return *out_oldest_first || err_set(err, ERR_INVALID, "'orderAsc' must be true or false");
}

static void event_encode(struct json_out *json, const struct event_row *event)
{
    json_out_object(json, NULL);
    json_out_str(json, "version", STR("v1"));
    json_out_str(json, "id", event->id);
    json_out_str(json, "type", event->type);
    json_out_raw(json, "eventData", event->data);
    json_out_str(json, "sandboxId", event->sandbox_id);
    json_out_str(json, "sandboxExecutionId", event->sandbox_id); /* one for all its runs */
    json_out_str(json, "sandboxTemplateId", event->template_id);
    json_out_str(json, "sandboxBuildId", event->template_id); /* a template has one build */
    json_out_str(json, "sandboxTeamId", event->team_id);
    time_encode(json, "timestamp", event->at_us);
    json_out_end(json);
}

static void answer_events(struct request *rq, struct str sandbox_id)
{
    struct event_filter filter = { .sandbox_id = sandbox_id };
    uint64_t offset = 0, limit = EVENTS_USUAL;
    struct event_row *events;
    size_t count;
    struct err err;

    if (!query_check(rq, &err) || !query_number(rq, "offset", 0, UINT32_MAX, &offset, &err) ||
        !query_number(rq, "limit", 1, EVENTS_MOST, &limit, &err) || !order_decode(rq, &filter.oldest_first, &err) ||
        !types_decode(rq, &filter.types, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    filter.offset = (uint32_t)offset;
    filter.limit = (uint32_t)limit;
    if (!action_event_list(rq->actions, &rq->caller, &filter, rq->arena, &events, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++)
        event_encode(&json, &events[i]);
    json_out_end(&json);
}

void api_event_list(struct request *rq)
{
    answer_events(rq, STR(""));
}

void api_event_list_of_sandbox(struct request *rq)
{
    struct str id;

    if (path_id(rq, &id))
        answer_events(rq, id);
}

/* ---- logs: events and commands, as lines for people ---- */

enum {
    LOG_FIELDS = 5,
    LINE_BYTES = 16 * 1024, /* a refusal has 900 bytes of text, and an escape has six for one */
};

/* Refusals have log lines of their own. */
static const unsigned LOGGED_EVENTS = (BIT(EVENT_TYPE_COUNT) - 1) & ~BIT(EVENT_REFUSED);

struct log_line {
    int64_t at_us;
    enum log_level level;
    struct str logger, message;
    struct pair fields[LOG_FIELDS];
    size_t field_count;
};

static const struct str level_name[LOG_LEVEL_COUNT] = {
    [LOG_DEBUG] = STR_INIT("debug"),
    [LOG_INFO] = STR_INIT("info"),
    [LOG_WARN] = STR_INIT("warn"),
    [LOG_ERROR] = STR_INIT("error"),
};

static void add_field(struct log_line *line, struct str name, struct str value)
{
    line->fields[line->field_count++] = (struct pair){ name, value };
}

/* A copy in the arena, because the JSON is freed before the answer is sent; empty if there is none. */
static struct str data_text(const json_t *data, const char *name, struct arena *arena)
{
    const json_t *value = json_object_get(data, name);

    return json_is_string(value) ? arena_copy(arena, json_str(value)) : STR("");
}

/* Lists by their lengths; what is not set is left out, and so is what rows of older versions do not have. */
static struct str network_text(const json_t *network, struct arena *arena)
{
    struct buf text = buf_make(arena, LINE_BYTES);
    long long rules = (long long)json_integer_value(json_object_get(network, "rules"));
    struct str proxy = data_text(network, "egress_proxy_host", arena);

    buf_format(&text, "network rules changed: internet access %s, allowOut %lld, denyOut %lld",
               json_is_true(json_object_get(network, "allow_internet_access")) ? "on" : "off",
               (long long)json_integer_value(json_object_get(network, "allow_out")),
               (long long)json_integer_value(json_object_get(network, "deny_out")));
    if (json_has(network, "dns_servers"))
        buf_format(&text, ", dnsServers %lld", (long long)json_integer_value(json_object_get(network, "dns_servers")));
    if (rules)
        buf_format(&text, ", hosts with header rules %lld", rules);
    if (proxy.len)
        buf_format(&text, ", egressProxy %.*s", STR_ARG(proxy));
    return buf_str(&text);
}

static void line_of(const struct event_row *event, struct arena *arena, struct log_line *out)
{
    struct err ignored; /* a damaged row still has its type */
    auto_json json_t *data = json_parse_object(event->data, &ignored);
    struct log_line line = { .at_us = event->at_us, .level = LOG_INFO, .logger = STR("lifecycle") };

    add_field(&line, STR("event"), event->type);
    if (str_eq(event->type, event_type_name[EVENT_CREATED])) {
        line.message = arena_format(arena, "sandbox started from template %.*s", STR_ARG(event->template_id));
    } else if (str_eq(event->type, event_type_name[EVENT_UPDATED]) && json_has(data, "set_network")) {
        line.message = network_text(json_object_get(data, "set_network"), arena);
    } else if (str_eq(event->type, event_type_name[EVENT_UPDATED])) {
        struct str deadline = data_text(data, "set_timeout", arena);
        line.message = arena_format(arena, "deadline set to %.*s", STR_ARG(deadline));
        add_field(&line, STR("deadline"), deadline);
    } else if (str_eq(event->type, event_type_name[EVENT_PAUSED])) {
        line.message = STR("sandbox paused");
    } else if (str_eq(event->type, event_type_name[EVENT_RESUMED])) {
        line.message = STR("sandbox resumed");
    } else if (str_eq(event->type, event_type_name[EVENT_CHECKPOINTED])) {
        line.message = STR("snapshot of the sandbox taken");
    } else if (str_eq(event->type, event_type_name[EVENT_KILLED])) {
        struct str reason = data_text(data, "kill_reason", arena);
        line.message = arena_format(arena, "sandbox ended: %.*s", STR_ARG(reason));
        add_field(&line, STR("reason"), reason);
        /* Neither a request nor the deadline ended it. */
        if (!str_eq(reason, STR("request")) && !str_eq(reason, STR("timeout")))
            line.level = LOG_WARN;
    } else if (str_eq(event->type, event_type_name[EVENT_SNAPSHOT_DELETED])) {
        line.message = arena_format(arena, "snapshot %.*s deleted: nobody has used it for long",
                                    STR_ARG(data_text(data, "snapshot_id", arena)));
    } else {
        line.message = event->type;
    }
    *out = line;
}

static void line_of_process(const struct sandbox_log *log, struct arena *arena, struct log_line *out)
{
    struct log_line line = { .at_us = log->at_us, .level = LOG_INFO, .logger = STR("process") };
    struct str pid = arena_format(arena, "%u", log->pid);

    switch (log->kind) {
    case SANDBOX_LOG_STARTED:
        line.message = arena_format(arena, "Process with pid %u started", log->pid);
        add_field(&line, STR("event_type"), STR("process_start"));
        add_field(&line, STR("pid"), pid);
        add_field(&line, STR("command"), log->text);
        break;
    case SANDBOX_LOG_ENDED:
        line.message = arena_format(arena, "Process with pid %u ended", log->pid);
        add_field(&line, STR("event_type"), STR("process_end"));
        add_field(&line, STR("pid"), pid);
        add_field(&line, STR("status"), log->text);
        add_field(&line, STR("exit_code"), arena_format(arena, "%d", log->exit_code));
        add_field(&line, STR("output_bytes"), arena_format(arena, "%llu", (unsigned long long)log->output_bytes));
        break;
    case SANDBOX_LOG_REFUSED:
        line.level = LOG_WARN;
        line.logger = STR("network");
        line.message = utf8_repair(arena, log->text);
        add_field(&line, STR("event_type"), STR("network_refused"));
        add_field(&line, STR("count"), arena_format(arena, "%u", log->count));
        if (log->rule.len)
            add_field(&line, STR("rule"), utf8_repair(arena, log->rule));
        if (log->destination.len)
            add_field(&line, STR("destination"), utf8_repair(arena, log->destination));
        break;
    case SANDBOX_LOG_DROPPED:
        line.level = LOG_WARN;
        line.message = arena_format(arena, "%u lines are missing here: too many at once", log->count);
        add_field(&line, STR("event_type"), STR("lines_dropped"));
        break;
    }
    *out = line;
}

static void entry_encode(struct json_out *json, const struct log_line *line)
{
    json_out_object(json, NULL);
    time_encode(json, "timestamp", line->at_us);
    json_out_str(json, "level", level_name[line->level]);
    json_out_str(json, "message", line->message);
    json_out_object(json, "fields");
    for (size_t i = 0; i < line->field_count; i++)
        json_out_pair(json, line->fields[i].name, line->fields[i].value);
    json_out_end(json);
    json_out_end(json);
}

/* E2B's command line parses each line as JSON and expects a level in it. */
static void line_encode(struct json_out *json, const struct log_line *line, struct arena *arena)
{
    struct buf text = buf_make(arena, LINE_BYTES);
    struct json_out inner = json_out_to(&text);

    json_out_object(&inner, NULL);
    json_out_str(&inner, "level", level_name[line->level]);
    json_out_str(&inner, "logger", line->logger);
    json_out_str(&inner, "message", line->message);
    for (size_t i = 0; i < line->field_count; i++)
        json_out_pair(&inner, line->fields[i].name, line->fields[i].value);
    json_out_end(&inner);
    json_out_object(json, NULL);
    time_encode(json, "timestamp", line->at_us);
    json_out_str(json, "line", buf_str(&text));
    json_out_end(json);
}

/* Merges both lists in the filter's order. The filter's limit is for events; the caller cuts the result to its own. */
static bool lines_of(struct request *rq, const struct event_filter *filter, struct log_line **out, size_t *out_count,
                     struct err *err)
{
    struct event_row *events;
    struct sandbox_log *logs;
    size_t event_count, log_count, e = 0, l = 0;

    if (!action_event_list(rq->actions, &rq->caller, filter, rq->arena, &events, &event_count, err))
        return false;
    action_sandbox_logs(rq->actions, &rq->caller, filter->sandbox_id, filter->from_us, filter->to_us, rq->arena, &logs,
                        &log_count);
    struct log_line *lines = ARENA_ARRAY(rq->arena, struct log_line, event_count + log_count);
    while (e < event_count || l < log_count) {
        const struct sandbox_log *log = l < log_count ? &logs[filter->oldest_first ? l : log_count - 1 - l] : NULL;
        bool takes_event =
            !log ||
            (e < event_count && (filter->oldest_first ? events[e].at_us <= log->at_us : events[e].at_us > log->at_us));
        struct log_line *line = &lines[e + l];
        if (takes_event)
            line_of(&events[e++], rq->arena, line);
        else
            line_of_process(log, rq->arena, line);
        l += !takes_event;
    }
    *out = lines;
    *out_count = event_count + log_count;
    return true;
}

void api_sandbox_logs_v1(struct request *rq)
{
    struct event_filter filter = { .oldest_first = true, .types = LOGGED_EVENTS };
    uint64_t start_ms = 0, limit = LOGS_MOST;
    struct log_line *lines;
    size_t count;
    struct err err;

    if (!path_id(rq, &filter.sandbox_id))
        return;
    if (!query_check(rq, &err) || !query_number(rq, "start", 0, MS_MOST, &start_ms, &err) ||
        !query_number(rq, "limit", 0, LOGS_MOST, &limit, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    filter.from_us = (int64_t)start_ms * 1000;
    filter.limit = (uint32_t)limit;
    if (!lines_of(rq, &filter, &lines, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    count = MIN(count, (size_t)limit);
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "logs");
    for (size_t i = 0; i < count; i++)
        line_encode(&json, &lines[i], rq->arena);
    json_out_end(&json);
    json_out_array(&json, "logEntries");
    for (size_t i = 0; i < count; i++)
        entry_encode(&json, &lines[i]);
    json_out_end(&json);
    json_out_end(&json);
}

struct logs_want {
    enum log_level least;
    struct str search;
    size_t limit;
};

static bool level_decode(const struct request *rq, enum log_level *out, struct err *err)
{
    struct str level;

    if (!query(rq, STR("level"), &level))
        return true;
    for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
        if (str_eq(level, level_name[i])) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return err_set(err, ERR_INVALID, "'level' must be debug, info, warn or error");
}

static bool logs_decode(const struct request *rq, struct event_filter *filter, struct logs_want *want, struct err *err)
{
    uint64_t cursor_ms = 0, limit = LOGS_MOST;
    struct str direction = STR("backward");

    if (!query_check(rq, err) || !query_number(rq, "cursor", 0, MS_MOST, &cursor_ms, err) ||
        !query_number(rq, "limit", 0, LOGS_MOST, &limit, err) || !level_decode(rq, &want->least, err))
        return false;
    (void)!query(rq, STR("direction"), &direction);
    filter->oldest_first = str_eq(direction, STR("forward"));
    if (!filter->oldest_first && !str_eq(direction, STR("backward")))
        return err_set(err, ERR_INVALID, "'direction' must be forward or backward");
    if (query(rq, STR("search"), &want->search) && want->search.len > SEARCH_BYTES)
        return err_set(err, ERR_INVALID, "'search' is longer than %d bytes", SEARCH_BYTES);
    int64_t cursor_us = (int64_t)cursor_ms * 1000, now_us = clock_wall_us();
    if (filter->oldest_first) {
        filter->from_us = cursor_us ? cursor_us : now_us - WINDOW_US;
    } else {
        filter->to_us = cursor_us ? cursor_us + 999 : now_us;
        filter->from_us = MAX(filter->to_us - WINDOW_US, INT64_C(0));
    }
    /* A search looks through all lines, so the request's limit does not apply here. */
    filter->limit = LOGS_MOST;
    want->limit = (size_t)limit;
    return true;
}

static bool contains(struct str text, struct str part)
{
    return part.len == 0 || memmem(text.at, text.len, part.at, part.len);
}

static bool is_wanted(const struct log_line *line, const struct logs_want *want)
{
    bool is_found = contains(line->message, want->search);

    for (size_t i = 0; i < line->field_count; i++)
        is_found |= contains(line->fields[i].value, want->search);
    return is_found && line->level >= want->least;
}

void api_sandbox_logs_v2(struct request *rq)
{
    struct event_filter filter = { .types = LOGGED_EVENTS };
    struct logs_want want = { .search = STR("") };
    struct log_line *lines;
    size_t count, written = 0;
    struct err err;

    if (!path_id(rq, &filter.sandbox_id))
        return;
    if (!logs_decode(rq, &filter, &want, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    if (!lines_of(rq, &filter, &lines, &count, &err)) {
        reply_err(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_array(&json, "logs");
    for (size_t i = 0; i < count && written < want.limit; i++) {
        if (!is_wanted(&lines[i], &want))
            continue;
        entry_encode(&json, &lines[i]);
        written++;
    }
    json_out_end(&json);
    json_out_end(&json);
}
