/*
 * Layers of images, made by the native driver. What they look like is compared with what umoci unpacks of the same archives,
 * where it is installed.
 */
#include "isolation/native/unpack.h"

#include <openssl/evp.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>
#include <zlib.h>
#include <zstd.h>

#include "base/encode.h"
#include "base/limits.h"
#include "io/pass.h"
#include "native_world.h"
#include "tar_maker.h"

enum { ARCHIVE_BYTES = 1 << 24, LAYERS = 8 };

/* ---- archives ---- */

enum packing { PLAIN, GZIP, ZSTD };

struct image {
    struct buf tars[LAYERS];
    uint32_t count;
    char chain[LAYERS][LAYER_ID_BYTES];
    uint64_t most_bytes;
};

static void image_done(struct image *image)
{
    for (uint32_t i = 0; i < LAYERS; i++)
        buf_done(&image->tars[i]);
}
#define auto_image __attribute__((cleanup(image_done)))

static struct buf *next_tar(struct image *image)
{
    assert_true(image->count < LAYERS);
    image->tars[image->count] = buf_make(NULL, ARCHIVE_BYTES);
    return &image->tars[image->count++];
}

static void sum_of(struct str bytes, char out[LAYER_ID_BYTES])
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned len;

    assert_int_equal(EVP_Digest(bytes.at, bytes.len, sum, &len, EVP_sha256(), NULL), 1);
    (void)hex_text(str_of(sum, len), out);
}

static void pack_bytes(struct str tar, enum packing packing, struct buf *out)
{
    if (packing == PLAIN) {
        buf_add(out, tar);
        return;
    }
    size_t room = ZSTD_compressBound(tar.len) + tar.len / 1000 + 1000;
    auto_free char *packed = mem_new(room);
    if (packing == ZSTD) {
        room = ZSTD_compress(packed, room, tar.at, tar.len, 1);
    } else {
        z_stream z = { .next_in = (Bytef *)(uintptr_t)tar.at, .avail_in = (uInt)tar.len };
        assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_out = (Bytef *)packed;
        z.avail_out = (uInt)room;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        room -= z.avail_out;
        assert_int_equal(deflateEnd(&z), Z_OK);
    }
    buf_add(out, str_of(packed, room));
}

static int file_of(struct str bytes)
{
    char path[] = "/var/tmp/cloister-archive.XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);

    assert_true(fd >= 0 && unlink(path) == 0);
    assert_true(write(fd, bytes.at, bytes.len) == (ssize_t)bytes.len); /* and the file's place is its end */
    return fd;
}

/* ---- unpacking ---- */

static void chain_of(const char *below, const char *diff, char out[LAYER_ID_BYTES])
{
    char text[200];

    (void)snprintf(text, sizeof text, "sha256:%s sha256:%s", below, diff);
    if (below)
        sum_of(str_from(text), out);
    else
        memcpy(out, diff, LAYER_ID_BYTES);
}

static struct unpack_want want_of(struct image *image, uint32_t which)
{
    struct unpack_want want = { .layer_count = which,
                                .most_bytes = image->most_bytes ? image->most_bytes : UINT64_C(1) << 30 };

    sum_of(buf_str(&image->tars[which]), want.diff);
    chain_of(which ? image->chain[which - 1] : NULL, want.diff, image->chain[which]);
    memcpy(want.chain, image->chain[which], sizeof want.chain);
    memcpy(want.layers, image->chain, which * sizeof image->chain[0]);
    return want;
}

/* The answer is the first, so that note_kept() finds it. */
struct asked {
    struct answer answer;
    int archive_fd; /* -1: front has gone */
    unsigned offers;
};

static void give_archive(void *context, int socket_fd)
{
    struct asked *asked = context;
    struct err err;

    asked->offers++;
    assert_true(asked->archive_fd < 0 || pass_fds(socket_fd, STR("a"), &asked->archive_fd, 1, &err));
}

static void begin_unpack(struct world *world, const struct unpack_want *want, int fd, struct asked *asked)
{
    *asked = (struct asked){ .answer.loop = world->loop, .archive_fd = fd };
    world->driver->ops->unpack(world->driver, want, give_archive, note_kept, asked);
}

static enum err_kind unpack_bytes(struct world *world, const struct unpack_want *want, struct str bytes,
                                  struct answer *answer)
{
    auto_close int fd = file_of(bytes);
    struct asked asked;

    begin_unpack(world, want, fd, &asked);
    (void)wait_for(world, &asked.answer);
    *answer = asked.answer;
    return answer->err.kind;
}

static enum err_kind unpack_layer(struct world *world, struct image *image, uint32_t which, enum packing packing,
                                  struct answer *answer)
{
    struct unpack_want want = want_of(image, which);
    auto_buf struct buf packed = buf_make(NULL, 2 * ARCHIVE_BYTES);

    assert_false(image->tars[which].overflowed);
    pack_bytes(buf_str(&image->tars[which]), packing, &packed);
    return unpack_bytes(world, &want, buf_str(&packed), answer);
}

static void unpack_all(struct world *world, struct image *image, enum packing packing)
{
    struct answer answer;

    for (uint32_t i = 0; i < image->count; i++) {
        if (unpack_layer(world, image, i, packing, &answer) != ERR_NONE)
            fail_msg("layer %u: %s", i, err_text(&answer.err));
        assert_string_equal(answer.kept.id, image->chain[i]);
        assert_int_equal(answer.kept.layer_count, i + 1);
        assert_memory_equal(answer.kept.layers, image->chain, (i + 1) * sizeof image->chain[0]);
        assert_true(answer.kept.layer_bytes > 0);
        assert_false(answer.kept.has_image);
    }
}

/* One layer that is refused for this reason; nothing is left of it. */
static void check_refused(struct world *world, struct image *image, enum err_kind kind, const char *why)
{
    struct answer answer;
    unsigned snapshots = count_names(world->data_fd, "snapshots"), layers = count_names(world->data_fd, "layers");

    assert_int_equal(unpack_layer(world, image, image->count - 1, PLAIN, &answer), kind);
    if (!strstr(answer.err.message, why))
        fail_msg("'%s' does not say '%s'", err_text(&answer.err), why);
    assert_int_equal(count_names(world->data_fd, "snapshots"), snapshots);
    assert_int_equal(count_names(world->data_fd, "layers"), layers);
    image->count--;
    buf_done(&image->tars[image->count]);
}

/* ---- what a tree looks like ---- */

struct seen {
    ino_t ino;
    char path[256];
};

struct look {
    struct buf *out;
    bool times_too;
    struct seen *seen;
    size_t count;
};

static void look_at_xattrs(struct look *look, const char *path)
{
    static const char *const names[] = { "security.capability", "user.a", "user.b" };
    char value[256], hex[2 * sizeof value + 1];

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        ssize_t len = lgetxattr(path, names[i], value, sizeof value);
        if (len >= 0)
            buf_format(look->out, " %s=%s", names[i], hex_text(str_of(value, (size_t)len), hex));
    }
}

static void look_at_contents(struct look *look, const char *path, const struct stat *st)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    auto_free char *text = NULL;
    char sum[LAYER_ID_BYTES];
    size_t len = 0;
    struct err err;

    assert_true(fd >= 0 && fd_read_all(fd, 64 << 20, &text, &len, &err));
    assert_int_equal(len, st->st_size);
    sum_of(str_of(text, len), sum);
    if (len <= 20)
        buf_format(look->out, " '%.*s'", (int)len, text);
    else
        buf_format(look->out, " %.12s", sum);
}

static void look_at(struct look *look, const char *root, const char *path)
{
    char whole[512], target[4096];
    struct stat st;
    struct dirent **names = NULL;

    (void)snprintf(whole, sizeof whole, "%s/%s", root, path);
    assert_int_equal(lstat(whole, &st), 0);
    buf_format(look->out, "/%s %o %u:%u", path, st.st_mode, st.st_uid, st.st_gid);
    if (look->times_too)
        buf_format(look->out, " @%ld.%09ld", (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    look_at_xattrs(look, whole);
    for (size_t i = 0; !S_ISDIR(st.st_mode) && i < look->count; i++)
        if (look->seen[i].ino == st.st_ino)
            buf_format(look->out, " =/%s", look->seen[i].path);
    look->seen = mem_grow(look->seen, (look->count + 1) * sizeof *look->seen);
    look->seen[look->count] = (struct seen){ .ino = st.st_ino };
    (void)snprintf(look->seen[look->count++].path, sizeof look->seen->path, "%s", path);
    if (S_ISREG(st.st_mode))
        look_at_contents(look, whole, &st);
    if (S_ISLNK(st.st_mode)) {
        ssize_t len = readlink(whole, target, sizeof target);
        buf_format(look->out, " -> %.*s", (int)len, target);
    }
    buf_add_char(look->out, '\n');
    int count = S_ISDIR(st.st_mode) ? scandir(whole, &names, NULL, alphasort) : 0;
    assert_true(count >= 0);
    for (int i = 0; i < count; i++) {
        char below[256];
        (void)snprintf(below, sizeof below, "%s%s%s", path, path[0] ? "/" : "", names[i]->d_name);
        if (strcmp(names[i]->d_name, ".") != 0 && strcmp(names[i]->d_name, "..") != 0)
            look_at(look, root, below);
        free(names[i]);
    }
    free(names);
}

static char *tree_text(const char *root, bool times_too)
{
    auto_buf struct buf out = buf_make(NULL, 1 << 20);
    struct look look = { .out = &out, .times_too = times_too };

    look_at(&look, root, "");
    buf_add_char(&out, '\0');
    assert_false(out.overflowed);
    free(look.seen);
    return mem_copy_text(out.data);
}

/* All layers of the image together, as a sandbox would see them. */
static char *image_text(struct world *world, const struct image *image, bool times_too)
{
    auto_buf struct buf options = buf_make(NULL, 4000);
    char place[128], empty[128];

    (void)snprintf(place, sizeof place, "%s/seen", world->path);
    (void)snprintf(empty, sizeof empty, "%s/empty", world->path);
    assert_true((mkdir(place, 0755) == 0 || errno == EEXIST) && (mkdir(empty, 0755) == 0 || errno == EEXIST));
    buf_add(&options, STR("lowerdir="));
    for (uint32_t i = image->count; i-- > 0;)
        buf_format(&options, "%s/layers/%s:", world->path, image->chain[i]);
    buf_format(&options, "%s", empty);
    buf_add_char(&options, '\0');
    if (mount("overlay", place, "overlay", MS_RDONLY, options.data) < 0)
        fail_msg("%s: %s", options.data, strerror(errno));
    char *text = tree_text(place, times_too);
    assert_int_equal(umount2(place, MNT_DETACH), 0);
    return text;
}

static void check_image(struct world *world, const struct image *image, const char *want)
{
    auto_free char *got = image_text(world, image, false);

    if (strcmp(got, want) != 0)
        fail_msg("got:\n%swant:\n%s", got, want);
}

/* ---- umoci ---- */

static bool has_umoci(void)
{
    static int has = -1;

    if (has < 0) {
        has = system("umoci --version >/dev/null 2>&1") == 0;
        if (!has)
            (void)fprintf(stderr, "SKIP: umoci is not installed: images are not compared with what it unpacks\n");
    }
    return has;
}

static void write_blob(const char *layout, struct str bytes, char out_sum[LAYER_ID_BYTES])
{
    char path[256];

    sum_of(bytes, out_sum);
    (void)snprintf(path, sizeof path, "%s/blobs/sha256/%s", layout, out_sum);
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && write(fd, bytes.at, bytes.len) == (ssize_t)bytes.len);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    auto_close int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct err err;

    assert_true(dir_fd >= 0 && fd_replace_file(dir_fd, name, str_from(text), 0644, &err));
}

static void write_layout(const char *layout, const struct image *image)
{
    auto_buf struct buf config = buf_make(NULL, 1 << 16), manifest = buf_make(NULL, 1 << 16);
    char path[256], sum[LAYER_ID_BYTES], text[1024];

    assert_int_equal(mkdir(layout, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/blobs", layout);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof path, "%s/blobs/sha256", layout);
    assert_int_equal(mkdir(path, 0755), 0);
    write_text(layout, "oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}");
    buf_add(&config, STR("{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{},\"rootfs\":{\"type\":\"layers\","
                         "\"diff_ids\":["));
    for (uint32_t i = 0; i < image->count; i++) {
        sum_of(buf_str(&image->tars[i]), sum);
        buf_format(&config, "%s\"sha256:%s\"", i ? "," : "", sum);
    }
    buf_add(&config, STR("]}}"));
    write_blob(layout, buf_str(&config), sum);
    buf_format(&manifest,
               "{\"schemaVersion\":2,\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":"
               "\"sha256:%s\",\"size\":%zu},\"layers\":[",
               sum, config.len);
    for (uint32_t i = 0; i < image->count; i++) {
        auto_buf struct buf packed = buf_make(NULL, 2 * ARCHIVE_BYTES);
        pack_bytes(buf_str(&image->tars[i]), GZIP, &packed);
        write_blob(layout, buf_str(&packed), sum);
        buf_format(&manifest,
                   "%s{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"sha256:%s\","
                   "\"size\":%zu}",
                   i ? "," : "", sum, packed.len);
    }
    buf_add(&manifest, STR("]}"));
    write_blob(layout, buf_str(&manifest), sum);
    (void)snprintf(text, sizeof text,
                   "{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\","
                   "\"digest\":\"sha256:%s\",\"size\":%zu,\"annotations\":{\"org.opencontainers.image.ref.name\":"
                   "\"it\"}}]}",
                   sum, manifest.len);
    write_text(layout, "index.json", text);
}

/* Unpacks it in all packings, and compares each with umoci's, file by file. */
static void check_as_umoci(struct world *world, struct image *image)
{
    char command[600], layout[128], bundle[128];
    struct err err;

    for (uint32_t i = 0; i < image->count; i++)
        assert_false(image->tars[i].overflowed);
    auto_free char *want = NULL;
    if (has_umoci()) {
        (void)snprintf(layout, sizeof layout, "%s/layout", world->path);
        (void)snprintf(bundle, sizeof bundle, "%s/bundle", world->path);
        write_layout(layout, image);
        (void)snprintf(command, sizeof command, "umoci unpack --image %s:it %s >&2", layout, bundle);
        assert_int_equal(system(command), 0);
        (void)snprintf(command, sizeof command, "%s/rootfs", bundle);
        want = tree_text(command, true);
        assert_true(remove_tree(world->data_fd, "layout", &err) && remove_tree(world->data_fd, "bundle", &err));
    }
    for (enum packing packing = PLAIN; packing <= ZSTD; packing++) {
        unpack_all(world, image, packing);
        auto_free char *got = image_text(world, image, true);
        if (want && strcmp(got, want) != 0)
            fail_msg("got:\n%sumoci:\n%s", got, want);
        for (uint32_t i = 0; i < image->count; i++) {
            struct answer answer = { .loop = world->loop };
            char path[128];
            world->driver->ops->drop(world->driver, image->chain[i], note_kept, &answer);
            assert_int_equal(wait_for(world, &answer), ERR_NONE);
            (void)snprintf(path, sizeof path, "layers/%s", image->chain[i]);
            assert_true(remove_tree(world->data_fd, path, &err));
        }
    }
}

/* ---- cases: as umoci ---- */

/* With a mode and a time, unless others are named. */
static void add_some(struct buf *out, char type, const char *name, struct str data, struct made made)
{
    made.type = type;
    made.name = name;
    made.data = data;
    made.mode = made.mode ? made.mode : type == '5' ? 0755 : 0644;
    made.mtime = made.mtime ? made.mtime : type == '5' ? 1000000 : 2000000;
    made_add(out, &made);
}
#define DIR_AT(out, path, ...) add_some((out), '5', (path), STR(""), (struct made){ .link = NULL, __VA_ARGS__ })
#define FILE_AT(out, path, text, ...) \
    add_some((out), '0', (path), STR(text), (struct made){ .link = NULL, __VA_ARGS__ })

static void add_base(struct image *image)
{
    struct buf *tar = next_tar(image);

    DIR_AT(tar, "./", .mtime = 500);
    DIR_AT(tar, "./etc/", .mode = 0711, .uid = 5, .gid = 6);
    FILE_AT(tar, "./etc/a", "a of base");
    FILE_AT(tar, "./etc/b", "b of base");
    DIR_AT(tar, "./usr/", .mtime = 11);
    DIR_AT(tar, "./usr/bin/", .mtime = 12, .mode = 0700);
    FILE_AT(tar, "./usr/bin/tool", "tool", .mode = 04755);
    MADE(tar, .type = '2', .name = "./bin", .link = "usr/bin", .mode = 0777, .mtime = 13);
    MADE(tar, .type = '2', .name = "./out", .link = "../../../../etc", .mode = 0777, .mtime = 14);
    MADE(tar, .type = '2', .name = "./absolute", .link = "/usr/bin", .mode = 0777, .mtime = 15);
    DIR_AT(tar, "./tree/");
    DIR_AT(tar, "./tree/sub/");
    FILE_AT(tar, "./tree/sub/deep", "deep");
    FILE_AT(tar, "./tree/x", "x");
    FILE_AT(tar, "./tree/y", "y");
    made_end(tar);
}

static void whiteouts_of_several_layers(void **state)
{
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "etc/.wh.b", ""); /* no entry for etc/: it keeps its mode, owner and time */
    FILE_AT(tar, "tree/.wh.sub", "");
    FILE_AT(tar, "tree/.wh.never-there", "");
    FILE_AT(tar, "nowhere/.wh.never-there", "");
    FILE_AT(tar, "tree/z", "z");
    made_end(tar);
    tar = next_tar(&image);
    DIR_AT(tar, "tree/sub/", .mode = 0750, .mtime = 77);
    FILE_AT(tar, "tree/sub/new", "back again");
    FILE_AT(tar, ".wh.usr", "");
    FILE_AT(tar, "etc/b", "b of the top", .uid = 3);
    FILE_AT(tar, "tree/.wh.z", "");
    FILE_AT(tar, "etc/.wh..wh.plnk", "of aufs");
    made_end(tar);
    check_as_umoci(*state, &image);
}

static void opaque_directories(void **state)
{
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    DIR_AT(tar, "tree/", .mode = 0700, .mtime = 99);
    FILE_AT(tar, "tree/before", "the marker");
    DIR_AT(tar, "tree/own/", .mtime = 98);
    FILE_AT(tar, "tree/own/inside", "stays");
    FILE_AT(tar, "tree/.wh..wh..opq", "");
    FILE_AT(tar, "tree/after", "the marker");
    FILE_AT(tar, "tree/x", "x again");
    made_end(tar);
    tar = next_tar(&image);
    FILE_AT(tar, "etc/.wh..wh..opq", ""); /* without an entry for it */
    FILE_AT(tar, "usr/.wh.bin", "");
    made_end(tar);
    check_as_umoci(*state, &image);
}

static void hard_links_within_and_across_layers(void **state)
{
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "first", "a file");
    MADE(tar, .type = '1', .name = "second", .link = "first");
    MADE(tar, .type = '1', .name = "tree/third", .link = "./second");
    MADE(tar, .type = '1', .name = "linked", .link = "/etc/a"); /* below */
    MADE(tar, .type = '1', .name = "usr/tool", .link = "usr/bin/tool");
    MADE(tar, .type = '1', .name = "link-of-a-link", .link = "bin");
    MADE(tar, .type = '1', .name = "tree/y", .link = "etc/b"); /* in place of another file */
    made_end(tar);
    check_as_umoci(*state, &image);
}

/* A file of a layer below gets another name, and then another file, or none, takes its place. */
static void hard_links_to_files_that_the_same_layer_replaces(void **state)
{
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    MADE(tar, .type = '1', .name = "old-a", .link = "etc/a");
    FILE_AT(tar, "etc/a", "new", .mode = 0600);
    MADE(tar, .type = '1', .name = "new-a", .link = "etc/a");
    MADE(tar, .type = '1', .name = "old-a-too", .link = "old-a");
    MADE(tar, .type = '1', .name = "moved", .link = "etc/b");
    FILE_AT(tar, "etc/.wh.b", "");
    MADE(tar, .type = '1', .name = "tree/z", .link = "tree/x");
    MADE(tar, .type = '1', .name = "tree/x", .link = "tree/y");
    MADE(tar, .type = '1', .name = "tool", .link = "usr/bin/tool");
    FILE_AT(tar, "usr/bin/.wh..wh..opq", "");
    MADE(tar, .type = '1', .name = "deep", .link = "tree/sub/deep");
    FILE_AT(tar, "tree/.wh.sub", "");
    made_end(tar);
    tar = next_tar(&image);
    FILE_AT(tar, ".wh.old-a", "");
    FILE_AT(tar, "moved", "and replaced");
    made_end(tar);
    check_as_umoci(*state, &image);
}

/* Version 2, effective, CAP_NET_RAW permitted. */
#define CAPABILITY "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

static void set_user_id_capabilities_and_attributes(void **state)
{
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "usr/bin/su", "su", .mode = 06755, .uid = 0, .gid = 42);
    FILE_AT(tar, "usr/bin/sticky", "st", .mode = 07777, .uid = 1000, .gid = 1000);
    made_pax(tar, "SCHILY.xattr.security.capability", STR(CAPABILITY));
    FILE_AT(tar, "usr/bin/ping", "ping", .mode = 0755, .uid = 7);
    made_pax(tar, "SCHILY.xattr.user.a", STR("on a\0file"));
    FILE_AT(tar, "marked", "m");
    made_pax(tar, "SCHILY.xattr.user.a", STR("on a directory"));
    DIR_AT(tar, "tree/", .mode = 03775, .gid = 50, .mtime = 3);
    FILE_AT(tar, "tree/new", "has its own group");
    MADE(tar, .type = '6', .name = "fifo", .mode = 0640, .uid = 1, .mtime = 5);
    MADE(tar, .type = '2', .name = "owned", .link = "anywhere", .uid = 9, .gid = 8, .mtime = 6);
    made_pax(tar, "mtime", STR("1234567890.123456789"));
    FILE_AT(tar, "exact", "time");
    made_end(tar);
    tar = next_tar(&image);
    made_pax(tar, "SCHILY.xattr.user.b", STR("instead"));
    DIR_AT(tar, "tree/", .mtime = 4);
    FILE_AT(tar, "usr/bin/ping", "without", .mode = 0755);
    made_end(tar);
    check_as_umoci(*state, &image);
}

static void what_is_replaced_by_something_else(void **state)
{
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "tree", "a file instead of a directory");
    DIR_AT(tar, "etc/a/", .mode = 0700);
    FILE_AT(tar, "etc/a/inside", "a directory instead of a file");
    DIR_AT(tar, "bin/"); /* instead of a link to one */
    FILE_AT(tar, "bin/sh", "sh");
    MADE(tar, .type = '2', .name = "usr", .link = "etc", .mtime = 9);
    FILE_AT(tar, "twice", "first");
    FILE_AT(tar, "twice", "second", .mode = 0600);
    made_end(tar);
    tar = next_tar(&image);
    DIR_AT(tar, "tree/");
    FILE_AT(tar, "tree/back", "and a directory again");
    made_end(tar);
    check_as_umoci(*state, &image);
}

static void entries_behind_links_to_directories(void **state)
{
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "bin/sh", "in usr/bin");
    FILE_AT(tar, "absolute/ls", "there too");
    FILE_AT(tar, "out/passwd", "in etc, of the image");
    FILE_AT(tar, "bin/.wh.tool", "");
    MADE(tar, .type = '1', .name = "linked", .link = "bin/sh");
    made_end(tar);
    check_as_umoci(*state, &image);
}

/* ---- cases: ours ---- */

static void directories_that_no_layer_names_are_made(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };

    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "a/b/c", "deep");
    MADE(tar, .type = '2', .name = "run", .link = "/made/../not/yet", .mode = 0777);
    FILE_AT(tar, "run/file", "behind");
    made_end(tar);
    unpack_all(world, &image, PLAIN);
    check_image(world, &image,
                "/ 40755 0:0\n/a 40755 0:0\n/a/b 40755 0:0\n/a/b/c 100644 0:0 'deep'\n/not 40755 0:0\n"
                "/not/yet 40755 0:0\n/not/yet/file 100644 0:0 'behind'\n/run 120777 0:0 -> /made/../not/yet\n");
}

/*
 * umoci has one directory, where a file with two names stays one whoever adds a third. Layers that are mounted, here as in
 * containerd and Docker, are not copied up together: the third name and the one that it was made of part from the other.
 */
static void names_of_a_file_that_a_layer_below_has_twice_part(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };

    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "one", "f");
    MADE(tar, .type = '1', .name = "two", .link = "one");
    made_end(tar);
    tar = next_tar(&image);
    MADE(tar, .type = '1', .name = "three", .link = "one");
    made_end(tar);
    unpack_all(world, &image, PLAIN);
    check_image(world, &image, "/ 40755 0:0\n/one 100644 0:0 'f'\n/three 100644 0:0 =/one 'f'\n/two 100644 0:0 'f'\n");
}

/* umoci gives such a directory the time of now, and refuses the link. */
static void what_a_layer_has_made_itself_is_not_hidden(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };

    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "tree/x", "new");
    FILE_AT(tar, "tree/sub/new", "new");
    FILE_AT(tar, "etc/b", "new");
    MADE(tar, .type = '1', .name = "etc/b", .link = "etc/b");
    FILE_AT(tar, ".wh.tree", "");
    FILE_AT(tar, "etc/.wh..wh..opq", "");
    FILE_AT(tar, "etc/.wh.b", "");
    FILE_AT(tar, ".wh.usr", "");
    FILE_AT(tar, ".wh.bin", "");
    FILE_AT(tar, ".wh.absolute", "");
    FILE_AT(tar, ".wh.out", "");
    unpack_all(world, &image, PLAIN);
    auto_free char *got = image_text(world, &image, true);
    assert_string_equal(got, "/ 40755 0:0 @500.000000000\n"
                             "/etc 40711 5:6 @1000000.000000000\n"
                             "/etc/b 100644 0:0 @2000000.000000000 'new'\n"
                             "/tree 40755 0:0 @1000000.000000000\n"
                             "/tree/sub 40755 0:0 @1000000.000000000\n"
                             "/tree/sub/new 100644 0:0 @2000000.000000000 'new'\n"
                             "/tree/x 100644 0:0 @2000000.000000000 'new'\n");
}

static void sockets_are_skipped_and_devices_refused_but_in_dev(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };

    struct buf *tar = next_tar(&image);
    MADE(tar, .type = 's', .name = "socket", .data = STR("odd"));
    MADE(tar, .type = '3', .name = "./dev/null", .mode = 0666, .major = 1, .minor = 3);
    MADE(tar, .type = '4', .name = "dev/block/sda", .major = 8);
    FILE_AT(tar, "dev/file", "f");
    unpack_all(world, &image, PLAIN);
    check_image(world, &image, "/ 40755 0:0\n/dev 40755 0:0\n/dev/file 100644 0:0 'f'\n");
    tar = next_tar(&image);
    MADE(tar, .type = '3', .name = "etc/null", .mode = 0666, .major = 1, .minor = 3);
    check_refused(world, &image, ERR_INVALID, "the device 'etc/null'");
    tar = next_tar(&image);
    MADE(tar, .type = '3', .name = "whiteout"); /* 0, 0: only we make these */
    check_refused(world, &image, ERR_INVALID, "the device 'whiteout'");
}

static void names_lead_nowhere_but_inside(void **state)
{
    static const char *const wrong[] = { "../x", "a/../../x", "..", "/..", "./../x", "etc/..", "a/../b" };
    struct world *world = *state;
    auto_image struct image image = { 0 };

    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        for (int type = 0; type < 3; type++) {
            struct buf *tar = next_tar(&image);
            FILE_AT(tar, "ok", "ok");
            MADE(tar, .type = "052"[type], .name = wrong[i], .link = "ok");
            check_refused(world, &image, ERR_INVALID, "names with .. are not allowed");
        }
        struct buf *tar = next_tar(&image);
        MADE(tar, .type = '1', .name = "link", .link = wrong[i]);
        check_refused(world, &image, ERR_INVALID, "names with .. are not allowed");
    }
    assert_false(exists(world, "x"));
    assert_false(exists(world, "snapshots/x"));
}

static void links_lead_nowhere_but_inside(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    char target[128], escape[128];

    (void)snprintf(target, sizeof target, "%s/escaped", world->path);
    assert_int_equal(mkdir(target, 0755), 0);
    struct buf *tar = next_tar(&image);
    MADE(tar, .type = '2', .name = "up", .link = "../../../../../../../../..");
    MADE(tar, .type = '2', .name = "there", .link = target);
    MADE(tar, .type = '2', .name = "self", .link = "/proc/self/cwd");
    made_end(tar);
    tar = next_tar(&image);
    FILE_AT(tar, "there/file", "inside");
    (void)snprintf(escape, sizeof escape, "up%s/second", target);
    FILE_AT(tar, escape, "inside");
    FILE_AT(tar, "self/third", "inside");
    FILE_AT(tar, "there", "and the link is replaced, not followed");
    made_end(tar);
    unpack_all(world, &image, PLAIN);
    assert_int_equal(count_names(world->data_fd, "escaped"), 0);
    auto_free char *text = image_text(world, &image, false);
    (void)snprintf(escape, sizeof escape, "%s/second 100644", target);
    assert_non_null(strstr(text, escape));
    assert_non_null(strstr(text, "/proc/self/cwd/third 100644"));
    assert_non_null(strstr(text, "/there 100644"));
    tar = next_tar(&image);
    FILE_AT(tar, "x", "x");
    MADE(tar, .type = '1', .name = "hard", .link = "up/etc/passwd");
    check_refused(world, &image, ERR_INVALID, "'up/etc/passwd', which is not there");
    tar = next_tar(&image);
    MADE(tar, .type = '2', .name = "loop", .link = "loop");
    FILE_AT(tar, "loop/x", "x");
    check_refused(world, &image, ERR_INVALID, "'loop', which is not a directory");
    tar = next_tar(&image);
    FILE_AT(tar, "file", "f");
    FILE_AT(tar, "file/x", "x");
    check_refused(world, &image, ERR_INVALID, "'file', which is not a directory");
    tar = next_tar(&image);
    DIR_AT(tar, "d/");
    MADE(tar, .type = '1', .name = "hard", .link = "d");
    check_refused(world, &image, ERR_INVALID, "the hard link 'hard' to a directory");
}

static void odd_names_are_refused(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    char name[4200];

    memset(name, 'n', sizeof name);
    struct buf *tar = next_tar(&image);
    made_pax(tar, "path", str_of(name, 256));
    FILE_AT(tar, "x", "");
    check_refused(world, &image, ERR_INVALID, "a name of more than 255 bytes");
    for (size_t i = 1; i < sizeof name; i += 2)
        name[i] = '/';
    tar = next_tar(&image);
    made_pax(tar, "path", str_of(name, 1000));
    FILE_AT(tar, "x", "");
    check_refused(world, &image, ERR_INVALID, "directories more than 256 deep");
    for (const char *const *wh = (const char *const[]){ ".wh.", ".wh..", ".wh...", NULL }; *wh; wh++) {
        tar = next_tar(&image);
        FILE_AT(tar, *wh, "");
        check_refused(world, &image, ERR_INVALID, "which hides nothing");
    }
    tar = next_tar(&image);
    FILE_AT(tar, "/", "the root as a file");
    check_refused(world, &image, ERR_INVALID, "that is no directory");
    tar = next_tar(&image);
    MADE(tar, .type = '2', .name = "empty", .link = "");
    check_refused(world, &image, ERR_INVALID, "leads nowhere");
    tar = next_tar(&image);
    FILE_AT(tar, "with\nodd\033bytes/..", "");
    check_refused(world, &image, ERR_INVALID, "'with?odd?bytes/..'");
    tar = next_tar(&image);
    made_pax(tar, "SCHILY.xattr.security.capability", STR("nonsense"));
    FILE_AT(tar, "x", "");
    check_refused(world, &image, ERR_INVALID, "the attribute security.capability of 'x' cannot be set");
    tar = next_tar(&image);
    made_pax(tar, "SCHILY.xattr.trusted.overlay.opaque", STR("y")); /* neither set nor an error */
    made_pax(tar, "SCHILY.xattr.security.selinux", STR("label"));
    DIR_AT(tar, "d/");
    unpack_all(world, &image, PLAIN);
    check_image(world, &image, "/ 40755 0:0\n/d 40755 0:0\n");
}

static void damage_is_told_and_nothing_is_left(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    struct answer answer;

    add_base(&image);
    struct unpack_want want = want_of(&image, 0);
    struct str tar = buf_str(&image.tars[0]);
    for (enum packing packing = PLAIN; packing <= ZSTD; packing++) {
        auto_buf struct buf packed = buf_make(NULL, 2 * ARCHIVE_BYTES);
        pack_bytes(tar, packing, &packed);
        assert_int_equal(unpack_bytes(world, &want, str_of(packed.data, packed.len / 2 + 7), &answer), ERR_INVALID);
        packed.data[packed.len / 2] ^= 0x55;
        assert_int_equal(unpack_bytes(world, &want, buf_str(&packed), &answer), ERR_INVALID);
    }
    assert_int_equal(unpack_bytes(world, &want, STR("no archive at all"), &answer), ERR_INVALID);
    assert_int_equal(unpack_bytes(world, &want, STR(""), &answer), ERR_INVALID);
    assert_non_null(
        strstr(answer.err.message, "a layer of the image has the sum e3b0c44298fc1c14..., and should have "));
    /* A whole archive with another sum. */
    auto_buf struct buf more = buf_make(NULL, ARCHIVE_BYTES);
    buf_add(&more, tar);
    made_end(&more);
    assert_int_equal(unpack_bytes(world, &want, buf_str(&more), &answer), ERR_INVALID);
    assert_non_null(strstr(answer.err.message, "a layer of the image has the sum "));
    /* And an id that is not made of the sum. */
    want.chain[0] ^= 1;
    assert_int_equal(unpack_bytes(world, &want, tar, &answer), ERR_INVALID);
    assert_string_equal(answer.err.message, "the id of a layer is not its chain id");
    assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
    assert_int_equal(count_names(world->data_fd, "layers"), 1);
    check_at_rest(world);
}

static void bombs_are_bounded(void **state)
{
    static char zeros[1 << 16];
    struct world *world = *state;
    auto_image struct image image = { .most_bytes = 100000 };
    struct answer answer;

    struct buf *tar = next_tar(&image);
    MADE(tar, .type = '0', .name = "one", .data = str_of(zeros, 60000));
    MADE(tar, .type = '0', .name = "two", .data = str_of(zeros, 40000));
    unpack_all(world, &image, GZIP);
    tar = next_tar(&image);
    MADE(tar, .type = '0', .name = "one", .data = str_of(zeros, 60000));
    MADE(tar, .type = '0', .name = "one", .data = str_of(zeros, 40001));
    check_refused(world, &image, ERR_LIMIT, "the files of the image have more than 0 MiB");
    /* What a hard link copies up counts. */
    tar = next_tar(&image);
    MADE(tar, .type = '1', .name = "linked", .link = "one");
    MADE(tar, .type = '0', .name = "new", .data = str_of(zeros, 40001));
    check_refused(world, &image, ERR_LIMIT, "the files of the image have more than 0 MiB");
    /* A header that promises an exabyte is believed before anything is written. */
    tar = next_tar(&image);
    made_pax(tar, "size", STR("1152921504606846976"));
    MADE(tar, .type = '0', .name = "huge");
    check_refused(world, &image, ERR_LIMIT, "the files of the image have more than 0 MiB");
    /* More entries than allowed: of a kind that makes nothing, or it takes minutes. */
    struct unpack_want want = want_of(&image, 0);
    auto_buf struct buf one = buf_make(NULL, 4096), many = buf_make(NULL, 64 << 20);
    MADE(&one, .type = 'Z', .name = "odd");
    for (int i = 0; i < 4096; i++)
        buf_add(&many, buf_str(&one));
    auto_buf struct buf packed = buf_make(NULL, 64 << 20), frame = buf_make(NULL, 64 << 20);
    pack_bytes(buf_str(&many), ZSTD, &frame);
    for (int i = 0; i <= LIMIT_UNPACK_ENTRIES / 4096; i++)
        buf_add(&packed, buf_str(&frame));
    assert_true(packed.len < 1 << 20);
    memset(want.diff, 'a', 64);
    memset(want.chain, 'a', 64);
    assert_int_equal(unpack_bytes(world, &want, buf_str(&packed), &answer), ERR_LIMIT);
    assert_string_equal(answer.err.message, "a layer of the image has more than 1000000 entries");
}

/* Sums are no secret: only who has the archive gets the layer. */
static void check_needs_archive(struct world *world, struct image *image, struct answer *answer)
{
    struct unpack_want want = want_of(image, 0);
    unsigned snapshots = count_names(world->data_fd, "snapshots"), layers = count_names(world->data_fd, "layers");
    struct asked asked;

    assert_int_equal(unpack_bytes(world, &want, STR("another archive"), answer), ERR_INVALID);
    assert_non_null(strstr(answer->err.message, "a layer of the image has the sum "));
    assert_int_equal(unpack_bytes(world, &want, buf_str(&image->tars[1]), answer), ERR_INVALID);
    assert_int_equal(unpack_bytes(world, &want, STR(""), answer), ERR_INVALID);
    begin_unpack(world, &want, -1, &asked);
    assert_int_equal(wait_for(world, &asked.answer), ERR_UNAVAILABLE);
    assert_int_equal(count_names(world->data_fd, "snapshots"), snapshots);
    assert_int_equal(count_names(world->data_fd, "layers"), layers);
    assert_int_equal(unpack_layer(world, image, 0, ZSTD, answer), ERR_NONE);
    assert_string_equal(answer->kept.id, image->chain[0]);
    assert_int_equal(answer->kept.layer_count, 1);
}

static void a_layer_that_is_there_is_not_unpacked_again(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    struct answer answer, first;
    struct stat before, after;
    char path[128];

    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "more", "m");
    unpack_all(world, &image, GZIP);
    (void)snprintf(path, sizeof path, "layers/%s", image.chain[0]);
    assert_int_equal(fstatat(world->data_fd, path, &before, 0), 0);
    check_needs_archive(world, &image, &first);
    /* Dropped, but the other needs it: its layer is taken as it is. */
    answer = (struct answer){ .loop = world->loop };
    world->driver->ops->drop(world->driver, image.chain[0], note_kept, &answer);
    assert_int_equal(wait_for(world, &answer), ERR_NONE);
    assert_int_equal(count_names(world->data_fd, "snapshots"), 1);
    check_needs_archive(world, &image, &answer);
    assert_int_equal(count_names(world->data_fd, "snapshots"), 2);
    assert_int_equal(answer.kept.layer_bytes, first.kept.layer_bytes);
    next_driver(world);
    assert_int_equal(count_names(world->data_fd, "snapshots"), 2);
    check_needs_archive(world, &image, &answer);
    assert_int_equal(fstatat(world->data_fd, path, &after, 0), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_int_equal(before.st_ctim.tv_sec, after.st_ctim.tv_sec);
    assert_int_equal(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec);
    check_at_rest(world);
}

static void the_same_one_and_others_at_once(void **state)
{
    enum { AT_ONCE = 9 };
    struct world *world = *state;
    struct image images[3] = { 0 };
    struct asked asked[AT_ONCE];
    int fds[3];
    auto_close int wrong_fd = file_of(STR("another archive"));
    struct asked thief;

    for (int i = 0; i < 3; i++) {
        struct buf *tar = next_tar(&images[i]);
        for (int k = 0; k < 300; k++) {
            char name[32];
            (void)snprintf(name, sizeof name, "file%d-%d", i, k);
            FILE_AT(tar, name, "text");
        }
        fds[i] = file_of(buf_str(tar));
    }
    for (int i = 0; i < AT_ONCE; i++) {
        struct unpack_want want = want_of(&images[i % 3], 0);
        begin_unpack(world, &want, fds[i % 3], &asked[i]);
        if (i == 0)
            begin_unpack(world, &want, wrong_fd, &thief); /* waits for the first, and gets nothing by that */
    }
    assert_int_equal(wait_for(world, &thief.answer), ERR_INVALID);
    for (int i = 0; i < AT_ONCE; i++) {
        if (wait_for(world, &asked[i].answer) != ERR_NONE)
            fail_msg("%d: %s", i, err_text(&asked[i].answer.err));
        assert_string_equal(asked[i].answer.kept.id, images[i % 3].chain[0]);
        assert_int_equal(asked[i].offers, 1); /* also those that find it there */
    }
    assert_int_equal(count_names(world->data_fd, "snapshots"), 3);
    for (int i = 0; i < 3; i++)
        fd_close(&fds[i]);
    for (int i = 0; i < 3; i++)
        image_done(&images[i]);
}

static void one_that_fails_leaves_nothing(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    struct answer answer;

    add_base(&image);
    unpack_all(world, &image, PLAIN);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "etc/new", "n");
    for (enum native_step step = NATIVE_AT_UNPACK_DRAFT; step <= NATIVE_AT_UNPACK_END; step++) {
        native_fail_at(world->driver, step);
        assert_int_equal(unpack_layer(world, &image, 1, PLAIN, &answer), ERR_INTERNAL);
        native_fail_at(world->driver, NATIVE_NOWHERE);
        assert_int_equal(count_names(world->data_fd, "snapshots"), 1);
        assert_int_equal(count_names(world->data_fd, "layers"), 2);
    }
    assert_int_equal(unpack_layer(world, &image, 1, PLAIN, &answer), ERR_NONE);
    check_at_rest(world);
}

static struct image killed_image;

static void act_unpack(struct world *world)
{
    struct answer answer;

    (void)unpack_layer(world, &killed_image, 1, GZIP, &answer);
}

static void a_keeper_killed_meanwhile_leaves_all_or_nothing(void **state)
{
    struct world *world = *state;
    struct answer answer;
    unsigned whole = 0;

    killed_image = (struct image){ 0 };
    add_base(&killed_image);
    unpack_all(world, &killed_image, PLAIN);
    FILE_AT(next_tar(&killed_image), "etc/new", "n");
    for (enum native_step step = NATIVE_AT_UNPACK_DRAFT; step <= NATIVE_AT_UNPACK_END; step++) {
        killed_at(world, step, act_unpack);
        bool is_named = step >= NATIVE_AT_UNPACK_NAME;
        whole += is_named;
        assert_int_equal(count_names(world->data_fd, "snapshots"), 1 + is_named);
        assert_int_equal(unpack_layer(world, &killed_image, 1, ZSTD, &answer), ERR_NONE);
        struct err err;
        char path[128];
        (void)snprintf(path, sizeof path, "layers/%s", killed_image.chain[1]);
        answer = (struct answer){ .loop = world->loop };
        world->driver->ops->drop(world->driver, killed_image.chain[1], note_kept, &answer);
        assert_int_equal(wait_for(world, &answer), ERR_NONE);
        assert_true(remove_tree(world->data_fd, path, &err));
    }
    assert_int_equal(whole, 2);
    image_done(&killed_image);
}

static void a_keeper_that_stops_meanwhile_answers(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    struct asked asked[3];

    add_base(&image);
    struct unpack_want want = want_of(&image, 0);
    auto_close int fd = file_of(buf_str(&image.tars[0]));
    for (int i = 0; i < 3; i++)
        begin_unpack(world, &want, fd, &asked[i]);
    next_driver(world);
    for (int i = 0; i < 3; i++)
        assert_int_equal(asked[i].answer.err.kind, ERR_UNAVAILABLE);
    assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
    assert_int_equal(count_names(world->data_fd, "layers"), 1);
}

/* Our only child: there is no sandbox. */
static pid_t helper_of_ours(void)
{
    FILE *list = fopen("/proc/thread-self/children", "re");
    int pid = -1;

    while (list && fscanf(list, "%d", &pid) == 1)
        continue;
    if (list)
        (void)fclose(list);
    return pid;
}

static void the_death_of_the_helper_leaves_nothing(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    struct asked asked;
    unsigned killed = 0;

    add_base(&image);
    unpack_all(world, &image, PLAIN);
    check_at_rest(world);
    struct buf *tar = next_tar(&image);
    for (int i = 0; i < 2000; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "tree/file%d", i);
        FILE_AT(tar, name, "text");
    }
    struct unpack_want want = want_of(&image, 1);
    auto_close int fd = file_of(buf_str(tar));
    for (unsigned round = 0; round < 6; round++) {
        begin_unpack(world, &want, fd, &asked);
        turn_for(world->loop, round * 4);
        pid_t helper = helper_of_ours();
        if (helper > 0)
            (void)kill(helper, SIGKILL);
        if (wait_for(world, &asked.answer) == ERR_NONE)
            break; /* it was faster, and would be again */
        killed++;
        assert_int_equal(asked.answer.err.kind, ERR_INTERNAL);
        assert_int_equal(count_names(world->data_fd, "snapshots"), 1);
        assert_int_equal(count_names(world->data_fd, "layers"), 2);
        check_at_rest(world);
    }
    assert_true(killed >= 1);
    begin_unpack(world, &want, fd, &asked);
    assert_int_equal(wait_for(world, &asked.answer), ERR_NONE);
}

static void the_overlay_of_older_kernels_does_as_well(void **state)
{
    struct world *world = *state;
    struct native_config config = { .data_fd = world->data_fd, .guestd_fd = world->guestd_fd, .old_overlay = true };
    auto_image struct image image = { 0 };
    struct err err;

    driver_free(world->driver);
    world->driver = native_driver_new(world->loop, &config, &err);
    assert_non_null(world->driver);
    add_base(&image);
    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "tree/.wh.sub", "");
    FILE_AT(tar, "bin/sh", "sh", .mode = 0755);
    unpack_all(world, &image, GZIP);
    auto_free char *text = image_text(world, &image, false);
    assert_null(strstr(text, "/tree/sub"));
    assert_non_null(strstr(text, "/usr/bin 40700 0:0\n/usr/bin/sh 100755 0:0 'sh'\n"));
    assert_int_equal(count_overlays(), 0);
}

static void an_archive_that_does_not_come_or_is_none_fails(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    struct asked asked;

    add_base(&image);
    struct unpack_want want = want_of(&image, 0);
    begin_unpack(world, &want, -1, &asked);
    assert_int_equal(wait_for(world, &asked.answer), ERR_UNAVAILABLE);
    assert_string_equal(asked.answer.err.message, "the archive of a layer did not come");
    auto_close int dir_fd = open_at(world, "layers");
    begin_unpack(world, &want, dir_fd, &asked);
    assert_int_equal(wait_for(world, &asked.answer), ERR_INVALID);
    assert_string_equal(asked.answer.err.message, "the archive of a layer is no file");
    assert_int_equal(count_names(world->data_fd, "snapshots"), 0);
    assert_int_equal(count_names(world->data_fd, "layers"), 1);
}

static void a_sandbox_is_made_of_it(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    struct plan plan = a_plan("sandbox1");

    struct buf *tar = next_tar(&image);
    for (const char *const *dir = (const char *const[]){ "proc/", "tmp/", "etc/", NULL }; *dir; dir++)
        DIR_AT(tar, *dir);
    FILE_AT(tar, "etc/note", "lower");
    FILE_AT(tar, "etc/other", "hidden");
    tar = next_tar(&image);
    FILE_AT(tar, "etc/note", "upper");
    FILE_AT(tar, "etc/.wh.other", "");
    unpack_all(world, &image, ZSTD);
    plan.layer_count = 2;
    memcpy(plan.layers, image.chain, 2 * sizeof image.chain[0]);
    auto_close int fd = start(world, &plan);
    check_says(fd, "get /etc/note", "get: upper");
    check_says(fd, "get /etc/other", "get: No such file or directory");
    assert_true(stop(world, "sandbox1"));
}

/* ---- a small disk ---- */

static int set_up_small(void **state)
{
    struct world *world = NEW(struct world);

    (void)snprintf(world->path, sizeof world->path, "/var/tmp/cloister-test.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    assert_int_equal(mount("small", world->path, "tmpfs", 0, "size=36m"), 0);
    world_open(world);
    *state = world;
    return 0;
}

static int tear_down_small(void **state)
{
    struct world *world = *state;

    world_close(world);
    (void)umount2(world->path, MNT_DETACH);
    (void)rmdir(world->path);
    free(world);
    return 0;
}

static void without_room_there_is_no_layer(void **state)
{
    struct world *world = *state;
    auto_image struct image image = { 0 };
    auto_free char *big = mem_new(12 << 20);

    struct buf *tar = next_tar(&image);
    FILE_AT(tar, "small", "s");
    unpack_all(world, &image, PLAIN);
    tar = next_tar(&image);
    MADE(tar, .type = '0', .name = "big", .data = str_of(big, 12 << 20));
    check_refused(world, &image, ERR_FULL, "there is no room on the server's disk for the image");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        NATIVE_CASE(whiteouts_of_several_layers),
        NATIVE_CASE(opaque_directories),
        NATIVE_CASE(hard_links_within_and_across_layers),
        NATIVE_CASE(hard_links_to_files_that_the_same_layer_replaces),
        NATIVE_CASE(names_of_a_file_that_a_layer_below_has_twice_part),
        NATIVE_CASE(set_user_id_capabilities_and_attributes),
        NATIVE_CASE(what_is_replaced_by_something_else),
        NATIVE_CASE(entries_behind_links_to_directories),
        NATIVE_CASE(directories_that_no_layer_names_are_made),
        NATIVE_CASE(what_a_layer_has_made_itself_is_not_hidden),
        NATIVE_CASE(sockets_are_skipped_and_devices_refused_but_in_dev),
        NATIVE_CASE(names_lead_nowhere_but_inside),
        NATIVE_CASE(links_lead_nowhere_but_inside),
        NATIVE_CASE(odd_names_are_refused),
        NATIVE_CASE(damage_is_told_and_nothing_is_left),
        NATIVE_CASE(bombs_are_bounded),
        NATIVE_CASE(a_layer_that_is_there_is_not_unpacked_again),
        NATIVE_CASE(the_same_one_and_others_at_once),
        NATIVE_CASE(one_that_fails_leaves_nothing),
        NATIVE_CASE(a_keeper_killed_meanwhile_leaves_all_or_nothing),
        NATIVE_CASE(a_keeper_that_stops_meanwhile_answers),
        NATIVE_CASE(the_death_of_the_helper_leaves_nothing),
        NATIVE_CASE(the_overlay_of_older_kernels_does_as_well),
        NATIVE_CASE(an_archive_that_does_not_come_or_is_none_fails),
        NATIVE_CASE(a_sandbox_is_made_of_it),
        cmocka_unit_test_setup_teardown(without_room_there_is_no_layer, set_up_small, tear_down_small),
    };

    return run_cases(cases, COUNT_OF(cases), argc, argv);
}
