/*
 * zygote.h - how guestd asks the template's zygote outside for a warm interpreter.
 *
 * On one end of a SOCK_SEQPACKET pair that keeper hands over (handover.h); the zygote has the other
 * (isolation/native/zygotes.h). One message is one request, with three descriptors: a socket, a pipe for stdout, a pipe for
 * stderr. The answer is the interpreter itself, on that socket: a frame of the letter B as soon as it is inside, which
 * guestd answers with ZYGOTE_MOVED when it has moved the sender to the cgroups of its processes; then hello.
 *
 * The struct is the message, byte for byte. guestd may be of an older build than keeper's zygotes: a message of another
 * length is dropped by the socket's filter, and guestd starts a zygote inside. The receiver checks magic and count too.
 */
#ifndef WIRE_ZYGOTE_H
#define WIRE_ZYGOTE_H

#include <stdint.h>

#include "base/ports.h"

enum {
    ZYGOTE_MAGIC = 0x6e757273,
    ZYGOTE_GROUPS_MAX = 64,
    ZYGOTE_REQUEST_FDS = 3,
};

/* The user of the new interpreter, in ids of the sandbox. */
struct zygote_request {
    uint32_t magic;
    uint32_t uid, gid;
    uint32_t group_count;
    uint32_t groups[ZYGOTE_GROUPS_MAX];
};

/* Both are frames: a length of four bytes, then so many. */
#define ZYGOTE_ENTERED "\0\0\0\1B"
#define ZYGOTE_MOVED "\0\0\0\2{}"

/* How the name of a zygote's cgroup starts; no sandbox's does. */
#define ZYGOTE_CGROUP "zygote"

/*
 * Where run_code is served inside every sandbox. Keeper hands a zygote's socket over when front first dials it.
 */
enum { ZYGOTE_CODE_PORT = GUESTD_CODE_PORT };

/* The zygote is set up as this user: only this user's interpreters can be forked from it. */
#define ZYGOTE_USER "user"
#define ZYGOTE_HOME "/home/user"
enum { ZYGOTE_UID = 1000 };

/*
 * How a python3 becomes a zygote, outside or in a sandbox: descriptor 0 is its control socket, and the first two messages
 * are charts.py and the driver. sys.path is without the working directory: a random.py of the user's is for cells, not for
 * us.
 */
#define ZYGOTE_BOOT                                                              \
    "import sys;sys.path[:]=[p for p in sys.path if p];import socket;"           \
    "BOOT_SOCKET=socket.socket(fileno=0);CHARTS_SOURCE=BOOT_SOCKET.recv(1<<20);" \
    "exec(compile(BOOT_SOCKET.recv(1<<20),'<interpreter>','exec'))"

#endif
