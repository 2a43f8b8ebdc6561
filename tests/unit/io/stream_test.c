#include "io/splice.h"
#include "io/stream.h"

#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "base/limits.h"
#include "io/filter.h"
#include "io/pump.h"

enum {
    NOBODY = 65534,
    PIPES_MOST =
        400, /* of a megabyte: six times what the kernel allows a user by default, and fewer than 1,024 files */
};

static struct loop *loop;
static struct stream *stream;
static struct peer peer;

/* What the stream told its owner. */
static struct buf got;
static bool keeps_input, frees_on_input;
static unsigned inputs, drains, ends, failures, hangups, splices;
static struct err last_error;

static void on_input(struct stream *s)
{
    inputs++;
    if (frees_on_input) {
        stream_free(s);
        stream = NULL;
        return;
    }
    if (keeps_input)
        return;
    buf_add(&got, buf_str(&s->in));
    buf_drop(&s->in, s->in.len);
}

static void on_drained(struct stream *s)
{
    assert_int_equal(stream_queued(s), 0);
    drains++;
}

static void on_end(struct stream *s, const struct err *err)
{
    (void)s;
    if (err) {
        failures++;
        last_error = *err;
    } else {
        ends++;
    }
}

static void on_hangup(struct stream *s)
{
    (void)s;
    hangups++;
}

static void on_spliced(struct stream *s)
{
    assert_false(splice_is_on(s));
    splices++;
}

static const struct stream_events events = { on_input, on_drained, on_end, on_hangup, on_spliced };

static void begin(void (*pair)(int ends[2]), size_t in_cap)
{
    int fds[2];

    pair(fds);
    loop = loop_new();
    got = buf_make(NULL, SIZE_MAX / 4);
    keeps_input = frees_on_input = false;
    inputs = drains = ends = failures = hangups = splices = 0;
    peer = peer_make(fds[1]);
    stream = stream_new(loop, fds[0], in_cap, &events, NULL);
}

static void finish(void)
{
    stream_free(stream);
    loop_free(loop);
    peer_done(&peer);
    buf_done(&got);
}

static char *pattern(size_t size)
{
    char *bytes = malloc(size);

    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    return bytes;
}

/* Writes as the peer does: as much as fits. */
static void peer_push(const char *bytes, size_t size, size_t *at)
{
    ssize_t n = write(peer.fd, bytes + *at, MIN(size - *at, (size_t)100000));

    if (n > 0)
        *at += (size_t)n;
}

static void what_arrives_is_delivered_once_and_in_order(void **state)
{
    size_t size = 5 << 20, sent = 0;

    (void)state;
    begin(tcp_pair, 256 * 1024);
    char *bytes = pattern(size);
    stream_read(stream, true);
    PUMP_UNTIL(loop, (peer_push(bytes, size, &sent), got.len == size));
    assert_memory_equal(got.data, bytes, size);
    assert_int_equal(stream->bytes_in, size);
    shutdown(peer.fd, SHUT_WR);
    PUMP_UNTIL(loop, ends == 1);
    pump_some(loop);
    assert_int_equal(ends, 1);
    stream_write(stream, STR("still here")); /* an orderly end is of one side only */
    PUMP_UNTIL(loop, peer_heard(&peer, "still here"));
    free(bytes);
    finish();
}

static void a_full_input_makes_the_peer_wait(void **state)
{
    size_t size = 32 << 20, sent = 0;

    (void)state;
    begin(tcp_pair, 10000);
    keeps_input = true;
    char *bytes = pattern(size);
    stream_read(stream, true);
    for (int i = 0; i < 200; i++) {
        peer_push(bytes, size, &sent);
        pump_turn(loop);
    }
    assert_int_equal(stream->in.len, 10000);
    assert_int_equal(stream->bytes_in, 10000);
    assert_true(sent < size);
    /* Consuming at another time than in on_input() is followed by stream_read(). */
    buf_drop(&stream->in, 4000);
    stream_read(stream, true);
    PUMP_UNTIL(loop, stream->bytes_in == 14000);
    assert_memory_equal(stream->in.data, bytes + 4000, 10000);
    free(bytes);
    finish();
}

static void a_paused_stream_reads_nothing(void **state)
{
    (void)state;
    begin(unix_pair, 10000);
    peer_say(&peer, STR("hello"));
    pump_some(loop);
    assert_int_equal(inputs, 0);
    stream_read(stream, true);
    PUMP_UNTIL(loop, got.len == 5);
    stream_read(stream, false);
    peer_say(&peer, STR("again"));
    pump_some(loop);
    assert_int_equal(got.len, 5);
    finish();
}

static void an_empty_and_slow_stream_holds_no_buffer(void **state)
{
    (void)state;
    begin(unix_pair, 10000);
    stream_read(stream, true);
    peer_say(&peer, STR("hello"));
    PUMP_UNTIL(loop, got.len == 5);
    assert_null(stream->in.data);
    finish();
}

static void a_slow_reader_gets_every_byte_in_order(void **state)
{
    size_t size = 6 << 20, at = 0;

    (void)state;
    begin(tcp_pair, 1000);
    char *bytes = pattern(size);
    bool was_full = false;
    PUMP_UNTIL(loop, ({
                   while (at < size && !stream_is_full(stream)) {
                       size_t piece = MIN(size - at, 1 + at % 70001);
                       size_t half = piece / 3;
                       stream_write_many(
                           stream,
                           (struct str[]){ str_of(bytes + at, half), STR(""), str_of(bytes + at + half, piece - half) },
                           3);
                       at += piece;
                   }
                   was_full |= stream_is_full(stream);
                   peer_listen(&peer) && peer.heard.len == size;
               }));
    assert_true(was_full);
    assert_true(drains > 0);
    assert_memory_equal(peer.heard.data, bytes, size);
    assert_int_equal(stream->bytes_out, size);
    free(bytes);
    finish();
}

static void queued_bytes_travel_with_the_next_write_or_at_the_end_of_the_turn(void **state)
{
    (void)state;
    begin(unix_pair, 1000);
    stream_queue(stream, STR("head "));
    assert_true(peer_listen(&peer));
    assert_int_equal(peer.heard.len, 0);
    stream_write_two(stream, STR("body "), STR("end "));
    assert_true(peer_heard(&peer, "head body end "));
    stream_queue(stream, STR("alone"));
    PUMP_UNTIL(loop, peer_heard(&peer, "head body end alone"));
    finish();
}

static int temp_file(struct str content)
{
    char path[] = "/tmp/stream_test.XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    (void)unlink(path);
    for (size_t at = 0; at < content.len;) {
        ssize_t n = write(fd, content.at + at, content.len - at);
        assert_true(n > 0);
        at += (size_t)n;
    }
    return fd;
}

static void a_file_is_sent_between_the_bytes_around_it(void **state)
{
    size_t size = 7 << 20;

    (void)state;
    begin(tcp_pair, 1000);
    char *bytes = pattern(size);
    stream_queue(stream, STR("<"));
    stream_send_file(stream, temp_file(str_of(bytes, size)), 3, size - 3);
    stream_write(stream, STR(">"));
    stream_finish(stream);
    PUMP_UNTIL(loop, peer_is_closed(&peer));
    assert_true(peer.ended);
    assert_int_equal(peer.heard.len, size - 3 + 2);
    assert_int_equal(peer.heard.data[0], '<');
    assert_memory_equal(peer.heard.data + 1, bytes + 3, size - 3);
    assert_int_equal(peer.heard.data[size - 2], '>');
    free(bytes);
    finish();
}

static void a_file_that_cannot_be_mapped_is_copied(void **state)
{
    char room[65536];

    (void)state;
    begin(unix_pair, 1000);
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, room, sizeof room);
    assert_true(n > 100);
    stream_send_file(stream, fd, 0, 100);
    PUMP_UNTIL(loop, peer_listen(&peer) && peer.heard.len == 100);
    assert_int_equal(failures, 0);
    finish();
}

static void a_file_that_became_shorter_fails_the_stream(void **state)
{
    (void)state;
    begin(unix_pair, 1000);
    stream_send_file(stream, temp_file(STR("only ten b")), 0, 11);
    assert_int_equal(failures, 0); /* never from inside the call */
    PUMP_UNTIL(loop, failures == 1);
    assert_true(stream_failed(stream));
    finish();
}

static void finishing_waits_for_the_queue(void **state)
{
    size_t size = 8 << 20;

    (void)state;
    begin(tcp_pair, 1000);
    char *bytes = pattern(size);
    stream_write(stream, str_of(bytes, size));
    stream_finish(stream);
    stream_write(stream, STR("too late"));
    PUMP_UNTIL(loop, peer_is_closed(&peer));
    assert_true(peer.ended);
    assert_int_equal(peer.heard.len, size);
    free(bytes);
    finish();
}

static void an_abort_is_seen_as_one(void **state)
{
    (void)state;
    begin(tcp_pair, 1000);
    stream_write(stream, STR("half of"));
    stream_abort(stream);
    stream_write(stream, STR("it"));
    PUMP_UNTIL(loop, peer_is_closed(&peer));
    assert_true(peer.was_reset);
    assert_int_equal(ends + failures, 0);
    finish();
}

static void a_peer_that_resets_is_an_error(void **state)
{
    (void)state;
    begin(tcp_pair, 1000);
    stream_read(stream, true);
    struct linger reset = { .l_onoff = 1 };
    assert_int_equal(setsockopt(peer.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    peer_close(&peer);
    PUMP_UNTIL(loop, failures == 1);
    assert_int_equal(last_error.sys, ECONNRESET);
    pump_some(loop);
    assert_int_equal(failures + ends, 1);
    finish();
}

static void a_peer_that_goes_while_we_do_not_read_is_noticed(void **state)
{
    (void)state;
    begin(tcp_pair, 1000);
    stream_read(stream, false);
    pump_turn(loop);
    peer_say(&peer, STR("last words"));
    pump_some(loop);
    assert_int_equal(hangups, 0);
    peer_close(&peer);
    PUMP_UNTIL(loop, hangups == 1);
    pump_some(loop);
    assert_int_equal(hangups, 1);
    stream_read(stream, true); /* nothing of what it said is lost */
    PUMP_UNTIL(loop, ends == 1);
    CHECK_STR(buf_str(&got), STR("last words"));
    finish();
}

static void what_a_peer_said_before_it_stopped_reading_is_delivered(void **state)
{
    size_t size = 16 << 20;

    (void)state;
    begin(tcp_pair, 1 << 20);
    char *bytes = pattern(size);
    stream_read(stream, true);
    stream_write(stream, str_of(bytes, size));
    peer_say(&peer, STR("413"));
    peer_close(&peer); /* with unread bytes: a reset */
    PUMP_UNTIL(loop, failures == 1);
    CHECK_STR(buf_str(&got), STR("413"));
    assert_int_equal(ends, 0);
    free(bytes);
    finish();
}

static void a_write_that_fails_after_an_orderly_end_is_told(void **state)
{
    (void)state;
    begin(unix_pair, 1000);
    stream_read(stream, true);
    shutdown(peer.fd, SHUT_WR);
    PUMP_UNTIL(loop, ends == 1);
    peer_close(&peer);
    stream_write(stream, STR("x"));
    assert_int_equal(failures, 0);
    PUMP_UNTIL(loop, failures == 1);
    finish();
}

static void a_stream_may_be_freed_from_its_callback(void **state)
{
    (void)state;
    begin(unix_pair, 1000);
    frees_on_input = true;
    stream_read(stream, true);
    peer_say(&peer, STR("hello"));
    PUMP_UNTIL(loop, inputs == 1);
    PUMP_UNTIL(loop, peer_is_closed(&peer));
    assert_int_equal(ends + failures, 0);
    finish();
}

static void a_pipe_is_a_stream_too(void **state)
{
    int ends_of_pipe[2];

    (void)state;
    begin(unix_pair, 1000);
    assert_int_equal(pipe2(ends_of_pipe, O_NONBLOCK), 0);
    struct peer reader = peer_make(ends_of_pipe[0]);
    struct stream *writer = stream_new(loop, ends_of_pipe[1], 1, &events, NULL);
    size_t size = 300000;
    char *bytes = pattern(size);
    stream_write(writer, str_of(bytes, size));
    stream_finish(writer);
    PUMP_UNTIL(loop, peer_is_closed(&reader));
    assert_int_equal(reader.heard.len, size);
    assert_memory_equal(reader.heard.data, bytes, size);
    stream_free(writer);

    assert_int_equal(pipe2(ends_of_pipe, O_NONBLOCK), 0);
    writer = stream_new(loop, ends_of_pipe[1], 1, &events, NULL);
    close(ends_of_pipe[0]);
    stream_write(writer, STR("nobody reads this"));
    PUMP_UNTIL(loop, failures == 1);
    assert_int_equal(last_error.sys, EPIPE);
    stream_free(writer);
    peer_done(&reader);
    free(bytes);
    finish();
}

static void writes_wait_for_the_connection(void **state)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;

    (void)state;
    begin(unix_pair, 1000);
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listening, (struct sockaddr *)&at, sizeof at) + listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&at, &len), 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    (void)connect(fd, (struct sockaddr *)&at, sizeof at);
    struct stream *dialled = stream_new_connecting(loop, fd, 1000, &events, NULL);
    stream_write(dialled, STR("first"));
    struct peer server = peer_make(accept(listening, NULL, NULL));
    set_nonblocking(server.fd);
    PUMP_UNTIL(loop, peer_heard(&server, "first"));
    stream_free(dialled);
    peer_done(&server);
    close(listening);

    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    (void)connect(fd, (struct sockaddr *)&at, sizeof at); /* nobody listens there any more */
    dialled = stream_new_connecting(loop, fd, 1000, &events, NULL);
    stream_write(dialled, STR("first"));
    PUMP_UNTIL(loop, failures == 1);
    assert_int_equal(last_error.sys, ECONNREFUSED);
    pump_some(loop);
    assert_int_equal(failures, 1);
    stream_free(dialled);
    finish();
}

/* A second stream, which `stream` is spliced to. */
static struct stream *taker;
static struct peer taker_peer;
static uint64_t left;

static bool start_splice(uint64_t size)
{
    left = size;
    return splice_start(stream, taker, &left);
}

static void begin_two(void (*pair)(int ends[2]))
{
    int fds[2];

    begin(pair, 256 * 1024);
    pair(fds);
    taker_peer = peer_make(fds[1]);
    taker = stream_new(loop, fds[0], 1000, &events, NULL);
    stream_read(stream, true);
    stream_read(taker, true);
}

static void finish_two(void)
{
    stream_free(taker);
    finish();
    peer_done(&taker_peer);
}

static void check_splice(void (*pair)(int ends[2]))
{
    size_t size = 5 << 20, sent = 0;

    begin_two(pair);
    char *bytes = pattern(size);
    stream_queue(taker, STR("head"));
    assert_true(start_splice(size));
    PUMP_UNTIL(loop, (peer_push(bytes, size, &sent), peer_listen(&taker_peer), taker_peer.heard.len == size + 4));
    PUMP_UNTIL(loop, splices == 1);
    assert_memory_equal(taker_peer.heard.data, "head", 4);
    assert_memory_equal(taker_peer.heard.data + 4, bytes, size);
    assert_int_equal(stream->bytes_in, size);
    assert_int_equal(taker->bytes_out, size + 4);
    assert_int_equal(inputs, 0);
    /* And what follows is ours again. */
    peer_say(&peer, STR("tail"));
    PUMP_UNTIL(loop, got.len == 4);
    stream_write(taker, STR("more"));
    PUMP_UNTIL(loop, peer_heard(&taker_peer, "more"));
    assert_int_equal(splices, 1);
    free(bytes);
    finish_two();
}

static void what_is_spliced_arrives_once_and_in_order(void **state)
{
    (void)state;
    check_splice(tcp_pair);
    check_splice(unix_pair);
}

static void what_follows_a_splice_is_not_spliced(void **state)
{
    (void)state;
    begin_two(tcp_pair);
    peer_say(&peer, STR("joined, ours"));
    assert_true(start_splice(6));
    PUMP_UNTIL(loop, got.len == 6);
    PUMP_UNTIL(loop, peer_heard(&taker_peer, "joined"));
    assert_memory_equal(got.data, ", ours", 6);
    pump_some(loop);
    assert_int_equal(taker_peer.heard.len, 6);
    finish_two();
}

static void a_slow_taker_makes_the_giver_wait(void **state)
{
    size_t size = 64 << 20, sent = 0;

    (void)state;
    begin_two(tcp_pair);
    char *bytes = pattern(size);
    assert_true(start_splice(size));
    for (size_t before = 1; sent != before;) {
        before = sent;
        for (int i = 0; i < 200; i++)
            peer_push(bytes, size, &sent);
        pump_some(loop);
    }
    assert_true(sent < size);
    assert_true(stream_queued(taker) > 0); /* whoever has an eye on it sees that it waits */
    PUMP_UNTIL(loop, (peer_push(bytes, size, &sent), peer_listen(&taker_peer), taker_peer.heard.len == size));
    PUMP_UNTIL(loop, splices == 1);
    assert_memory_equal(taker_peer.heard.data, bytes, size);
    free(bytes);
    finish_two();
}

static void a_giver_that_ends_early_ends_the_splice(void **state)
{
    (void)state;
    begin_two(tcp_pair);
    assert_true(start_splice(10));
    peer_say(&peer, STR("four"));
    shutdown(peer.fd, SHUT_WR);
    PUMP_UNTIL(loop, ends == 1);
    assert_false(splice_is_on(stream));
    assert_int_equal(left, 6);
    PUMP_UNTIL(loop, peer_heard(&taker_peer, "four"));
    stream_write(taker, STR("still here"));
    PUMP_UNTIL(loop, peer_heard(&taker_peer, "still here"));
    assert_int_equal(splices + failures, 0);
    finish_two();
}

/* Nothing of this waits for anybody but the taker: all of it has reached us. */
static bool peer_is_acknowledged(void)
{
    int unsent = 1;

    assert_int_equal(ioctl(peer.fd, SIOCOUTQ, &unsent), 0);
    return unsent == 0;
}

static void what_a_giver_said_before_it_stopped_reading_is_spliced(void **state)
{
    const int small = 4096, large = 1 << 20;
    size_t size = 120000, sent = 0, ours = 16 << 20;

    (void)state;
    begin_two(tcp_pair);
    char *bytes = pattern(ours);
    assert_int_equal(setsockopt(taker->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    assert_int_equal(setsockopt(taker_peer.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    assert_int_equal(setsockopt(stream->fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof large), 0);
    stream_write(stream, str_of(bytes, ours));
    assert_true(start_splice(size));
    PUMP_UNTIL(loop, (peer_push(bytes, size, &sent), sent == size && peer_is_acknowledged()));
    assert_true(stream_queued(taker) > 0);
    peer_close(&peer); /* with unread bytes: a reset */
    PUMP_UNTIL(loop, stream_failed(stream));
    pump_some(loop);
    assert_int_equal(failures, 0);
    PUMP_UNTIL(loop, (peer_listen(&taker_peer), taker_peer.heard.len == size));
    assert_memory_equal(taker_peer.heard.data, bytes, size);
    PUMP_UNTIL(loop, failures == 1);
    assert_int_equal(splices, 1);
    assert_int_equal(ends, 0);
    free(bytes);
    finish_two();
}

static void a_taker_that_goes_ends_the_splice(void **state)
{
    size_t size = 64 << 20, sent = 0;

    (void)state;
    begin_two(tcp_pair);
    char *bytes = pattern(size);
    assert_true(start_splice(size));
    PUMP_UNTIL(loop, (peer_push(bytes, size, &sent), peer_listen(&taker_peer), taker_peer.heard.len > 1 << 20));
    peer_close(&taker_peer);
    PUMP_UNTIL(loop, (peer_push(bytes, size, &sent), failures == 1));
    assert_false(splice_is_on(stream));
    assert_true(stream_failed(taker));
    /* The giver is as good as before. */
    stream_write(stream, STR("enough"));
    PUMP_UNTIL(loop, peer_heard(&peer, "enough"));
    assert_int_equal(splices, 0);
    free(bytes);
    finish_two();
}

static void either_side_of_a_splice_may_be_freed(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        begin_two(tcp_pair);
        assert_true(start_splice(1000000));
        peer_say(&peer, STR("a little"));
        PUMP_UNTIL(loop, peer_heard(&taker_peer, "a little"));
        struct stream **gone = side ? &taker : &stream;
        stream_free(*gone);
        *gone = NULL;
        peer_say(&peer, STR("and more"));
        pump_some(loop);
        assert_int_equal(splices + ends + failures, 0);
        finish_two();
    }
}

/* The most that one turn of the loop has spliced. */
static struct timer eye;
static uint64_t seen, most;

static void on_eye(struct timer *timer)
{
    most = MAX(most, taker->bytes_out - seen);
    seen = taker->bytes_out;
    timer_set(timer, loop, 0, on_eye);
}

/* Each byte a fragment of its own, of which a pipe holds no more than of whole pages. */
static size_t say_in_crumbs(size_t size)
{
    char crumb = 'x';
    struct iovec crumbs[16];
    size_t said = 0;
    int fds[2];

    assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    for (size_t i = 0; i < COUNT_OF(crumbs); i++)
        crumbs[i] = (struct iovec){ &crumb, 1 };
    while (said < size) {
        ssize_t n = vmsplice(fds[1], crumbs, COUNT_OF(crumbs), SPLICE_F_NONBLOCK);
        assert_true(n > 0);
        ssize_t sent = splice(fds[0], NULL, peer.fd, NULL, (size_t)n, SPLICE_F_NONBLOCK);
        if (sent > 0)
            said += (size_t)sent;
        if (sent < n)
            break; /* it will do if it is much already */
    }
    close(fds[0]);
    close(fds[1]);
    return said;
}

static void a_splice_of_crumbs_leaves_others_their_turn(void **state)
{
    (void)state;
    begin_two(tcp_pair);
    size_t said = say_in_crumbs(2048);
    assert_true(said >= 1024);
    assert_true(start_splice(1000000));
    seen = most = 0;
    timer_set(&eye, loop, 0, on_eye);
    PUMP_UNTIL(loop, (peer_listen(&taker_peer), taker_peer.heard.len == said));
    timer_clear(&eye);
    assert_true(most <= 256);
    finish_two();
}

static void without_pipes_there_is_no_splice(void **state)
{
    struct rlimit before, none = { 0 };

    (void)state;
    begin_two(tcp_pair);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool spliced = start_splice(1000000);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_false(spliced);
    assert_false(splice_is_on(stream));
    peer_say(&peer, STR("copy me"));
    PUMP_UNTIL(loop, got.len == 7);
    finish_two();
}

static void a_byte_sent_as_urgent_does_not_stop_a_splice(void **state)
{
    (void)state;
    begin_two(tcp_pair);
    assert_true(start_splice(10));
    peer_say(&peer, STR("hello"));
    assert_int_equal(send(peer.fd, "!", 1, MSG_OOB), 1);
    peer_say(&peer, STR("world"));
    PUMP_UNTIL(loop, peer_heard(&taker_peer, "helloworld"));
    PUMP_UNTIL(loop, splices == 1);
    finish_two();
}

/* Makes large pipes until the kernel makes none but tiny ones; root it would never refuse. */
static bool use_up_pipes(void)
{
    int fds[2];

    if (geteuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) < 0)
        return false;
    for (int i = 0; i < PIPES_MOST; i++) {
        if (pipe2(fds, O_CLOEXEC) < 0)
            return false;
        if (fcntl(fds[0], F_GETPIPE_SZ) < 65536)
            return true;
        (void)fcntl(fds[0], F_SETPIPE_SZ, 1 << 20); /* the last of them stay as they are */
    }
    return false;
}

static void tiny_pipes_are_not_spliced_through(void **state)
{
    enum { REFUSED, SPLICED, NO_TINY_PIPES };
    int status;

    (void)state;
    begin_two(tcp_pair);
    pid_t child = fork(); /* which takes the pipes with it */
    assert_true(child >= 0);
    if (child == 0)
        _exit(!use_up_pipes() ? NO_TINY_PIPES : start_splice(1000000) ? SPLICED : REFUSED);
    assert_int_equal(waitpid(child, &status, 0), child);
    finish_two();
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_TINY_PIPES)
        skip(); /* the operator has set fs.pipe-user-pages-soft to something large */
    assert_int_equal(WEXITSTATUS(status), REFUSED);
}

static bool is_readable(int fd)
{
    struct pollfd looked = { .fd = fd, .events = POLLIN };

    return poll(&looked, 1, 0) > 0;
}

static void a_reader_that_needs_more_is_woken_once(void **state)
{
    (void)state;
    begin(tcp_pair, 1000);
    stream_read(stream, true);
    stream_read_least(stream, 9);
    peer_say(&peer, STR("four"));
    if (is_readable(stream->fd)) {
        print_message("skipped: the kernel is short of memory for sockets and lets nothing lie there\n");
        finish();
        skip();
    }
    pump_some(loop);
    assert_int_equal(inputs, 0);
    peer_say(&peer, STR("five!"));
    PUMP_UNTIL(loop, got.len == 9);
    assert_int_equal(inputs, 1);
    peer_say(&peer, STR("four"));
    pump_some(loop);
    assert_int_equal(inputs, 1);
    stream_read_least(stream, 1);
    PUMP_UNTIL(loop, got.len == 13);
    stream_read_least(stream, 9);
    shutdown(peer.fd, SHUT_WR); /* more does not come */
    PUMP_UNTIL(loop, ends == 1);
    finish();
}

/* A filter whose set-up takes two messages of the peer: a long answer to the first, work elsewhere for the second. */
enum { ANSWER_BYTES = 300000 };

static unsigned fed;

static bool slow_is_first(unsigned char byte)
{
    (void)byte;
    return true;
}

static void slow_feed(struct filter *filter, struct str bytes)
{
    char *answer = pattern(ANSWER_BYTES);

    (void)bytes;
    assert_false(filter->is_busy);
    if (fed++ == 0)
        buf_add(&filter->out, str_of(answer, ANSWER_BYTES));
    else
        filter->is_busy = true;
    free(answer);
}

static bool slow_holds(const struct filter *filter)
{
    (void)filter;
    return false;
}

static void slow_free(struct filter *filter)
{
    buf_done(&filter->out);
}

static void a_filter_that_a_worker_has_is_left_alone(void **state)
{
    static const struct filter_ops ops = {
        .is_first = slow_is_first, .feed = slow_feed, .holds = slow_holds, .free = slow_free
    };
    struct filter filter = { .ops = &ops };

    (void)state;
    fed = 0;
    begin(unix_pair, 4096);
    assert_int_equal(setsockopt(stream->fd, SOL_SOCKET, SO_SNDBUF, &(int){ 8192 }, sizeof(int)), 0);
    stream_set_filter(stream, &filter);
    stream_read(stream, true);
    peer_say(&peer, STR("one"));
    PUMP_UNTIL(loop, fed == 1 && filter.out.len < ANSWER_BYTES);
    size_t unsent = filter.out.len;
    assert_true(unsent > 0); /* it waits for a peer that does not read… */
    peer_say(&peer, STR("two"));
    peer_listen(&peer); /* …and both happen in one turn */
    PUMP_UNTIL(loop, fed == 2);
    for (int i = 0; i < 20; i++) {
        peer_listen(&peer);
        pump_turn(loop);
        assert_int_equal(filter.out.len, unsent);
    }
    /* One step ends and the next begins. */
    stream_filter_changed(stream);
    pump_some(loop);
    assert_int_equal(filter.out.len, unsent);
    filter.is_busy = false;
    stream_filter_changed(stream);
    PUMP_UNTIL(loop, peer_listen(&peer) && peer.heard.len == ANSWER_BYTES);
    assert_int_equal(failures + ends, 0);
    finish();
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest cases[] = {
        CASE(what_arrives_is_delivered_once_and_in_order),
        CASE(a_full_input_makes_the_peer_wait),
        CASE(a_paused_stream_reads_nothing),
        CASE(an_empty_and_slow_stream_holds_no_buffer),
        CASE(a_slow_reader_gets_every_byte_in_order),
        CASE(queued_bytes_travel_with_the_next_write_or_at_the_end_of_the_turn),
        CASE(a_file_is_sent_between_the_bytes_around_it),
        CASE(a_file_that_cannot_be_mapped_is_copied),
        CASE(a_file_that_became_shorter_fails_the_stream),
        CASE(finishing_waits_for_the_queue),
        CASE(an_abort_is_seen_as_one),
        CASE(a_peer_that_resets_is_an_error),
        CASE(a_peer_that_goes_while_we_do_not_read_is_noticed),
        CASE(what_a_peer_said_before_it_stopped_reading_is_delivered),
        CASE(a_write_that_fails_after_an_orderly_end_is_told),
        CASE(a_stream_may_be_freed_from_its_callback),
        CASE(a_pipe_is_a_stream_too),
        CASE(writes_wait_for_the_connection),
        CASE(a_reader_that_needs_more_is_woken_once),
        CASE(what_is_spliced_arrives_once_and_in_order),
        CASE(what_follows_a_splice_is_not_spliced),
        CASE(a_slow_taker_makes_the_giver_wait),
        CASE(a_giver_that_ends_early_ends_the_splice),
        CASE(what_a_giver_said_before_it_stopped_reading_is_spliced),
        CASE(a_taker_that_goes_ends_the_splice),
        CASE(either_side_of_a_splice_may_be_freed),
        CASE(a_splice_of_crumbs_leaves_others_their_turn),
        CASE(a_byte_sent_as_urgent_does_not_stop_a_splice),
        CASE(without_pipes_there_is_no_splice),
        CASE(tiny_pipes_are_not_spliced_through),
        CASE(a_filter_that_a_worker_has_is_left_alone),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
