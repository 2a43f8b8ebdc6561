/*
 * model.h - what every harness starts with: values that CBMC chooses, and the oracle's checks as its assertions.
 *
 * The harness is compiled together with src/policy/mail_rules.c and src/mail/gate.c as they are; only base/err.c is
 * replaced, because texts of errors decide nothing.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "mail/gate.h"

#define ORACLE_CHECK(condition, text) __CPROVER_assert(condition, text)
#include "oracle.h"

/* Any value at all, also one that is none of the enum's. */
int nondet_int(void);
uint32_t nondet_u32(void);
struct gate_message nondet_message(void);
struct gate_input nondet_input(void);
struct oracle nondet_oracle(void);

/* A _Bool is 0 or 1 in compiled code; CBMC's any value could be another. */
#define ASSUME_BOOL(field) __CPROVER_assume(*(const unsigned char *)&(field) <= 1)

static inline struct gate_input some_input(void)
{
    struct gate_input in = nondet_input();

    ASSUME_BOOL(in.all_allowlisted);
    ASSUME_BOOL(in.scan_blocks);
    ASSUME_BOOL(in.is_composer);
    return in;
}

static inline struct gate_message some_message(void)
{
    struct gate_message m = nondet_message();

    ASSUME_BOOL(m.schedule_first);
    ASSUME_BOOL(m.approval.is_there);
    ASSUME_BOOL(m.approval.is_spent);
    return m;
}

static inline struct oracle some_oracle(void)
{
    struct oracle o = nondet_oracle();

    ASSUME_BOOL(o.has_yes);
    ASSUME_BOOL(o.was_sent);
    return o;
}

/* As mail_accept() makes it. */
static inline struct gate_message new_message(void)
{
    struct gate_message m = some_message();

    m.state = MAIL_SCAN;
    m.approval = (struct gate_approval){ 0 };
    __CPROVER_assume(m.hold_us > 0);
    return m;
}

/* base/err.c, without the text. */
void err_note(struct err *err, enum err_kind kind, const char *format, ...)
{
    (void)format;
    err->kind = kind;
}

#endif
