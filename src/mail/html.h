/*
 * html.h - HTML of a message: sanitised by an allow-list, and as readable text (Markdown).
 *
 * Runs in the composer's child only. Nothing is ever fetched. Scripts, styles, comments, forms, media, remote images and
 * text that a reader would not see are left out of both results; what was left out is told.
 *
 * Failure    None: HTML that takes too much time or memory is treated as text with its tags cut out.
 */
#ifndef MAIL_HTML_H
#define MAIL_HTML_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

struct html_link {
    struct str href, text;
};

struct html {
    struct str html;   /* elements of the allow-list, no document around them */
    struct str text;   /* what a reader sees */
    struct str hidden; /* text that a reader does not see: hidden elements, comments */
    struct html_link *links;
    uint32_t link_count;
    uint32_t scripts;   /* active elements and attributes: script, iframe, onclick… */
    uint32_t images;    /* remote images */
    uint32_t invisible; /* characters */
    bool is_cut;        /* too long or too complex: not all of it is here */
};

void html_read(struct str source, struct arena *arena, struct html *out);

/* Text as HTML: escaped. */
void html_escape(struct buf *out, struct str text);

#endif
