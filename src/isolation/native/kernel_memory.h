/*
 * kernel_memory.h - ends sandboxes that have the kernel hold memory which their cgroup does not count.
 *
 * The kernel charges nearly all that it does for a process to its cgroup, but not what waits in netlink sockets, nor
 * what waits to be sent on UDP sockets: megabytes each, and nothing limits how many sockets a guest has. So we look,
 * and a sandbox that holds more than KERNEL_MEMORY_MAX that way is ended, with EXIT_KERNEL_MEMORY. So is one with more
 * sockets than kernel_memory_sockets_max(), or with more open files than kernel_memory_files_max(). Much of what a guest can
 * make a socket hold besides is refused, by `passed` and `refused` in seccomp.c, and by `knobs` in child.c. For what is in no
 * list there is growth.h.
 *
 * Cost       Forty looks a second at the machine's memory, whatever the number of sandboxes, and none without sandboxes:
 *            0.3 % of a CPU. Only when the kernel's part has grown, and once a minute, the sandboxes themselves are scanned,
 *            for about a millisecond a turn, and never for more than a tenth of a CPU: guests choose how often the
 *            kernel's part grows.
 * Threads    Keeper's. Nothing here waits.
 */
#ifndef ISOLATION_NATIVE_KERNEL_MEMORY_H
#define ISOLATION_NATIVE_KERNEL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "io/loop.h"
#include "isolation/driver.h"
#include "isolation/native/growth.h"
#include "isolation/native/open_files.h"
#include "isolation/native/usage.h"

/* No program needs a hundredth of it: `ip` and the C library read an answer at once. */
#define KERNEL_MEMORY_MAX (32ull << 20)
/*
 * Sockets of all families together. A UDP socket that was disconnected is in no list and may still hold a datagram of
 * 64 KiB that it has not sent. So a sandbox may have one socket for each 128 KiB of its memory limit: then they hold at
 * most half of the limit. A sandbox with 1 GiB, the default, may have 8,192; more memory gives no more.
 */
#define KERNEL_MEMORY_SOCKETS 8192u
#define KERNEL_MEMORY_SOCKETS_LEAST 1536u /* LIMIT_EDGE_CONNECTIONS take two each */
#define KERNEL_MEMORY_PER_SOCKET (128u << 10)

/*
 * Open files of all processes of a sandbox; one that is inherited counts again. Each may have the kernel hold some kilobytes
 * beyond the limit: names of a directory that was read in part. So there may be one for each 8 KiB of the memory limit.
 * A thousand workers of a server with 100 files each need 100,000, and gigabytes.
 */
#define KERNEL_MEMORY_FILES 262144u
#define KERNEL_MEMORY_FILES_LEAST 16384u
#define KERNEL_MEMORY_PER_FILE (8u << 10)
/*
 * Descriptors on their way over unix sockets (open_files.h). With 200,000 the kernel needs 10 ms whenever any socket is closed.
 * What a socket that is itself on its way has in its queue is not known: as much as a queue holds, but each costs a sandbox 80
 * bytes of what the kernel charges it for. Programs send a socket and the other side takes it at once, so a few of those
 * in one look mean nothing, and in three looks they mean this.
 */
#define KERNEL_MEMORY_IN_FLIGHT 16384u
#define KERNEL_MEMORY_HIDDEN 65536u /* in the queue of each such socket at most; more than that of all is too many */
#define KERNEL_MEMORY_PER_IN_FLIGHT 80u
#define KERNEL_MEMORY_LOOK_AGAIN_MS 200
#define KERNEL_MEMORY_LOOKS 3

struct box;
struct native;

/*
 * What is watched for growth. What the kernel's counters name changes little but for a reason. All that the kernel holds is
 * more, and restless: pages that somebody has freed are on their way to be free, or others' on their way to be mapped.
 */
enum kernel_memory_view { KERNEL_MEMORY_NAMED, KERNEL_MEMORY_ALL, KERNEL_MEMORY_VIEWS };

/* What cgroups are charged for the kernel's part, as it was read last; then the kernel had so much. */
struct kernel_charged {
    uint64_t at_us, bytes;
    int64_t kernel;
};

struct kernel_memory {
    struct timer timer;
    int meminfo_fd;
    bool left_frozen; /* a box could not be thawed */
    int shrink_fd;    /* a child that has the kernel shrink its caches; -1: none */
    struct growth growth[KERNEL_MEMORY_VIEWS];
    char top[USAGE_TOP_BYTES];
    struct kernel_charged charged[KERNEL_MEMORY_VIEWS];
    uint64_t due_ms;     /* of the lists */
    uint64_t reference;  /* what the kernel's part is compared with */
    uint64_t scanned_ms; /* when the last scan began */
    bool scanning;
    size_t next;               /* in native->boxes */
    uint64_t spent_us;         /* on this scan, by us */
    char id[LIMIT_ID_BYTES];   /* whose lists we are at, which may be gone; "" between two sandboxes */
    unsigned list;             /* which of them… */
    int list_fd;               /* …if it is open; -1 */
    uint64_t list_bytes, held; /* of this list read, and of all lists added up */
    struct open_files files;   /* when all lists are read */
};

bool kernel_memory_open(struct native *native, struct err *err) must_use;
/* There is a sandbox that runs: look from now on. */
void kernel_memory_watch(struct native *native);
void kernel_memory_close(struct native *native);

/* Kills it, with a line in the log. */
void kernel_memory_end(struct box *box, enum exit_cause cause, const char *why);

/* ---- pure, for tests ---- */

/* How many sockets and open files a sandbox with this memory limit may have. */
uint64_t kernel_memory_sockets_max(uint64_t memory_bytes);
uint64_t kernel_memory_files_max(uint64_t memory_bytes);
/* Free pages that each processor has put aside for itself, of /proc/zoneinfo's text: up to some hundred MiB. */
uint64_t kernel_memory_set_aside(struct str zoneinfo);
/* What the kernel uses for itself: all that is neither free, nor a process's, nor a file's. */
struct kernel_part {
    uint64_t total_bytes; /* the machine's memory */
    uint64_t held_bytes;  /* of kernel_memory_of(): with what is set aside */
    uint64_t
        named_bytes; /* of those, what has a counter: slabs, stacks, page tables and what is mapped for the kernel */
    uint64_t reclaimable_bytes; /* not in held_bytes: it could be taken back at once */
};
void kernel_memory_of(struct str meminfo, struct kernel_part *out);
bool kernel_memory_part(int meminfo_fd, struct kernel_part *out) must_use;
/* What waits in sockets, of the text of /proc/net/netlink, or of /proc/net/udp or udp6. */
uint64_t kernel_memory_netlink(struct str text);
uint64_t kernel_memory_udp(struct str text);
/*
 * How many sockets there are, of the text of /proc/net/sockstat, without as many TCP sockets as egress may hold of the
 * sandbox's connections: those are in the sandbox's network too, and are not the guest's.
 */
uint64_t kernel_memory_sockets(struct str text);

#endif
