/*
 * network.h - tells the programs in a sandbox whether it can reach anything outside.
 *
 * A template is made for sandboxes with internet access. Without it, a name look-up fails as "try again", and programs
 * believe that: apt tries for 7 seconds, pip for 8, npm for 71. So guestd writes into /etc that names come from
 * /etc/hosts alone, that apt, pip and npm do not retry, and why. apt, pip, npm and git get a host in place of the usual
 * ones whose name is the reason, because the host is what their errors show. Services of the sandbox on 127.0.0.1 and
 * localhost are reached as before. The files that were there are kept beside them, in .cloister-network, and come back
 * when the sandbox may reach something again; a file that was changed meanwhile stays, without our lines.
 *
 * With internet access there is one thing to see to: resolv.conf must name a server that is not the sandbox itself.
 * Which one does not matter, because every question leads to the server's own resolver.
 *
 * Failure    Only logged, for each file: the sandbox works without, its programs just learn it more slowly.
 */
#ifndef GUEST_NETWORK_H
#define GUEST_NETWORK_H

#include <stdbool.h>

#include "base/buf.h"
#include "wire/guestlink.h"

/*
 * Makes the files in `etc`, normally "/etc", say what is the case. Saying the same again changes nothing.
 *   without  nsswitch.conf, resolv.conf, motd and a file of apt's are replaced, links too. pip.conf and npmrc (Debian's npm
 *            reads /etc/npmrc) are written unless they are there. gitconfig gets more lines
 *   inside   the same for a sandbox that reaches names that stay inside: `inside` has them, a line each. nsswitch.conf stays
 *            and resolv.conf names egress, which answers "no such name" to all others at once. These names are left as
 *            they are for apt and git, and for pip and npm if one is where they fetch from
 *   with     those are taken back, and resolv.conf gets a server before its lines if it names none but this sandbox
 * What the files say is the guest's, and so are their names: nothing is waited for, files have a largest size, and no link
 * is followed out of `etc`. A gitconfig or nsswitch.conf that is such a link is left alone.
 */
void network_tell(const char *etc, enum guestlink_reach reach, struct str inside);

/*
 * A new file in place of the old one, with its owner and mode (0644 if there was none): a reader sees one of the two. Not
 * if its directory does not exist.
 */
bool network_replace(int dir_fd, const char *name, struct str text, struct err *err) must_use;

/* nsswitch.conf with `hosts: files` in place of what it says on hosts; exposed for tests. */
void network_nsswitch_without_dns(struct str text, struct buf *out);
/* Does this resolv.conf name a server outside? Exposed for tests. */
bool network_has_nameserver(struct str text);

#endif
