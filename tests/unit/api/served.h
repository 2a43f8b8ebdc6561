/*
 * served.h - the API on a loopback port, over a rig: what the tests of api/ talk to.
 */
#ifndef TESTS_API_SERVED_H
#define TESTS_API_SERVED_H

#include <stdio.h>

#include "../sandbox/rig.h"
#include "api/api.h"
#include "wire/json.h"

struct served {
    struct rig rig;
    struct actions actions;
    struct secret admin_hash;
    struct api *api;
    struct http_server *server;
    const char *domain;
    uint32_t requests_per_s; /* of a key; 0: no limit */
    bool internet_is_off;    /* the operator's default */
    char address[32];
    char key[STORE_KEY_CHARS + 1];
    struct json_t *last; /* the answer's JSON, ours */
};

void served_make(struct served *s); /* with a key and the template "base" (id tbase) */
void served_start(struct served *s);
void served_stop(struct served *s); /* as if the process had died */
void served_drop(struct served *s);
/* For cmocka: a served that is made, one that is started as well, and its end. */
int served_set_up_only(void **state);
int served_set_up(void **state);
int served_tear_down(void **state);

/* One request with the API key and these further fields; `body` NULL for none. */
struct http_answer served_call(struct served *s, const char *method, const char *target, const char *body,
                               const struct http_field *fields, size_t field_count);
#define CALL(s, method, target, body) served_call(s, method, target, body, NULL, 0)
#define CALL_WITH(s, method, target, body, ...)                                      \
    served_call(s, method, target, body, (const struct http_field[]){ __VA_ARGS__ }, \
                sizeof((const struct http_field[]){ __VA_ARGS__ }) / sizeof(struct http_field))
/* The same without a key. */
struct http_answer served_call_bare(struct served *s, const char *method, const char *target, const char *body,
                                    const struct http_field *fields, size_t field_count);

/* The last answer's JSON: a text, a number, or the thing itself. */
const char *got_text(struct served *s, const char *name);
int64_t got_int(struct served *s, const char *name);
int64_t got_time(struct served *s, const char *name);

/* An error as both SDKs need it: the status, and code and message in the body. */
void check_error(struct served *s, const struct http_answer *answer, unsigned status, const char *in_message);
const char *answer_header(struct served *s, const struct http_answer *answer, const char *name); /* NULL if absent */

/* A connected socket, for requests that no client library would send. */
int served_connect(struct served *s);
/* Sends it and returns all that comes back until the server closes. */
const char *served_raw(struct served *s, struct str bytes);

/* "/sandboxes/", an id, "/timeout": a path in the arena. */
const char *served_path(struct served *s, const char *before, const char *id, const char *after);
/* Creates one and returns its id. */
const char *served_create(struct served *s, const char *body);

#endif
