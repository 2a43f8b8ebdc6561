/*
 * network.h - tells the programs in a sandbox that it has no network.
 *
 * A template is made for sandboxes with a network. Without one, a name look-up in it fails as "try again", and programs
 * believe that: apt tries for 7 seconds, pip for 8, npm for 71. So guestd writes into /etc that names come from
 * /etc/hosts alone, and that apt, pip and npm do not retry. With a network it does nothing.
 *
 * Failure    Only logged, for each file: the sandbox works without, its programs just learn it more slowly.
 */
#ifndef GUEST_NETWORK_H
#define GUEST_NETWORK_H

#include "base/buf.h"

/*
 * Writes nsswitch.conf, resolv.conf, motd and a file of apt's in `etc`, normally "/etc"; links are replaced. Writes
 * pip.conf and npmrc too, unless they are there: Debian's npm reads /etc/npmrc.
 */
void network_tell_none(const char *etc);

/* nsswitch.conf with `hosts: files` in place of what it says on hosts; exposed for tests. */
void network_nsswitch_without_dns(struct str text, struct buf *out);

#endif
