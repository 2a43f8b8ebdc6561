/*
 * data_dir.h - the directory for everything that must survive a restart.
 *
 *   store/        front's database; only front's user
 *   blobs/        images that were downloaded; only puller's user. It may be removed while no server runs
 *   layers/ templates/ sandboxes/ trash/ tmp/      only root: guests' files keep their ids on disk, so a set-user-id
 *                 root program of a guest would give real root to any user who can reach it
 *   packages/     what is in the templates that this program makes, a text for each; only root
 *   mail/         a directory for each inbox, only for the inbox's own user (inboxes.h)
 *   mail/server-key   for what the server itself must read of mail: addresses, and what waits to leave; only root
 *   multimail-key, lobstermail-token   of the first inbox, for `cloister env`; only root
 *   api-key       the first API key, for `cloister env`; only root
 *   admin-token   for `cloister key …`; only root
 *   node-id       names this data directory in a store that several servers share; only root
 *   server        two lines, where the server listens and its domain, for the command line
 *   tls/          certificates; see authority.h
 *   *.new         spares of small files that are rewritten, also when the disk is full: see fd_update_file()
 */
#ifndef DAEMON_DATA_DIR_H
#define DAEMON_DATA_DIR_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/limits.h"
#include "base/secret.h"

/* Made if missing. Returns a directory descriptor. */
int data_dir_open(const char *path, struct err *err) must_use;
/* store/ for that user; returns its directory descriptor. */
int data_dir_store(int data_fd, uid_t uid, gid_t gid, struct err *err) must_use;
/* blobs/ likewise. */
int data_dir_blobs(int data_fd, uid_t uid, gid_t gid, struct err *err) must_use;
/* Reads the secret; on first use makes it from random bytes and writes it durably. */
bool data_dir_api_key(int data_fd, struct secret *out, struct err *err) must_use;
bool data_dir_admin_token(int data_fd, struct secret *out, struct err *err) must_use;
bool data_dir_mail_keys(int data_fd, struct secret *out_server, struct secret *out_inbox_key, struct secret *out_token,
                        struct err *err) must_use;
/* Likewise: 20 characters of a-z and 0-9. */
bool data_dir_node_id(int data_fd, char out[LIMIT_ID_BYTES], struct err *err) must_use;
/*
 * For the command line: where the server of this directory listens, or did last, the domain that clients use, and a line
 * `mail off` if it has no mail.
 */
bool data_dir_note_address(int data_fd, const char *address, const char *domain, bool has_mail, struct err *err)
    must_use;
bool data_dir_noted_address(int data_fd, char *room, size_t size, struct err *err) must_use;
bool data_dir_noted_domain(int data_fd, char *room, size_t size, struct err *err) must_use;

#endif
