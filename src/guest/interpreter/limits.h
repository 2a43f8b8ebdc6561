/*
 * limits.h - what the users of one sandbox's interpreters could stretch, with its reason.
 */
#ifndef GUEST_INTERPRETER_LIMITS_H
#define GUEST_INTERPRETER_LIMITS_H

#define LIMIT_CONTEXTS 64            /* of one sandbox, all languages together; each is a process */
#define LIMIT_KERNELSPECS 64         /* looked at in one directory: whoever has more must not hold guestd up with it */
#define LIMIT_CELLS 256              /* that wait for one context; an SDK sends one at a time */
#define LIMIT_FRAME_BYTES (32 << 20) /* one result; a large picture in base64 is 10 MiB. result.py stays below it */
#define LIMIT_CELL_BYTES (128 << 20) /* printed by one cell, and again as results; an SDK keeps all of it in memory */

#endif
