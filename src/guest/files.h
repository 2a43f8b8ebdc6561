/*
 * files.h - GET and POST /files: whole files, streamed. They check the token or the signature themselves.
 */
#ifndef GUEST_FILES_H
#define GUEST_FILES_H

#include "guest/guest.h"

void files_download(struct guest *guest, struct http_exchange *ex);
void files_upload(struct guest *guest, struct http_exchange *ex);

/* ---- for tests ---- */

/*
 * "bytes=0-99", "bytes=100-", "bytes=-10" of a file of so many bytes. Several ranges, or a malformed one, are
 * FILES_WHOLE: a server may always send everything.
 */
enum files_range {
    FILES_WHOLE,
    FILES_PART,
    FILES_NOT_THERE, /* 416 */
};
enum files_range files_range_parse(struct str header, uint64_t size, uint64_t *out_from, uint64_t *out_len);

/* Does this Accept-Encoding (NULL: no header) allow the coding? */
bool files_accepts(const struct str *accept, struct str coding);

#endif
