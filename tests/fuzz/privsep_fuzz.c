/*
 * What crosses between our processes, decoded as keeper and front decode it. What decodes must encode to the same bytes.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "isolation/native/cgroup.h"
#include "isolation/native/state.h"
#include "isolation/native/usage.h"
#include "isolation/ops.h"
#include "isolation/plan.h"
#include "isolation/stats.h"
#include "privsep/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const struct buf *out, struct str in)
{
    if (!str_eq(buf_str(out), in))
        abort();
}

static void try_head(struct str bytes)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct unpack in = unpack_from(bytes);
    struct message_head head;

    message_unpack_head(&in, &head);
    if (in.failed)
        return;
    message_pack_head(&out, &head);
    check_same(&out, str_of(bytes.at, MESSAGE_HEAD_BYTES));
}

static void try_err(struct str bytes)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct unpack in = unpack_from(bytes);
    struct err err, why;

    message_unpack_err(&in, &err);
    if (err.kind == ERR_NONE)
        abort(); /* would read as success */
    if (!unpack_done(&in, &why))
        return;
    message_pack_err(&out, &err);
    check_same(&out, bytes);
    (void)err_text(&err);
}

static void try_plan(struct str bytes)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct unpack in = unpack_from(bytes);
    struct plan plan;
    struct err why;

    plan_unpack(&in, &plan);
    if (!unpack_done(&in, &why))
        return;
    plan_pack(&out, &plan);
    check_same(&out, bytes);
    if (plan_check(&plan, &why) && (strchr(plan.id, '/') || strchr(plan.hostname, '/')))
        abort();
}

static void try_id(struct str bytes)
{
    struct unpack in = unpack_from(bytes);
    char id[LIMIT_ID_BYTES];

    message_unpack_id(&in, id);
    if (strchr(id, '/') || strchr(id, '.'))
        abort();
}

/* The asking, and behind it the figures. */
static void try_stats(struct str bytes)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct unpack in = unpack_from(bytes);
    struct held asked[LIMIT_STATS];
    struct stats stats[LIMIT_STATS];
    uint32_t asked_count, count;
    struct err why;

    stats_unpack_ask(&in, asked, &asked_count);
    if (in.failed)
        return;
    stats_unpack(&in, asked, asked_count, stats, &count);
    if (!unpack_done(&in, &why))
        return;
    stats_pack_ask(&out, asked, asked_count);
    stats_pack(&out, stats, count);
    check_same(&out, bytes);
}

/* A message type, a request for the driver, and behind it the answer. */
static void try_op(struct str bytes)
{
    auto_buf struct buf out = buf_make(NULL, 2 * LIMIT_MESSAGE_BYTES);
    auto_op_answer struct op_answer answer = OP_ANSWER_NONE;
    struct op_ask ask;
    struct err why;

    if (!bytes.len)
        return;
    const struct op *op = op_of((enum message_type)((unsigned char)bytes.at[0] % MESSAGE_TYPE_END));
    struct unpack in = unpack_from(str_of(bytes.at + 1, bytes.len - 1));
    if (!op)
        return;
    op_unpack_ask(op, &in, &ask);
    if (in.failed)
        return;
    op_unpack_answer(op, &in, &ask, &answer);
    if (!unpack_done(&in, &why))
        return;
    op_pack_ask(op, &out, &ask);
    op_pack_answer(op, &out, &answer);
    check_same(&out, str_of(bytes.at + 1, bytes.len - 1));
}

/* Not a message, but read back from a disk where a guest's files lie next door. */
static void try_texts(struct str bytes)
{
    struct cgroup_report *report = NEW(struct cgroup_report);
    struct state state;
    struct err why;
    uint64_t ticks;
    struct usage_process process;

    (void)!state_parse(bytes, &state, &why);
    (void)!state_start_time(bytes, &ticks);
    (void)!usage_field(bytes, STR("cache"), &ticks);
    (void)!usage_process_parse(bytes, &process);
    cgroup_read_report(bytes, bytes, bytes, report);
    free(report);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > LIMIT_MESSAGE_BYTES)
        return 0;
    struct str rest = str_of(data + 1, size - 1);
    switch (data[0] % 7) {
    case 0:
        try_head(rest);
        break;
    case 1:
        try_err(rest);
        break;
    case 2:
        try_plan(rest);
        break;
    case 3:
        try_id(rest);
        break;
    case 4:
        try_texts(rest);
        break;
    case 5:
        try_stats(rest);
        break;
    case 6:
        try_op(rest);
        break;
    }
    return 0;
}
