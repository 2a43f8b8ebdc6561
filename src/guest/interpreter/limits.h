/*
 * limits.h - caps on what a user of one sandbox's interpreters can size, with their reasons.
 */
#ifndef GUEST_INTERPRETER_LIMITS_H
#define GUEST_INTERPRETER_LIMITS_H

#define LIMIT_CONTEXTS 64    /* of one sandbox, all languages together; each is a process */
#define LIMIT_KERNELSPECS 64 /* read in one directory: reading more would hold guestd up */
#define LIMIT_CELLS 256      /* waiting for one context; an SDK sends one at a time */
#define LIMIT_FRAME_BYTES \
    (32 << 20) /* one result; a large picture in base64 is 10 MiB. BUNDLE_MAX of result.py is below it */
#define LIMIT_CELL_BYTES \
    (128 << 20) /* printed by one cell, and the same for its results; an SDK keeps all of it in memory */

#endif
