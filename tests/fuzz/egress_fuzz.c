/*
 * What egress reads besides DNS: the name in a client's first bytes. And what front reads from egress: FLOWS. The first
 * byte chooses.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "egress/flows.h"
#include "egress/name.h"
#include "policy/net_policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum name_found find_at_once(struct str bytes, char out[LIMIT_NET_NAME_BYTES + 1])
{
    return name_find(&(struct name_search){ 0 }, bytes, out);
}

/*
 * A name that was found stays the same when more bytes come, and so does "there is none". It is found as soon as it is
 * there, also byte by byte.
 */
static void try_name(struct str bytes)
{
    char first[LIMIT_NET_NAME_BYTES + 1], later[LIMIT_NET_NAME_BYTES + 1];
    struct name_search search = { 0 };
    enum name_found found = NAME_MORE;
    size_t len = 0;

    while (found == NAME_MORE && len < bytes.len)
        found = name_find(&search, str_of(bytes.at, ++len), first);
    if (found == NAME_FOUND && !net_name_is_valid(str_from(first)))
        abort();
    if (find_at_once(str_of(bytes.at, len - (found != NAME_MORE)), later) == NAME_FOUND)
        abort();
    if (found == NAME_MORE)
        return;
    if (find_at_once(bytes, later) != found || (found == NAME_FOUND && strcmp(first, later) != 0))
        abort();
}

static void pack_again(void *context, const struct flows_record *record)
{
    flows_pack(context, record);
}

static void try_flows(struct str bytes)
{
    auto_buf struct buf out = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct err err;

    if (flows_unpack(bytes, pack_again, &out, &err) && !str_eq(buf_str(&out), bytes))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > LIMIT_MESSAGE_BYTES)
        return 0;
    if (data[0] & 1)
        try_name(str_of(data + 1, size - 1));
    else
        try_flows(str_of(data + 1, size - 1));
    return 0;
}
