/*
 * The program that CRIU starts, under two names. It starts in a fraction of the time that sh, tar or gzip need.
 *
 *   script  at each step of a restore: it writes the step into one pipe and waits for an answer in the other (criu.c).
 *   tar     for each tmpfs of a sandbox: `tar --create --gzip …` with the directory as descriptor 0 and the archive as 1, or
 *           `tar --extract --gzip … --directory DIR` with the archive as 0. Most have nothing in them but an empty directory
 *           or two. These are packed and unpacked here, into an archive as tar would read it: ustar, in gzip that does not
 *           compress. Everything else is left to the real tar: files, other archives, whatever cannot be done.
 *
 * Freestanding, because it runs in a root of another release. The tree that it packs is a guest's.
 */
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/syscall.h>

#include "isolation/native/criu_kernel.h"

enum {
    NAME_BYTES = 64, /* a longer one is for the real tar */
    DIRS_MAX = 12,   /* more are, too */
    BLOCK = 512,
    GZIP_BEFORE = 15, /* header, and the length of the one block */
    GZIP_AFTER = 8,
    ARCHIVE_BYTES = GZIP_BEFORE + (DIRS_MAX + 2) * BLOCK + GZIP_AFTER,
    LIST_BYTES = 2048,
    STEP_BYTES = 96,
};

/* The kernel's; times as it takes them. */
struct entry {
    unsigned long long inode, offset;
    unsigned short size;
    unsigned char type;
    char name[];
};
struct times {
    long long seconds, nanoseconds;
};

/* ---- what a C library would have ---- */

void *memset(void *at, int value, unsigned long size);
void *memcpy(void *to, const void *from, unsigned long size);
__attribute__((noreturn, used)) void tool_main(long *stack);

/* The barriers keep the compiler from making calls of themselves out of the loops. */
void *memset(void *at, int value, unsigned long size)
{
    for (unsigned char *byte = at; size; size--) {
        *byte++ = (unsigned char)value;
        __asm__ volatile("" ::: "memory");
    }
    return at;
}

void *memcpy(void *to, const void *from, unsigned long size)
{
    const unsigned char *source = from;

    for (unsigned char *byte = to; size; size--) {
        *byte++ = *source++;
        __asm__ volatile("" ::: "memory");
    }
    return to;
}

static unsigned long length(const char *text)
{
    unsigned long len = 0;

    while (text[len])
        len++;
    return len;
}

static int same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/* ---- script ---- */

static const char *find(char *const *environment, const char *name)
{
    unsigned long len = length(name);

    for (; *environment; environment++) {
        unsigned long i = 0;
        while (i < len && (*environment)[i] == name[i])
            i++;
        if (i == len && (*environment)[i] == '=')
            return *environment + len + 1;
    }
    return 0;
}

static int open_pipe(const char *path, int flags)
{
    return (int)kernel(SYS_openat, AT_FDCWD, (long)path, flags, 0, 0, 0);
}

/* "setup-namespaces 1234"; the answer is "fine" or something else. */
static int script(char *const *environment)
{
    const char *words[] = { find(environment, "CRTOOLS_SCRIPT_ACTION"), find(environment, "CRTOOLS_INIT_PID") };
    char line[STEP_BYTES], said[STEP_BYTES];
    unsigned long len = 0;

    if (!words[0])
        return 1;
    if (!words[1])
        words[1] = "0";
    for (int i = 0; i < 2; i++) {
        for (const char *at = words[i]; *at; at++) {
            if (len == sizeof line - 1)
                return 1;
            line[len++] = *at;
        }
        line[len++] = i == 0 ? ' ' : '\n';
        if (len == sizeof line)
            return 1;
    }
    int ask = open_pipe("/tmp/ask", O_WRONLY), reply = open_pipe("/tmp/answer", O_RDONLY);
    if (ask < 0 || reply < 0 || kernel(SYS_write, ask, (long)line, (long)len, 0, 0, 0) != (long)len)
        return 1;
    long n =
        kernel(SYS_read, reply, (long)said, sizeof said, 0, 0, 0); /* one write, and short: it comes in one piece */
    return !(n == 5 && said[0] == 'f' && said[1] == 'i' && said[2] == 'n' && said[3] == 'e' && said[4] == '\n');
}

/* ---- tar: an archive of directories ---- */

struct dir {
    char name[NAME_BYTES]; /* of the first, which is the tmpfs itself: empty */
    unsigned mode, uid, gid;
    long long changed_s;
};

static struct dir dirs[DIRS_MAX];
static unsigned dir_count;
static unsigned char archive[ARCHIVE_BYTES + 1];

static const unsigned char gzip_head[10] = { 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff };

static unsigned crc(const unsigned char *bytes, unsigned long len)
{
    unsigned value = ~0u;

    for (unsigned long i = 0; i < len; i++) {
        value ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
    }
    return ~value;
}

static void put_little(unsigned char *at, unsigned value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static unsigned get_little(const unsigned char *at, int bytes)
{
    unsigned value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (unsigned)at[i] << 8 * i;
    return value;
}

/* Digits and a zero byte. */
static void put_octal(unsigned char *at, unsigned long long value, int digits)
{
    at[digits] = 0;
    while (digits--) {
        at[digits] = (unsigned char)('0' + (value & 7));
        value >>= 3;
    }
}

static int get_octal(const unsigned char *at, int digits, unsigned long long *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++) {
        if (at[i] < '0' || at[i] > '7')
            return 0;
        *out = *out << 3 | (unsigned)(at[i] - '0');
    }
    return at[digits] == 0;
}

static unsigned sum_of(const unsigned char *block)
{
    unsigned sum = 0;

    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : block[i];
    return sum;
}

/* "./" or "./lock/" */
static void put_dir(unsigned char *block, const struct dir *dir)
{
    unsigned long len = length(dir->name);

    memset(block, 0, BLOCK);
    block[0] = '.';
    block[1] = '/';
    memcpy(block + 2, dir->name, len);
    if (len)
        block[2 + len] = '/';
    put_octal(block + 100, dir->mode, 7);
    put_octal(block + 108, dir->uid, 7);
    put_octal(block + 116, dir->gid, 7);
    put_octal(block + 124, 0, 11);
    put_octal(block + 136, (unsigned long long)dir->changed_s, 11);
    block[156] = '5';
    memcpy(block + 257,
           "ustar\0"
           "00",
           8);
    put_octal(block + 148, sum_of(block), 6);
    block[155] = ' ';
}

static int get_dir(const unsigned char *block, struct dir *out)
{
    unsigned long long mode, uid, gid, size, changed, sum;
    unsigned long len = 0;

    if (block[0] != '.' || block[1] != '/' || block[156] != '5' || !get_octal(block + 100, 7, &mode) ||
        !get_octal(block + 108, 7, &uid) || !get_octal(block + 116, 7, &gid) || !get_octal(block + 124, 11, &size) ||
        !get_octal(block + 136, 11, &changed) || !get_octal(block + 148, 6, &sum) || sum != sum_of(block) || size ||
        mode > 07777)
        return 0;
    for (; block[2 + len] && block[2 + len] != '/'; len++) {
        if (len == NAME_BYTES - 1)
            return 0;
        out->name[len] = (char)block[2 + len];
    }
    out->name[len] = '\0';
    out->mode = (unsigned)mode;
    out->uid = (unsigned)uid;
    out->gid = (unsigned)gid;
    out->changed_s = (long long)changed;
    return (len == 0 || (block[2 + len] == '/' && block[3 + len] == 0)) && !same(out->name, ".") &&
           !same(out->name, "..");
}

/* ---- tar --create ---- */

static int look(int fd, const char *name, struct dir *out, unsigned *device)
{
    struct statx st;
    unsigned long len = length(name);

    if (dir_count == DIRS_MAX || len >= NAME_BYTES ||
        kernel(SYS_statx, fd, (long)name, AT_SYMLINK_NOFOLLOW | (len ? 0 : AT_EMPTY_PATH), STATX_BASIC_STATS, (long)&st,
               0) < 0 ||
        (st.stx_mode & S_IFMT) != S_IFDIR || st.stx_uid > 07777777 || st.stx_gid > 07777777 ||
        st.stx_mtime.tv_sec < 0 || st.stx_mtime.tv_sec > 077777777777)
        return 0;
    memcpy(out->name, name, len + 1);
    out->mode = st.stx_mode & 07777;
    out->uid = st.stx_uid;
    out->gid = st.stx_gid;
    out->changed_s = st.stx_mtime.tv_sec;
    if (len && device[0] == st.stx_dev_major && device[1] == st.stx_dev_minor)
        return 1;
    device[0] = st.stx_dev_major;
    device[1] = st.stx_dev_minor;
    return len == 0; /* else another file system is mounted there */
}

static int take(int fd, const char *name, unsigned *device);

/* Calls take() for each name; at the second level there may be none. */
static int each(int fd, unsigned *device)
{
    _Alignas(8) char list[LIST_BYTES];
    long n;

    while ((n = kernel(SYS_getdents64, fd, (long)list, sizeof list, 0, 0, 0)) > 0)
        for (long at = 0; at < n;) {
            const struct entry *entry = (const struct entry *)(list + at);
            at += entry->size;
            if (!same(entry->name, ".") && !same(entry->name, "..") && (!device || !take(fd, entry->name, device)))
                return 0;
        }
    return n == 0;
}

static int take(int fd, const char *name, unsigned *device)
{
    if (!look(fd, name, &dirs[dir_count], device))
        return 0;
    dir_count++;
    long inside =
        kernel(SYS_openat, fd, (long)name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0, 0, 0);
    int is_empty = inside >= 0 && each((int)inside, 0);
    if (inside >= 0)
        (void)kernel(SYS_close, inside, 0, 0, 0, 0, 0);
    return is_empty;
}

/* 0: nothing is written yet, and the real tar can do it. */
static int create(int *out_status)
{
    unsigned device[2];
    unsigned len;

    if (!look(0, "", &dirs[0], device))
        return 0;
    dir_count = 1;
    if (!each(0, device))
        return 0;
    len = (dir_count + 2) * BLOCK;
    memcpy(archive, gzip_head, sizeof gzip_head);
    archive[10] = 1; /* the last block, as it is */
    put_little(archive + 11, len, 2);
    put_little(archive + 13, ~len, 2);
    for (unsigned i = 0; i < dir_count; i++)
        put_dir(archive + GZIP_BEFORE + i * BLOCK, &dirs[i]);
    put_little(archive + GZIP_BEFORE + len, crc(archive + GZIP_BEFORE, len), 4);
    put_little(archive + GZIP_BEFORE + len + 4, len, 4);
    len += GZIP_BEFORE + GZIP_AFTER;
    *out_status = kernel(SYS_write, 1, (long)archive, len, 0, 0, 0) != (long)len;
    return 1;
}

/* ---- tar --extract ---- */

/* Is it one of ours, whole? */
static int parse(long size)
{
    long len = size - GZIP_BEFORE - GZIP_AFTER;
    const unsigned char *blocks = archive + GZIP_BEFORE;

    if (size > ARCHIVE_BYTES || len < 3 * BLOCK || len % BLOCK)
        return 0;
    for (unsigned i = 0; i < sizeof gzip_head; i++)
        if (archive[i] != gzip_head[i])
            return 0;
    if (archive[10] != 1 || get_little(archive + 11, 2) != (unsigned)len ||
        get_little(archive + 13, 2) != (~(unsigned)len & 0xffff) ||
        get_little(blocks + len, 4) != crc(blocks, (unsigned long)len) ||
        get_little(blocks + len + 4, 4) != (unsigned)len)
        return 0;
    dir_count = (unsigned)(len / BLOCK) - 2;
    for (unsigned i = 0; i < dir_count; i++)
        if (!get_dir(blocks + i * BLOCK, &dirs[i]) || (dirs[i].name[0] == '\0') != (i == 0))
            return 0;
    for (unsigned i = 0; i < 2 * BLOCK; i++)
        if (blocks[dir_count * BLOCK + i])
            return 0;
    return 1;
}

static int dress(int fd, const char *name, const struct dir *dir)
{
    const struct times times[2] = { { dir->changed_s, 0 }, { dir->changed_s, 0 } };

    return kernel(SYS_fchownat, fd, (long)name, dir->uid, dir->gid, AT_SYMLINK_NOFOLLOW, 0) == 0 &&
           kernel(SYS_fchmodat, fd, (long)name, dir->mode, 0, 0, 0) == 0 &&
           kernel(SYS_utimensat, fd, (long)name, (long)times, AT_SYMLINK_NOFOLLOW, 0, 0) == 0;
}

static int extract(char *const *argv, int *out_status)
{
    const char *path = 0;

    for (; *argv; argv++)
        if (same(*argv, "--directory"))
            path = argv[1];
    if (!path || kernel(SYS_lseek, 0, 0, 1, 0, 0, 0) != 0 ||
        !parse(kernel(SYS_pread64, 0, (long)archive, sizeof archive, 0, 0, 0)))
        return 0;
    long fd = kernel(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
    int fine = fd >= 0;
    for (unsigned i = 1; fine && i < dir_count; i++)
        fine =
            kernel(SYS_mkdirat, fd, (long)dirs[i].name, 0700, 0, 0, 0) == 0 && dress((int)fd, dirs[i].name, &dirs[i]);
    /* Last: what is made in it changes its time. */
    *out_status = !(fine && dress((int)fd, ".", &dirs[0]));
    return 1;
}

/* ---- the beginning ---- */

__asm__(".globl _start\n"
        ".type _start,%function\n"
        "_start:\n"
#if defined __x86_64__
        "xor %ebp, %ebp\n"
        "mov %rsp, %rdi\n"
        "and $-16, %rsp\n"
        "call tool_main\n"
#else
        "mov x29, #0\n"
        "mov x30, #0\n"
        "mov x0, sp\n"
        "bl tool_main\n"
#endif
);

/* The stack as the kernel leaves it: how many arguments, they, 0, the environment, 0. */
void tool_main(long *stack)
{
    long count = stack[0];
    char **argv = (char **)(stack + 1), **environment = argv + count + 1;
    const char *mode = count > 1 ? argv[1] : "";
    int status = 1;

    if (!same(count ? argv[0] : "", "tar"))
        status = script(environment);
    else if (same(mode, "--create") ? !create(&status) : !same(mode, "--extract") || !extract(argv, &status)) {
        (void)kernel(SYS_execve, (long)"/usr/bin/tar", (long)argv, (long)environment, 0, 0, 0);
        status = 1;
    }
    for (;;)
        (void)kernel(SYS_exit_group, status, 0, 0, 0, 0, 0);
}
