/*
 * dns.h - DNS messages: a guest's question, our answer to it; our question to a server, its answer to us.
 *
 * No byte of a server's message is handed on: an answer is decoded into records, and what a guest gets is written anew
 * from them. Decoding is strict. Names are text in lower case without a trailing dot ("" is the root), made of letters,
 * digits, '-' and '_'; a question for another name is answered DNS_REFUSED, a record with one is left out. Only types with
 * a layout that we know are decoded: HTTPS and SVCB are not, because they carry addresses and keys of their own.
 *
 * Pure: no I/O, no clock.
 */
#ifndef WIRE_DNS_H
#define WIRE_DNS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

enum dns_type {
    DNS_A = 1,
    DNS_NS = 2,
    DNS_CNAME = 5,
    DNS_SOA = 6,
    DNS_PTR = 12,
    DNS_MX = 15,
    DNS_TXT = 16,
    DNS_AAAA = 28,
    DNS_SRV = 33,
    DNS_OPT = 41,
    DNS_SSHFP = 44,
    DNS_TLSA = 52,
    DNS_SVCB = 64,
    DNS_HTTPS = 65,
    DNS_META_FIRST = 128, /* from here to DNS_META_LAST: not records, but things to do (AXFR, ANY, TSIG) */
    DNS_ANY = 255,
    DNS_META_LAST = 255,
    DNS_CAA = 257,
};
/* A type that dns_answer_parse() decodes. */
bool dns_type_is_known(uint16_t type);

enum dns_code {
    DNS_FINE = 0,
    DNS_FORMAT_ERROR = 1,
    DNS_SERVER_FAILURE = 2,
    DNS_NO_SUCH_NAME = 3,
    DNS_NOT_IMPLEMENTED = 4,
    DNS_REFUSED = 5,
    DNS_BAD_VERSION = 16, /* of EDNS */
};

enum {
    DNS_NAME_TEXT = 254,     /* a name as text with its zero byte */
    DNS_UDP_BYTES = 512,     /* what everyone takes in one datagram */
    DNS_UDP_ROOM_MAX = 4096, /* more than this is not sent in one datagram, whatever the asker says */
    DNS_MESSAGE_MAX = 65535, /* over TCP, where two bytes of length come first */
};

/* ---- a guest's question, and our answer ---- */

struct dns_question {
    uint16_t id;
    uint16_t type;
    char name[DNS_NAME_TEXT];
    bool recursion_desired;
    bool has_edns;
    uint16_t udp_room;  /* bytes that the asker takes in one datagram */
    enum dns_code code; /* DNS_FINE, or what to answer at once */
    /* private: the question as it came, for the answer; letters keep their case, some resolvers check that */
    uint16_t raw_len;
    uint8_t raw[255 + 4];
};

enum dns_parse {
    DNS_PARSED, /* a question */
    DNS_WRONG,  /* to be answered with question->code, and without records */
    DNS_NOISE,  /* not to be answered: no head, or itself an answer */
};
enum dns_parse dns_question_parse(struct str message, struct dns_question *out) must_use;

struct dns_record {
    struct str name; /* whose record it is */
    uint16_t type;
    uint32_t ttl_s;
    uint8_t address[16]; /* A: the first four; AAAA: all */
    uint16_t numbers[3]; /* MX: preference; SRV: priority, weight, port */
    struct str target;   /* CNAME, NS, PTR, MX, SRV: a name; SOA: the first one */
    struct str mailbox;  /* SOA: the second one */
    struct str data;     /* TXT, CAA, TLSA, SSHFP: all of it; SOA: the last 20 bytes */
};

/* RFC 8914: why there is no better answer. Programs that know it (dig, systemd-resolved) print the text. */
enum dns_ede {
    DNS_EDE_NONE = -1,
    DNS_EDE_OTHER = 0,
    DNS_EDE_BLOCKED = 15,
    DNS_EDE_PROHIBITED = 18,
    DNS_EDE_NO_SERVER = 22,
    DNS_EDE_NETWORK = 23,
};

struct dns_answer {
    enum dns_code code;
    bool is_truncated; /* read from a server: there is nothing else in it; ask again over TCP */
    uint32_t ttl_s;    /* how long all of it holds: the least of its records, or what the zone says of "no" */
    uint32_t count;
    struct dns_record *records;
    enum dns_ede ede;  /* written only if the asker uses EDNS */
    struct str reason; /* with it; "" for none */
};

/* At most `room` bytes: what does not fit is left out, and the answer says so. `ttl_s` of the answer is not written. */
void dns_write_answer(struct buf *out, const struct dns_question *question, const struct dns_answer *answer,
                      size_t room);

/* ---- our question, and a server's answer ---- */

void dns_write_question(struct buf *out, uint16_t id, struct str name, uint16_t type);

/*
 * The answer to the question (id, name, type): the chain of CNAMEs that begins at `name`, in order, and the records of the
 * type at its end. All else in the message is checked for its form and left out. ERR_INVALID: it is not an answer to that
 * question, or malformed. Records and text live in the arena.
 */
bool dns_answer_parse(struct str message, uint16_t id, struct str name, uint16_t type, struct arena *arena,
                      struct dns_answer *out, struct err *err) must_use;

#endif
