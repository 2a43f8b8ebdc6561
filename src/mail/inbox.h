/*
 * inbox.h - the worker of one inbox: opens its file and answers front's calls until the connection ends.
 *
 * Runs in the role "inbox": one process for one inbox, whose uid owns the directory. It can open nothing else and has no
 * other connection. The first frame of a connection is front's greeting (the inbox's id, and the inbox's own key that is
 * derived from the server's secret); then each request frame gets one reply frame.
 */
#ifndef MAIL_INBOX_H
#define MAIL_INBOX_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"

/* `fd`: the connection. The current directory is the inbox's. True: front closed the connection. */
bool inbox_serve(int fd, struct err *err) must_use;

#endif
