/*
 * builds.h - what the files about templates and their builds share.
 */
#ifndef API_BUILDS_H
#define API_BUILDS_H

#include "actions/build.h"
#include "api/request.h"

/* recipe_json.c: the body that starts a build, without its dialect. Borrows from it. ERR_INVALID. */
bool recipe_decode(const json_t *body, struct arena *arena, struct build_recipe *out, struct err *err) must_use;
/* How old the client's SDK is, by its User-Agent. */
enum build_dialect dialect_of(struct str user_agent);
/* A list of texts; none if it is absent. */
bool texts_decode(const json_t *object, const char *name, struct arena *arena, const struct str **out,
                  uint32_t *out_count, struct err *err) must_use;

extern const struct str build_state_name[BUILD_STATE_COUNT]; /* as clients know them */

/*
 * uploads.c: archives for COPY, by a signed link and without a key. They are streamed to disk: the loop gets the bytes, and a
 * worker writes them. On the loop, all of it.
 */
struct upload_desk;
struct upload_desk *upload_desk_new(const struct api_config *config) must_use;
void upload_desk_free(struct upload_desk *desk); /* when the workers are freed */
/* Answers it, now or later. */
void upload_desk_handle(struct upload_desk *desk, struct request *rq);
/* The absolute URL of a link: as the client has reached us, or the proxy before us. */
struct str upload_url(const struct request *rq, struct str hash, const struct upload_link *link);

#endif
