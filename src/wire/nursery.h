/*
 * nursery.h - what guestd says at the door of the nursery: give me an interpreter that was warm before I was.
 *
 * The door is one end of a SOCK_SEQPACKET pair that guestd inherits; isolation/native/nursery.h says who stands behind it.
 * One message is one wish, with three descriptors: a socket, a pipe for stdout, a pipe for stderr. There is no answer but
 * the interpreter itself, on that socket: a frame of the letter B as soon as it is inside, which guestd answers with
 * NURSERY_MOVED when it has moved the sender to the cgroups of its processes; then hello. A door that is closed stays closed.
 *
 * Both ends are programs of one build on one machine: the struct is the message, byte for byte. Whoever receives it checks
 * its length, its magic and its count as if a stranger had sent it.
 */
#ifndef WIRE_NURSERY_H
#define WIRE_NURSERY_H

#include <stdint.h>

enum {
    NURSERY_MAGIC = 0x6e757273,
    NURSERY_GROUPS_MAX = 64,
    NURSERY_WISH_FDS = 3,
};

/* Who it shall be, in ids of the sandbox. */
struct nursery_wish {
    uint32_t magic;
    uint32_t uid, gid;
    uint32_t group_count;
    uint32_t groups[NURSERY_GROUPS_MAX];
};

/* Both are frames: a length of four bytes, then so many. */
#define NURSERY_BORN "\0\0\0\1B"
#define NURSERY_MOVED "\0\0\0\2{}"

/* How the name of a mother's cgroup starts, and no sandbox's. */
#define NURSERY_CGROUP "mother"

/*
 * Where run_code is served inside every sandbox. Keeper opens the nursery's door when somebody first connects to it.
 */
enum { NURSERY_CODE_PORT = 49999 };

/* Whom the mother takes herself for: only this user's interpreters can be hers. */
#define NURSERY_USER "user"
#define NURSERY_HOME "/home/user"
enum { NURSERY_UID = 1000 };

/*
 * How a python3 becomes a mother, in the nursery or in a sandbox: descriptor 0 is her door, and the first two messages are
 * charts.py and the driver. Without the directory it runs in: a random.py of the user's is for cells to import, not for us.
 */
#define NURSERY_BOOT                                                   \
    "import sys;sys.path[:]=[p for p in sys.path if p];import socket;" \
    "DOOR=socket.socket(fileno=0);CHARTS_SOURCE=DOOR.recv(1<<20);"     \
    "exec(compile(DOOR.recv(1<<20),'<interpreter>','exec'))"

#endif
