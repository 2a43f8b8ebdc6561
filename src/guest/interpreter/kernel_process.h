/*
 * kernel_process.h - the process of a Jupyter kernel: started with a connection file that names its ports and its key.
 */
#ifndef GUEST_INTERPRETER_KERNEL_PROCESS_H
#define GUEST_INTERPRETER_KERNEL_PROCESS_H

#include "guest/guest.h"
#include "guest/interpreter/kernelspec.h"

enum kernel_port {
    KERNEL_SHELL,
    KERNEL_CONTROL,
    KERNEL_IOPUB,
    KERNEL_PORTS = 5, /* with stdin and heartbeat, which we do not connect to */
};

enum { KERNEL_KEY_BYTES = 64 }; /* hex digits of the key that signs messages */

struct kernel_process {
    pid_t pid; /* 0: not started */
    int pidfd;
    uint16_t ports[KERNEL_PORTS]; /* on loopback */
    char key[KERNEL_KEY_BYTES + 1];
    char file[64]; /* the connection file, or "" */
};

void kernel_process_init(struct kernel_process *p);
/* As `user`. The descriptors for stdout and stderr stay the caller's. */
bool kernel_process_start(struct kernel_process *p, struct guest *guest, const struct user *user,
                          const struct kernelspec *spec, const char *cwd, const int out_and_err[2], struct err *err)
    must_use;
/* The kernel has read it, or never will. */
void kernel_process_remove_file(struct kernel_process *p);
/* Does not kill: the caller knows what belongs to the process. */
void kernel_process_done(struct kernel_process *p);

#endif
