/*
 * scan.h - what a message's text gives away or tries: pure functions over text.
 *
 * Outgoing: secrets, canary tokens, recipients that are not what they look like. The result is a list of warnings that the
 * approver sees; only a canary blocks. Incoming: how much the text tries to instruct the agent that reads it.
 *
 * These are heuristics. They make a person look twice; they do not replace the gate.
 */
#ifndef MAIL_SCAN_H
#define MAIL_SCAN_H

#include "base/arena.h"
#include "mail/html.h"
#include "mail/mail.h"

/* One more warning; past LIMIT_MAIL_WARNINGS they are dropped. `detail` is cut to its limit. */
void content_warn(struct mail_content *content, struct arena *arena, const char *code, bool blocks, struct str detail);

/* Adds warnings about a composed message. `html` is what its HTML part came from; may be empty. */
void scan_outbound(struct mail_content *content, const struct html *html, struct arena *arena);

/* The well-known or `own` domain that this one imitates; empty: none. Domains in their own letters (U-labels). */
struct str scan_lookalike(struct arena *arena, struct str domain, struct str own);

enum scan_flag {
    SCAN_PROMPT_INJECTION = 1,
    SCAN_PHISHING_URL = 2,
    SCAN_SPOOFED_SENDER = 4,
    SCAN_SOCIAL_ENGINEERING = 8,
};
enum scan_detector {
    SCAN_BOUNDARY = 1,     /* pretends that the mail has ended and something trusted begins */
    SCAN_OVERRIDE = 2,     /* tells the reader to forget its instructions */
    SCAN_EXFILTRATION = 4, /* asks for secrets or other people's mail */
    SCAN_ROLE = 8,         /* gives the reader another role, or claims authority */
    SCAN_TOOL = 16,        /* asks to call tools or run commands */
    SCAN_ENCODING = 32,    /* hides text: invisible characters, look-alike letters, base64 */
};
struct scan_result {
    uint32_t percent;   /* 0..100 */
    unsigned flags;     /* enum scan_flag */
    unsigned detectors; /* enum scan_detector: which have found something */
};
/* A message that was read: subject, sender, text, names of attachments, and what the HTML hides. */
struct scan_result scan_inbound(const struct mail_content *content, const struct html *html, struct arena *arena);
/* Warns if the text is likely an attack. */
void scan_warn(struct mail_content *content, const struct scan_result *result, struct arena *arena);
/* Sets injection_percent and flags, and warns. */
void scan_note(struct mail_content *content, const struct scan_result *result, struct arena *arena);

#endif
