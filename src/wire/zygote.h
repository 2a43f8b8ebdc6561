/*
 * zygotes.h - what guestd says at the door of the zygotes: give me an interpreter that was warm before I was.
 *
 * The door is one end of a SOCK_SEQPACKET pair that guestd inherits; isolation/native/zygotes.h says who stands behind it.
 * One message is one request, with three descriptors: a socket, a pipe for stdout, a pipe for stderr. There is no answer but
 * the interpreter itself, on that socket: a frame of the letter B as soon as it is inside, which guestd answers with
 * ZYGOTE_MOVED when it has moved the sender to the cgroups of its processes; then hello. A door that is closed stays closed.
 *
 * Both ends are programs of one build on one machine: the struct is the message, byte for byte. Whoever receives it checks
 * its length, its magic and its count as if a stranger had sent it.
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

/* Who it shall be, in ids of the sandbox. */
struct zygote_request {
    uint32_t magic;
    uint32_t uid, gid;
    uint32_t group_count;
    uint32_t groups[ZYGOTE_GROUPS_MAX];
};

/* Both are frames: a length of four bytes, then so many. */
#define ZYGOTE_ENTERED "\0\0\0\1B"
#define ZYGOTE_MOVED "\0\0\0\2{}"

/* How the name of a zygote's cgroup starts, and no sandbox's. */
#define ZYGOTE_CGROUP "zygote"

/*
 * Where run_code is served inside every sandbox. Keeper opens the zygotes's door when somebody first connects to it.
 */
enum { ZYGOTE_CODE_PORT = GUESTD_CODE_PORT };

/* Whom the zygote takes herself for: only this user's interpreters can be hers. */
#define ZYGOTE_USER "user"
#define ZYGOTE_HOME "/home/user"
enum { ZYGOTE_UID = 1000 };

/*
 * How a python3 becomes a zygote, in the zygotes or in a sandbox: descriptor 0 is her door, and the first two messages are
 * charts.py and the driver. Without the directory it runs in: a random.py of the user's is for cells to import, not for us.
 */
#define ZYGOTE_BOOT                                                    \
    "import sys;sys.path[:]=[p for p in sys.path if p];import socket;" \
    "DOOR=socket.socket(fileno=0);CHARTS_SOURCE=DOOR.recv(1<<20);"     \
    "exec(compile(DOOR.recv(1<<20),'<interpreter>','exec'))"

#endif
