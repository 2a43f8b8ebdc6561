#include "registry/options.h"

#include <stdio.h>

enum { HTTP_PORT = 80, HTTPS_PORT = 443 };

/* ---- lists ---- */

static bool next_entry(struct str *list, struct str *out)
{
    while (list->len && str_cut(list, ',', out)) {
        *out = str_trim(*out);
        if (out->len)
            return true;
    }
    return false;
}

/* The two sides of the first "=". */
static bool split(struct str entry, struct str *out_name, struct str *out_value)
{
    struct str rest = entry;

    if (!str_has_char(entry, '=') || !str_cut(&rest, '=', out_name))
        return false;
    *out_name = str_trim(*out_name);
    *out_value = str_trim(rest);
    return out_name->len && out_value->len;
}

/* ---- URLs of mirrors ---- */

struct mirror_url {
    bool is_https;
    struct str authority, host, path; /* the path without "/" at its ends */
    uint16_t port;
};

static bool mirror_url_parse(struct str url, struct mirror_url *out)
{
    struct mirror_url got = { 0 };
    struct str rest = url;

    got.is_https = str_skip(&rest, STR("https://"));
    if (!got.is_https && !str_skip(&rest, STR("http://")))
        return false;
    if (!str_cut(&rest, '/', &got.authority) || !authority_parse(got.authority, &got.host, &got.port))
        return false;
    if (got.port == 0)
        got.port = got.is_https ? HTTPS_PORT : HTTP_PORT;
    while (rest.len && rest.at[rest.len - 1] == '/')
        rest.len--;
    got.path = rest;
    struct str part;
    for (struct str left = rest; left.len && str_cut(&left, '/', &part);)
        for (size_t i = 0; i <= part.len; i++)
            if (part.len == 0 || (i < part.len && !char_is_alnum(part.at[i]) && part.at[i] != '.' &&
                                  part.at[i] != '_' && part.at[i] != '-'))
                return false;
    *out = got;
    return rest.len < REFERENCE_PATH_BYTES - 1 && got.authority.len < REFERENCE_HOST_BYTES;
}

/* ---- sources ---- */

static bool has_tag_or_digest(struct str reference)
{
    const char *slash = memrchr(reference.at, '/', reference.len);
    const char *from = slash ? slash : reference.at;
    size_t len = (size_t)(reference.at + reference.len - from);

    return memchr(from, ':', len) || memchr(from, '@', len);
}

/* HOST/NAME, where HOST is one whatever it looks like. */
static bool parse_at_host(struct str text, struct reference *out, struct err *err)
{
    char room[LIMIT_REFERENCE_BYTES + 32];
    struct str authority, host, rest = text;
    uint16_t port;

    if (!str_cut(&rest, '/', &authority) || !authority_parse(authority, &host, &port) ||
        rest.len > LIMIT_REFERENCE_BYTES)
        return err_set(err, ERR_INVALID, "'%.*s' does not begin with a host name and a slash",
                       (int)MIN(text.len, (size_t)60), text.at);
    (void)snprintf(room, sizeof room, "a.invalid/%.*s", STR_ARG(rest));
    if (!reference_parse(str_from(room), out, err))
        return false;
    (void)snprintf(out->host, sizeof out->host, "%.*s", STR_ARG(authority));
    text_lower(out->host, strlen(out->host));
    return true;
}

/* "PATH" or "PATH:NAME": paths with a colon cannot be named. */
static bool parse_path(struct str text, bool is_tag, struct image_source *out)
{
    const char *colon = memchr(text.at, ':', text.len);
    struct str path = text, name = STR("");

    if (colon) {
        path = str_of(text.at, (size_t)(colon - text.at));
        name = str_of(colon + 1, text.len - path.len - 1);
        if (is_tag ? !tag_is_valid(name) : name.len == 0)
            return false;
    }
    if (!str_starts(path, STR("/")) || path.len >= sizeof out->path || name.len >= sizeof out->name)
        return false;
    (void)snprintf(out->path, sizeof out->path, "%.*s", STR_ARG(path));
    (void)snprintf(out->name, sizeof out->name, "%.*s", STR_ARG(name));
    return true;
}

static bool template_name(struct str name, struct image_source *out)
{
    for (size_t i = 0; i < name.len; i++)
        if (!char_is_alnum(name.at[i]) && !strchr("-_./:", name.at[i]))
            return false;
    (void)snprintf(out->name, sizeof out->name, "%.*s", STR_ARG(name));
    return name.len > 0 && name.len < sizeof out->name;
}

/*
 * `rest`: of the image's name, if the entry has a beginning of it. `wanted`: what the client has named; NULL: the entry is
 * only checked.
 */
static bool parse_source(struct str source, struct str rest, const struct reference *wanted, struct image_source *out,
                         struct err *err)
{
    struct str text = source;

    *out = (struct image_source){ 0 };
    if (str_skip(&text, STR("docker://"))) {
        char room[2 * LIMIT_REFERENCE_BYTES];
        bool is_open = str_ends(text, STR("/"));
        out->kind = SOURCE_REGISTRY;
        if (text.len + rest.len >= sizeof room)
            return err_set(err, ERR_INVALID, "the image's name is too long");
        (void)snprintf(room, sizeof room, "%.*s%.*s", STR_ARG(text), is_open ? (int)rest.len : 0, rest.at);
        if (!parse_at_host(str_from(room), &out->reference, err))
            return false;
        if (wanted && !has_tag_or_digest(text)) {
            memcpy(out->reference.tag, wanted->tag, sizeof wanted->tag);
            memcpy(out->reference.hex, wanted->hex, sizeof wanted->hex);
        }
        return true;
    }
    if (str_skip(&text, STR("oci:"))) {
        out->kind = SOURCE_LAYOUT;
        return parse_path(text, true, out) ||
               err_set(err, ERR_INVALID, "oci: takes an absolute path and perhaps a tag, as in oci:/srv/images:latest");
    }
    if (str_skip(&text, STR("docker-archive:"))) {
        out->kind = SOURCE_ARCHIVE;
        return parse_path(text, false, out) ||
               err_set(err, ERR_INVALID,
                       "docker-archive: takes an absolute path and perhaps a name, as in "
                       "docker-archive:/srv/python.tar:python:3");
    }
    if (str_skip(&text, STR("template:"))) {
        out->kind = SOURCE_TEMPLATE;
        return template_name(text, out) ||
               err_set(err, ERR_INVALID, "template: takes the name of a template, as in template:base");
    }
    return err_set(err, ERR_INVALID, "a source begins with docker://, oci:, docker-archive: or template:");
}

/* ---- checking ---- */

static bool bad_entry(const char *option, struct str entry, const char *why, struct err *err)
{
    return err_set(err, ERR_INVALID, "--%s has '%.*s': %.90s", option, (int)MIN(entry.len, (size_t)40), entry.at, why);
}

static bool check_hosts(const char *option, struct str list, struct err *err)
{
    struct str entry, host;
    uint16_t port;

    while (next_entry(&list, &entry))
        if (!authority_parse(entry, &host, &port))
            return bad_entry(option, entry, "it takes HOST or HOST:PORT", err);
    return true;
}

static bool check_mirrors(struct str list, struct err *err)
{
    struct str entry, name, value, host;
    struct mirror_url url;
    uint16_t port;

    while (next_entry(&list, &entry))
        if (!split(entry, &name, &value) || !authority_parse(name, &host, &port) || !mirror_url_parse(value, &url))
            return bad_entry("registry-mirror", entry, "it takes HOST=URL, as in docker.io=https://mirror.example.com",
                             err);
    return true;
}

static bool check_image(struct str entry, struct err *err)
{
    struct image_source source;
    struct reference reference;
    struct str name, value;
    struct err why;

    if (!split(entry, &name, &value))
        return bad_entry("image", entry, "it takes NAME=SOURCE, as in python:3=docker://registry.example.com/python:3",
                         err);
    bool is_open = str_ends(name, STR("*"));
    if (!is_open && !reference_parse(name, &reference, &why))
        return bad_entry("image", entry, why.message, err);
    if (!parse_source(value, STR("image"), NULL, &source, &why))
        return bad_entry("image", entry, why.message, err);
    if (!is_open && str_ends(value, STR("/")) && source.kind == SOURCE_REGISTRY)
        return bad_entry("image", entry, "a source that ends with / needs a name that ends with *", err);
    return true;
}

bool registry_options_check(const struct registry_options *options, struct err *err)
{
    struct str images = options->images, entry;

    if (!check_mirrors(options->mirrors, err) || !check_hosts("registry-insecure", options->insecure, err) ||
        !check_hosts("registry-allow", options->allow, err))
        return false;
    while (next_entry(&images, &entry))
        if (!check_image(entry, err))
            return false;
    return true;
}

/* ---- standing ---- */

/* An entry without a port means the usual ones. */
static bool entry_is(struct str authority, struct str host, uint16_t port)
{
    struct str entry_host;
    uint16_t entry_port;

    return authority_parse(authority, &entry_host, &entry_port) && str_eq_nocase(entry_host, host) &&
           (entry_port ? entry_port == port : port == HTTP_PORT || port == HTTPS_PORT);
}

static bool list_has(struct str list, struct str host, uint16_t port)
{
    struct str entry;

    while (next_entry(&list, &entry))
        if (entry_is(entry, host, port))
            return true;
    return false;
}

static enum registry_standing standing_by_mirrors(struct str list, struct str host, uint16_t port)
{
    enum registry_standing best = REGISTRY_STRANGER;
    struct str entry, name, value;
    struct mirror_url url;

    while (next_entry(&list, &entry))
        if (split(entry, &name, &value) && mirror_url_parse(value, &url) && str_eq_nocase(url.host, host) &&
            url.port == port)
            best = MAX(best, url.is_https ? REGISTRY_NAMED : REGISTRY_INSECURE);
    return best;
}

static bool images_have(struct str list, struct str host, uint16_t port)
{
    struct str entry, name, value, authority;

    while (next_entry(&list, &entry))
        if (split(entry, &name, &value) && str_skip(&value, STR("docker://")) && str_cut(&value, '/', &authority) &&
            entry_is(authority, host, port))
            return true;
    return false;
}

enum registry_standing registry_standing(const struct registry_options *options, struct str host, uint16_t port)
{
    if (list_has(options->insecure, host, port))
        return REGISTRY_INSECURE;
    enum registry_standing by_mirrors = standing_by_mirrors(options->mirrors, host, port);
    if (by_mirrors != REGISTRY_STRANGER)
        return by_mirrors;
    return list_has(options->allow, host, port) || images_have(options->images, host, port) ? REGISTRY_NAMED
                                                                                            : REGISTRY_STRANGER;
}

/* ---- the image map ---- */

static bool same_image(const struct reference *a, const struct reference *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->path, b->path) == 0;
}

/* A name that can follow another registry's: without a port. */
static struct str without_port(char *name)
{
    char *slash = strchr(name, '/'), *colon = strchr(name, ':');

    if (colon && slash && colon < slash)
        memmove(colon, slash, strlen(slash) + 1);
    return str_from(name);
}

struct best_entry {
    struct str value, rest;
    size_t weight; /* 0: none */
};

static void weigh(struct best_entry *best, struct str value, struct str rest, size_t weight)
{
    if (weight > best->weight)
        *best = (struct best_entry){ value, rest, weight };
}

enum { WEIGHT_BASE = 1000, WEIGHT_NAME, WEIGHT_TAG }; /* more than the length of any beginning of a name */

static bool find_entry(const struct registry_options *options, const struct reference *wanted, struct str short_name,
                       struct str long_name, struct best_entry *best)
{
    struct str list = options->images, entry, name, value;
    struct reference key;
    struct err ignored;

    while (next_entry(&list, &entry)) {
        if (!split(entry, &name, &value))
            continue;
        if (str_ends(name, STR("*"))) {
            struct str head = str_of(name.at, name.len - 1);
            for (int i = 0; i < 2; i++) {
                struct str rest = i ? long_name : short_name;
                if (str_skip(&rest, head) && rest.len)
                    weigh(best, value, rest, 1 + head.len);
            }
        } else if (reference_parse(name, &key, &ignored) && same_image(&key, wanted)) {
            bool is_same = strcmp(key.tag, wanted->tag) == 0 && strcmp(key.hex, wanted->hex) == 0;
            if (!has_tag_or_digest(name))
                weigh(best, value, STR(""), WEIGHT_NAME);
            else if (is_same)
                weigh(best, value, STR(""), WEIGHT_TAG);
        }
    }
    return best->weight > 0;
}

bool image_source_find(const struct registry_options *options, struct str image, struct image_source *out,
                       struct err *err)
{
    char short_room[REFERENCE_HOST_BYTES + REFERENCE_PATH_BYTES], long_room[sizeof short_room];
    struct best_entry best = { 0 };
    struct reference wanted;

    if (!reference_parse(image, &wanted, err))
        return false;
    reference_short_name(&wanted, short_room, sizeof short_room);
    (void)snprintf(long_room, sizeof long_room, "%s/%s", wanted.host, wanted.path);
    if (strcmp(short_room, "e2bdev/base") == 0)
        weigh(&best, STR("template:base"), STR(""), WEIGHT_BASE);
    if (find_entry(options, &wanted, without_port(short_room), without_port(long_room), &best))
        return parse_source(best.value, best.rest, &wanted, out, err);
    *out = (struct image_source){ .kind = SOURCE_REGISTRY, .reference = wanted };
    return true;
}

bool image_source_path(const struct registry_options *options, uint32_t number, char out[PATH_MAX])
{
    struct str list = options->images, entry, name, value;
    struct image_source source;
    struct err ignored;

    while (next_entry(&list, &entry))
        if (split(entry, &name, &value) && parse_source(value, STR("image"), NULL, &source, &ignored) &&
            (source.kind == SOURCE_LAYOUT || source.kind == SOURCE_ARCHIVE) && number-- == 0) {
            memcpy(out, source.path, sizeof source.path);
            return true;
        }
    return false;
}

/* ---- endpoints ---- */

static void add_mirrors(const struct registry_options *options, const struct reference *reference, struct endpoint *out,
                        uint32_t *count)
{
    struct str list = options->mirrors, entry, name, value;
    struct mirror_url url;

    while (*count < LIMIT_REGISTRY_MIRRORS && next_entry(&list, &entry)) {
        if (!split(entry, &name, &value) || !str_eq_nocase(name, str_from(reference->host)) ||
            !mirror_url_parse(value, &url))
            continue;
        struct endpoint *mirror = &out[(*count)++];
        mirror->is_mirror = true;
        (void)snprintf(mirror->origin, sizeof mirror->origin, "%s://%.*s", url.is_https ? "https" : "http",
                       STR_ARG(url.authority));
        (void)snprintf(mirror->prefix, sizeof mirror->prefix, "%.*s%s", STR_ARG(url.path), url.path.len ? "/" : "");
    }
}

uint32_t endpoints_find(const struct registry_options *options, const struct reference *reference,
                        struct endpoint out[LIMIT_REGISTRY_MIRRORS + 1])
{
    const char *host = strcmp(reference->host, "docker.io") == 0 ? "registry-1.docker.io" : reference->host;
    struct str name;
    uint32_t count = 0;
    uint16_t port;

    memset(out, 0, (LIMIT_REGISTRY_MIRRORS + 1) * sizeof *out);
    add_mirrors(options, reference, out, &count);
    bool is_plain =
        authority_parse(str_from(host), &name, &port) && list_has(options->insecure, name, port ? port : HTTP_PORT);
    (void)snprintf(out[count].origin, sizeof out[count].origin, "%s://%s", is_plain ? "http" : "https", host);
    return count + 1;
}
