/*
 * start.h - runs a template's start command and waits until it is ready; for builds, and for creates without an image.
 */
#ifndef TEMPLATE_START_H
#define TEMPLATE_START_H

#include "template/inside.h"

struct starting {
    struct str sandbox_id;
    struct str start_cmd, ready_cmd; /* either may be empty */
    const struct chain *chain;       /* whose user, workdir and environment they have */
    uint64_t until_ms, most_ms;      /* the second is how long that is, for the error */
    void (*start_output)(void *context, enum run_stream stream, struct str bytes); /* these may be NULL */
    void (*ready_output)(void *context, enum run_stream stream, struct str bytes);
    bool (*goes_on)(void *context, struct err *err); /* asked a few times a second */
    void *context;
};
bool start_and_wait(struct sandboxes *sandboxes, const struct starting *want, struct err *err) must_use;
/* Without a ready command, a start command has some time. */
struct str ready_or_default(struct str start_cmd, struct str ready_cmd);

#endif
