/*
 * What a mother says to keeper, who is root: code of a template has written it. A byte of length, then a message; the
 * length 255 is a door that she is given instead.
 */
#include "isolation/native/nursery.c" /* its ear is its own */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { DOOR = 255 };

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void try_complaint(struct str message)
{
    char said[256];

    (void)snprintf(said, sizeof said, "%.*s", STR_ARG(message));
    for (const char *at = complaint_of(said); *at; at++)
        check(*at >= ' ' && *at <= '~');
}

/* Whoever owes an answer is on a clock, and nobody else. */
static void check_breed(const struct breed *breed, unsigned doors, bool said_ready)
{
    bool owes =
        breed->state == MOTHER_STARTING || (breed->state == MOTHER_LIVING && (breed->unanswered || breed->is_busy));

    check(breed->state == MOTHER_STARTING || breed->state == MOTHER_LIVING || breed->state == MOTHER_ENDING);
    check(breed->state != MOTHER_LIVING || said_ready);
    check(breed->unanswered <= doors);
    check(timer_is_set(&breed->patience) == owes);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static struct nursery nursery;
    struct str rest = str_of(data, size);
    unsigned doors = 0;
    bool said_ready = false;
    int pair[2];

    if (!nursery.config.loop) {
        log_setup("fuzz", LOG_ERROR);
        nursery.config.loop = loop_new();
    }
    if (pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0)
        abort();
    struct breed *breed = NEW(struct breed);
    breed->nursery = &nursery;
    breed->plan.layer_count = 1;
    breed->pidfd = -1; /* there is nobody to be killed */
    breed->control_fd = -1;
    breed->voice_fd = pair[0];
    breed->state = MOTHER_STARTING;
    expect_answer(breed);
    while (rest.len && breed->state != MOTHER_ENDING) {
        size_t length = (unsigned char)rest.at[0];
        rest = str_of(rest.at + 1, rest.len - 1);
        if (length == DOOR) {
            breed->unanswered++;
            doors++;
            expect_answer(breed);
        } else {
            struct str message = str_of(rest.at, MIN(length, rest.len));
            rest = str_of(rest.at + message.len, rest.len - message.len);
            said_ready |= message.len && memchr(message.at, MOTHER_READY, message.len);
            try_complaint(message);
            check(!message.len || write(pair[1], message.at, message.len) == (ssize_t)message.len);
            on_voice(breed, WATCH_READ);
        }
        check_breed(breed, doors, said_ready);
    }
    timer_clear(&breed->patience);
    free(breed);
    fd_close(&pair[0]);
    fd_close(&pair[1]);
    return 0;
}
