/*
 * What sandboxes use. Times are whole seconds, and the end's second is included. Some releases of the Python SDK send
 * milliseconds instead. The number tells: milliseconds of any day since 1978 are larger than the largest second we
 * accept.
 */
#include "api/request.h"

enum { BATCH_MOST = 100 };

static const uint64_t SECONDS_MOST = UINT64_C(253402300799); /* the end of the year 9999 */

static void percent_encode_into(struct json_out *json, const char *name, double percent)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%.2f", percent);

    json_out_raw(json, name, str_of(text, (size_t)len));
}

static void metric_encode(struct json_out *json, const struct sandbox_metric *metric)
{
    time_encode(json, "timestamp", metric->at_us);
    json_out_int(json, "timestampUnix", metric->at_us / 1000000);
    json_out_int(json, "cpuCount", metric->cpu_count);
    percent_encode_into(json, "cpuUsedPct", metric->cpu_percent);
    json_out_int(json, "memUsed", (int64_t)metric->memory_used_bytes);
    json_out_int(json, "memTotal", (int64_t)metric->memory_total_bytes);
    json_out_int(json, "memCache", (int64_t)metric->memory_cache_bytes);
    json_out_int(json, "diskUsed", (int64_t)metric->disk_used_bytes);
    json_out_int(json, "diskTotal", (int64_t)metric->disk_total_bytes);
    /* Ours, beside upstream's: totals of its network. */
    json_out_int(json, "networkBytesIn", (int64_t)metric->traffic.bytes_in);
    json_out_int(json, "networkBytesOut", (int64_t)metric->traffic.bytes_out);
    json_out_int(json, "networkConnections", metric->traffic.connections);
    json_out_int(json, "networkOpen", metric->traffic.open);
    json_out_int(json, "networkRefused", metric->traffic.refusals);
}

struct instant {
    int64_t at_us;    /* 0: not given */
    int64_t width_us; /* a second, or a thousandth */
};

static bool instant_decode(const struct request *rq, const char *name, struct instant *out, struct err *err)
{
    uint64_t number = 0;

    if (!query_number(rq, name, 0, SECONDS_MOST * 1000, &number, err))
        return false;
    out->width_us = number > SECONDS_MOST ? 1000 : 1000000;
    out->at_us = (int64_t)number * out->width_us;
    return true;
}

bool span_decode(const struct request *rq, int64_t *out_start_us, int64_t *out_end_us, struct err *err)
{
    struct instant start, end;

    if (!query_check(rq, err) || !instant_decode(rq, "start", &start, err) || !instant_decode(rq, "end", &end, err))
        return false;
    if (end.at_us && start.at_us > end.at_us)
        return err_set(err, ERR_INVALID, "'start' is after 'end'");
    *out_start_us = start.at_us;
    *out_end_us = end.at_us ? end.at_us + end.width_us - 1 : 0;
    return true;
}

void api_sandbox_metrics(struct request *rq)
{
    struct sandbox_metric *metrics;
    int64_t start_us, end_us;
    struct str id;
    size_t count;
    struct err err;

    if (!path_id(rq, &id))
        return;
    if (!span_decode(rq, &start_us, &end_us, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    action_sandbox_metrics(rq->actions, &rq->caller, id, start_us, end_us, rq->arena, &metrics, &count);
    struct json_out json = reply_json(rq, 200);
    json_out_array(&json, NULL);
    for (size_t i = 0; i < count; i++) {
        json_out_object(&json, NULL);
        metric_encode(&json, &metrics[i]);
        json_out_end(&json);
    }
    json_out_end(&json);
}

/* ---- several at once ---- */

static bool ids_decode(const struct request *rq, struct str out_ids[BATCH_MOST], size_t *out_count, struct err *err)
{
    struct str list, part;
    size_t count = 0;

    if (!query_check(rq, err))
        return false;
    if (!query(rq, STR("sandbox_ids"), &list))
        return err_set(err, ERR_INVALID, "'sandbox_ids' is required: up to %d ids, separated by commas", BATCH_MOST);
    while (str_cut(&list, ',', &part)) {
        if (count == BATCH_MOST)
            return err_set(err, ERR_INVALID, "'sandbox_ids' has more than %d ids", BATCH_MOST);
        if (!sandbox_id_decode(part, &out_ids[count], err))
            return false;
        for (size_t i = 0; i < count; i++)
            if (str_eq(out_ids[i], out_ids[count]))
                return err_set(err, ERR_INVALID, "'sandbox_ids' has the same id twice");
        count++;
    }
    *out_count = count;
    return true;
}

void api_sandbox_metrics_batch(struct request *rq)
{
    struct str ids[BATCH_MOST];
    struct sandbox_metric metric;
    size_t count;
    struct err err;

    if (!ids_decode(rq, ids, &count, &err)) {
        reply_invalid(rq, &err);
        return;
    }
    struct json_out json = reply_json(rq, 200);
    json_out_object(&json, NULL);
    json_out_object(&json, "sandboxes");
    for (size_t i = 0; i < count; i++) {
        if (!action_sandbox_metric_latest(rq->actions, &rq->caller, ids[i], &metric))
            continue;
        json_out_object(&json, arena_text(rq->arena, ids[i]));
        metric_encode(&json, &metric);
        json_out_end(&json);
    }
    json_out_end(&json);
    json_out_end(&json);
}
