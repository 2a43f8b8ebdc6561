#include "isolation/native/criu_log.h"

#include <stdio.h>

#define DEBUGGED "a process is being debugged"

/* Parts of CRIU's own messages (4.2), without what changes in them. The first that is found in an error line counts. */
static const struct {
    const char *text;
    const char *reason; /* "… cannot be paused with its memory: REASON; …" */
} reasons[] = {
    { "pending SIGTRAP", DEBUGGED },
    { "ctty inheritance", "a shell in a terminal was started by another user (sudo -s) or holds /dev/tty" },
    { "dangling tty", "a terminal is in use by a process that has lost it" },
    { "Unable to find a tty driver", "a process has a terminal of a kind that cannot be kept" },
    { "queued data overflow", "a terminal has too much unread input" },
    { "landlock", "a process has made Landlock rules" },
    { "Can't dump that handle", "a process watches files that no longer have a name" },
    /* LIMIT_DUMP_BYTES: for each file that is watched, CRIU looks at all names below two directories, and keeps them. */
    { "Can't allocate", "a process watches files, and there are too many names below /home and /tmp" },
    { "increase limit", "a process has a large deleted file open" },
    { "half of stream unix connection", "a process has a unix connection to outside of the sandbox" },
    { "corked dgram", "a process has an unfinished UDP packet" },
    { "Unsupported mapping", "a process has memory of a kind that cannot be kept" },
    { "Zombies with threads", "a process is about to end" },
    { "Zombie thread", "a process is about to end" },
    { "Individually stopped threads", "threads of a process are stopped one by one" },
    { "Unsupported type", "a process has a socket of a kind that cannot be kept" },
    { "Unsupported proto", "a process has a socket of a kind that cannot be kept" },
    { "Unsupported socket", "a process has a socket of a kind that cannot be kept" },
    { "Unknown file type", "a process has an open file of a kind that cannot be kept" },
    { "Can't dump file", "a process has an open file of a kind that cannot be kept" },
    { "io_uring", "a process uses io_uring" },
    { "Nested mount namespaces", "a process has a file system of its own" },
    { "Can't dump nested", "a process has a namespace of its own" },
    { "is not supported", "a process has an open file of a kind that cannot be kept" },
};

static bool contains(struct str text, const char *want)
{
    struct str part = str_from(want);

    for (size_t i = 0; i + part.len <= text.len; i++)
        if (str_eq(str_of(text.at + i, part.len), part))
            return true;
    return false;
}

/* For the log: one line, nothing unprintable, cut. */
static void quote(struct str line, char *room, size_t room_size)
{
    size_t len = MIN(line.len, room_size - 1);

    for (size_t i = 0; i < len; i++)
        room[i] = line.at[i] >= ' ' && line.at[i] <= '~' ? line.at[i] : '?';
    room[len] = '\0';
}

/* Said of itself, and CRIU goes on; or said at the end of every failure. */
static bool is_noise(struct str line)
{
    static const char *const noise[] = { "rlimit: Can't setup", "Unable to create tun",    "Dumping FAILED",
                                         "Restoring FAILED",    "cgroupd: recv req error", "Can't dump core" };

    for (size_t i = 0; i < COUNT_OF(noise); i++)
        if (contains(line, noise[i]))
            return true;
    return false;
}

void criu_log_explain(struct str log, struct err *out)
{
    struct str line;
    char first[200] = "";
    const char *reason = NULL;
    bool is_full = false;

    while (log.len && !reason && str_cut(&log, '\n', &line)) {
        /* A process that another one traces is a warning, and then an error that it seems to be dead. */
        if (contains(line, "Warn ") && contains(line, "Unable to interrupt task"))
            reason = DEBUGGED;
        if (!contains(line, "Error ("))
            continue;
        if (is_noise(line))
            continue;
        if (!*first)
            quote(line, first, sizeof first);
        is_full |= contains(line, "No space left on device") || contains(line, "Disk quota exceeded");
        for (size_t i = 0; i < COUNT_OF(reasons) && !reason; i++)
            if (contains(line, reasons[i].text))
                reason = reasons[i].reason;
    }
    if (is_full)
        (void)err_set(out, ERR_FULL, "there is no room on the server's disk for the memory of the sandbox");
    else if (reason)
        (void)err_set(out, ERR_INVALID,
                      "cannot be kept with its memory: %s; without memory (mode='filesystem') it works", reason);
    else
        (void)err_set(out, ERR_INTERNAL,
                      "its memory could not be written to disk; without memory (mode='filesystem') it works");
    (void)err_wrap(out, "CRIU: %s", *first ? first : "no error in its log");
}
