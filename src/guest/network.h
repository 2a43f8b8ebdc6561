/*
 * network.h - tells the programs in a sandbox that it has no network.
 *
 * A template is made for sandboxes with a network. Without one, a name look-up in it fails as "try again", and programs
 * believe that: apt tries for 7 seconds, pip for 8, npm for 71. So guestd writes into /etc that names come from
 * /etc/hosts alone and that apt does not retry, and gives every process variables that keep pip and npm from retrying.
 * With a network it does nothing.
 *
 * Failure    Only logged, for each file: the sandbox works without, its programs just learn it more slowly.
 */
#ifndef GUEST_NETWORK_H
#define GUEST_NETWORK_H

#include "base/buf.h"
#include "wire/guestlink.h"

/* For every process of a sandbox without a network. A variable of that name that the caller has set wins. */
enum { NETWORK_NONE_ENVS = 2 };
extern const struct guestlink_env network_none_envs[NETWORK_NONE_ENVS];

/* Changes nsswitch.conf, resolv.conf, motd and apt's configuration in `etc`, normally "/etc". Links are replaced. */
void network_tell_none(const char *etc);

/* nsswitch.conf with `hosts: files` in place of what it says on hosts; exposed for tests. */
void network_nsswitch_without_dns(struct str text, struct buf *out);

#endif
