/*
 * Theory of operation
 *
 * send_patiently() is one request with all that may come between it and its answer:
 *
 *   no answer, 429, 5xx     wait (Retry-After, or twice as long each time), try again; LIMIT_REGISTRY_TRIES in all
 *   301 302 303 307 308     go there, LIMIT_REGISTRY_REDIRECTS times; Authorization stays behind when scheme, host or port
 *                           change, because links to storage are signed and their hosts are none of our business
 *   401                     log in, once for each request, and ask the registry again
 *
 * Logging in: with Basic, the login goes to the registry itself. With Bearer, the registry names a server that gives out
 * tokens: the login goes there, and the token to the registry. Both only by https, unless the operator has named the host as
 * insecure: what sends the request refuses it otherwise. ECR's password comes from AWS, by a signed request.
 *
 * A download counts as a new try as long as it gets further.
 */
#include "registry/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/encode.h"
#include "registry/aws.h"

enum {
    WAIT_FIRST_MS = 500,
    HTTP_OK = 200,
    HTTP_PARTIAL = 206,
    LEAST_NAME = 12, /* of an image, in an error; less tells nobody anything */
};

/* ---- errors ---- */

#define NAME_ARG(client) (int)MIN((client)->image.len, (size_t)70), (client)->image.at

static bool refused(const struct client *client, const struct web_answer *answer, struct err *err)
{
    switch (registry_code_of(answer->body)) {
    case CODE_NAME_UNKNOWN:
        return err_set(err, ERR_NOT_FOUND, "repository '%.*s' not found: verify the image name is correct",
                       NAME_ARG(client));
    case CODE_DENIED:
        return err_set(err, ERR_DENIED, "access denied to '%.*s': you don't have permission to pull this image",
                       NAME_ARG(client));
    case CODE_MANIFEST_UNKNOWN:
        return err_set(err, ERR_NOT_FOUND, "image '%.*s' not found: the image or tag does not exist in the registry",
                       NAME_ARG(client));
    case CODE_UNAUTHORIZED:
    case CODE_NONE:
        break;
    }
    if (answer->status == 404)
        return err_set(err, ERR_NOT_FOUND, "image '%.*s' not found: the image or tag does not exist in the registry",
                       NAME_ARG(client));
    if (answer->status == 401 || answer->status == 403)
        return err_set(err, ERR_DENIED, "access denied to '%.*s': authentication required or insufficient permissions",
                       NAME_ARG(client));
    return err_set(err, answer->status == 429 || answer->status >= 500 ? ERR_UNAVAILABLE : ERR_INVALID,
                   "failed to pull image '%.*s': registry returned status code %u", NAME_ARG(client), answer->status);
}

/* Says of which image it is, unless it says so already. */
static bool failed(const struct client *client, struct err *err)
{
    struct err why = *err;

    if (why.kind == ERR_CONFLICT || strstr(why.message, "image '") || strstr(why.message, "repository '") ||
        strstr(why.message, "access denied"))
        return false;
    /* The reason must fit. */
    const size_t frame = sizeof "failed to pull image '': ", len = strlen(why.message);
    const size_t room = frame + len < sizeof err->message ? sizeof err->message - frame - len : 0;
    if (room < LEAST_NAME)
        return false;
    (void)err_set(err, why.kind, "failed to pull image '%.*s': %s", (int)MIN(client->image.len, room), client->image.at,
                  why.message);
    err->sys = why.sys;
    return false;
}

/* ---- URLs ---- */

/* "https://host:port", without what follows. Empty: not a URL with a host. */
static struct str url_origin(struct str url)
{
    struct str rest = url;

    if (!str_skip_nocase(&rest, STR("https://")) && !str_skip_nocase(&rest, STR("http://")))
        return STR("");
    size_t len = 0;
    while (len < rest.len && rest.at[len] != '/' && rest.at[len] != '?' && rest.at[len] != '#')
        len++;
    return len ? str_of(url.at, (size_t)(rest.at - url.at) + len) : STR("");
}

/* Where a Location leads from here; empty: nowhere. */
static struct str url_join(struct arena *arena, struct str base, struct str location)
{
    struct str origin = url_origin(base);

    for (size_t i = 0; i < location.len; i++)
        if (location.at[i] <= ' ' || location.at[i] == '\x7f')
            return STR("");
    if (location.len == 0 || location.len > LIMIT_REGISTRY_HEADER_BYTES)
        return STR("");
    if (url_origin(location).len)
        return location;
    if (str_starts(location, STR("//")))
        return arena_format(arena, "%s%.*s", str_starts(base, STR("https:")) ? "https:" : "http:", STR_ARG(location));
    if (str_starts(location, STR("/")))
        return arena_format(arena, "%.*s%.*s", STR_ARG(origin), STR_ARG(location));
    return STR(""); /* other schemes, and relative paths, which no registry sends */
}

/* ---- one answer ---- */

static void add_header(struct web_want *want, const char *name, struct str value)
{
    if (value.len && want->header_count < WEB_HEADERS_MOST)
        want->headers[want->header_count++] = (struct web_header){ name, value };
}

static bool is_redirect(uint32_t status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

enum send_how {
    SEND_TO_REGISTRY, /* with what the login has given */
    SEND_TO_LOGIN,    /* has a password in it: no redirect is followed */
    SEND_PLAIN,
};

/* Follows redirects. *out_moved: the answer is not the registry's own. */
static bool send_and_follow(struct client *client, const struct web_want *want, enum send_how how,
                            struct web_answer *out, bool *out_moved, struct err *err)
{
    struct web_want now = *want;
    struct str first = url_origin(want->url);

    *out_moved = false;
    for (int hops = 0;; hops++) {
        struct web_want with = now;
        if (how == SEND_TO_REGISTRY && !*out_moved)
            add_header(&with, "Authorization", client->authorization);
        *out = (struct web_answer){ 0 };
        if (!client->web->send(client->web->context, &with, client->arena, out, err))
            return false;
        if (!is_redirect(out->status) || how == SEND_TO_LOGIN)
            return true;
        if (hops == LIMIT_REGISTRY_REDIRECTS)
            return err_set(err, ERR_INVALID, "the registry redirects in a circle");
        struct str next = url_join(client->arena, now.url, out->location);
        if (next.len == 0)
            return err_set(err, ERR_INVALID, "the registry redirects to no address");
        if (!str_eq_nocase(url_origin(next), first))
            *out_moved = true; /* for good: who was handed the request may hand it back with another intent */
        now.url = next;
    }
}

/* Seconds; dates are not understood, and count as none. */
static uint64_t pause_ms(const struct web_answer *answer, unsigned tries)
{
    uint64_t seconds, ms = (uint64_t)WAIT_FIRST_MS << tries;

    if (answer->retry_after.len && str_to_u64(str_trim(answer->retry_after), 86400, &seconds))
        ms = seconds * 1000;
    return ms;
}

static bool is_worth_another_try(uint32_t status)
{
    return status == 408 || status == 429 || status >= 500;
}

/* Waits before the next try. False: no more tries; *err and *answer are those of the last. */
static bool wait_for_next(struct client *client, const struct web_answer *answer, bool answered, unsigned tries,
                          struct err *err)
{
    struct err why;
    uint64_t ms = pause_ms(answer, tries);

    if (tries + 1 >= LIMIT_REGISTRY_TRIES || ms > LIMIT_REGISTRY_WAIT_MS)
        return false;
    struct str line =
        answered ? arena_format(client->arena, "The registry answers with status code %u; trying again in %llu s",
                                answer->status, (unsigned long long)(ms + 999) / 1000)
                 : arena_format(client->arena, "%s; trying again in %llu s", err->message,
                                (unsigned long long)(ms + 999) / 1000);
    client->web->said(client->web->context, line);
    if (client->web->wait(client->web->context, ms, &why))
        return true;
    if (!answered || why.kind == ERR_CONFLICT)
        *err = why;
    return false;
}

static bool log_in(struct client *client, const struct web_answer *answer, struct err *err);

/* True with whatever answer there is in the end. */
static bool send_patiently(struct client *client, const struct web_want *want, enum send_how how,
                           struct web_answer *out, struct err *err)
{
    bool may_log_in = how == SEND_TO_REGISTRY, moved;

    for (unsigned tries = 0;; tries++) {
        err->kind = ERR_NONE;
        bool answered = send_and_follow(client, want, how, out, &moved, err);
        if (!answered && err->kind != ERR_UNAVAILABLE && err->kind != ERR_TIMEOUT)
            return false;
        if (answered && out->status == 401 && may_log_in && !moved) {
            may_log_in = false;
            if (!log_in(client, out, err))
                return false;
            continue;
        }
        if (answered && !is_worth_another_try(out->status))
            return true;
        if (want->take && !answered)
            return false; /* client_download() knows where to go on */
        if (!wait_for_next(client, out, answered, tries, err))
            return answered && err->kind != ERR_CONFLICT;
    }
}

/* ---- logging in ---- */

static struct str basic(struct client *client, struct str user, struct str password)
{
    struct str pair = arena_format(client->arena, "%.*s:%.*s", STR_ARG(user), STR_ARG(password));
    char *room = arena_alloc(client->arena, base64_size(pair.len) + 8);

    memcpy(room, "Basic ", 6);
    return str_of(room, 6 + base64_encode(pair, room + 6));
}

/* ECR's own password for this login; AWS:… */
static bool ask_aws(struct client *client, struct str *out_user, struct str *out_password, struct err *err)
{
    const struct pull_login *login = client->login;
    struct aws_request request;
    struct web_answer answer;

    if (!aws_ecr_request(client->arena, login->key_id, login->key, login->region, clock_wall_us() / 1000000, &request,
                         err))
        return false;
    struct web_want want = { .method = "POST", .url = request.url, .body = request.body };
    add_header(&want, "Content-Type", STR(AWS_ECR_TYPE));
    add_header(&want, "X-Amz-Target", STR(AWS_ECR_TARGET));
    add_header(&want, "X-Amz-Date", request.date);
    add_header(&want, "Authorization", request.authorization);
    if (!send_patiently(client, &want, SEND_TO_LOGIN, &answer, err))
        return false;
    if (answer.status != HTTP_OK)
        return err_set(err, answer.status >= 500 ? ERR_UNAVAILABLE : ERR_DENIED,
                       "access denied to '%.*s': AWS gave no token for these keys (status code %u)", NAME_ARG(client),
                       answer.status);
    return ecr_token_parse(answer.body, client->arena, out_user, out_password, err);
}

/* *out_user empty: no login. */
static bool credentials(struct client *client, struct str *out_user, struct str *out_password, struct err *err)
{
    const struct pull_login *login = client->login;

    *out_user = *out_password = STR("");
    switch (client->endpoint->is_mirror ? PULL_LOGIN_NONE : login->kind) {
    case PULL_LOGIN_NONE:
        return true;
    case PULL_LOGIN_BASIC:
        *out_user = login->user;
        *out_password = login->password;
        return true;
    case PULL_LOGIN_GCP:
        *out_user = STR("_json_key");
        *out_password = login->account;
        return true;
    case PULL_LOGIN_AWS:
        return ask_aws(client, out_user, out_password, err);
    }
    return err_set(err, ERR_INTERNAL, "a login of no kind");
}

static struct str scope_of(struct client *client, const struct challenge *challenge)
{
    if (challenge->scope.len)
        return challenge->scope;
    return arena_format(client->arena, "repository:%s%s:pull", client->endpoint->prefix, client->reference->path);
}

static void add_field(struct buf *out, const char *name, struct str value)
{
    if (value.len == 0)
        return;
    if (out->len)
        buf_add_char(out, '&');
    buf_add(out, str_from(name));
    buf_add_char(out, '=');
    percent_encode(out, value);
}

/* An identity token is the password of the user "<token>", and is traded for one that the registry takes. */
static struct web_want token_request(struct client *client, const struct challenge *challenge, struct str user,
                                     struct str password)
{
    struct buf fields = buf_make(client->arena, 4 * LIMIT_LOGIN_BYTES);
    bool is_identity = str_eq(user, STR("<token>"));
    struct web_want want = { .method = is_identity ? "POST" : "GET" };

    add_field(&fields, "service", challenge->service);
    add_field(&fields, "scope", scope_of(client, challenge));
    if (is_identity) {
        add_field(&fields, "grant_type", STR("refresh_token"));
        add_field(&fields, "client_id", STR("cloister"));
        add_field(&fields, "refresh_token", password);
        want.url = challenge->realm;
        want.body = buf_str(&fields);
        add_header(&want, "Content-Type", STR("application/x-www-form-urlencoded"));
        return want;
    }
    want.url = arena_format(client->arena, "%.*s%c%.*s", STR_ARG(challenge->realm),
                            str_has_char(challenge->realm, '?') ? '&' : '?', STR_ARG(buf_str(&fields)));
    if (user.len)
        add_header(&want, "Authorization", basic(client, user, password));
    return want;
}

static bool get_token(struct client *client, const struct challenge *challenge, struct str user, struct str password,
                      struct err *err)
{
    struct web_want want = token_request(client, challenge, user, password);
    struct web_answer answer;
    struct str token;

    if (url_origin(challenge->realm).len == 0 || challenge->realm.len > LIMIT_REGISTRY_HEADER_BYTES)
        return err_set(err, ERR_INVALID, "the registry names no server that gives out tokens");
    if (!send_patiently(client, &want, SEND_TO_LOGIN, &answer, err))
        return false;
    if (answer.status != HTTP_OK)
        return refused(client, &answer, err);
    if (!token_parse(answer.body, client->arena, &token, err))
        return false;
    client->authorization = arena_format(client->arena, "Bearer %.*s", STR_ARG(token));
    return true;
}

static const struct challenge *find_challenge(const struct challenge *list, uint32_t count, int scheme)
{
    for (uint32_t i = 0; i < count; i++)
        if ((int)list[i].scheme == scheme)
            return &list[i];
    return NULL;
}

static bool log_in(struct client *client, const struct web_answer *answer, struct err *err)
{
    struct challenge list[CHALLENGES_MOST];
    struct str user, password;
    uint32_t count = 0;

    client->authorization = STR("");
    for (uint32_t i = 0; i < answer->challenge_count; i++)
        if (!challenges_parse(client->arena, answer->challenges[i], list, &count))
            return err_set(err, ERR_INVALID, "the registry's WWW-Authenticate header makes no sense");
    const struct challenge *bearer = find_challenge(list, count, CHALLENGE_BEARER);
    bool takes_basic = find_challenge(list, count, CHALLENGE_BASIC) != NULL;
    if (!bearer && !takes_basic)
        return refused(client, answer, err);
    if (!credentials(client, &user, &password, err))
        return false;
    if (bearer)
        return get_token(client, bearer, user, password, err);
    if (user.len == 0)
        return refused(client, answer, err);
    client->authorization = basic(client, user, password);
    return true;
}

/* ---- what callers ask for ---- */

static struct str url_of(struct client *client, struct str what)
{
    return arena_format(client->arena, "%s/v2/%s%s/%.*s", client->endpoint->origin, client->endpoint->prefix,
                        client->reference->path, STR_ARG(what));
}

bool client_ask(struct client *client, const char *method, struct str what, struct str accept, struct web_answer *out,
                struct err *err)
{
    struct web_want want = { .method = method, .url = url_of(client, what) };

    add_header(&want, "Accept", accept);
    if (!send_patiently(client, &want, SEND_TO_REGISTRY, out, err))
        return failed(client, err);
    return out->status == HTTP_OK || refused(client, out, err);
}

struct download {
    struct sink *sink;
    uint64_t size;
    bool has_begun; /* this answer's body */
};

/* The registry may ignore where we want to begin, and send all of it. */
static bool begin_body(struct download *download, const struct web_answer *head, struct err *err)
{
    struct sink *sink = download->sink;
    struct str range = head->content_range, from;
    uint64_t at;

    download->has_begun = true;
    if (head->status == HTTP_OK) {
        sink->have = 0;
        return sink->restart(sink->context, err);
    }
    if (!str_skip_nocase(&range, STR("bytes ")) || !str_cut(&range, '-', &from) ||
        !str_to_u64(str_trim(from), UINT64_MAX, &at) || at != sink->have)
        return err_set(err, ERR_INVALID, "the registry sends another part of a layer than was asked for");
    return true;
}

static bool take_piece(void *context, const struct web_answer *head, struct str piece, struct err *err)
{
    struct download *download = context;
    struct sink *sink = download->sink;

    if (!download->has_begun && !begin_body(download, head, err))
        return false;
    if (piece.len > download->size - sink->have)
        return err_set(err, ERR_INVALID, "the registry sends more bytes of a layer than the manifest says");
    if (!sink->take(sink->context, piece, err))
        return false;
    sink->have += piece.len;
    return true;
}

/* False with ERR_UNAVAILABLE or ERR_TIMEOUT: it may go on. */
static bool download_once(struct client *client, struct str url, bool is_registry, struct download *download,
                          struct err *err)
{
    struct web_want want = { .method = "GET", .url = url, .take = take_piece, .take_context = download };
    struct web_answer answer;
    char range[40];

    download->has_begun = false;
    if (download->sink->have) {
        (void)snprintf(range, sizeof range, "bytes=%llu-", (unsigned long long)download->sink->have);
        add_header(&want, "Range", str_from(range));
    }
    if (!send_patiently(client, &want, is_registry ? SEND_TO_REGISTRY : SEND_PLAIN, &answer, err))
        return false;
    if (answer.status == 416) { /* what we have is of no use to the registry: begin again */
        download->sink->have = 0;
        return download->sink->restart(download->sink->context, err) &&
               err_set(err, ERR_UNAVAILABLE, "the registry cannot go on with a download");
    }
    if (answer.status != HTTP_OK && answer.status != HTTP_PARTIAL)
        return refused(client, &answer, err);
    return download->sink->have == download->size ||
           err_set(err, ERR_UNAVAILABLE, "the registry has sent less of a layer than the manifest says");
}

static bool download_from(struct client *client, struct str url, bool is_registry, struct download *download,
                          struct err *err)
{
    const struct web_answer no_answer = { 0 };

    for (unsigned tries = 0, resumes = 0;; tries++) {
        uint64_t before = download->sink->have;
        if (download_once(client, url, is_registry, download, err))
            return true;
        if (err->kind != ERR_UNAVAILABLE && err->kind != ERR_TIMEOUT)
            return false;
        if (download->sink->have > before && ++resumes < LIMIT_REGISTRY_RESUMES)
            tries = 0;
        if (!wait_for_next(client, &no_answer, false, tries, err))
            return false;
    }
}

bool client_download(struct client *client, const struct descriptor *blob, struct sink *sink, struct err *err)
{
    struct download download = { .sink = sink, .size = blob->size };
    struct str what = arena_format(client->arena, "blobs/sha256:%s", blob->hex);

    if (blob->size == 0 || sink->have == blob->size)
        return true;
    if (download_from(client, url_of(client, what), true, &download, err))
        return true;
    /* Layers that may not be given away are at the place that the manifest names. */
    if (err->kind == ERR_NOT_FOUND && blob->is_foreign && url_origin(blob->url).len &&
        download_from(client, blob->url, false, &download, err))
        return true;
    return failed(client, err);
}
