/*
 * routes.h - the table that the router, the docs and the tests walk.
 */
#ifndef API_ROUTES_H
#define API_ROUTES_H

enum route_flags {
    NEEDS_KEY = 1,   /* an API key, or the admin token instead */
    NEEDS_ADMIN = 2, /* the admin token */
    ON_LOOP = 4,     /* never waits: answered on the loop */
    NOT_YET = 8,     /* upstream has it, we do not: answers 501 */
    STARTS = 16,     /* starts a sandbox: runs in the lane for starts */
    UPLOADS = 64,    /* no key but a signed link; its body is streamed */
    PAUSES = 32,     /* waits for a pause, a resume or a snapshot, or reads much: runs in the lane for those */
    CHANGES = 128,   /* changes a network, which must not wait for pauses: runs in a lane of its own */
};

#endif
