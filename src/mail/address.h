/*
 * address.h - one address of an outgoing message, parsed strictly.
 *
 *   a@b.example        Name <a@b.example>        "Last, First" <a@b.example>
 *
 * The part before @ is a dot-atom in ASCII (RFC 5322); quoted ones are refused. A domain in other letters becomes its
 * A-labels (IDNA 2008). No groups, comments, routes or address literals: what is not plainly one address is refused,
 * because two programs might read it differently.
 */
#ifndef MAIL_ADDRESS_H
#define MAIL_ADDRESS_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"

struct address {
    struct str name;   /* UTF-8, may be empty */
    struct str bare;   /* local@domain, domain in lower-case A-labels */
    struct str domain; /* of bare */
};

/* ERR_INVALID names the field ("to"). */
bool mail_address_parse(struct str text, const char *field, struct arena *arena, struct address *out, struct err *err)
    must_use;
/* "Name <bare>", with quotes where the name needs them. */
struct str address_shown(struct arena *arena, const struct address *address);
/* As it is in DNS: lower-case A-labels; as it was given where that is not possible. An A-label stays, valid or not. */
struct str address_domain_wire(struct arena *arena, struct str domain);
/* The domain in its own letters, for people; the A-labels where that is not possible. */
struct str address_domain_shown(struct arena *arena, struct str domain);

/* A text of a draft that becomes a header: UTF-8, no control character but tab. ERR_INVALID names the field. */
bool header_text_check(struct str text, const char *field, struct err *err) must_use;

#endif
