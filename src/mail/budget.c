#include "mail/budget.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "base/attr.h"

enum { CHECK_EVERY = 16 }; /* allocations between two looks at the clock */

struct budget_piece {
    alignas(max_align_t) struct budget_piece *next;
    struct budget_piece **at; /* what points here */
    size_t size;
};

void budget_init(struct budget *b, size_t bytes, unsigned ms)
{
    *b = (struct budget){ .left = bytes, .end = clock() + (clock_t)ms * CLOCKS_PER_SEC / 1000 };
}

void *budget_alloc(struct budget *b, size_t size)
{
    struct budget_piece *piece;

    if (size > b->left || (++b->calls % CHECK_EVERY == 0 && clock() > b->end))
        longjmp(b->out, 1);
    piece = malloc(sizeof *piece + size);
    if (!piece)
        longjmp(b->out, 1);
    b->left -= size; /* what is freed does not count again: the budget bounds work, too */
    piece->next = b->pieces;
    piece->at = &b->pieces;
    piece->size = size;
    if (b->pieces)
        b->pieces->at = &piece->next;
    b->pieces = piece;
    return piece + 1;
}

void *budget_grow(struct budget *b, void *old, size_t size)
{
    void *grown = budget_alloc(b, size);

    if (old) {
        memcpy(grown, old, MIN(((struct budget_piece *)old - 1)->size, size));
        budget_free(old);
    }
    return grown;
}

void budget_free(void *at)
{
    struct budget_piece *piece = at;

    if (!at)
        return;
    piece--;
    *piece->at = piece->next;
    if (piece->next)
        piece->next->at = piece->at;
    free(piece);
}

void budget_done(struct budget *b)
{
    for (struct budget_piece *piece = b->pieces, *next; piece; piece = next) {
        next = piece->next;
        free(piece);
    }
    b->pieces = NULL;
}
