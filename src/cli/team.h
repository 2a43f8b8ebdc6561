/*
 * team.h - finds the team that a command line names.
 */
#ifndef CLI_TEAM_H
#define CLI_TEAM_H

#include "cli/client.h"

/* "/admin/teams/<id>" and what follows, of the team with this name or id. ERR_NOT_FOUND. */
bool team_target(struct client *client, struct str name_or_id, const char *after, struct str *out_target,
                 struct err *err) must_use;

#endif
