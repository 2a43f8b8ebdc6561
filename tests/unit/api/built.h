/*
 * built.h - the API with uploads and a builder of the test's own, which records what it is asked and builds nothing.
 */
#ifndef TESTS_API_BUILT_H
#define TESTS_API_BUILT_H

#include "actions/build.h"
#include "served.h"

struct built {
    struct served served; /* first: tests of api/ take it for one */
    char dir[64];
    int starts, cancels;
    struct build_want want; /* of the last start; texts are in the rig's arena */
    char cancelled[STORE_UUID_BYTES], why[64];
    int prunes;
    char pruned_team[STORE_UUID_BYTES]; /* of the last prune */
    bool was_dry, removed_downloads;
    struct err refuse; /* what the next start fails with; ERR_NONE: it does not */
};

int built_set_up(void **state);
int built_tear_down(void **state);

/* A registered build: the ids of the last answer. */
struct built_ids {
    const char *template_id, *build_id;
};
struct built_ids built_register(struct built *b, const char *body);
struct http_answer built_start(struct built *b, struct built_ids ids, const char *body);
/* As the builder would: with one layer, or with a reason. */
void built_finish(struct built *b, struct built_ids ids);
void built_fail(struct built *b, struct built_ids ids, const char *reason, const char *step);
/* Registered, started and ready. */
struct built_ids built_make(struct built *b, const char *body);
/* A key of another team, whose slug is this. */
const char *built_stranger(struct built *b, const char *slug);
struct http_answer built_as(struct built *b, const char *key, const char *method, const char *target, const char *body);
const char *built_path(struct built *b, const char *format, ...) printf_like(2, 3);

#endif
