#include "isolation/native/open_files.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "isolation/native/box.h"

enum {
    PATH_ROOM = 64,
    INFO_BYTES = 1024,
    LIST_BYTES = 65536, /* of a read; the kernel gives a page of whole lines */
};

/* ---- the kernel's text ---- */

uint64_t open_files_in_flight(struct str fdinfo)
{
    struct str line;
    uint64_t count = 0;

    while (fdinfo.len && str_cut(&fdinfo, '\n', &line))
        if (str_skip(&line, STR("scm_fds:"))) {
            while (str_skip(&line, STR("\t")) || str_skip(&line, STR(" ")))
                ;
            return str_to_u64(line, UINT32_MAX, &count) ? count : 0;
        }
    return 0;
}

/* "Num RefCount Protocol Flags Type St Inode Path", words apart by one blank or more. */
struct str open_files_inode(struct str line)
{
    struct str word = STR("");

    for (int i = 0; i < 7; i++) {
        word = STR("");
        while (line.len && !word.len)
            if (!str_cut(&line, ' ', &word))
                break;
    }
    uint64_t number;
    return str_to_u64(word, INT64_MAX, &number) && number ? word : STR("");
}

/* ---- processes ---- */

static bool add_pid(void *context, pid_t pid)
{
    struct open_files *files = context;

    if (files->count == files->room) {
        files->room = files->room ? files->room * 2 : 16;
        files->pids = mem_grow(files->pids, files->room * sizeof *files->pids);
    }
    files->pids[files->count++] = pid;
    return true;
}

void open_files_begin(struct open_files *files, const struct box *box)
{
    open_files_done(files);
    files->list_fd = -1;
    map_init(&files->sockets);
    (void)add_pid(files, box->pid);
    (void)cgroup_each_user(box->native->cgroups, box->id, add_pid, files);
    files->processes = files->count;
}

void open_files_done(struct open_files *files)
{
    void *inode;

    if (!files->pids)
        return; /* not begun */
    for (size_t i = 0; (inode = map_next(&files->sockets, &i));)
        free(inode);
    map_done(&files->sockets);
    if (files->fds)
        (void)closedir(files->fds);
    fd_close(&files->list_fd);
    free(files->pids);
    *files = (struct open_files){ 0 };
}

static bool next_part(struct open_files *files)
{
    files->at = 0;
    return ++files->part != OPEN_FILES_DONE;
}

/* A thread can have a table of its own, and a process whose first thread has ended has none but that of the others. */
static void add_tasks(struct open_files *files, pid_t pid)
{
    char path[PATH_ROOM];
    pid_t last = pid;
    uint64_t number;

    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        if (!str_to_u64(str_from(entry->d_name), INT32_MAX, &number) || (pid_t)number == pid)
            continue;
        /* Fails on kernels without it: then all are as the first. */
        if (syscall(SYS_kcmp, last, (pid_t)number, KCMP_FILES, 0, 0) <= 0)
            continue;
        last = (pid_t)number;
        (void)add_pid(files, last);
    }
    if (tasks)
        (void)closedir(tasks);
}

/* The kernel says it as the size of the directory since 6.2; before, by its entries alone. */
static void count_files(struct open_files *files, pid_t pid)
{
    char path[PATH_ROOM];
    struct stat st;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    if (stat(path, &st) == 0 && st.st_size > 0) {
        files->open += (uint64_t)st.st_size;
        return;
    }
    DIR *fds = opendir(path);
    for (struct dirent *entry; fds && (entry = readdir(fds));)
        files->open += entry->d_name[0] != '.';
    if (fds)
        (void)closedir(fds);
}

/* ---- sockets ---- */

static void look_at_socket(struct open_files *files, pid_t pid, const char *number, struct str inode)
{
    char path[PATH_ROOM], info[INFO_BYTES];
    auto_free char *listed = map_remove(&files->sockets, inode);

    if (!listed)
        return; /* of another family, or seen already, or new */
    (void)snprintf(path, sizeof path, "/proc/%d/fdinfo/%.12s", (int)pid, number);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, info, sizeof info);
    if (n > 0)
        files->in_flight += open_files_in_flight(str_of(info, (size_t)n));
}

/* One descriptor. */
static void look_at_next(struct open_files *files)
{
    char path[PATH_ROOM];
    pid_t pid = files->pids[files->at];

    if (!files->fds) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
        files->fds = opendir(path);
    }
    struct dirent *entry = files->fds ? readdir(files->fds) : NULL;
    if (!entry) { /* that was the last, or the process is gone */
        if (files->fds)
            (void)closedir(take_ptr(&files->fds));
        files->at++;
        return;
    }
    ssize_t n = readlinkat(dirfd(files->fds), entry->d_name, path, sizeof path);
    struct str target = str_of(path, n < 0 ? 0 : (size_t)n), inode;
    if (str_skip(&target, STR("socket:[")) && str_cut(&target, ']', &inode))
        look_at_socket(files, pid, entry->d_name, inode);
}

static void note_listed(struct open_files *files, struct str inode)
{
    char *key = mem_new(inode.len + 1);

    memcpy(key, inode.at, inode.len);
    free(map_put(&files->sockets, str_from(key), key));
}

/* One read. False: that was the last. */
static bool read_list(struct open_files *files)
{
    auto_free char *room = mem_new(LIST_BYTES);
    char path[PATH_ROOM];

    if (files->list_fd < 0) {
        (void)snprintf(path, sizeof path, "/proc/%d/net/unix", (int)files->pids[0]);
        files->list_fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    ssize_t n = files->list_fd < 0 ? 0 : read(files->list_fd, room, LIST_BYTES);
    struct str text = str_of(room, n < 0 ? 0 : (size_t)n), line;
    while (text.len && str_cut(&text, '\n', &line)) {
        struct str inode = open_files_inode(line);
        if (inode.len && files->part == OPEN_FILES_LISTED)
            note_listed(files, inode);
        else if (inode.len && map_get(&files->sockets, inode))
            files->hidden++;
    }
    if (n <= 0)
        fd_close(&files->list_fd);
    return n > 0;
}

bool open_files_step(struct open_files *files)
{
    switch (files->part) {
    case OPEN_FILES_TASKS:
        add_tasks(files, files->pids[files->at]);
        return ++files->at < files->processes || next_part(files);
    case OPEN_FILES_COUNT:
        count_files(files, files->pids[files->at]);
        return ++files->at < files->count || next_part(files);
    case OPEN_FILES_SOCKETS:
        look_at_next(files);
        return files->at < files->count || next_part(files);
    case OPEN_FILES_LISTED:
        return read_list(files) || (next_part(files) && files->sockets.count);
    case OPEN_FILES_HIDDEN:
        return read_list(files) || next_part(files);
    case OPEN_FILES_DONE:
        break;
    }
    return false;
}
