/*
 * mail_stage.h - all of mail in one test: the store, front's actions, real workers and a real composer (children of the
 * test, without confinement), people with keys, and what was told to listeners.
 */
#ifndef TESTS_ACTIONS_MAIL_STAGE_H
#define TESTS_ACTIONS_MAIL_STAGE_H

#include "../hand_clock.h"
#include "../mail/office_fake.h"
#include "../store/temp_store.h"
#include "actions/mail.h"
#include "mail/compose.h"

enum { STAGE_EVENTS = 256 };
#define STAGE_ADMIN STR("the operator's token, long and random")
#define STAGE_DOMAIN "mail.test"

struct stage {
    struct office_fake office;
    struct temp_store disk;
    struct mail_setup setup;
    struct actions actions;
    struct secret admin_hash;
    struct mail_caller operator_;
    struct arena arena;
    struct mail_event events[STAGE_EVENTS];
    size_t event_count;
};

/* Somebody with an inbox and its key. */
struct person {
    struct inbox_info inbox;
    struct mail_caller caller;
    struct secret key;
};

static inline void stage_heard(void *context, const struct mail_event *event)
{
    struct stage *stage = context;

    assert_true(stage->event_count < STAGE_EVENTS);
    stage->events[stage->event_count++] = *event;
}

/* In a child: a signal must end it, and not begin the next test there. */
static inline void stage_leave_test(void)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };

    for (size_t i = 0; i < COUNT_OF(signals); i++)
        signal(signals[i], SIG_DFL);
}

static bool stage_composer_works = true;

/* This inbox has no worker now, with that error; NULL: all have. */
static const char *stage_away;
static enum err_kind stage_away_error = ERR_UNAVAILABLE;
static unsigned stage_away_asked; /* so often */

static inline bool stage_inbox(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    if (stage_away && strcmp(stage_away, inbox_id) == 0) {
        stage_away_asked++;
        return err_set(err, stage_away_error, "no worker for this inbox now");
    }
    return office_fake_open(context, inbox_id, make, out_fd, err);
}

void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

/* Once, and not in each child: it takes a while. What the libraries keep is no leak of ours. */
static inline void stage_prepare_composer(void)
{
    static bool is_done;

    if (is_done)
        return;
    if (__lsan_disable)
        __lsan_disable();
    composer_prepare();
    if (__lsan_enable)
        __lsan_enable();
    is_done = true;
}

static inline bool stage_composer(void *context, int *out_fd, struct err *err)
{
    int pair[2];

    (void)context;
    if (!stage_composer_works)
        return err_set(err, ERR_UNAVAILABLE, "the composer is gone");
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        /* Twice, so that it is nobody's child: it ends by itself. */
        if (fork() != 0)
            _exit(0);
        struct err why;
        stage_leave_test();
        _exit(composer_serve(pair[1], &why) ? 0 : 1);
    }
    (void)waitpid(pid, NULL, 0);
    close(pair[1]);
    *out_fd = pair[0];
    return true;
}

static inline void stage_held(void *context, const char *inbox_id, const char *message_id)
{
    struct stage *stage = container_of(context, struct stage, office);
    struct mail_event event = { .kind = MAIL_EVENT_PENDING };

    memcpy(event.inbox_id, inbox_id, strlen(inbox_id));
    memcpy(event.message_id, message_id, strlen(message_id));
    stage_heard(stage, &event);
}

/* Front starts, on what is there. */
static inline void stage_open(struct stage *stage)
{
    struct mail_config config = {
        .open_inbox = stage_inbox, .open_composer = stage_composer, .held = stage_held, .context = &stage->office
    };
    struct seal_key operator_public;
    auto_seal_key struct seal_key operator_private;
    char hash[STORE_HASH_BYTES];

    seal_pair_of(STR("the test's server"), "server", &config.server_public, &config.server_private);
    seal_derive(STR("the test's server"), "secret", &config.server_secret);
    stage->office.mail = mail_new(&config);
    temp_store_reopen(&stage->disk);
    seal_pair_of(STAGE_ADMIN, "operator", &operator_public, &operator_private);
    stage->setup = (struct mail_setup){
        .mail = stage->office.mail,
        .busy = mail_busy_new(),
        .domain = STAGE_DOMAIN,
        .sends_per_minute = 20,
        .sends_per_day = 100,
        .inboxes_most = 100,
        .signups_per_hour = 15,
        .heard = stage_heard,
        .context = stage,
    };
    memcpy(stage->setup.operator_public, operator_public.bytes, sizeof stage->setup.operator_public);
    memcpy(stage->setup.server_secret, config.server_secret.bytes, sizeof stage->setup.server_secret);
    store_secret_hash(STAGE_ADMIN, hash);
    assert_true(secret_set(&stage->admin_hash, str_from(hash)));
    stage->actions = (struct actions){
        .store = stage->disk.store,
        .admin_hash = &stage->admin_hash,
        .mail = &stage->setup,
    };
    MUST(mail_caller_by_admin(&stage->actions, STAGE_ADMIN, &stage->operator_, &err));
    stage->event_count = 0;
}

/* Front ends; files and rows stay. */
static inline void stage_close(struct stage *stage)
{
    mail_free(stage->office.mail);
    office_fake_wait(&stage->office);
    mail_busy_free(stage->setup.busy);
    store_close(stage->disk.store);
    stage->disk.store = NULL;
}

static inline int stage_set_up(void **state)
{
    struct stage *stage = calloc(1, sizeof *stage);
    struct err err;

    hand_clock_start();
    assert_true(seal_begin(&err));
    stage_composer_works = true;
    stage_away = NULL;
    stage_away_error = ERR_UNAVAILABLE;
    stage_away_asked = 0;
    stage_prepare_composer();
    snprintf(stage->office.dir, sizeof stage->office.dir, "/tmp/cloister-mail.XXXXXX");
    assert_non_null(mkdtemp(stage->office.dir));
    arena_init(&stage->office.arena);
    temp_store_make(&stage->disk);
    arena_init(&stage->arena);
    stage_open(stage);
    *state = stage;
    return 0;
}

static inline int stage_tear_down(void **state)
{
    struct stage *stage = *state;
    struct err err;

    stage_close(stage);
    arena_done(&stage->arena);
    arena_done(&stage->office.arena);
    if (!remove_tree(AT_FDCWD, stage->office.dir, &err))
        print_error("%s\n", err_text(&err));
    temp_store_drop(&stage->disk);
    free(stage);
    hand_clock_end();
    return 0;
}

/* A new inbox, gated_send or another mode. */
static inline struct person stage_person(struct stage *stage, const char *local, enum mail_mode mode)
{
    struct person p = { 0 };
    bool pending;

    MUST(action_inbox_create(&stage->actions, &stage->operator_,
                             &(struct inbox_want){ .local = str_from(local), .mode = -1 }, &stage->arena, &p.inbox,
                             &p.key, &pending, &err));
    assert_false(pending);
    if (mode < MAIL_GATED_SEND)
        MUST(action_inbox_update(&stage->actions, &stage->operator_, str_from(p.inbox.id),
                                 &(struct inbox_change){ .mode = (int)mode,
                                                         .undo_s = -1,
                                                         .schedule_first = -1,
                                                         .scheduling_enabled = -1,
                                                         .forward_inbound = -1,
                                                         .mcp_configured = -1,
                                                         .auto_extract = -1 },
                                 &stage->arena, &p.inbox, &pending, &err));
    else if (mode > MAIL_GATED_SEND)
        MUST(action_inbox_raise_mode(&stage->actions, &stage->operator_, str_from(p.inbox.id), STR(""), (int)mode,
                                     &stage->arena, &p.inbox, &err));
    MUST(mail_caller_by_key(&stage->actions, secret_reveal(&p.key), &p.caller, &err));
    return p;
}

/* An oversight key of the default tenant. */
static inline struct mail_caller stage_approver(struct stage *stage)
{
    struct mail_key_info info;
    struct mail_caller caller;
    struct secret key;
    bool pending;

    MUST(action_mail_key_create(&stage->actions, &stage->operator_,
                                &(struct mail_key_want){ .name = STR("approver"), .scopes = MAIL_SCOPE_OVERSIGHT },
                                &stage->arena, &info, &key, &pending, &err));
    MUST(mail_caller_by_key(&stage->actions, secret_reveal(&key), &caller, &err));
    return caller;
}

static inline size_t stage_heard_count(const struct stage *stage, enum mail_event_kind kind, const char *inbox_id)
{
    size_t count = 0;

    for (size_t i = 0; i < stage->event_count; i++)
        count += stage->events[i].kind == kind && strcmp(stage->events[i].inbox_id, inbox_id) == 0;
    return count;
}

#endif
