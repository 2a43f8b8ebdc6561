/*
 * mail_page.h - the page on which a person approves or rejects a held message, behind a link that works once.
 */
#ifndef API_MAIL_PAGE_H
#define API_MAIL_PAGE_H

#include "api/request.h"

handler_fn mail_page_show, mail_page_attachment, mail_page_decide;

#endif
