/*
 * The first matching row wins, so literal segments come before captured ones. A row with NOT_YET is a route that upstream
 * has and we do not have yet: it answers 501 with a message instead of a 404.
 */
#include "api/routes.h"

#include "api/request.h"

#define ROUTE(method, pattern, handler, flags, help)           \
    {                                                          \
        HTTP_##method, pattern, (void *)(handler), flags, help \
    }
#define LATER(method, pattern, what)                            \
    {                                                           \
        HTTP_##method, pattern, NULL, NEEDS_KEY | NOT_YET, what \
    }
#define LATER_ADMIN(method, pattern, what)                        \
    {                                                             \
        HTTP_##method, pattern, NULL, NEEDS_ADMIN | NOT_YET, what \
    }

static const struct http_route routes[] = {
    ROUTE(GET, "/health", api_health, ON_LOOP, "Is the server there?"),

    ROUTE(POST, "/v2/sandboxes", api_sandbox_create_v2, NEEDS_KEY | STARTS, "Start a sandbox from a template"),
    ROUTE(POST, "/sandboxes", api_sandbox_create_v1, NEEDS_KEY | STARTS, "The same, as older clients call it"),
    ROUTE(GET, "/v2/sandboxes", api_sandbox_list_v2, NEEDS_KEY, "List sandboxes, filtered and in pages"),
    ROUTE(GET, "/sandboxes", api_sandbox_list_v1, NEEDS_KEY, "List running sandboxes"),
    ROUTE(GET, "/sandboxes/metrics", api_sandbox_metrics_batch, NEEDS_KEY, "What several sandboxes use now"),
    ROUTE(GET, "/sandboxes/{id}", api_sandbox_get, NEEDS_KEY | ON_LOOP, "Describe a sandbox"),
    ROUTE(DELETE, "/sandboxes/{id}", api_sandbox_kill, NEEDS_KEY, "Kill a sandbox"),
    ROUTE(POST, "/sandboxes/{id}/timeout", api_sandbox_timeout, NEEDS_KEY | PAUSES,
          "Set a sandbox's deadline from now"),
    ROUTE(POST, "/sandboxes/{id}/refreshes", api_sandbox_refresh, NEEDS_KEY, "Extend a sandbox's deadline"),
    ROUTE(POST, "/v2/sandboxes/{id}/connect", api_sandbox_connect_v2, NEEDS_KEY | PAUSES,
          "Connect to a sandbox: resume it, or extend its deadline"),
    ROUTE(POST, "/sandboxes/{id}/connect", api_sandbox_connect_v1, NEEDS_KEY | PAUSES,
          "The same, as older clients call it"),
    ROUTE(POST, "/sandboxes/{id}/pause", api_sandbox_pause, NEEDS_KEY | PAUSES, "Pause a sandbox"),
    ROUTE(POST, "/sandboxes/{id}/resume", api_sandbox_resume, NEEDS_KEY | PAUSES, "Resume a paused sandbox"),
    ROUTE(POST, "/sandboxes/{id}/fork", api_sandbox_fork, NEEDS_KEY | STARTS, "Copy a sandbox while it runs"),
    ROUTE(PUT, "/sandboxes/{id}/network", api_sandbox_network, NEEDS_KEY | CHANGES, "Replace what a sandbox may reach"),
    ROUTE(POST, "/sandboxes/{id}/snapshots", api_snapshot_create, NEEDS_KEY | PAUSES, "Take a snapshot of a sandbox"),
    ROUTE(GET, "/snapshots", api_snapshot_list, NEEDS_KEY, "List snapshots, filtered and in pages"),
    ROUTE(GET, "/sandboxes/{id}/metrics", api_sandbox_metrics, NEEDS_KEY, "What a sandbox has used, over time"),
    ROUTE(GET, "/sandboxes/{id}/logs", api_sandbox_logs_v1, NEEDS_KEY, "What has happened to a sandbox, as log lines"),
    ROUTE(GET, "/v2/sandboxes/{id}/logs", api_sandbox_logs_v2, NEEDS_KEY, "The same, in either direction and searched"),

    ROUTE(GET, "/templates", api_template_list, NEEDS_KEY, "List templates"),
    ROUTE(GET, "/v2/templates", api_template_list_v2, NEEDS_KEY, "List templates in pages"),
    ROUTE(GET, "/default-templates", api_template_defaults, NEEDS_KEY, "List the operator's templates"),
    ROUTE(GET, "/templates/aliases/{alias}", api_template_alias, NEEDS_KEY, "Does a template of this name exist?"),
    ROUTE(POST, "/v3/templates", api_build_register, NEEDS_KEY, "Register a build, of a new or known template"),
    ROUTE(POST, "/templates/tags", api_tags_assign, NEEDS_KEY, "Give tags to a build"),
    ROUTE(DELETE, "/templates/tags", api_tags_remove, NEEDS_KEY, "Remove tags of a template"),
    ROUTE(GET, "/template-disk", api_template_disk, NEEDS_KEY | PAUSES, "What the team's templates take on disk"),
    ROUTE(POST, "/template-prune", api_template_prune, NEEDS_KEY | PAUSES, "Remove what its templates do not need"),
    ROUTE(GET, "/templates/{id}/inspect", api_template_inspect, NEEDS_KEY | PAUSES,
          "What a template is made of, and who uses it"),
    ROUTE(GET, "/templates/{id}", api_template_get, NEEDS_KEY, "Describe a template and its builds"),
    ROUTE(PATCH, "/v2/templates/{id}", api_template_patch_v2, NEEDS_KEY, "Publish a template, or make it private"),
    ROUTE(PATCH, "/templates/{id}", api_template_patch_v1, NEEDS_KEY, "The same, as older clients call it"),
    ROUTE(DELETE, "/templates/{id}", api_template_delete, NEEDS_KEY | PAUSES, "Delete a template or a snapshot"),
    ROUTE(GET, "/templates/{id}/files/{hash}", api_build_files, NEEDS_KEY, "Get a link to upload an archive for COPY"),
    ROUTE(PUT, "/template-files/{team}/{hash}", NULL, UPLOADS, "Upload it, by such a link"),
    ROUTE(POST, "/v2/templates/{id}/builds/{build}", api_build_start, NEEDS_KEY, "Start a build that is registered"),
    ROUTE(GET, "/templates/{id}/builds/{build}/status", api_build_status, NEEDS_KEY,
          "How a build goes, and the next lines of its log"),
    ROUTE(GET, "/templates/{id}/builds/{build}/logs", api_build_logs, NEEDS_KEY, "The log, in either direction"),
    ROUTE(DELETE, "/templates/{id}/builds/{build}", api_build_cancel, NEEDS_KEY, "Cancel a build that runs"),
    ROUTE(GET, "/templates/{id}/tags", api_tags_list, NEEDS_KEY, "The tags of a template, and their builds"),
    ROUTE(GET, "/templates/{id}/tags/count", api_tags_count, NEEDS_KEY, "How many there are"),
    ROUTE(GET, "/templates/{id}/tags/exists", api_tags_exists, NEEDS_KEY, "Is there this one?"),
    ROUTE(GET, "/templates/{id}/tags/groups", api_tags_groups, NEEDS_KEY, "Tags with what they meant before"),
    ROUTE(GET, "/templates/{id}/tags/{tag}/assignments", api_tags_assignments, NEEDS_KEY, "The same of one tag"),
    ROUTE(POST, "/v2/templates", api_build_gone, ON_LOOP, "Build by docker push: gone, answers 410"),
    ROUTE(POST, "/templates", api_build_gone, ON_LOOP, "Build by docker push: gone, answers 410"),
    ROUTE(POST, "/templates/{id}", api_build_gone, ON_LOOP, "Build by docker push: gone, answers 410"),
    ROUTE(POST, "/templates/{id}/builds/{build}", api_build_gone, ON_LOOP, "Build by docker push: gone, answers 410"),

    ROUTE(GET, "/api-keys", api_key_list, NEEDS_ADMIN, "List API keys"),
    ROUTE(POST, "/api-keys", api_key_create, NEEDS_ADMIN, "Make an API key, shown once"),
    ROUTE(PATCH, "/api-keys/{id}", api_key_rename, NEEDS_ADMIN, "Rename an API key"),
    ROUTE(DELETE, "/api-keys/{id}", api_key_revoke, NEEDS_ADMIN, "Revoke an API key"),
    ROUTE(GET, "/teams", api_team_list, NEEDS_ADMIN, "List teams"),
    ROUTE(GET, "/teams/{id}/metrics", api_team_metrics, NEEDS_KEY, "How many sandboxes a team had, over time"),
    ROUTE(GET, "/teams/{id}/metrics/max", api_team_metrics_max, NEEDS_KEY, "The most it had"),
    LATER_ADMIN(POST, "/access-tokens", "Access tokens"),
    LATER_ADMIN(DELETE, "/access-tokens/{id}", "Access tokens"),

    LATER(GET, "/volumes", "Volumes"),
    LATER(POST, "/volumes", "Volumes"),
    LATER(GET, "/volumes/{id}", "Volumes"),
    LATER(DELETE, "/volumes/{id}", "Volumes"),
    LATER(GET, "/secrets", "Secrets"),
    LATER(POST, "/secrets", "Secrets"),
    LATER(GET, "/secrets/{name}", "Secrets"),
    LATER(POST, "/secrets/{name}", "Secrets"),
    LATER(DELETE, "/secrets/{name}", "Secrets"),
    ROUTE(GET, "/events/sandboxes", api_event_list, NEEDS_KEY, "What has happened to all sandboxes"),
    ROUTE(GET, "/events/sandboxes/{id}", api_event_list_of_sandbox, NEEDS_KEY, "What has happened to one"),
    LATER(GET, "/events/webhooks", "Webhooks"),
    LATER(POST, "/events/webhooks", "Webhooks"),
    LATER(GET, "/events/webhooks/{id}", "Webhooks"),
    LATER(PATCH, "/events/webhooks/{id}", "Webhooks"),
    LATER(DELETE, "/events/webhooks/{id}", "Webhooks"),

    LATER_ADMIN(GET, "/nodes", "Nodes"),
    LATER_ADMIN(GET, "/nodes/{id}", "Nodes"),
    LATER_ADMIN(POST, "/nodes/{id}", "Nodes"),
    ROUTE(GET, "/admin/sandboxes/running-counts", api_running_counts, NEEDS_ADMIN, "Count sandboxes by team"),
    ROUTE(GET, "/admin/pool", api_pool, NEEDS_ADMIN, "What the pool of started sandboxes has and did"),
    ROUTE(POST, "/admin/teams/{id}/sandboxes/kill", api_team_kill, NEEDS_ADMIN, "Kill a team's sandboxes"),
    ROUTE(GET, "/admin/api-keys", api_key_list_all, NEEDS_ADMIN, "List the API keys of all teams"),
    ROUTE(POST, "/admin/teams", api_team_create, NEEDS_ADMIN, "Make a team"),
    ROUTE(DELETE, "/admin/teams/{id}", api_team_delete, NEEDS_ADMIN, "Delete a team"),
    ROUTE(GET, "/admin/template-disk", api_template_disk_all, NEEDS_ADMIN | PAUSES,
          "What templates of all teams take on disk"),
    ROUTE(POST, "/admin/template-prune", api_template_prune_all, NEEDS_ADMIN | PAUSES,
          "Remove what no template needs, and downloads"),
    ROUTE(POST, "/admin/teams/{id}/builds/cancel", api_builds_cancel, NEEDS_ADMIN, "Cancel a team's builds"),
    ROUTE(POST, "/admin/teams/{id}/api-keys", api_team_key_create, NEEDS_ADMIN, "Make a key for a team"),
    ROUTE(DELETE, "/admin/teams/{id}/api-keys/{key}", api_team_key_revoke, NEEDS_ADMIN, "Revoke a team's key"),
};

const struct http_route *api_routes(size_t *out_count)
{
    *out_count = COUNT_OF(routes);
    return routes;
}
