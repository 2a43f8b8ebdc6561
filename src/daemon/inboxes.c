/*
 * How it works: each worker is a process with a pidfd on keeper's loop. Keeper has no connection to it: front's end of the
 * socket pair is the only one, so the worker ends when front closes it or dies.
 *
 * Front has at most one connection to an inbox. When it asks for an inbox whose last worker still runs, it has closed that
 * connection: the old worker is killed, because two processes must not have one database. The new one can wait for the
 * locks of the old one; it finds the journal if there was work under way.
 *
 * User ids: a new inbox gets the id that a hash of its name points to, or the next one that is free. Which ones are taken
 * is read from the owners of the directories at the start.
 */
#include "daemon/inboxes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fnv.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pack.h"
#include "daemon/roles.h"
#include "mail/mail.h"
#include "privsep/role.h"

struct inbox_worker {
    struct inboxes *inboxes;
    struct inbox_worker *next;
    char inbox_id[MAIL_INBOX_ID_BYTES];
    struct role process;
    struct watch *watch;
};

struct inboxes {
    struct inboxes_config config;
    int mail_fd;
    struct inbox_worker *workers;
    uint32_t running;
    uint32_t *uids; /* taken, in ascending order */
    size_t uid_count, uid_room;
};

/* ---- user ids ---- */

/* Where the id is, or belongs. */
static size_t uid_place(const struct inboxes *inboxes, uint32_t uid)
{
    size_t low = 0, high = inboxes->uid_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (inboxes->uids[middle] < uid)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool uid_is_taken(const struct inboxes *inboxes, uint32_t uid)
{
    size_t at = uid_place(inboxes, uid);

    return at < inboxes->uid_count && inboxes->uids[at] == uid;
}

static void uid_take(struct inboxes *inboxes, uint32_t uid)
{
    size_t at = uid_place(inboxes, uid);

    if (at < inboxes->uid_count && inboxes->uids[at] == uid)
        return;
    if (inboxes->uid_count == inboxes->uid_room) {
        inboxes->uid_room = MAX(inboxes->uid_room * 2, (size_t)64);
        inboxes->uids = mem_grow(inboxes->uids, inboxes->uid_room * sizeof *inboxes->uids);
    }
    memmove(inboxes->uids + at + 1, inboxes->uids + at, (inboxes->uid_count - at) * sizeof *inboxes->uids);
    inboxes->uids[at] = uid;
    inboxes->uid_count++;
}

static bool uid_is_ours(uint32_t uid)
{
    return uid >= INBOX_UID_FIRST && uid - INBOX_UID_FIRST < INBOX_UID_COUNT;
}

/* The hash only has to spread. Front chooses the name, and gets no more than an id of this range. */
static uint32_t uid_choose(const struct inboxes *inboxes, const char *inbox_id)
{
    uint64_t hash = fnv_add(FNV_START, str_from(inbox_id));

    for (uint32_t i = 0; i < INBOX_UID_COUNT; i++) {
        uint32_t uid = INBOX_UID_FIRST + (uint32_t)((hash + i) % INBOX_UID_COUNT);
        if (!uid_is_taken(inboxes, uid))
            return uid;
    }
    return 0;
}

static DIR *open_mail(const struct inboxes *inboxes, struct err *err)
{
    int fd = openat(inboxes->mail_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir) {
        (void)err_sys(err, "list mail");
        fd_close(&fd);
    }
    return dir;
}

static bool read_uids(struct inboxes *inboxes, struct err *err)
{
    DIR *dir = open_mail(inboxes, err);
    struct stat st;

    if (!dir)
        return false;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (mail_inbox_id_valid(str_from(entry->d_name)) &&
            fstatat(inboxes->mail_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && uid_is_ours(st.st_uid))
            uid_take(inboxes, st.st_uid);
    (void)closedir(dir);
    return true;
}

/* ---- directories ---- */

static int open_existing(const struct inboxes *inboxes, const char *inbox_id, uint32_t *out_uid, struct err *err)
{
    auto_close int fd = openat(inboxes->mail_fd, inbox_id, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;

    if (fd < 0 && errno == ENOENT) {
        (void)err_set(err, ERR_NOT_FOUND, "there is no such inbox");
        return -1;
    }
    if (fd < 0 || fstat(fd, &st) < 0) {
        (void)err_sys(err, "open mail/%s", inbox_id);
        return -1;
    }
    *out_uid = st.st_uid;
    return take_fd(&fd);
}

static bool make_directory(struct inboxes *inboxes, const char *inbox_id, struct err *err)
{
    if (mkdirat(inboxes->mail_fd, inbox_id, 0700) < 0 && errno != EEXIST)
        return err_sys(err, "make mail/%s", inbox_id);
    return true;
}

/* A directory that was just made is root's; so is one that a crash left before it got its owner. */
static bool give_owner(struct inboxes *inboxes, const char *inbox_id, int fd, uint32_t *out_uid, struct err *err)
{
    uint32_t uid = uid_choose(inboxes, inbox_id);

    if (!uid)
        return err_set(err, ERR_LIMIT, "there are no user ids left for inboxes");
    /* The directory must be there after a power failure if front stores that it is. */
    if (fchmod(fd, 0700) < 0 || fchown(fd, uid, uid) < 0 || fsync(fd) < 0 || fsync(inboxes->mail_fd) < 0)
        return err_sys(err, "give mail/%s to its user", inbox_id);
    uid_take(inboxes, uid);
    *out_uid = uid;
    return true;
}

static int open_directory(struct inboxes *inboxes, const char *inbox_id, bool make, uint32_t *out_uid, struct err *err)
{
    if (make && !make_directory(inboxes, inbox_id, err))
        return -1;
    auto_close int fd = open_existing(inboxes, inbox_id, out_uid, err);
    if (fd < 0 || (make && *out_uid == 0 && !give_owner(inboxes, inbox_id, fd, out_uid, err)))
        return -1;
    if (!uid_is_ours(*out_uid)) {
        (void)err_set(err, ERR_INTERNAL,
                      "the directory mail/%s belongs to user %u, who is not an inbox's: restore its owner", inbox_id,
                      *out_uid);
        return -1;
    }
    return take_fd(&fd);
}

/* ---- workers ---- */

static void worker_forget(struct inbox_worker *worker)
{
    struct inbox_worker **at = &worker->inboxes->workers;

    while (*at != worker)
        at = &(*at)->next;
    *at = worker->next;
    worker->inboxes->running--;
    watch_free(worker->watch);
    fd_close(&worker->process.pidfd);
    free(worker);
}

static void on_ended(void *context, unsigned ready)
{
    struct inbox_worker *worker = context;
    int status = 0;

    (void)ready;
    if (waitpid(worker->process.pid, &status, WNOHANG) == 0)
        return; /* a wake-up for nothing */
    /* SIGKILL is ours, or an operator's. SIGALRM: it took too long, see inbox.c. */
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        log_error("the worker of inbox %s was killed by signal %d; the next call starts another", worker->inbox_id,
                  WTERMSIG(status));
    else if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        log_error("the worker of inbox %s ended with status %d; the next call starts another", worker->inbox_id,
                  WEXITSTATUS(status));
    worker_forget(worker);
}

static void kill_old(struct inboxes *inboxes, const char *inbox_id)
{
    for (const struct inbox_worker *worker = inboxes->workers; worker; worker = worker->next)
        if (strcmp(worker->inbox_id, inbox_id) == 0)
            (void)pidfd_send_signal(worker->process.pidfd, SIGKILL, NULL, 0); /* ESRCH: it has ended already */
}

static bool start_worker(struct inboxes *inboxes, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    const char *const args[] = { inboxes->config.log_level, NULL };
    struct role process;
    uint32_t uid;
    int pair[2];

    if (inboxes->running >= inboxes->config.workers_most)
        return err_set(err, ERR_LIMIT, "too many inboxes are in use at once; try again in a moment");
    auto_close int dir_fd = open_directory(inboxes, inbox_id, make, &uid, err);
    if (dir_fd < 0)
        return false;
    kill_old(inboxes, inbox_id);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, "make a connection to the worker of an inbox");
    auto_close int ours = pair[0];
    auto_close int theirs = pair[1];
    const struct role_want want = { .name = roles[ROLE_INBOX].name,
                                    .args = args,
                                    .uid = uid,
                                    .gid = uid,
                                    .connection = &theirs,
                                    .fds = &dir_fd,
                                    .fd_count = 1 };
    if (!role_start(&want, &process, err))
        return false;
    struct inbox_worker *worker = NEW(struct inbox_worker);
    worker->inboxes = inboxes;
    worker->process = process;
    memcpy(worker->inbox_id, inbox_id, sizeof worker->inbox_id);
    worker->watch = watch_new(inboxes->config.loop, process.pidfd, on_ended, worker);
    watch_want(worker->watch, WATCH_READ);
    worker->next = inboxes->workers;
    inboxes->workers = worker;
    inboxes->running++;
    *out_fd = take_fd(&ours);
    return true;
}

/* ---- directories that nobody needs ---- */

static int compare_ids(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* A directory has no order: the page begins with the smallest ids after `after`, of all that there are. */
static bool list_page(const struct inboxes *inboxes, const char *after, struct buf *out, struct err *err)
{
    auto_free char(*ids)[MAIL_INBOX_ID_BYTES] = NULL;
    DIR *dir = open_mail(inboxes, err);
    size_t count = 0, room = 0;

    if (!dir)
        return false;
    for (struct dirent *entry; count < LIMIT_INBOXES_LISTED && (entry = readdir(dir));) {
        if (!mail_inbox_id_valid(str_from(entry->d_name)) || strcmp(entry->d_name, after) <= 0)
            continue;
        if (count == room) {
            room = MAX(room * 2, (size_t)256);
            ids = mem_grow(ids, room * sizeof *ids);
        }
        memcpy(ids[count++], entry->d_name, sizeof *ids);
    }
    (void)closedir(dir);
    if (count)
        qsort(ids, count, sizeof *ids, compare_ids);
    count = MIN(count, (size_t)LIMIT_INBOXES_PAGE);
    pack_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        pack_str(out, str_from(ids[i]));
    return true;
}

/*
 * rmdir(2) removes what is empty and nothing else, so front cannot make keeper remove a file. The user id counts as taken
 * until the next start.
 */
static bool remove_empty(struct inboxes *inboxes, const char *inbox_id, struct err *err)
{
    kill_old(inboxes, inbox_id);
    if (unlinkat(inboxes->mail_fd, inbox_id, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return true;
    if (errno == ENOTEMPTY || errno == EEXIST)
        return err_set(err, ERR_CONFLICT, "the directory mail/%s is not empty", inbox_id);
    return err_sys(err, "remove mail/%s", inbox_id);
}

/* ---- requests ---- */

void inboxes_pack(struct buf *out, const char *inbox_id, bool make)
{
    pack_str(out, str_from(inbox_id));
    pack_bool(out, make);
}

/* It becomes the name of a directory: 26 letters and digits, and nothing else. */
static bool check_id(const char *inbox_id, struct err *err)
{
    return mail_inbox_id_valid(str_from(inbox_id)) ||
           err_set(err, ERR_INVALID, "malformed message: not the id of an inbox");
}

static bool reply_worker(struct inboxes *inboxes, struct channel *channel, uint32_t id, struct str payload,
                         struct err *err)
{
    struct unpack in = unpack_from(payload);
    char inbox_id[MAIL_INBOX_ID_BYTES];
    struct err why;

    unpack_text(&in, inbox_id, sizeof inbox_id);
    bool make = unpack_bool(&in);
    if (!unpack_done(&in, err) || !check_id(inbox_id, err))
        return err_wrap(err, "inbox");
    auto_close int fd = -1;
    if (start_worker(inboxes, inbox_id, make, &fd, &why))
        channel_reply(channel, MESSAGE_INBOX, id, STR(""), &fd, 1);
    else
        channel_reply_error(channel, MESSAGE_INBOX, id, &why);
    return true;
}

static bool reply_page(struct inboxes *inboxes, struct channel *channel, uint32_t id, struct str payload,
                       struct err *err)
{
    auto_buf struct buf page = buf_make(NULL, LIMIT_MESSAGE_BYTES);
    struct unpack in = unpack_from(payload);
    char after[MAIL_INBOX_ID_BYTES];
    struct err why;

    unpack_text(&in, after, sizeof after);
    if (!unpack_done(&in, err) || (after[0] && !check_id(after, err)))
        return err_wrap(err, "inboxes");
    if (list_page(inboxes, after, &page, &why))
        channel_reply(channel, MESSAGE_INBOXES, id, buf_str(&page), NULL, 0);
    else
        channel_reply_error(channel, MESSAGE_INBOXES, id, &why);
    return true;
}

static bool reply_unmake(struct inboxes *inboxes, struct channel *channel, uint32_t id, struct str payload,
                         struct err *err)
{
    struct unpack in = unpack_from(payload);
    char inbox_id[MAIL_INBOX_ID_BYTES];
    struct err why;

    unpack_text(&in, inbox_id, sizeof inbox_id);
    if (!unpack_done(&in, err) || !check_id(inbox_id, err))
        return err_wrap(err, "unmake");
    if (remove_empty(inboxes, inbox_id, &why))
        channel_reply(channel, MESSAGE_UNMAKE, id, STR(""), NULL, 0);
    else
        channel_reply_error(channel, MESSAGE_UNMAKE, id, &why);
    return true;
}

bool inboxes_request(struct inboxes *inboxes, struct channel *channel, enum message_type type, uint32_t id,
                     struct str payload, struct err *err)
{
    return type == MESSAGE_INBOXES  ? reply_page(inboxes, channel, id, payload, err)
           : type == MESSAGE_UNMAKE ? reply_unmake(inboxes, channel, id, payload, err)
                                    : reply_worker(inboxes, channel, id, payload, err);
}

bool inboxes_page_unpack(struct str payload, char (*out)[MAIL_INBOX_ID_BYTES], uint32_t *out_count, struct err *err)
{
    struct unpack in = unpack_from(payload);
    uint32_t count = unpack_count(&in, LIMIT_INBOXES_PAGE);

    for (uint32_t i = 0; i < count; i++) {
        unpack_text(&in, out[i], MAIL_INBOX_ID_BYTES);
        if (!in.failed && !check_id(out[i], err))
            return false;
    }
    *out_count = count;
    return unpack_done(&in, err);
}

uint32_t inboxes_running(const struct inboxes *inboxes)
{
    return inboxes->running;
}

/* ---- life ---- */

struct inboxes *inboxes_new(const struct inboxes_config *config, struct err *err)
{
    struct inboxes *inboxes = NEW(struct inboxes);

    inboxes->config = *config;
    inboxes->mail_fd = openat(config->data_fd, "mail", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (inboxes->mail_fd < 0 ? err_sys(err, "open mail") : read_uids(inboxes, err))
        return inboxes;
    inboxes_free(inboxes);
    return NULL;
}

void inboxes_free(struct inboxes *inboxes)
{
    if (!inboxes)
        return;
    while (inboxes->workers) {
        struct inbox_worker *worker = inboxes->workers;
        (void)pidfd_send_signal(worker->process.pidfd, SIGKILL, NULL, 0);
        (void)waitpid(worker->process.pid, NULL, 0);
        worker_forget(worker);
    }
    fd_close(&inboxes->mail_fd);
    free(inboxes->uids);
    free(inboxes);
}
