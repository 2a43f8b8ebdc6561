/*
 * watch.h - changes below a directory, by inotify.
 */
#ifndef GUEST_WATCH_H
#define GUEST_WATCH_H

#include "guest/guest.h"

struct watchers *watchers_new(struct guest *guest) must_use;
void watchers_free(struct watchers *watchers);

#endif
