#include "registry/reference.h"

#include <stdio.h>

#define DOCKER_HOST "docker.io"
#define DOCKER_PREFIX "library/"

static bool bad(struct str text, const char *why, struct err *err)
{
    return err_set(err, ERR_INVALID, "invalid image reference '%.*s': %s", (int)MIN(text.len, (size_t)60), text.at,
                   why);
}

static bool is_lower_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || char_is_digit(c);
}

/* [a-z0-9]+((\.|_|__|-+)[a-z0-9]+)* */
static bool component_is_valid(struct str part)
{
    size_t at = 0;

    for (;;) {
        size_t begin = at;
        while (at < part.len && is_lower_alnum(part.at[at]))
            at++;
        if (at == begin)
            return false;
        if (at == part.len)
            return true;
        if (part.at[at] == '.') {
            at++;
        } else if (part.at[at] == '_') {
            at += at + 1 < part.len && part.at[at + 1] == '_' ? 2 : 1;
        } else if (part.at[at] == '-') {
            while (at < part.len && part.at[at] == '-')
                at++;
        } else {
            return false;
        }
    }
}

static bool path_is_valid(struct str path)
{
    struct str part;

    if (path.len == 0 || path.len >= REFERENCE_PATH_BYTES)
        return false;
    while (str_cut(&path, '/', &part))
        if (!component_is_valid(part))
            return false;
    return true;
}

bool tag_is_valid(struct str tag)
{
    if (tag.len == 0 || tag.len >= REFERENCE_TAG_BYTES || tag.at[0] == '.' || tag.at[0] == '-')
        return false;
    for (size_t i = 0; i < tag.len; i++)
        if (!char_is_alnum(tag.at[i]) && tag.at[i] != '.' && tag.at[i] != '_' && tag.at[i] != '-')
            return false;
    return true;
}

bool digest_parse(struct str text, char out_hex[DIGEST_HEX_BYTES])
{
    if (!str_skip(&text, STR("sha256:")) || text.len != DIGEST_HEX_BYTES - 1)
        return false;
    for (size_t i = 0; i < text.len; i++)
        if (!char_is_digit(text.at[i]) && !(text.at[i] >= 'a' && text.at[i] <= 'f'))
            return false;
    memcpy(out_hex, text.at, text.len);
    out_hex[text.len] = '\0';
    return true;
}

static bool port_parse(struct str text, uint16_t *out)
{
    uint64_t port;

    if (!str_to_u64(text, UINT16_MAX, &port) || port == 0)
        return false;
    *out = (uint16_t)port;
    return true;
}

static bool host_is_valid(struct str host, bool is_v6)
{
    if (host.len == 0 || host.len >= REFERENCE_HOST_BYTES - 8)
        return false;
    for (size_t i = 0; i < host.len; i++) {
        char c = host.at[i];
        if (is_v6 ? !(char_is_digit(c) || (char_lower(c) >= 'a' && char_lower(c) <= 'f') || c == ':' || c == '.')
                  : !(char_is_alnum(c) || c == '.' || c == '-' || c == '_'))
            return false;
    }
    return true;
}

bool authority_parse(struct str text, struct str *out_host, uint16_t *out_port)
{
    struct str host, rest = text;
    bool is_v6 = str_skip(&rest, STR("["));

    *out_port = 0;
    if (text.len == 0 || !str_cut(&rest, is_v6 ? ']' : ':', &host) || !host_is_valid(host, is_v6))
        return false;
    *out_host = host;
    if (is_v6) {
        if (host.at + host.len == text.at + text.len)
            return false; /* no closing bracket */
        return rest.len == 0 || (str_skip(&rest, STR(":")) && port_parse(rest, out_port));
    }
    return host.len == text.len || port_parse(rest, out_port);
}

/* The first part names a host if it could not be a part of a path on Docker Hub. */
static bool take_host(struct str *rest, struct reference *out)
{
    struct str path = *rest, first, host;
    uint16_t port;

    if (str_has_char(path, '/') && str_cut(&path, '/', &first) &&
        (str_has_char(first, '.') || str_has_char(first, ':') || str_eq(first, STR("localhost")))) {
        if (!authority_parse(first, &host, &port))
            return false;
        (void)snprintf(out->host, sizeof out->host, "%.*s", STR_ARG(first));
        text_lower(out->host, strlen(out->host));
        *rest = path;
    } else {
        (void)snprintf(out->host, sizeof out->host, DOCKER_HOST);
    }
    if (strcmp(out->host, "index.docker.io") == 0 || strcmp(out->host, "registry-1.docker.io") == 0)
        (void)snprintf(out->host, sizeof out->host, DOCKER_HOST);
    return true;
}

bool reference_parse(struct str text, struct reference *out, struct err *err)
{
    struct reference got = { 0 };
    struct str rest = text, name;

    if (text.len == 0 || text.len > LIMIT_REFERENCE_BYTES || str_has_char(text, '\0'))
        return bad(text, "it is empty or too long", err);
    bool has_digest = str_has_char(rest, '@');
    (void)str_cut(&rest, '@', &name);
    if (has_digest && !digest_parse(rest, got.hex))
        return bad(text, "what follows the @ is not sha256: and 64 hex digits", err);
    const char *colon = memrchr(name.at, ':', name.len);
    if (colon && !memchr(colon, '/', (size_t)(name.at + name.len - colon))) {
        struct str tag = str_of(colon + 1, (size_t)(name.at + name.len - colon - 1));
        if (!tag_is_valid(tag))
            return bad(text, "the tag must have at most 128 of a-z, A-Z, 0-9, _, . and -", err);
        memcpy(got.tag, tag.at, tag.len);
        name.len = (size_t)(colon - name.at);
    } else if (!has_digest) {
        memcpy(got.tag, "latest", sizeof "latest");
    }
    if (!take_host(&name, &got))
        return bad(text, "it has no valid host name", err);
    bool is_bare = strcmp(got.host, DOCKER_HOST) == 0 && !str_has_char(name, '/');
    if (!path_is_valid(name) || name.len + (is_bare ? sizeof DOCKER_PREFIX : 1) > sizeof got.path)
        return bad(text, "the name must have parts of a-z and 0-9, with single . or _ or with - between them", err);
    (void)snprintf(got.path, sizeof got.path, "%s%.*s", is_bare ? DOCKER_PREFIX : "", STR_ARG(name));
    *out = got;
    return true;
}

void reference_short_name(const struct reference *reference, char *room, size_t size)
{
    struct str path = str_from(reference->path), rest = path;

    if (strcmp(reference->host, DOCKER_HOST) != 0)
        (void)snprintf(room, size, "%s/%s", reference->host, reference->path);
    else if (str_skip(&rest, STR(DOCKER_PREFIX)) && !str_has_char(rest, '/'))
        (void)snprintf(room, size, "%.*s", STR_ARG(rest));
    else
        (void)snprintf(room, size, "%s", reference->path);
}
