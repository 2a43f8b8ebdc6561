/*
 * front.h - what keeper and front agree on besides the messages.
 */
#ifndef DAEMON_FRONT_H
#define DAEMON_FRONT_H

#include "privsep/role.h"

/* The descriptors that front is spawned with, after the channel. */
enum front_fd {
    FRONT_SETTINGS_FD = ROLE_FIRST_FD, /* settings.h */
    FRONT_LISTEN_FD,                   /* listening */
    FRONT_STORE_FD,                    /* the directory of the database */
    FRONT_FD_END,
};

#endif
