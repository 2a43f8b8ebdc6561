/*
 * build.h - the actions on templates that teams build: register, upload, start, status; names, tags, visibility, delete.
 *
 * Ownership, threads and failure are as in actions.h, with one exception that clients rely on: a build, and a template that
 * is named by its id, is ERR_DENIED if it belongs to another team, and not ERR_NOT_FOUND.
 */
#ifndef ACTIONS_BUILD_H
#define ACTIONS_BUILD_H

#include "actions/actions.h"
#include "template/template.h"

/* ---- build.c: from register to ready ---- */

struct build_order {
    struct str name; /* [namespace/]alias[:tag] */
    uint32_t tag_count;
    const struct str *tags;        /* besides the name's */
    uint32_t cpu_count, memory_mb; /* 0: the default */
    uint32_t free_disk_mb;         /* that its sandboxes are to have at least; 0: no matter */
};
/* ERR_INVALID, ERR_DENIED (the name is taken), ERR_CONFLICT (it is an id), ERR_LIMIT. */
bool action_build_register(const struct actions *actions, const struct caller *caller, const struct build_order *order,
                           struct arena *arena, struct built_template *out_template, struct build_row *out_build,
                           struct err *err) must_use;

struct upload_link {
    bool is_present;
    struct str team_id;
    struct str expires; /* seconds since 1970, as text */
    struct str token;
};
/* For an archive of the caller's team. ERR_INVALID: no hash. ERR_NOT_FOUND: no such template of this team. */
bool action_upload_link(const struct actions *actions, const struct caller *caller, struct str template_id,
                        struct str hash, struct arena *arena, struct upload_link *out, struct err *err) must_use;
/* The holder of a link has no key. Never blocks. ERR_DENIED: forged or expired. */
bool action_upload_check(const struct actions *actions, struct str team_id, struct str hash, struct str expires,
                         struct str token, struct err *err) must_use;
/* After that check; what follows is upload_write() and upload_keep() or upload_drop(). */
bool action_upload_begin(const struct actions *actions, struct str team_id, struct str hash, uint64_t size,
                         struct upload **out, struct err *err) must_use;

struct build_recipe {
    enum build_dialect dialect;
    struct str from_image, from_template, from_archive; /* one of these; the last is the hash of an upload */
    struct str archive_image;                           /* which of the archive; empty: there is just one */
    struct registry_login login;
    bool force;
    struct str start_cmd, ready_cmd;
    uint32_t step_count;
    const struct build_step *steps;
};
/*
 * What is wrong with the recipe fails the build, not this call: the reason is in its row. ERR_INVALID: it is not waiting, or
 * not exactly one source is given (then the build fails too). ERR_UNAVAILABLE: there is no builder.
 */
bool action_build_start(const struct actions *actions, const struct caller *caller, struct str template_id,
                        struct str build_id, const struct build_recipe *recipe, struct arena *arena, struct err *err)
    must_use;

struct build_status {
    struct build_row row;
    struct build_line *lines;
    size_t line_count;
};
/* filter->build_id is ignored. ERR_INVALID also for a build that does not exist: clients expect a 400. */
bool action_build_status(const struct actions *actions, const struct caller *caller, struct str template_id,
                         struct str build_id, const struct build_log_filter *filter, struct arena *arena,
                         struct build_status *out, struct err *err) must_use;
/* It is over soon after. ERR_CONFLICT: it does not run. */
bool action_build_cancel(const struct actions *actions, const struct caller *caller, struct str template_id,
                         struct str build_id, struct arena *arena, struct err *err) must_use;
/* Administrators: all builds that the caller's team has running. */
bool action_builds_cancel(const struct actions *actions, const struct caller *caller, struct arena *arena,
                          size_t *out_cancelled, struct err *err) must_use;

/* ---- template_change.c: what becomes of a template ---- */

/* A template in a list: an operator's, or one of a team. */
struct template_entry {
    const struct template_row *row; /* of the operator; NULL: */
    const struct built_template *built;
    struct str id;
    int64_t created_us;
};
/* The operator's and the team's own; newest first, ties by id. */
bool action_template_entries(const struct actions *actions, const struct caller *caller, struct arena *arena,
                             struct template_entry **out, size_t *out_count, struct err *err) must_use;
/* By id or name. ERR_DENIED for another team's. */
bool action_template_get(const struct actions *actions, const struct caller *caller, struct str ref,
                         struct arena *arena, struct template_entry *out, struct err *err) must_use;
/* Newest first. */
bool action_template_builds(const struct actions *actions, const struct built_template *template, int64_t before_us,
                            struct str before_id, uint32_t limit, struct arena *arena, struct build_row **out,
                            size_t *out_count, struct err *err) must_use;
/* Is there one, and with a tag in the reference, has it a ready build of that tag? ERR_INVALID: another namespace. */
bool action_template_exists(const struct actions *actions, const struct caller *caller, struct str ref,
                            struct arena *arena, struct str *out_id, bool *out_public, struct err *err) must_use;
/*
 * Others use it as team/name then. claim: if the caller is an administrator, its names are for all teams, too. NULL is_public:
 * no change. ERR_CONFLICT: a claimed name is taken.
 */
bool action_template_publish(const struct actions *actions, const struct caller *caller, struct str ref,
                             const bool *is_public, bool claim, struct arena *arena, struct built_template *out,
                             struct err *err) must_use;
/* Of a template or a snapshot; a tag is ignored. ERR_CONFLICT while sandboxes of the team are based on it. Cancels its builds. */
bool action_template_delete(const struct actions *actions, const struct caller *caller, struct str ref,
                            struct arena *arena, struct err *err) must_use;

bool action_tags_assign(const struct actions *actions, const struct caller *caller, struct str target,
                        const struct str *tags, uint32_t count, struct arena *arena, struct str *out_build_id,
                        const struct str **out_tags, uint32_t *out_count, struct err *err) must_use;
bool action_tags_remove(const struct actions *actions, const struct caller *caller, struct str name,
                        const struct str *tags, uint32_t count, struct arena *arena, struct err *err) must_use;
/* filter->template_id is ignored. Of a snapshot: its builds, each with its own tag. */
bool action_tags_list(const struct actions *actions, const struct caller *caller, struct str ref,
                      const struct tag_filter *filter, struct arena *arena, struct tag_row **out, size_t *out_count,
                      struct err *err) must_use;
/* A tag as it is stored: in lower case, without space around it. ERR_INVALID; also for a UUID, which names a build. */
bool template_tag_parse(struct str text, struct arena *arena, struct str *out, struct err *err) must_use;

/* ---- template_disk.c: what templates are made of, and what they take ---- */

struct template_detail {
    struct template_row row; /* with the layers of the tag's build, if there is one */
    bool is_own, is_built, has_build;
    bool is_whole;        /* of another team: no tags, no ids of builds and layers */
    struct str team_slug; /* of a built one */
    struct str tag;
    struct layer_row *layers; /* row.layer_count */
    struct tag_row *tags;     /* if it is whole, each once; of an operator's template none */
    size_t tag_count;
    const struct build_row *last; /* for the owner: the newest build, in any state. NULL: none */
    struct template_uses uses;
};
/* By id or name, with or without a tag. Others than the owner may inspect what they may use, and get no texts of steps. */
bool action_template_inspect(const struct actions *actions, const struct caller *caller, struct str ref,
                             struct arena *arena, struct template_detail *out, struct err *err) must_use;

struct disk_report {
    struct build_disk builds;
    struct upload_total uploads;
    struct download_total downloads; /* with `all` */
};
/* Of the caller's team. all: of all teams, for administrators; ERR_DENIED for others. */
bool action_template_disk(const struct actions *actions, const struct caller *caller, bool all, struct arena *arena,
                          struct disk_report *out, struct err *err) must_use;
struct prune_report {
    struct pruned cache;
    struct upload_total uploads;
    struct download_total downloads; /* with `all` */
};
/* Removes what no template, snapshot, sandbox or running build needs; dry_run: only says what. `all` as above. */
bool action_template_prune(const struct actions *actions, const struct caller *caller, bool all, bool dry_run,
                           struct prune_report *out, struct err *err) must_use;

/* For the other files of actions/: all of a team that has no sandboxes. */
bool templates_delete_all(const struct actions *actions, struct str team_id, struct arena *arena, size_t *out_count,
                          struct err *err) must_use;
bool is_uuid(struct str s);

#endif
