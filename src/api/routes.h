/*
 * routes.h - the table that the router, the docs and the tests walk.
 */
#ifndef API_ROUTES_H
#define API_ROUTES_H

enum route_flags {
    NEEDS_KEY = 1,   /* an API key, or the admin token in its place */
    NEEDS_ADMIN = 2, /* the admin token */
    ON_LOOP = 4,     /* never waits: answered on the loop */
    NOT_YET = 8,     /* upstream has it, we do not: 501 that says so */
    STARTS = 16,     /* waits for a sandbox to start: in the lane for that */
};

#endif
