#include "isolation/plan.h"

#include <string.h>

/* Sanity limits. The operator's limits (serve.h) are tighter. */
enum {
    CPU_MILLIS_MIN = 10,
    CPU_MILLIS_MAX = 1024 * 1000,
    PIDS_MIN = 4, /* a shell and what it runs */
    PIDS_MAX = 1 << 20,
};
#define MEMORY_MIN (8ull << 20) /* a shell needs as much to start */
#define MEMORY_MAX (64ull << 40)

static bool all_of(const char *text, const char *chars)
{
    return text[0] && text[strspn(text, chars)] == '\0';
}

bool plan_layer_id_valid(const char id[LAYER_ID_BYTES])
{
    return strnlen(id, LAYER_ID_BYTES) == LAYER_ID_BYTES - 1 && all_of(id, "0123456789abcdef");
}

bool plan_check(const struct plan *plan, struct err *err)
{
    if ((unsigned)plan->from >= PLAN_FROM_COUNT)
        return err_set(err, ERR_INVALID, "a sandbox cannot begin with %u", (unsigned)plan->from);
    if (plan->from == PLAN_IMAGE ? !plan_layer_id_valid(plan->image) : plan->image[0] != '\0')
        return err_set(err, ERR_INVALID,
                       "a sandbox that begins with a snapshot, and no other, names it by 64 hex digits");
    if (strnlen(plan->id, sizeof plan->id) == sizeof plan->id ||
        !all_of(plan->id, "abcdefghijklmnopqrstuvwxyz0123456789"))
        return err_set(err, ERR_INVALID, "the sandbox id must be made of a-z and 0-9");
    if (strnlen(plan->hostname, sizeof plan->hostname) == sizeof plan->hostname ||
        !all_of(plan->hostname, "abcdefghijklmnopqrstuvwxyz0123456789-.") || plan->hostname[0] == '-' ||
        plan->hostname[0] == '.')
        return err_set(err, ERR_INVALID, "the host name must be made of a-z, 0-9, - and .");
    if (plan->layer_count == 0 || plan->layer_count > LIMIT_LAYERS)
        return err_set(err, ERR_INVALID, "a sandbox needs 1 to %d layers, not %u", LIMIT_LAYERS, plan->layer_count);
    for (uint32_t i = 0; i < plan->layer_count; i++) {
        if (!plan_layer_id_valid(plan->layers[i]))
            return err_set(err, ERR_INVALID, "layer %u is not named by 64 hex digits", i);
        /* The kernel refuses one directory twice in an overlay, with an error that names neither. */
        for (uint32_t other = 0; other < i; other++)
            if (!strcmp(plan->layers[i], plan->layers[other]))
                return err_set(err, ERR_INVALID, "layers %u and %u are the same", other, i);
    }
    if (plan->memory_bytes < MEMORY_MIN || plan->memory_bytes > MEMORY_MAX)
        return err_set(err, ERR_INVALID, "memory must be at least %llu MiB", MEMORY_MIN >> 20);
    if (plan->cpu_millis < CPU_MILLIS_MIN || plan->cpu_millis > CPU_MILLIS_MAX)
        return err_set(err, ERR_INVALID, "CPU must be %d to %d thousandths", CPU_MILLIS_MIN, CPU_MILLIS_MAX);
    if (plan->pids < PIDS_MIN || plan->pids > PIDS_MAX)
        return err_set(err, ERR_INVALID, "the process limit must be %d to %d", PIDS_MIN, PIDS_MAX);
    return true;
}

void plan_pack(struct buf *out, const struct plan *plan)
{
    pack_u8(out, (uint8_t)plan->from);
    pack_str(out, str_from(plan->image));
    pack_str(out, str_from(plan->id));
    pack_str(out, str_from(plan->hostname));
    pack_u32(out, plan->layer_count);
    for (uint32_t i = 0; i < plan->layer_count; i++)
        pack_str(out, str_from(plan->layers[i]));
    pack_u64(out, plan->memory_bytes);
    pack_u32(out, plan->cpu_millis);
    pack_u32(out, plan->pids);
}

void plan_unpack(struct unpack *in, struct plan *out_plan)
{
    memset(out_plan, 0, sizeof *out_plan);
    uint8_t from = unpack_u8(in);
    if (from < PLAN_FROM_COUNT)
        out_plan->from = (enum plan_from)from;
    else
        in->failed = true;
    unpack_text(in, out_plan->image, sizeof out_plan->image);
    unpack_text(in, out_plan->id, sizeof out_plan->id);
    unpack_text(in, out_plan->hostname, sizeof out_plan->hostname);
    out_plan->layer_count = unpack_count(in, LIMIT_LAYERS);
    for (uint32_t i = 0; i < out_plan->layer_count; i++)
        unpack_text(in, out_plan->layers[i], sizeof out_plan->layers[i]);
    out_plan->memory_bytes = unpack_u64(in);
    out_plan->cpu_millis = unpack_u32(in);
    out_plan->pids = unpack_u32(in);
}
