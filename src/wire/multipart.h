/*
 * multipart.h - multipart bodies (RFC 2046) as they arrive; file data is never buffered.
 *
 * Feed pieces of any size; each call gives one event:
 *
 *   PART      the headers of a part are complete: name, filename, content type
 *   DATA      some of its bytes, to be used at once
 *   PART_END  it is complete
 *   DONE      the closing delimiter was read; whatever follows is ignored
 *
 * The delimiter may be cut anywhere between two pieces. It begins with its only CR, so bytes that match a part of it
 * and then differ cannot contain the start of another delimiter.
 *
 * Pure: no I/O, no clock.
 */
#ifndef WIRE_MULTIPART_H
#define WIRE_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

enum {
    MULTIPART_BOUNDARY_MAX = 200,         /* RFC 2046 says 70; clients have been seen to go further */
    MULTIPART_HEAD_BYTES_MAX = 16 * 1024, /* headers of one part: a path of 4,096 bytes, each escaped */
};

struct multipart_part {
    bool has_name, has_filename;
    struct str name, filename; /* of Content-Disposition, with %22 %0D %0A and backslash escapes decoded */
    struct str content_type;   /* empty when absent */
};

struct multipart {
    /* private */
    char delimiter[4 + MULTIPART_BOUNDARY_MAX]; /* CR LF - - boundary */
    size_t delimiter_len;
    size_t matched;  /* bytes of the delimiter seen so far */
    size_t borrowed; /* the first of these are the line end before the data: never data themselves */
    int state;
    struct buf head;
    struct arena arena; /* the present part's strings */
};

/* False if the media type is not multipart or names no usable boundary. */
bool multipart_init(struct multipart *mp, struct str content_type, struct err *err) must_use;
void multipart_done(struct multipart *mp);

enum multipart_event {
    MULTIPART_MORE, /* all of *in is consumed */
    MULTIPART_PART,
    MULTIPART_DATA,
    MULTIPART_PART_END,
    MULTIPART_DONE,
    MULTIPART_BAD,
};
/* Consumes from *in. out_part and out_data are valid until the next call. */
enum multipart_event multipart_next(struct multipart *mp, struct str *in, struct multipart_part *out_part,
                                    struct str *out_data, struct err *err) must_use;
/* Was the closing delimiter read? A body that ends without it is incomplete. */
bool multipart_is_whole(const struct multipart *mp);

/*
 * A parameter of a header value such as `form-data; name="file"`: any case of the name, quoted or not. A quoted value
 * keeps its escapes.
 */
bool multipart_param(struct str value, struct str name, struct str *out, bool *out_quoted);

#endif
