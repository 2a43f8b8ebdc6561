/*
 * kernel_memory.h - ends sandboxes that have the kernel hold memory which their cgroup does not count.
 *
 * The kernel charges nearly all that it does for a process to its cgroup, but not what waits in netlink sockets, nor
 * what waits to be sent on UDP sockets: megabytes each, and nothing limits how many sockets a guest has. So we look,
 * and a sandbox that holds more than KERNEL_MEMORY_MAX that way is ended, with EXIT_KERNEL_MEMORY. So is one with more
 * sockets than kernel_memory_sockets_max(). A guest cannot make a socket hold other uncharged memory: see `refused` in
 * seccomp.c, and `knobs` in child.c.
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

struct native;

struct kernel_memory {
    struct timer timer;
    int meminfo_fd;
    uint64_t reference;  /* what the kernel's part is compared with */
    uint64_t scanned_ms; /* when the last scan began */
    bool scanning;
    size_t next;               /* in native->boxes */
    uint64_t spent_us;         /* on this scan, by us */
    char id[LIMIT_ID_BYTES];   /* whose lists we are at, which may be gone; "" between two sandboxes */
    unsigned list;             /* which of them… */
    int list_fd;               /* …if it is open; -1 */
    uint64_t list_bytes, held; /* of this list read, and of all lists added up */
};

bool kernel_memory_open(struct native *native, struct err *err) must_use;
/* There is a sandbox that runs: look from now on. */
void kernel_memory_watch(struct native *native);
void kernel_memory_close(struct native *native);

/* How many sockets a sandbox with this memory limit may have. */
uint64_t kernel_memory_sockets_max(uint64_t memory_bytes);
/* What the kernel uses for itself, of /proc/meminfo's text: all that is neither free, nor a process's, nor a file's. */
uint64_t kernel_memory_of(struct str meminfo);
/* What waits in sockets, of the text of /proc/net/netlink, or of /proc/net/udp or udp6. */
uint64_t kernel_memory_netlink(struct str text);
uint64_t kernel_memory_udp(struct str text);
/*
 * How many sockets there are, of the text of /proc/net/sockstat, without as many TCP sockets as egress may hold of the
 * sandbox's connections: those are in the sandbox's network too, and are not the guest's.
 */
uint64_t kernel_memory_sockets(struct str text);

#endif
