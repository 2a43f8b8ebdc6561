/*
 * request.h - one request on its way through api/, and its answer.
 *
 * Lives in the exchange's arena. Handlers fill in the answer; api.c and mail_dialect.c send it.
 */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include "api/api.h"
#include "wire/json.h"

enum { REPLY_FIELDS = 8 };

struct reply {
    unsigned status;
    size_t field_count;
    struct http_field fields[REPLY_FIELDS];
    struct buf body;
};

struct request {
    const struct api_config *config;
    const struct actions *actions;
    struct http_exchange *ex;
    struct arena *arena;
    struct http_match match;
    struct caller caller; /* of the sandbox API; mail has a caller of its own */
    struct str body;
    struct reply reply;
    bool is_tls;               /* the client has come over TLS */
    struct str sandbox_id;     /* the connection comes from inside this sandbox; empty: from outside */
    struct mail_request *mail; /* mail_dialect.h; NULL: not about mail */
    bool no_pages;             /* web pages of other sites must not call this: the answer has no CORS */
    /* api.c's and mail_dialect.c's own */
    struct job job;
    bool must_wait;     /* a handler of STARTS has set this and left no answer: it is called again where it may wait */
    struct lane *lane;  /* in which the job may be waiting; NULL once it is done, or if it is in none */
    struct err refusal; /* why the caller may not; ERR_NONE otherwise */
};

/* On a worker, unless its route says otherwise. Must leave an answer. */
typedef void handler_fn(struct request *rq);

/* ---- answering (reply.c) ---- */

void reply_empty(struct request *rq, unsigned status);
/* Write the body into what this returns. */
struct json_out reply_json(struct request *rq, unsigned status);
void reply_field(struct request *rq, struct str name, struct str value);

enum retry {
    RETRY_UNSAID,
    RETRY_NO,  /* the request may have had an effect, or a repeat cannot succeed */
    RETRY_YES, /* nothing was changed, and it may succeed in a second */
};
/* Replaces an answer that was begun. slug may be NULL. */
void reply_problem(struct request *rq, unsigned status, const char *slug, enum retry retry, struct str message);
unsigned reply_status_of(enum err_kind kind);
/* Sends the answer. On the loop. */
void request_send(struct request *rq);
/* Status by the table of kinds. An internal error is logged, and the client gets a reference to the log line. */
void reply_err(struct request *rq, const struct err *err);
/*
 * The same for a call that copies a sandbox. A 503 is not repeated: the reason is that this machine cannot, or that the
 * guest does not answer, and each try makes the sandbox stand still.
 */
void reply_copy_err(struct request *rq, const struct err *err);
/* The same for a malformed body or query. */
void reply_invalid(struct request *rq, const struct err *err);
/* The path for a log line: the beginning of it, or the route's pattern if the path has a token that opens something. */
struct str request_shown(const struct request *rq);
/* Logs an internal error and returns the sentence for the client: "what (reference x…)". */
struct str reply_reference(struct request *rq, const char *what, const struct err *err);

/* ---- query parameters (query.c) ---- */

/* A parameter, decoded; an empty one counts as absent. */
bool query(const struct request *rq, struct str name, struct str *out) must_use;
/* Refuses a query with broken escapes: a filter that cannot be decoded must not count as absent. */
bool query_check(const struct request *rq, struct err *err) must_use;
/* *out is untouched when the parameter is absent. */
bool query_number(const struct request *rq, const char *name, uint64_t least, uint64_t most, uint64_t *out,
                  struct err *err) must_use;
/* limit, of a list in pages: at most 100, which is also what it is when absent. */
bool query_limit(const struct request *rq, uint32_t *out, struct err *err) must_use;
/*
 * nextToken: the last row of the page before. It is base64url of "<time>__<id>" of that row, with "__asc" when the order
 * is ascending, so that a token cannot be used with the other order. *out_there: was one given?
 */
bool query_token(const struct request *rq, bool is_ascending, struct sandbox_mark *out, bool *out_there,
                 struct err *err) must_use;
struct str token_encode(struct arena *arena, int64_t us, struct str id, bool is_ascending);
/* start and end, as microseconds; 0 when absent (metrics.c). */
bool span_decode(const struct request *rq, int64_t *out_start_us, int64_t *out_end_us, struct err *err) must_use;

/* ---- handlers, by file ---- */

handler_fn api_health;

/* sandboxes.c */
handler_fn api_sandbox_create_v1, api_sandbox_create_v2;
handler_fn api_sandbox_get, api_sandbox_kill, api_sandbox_timeout, api_sandbox_refresh;
/* pause.c */
handler_fn api_sandbox_pause, api_sandbox_resume, api_sandbox_connect_v1, api_sandbox_connect_v2, api_sandbox_fork;
/* snapshots.c */
handler_fn api_snapshot_create, api_snapshot_list;
/* network_json.c */
handler_fn api_sandbox_network;
/* sandbox_list.c */
handler_fn api_sandbox_list_v1, api_sandbox_list_v2;
/* events.c */
handler_fn api_event_list, api_event_list_of_sandbox, api_sandbox_logs_v1, api_sandbox_logs_v2;
/* metrics.c */
handler_fn api_sandbox_metrics, api_sandbox_metrics_batch;
/* templates.c */
handler_fn api_template_list, api_template_list_v2, api_template_defaults, api_template_get, api_template_alias,
    api_template_patch_v1, api_template_patch_v2, api_template_delete;
/* template_disk.c */
handler_fn api_template_inspect, api_template_disk, api_template_disk_all, api_template_prune, api_template_prune_all;
/* template_tags.c */
handler_fn api_tags_assign, api_tags_remove, api_tags_list, api_tags_count, api_tags_exists, api_tags_groups,
    api_tags_assignments;
/* builds.c */
handler_fn api_build_register, api_build_files, api_build_start, api_build_status, api_build_logs, api_build_cancel,
    api_builds_cancel, api_build_gone;
/* teams.c */
handler_fn api_team_metrics, api_team_metrics_max, api_running_counts, api_pool, api_team_kill, api_team_key_create,
    api_team_key_revoke, api_team_list, api_team_create, api_team_delete;
/* keys.c */
handler_fn api_key_list, api_key_list_all, api_key_create, api_key_rename, api_key_revoke;

/* ---- shapes that several files share (sandbox_json.c) ---- */

#define CLIENT_ID "6532622b" /* upstream's constant; clients require the field and do not use it */

/* Seconds: a JSON number, not a text as in protobuf's JSON. No upper limit here: each call has its own. */
bool take_seconds(const json_t *object, const char *name, enum json_need need, int64_t least, int64_t *out,
                  struct err *err) must_use;
/* The body as an object; an empty one counts as {}. */
json_t *body_object(const struct request *rq, struct err *err) must_use;
/* The two routes of create. */
enum create_version {
    CREATE_V1, /* `secure` may be absent or false, and the timeout is 15 s if none is given */
    CREATE_V2,
};
/* Decodes the body of a create; the result borrows from `body`. Of the actions it takes the operator's defaults. */
bool create_decode(const json_t *body, enum create_version version, const struct actions *actions, struct arena *arena,
                   struct sandbox_request *out, struct err *err) must_use;
/* Where fields about the network stand. */
enum network_place {
    NETWORK_BESIDE = 1 << 0, /* the body of a create */
    NETWORK_CREATE = 1 << 1, /* its `network` */
    NETWORK_UPDATE = 1 << 2, /* the body of an update */
};
/* Fails if a field is spelt in a way, or stands at a place, that would be ignored; says what is right. */
bool network_refuse_misspelt(const json_t *object, enum network_place place, struct err *err) must_use;
/*
 * What a sandbox may reach, from `network` of a create (prefix "network.", for errors) or the body of an update (""); in
 * the arena. `internet`: is internet access on?
 */
bool network_decode(const json_t *network, const char *prefix, bool internet, const struct actions *actions,
                    struct arena *arena, struct net_policy *out, struct err *err) must_use;
/* Are there rules to show? Then network_encode() writes them into an object. */
bool network_is_given(const struct net_policy *policy);
void network_encode(struct json_out *json, struct arena *arena, const struct net_policy *policy);
/* A sandbox id, without the suffix that old clients add. */
bool sandbox_id_decode(struct str segment, struct str *out_id, struct err *err) must_use;
/* The same for the path's first parameter. False, and answered, if it is not valid. */
bool path_id(struct request *rq, struct str *out_id) must_use;

/* The answer of create and connect (with a name: as a member); the answer of get; a row of a list. */
void sandbox_encode(struct json_out *json, const char *name, const struct request *rq, const struct sandbox_info *info);
void sandbox_detail_encode(struct json_out *json, const struct request *rq, const struct sandbox_info *info);
void sandbox_row_encode(struct json_out *json, const struct sandbox_info *info);
void time_encode(struct json_out *json, const char *name, int64_t wall_us);

#endif
