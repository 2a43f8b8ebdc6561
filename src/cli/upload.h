/*
 * upload.h - sends a file to the server, as it is read, and says how far it is.
 */
#ifndef CLI_UPLOAD_H
#define CLI_UPLOAD_H

#include "base/attr.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/client.h"
#include "cli/image_file.h"

/*
 * PUT of all its bytes, by a link that the server gave: only its path counts, the server is the client's. Ends as soon as the
 * server refuses, and with ERR_TIMEOUT if nothing moves for UPLOAD_IDLE_MS.
 */
bool upload_send(struct client *client, struct str link, struct image_file *file, struct err *err) must_use;

#endif
