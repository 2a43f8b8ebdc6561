#include "guest/output.h"

#include <assert.h>
#include <stdlib.h>

#include "base/attr.h"
#include "base/mem.h"

struct output_block {
    uint64_t offset;      /* of its first byte */
    uint64_t cost_before; /* of all blocks ever added before it: the difference of two is the cost of those between */
    enum output_stream stream;
    uint32_t len, room;
    char bytes[];
};

/* guestd has one loop and one thread that touches output. */
static size_t total_cost;

enum { LEAST_BLOCK_BYTES = 512 };

static size_t cost_of(const struct output_block *block)
{
    return sizeof *block + block->room;
}

static struct output_block *block_at(const struct output *output, size_t i)
{
    return output->blocks[(output->first + i) & (output->room - 1)];
}

static void drop_oldest(struct output *output)
{
    struct output_block *oldest = block_at(output, 0);

    output->begin = oldest->offset + oldest->len;
    output->cost -= cost_of(oldest);
    total_cost -= cost_of(oldest);
    output->first = (output->first + 1) & (output->room - 1);
    output->count--;
    free(oldest);
}

void output_done(struct output *output)
{
    while (output->count)
        drop_oldest(output);
    free(output->blocks);
    output->blocks = NULL;
    output->first = output->room = 0;
}

static void push(struct output *output, struct output_block *block)
{
    if (output->count == output->room) {
        size_t room = output->room ? 2 * output->room : 8;
        struct output_block **blocks = mem_new(room * sizeof *blocks);
        for (size_t i = 0; i < output->count; i++)
            blocks[i] = block_at(output, i);
        free(output->blocks);
        output->blocks = blocks;
        output->first = 0;
        output->room = room;
    }
    output->blocks[(output->first + output->count) & (output->room - 1)] = block;
    output->count++;
    output->cost += cost_of(block);
    total_cost += cost_of(block);
}

void output_add(struct output *output, enum output_stream stream, struct str bytes, size_t cap)
{
    struct output_block *last = output->count ? block_at(output, output->count - 1) : NULL;

    assert(bytes.len <= OUTPUT_BLOCK_BYTES);
    /* Fill up the last block first, so that a program that prints byte by byte does not use a block for each byte. */
    if (last && last->stream == stream && last->len < last->room) {
        size_t take = MIN(bytes.len, (size_t)(last->room - last->len));
        memcpy(last->bytes + last->len, bytes.at, take);
        last->len += (uint32_t)take;
        output->end += take;
        bytes.at += take;
        bytes.len -= take;
    }
    if (!bytes.len)
        return;
    size_t room = last && last->stream == stream ? 2 * (size_t)last->room : LEAST_BLOCK_BYTES;
    room = MIN(MAX(room, bytes.len), (size_t)OUTPUT_BLOCK_BYTES);
    struct output_block *block = mem_new(sizeof *block + room);
    block->offset = output->end;
    block->cost_before = last ? last->cost_before + cost_of(last) : 0;
    block->stream = stream;
    block->room = (uint32_t)room;
    block->len = (uint32_t)bytes.len;
    memcpy(block->bytes, bytes.at, bytes.len);
    while (output->count && output->cost + cost_of(block) > cap)
        drop_oldest(output);
    push(output, block);
    output->begin = block_at(output, 0)->offset;
    output->end += bytes.len;
}

/* The block that holds offset; begin <= offset < end. */
static const struct output_block *find(const struct output *output, uint64_t offset)
{
    size_t low = 0, high = output->count - 1;

    while (low < high) {
        size_t middle = (low + high + 1) / 2;
        if (block_at(output, middle)->offset <= offset)
            low = middle;
        else
            high = middle - 1;
    }
    return block_at(output, low);
}

bool output_read(const struct output *output, uint64_t *offset, enum output_stream *out_stream, struct str *out_bytes)
{
    if (*offset < output->begin)
        *offset = output->begin;
    if (*offset >= output->end || !output->count)
        return false;
    const struct output_block *block = find(output, *offset);
    size_t at = (size_t)(*offset - block->offset);
    *out_stream = block->stream;
    *out_bytes = str_of(block->bytes + at, block->len - at);
    return true;
}

size_t output_unread(const struct output *output, uint64_t offset)
{
    if (!output->count || offset >= output->end)
        return 0;
    const struct output_block *last = block_at(output, output->count - 1);
    const struct output_block *from = find(output, MAX(offset, output->begin));
    return (size_t)(last->cost_before + cost_of(last) - from->cost_before);
}

size_t output_total(void)
{
    return total_cost;
}
