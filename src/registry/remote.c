/*
 * An image from a registry. The mirrors are asked first. One that does not have the image, or does not answer, is passed over.
 * If it has the image but not all its layers, the registry itself is asked for these: their digests are known.
 *
 * Each thread talks to the registry for itself (struct fetcher), with the login that the manifest was got with. They share the
 * promise of room, and the knowledge that a mirror does not have all layers.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/fd.h"
#include "registry/client.h"
#include "registry/digest.h"
#include "registry/source.h"

enum { WAIT_FOR_OTHER_MS = 250 };

/* A thread's. */
struct fetcher {
    struct client client;
    struct arena arena;
};

struct remote {
    const struct fetch_config *config;
    struct client client;            /* for documents */
    const struct endpoint *registry; /* itself, if the client asks a mirror */
    struct manifest manifest;
    struct str place; /* names the repository, for blobs.h */
    struct image image;
    bool is_promised[LIMIT_IMAGE_LAYERS]; /* this layer is in the promise */
    bool has_given;                       /* there is no way back */
    uint32_t fetcher_count;               /* that are set up */
    struct fetcher fetchers[LIMIT_PULL_LAYERS];
    pthread_mutex_t lock; /* of what follows */
    struct blob_promise promise;
    bool is_passed_over; /* the mirror has not all layers */
};

/* ---- documents ---- */

/* Checked against the digest that was asked for, or that the registry says. */
static bool check_document(const char *want_hex, const struct web_answer *answer, char out_hex[DIGEST_HEX_BYTES],
                           struct err *err)
{
    char told[DIGEST_HEX_BYTES];

    sha256_hex(answer->body, out_hex);
    if (want_hex && strcmp(want_hex, out_hex) != 0)
        return err_set(err, ERR_INVALID, "the registry's manifest does not have the digest sha256:%.12s…", want_hex);
    if (!want_hex && answer->digest.len && (!digest_parse(answer->digest, told) || strcmp(told, out_hex) != 0))
        return err_set(err, ERR_INVALID, "the registry's manifest does not have the digest that it says");
    return true;
}

/* want_hex NULL: what the reference has. */
static bool get_document(struct remote *remote, const char *want_hex, struct web_answer *out,
                         char out_hex[DIGEST_HEX_BYTES], struct err *err)
{
    struct client *client = &remote->client;
    struct str what = want_hex ? arena_format(client->arena, "manifests/sha256:%s", want_hex)
                               : arena_format(client->arena, "manifests/%s", client->reference->tag);

    return client_ask(client, "GET", what, STR(MANIFEST_ACCEPT), out, err) &&
           check_document(want_hex, out, out_hex, err);
}

static const char *wanted_hex(const struct remote *remote)
{
    return remote->client.reference->hex[0] ? remote->client.reference->hex : NULL;
}

static bool no_image(const struct remote *remote, struct err *err)
{
    const char *architecture = remote->config->ask->architecture;
    struct str image = remote->client.image;

    return err_set(err, ERR_INVALID, "image '%.*s' has no variant for linux/%s", (int)MIN(image.len, (size_t)70),
                   image.at, architecture);
}

static bool find_manifest(struct remote *remote, struct err *err)
{
    struct pull_done *done = &remote->image.done;
    struct arena *arena = remote->client.arena;
    struct descriptor chosen;
    struct web_answer answer;
    enum document kind;

    if (!get_document(remote, wanted_hex(remote), &answer, done->reference_hex, err))
        return false;
    memcpy(done->digest_hex, done->reference_hex, DIGEST_HEX_BYTES);
    kind = document_kind(answer.content_type, answer.body);
    /* An index may be in an index; deeper ones make no sense. */
    for (int depth = 0; kind == DOCUMENT_INDEX && depth < 2; depth++) {
        if (!index_choose(answer.body, remote->config->ask->architecture, STR(""), arena, &chosen, &kind, err))
            return err->kind == ERR_NOT_FOUND ? no_image(remote, err) : false;
        if (!get_document(remote, chosen.hex, &answer, done->digest_hex, err))
            return false;
        kind = document_kind(answer.content_type, answer.body);
    }
    if (kind == DOCUMENT_SCHEMA1)
        return err_set(err, ERR_INVALID,
                       "the image has a manifest of the old kind (schema 1): push it again with a newer "
                       "Docker");
    if (kind != DOCUMENT_MANIFEST)
        return err_set(err, ERR_INVALID, "the registry's answer is not a manifest");
    return oci_manifest_parse(answer.body, arena, &remote->manifest, err);
}

/* ---- blobs ---- */

struct blob_sink {
    struct remote *remote;
    struct blob *blob;
};

static bool use_room(struct remote *remote, uint64_t bytes, struct err *err)
{
    pthread_mutex_lock(&remote->lock);
    bool fine = blob_promise_use(remote->config->blobs, &remote->promise, bytes, err);
    pthread_mutex_unlock(&remote->lock);
    return fine;
}

static bool sink_take(void *context, struct str piece, struct err *err)
{
    const struct blob_sink *sink = context;

    return use_room(sink->remote, piece.len, err) && blob_write(sink->blob, piece, err);
}

static bool sink_restart(void *context, struct err *err)
{
    return blob_restart(((const struct blob_sink *)context)->blob, err);
}

/* *out_resumed: part of it was there before. */
static bool download(struct remote *remote, struct client *client, const struct descriptor *what, struct blob *blob,
                     bool *out_resumed, int *out_fd, struct err *err)
{
    struct blob_sink into = { .remote = remote, .blob = blob };
    struct sink sink = { .have = blob->have, .take = sink_take, .restart = sink_restart, .context = &into };

    *out_resumed = blob->have > 0;
    return use_room(remote, blob->have, err) && client_download(client, what, &sink, err) &&
           blob_finish(remote->config->blobs, blob, out_fd, err);
}

/* Waits for the process, or the thread of this one, that downloads the same. */
static bool begin_blob(struct remote *remote, const struct web *web, struct blob *blob, int *out_fd, struct err *err)
{
    const struct blobs *blobs = remote->config->blobs;

    while (!blob_find(blobs, blob, out_fd)) {
        if (blob_begin(blobs, blob, err))
            return true;
        if (err->kind != ERR_CONFLICT || !web->wait(web->context, WAIT_FOR_OTHER_MS, err))
            return false;
    }
    return true;
}

static bool get_blob(struct remote *remote, struct client *client, const struct descriptor *what, int *out_fd,
                     struct err *err)
{
    bool was_resumed = true;

    /* What an earlier download has left may be damaged: then once more from the beginning. */
    for (int i = 0; i < 2 && was_resumed; i++) {
        struct blob blob;
        blob_init(&blob, remote->place, what->hex, what->size);
        *out_fd = -1;
        bool fine = begin_blob(remote, client->web, &blob, out_fd, err) &&
                    (*out_fd >= 0 || download(remote, client, what, &blob, &was_resumed, out_fd, err));
        blob_done(&blob);
        if (fine)
            return true;
        if (err->kind != ERR_INVALID)
            return false;
    }
    return false;
}

static bool read_config(struct remote *remote, struct str *out, struct err *err)
{
    auto_close int fd = -1;
    char *text = NULL;
    size_t len;

    if (!get_blob(remote, &remote->client, &remote->manifest.config, &fd, err) ||
        !fd_read_all(fd, LIMIT_REGISTRY_JSON_BYTES, &text, &len, err))
        return false;
    *out = arena_copy(remote->client.arena, str_of(text, len));
    free(text);
    return true;
}

/* What must be downloaded. */
static uint64_t missing_bytes(struct remote *remote, const bool *have)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < remote->manifest.layer_count; i++) {
        const struct descriptor *layer = &remote->manifest.layers[i];
        struct blob blob;
        blob_init(&blob, remote->place, layer->hex, layer->size);
        remote->is_promised[i] = !have[i] && !blob_seems_here(remote->config->blobs, &blob);
        bytes += remote->is_promised[i] ? layer->size : 0;
    }
    return bytes;
}

static void set_up_fetchers(struct remote *remote)
{
    const struct fetch_config *config = remote->config;

    for (; remote->fetcher_count < config->thread_count; remote->fetcher_count++) {
        struct fetcher *fetcher = &remote->fetchers[remote->fetcher_count];
        arena_init(&fetcher->arena);
        fetcher->client = remote->client;
        fetcher->client.arena = &fetcher->arena;
        fetcher->client.web = &config->web[remote->fetcher_count];
    }
}

static bool prepare(void *context, const bool *have, struct err *err)
{
    struct remote *remote = context;
    bool was_said = false;

    remote->has_given = true;
    set_up_fetchers(remote);
    /* Those who are waited for may be downloading the same. */
    while (!blobs_make_room(remote->config->blobs, missing_bytes(remote, have), &remote->promise, err))
        if (!image_wait_for_room(remote->config, &was_said, err))
            return false;
    return true;
}

static bool make_room_for_config(struct remote *remote, struct err *err)
{
    bool was_said = false;

    while (!blobs_make_room(remote->config->blobs, remote->manifest.config.size, &remote->promise, err))
        if (!image_wait_for_room(remote->config, &was_said, err))
            return false;
    return true;
}

static void say_passed_over(const struct client *client, const struct err *err)
{
    client->web->said(client->web->context, arena_format(client->arena, "The mirror %s is passed over: %s",
                                                         client->endpoint->origin, err->message));
}

static bool is_final(const struct err *err)
{
    return err->kind == ERR_CONFLICT || err->kind == ERR_FULL || err->kind == ERR_INTERNAL;
}

static bool is_passed_over(struct remote *remote)
{
    pthread_mutex_lock(&remote->lock);
    bool is = remote->is_passed_over;
    pthread_mutex_unlock(&remote->lock);
    return is;
}

/* True: nobody has before. */
static bool pass_over(struct remote *remote)
{
    pthread_mutex_lock(&remote->lock);
    bool is_first = !remote->is_passed_over;
    remote->is_passed_over = true;
    pthread_mutex_unlock(&remote->lock);
    return is_first;
}

static void ask_the_registry(struct remote *remote, struct client *client)
{
    client->endpoint = remote->registry;
    client->authorization = STR("");
}

static bool get_layer(struct remote *remote, struct client *client, uint32_t number, int *out_fd, struct err *err)
{
    const struct descriptor *layer = &remote->manifest.layers[number];

    if (client->endpoint->is_mirror && is_passed_over(remote))
        ask_the_registry(remote, client);
    if (get_blob(remote, client, layer, out_fd, err))
        return true;
    if (!client->endpoint->is_mirror || is_final(err))
        return false;
    if (pass_over(remote)) /* for the rest of them, too */
        say_passed_over(client, err);
    ask_the_registry(remote, client);
    return get_blob(remote, client, layer, out_fd, err);
}

static bool open_layer(void *context, uint32_t thread, uint32_t number, int *out_fd, struct err *err)
{
    struct remote *remote = context;

    if (!get_layer(remote, &remote->fetchers[thread].client, number, out_fd, err))
        return false;
    pthread_mutex_lock(&remote->lock);
    if (remote->is_promised[number])
        blob_promise_less(&remote->promise, remote->manifest.layers[number].size);
    pthread_mutex_unlock(&remote->lock);
    return true;
}

/* ---- the whole ---- */

static bool fetch_digest(struct remote *remote, struct err *err)
{
    struct client *client = &remote->client;
    struct pull_done *done = &remote->image.done;
    const char *hex = wanted_hex(remote);
    struct str what = hex ? arena_format(client->arena, "manifests/sha256:%s", hex)
                          : arena_format(client->arena, "manifests/%s", client->reference->tag);
    struct web_answer answer;

    if (!client_ask(client, "HEAD", what, STR(MANIFEST_ACCEPT), &answer, err))
        return false;
    if (!answer.digest.len)
        return get_document(remote, hex, &answer, done->reference_hex, err);
    if (!digest_parse(answer.digest, done->reference_hex) || (hex && strcmp(hex, done->reference_hex) != 0))
        return err_set(err, ERR_INVALID, "the registry gives a digest that is none, or another one");
    return true;
}

static bool fetch_image(struct remote *remote, struct err *err)
{
    struct image *image = &remote->image;
    struct str config_json;

    if (!find_manifest(remote, err) || !make_room_for_config(remote, err) || !read_config(remote, &config_json, err) ||
        !image_describe(remote->config, &remote->manifest, config_json, image, err))
        return false;
    image->open_layer = open_layer;
    image->prepare = prepare;
    image->context = remote;
    return image_give(remote->config, image, err);
}

/* False, and *out_next: another one may have it. */
static bool fetch_from(const struct fetch_config *config, const struct reference *reference,
                       const struct endpoint *endpoint, const struct endpoint *registry, struct pull_done *out,
                       bool *out_next, struct err *err)
{
    struct remote remote = { .config = config,
                             .registry = registry,
                             .lock = PTHREAD_MUTEX_INITIALIZER,
                             .promise = { .fd = -1 },
                             .client = { .web = config->web,
                                         .arena = config->arena,
                                         .login = &config->ask->login,
                                         .endpoint = endpoint,
                                         .reference = reference,
                                         .image = config->ask->image } };

    remote.place = arena_format(config->arena, "%s/v2/%s%s", endpoint->origin, endpoint->prefix, reference->path);
    bool fine = config->ask->only_digest ? fetch_digest(&remote, err) : fetch_image(&remote, err);
    blob_promise_done(&remote.promise);
    for (uint32_t i = 0; i < remote.fetcher_count; i++)
        arena_done(&remote.fetchers[i].arena);
    if (fine)
        *out = remote.image.done;
    *out_next = !fine && endpoint != registry && !remote.has_given && !is_final(err);
    if (*out_next)
        say_passed_over(&remote.client, err);
    return fine;
}

bool registry_fetch(const struct fetch_config *config, const struct reference *reference, struct pull_done *out,
                    struct err *err)
{
    struct endpoint endpoints[LIMIT_REGISTRY_MIRRORS + 1];
    uint32_t count = endpoints_find(config->options, reference, endpoints);

    for (uint32_t i = 0; i < count; i++) {
        bool may_go_on;
        if (fetch_from(config, reference, &endpoints[i], &endpoints[count - 1], out, &may_go_on, err))
            return true;
        if (!may_go_on)
            return false;
    }
    return false;
}
