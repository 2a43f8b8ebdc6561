#include "isolation/native/state.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

enum {
    RECORD_BYTES = 256,
    STATE_BYTES = RECORD_BYTES + LIMIT_LAYERS * (LAYER_ID_BYTES + 6), /* a line for each layer */
    STAT_BYTES = 4096,
};

#define FORMAT_LINE "cloister-sandbox 1"

void state_print(struct buf *out, const struct state *state)
{
    /* Of the same length whatever the numbers are, so that the second write covers the first. */
    buf_format(out, "%s\nboot %-36s\nslot %010" PRIu32 "\npid %010d\nstart %020" PRIu64 "\ndying %d\n", FORMAT_LINE,
               state->boot_id, state->slot, state->pid, state->start_time, state->dying);
}

static bool number_line(struct str *text, struct str key, uint64_t max, uint64_t *out)
{
    struct str line;

    return str_cut(text, '\n', &line) && str_skip(&line, key) && str_to_u64(line, max, out);
}

bool state_parse(struct str text, struct state *out, struct err *err)
{
    struct state parsed = { 0 };
    struct str line;
    uint64_t slot, pid, dying = 0;

    if (!str_cut(&text, '\n', &line) || !str_eq(line, STR(FORMAT_LINE)) || !str_cut(&text, '\n', &line) ||
        !str_skip(&line, STR("boot ")) || line.len >= sizeof parsed.boot_id ||
        !number_line(&text, STR("slot "), UINT32_MAX, &slot) || !number_line(&text, STR("pid "), INT32_MAX, &pid) ||
        !number_line(&text, STR("start "), UINT64_MAX, &parsed.start_time) ||
        (text.len && !number_line(&text, STR("dying "), 1, &dying)) || (text.len && !str_starts(text, STR("layer "))))
        return err_set(err, ERR_INVALID, "the state of a sandbox does not parse");
    line = str_trim(line);
    memcpy(parsed.boot_id, line.at, line.len);
    parsed.slot = (uint32_t)slot;
    parsed.pid = (pid_t)pid;
    parsed.dying = dying;
    *out = parsed;
    return true;
}

bool state_write(int fd, const struct state *state, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, RECORD_BYTES);

    state_print(&text, state);
    if (text.overflowed)
        return err_set(err, ERR_INTERNAL, "the state of a sandbox is too long");
    ssize_t n = pwrite(fd, text.data, text.len, 0);
    if (n < 0)
        return err_sys(err, "write the state of a sandbox");
    if ((size_t)n != text.len)
        return err_set(err, ERR_INTERNAL, "of the state of a sandbox %zd of %zu bytes were written: is the disk full?",
                       n, text.len);
    return true;
}

bool state_read(int sandbox_fd, struct state *out, struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    return fd_read_file(sandbox_fd, "state", STATE_BYTES, &text, &len, err) && state_parse(str_of(text, len), out, err);
}

bool state_write_layers(int fd, const struct plan *plan, struct err *err)
{
    auto_buf struct buf text = buf_make(NULL, STATE_BYTES);

    for (uint32_t i = 0; i < plan->layer_count; i++)
        buf_format(&text, "layer %s\n", plan->layers[i]);
    if (lseek(fd, 0, SEEK_END) < 0)
        return err_sys(err, "seek in the state of a sandbox");
    return fd_write_all(fd, buf_str(&text), err) || err_wrap(err, "write the layers of a sandbox");
}

bool state_read_layers(int sandbox_fd, state_layer_fn *use, void *context, struct err *err)
{
    auto_free char *text = NULL;
    struct str rest, line;
    char layer[LAYER_ID_BYTES];
    uint32_t count = 0;
    size_t len;

    if (!fd_read_file(sandbox_fd, "state", STATE_BYTES, &text, &len, err))
        return false;
    for (rest = str_of(text, len); str_cut(&rest, '\n', &line);) {
        if (!str_skip(&line, STR("layer ")))
            continue;
        if (!str_to_path(line, layer, sizeof layer, err))
            return false;
        use(context, layer);
        count++;
    }
    return count || err_set(err, ERR_NOT_FOUND, "its state names no layers");
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
