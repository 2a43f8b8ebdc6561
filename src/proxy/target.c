#include "proxy/target.h"

#include "base/buf.h"
#include "base/encode.h"

static const char *const complaints[TARGET_VERDICT_COUNT] = {
    [TARGET_NONE] = "Invalid host\n",
    [TARGET_MISSING_HEADER] = "missing header\n",
    [TARGET_BAD_ID] = "Invalid sandbox ID\n",
    [TARGET_BAD_PORT] = "Invalid sandbox port\n",
};

const char *target_complaint(enum target_verdict verdict)
{
    return complaints[verdict];
}

static bool read_id(struct str text, bool fold_case, char out_id[LIMIT_ID_BYTES])
{
    if (text.len == 0 || text.len >= LIMIT_ID_BYTES)
        return false;
    char id[LIMIT_ID_BYTES];
    for (size_t i = 0; i < text.len; i++) {
        id[i] = fold_case ? char_lower(text.at[i]) : text.at[i]; /* host names: any case */
        if (!char_is_alnum(id[i]) || id[i] != char_lower(id[i]))
            return false;
    }
    id[text.len] = 0;
    memcpy(out_id, id, text.len + 1);
    return true;
}

static enum target_verdict read_target(struct str port_text, struct str id_text, bool fold_case, struct target *out)
{
    struct target target;
    uint64_t port;
    if (!read_id(id_text, fold_case, target.id))
        return TARGET_BAD_ID;
    if (!str_to_u64(port_text, UINT16_MAX, &port) || port == 0)
        return TARGET_BAD_PORT;
    target.port = (uint16_t)port;
    *out = target;
    return TARGET_FOUND;
}

/* "<digits>-<something>.<something>": only such a host can mean a sandbox. An IPv4 address has no dash. */
static bool split_host(struct str host, struct str *out_port, struct str *out_id)
{
    struct str label, port, id;
    if (!str_has_char(host, '.') || !str_cut(&host, '.', &label) || !str_has_char(label, '-'))
        return false;
    if (!str_cut(&label, '-', &port) || port.len == 0 || !str_cut(&label, '-', &id))
        return false;
    for (size_t i = 0; i < port.len; i++) {
        if (!char_is_digit(port.at[i]))
            return false;
    }
    *out_port = port;
    *out_id = id;
    return true;
}

enum target_verdict target_of(const struct http_head *head, struct target *out)
{
    const struct str *host = http_header(head, STR("Host"));
    struct str port, id;
    if (host && split_host(*host, &port, &id))
        return read_target(port, id, true, out);

    const struct str *id_header = http_header(head, STR("E2b-Sandbox-Id"));
    const struct str *port_header = http_header(head, STR("E2b-Sandbox-Port"));
    if (id_header && port_header) {
        /* Older Python SDKs send both headers with connect, an API call. guestd is never sent an API key. */
        if (str_eq(*port_header, STR(PORT_TEXT(GUESTD_PORT))) && http_header(head, STR("X-API-Key")))
            return TARGET_NONE;
        struct str rest = *id_header;
        id = STR("");
        (void)str_cut(&rest, '-', &id); /* false for an empty header: then the id is empty too */
        return read_target(*port_header, id, false, out);
    }
    if (id_header || port_header)
        return TARGET_MISSING_HEADER;
    /* The API has no /files: this is a browser's preflight for a signed link. */
    if (target_is_preflight(head) &&
        (http_has_token(head, STR("Access-Control-Request-Headers"), STR("E2b-Sandbox-Id")) ||
         str_eq(target_path(head->path), STR("/files"))))
        return TARGET_PREFLIGHT;
    return TARGET_NONE;
}

bool target_has_token(const struct http_head *head, struct str *out_token)
{
    static const struct str paths[] = { STR_INIT("/files"), STR_INIT("/health"), STR_INIT("/metrics"),
                                        STR_INIT("/envs") };
    const struct str *token = http_header(head, STR("X-Access-Token"));
    struct str path = target_path(head->path), rest = path;
    /* The API takes no such token, but has a /health too: a request with an API key is for the API. */
    if (!token || token->len == 0 || http_header(head, STR("X-API-Key")))
        return false;
    bool is_guestd = str_skip(&rest, STR("/process.Process/")) || str_skip(&rest, STR("/filesystem.Filesystem/"));
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        is_guestd |= str_eq(path, paths[i]);
    if (is_guestd)
        *out_token = *token;
    return is_guestd;
}

bool target_is_stream(const struct http_head *head)
{
    return str_eq(target_path(head->path), STR("/process.Process/StreamInput"));
}

bool target_is_preflight(const struct http_head *head)
{
    return head->method == HTTP_OPTIONS && http_header(head, STR("Access-Control-Request-Method"));
}

struct str target_path(struct str raw_path)
{
    while (raw_path.len > 1 && raw_path.at[0] == '/' && raw_path.at[1] == '/') {
        raw_path.at++;
        raw_path.len--;
    }
    return raw_path;
}

bool target_is_control_path(struct str raw_path, struct arena *arena, struct str *out_path)
{
    static const struct str control_paths[] = {
        STR_INIT("/init"),   STR_INIT("/freeze"),   STR_INIT("/unfreeze"), STR_INIT("/fsfreeze"),
        STR_INIT("/fsthaw"), STR_INIT("/collapse"), STR_INIT("/upgrade"),
    };
    struct str path, segment, only = STR("");
    if (!percent_decode(arena, raw_path, PERCENT_PLUS_IS_PLUS, &path))
        return false; /* guestd refuses what cannot be decoded */
    /* All control paths have one segment, so it is enough to resolve "." and ".." down to one segment. */
    unsigned depth = 0;
    while (str_cut(&path, '/', &segment)) {
        if (segment.len == 0 || str_eq(segment, STR(".")))
            continue;
        if (str_eq(segment, STR(".."))) {
            depth -= depth > 0;
            continue;
        }
        if (++depth == 1)
            only = segment;
    }
    if (depth != 1)
        return false;
    for (size_t i = 0; i < COUNT_OF(control_paths); i++) {
        struct str name = control_paths[i];
        if (str_skip(&name, STR("/")) && str_eq(name, only)) {
            *out_path = control_paths[i];
            return true;
        }
    }
    return false;
}
