#include "isolation/native/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

enum { STATE_BYTES = 256 + LIMIT_LAYERS * (LAYER_ID_BYTES + 8), STAT_BYTES = 4096 };

enum {
    FORMAT = 4,
    WITH_OWNER = 2,   /* the first with owner and layers */
    WITH_NETWORK = 3, /* the first with network */
    WITH_HELD = 4,    /* the first with held */
};

void state_print(struct buf *out, const struct state *state)
{
    /* Of the same length whatever the numbers are, so that the second write covers the first. */
    buf_format(out, "cloister-sandbox %d\nboot %-36s\nslot %010" PRIu32 "\npid %010d\nstart %020" PRIu64 "\ndying %d\n",
               FORMAT, state->boot_id, state->slot, state->pid, state->start_time, state->dying);
    buf_format(out, "held %d\nnetwork %d\nowner %010" PRIu32 "\nlayers %02" PRIu32 "\n", (int)state->held,
               (int)state->network, state->owner, state->layer_count);
    for (uint32_t i = 0; i < state->layer_count; i++)
        buf_format(out, "layer %s\n", state->layers[i]);
}

static bool number_line(struct str *text, struct str key, uint64_t max, uint64_t *out)
{
    struct str line;

    return str_cut(text, '\n', &line) && str_skip(&line, key) && str_to_u64(line, max, out);
}

static bool parse_owner_and_layers(struct str *text, struct state *out)
{
    uint64_t owner, count;
    struct str line;

    if (!number_line(text, STR("owner "), UINT32_MAX, &owner) ||
        !number_line(text, STR("layers "), LIMIT_LAYERS, &count))
        return false;
    out->owner = (uint32_t)owner;
    for (out->layer_count = 0; out->layer_count < count; out->layer_count++) {
        if (!str_cut(text, '\n', &line) || !str_skip(&line, STR("layer ")) || line.len != LAYER_ID_BYTES - 1)
            return false;
        memcpy(out->layers[out->layer_count], line.at, line.len);
    }
    return true;
}

bool state_parse(struct str text, struct state *out, struct err *err)
{
    struct state parsed = { 0 };
    struct str format, boot;
    uint64_t slot, pid, dying, version, held = HELD_RUNNING, network = NETWORK_NONE;

    if (!str_cut(&text, '\n', &format) || !str_skip(&format, STR("cloister-sandbox ")) ||
        !str_to_u64(format, UINT32_MAX, &version))
        return err_set(err, ERR_INVALID, "the state of a sandbox does not parse");
    if (version > FORMAT)
        return err_set(err, ERR_UNAVAILABLE, "a newer Cloister wrote its state: run that version");
    if (!str_cut(&text, '\n', &boot) || !str_skip(&boot, STR("boot ")) || boot.len >= sizeof parsed.boot_id ||
        !number_line(&text, STR("slot "), UINT32_MAX, &slot) || !number_line(&text, STR("pid "), INT32_MAX, &pid) ||
        !number_line(&text, STR("start "), UINT64_MAX, &parsed.start_time) ||
        !number_line(&text, STR("dying "), 1, &dying) ||
        (version >= WITH_HELD && !number_line(&text, STR("held "), HELD_STATE_COUNT - 1, &held)) ||
        (version >= WITH_NETWORK && !number_line(&text, STR("network "), NETWORK_KIND_COUNT - 1, &network)) ||
        (version >= WITH_OWNER && !parse_owner_and_layers(&text, &parsed)) || text.len)
        return err_set(err, ERR_INVALID, "the state of a sandbox does not parse");
    boot = str_trim(boot);
    memcpy(parsed.boot_id, boot.at, boot.len);
    parsed.slot = (uint32_t)slot;
    parsed.pid = (pid_t)pid;
    parsed.dying = dying;
    parsed.held = (enum held_state)held;
    parsed.network = (enum network_kind)network;
    *out = parsed;
    return true;
}

static bool print_whole(struct buf *text, const struct state *state, struct err *err)
{
    state_print(text, state);
    return !text->overflowed || err_set(err, ERR_INTERNAL, "the state of a sandbox is too long");
}

bool state_write(int fd, const struct state *state, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, STATE_BYTES);

    if (!print_whole(&text, state, err))
        return false;
    ssize_t n = pwrite(fd, text.data, text.len, 0);
    if (n < 0)
        return err_sys(err, "write the state of a sandbox");
    if ((size_t)n != text.len)
        return err_set(err, ERR_INTERNAL, "wrote %zd of %zu bytes of a sandbox's state: is the disk full?", n,
                       text.len);
    return true;
}

bool state_rewrite(int sandbox_fd, const struct state *state, struct err *err)
{
    auto_close int fd = openat(sandbox_fd, "state", O_WRONLY | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 ? err_sys(err, "open state") : state_write(fd, state, err);
}

bool state_replace(int sandbox_fd, const struct state *state, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, STATE_BYTES);

    return print_whole(&text, state, err) && fd_replace_file(sandbox_fd, "state", buf_str(&text), 0600, err);
}

bool state_read(int sandbox_fd, struct state *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    return fd_read_file(sandbox_fd, "state", STATE_BYTES, &text, &len, err) && state_parse(str_of(text, len), out, err);
}

bool state_read_layers(int sandbox_fd, state_layer_fn *use, void *context, struct err *err)
{
    struct state state;

    if (!state_read(sandbox_fd, &state, err))
        return false;
    for (uint32_t i = 0; i < state.layer_count; i++)
        use(context, state.layers[i]);
    return state.layer_count || err_set(err, ERR_NOT_FOUND, "its state names no layers");
}

#define RESUMED "resumed"

bool state_mark_resumed(int sandbox_fd, const char *boot_id, bool waits, struct err *err)
{
    size_t len = strlen(boot_id);

    if (waits)
        return fd_replace_file(sandbox_fd, RESUMED, str_of(boot_id, len), 0600, err);
    auto_close int fd = openat(sandbox_fd, RESUMED, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, boot_id, len) != (ssize_t)len)
        return err_sys(err, "write " RESUMED);
    return true;
}

bool state_unmark_resumed(int sandbox_fd, struct err *err)
{
    return unlinkat(sandbox_fd, RESUMED, 0) == 0 || errno == ENOENT || err_sys(err, "remove " RESUMED);
}

bool state_check_resumed(int sandbox_fd, const char *boot_id, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(sandbox_fd, RESUMED, BOOT_ID_BYTES, &text, &len, err))
        return err->sys == ENOENT;
    /* One that a power cut has left empty is of another boot too. */
    return str_eq(str_of(text, len), str_from(boot_id)) ||
           err_set(err, ERR_CONFLICT,
                   "the machine went down after it had been resumed, so its files are newer than its saved memory; it "
                   "can be started from its files (on_resume='reboot')");
}

bool state_claim(int sandbox_fd, int *out_fd, struct err *err)
{
    auto_close int fd = openat(sandbox_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, "open the directory of a sandbox");
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK
                   ? err_set(err, ERR_CONFLICT, "an earlier start of it has not ended yet; try again in a moment")
                   : err_sys(err, "claim a sandbox");
    *out_fd = take_fd(&fd);
    return true;
}

bool state_start_time(struct str stat_line, uint64_t *out_ticks)
{
    struct str word;

    /* The second field is the program's name in brackets, and may itself hold blanks and brackets: the last one ends it. */
    const char *end = stat_line.len ? memrchr(stat_line.at, ')', stat_line.len) : NULL;
    if (!end)
        return false;
    struct str rest = str_of(end + 1, (size_t)(stat_line.at + stat_line.len - end - 1));
    if (!str_skip(&rest, STR(" ")))
        return false;
    for (int field = 3; field <= 22; field++)
        if (!rest.len || !str_cut(&rest, ' ', &word))
            return false;
    return str_to_u64(word, UINT64_MAX, out_ticks);
}

bool state_process_start_time(pid_t pid, uint64_t *out_ticks, struct err *err)
{
    auto_free char *text = NULL;
    char path[32];
    size_t len;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!fd_read_file(AT_FDCWD, path, STAT_BYTES, &text, &len, err))
        return false;
    if (!state_start_time(str_of(text, len), out_ticks))
        return err_set(err, ERR_INTERNAL, "%s does not parse", path);
    return true;
}

bool state_boot_id(char out_id[BOOT_ID_BYTES], struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", BOOT_ID_BYTES, &text, &len, err))
        return false;
    text[strcspn(text, "\n")] = '\0';
    (void)snprintf(out_id, BOOT_ID_BYTES, "%s", text);
    return true;
}
