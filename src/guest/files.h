/*
 * files.h - GET and POST /files: whole files, streamed, with authorisation of their own.
 */
#ifndef GUEST_FILES_H
#define GUEST_FILES_H

#include "guest/guest.h"

void files_download(struct guest *guest, struct http_exchange *ex);
void files_upload(struct guest *guest, struct http_exchange *ex);

/* ---- in parts, for tests ---- */

/*
 * "bytes=0-99", "bytes=100-", "bytes=-10" of a file of so many bytes. Several ranges, or what makes no sense, is
 * FILES_WHOLE: a server may always send everything.
 */
enum files_range {
    FILES_WHOLE,
    FILES_PART,
    FILES_NOT_THERE, /* 416 */
};
enum files_range files_range_parse(struct str header, uint64_t size, uint64_t *out_from, uint64_t *out_len);

/* May the answer be sent so, by this Accept-Encoding (NULL: no header)? */
bool files_accepts(const struct str *accept, struct str coding);

#endif
