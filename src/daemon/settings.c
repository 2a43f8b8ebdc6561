#include "daemon/settings.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/pack.h"

enum { SETTINGS_BYTES = 4096 };

bool settings_log_level(const char *name, enum log_level *out, struct err *err)
{
    static const char *const names[LOG_LEVEL_COUNT] = {
        [LOG_DEBUG] = "debug",
        [LOG_INFO] = "info",
        [LOG_WARN] = "warn",
        [LOG_ERROR] = "error",
    };

    for (int level = 0; level < LOG_LEVEL_COUNT; level++) {
        if (strcmp(name, names[level]) == 0) {
            *out = (enum log_level)level;
            return true;
        }
    }
    return err_set(err, ERR_INVALID, "log must be debug, info, warn or error, not '%.40s'", name);
}

bool settings_token_for_code(const char *word, bool *out_always, struct err *err)
{
    bool always = strcmp(word, "always") == 0;

    if (!always && strcmp(word, "as-asked") != 0)
        return err_set(err, ERR_INVALID, "token-for-code must be as-asked or always, not '%.40s'", word);
    *out_always = always;
    return true;
}

int settings_write(const struct settings *settings, struct err *err)
{
    auto_buf struct buf out = buf_make(NULL, SETTINGS_BYTES);

    pack_str(&out, str_from(settings->node_id));
    pack_str(&out, str_from(settings->domain));
    pack_u32(&out, settings->sandboxes_max);
    pack_u32(&out, settings->key_sandboxes);
    pack_u32(&out, settings->key_requests);
    pack_u32(&out, settings->key_streams);
    pack_u64(&out, settings->timeout_max_s);
    pack_u32(&out, settings->memory_mb);
    pack_u32(&out, settings->cpus);
    pack_u32(&out, settings->pids);
    pack_u8(&out, settings->code_always_has_token);
    pack_str(&out, secret_reveal(&settings->api_key));
    pack_str(&out, secret_reveal(&settings->admin_hash));

    auto_close int fd = memfd_create("settings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool ok = fd >= 0 || err_sys(err, "memfd_create");
    ok = ok && fd_write_all(fd, buf_str(&out), err);
    if (out.data)
        explicit_bzero(out.data, out.len);
    if (ok && (lseek(fd, 0, SEEK_SET) < 0 ||
               fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0))
        ok = err_sys(err, "seal the settings");
    return ok ? take_fd(&fd) : -1;
}

bool settings_read(int fd, struct settings *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_all(fd, SETTINGS_BYTES, &text, &len, err))
        return err_wrap(err, "settings");
    struct unpack in = unpack_from(str_of(text, len));
    struct settings got = { 0 };
    unpack_text(&in, got.node_id, sizeof got.node_id);
    unpack_text(&in, got.domain, sizeof got.domain);
    got.sandboxes_max = unpack_u32(&in);
    got.key_sandboxes = unpack_u32(&in);
    got.key_requests = unpack_u32(&in);
    got.key_streams = unpack_u32(&in);
    got.timeout_max_s = unpack_u64(&in);
    got.memory_mb = unpack_u32(&in);
    got.cpus = unpack_u32(&in);
    got.pids = unpack_u32(&in);
    got.code_always_has_token = unpack_u8(&in) != 0;
    struct str api_key = unpack_str(&in, SECRET_MAX_BYTES);
    struct str admin_hash = unpack_str(&in, SECRET_MAX_BYTES);
    bool ok = unpack_done(&in, err) && (got.node_id[0] || err_set(err, ERR_INVALID, "malformed settings"));
    ok = ok && secret_set(&got.api_key, api_key) && secret_set(&got.admin_hash, admin_hash);
    explicit_bzero(text, len);
    if (ok)
        *out = got;
    secret_wipe(&got.api_key);
    secret_wipe(&got.admin_hash);
    return ok || err_wrap(err, "settings");
}
