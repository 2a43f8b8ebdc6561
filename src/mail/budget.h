/*
 * budget.h - a library's memory and processor time, bounded from within.
 *
 * Parsers of HTML and Markdown take minutes for some inputs of a megabyte. They allocate all the time, so they allocate
 * through here: when the budget is used up, budget_alloc() leaves the library by longjmp() and the caller frees all that
 * it had.
 *
 *     if (setjmp(budget.out) == 0)
 *         … call the library …
 *     budget_done(&budget);
 */
#ifndef MAIL_BUDGET_H
#define MAIL_BUDGET_H

#include <setjmp.h>
#include <stddef.h>
#include <time.h>

struct budget_piece;

struct budget {
    jmp_buf out;
    /* private */
    struct budget_piece *pieces;
    size_t left; /* bytes */
    clock_t end;
    unsigned calls;
};

/* From now on; the time is the processor's. */
void budget_init(struct budget *budget, size_t bytes, unsigned ms);
/* Not zeroed; never NULL. */
void *budget_alloc(struct budget *budget, size_t size);
void *budget_grow(struct budget *budget, void *old, size_t size);
void budget_free(void *at); /* NULL is fine */
/* Frees everything. */
void budget_done(struct budget *budget);

#endif
