/*
 * interrupt.h - a command that has something to undo when it is interrupted.
 */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

enum { EXIT_BY_SIGNAL = 128 }; /* and the signal's number: what a shell reports */

/*
 * From here on the first SIGINT, SIGTERM or SIGHUP does not end us. Calls go on; only a pause between two of them ends. One that
 * is ignored (nohup) stays ignored.
 */
void interrupt_watch(void);
/* The signal that came; 0: none. */
int interrupt_signal(void);

#endif
