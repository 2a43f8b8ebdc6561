/*
 * mail_dialect.h - mail over HTTP: MultiMail's API, LobsterMail's API and the operator's, on one set of actions.
 *
 * The two services share paths below /v1, so the key says which one is meant (mm_… or lm_sk_…). Without a key the path
 * decides. Each dialect is a table of routes and a way to write errors. A row says which scope a key needs; a row without
 * a scope says on purpose that it is public or the operator's, and a test walks the tables.
 *
 * A handler decodes the whole request, calls one action and encodes the answer. It runs on a worker, in a lane in which
 * each inbox has a share of the workers (io/worker.h), because calls for one inbox take turns.
 *
 * Requests from inside a sandbox have rq->sandbox_id. They act as the sandbox's own inbox and reach the two dialects
 * only, never the operator's routes.
 */
#ifndef API_MAIL_DIALECT_H
#define API_MAIL_DIALECT_H

#include "actions/mail.h"
#include "api/mail_events.h"
#include "api/request.h"

/* Flags of a row. The low bits are scopes (enum mail_scope): a key that has one of them may call. */
enum mail_route_flags {
    MAIL_PUBLIC = 1 << 8,   /* needs no key, or a token in the path is the key */
    MAIL_OPERATOR = 1 << 9, /* the admin token */
    MAIL_ANY_KEY = 1 << 10, /* any valid key; the action decides */
    MAIL_LARGE = 1 << 11,   /* takes attachments: LIMIT_MAIL_BODY_BYTES instead of LIMIT_CALL_BODY_BYTES */
    MAIL_ABSENT = 1 << 12,  /* the service has it, a self-hosted server does not: 501 with the row's help */
    /* Gives something to whoever calls it, so any web page in a browser could take it: no CORS, no Origin, only JSON. */
    MAIL_NO_PAGES = 1 << 13,
};

#define MAIL_ROUTE(method, pattern, handler, flags, help)      \
    {                                                          \
        HTTP_##method, pattern, (void *)(handler), flags, help \
    }
/* `help` is the whole sentence that the client gets. */
#define MAIL_NO_ROUTE(method, pattern, flags, help)               \
    {                                                             \
        HTTP_##method, pattern, NULL, (flags) | MAIL_ABSENT, help \
    }

struct mail_problem {
    unsigned status;
    enum err_kind kind;     /* ERR_NONE: made by the dispatcher (no route, wrong method, body too large…) */
    struct str message;     /* one sentence */
    uint32_t retry_after_s; /* 0: unknown; otherwise Retry-After is sent */
};

struct mail_dialect {
    const char *name;
    const struct http_route *routes;
    size_t route_count;
    /* Writes the answer's body. The caller adds Retry-After and WWW-Authenticate. */
    void (*problem)(struct request *rq, const struct mail_problem *problem);
};

/* mail_multimail.c, mail_lobstermail.c, mail_operator.c */
extern const struct mail_dialect mail_multimail, mail_lobstermail, mail_operator;

enum { MAIL_PLACE_BYTES = 64 };

/* One request's own part; rq->mail. */
struct mail_request {
    const struct mail_dialect *dialect;
    struct mail_caller caller;    /* all zero on a public route */
    char place[MAIL_PLACE_BYTES]; /* where it comes from, for limits of strangers: "192.0.2.1", "sandbox:ID" */
    bool is_tls;                  /* the client speaks https */
    /* What a handler sets to answer later; see mail_later(). */
    void (*later)(struct request *rq);
    void (*gone)(struct request *rq);
    void *context;
    /* mail_dialect.c's own */
    struct mail_api *api;
    struct http_head head; /* with a repaired path; see route() */
    bool is_with_worker;
};

static inline const struct mail_caller *mail_caller(const struct request *rq)
{
    return &rq->mail->caller;
}

/* ---- answering ---- */

/* By the kind of error. Internal errors are logged, and the client gets a reference. */
void mail_reply_err(struct request *rq, const struct err *err);
/* The same after an action that says when to try again; 0: unknown. */
void mail_reply_err_after(struct request *rq, const struct err *err, uint32_t retry_after_s);
/* A malformed body or query: 400, also for what is too large. */
void mail_reply_invalid(struct request *rq, const struct err *err);
void mail_reply_problem(struct request *rq, unsigned status, const char *format, ...) printf_like(3, 4);
/* A file: an attachment that the client saves and never shows as a page. */
void mail_reply_file(struct request *rq, const struct mail_attachment *file);

/* A link to a path of ours, at the name by which the client has reached us. */
struct str mail_url(const struct request *rq, struct str path);

/*
 * For long polls and WebSockets. A handler that has no answer yet calls mail_later(): `later` is then called on the loop,
 * and owns the request until it calls mail_again() (the handler runs once more on a worker) or mail_finish() (the answer
 * in rq->reply is sent). If the client goes away in between, `gone` is called on the loop, and the request is no longer
 * theirs. If it goes away before `later`, neither is called: what `context` points to lives in the arena.
 * For an upgrade, `later` calls http_upgrade() and then mail_release(), which wipes the caller: copy what is needed.
 */
void mail_later(struct request *rq, void (*later)(struct request *), void (*gone)(struct request *), void *context);
void mail_again(struct request *rq);
void mail_finish(struct request *rq);
void mail_release(struct request *rq);
struct mail_events *mail_events_of(const struct request *rq);
struct mail_sockets *mail_sockets_of(const struct request *rq);
/* Whose share of the workers it uses: an inbox, or the key if it has several, or where a stranger comes from. */
struct str mail_lane_owner(const struct request *rq);
/* What the client has sent as its key, or "". */
struct str mail_key_of(const struct request *rq);

/* ---- decoding ---- */

/* The body as an object; an empty one counts as {}. False: answered. The caller releases *out (auto_json). */
bool mail_body(struct request *rq, json_t **out) must_use;
/* The first of these names (up to four, the rest NULL) that is there. */
bool mail_take_any(const json_t *object, const char *const names[4], enum json_need need, struct str *out,
                   struct err *err) must_use;
/* What a dialect calls the fields of an attachment, for mail_take_any(). */
struct mail_file_names {
    const char *name[4], *content[4], *type[4];
};
/* The array "attachments", with contents in base64. Absent: *out is untouched. */
bool mail_take_attachments(const json_t *body, const struct mail_file_names *names, struct arena *arena,
                           struct send_want *out, struct err *err) must_use;
/* Takes the prefix off an id if it is there: "em_01J…" and "01J…" are the same. */
struct str mail_id_plain(struct str id, struct str prefix);

/*
 * MultiMail's client puts file names into paths as they are: a "%" that begins no escape stands for itself. The result has
 * none of these left.
 */
struct str mail_path_repair(struct str path, struct arena *arena);

/* ---- a route of another dialect, for the same caller (mcp.c) ---- */

/* Is there such a route, and do the caller's scopes allow it? */
bool mail_may_run(const struct request *rq, const struct mail_dialect *dialect, enum http_method method,
                  struct str path);
/* Runs its handler on this worker. The answer, also one of an error, is in *out. Routes without a key are not run. */
void mail_run(struct request *rq, const struct mail_dialect *dialect, enum http_method method, struct str path,
              struct str query, struct str body, struct reply *out);

/* ---- the whole ---- */

struct mail_api;
struct mail_api *mail_api_new(const struct api_config *config) must_use;
/* When the workers are freed. */
void mail_api_free(struct mail_api *api);
/* Tells long polls and WebSockets. On the loop. */
void mail_api_heard(struct mail_api *api, const struct mail_event *event);
/* Is this path ours? */
bool mail_api_takes(const struct http_head *head);
/* May a web page of another site call this path? Only for paths of mail it may not. */
bool mail_api_allows_pages(const struct http_head *head, struct arena *arena);
/* Answers it, now or later. On the loop. sandbox_id: NULL, or the sandbox that the connection comes from. */
void mail_api_handle(struct mail_api *api, struct http_exchange *ex, const char *sandbox_id);
/* Where a connection comes from, for limits: an IPv4 address, or the /64 network of an IPv6 one, which one host has. */
void mail_place(const struct sockaddr_storage *peer, char room[MAIL_PLACE_BYTES]);
/* Which dialect a request speaks. */
const struct mail_dialect *mail_dialect_of(const struct http_head *head, struct arena *arena);

#endif
