/*
 * files_common.h - what download and upload share.
 */
#ifndef GUEST_FILES_COMMON_H
#define GUEST_FILES_COMMON_H

#include "guest/guest.h"

struct files_request {
    struct guest *guest;
    struct http_exchange *ex;
    struct str path; /* of the query, as it came; empty if absent */
    bool has_path;
    struct user user;
};

/*
 * Reads the query, checks the token or signature, and finds the user. False if it was answered: 401 or 400. `operation`
 * is "read" or "write", as signed links name it.
 */
bool files_begin(struct files_request *request, struct guest *guest, struct http_exchange *ex, struct str operation);
bool files_take_user(struct files_request *request);

#endif
