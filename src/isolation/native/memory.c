#include "isolation/native/memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/mem.h"
#include "isolation/native/box.h"
#include "isolation/native/checkpoint.h"
#include "isolation/native/criu.h"
#include "isolation/native/criu_test.h"
#include "isolation/native/park.h"

enum { CPUINFO_BYTES = 4 << 20, VERSION_BYTES = 64, CHUNK_BYTES = 64 * 1024 };

enum {
    TEST_MS = 30000,
    TEST_AGAIN_MS = 5000, /* the first time… */
    TEST_AGAIN_TIMES = 6, /* …and then so many times longer than the one before: 20 minutes in all */
    TESTS = 5,
};

/* ---- where images can be restored ---- */

/* Printable ASCII, and cut. */
static void put(char room[IMAGE_TEXT_BYTES], const char *text)
{
    size_t len = 0;

    for (; *text && len < IMAGE_TEXT_BYTES - 1; text++)
        room[len++] = *text >= ' ' && *text <= '~' ? *text : '?';
    room[len] = '\0';
}

static bool name_kernel(char room[IMAGE_TEXT_BYTES], struct err *err)
{
    struct utsname name;
    char text[sizeof name.release + sizeof name.version + sizeof name.machine];

    if (uname(&name) < 0)
        return err_sys(err, "uname");
    (void)snprintf(text, sizeof text, "%s %s %s", name.release, name.machine, name.version);
    put(room, text);
    return true;
}

/* What the first processor is called, and what it can do. */
static bool name_processor(char room[IMAGE_TEXT_BYTES], struct err *err)
{
    auto_free char *text = NULL;
    size_t len;
    struct str line, rest, name = STR("unknown");
    uint64_t features = FNV_START;
    char said[IMAGE_TEXT_BYTES];

    if (!fd_read_file(AT_FDCWD, "/proc/cpuinfo", CPUINFO_BYTES, &text, &len, err))
        return false;
    for (rest = str_of(text, len); rest.len && str_cut(&rest, '\n', &line) && line.len;) {
        struct str key = STR("");
        (void)str_cut(&line, ':', &key);
        key = str_trim(key);
        if (str_eq(key, STR("model name")) || str_eq(key, STR("CPU part")))
            name = str_trim(line);
        if (str_eq(key, STR("flags")) || str_eq(key, STR("Features")))
            features = fnv_add(features, line);
    }
    (void)snprintf(said, sizeof said, "%016" PRIx64 " %.*s", features, (int)MIN(name.len, 100), name.at);
    put(room, said);
    return true;
}

static bool hash_file(int fd, uint64_t *hash, struct err *err)
{
    auto_free char *chunk = mem_new(CHUNK_BYTES);
    off_t at = 0;
    ssize_t n;

    while ((n = pread(fd, chunk, CHUNK_BYTES, at)) > 0) {
        *hash = fnv_add(*hash, str_of(chunk, (size_t)n));
        at += n;
    }
    return n == 0 || err_sys(err, "read guestd");
}

/* All of ours that is mapped inside. */
static bool name_programs(const struct native *native, char room[IMAGE_TEXT_BYTES], struct err *err)
{
    uint64_t hash = FNV_START;

    if (!hash_file(native->guestd_fd, &hash, err) || !hash_file(native->enter_fd, &hash, err))
        return false;
    (void)snprintf(room, IMAGE_TEXT_BYTES, "%016" PRIx64, hash);
    return true;
}

static bool name_criu(int tools_fd, char room[IMAGE_TEXT_BYTES], struct err *err)
{
    auto_free char *text = NULL;
    size_t len;

    if (!fd_read_file(tools_fd, "etc/criu-version", VERSION_BYTES, &text, &len, err))
        return false;
    text[strcspn(text, "\n")] = '\0';
    put(room, text);
    return true;
}

static bool open_all(struct native *native, const char *tools, struct err *err)
{
    struct memory *memory = &native->memory;

    if (cgroups_report(native->cgroups)->freezer == CGROUP_FREEZER_NONE)
        return err_set(err, ERR_UNAVAILABLE, "this machine has no cgroup freezer");
    auto_close int fd = criu_open_tools(tools, err);
    if (fd < 0 || !name_kernel(memory->origin.kernel, err) || !name_processor(memory->origin.cpu, err) ||
        !name_programs(native, memory->origin.guestd, err) || !name_criu(fd, memory->origin.criu, err))
        return false;
    memory->tools_fd = take_fd(&fd);
    return true;
}

static void say_why(struct memory *memory, const struct err *why)
{
    (void)err_set(&memory->why, ERR_UNAVAILABLE, "the memory of sandboxes is not written to disk here: %s",
                  why->message);
    log_info("native: paused sandboxes stay in memory, or are kept without it: %s", err_text(why));
}

static void turn_off(struct native *native, const struct err *why)
{
    fd_close(&native->memory.tools_fd);
    say_why(&native->memory, why);
}

/* ---- the test ---- */

static bool test_work(struct helper_voice *voice, void *context, struct err *err)
{
    const struct native *native = context;

    (void)voice;
    return criu_test(native->memory.tools_fd, native->enter_fd, native->memory.learning_fd, err);
}

static bool start_test(struct native *native, struct err *err);

static void test_again(struct timer *timer)
{
    struct native *native = container_of(timer, struct native, memory.again);
    struct err err;

    if (!start_test(native, &err))
        log_warn("native: no further test of CRIU: %s", err_text(&err));
}

/* Helpers after this one deal with what guests have made: they can only read it. */
static void keep_known(struct memory *memory)
{
    auto_close int fd = take_fd(&memory->learning_fd);
    struct stat st;

    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0) {
        fd_close(&memory->known_fd);
        memory->known_fd = take_fd(&fd);
    }
}

static void test_ended(void *context, const uint64_t figures[HELPER_FIGURES], const struct err *err)
{
    struct native *native = context;
    struct memory *memory = &native->memory;
    struct err why;

    (void)figures;
    memory->test = NULL;
    if (!err) {
        if (memory->has_failed)
            log_info("native: CRIU works now: the memory of paused sandboxes is written to disk");
        memory->has_failed = false;
        keep_known(memory);
        return;
    }
    fd_close(&memory->learning_fd);
    (void)err_set(&why, ERR_UNAVAILABLE, "CRIU does not work on this machine");
    (void)err_wrap(&why, "%s", err_text(err));
    if (!memory->has_failed)
        say_why(memory, &why);
    memory->has_failed = true;
    if (memory->tests == TESTS)
        return;
    uint64_t pause_ms = TEST_AGAIN_MS;
    for (unsigned i = 1; i < memory->tests; i++)
        pause_ms *= TEST_AGAIN_TIMES;
    timer_set(&memory->again, native->loop, pause_ms, test_again);
}

static bool start_test(struct native *native, struct err *err)
{
    struct memory *memory = &native->memory;
    struct helper_job job = { .work = test_work,
                              .runs_criu = true,
                              .ended = test_ended,
                              .context = native,
                              .dirs = { { memory->tools_fd, HELPER_HOLD }, { native->enter_fd, HELPER_HOLD } },
                              .dir_count = 2,
                              .patience_ms = TEST_MS };

    memory->tests++;
    fd_close(&memory->learning_fd);
    memory->learning_fd = memfd_create("criu.kdat", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* -1: it works without */
    if (memory->learning_fd >= 0)
        job.dirs[job.dir_count++] = (struct helper_dir){ memory->learning_fd, HELPER_HOLD };
    memory->test = helper_start(native->helpers, &job, err);
    return memory->test != NULL;
}

void memory_open(struct native *native, const char *tools)
{
    struct err err;

    native->memory.tools_fd = native->memory.known_fd = native->memory.learning_fd = -1;
    native->memory.dump_ms = LIMIT_DUMP_MS;
    if (!tools)
        (void)err_set(&native->memory.why, ERR_UNAVAILABLE,
                      "this server does not write the memory of sandboxes to disk");
    else if (!open_all(native, tools, &err) || !start_test(native, &err))
        turn_off(native, &err);
}

void memory_close(struct native *native)
{
    timer_clear(&native->memory.again);
    fd_close(&native->memory.tools_fd);
    fd_close(&native->memory.known_fd);
    fd_close(&native->memory.learning_fd);
}

bool memory_works(const struct native *native, struct err *err)
{
    if (native->memory.tools_fd >= 0 && !native->memory.has_failed)
        return true;
    *err = native->memory.why;
    return false;
}

/* ---- park ---- */

struct memory_park {
    struct box *box;
    int sandbox_fd;
    bool was_frozen;
    driver_kept_fn *done;
    void *context;
};

static void end(struct memory_park *park, const struct err *err)
{
    struct box *box = park->box;
    driver_kept_fn *done = park->done;
    void *context = park->context;
    struct err why;

    if (err && box->state == BOX_RUNNING && !box->native->is_stopping) {
        /* It runs on, so an image of it must not be restored any more. There is one if the dump was fine and the park failed. */
        if (park->sandbox_fd >= 0 && !trash_add(box->native->trash, park->sandbox_fd, "image", &why))
            log_warn("native: an image of sandbox %s stays on disk: %s", box->id, err_text(&why));
        if (!park->was_frozen && !box_thaw(box, &why))
            log_error("native: sandbox %s stays frozen: %s", box->id, err_text(&why));
    }
    box->memory_park = NULL;
    fd_close(&park->sandbox_fd);
    free(park);
    done(context, NULL, err);
}

static void parked(void *context, const struct kept *kept, const struct err *err)
{
    (void)kept;
    end(context, err);
}

static void dumped(void *context, const struct err *err)
{
    struct memory_park *park = context;

    if (err) {
        log_debug("native: the memory of sandbox %s was not written to disk: %s", park->box->id, err_text(err));
        end(park, err);
        return;
    }
    box_park(park->box, HELD_PARKED_IMAGE, parked, park);
}

static void frozen(void *context, const struct kept *kept, const struct err *err)
{
    struct memory_park *park = context;
    struct err why;

    (void)kept;
    if (err)
        end(park, err);
    else if (!box_checkpoint(park->box, park->sandbox_fd, dumped, park, &why))
        end(park, &why);
}

void memory_park(struct box *box, driver_kept_fn *done, void *context)
{
    struct memory_park *park;
    struct err err;

    if (!memory_works(box->native, &err)) {
        done(context, NULL, &err);
        return;
    }
    park = NEW(struct memory_park);
    *park = (struct memory_park){ .box = box, .was_frozen = box->ice.is_frozen, .done = done, .context = context };
    park->sandbox_fd = openat(box->native->sandboxes_fd, box->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    box->memory_park = park;
    if (park->sandbox_fd >= 0) {
        box_freeze(box, frozen, park);
    } else {
        (void)err_sys(&err, "open sandboxes/%s", box->id);
        end(park, &err);
    }
}
