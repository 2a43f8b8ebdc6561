/*
 * daemon.h - the programs inside `cloister` that are not clients: the server and the two local admin commands.
 *
 * Each takes the words after its own name and returns an exit code.
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

int keeper_main(int argc, char **argv);         /* cloister serve */
int doctor_main(int argc, char **argv);         /* cloister doctor */
int template_build_main(int argc, char **argv); /* cloister template build NAME */

#endif
