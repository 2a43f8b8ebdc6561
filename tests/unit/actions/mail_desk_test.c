/*
 * Callers, inboxes, keys, codes, grants and accounts of mail, with a real store and real workers of inboxes.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../sandbox/rig.h"
#include "actions/mail_inside.h"
#include "base/clock.h"
#include "base/remove.h"
#include "mail/inbox.h"

#define ADMIN STR("the admin token")
#define NO_SUCH "there is no such inbox or message, or this key does not reach it"

/* Starts workers of inboxes for a process with threads, which cannot fork by itself: it is made before them. */
struct starter {
    int fd;
    pid_t pid;
    char dir[64];
};

struct fixture {
    struct rig rig;
    struct starter starter;
    struct mail_setup setup;
    struct actions actions;
    struct secret admin_hash;
    struct mail_caller operator_;
    struct arena *arena;
    unsigned events;
};

static void starter_run(int fd)
{
    char path[128];

    for (;;) {
        char control[CMSG_SPACE(sizeof(int))];
        struct iovec part = { path, sizeof path - 1 };
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
        };
        ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (got <= 0)
            break;
        path[got] = '\0';
        int worker = -1;
        memcpy(&worker, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof worker);
        if (fork() == 0) {
            struct err err;
            close(fd);
            _exit(chdir(path) == 0 && inbox_serve(worker, &err) ? 0 : 1);
        }
        close(worker);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    while (waitpid(-1, NULL, 0) > 0)
        ;
    _exit(0);
}

static void starter_make(struct starter *starter)
{
    int pair[2];

    snprintf(starter->dir, sizeof starter->dir, "/tmp/cloister-desk.XXXXXX");
    assert_non_null(mkdtemp(starter->dir));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    starter->pid = fork();
    assert_true(starter->pid >= 0);
    if (starter->pid == 0) {
        close(pair[0]);
        starter_run(pair[1]);
    }
    close(pair[1]);
    starter->fd = pair[0];
}

static bool open_inbox(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    struct starter *starter = context;
    char path[128], control[CMSG_SPACE(sizeof(int))] = { 0 };
    int pair[2];

    snprintf(path, sizeof path, "%s/%s", starter->dir, inbox_id);
    if (make && mkdir(path, 0700) < 0)
        return err_sys(err, "make %s", path);
    if (access(path, F_OK) < 0)
        return err_set(err, ERR_NOT_FOUND, "there is no such inbox");
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    struct iovec part = { path, strlen(path) };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &pair[1], sizeof(int));
    assert_true(sendmsg(starter->fd, &message, 0) > 0);
    close(pair[1]);
    *out_fd = pair[0];
    return true;
}

static bool open_composer(void *context, int *out_fd, struct err *err)
{
    (void)context;
    (void)out_fd;
    return err_set(err, ERR_UNAVAILABLE, "this test has no composer");
}

static bool remove_inbox(void *context, const char *inbox_id, struct err *err)
{
    struct starter *starter = context;
    char path[128];

    snprintf(path, sizeof path, "%s/%s", starter->dir, inbox_id);
    if (rmdir(path) == 0)
        return true;
    return errno == ENOTEMPTY ? err_set(err, ERR_CONFLICT, "%s is not empty", path) : err_sys(err, "remove %s", path);
}

static struct mail *starter_mail(struct starter *starter)
{
    struct mail_config config = {
        .open_inbox = open_inbox, .remove_inbox = remove_inbox, .open_composer = open_composer, .context = starter
    };

    seal_pair_of(STR("the test's server"), "server", &config.server_public, &config.server_private);
    seal_derive(STR("the test's server"), "secret", &config.server_secret);
    return mail_new(&config);
}

static void on_event(void *context, const struct mail_event *event)
{
    struct fixture *f = context;

    if (event->kind == MAIL_EVENT_INBOX_CREATED)
        f->events++;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct seal_key operator_public, operator_private;
    char hash[STORE_HASH_BYTES];
    struct err why;

    assert_true(seal_begin(&why));
    starter_make(&f->starter);
    rig_make(&f->rig);
    rig_start(&f->rig);
    f->arena = &f->rig.arena;
    store_secret_hash(ADMIN, hash);
    if (!secret_set(&f->admin_hash, str_from(hash)))
        return -1;
    seal_pair_of(ADMIN, "operator", &operator_public, &operator_private);
    f->setup = (struct mail_setup){ .mail = starter_mail(&f->starter),
                                    .busy = mail_busy_new(),
                                    .domain = "mail.test",
                                    .sends_per_minute = 20,
                                    .sends_per_day = 100,
                                    .inboxes_most = 3,
                                    .signups_per_hour = 2,
                                    .heard = on_event,
                                    .context = f };
    memcpy(f->setup.operator_public, operator_public.bytes, sizeof f->setup.operator_public);
    memset(f->setup.server_secret, 7, sizeof f->setup.server_secret);
    f->actions = (struct actions){
        .store = f->rig.disk.store, .sandboxes = f->rig.all, .admin_hash = &f->admin_hash, .mail = &f->setup
    };
    MUST(mail_caller_by_admin(&f->actions, ADMIN, &f->operator_, &err));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    struct err err;

    mail_busy_free(f->setup.busy);
    mail_free(f->setup.mail);
    rig_drop(&f->rig);
    close(f->starter.fd);
    (void)waitpid(f->starter.pid, NULL, 0);
    if (!remove_tree(AT_FDCWD, f->starter.dir, &err))
        print_error("%s\n", err_text(&err));
    free(f);
    return 0;
}

/* ---- helpers ---- */

struct made {
    struct inbox_info info;
    struct secret key;
    struct mail_caller caller; /* by its key */
};

static void make_inbox(struct fixture *f, const char *local, const char *tenant, struct made *out)
{
    struct inbox_want want = { .local = str_from(local), .tenant = str_from(tenant), .mode = -1 };
    bool pending;

    MUST(action_inbox_create(&f->actions, &f->operator_, &want, f->arena, &out->info, &out->key, &pending, &err));
    assert_false(pending);
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&out->key), &out->caller, &err));
}

static void make_account(struct fixture *f, const char *place, struct mail_caller *out)
{
    struct mail_account account;
    struct secret token;
    uint32_t retry_s;

    MUST(action_account_create(&f->actions, str_from(place), f->arena, &account, &token, &retry_s, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&token), out, &err));
}

static bool create_by(struct fixture *f, const struct mail_caller *caller, const char *local, struct made *out,
                      struct err *err)
{
    struct inbox_want want = { .local = str_from(local), .mode = -1 };
    bool pending;

    out->key.len = 0;
    if (!action_inbox_create(&f->actions, caller, &want, f->arena, &out->info, &out->key, &pending, err))
        return false;
    /* None for a sandbox's account. */
    return mail_is_sandbox_account(caller) == !out->key.len &&
           (!out->key.len || mail_caller_by_key(&f->actions, secret_reveal(&out->key), &out->caller, err));
}

/* The only code that waits. */
static struct str the_code(struct fixture *f)
{
    struct mail_code *codes;
    size_t count;

    MUST(action_mail_codes(&f->actions, &f->operator_, f->arena, &codes, &count, &err));
    assert_int_equal(count, 1);
    return codes[0].code;
}

/* Can this caller list the messages of the inbox? */
static bool can_list(struct fixture *f, const struct mail_caller *caller, const char *inbox, struct err *err)
{
    struct mail_filter filter = { .inbound = true, .in_status = -1, .state = -1, .has_attachments = -1, .limit = 5 };
    auto_mail_box struct mail_box box = { 0 };
    struct mail_page page;

    return mail_box_for(&f->actions, caller, str_from(inbox), MAIL_USE_LIST, f->arena, &box, err) &&
           mail_list(f->setup.mail, box.info.id, &box.reader, &filter, f->arena, &page, err);
}

static bool has_audit(struct fixture *f, const char *inbox, const char *action)
{
    struct mail_audit *rows;
    size_t count;
    bool found = false;

    MUST(action_audit_list(&f->actions, &f->operator_, str_from(inbox), 0, 0, f->arena, &rows, &count, &err));
    for (size_t i = 0; i < count; i++)
        found = found || str_eq(rows[i].action, str_from(action));
    return found;
}

static bool store_has(struct fixture *f, const char *text)
{
    static const char *const suffixes[] = { "", "-wal" };
    bool found = false;

    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s%s", f->rig.disk.path, suffixes[i]);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        fseek(file, 0, SEEK_END);
        size_t size = (size_t)ftell(file);
        rewind(file);
        char *all = malloc(size + 1);
        assert_int_equal(fread(all, 1, size, file), size);
        found = found || memmem(all, size, text, strlen(text));
        free(all);
        fclose(file);
    }
    return found;
}

static const struct inbox_change no_change = { .mode = -1,
                                               .undo_s = -1,
                                               .schedule_first = -1,
                                               .scheduling_enabled = -1,
                                               .forward_inbound = -1,
                                               .mcp_configured = -1,
                                               .auto_extract = -1 };

/* ---- inboxes ---- */

static void an_inbox_is_made_with_its_key_and_found_by_id_and_address(void **state)
{
    struct fixture *f = *state;
    struct made alice;
    struct inbox_info info;

    make_inbox(f, "Alice.Smith", "", &alice);
    CHECK_STR(alice.info.address, STR("alice.smith@mail.test"));
    CHECK_STR(alice.info.tenant, STR("default"));
    assert_int_equal(alice.info.mode, MAIL_GATED_SEND);
    assert_true(str_starts(secret_reveal(&alice.key), STR("mm_live_")));
    assert_int_equal(alice.key.len, 8 + 43);
    assert_int_equal(f->events, 1);
    assert_int_equal(alice.caller.kind, MAIL_CALLER_INBOX);
    assert_string_equal(alice.caller.inbox_id, alice.info.id);
    assert_false(alice.caller.is_lobster);

    char prefixed[64];
    snprintf(prefixed, sizeof prefixed, "ibx_%s", alice.info.id);
    const char *const refs[] = {
        alice.info.id, prefixed, "alice.smith@mail.test", "AliceSmith@MAIL.test", "alicesmith+tag@mail.test", ""
    };
    for (size_t i = 0; i < COUNT_OF(refs); i++) {
        MUST(action_inbox_get(&f->actions, &alice.caller, str_from(refs[i]), f->arena, &info, &err));
        assert_string_equal(info.id, alice.info.id);
    }
    MUST(can_list(f, &alice.caller, "", &err));
    assert_true(has_audit(f, alice.info.id, "inbox.create"));
}

static void an_address_is_given_once_and_dots_do_not_count(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {
        "ab", "-abc", "a b c", "postmaster", "ad.min", "x@other.test", "a..b", "ümlaut"
    };
    struct made alice, again;
    bool pending;

    make_inbox(f, "alice.smith", "", &alice);
    MUST_FAIL(create_by(f, &f->operator_, "alicesmith", &again, &err), ERR_CONFLICT);
    MUST_FAIL(create_by(f, &f->operator_, "a.licesmith@mail.test", &again, &err), ERR_CONFLICT);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        MUST_FAIL(create_by(f, &f->operator_, bad[i], &again, &err), ERR_INVALID);
    struct inbox_want loose = { .mode = MAIL_AUTONOMOUS }, strict = { .mode = MAIL_READ_ONLY };
    MUST(action_inbox_create(&f->actions, &f->operator_, &loose, f->arena, &again.info, &again.key, &pending, &err));
    assert_int_equal(again.info.mode, MAIL_GATED_SEND);
    assert_true(str_starts(again.info.address, STR("inbox-")));
    MUST(action_inbox_create(&f->actions, &f->operator_, &strict, f->arena, &again.info, &again.key, &pending, &err));
    assert_int_equal(again.info.mode, MAIL_READ_ONLY);
    /* Deleted, and still not given out again. */
    MUST(action_inbox_delete(&f->actions, &alice.caller, STR(""), f->arena, &err));
    MUST_FAIL(create_by(f, &f->operator_, "alicesmith", &again, &err), ERR_CONFLICT);
}

static void the_store_shows_no_name_address_or_key(void **state)
{
    struct fixture *f = *state;
    struct inbox_want want = { .local = STR("zebrafish"), .display_name = STR("Quagga Okapi"), .mode = -1 };
    struct mail_key_want key_want = { .name = STR("wombat key"), .scopes = MAIL_SCOPE_READ };
    struct mail_key_info key;
    struct mail_grant grant;
    struct mail_allow allow;
    struct made made, other;
    struct secret text;
    bool pending;

    MUST(action_inbox_create(&f->actions, &f->operator_, &want, f->arena, &made.info, &made.key, &pending, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&made.key), &made.caller, &err));
    make_inbox(f, "numbat", "", &other);
    MUST(action_mail_key_create(&f->actions, &made.caller, &key_want, f->arena, &key, &text, &pending, &err));
    MUST(action_allow_add(&f->actions, &made.caller, STR(""), STR("tapir@example.com"), STR(""), f->arena, &allow,
                          &pending, &err));
    MUST(action_grant_create(&f->actions, &f->operator_, str_from(other.info.id), str_from(made.info.id),
                             MAIL_GRANT_READ, 60, STR("because of the echidna"), f->arena, &grant, &err));
    assert_true(store_has(f, made.info.id));
    assert_false(store_has(f, "zebrafish"));
    assert_false(store_has(f, "Okapi"));
    assert_false(store_has(f, "wombat"));
    assert_false(store_has(f, "tapir"));
    assert_false(store_has(f, "echidna"));
    char *whole = arena_text(f->arena, secret_reveal(&made.key));
    assert_false(store_has(f, whole + 12));
}

static void settings_of_an_inbox_are_its_own_administrators(void **state)
{
    struct fixture *f = *state;
    struct inbox_change change = no_change;
    struct str name = STR("Alice"), signature = STR("Yours\nAlice"), bad = STR("a\r\nBcc: x@y.example");
    struct inbox_info info;
    struct made alice;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    change.display_name = &name;
    change.signature = &signature;
    change.undo_s = 30;
    change.mcp_configured = 1;
    MUST(action_inbox_update(&f->actions, &alice.caller, STR(""), &change, f->arena, &info, &pending, &err));
    MUST(action_inbox_get(&f->actions, &alice.caller, STR(""), f->arena, &info, &err));
    CHECK_STR(info.display_name, name);
    CHECK_STR(info.signature, signature);
    assert_int_equal(info.undo_s, 30);
    assert_true(info.mcp_configured && info.scheduling_enabled && !info.auto_extract);
    change.display_name = &bad;
    MUST_FAIL(action_inbox_update(&f->actions, &alice.caller, STR(""), &change, f->arena, &info, &pending, &err),
              ERR_INVALID);
    change = no_change;
    change.undo_s = 10;
    MUST_FAIL(action_inbox_update(&f->actions, &alice.caller, STR(""), &change, f->arena, &info, &pending, &err),
              ERR_DENIED);
    MUST(action_inbox_update(&f->actions, &f->operator_, str_from(alice.info.id), &change, f->arena, &info, &pending,
                             &err));
    /* Copies of everything: with the operator's code for exactly these addresses. */
    struct str copy = STR("boss@example.com"), other = STR("evil@example.com");
    change = no_change;
    change.auto_bcc = &copy;
    MUST(action_inbox_update(&f->actions, &alice.caller, STR(""), &change, f->arena, &info, &pending, &err));
    assert_true(pending);
    MUST(action_inbox_get(&f->actions, &alice.caller, STR(""), f->arena, &info, &err));
    CHECK_STR(info.auto_bcc, STR(""));
    change.approval_code = the_code(f);
    change.auto_bcc = &other;
    MUST_FAIL(action_inbox_update(&f->actions, &alice.caller, STR(""), &change, f->arena, &info, &pending, &err),
              ERR_NOT_FOUND);
    change.auto_bcc = &copy;
    MUST(action_inbox_update(&f->actions, &alice.caller, STR(""), &change, f->arena, &info, &pending, &err));
    CHECK_STR(info.auto_bcc, copy);
    /* A key that only sends changes none of it. */
    struct mail_caller sender = alice.caller;
    sender.scopes = MAIL_SCOPE_SEND;
    change = no_change;
    change.display_name = &name;
    MUST_FAIL(action_inbox_update(&f->actions, &sender, STR(""), &change, f->arena, &info, &pending, &err), ERR_DENIED);
}

/* ---- boundaries ---- */

/* Every function that takes an inbox, a message or a key by a reference. */
static bool try_all(struct fixture *f, const struct mail_caller *caller, unsigned number, struct str inbox,
                    struct str message, struct str key, struct err *err)
{
    const struct actions *a = &f->actions;
    struct inbox_change lower = no_change;
    struct webhook_want hook = { .url = STR("https://example.com/h"),
                                 .inbox_ref = inbox,
                                 .events = (const struct str[]){ STR("message.received") },
                                 .event_count = 1 };
    struct mail_key_want key_want = { .name = STR("k"), .scopes = MAIL_SCOPE_READ, .inbox_ref = inbox };
    struct mail_filter filter = { .inbound = true, .in_status = -1, .state = -1, .has_attachments = -1 };
    struct send_want send = { .inbox_ref = inbox, .subject = STR("s"), .text = STR("t"), .schedule_first = -1 };
    struct str to = STR("x@example.com");
    struct mail_box box;
    struct inbox_info info;
    struct mail_allow *allows, allow;
    struct mail_key_info key_info;
    struct mail_audit *audits;
    struct mail_webhook webhook;
    struct mail_page page;
    struct mail_message shown;
    struct mail_attachment attachment;
    struct mail_thread thread, *threads;
    struct sent_info sent;
    struct mail_pair *tags, tag = { STR("a"), STR("b") };
    struct secret text;
    uint32_t number_out;
    size_t count;
    bool flag;

    lower.mode = MAIL_READ_ONLY;
    send.to = &to;
    send.to_count = 1;
    switch (number) {
    case 0:
        return action_inbox_get(a, caller, inbox, f->arena, &info, err);
    case 1:
        return action_inbox_update(a, caller, inbox, &lower, f->arena, &info, &flag, err);
    case 2:
        return action_inbox_delete(a, caller, inbox, f->arena, err);
    case 3:
        return action_inbox_request_mode(a, caller, inbox, MAIL_AUTONOMOUS, f->arena, err);
    case 4:
        return action_inbox_raise_mode(a, caller, inbox, STR("AAA-AAA"), -1, f->arena, &info, err);
    case 5:
        return action_allow_list(a, caller, inbox, f->arena, &allows, &count, err);
    case 6:
        return action_allow_add(a, caller, inbox, STR("*@example.com"), STR(""), f->arena, &allow, &flag, err);
    case 7:
        return action_allow_remove(a, caller, inbox, message, STR(""), f->arena, &flag, err);
    case 8:
        return action_mail_key_create(a, caller, &key_want, f->arena, &key_info, &text, &flag, err);
    case 9:
        return action_mail_key_update(a, caller, key, &key_want.name, 0, STR(""), f->arena, &flag, err);
    case 10:
        return action_mail_key_revoke(a, caller, key, STR(""), f->arena, &flag, err);
    case 11:
        return action_audit_list(a, caller, inbox, 0, 10, f->arena, &audits, &count, err);
    case 12:
        return action_webhook_add(a, caller, &hook, f->arena, &webhook, &flag, err);
    case 13:
        return action_webhook_remove(a, caller, message, f->arena, err);
    case 14:
        return action_webhook_enable(a, caller, message, f->arena, err);
    case 15:
        return mail_box_for(a, caller, inbox, MAIL_USE_LIST, f->arena, &box, err);
    case 16:
        return mail_box_for(a, caller, inbox, MAIL_USE_SEND, f->arena, &box, err);
    case 17:
        return mail_box_of_message(a, caller, STR(""), message, MAIL_USE_READ, f->arena, &box, err);
    case 18:
        return mail_box_of_message(a, caller, inbox, message, MAIL_USE_SEND, f->arena, &box, err);
    case 19:
        return action_mail_list(a, caller, inbox, &filter, f->arena, &page, err);
    case 20:
        return action_mail_read(a, caller, STR(""), message, 0, f->arena, &shown, err);
    case 21:
        return action_attachment_read(a, caller, inbox, message, STR("0"), true, f->arena, &attachment, err);
    case 22:
        return action_thread_list(a, caller, inbox, STR(""), 10, f->arena, &threads, &count, &flag, err);
    case 23:
        return action_thread_get(a, caller, STR(""), message, f->arena, &thread, err);
    case 24:
        return action_tags_set(a, caller, STR(""), message, &tag, 1, f->arena, &tags, &number_out, err);
    case 25:
        return action_send(a, caller, &send, f->arena, &sent, &number_out, err);
    case 26:
        return action_send_cancel(a, caller, inbox, message, f->arena, &shown, err);
    default:
        return action_mail_label(a, caller, message, true, f->arena, &shown, err);
    }
}
enum { TRIES = 28 };

static void what_belongs_to_others_looks_like_what_does_not_exist(void **state)
{
    struct fixture *f = *state;
    struct made alice, bob, neighbour;
    struct mail_caller account;
    char message[MAIL_MESSAGE_ID_BYTES], no_message[MAIL_MESSAGE_ID_BYTES], no_inbox[MAIL_INBOX_ID_BYTES];

    make_inbox(f, "alice", "red", &alice);
    make_inbox(f, "bobby", "blue", &bob);          /* another tenant */
    make_inbox(f, "neighbour", "red", &neighbour); /* the same tenant */
    make_account(f, "192.0.2.1", &account);
    mail_message_id(alice.info.id, message);
    mail_ulid(no_inbox);
    mail_message_id(no_inbox, no_message);
    const struct mail_caller *const strangers[] = { &bob.caller, &neighbour.caller, &account };
    for (size_t s = 0; s < COUNT_OF(strangers); s++) {
        for (unsigned i = 0; i < TRIES; i++) {
            struct err real = { 0 }, none = { 0 };
            if (try_all(f, strangers[s], i, str_from(alice.info.id), str_from(message), str_from(alice.caller.key_id),
                        &real) ||
                try_all(f, strangers[s], i, str_from(no_inbox), str_from(no_message), str_from(no_inbox), &none))
                fail_msg("number %u was not refused", i);
            if (real.kind != ERR_NOT_FOUND || strcmp(real.message, NO_SUCH) != 0 || none.kind != ERR_NOT_FOUND ||
                strcmp(none.message, real.message) != 0)
                fail_msg("number %u: '%s' and '%s'", i, err_text(&real), err_text(&none));
        }
    }
    /* Nothing happened to it. */
    struct inbox_info info;
    MUST(action_inbox_get(&f->actions, &alice.caller, STR(""), f->arena, &info, &err));
    assert_int_equal(info.mode, MAIL_GATED_SEND);
    struct inbox_info *list;
    size_t count;
    MUST(action_inbox_list(&f->actions, &bob.caller, f->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(list[0].id, bob.info.id);
    MUST(action_inbox_list(&f->actions, &account, f->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    MUST(action_inbox_list(&f->actions, &f->operator_, f->arena, &list, &count, &err));
    assert_int_equal(count, 3);
}

static void a_row_that_cannot_be_read_leaves_the_others_in_the_list(void **state)
{
    struct fixture *f = *state;
    struct made alice, bob;
    struct inbox_info *list;
    size_t before, count;
    char query[160];

    make_inbox(f, "alice", "", &alice);
    make_inbox(f, "bob", "", &bob);
    MUST(action_inbox_list(&f->actions, &f->operator_, f->arena, &list, &before, &err));
    snprintf(query, sizeof query, "UPDATE mail_inboxes SET profile = 'QUJD' WHERE id = '%s'", alice.info.id);
    temp_store_by_hand(&f->rig.disk, query);
    MUST(action_inbox_list(&f->actions, &f->operator_, f->arena, &list, &count, &err));
    assert_int_equal(count, before - 1);
    for (size_t i = 0; i < count; i++)
        assert_string_not_equal(list[i].id, alice.info.id);
}

static void the_operator_reads_and_sends_nothing(void **state)
{
    struct fixture *f = *state;
    struct mail_key_want want = { .name = STR("k"), .scopes = MAIL_SCOPE_READ };
    struct mail_key_info info;
    struct mail_box box;
    struct made alice;
    struct secret text;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    struct str ref = str_from(alice.info.id);
    MUST_FAIL(mail_box_for(&f->actions, &f->operator_, ref, MAIL_USE_LIST, f->arena, &box, &err), ERR_DENIED);
    MUST_FAIL(mail_box_for(&f->actions, &f->operator_, ref, MAIL_USE_READ, f->arena, &box, &err), ERR_DENIED);
    MUST_FAIL(mail_box_for(&f->actions, &f->operator_, ref, MAIL_USE_SEND, f->arena, &box, &err), ERR_DENIED);
    MUST(mail_box_for(&f->actions, &f->operator_, ref, MAIL_USE_ADMIN, f->arena, &box, &err));
    assert_false(box.can_read);
    want.inbox_ref = ref;
    MUST_FAIL(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err),
              ERR_DENIED);
    struct mail_caller wrong;
    MUST_FAIL(mail_caller_by_admin(&f->actions, STR("not the token"), &wrong, &err), ERR_DENIED);
}

/* ---- keys ---- */

static void the_name_of_a_key_does_not_look_like_its_scopes(void **state)
{
    struct fixture *f = *state;
    struct mail_key_want want = { .name = STR("x' with the scopes read"), .scopes = MAIL_SCOPE_SEND };
    struct mail_key_info info;
    struct secret text = { 0 };
    struct mail_code *codes;
    struct made alice;
    size_t count;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    MUST(action_mail_key_create(&f->actions, &alice.caller, &want, f->arena, &info, &text, &pending, &err));
    assert_true(pending);
    MUST(action_mail_codes(&f->actions, &f->operator_, f->arena, &codes, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(codes[0].what, STR("create a key with the scopes send, named 'x' with the scopes read'"));
}

static void a_key_is_made_with_the_operators_code_and_revoked_at_once(void **state)
{
    struct fixture *f = *state;
    struct mail_key_want want = { .name = STR("second"), .scopes = MAIL_SCOPE_READ };
    struct mail_key_info info, *keys;
    struct mail_caller second, sender;
    struct secret text = { 0 };
    struct made alice;
    size_t count;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    MUST(action_mail_key_create(&f->actions, &alice.caller, &want, f->arena, &info, &text, &pending, &err));
    assert_true(pending);
    assert_int_equal(text.len, 0);
    want.approval_code = the_code(f);
    MUST(action_mail_key_create(&f->actions, &alice.caller, &want, f->arena, &info, &text, &pending, &err));
    assert_false(pending);
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&text), &second, &err));
    MUST(can_list(f, &second, "", &err));
    MUST_FAIL(action_mail_key_list(&f->actions, &second, f->arena, &keys, &count, &err), ERR_DENIED);
    MUST(action_mail_key_list(&f->actions, &alice.caller, f->arena, &keys, &count, &err));
    assert_int_equal(count, 2);
    CHECK_STR(keys[1].name, STR("second"));
    assert_true(str_starts(secret_reveal(&text), keys[1].prefix) && keys[1].prefix.len == 12);

    /* One that only sends has nothing that opens the inbox, and cannot get it later. */
    want = (struct mail_key_want){ .name = STR("sender"), .scopes = MAIL_SCOPE_SEND };
    MUST(action_mail_key_create(&f->actions, &alice.caller, &want, f->arena, &info, &text, &pending, &err));
    want.approval_code = the_code(f);
    MUST(action_mail_key_create(&f->actions, &alice.caller, &want, f->arena, &info, &text, &pending, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&text), &sender, &err));
    sender.scopes |= MAIL_SCOPE_READ;
    MUST_FAIL(can_list(f, &sender, "", &err), ERR_DENIED);
    MUST_FAIL(action_mail_key_update(&f->actions, &f->operator_, str_from(info.id), NULL,
                                     MAIL_SCOPE_READ | MAIL_SCOPE_SEND, STR(""), f->arena, &pending, &err),
              ERR_INVALID);

    MUST(
        action_mail_key_revoke(&f->actions, &f->operator_, str_from(second.key_id), STR(""), f->arena, &pending, &err));
    struct mail_caller again;
    struct mail_key_info *all;
    MUST(action_mail_key_list(&f->actions, &f->operator_, f->arena, &all, &count, &err));
    assert_int_equal(count, 2);
    /* Also a caller that was found before the revocation opens nothing. */
    MUST_FAIL(can_list(f, &second, "", &err), ERR_DENIED);
    MUST(can_list(f, &alice.caller, "", &err));
    MUST_FAIL(mail_caller_by_key(&f->actions, secret_reveal(&second.credential), &again, &err), ERR_DENIED);
    assert_true(has_audit(f, alice.info.id, "key.revoke"));
}

static void a_key_never_sends_and_approves(void **state)
{
    struct fixture *f = *state;
    static const uint32_t bad[] = { MAIL_SCOPE_SEND | MAIL_SCOPE_OVERSIGHT, MAIL_SCOPE_ADMIN | MAIL_SCOPE_OVERSIGHT, 0,
                                    64, MAIL_SCOPE_ALL };
    struct mail_key_want want = { .name = STR("k") };
    struct mail_key_info info;
    struct mail_caller approver;
    struct secret text;
    struct made alice;
    bool pending;

    make_inbox(f, "alice", "red", &alice);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        want.scopes = bad[i];
        MUST_FAIL(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err),
                  ERR_INVALID);
    }
    want.scopes = MAIL_SCOPE_OVERSIGHT;
    MUST_FAIL(action_mail_key_create(&f->actions, &alice.caller, &want, f->arena, &info, &text, &pending, &err),
              ERR_DENIED);
    want.tenant = STR("red");
    MUST(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&text), &approver, &err));
    assert_int_equal(approver.kind, MAIL_CALLER_OVERSIGHT);
    for (unsigned scopes = MAIL_SCOPE_SEND; scopes <= MAIL_SCOPE_ADMIN; scopes *= 2) {
        MUST_FAIL(action_mail_key_update(&f->actions, &f->operator_, str_from(info.id), NULL,
                                         MAIL_SCOPE_OVERSIGHT | scopes, STR(""), f->arena, &pending, &err),
                  ERR_INVALID);
        MUST_FAIL(action_mail_key_update(&f->actions, &f->operator_, str_from(info.id), NULL, scopes, STR(""), f->arena,
                                         &pending, &err),
                  ERR_INVALID);
    }
    /* However the row came about: neither. */
    char query[160];
    snprintf(query, sizeof query, "UPDATE mail_keys SET scopes = %d WHERE id = '%s'",
             MAIL_SCOPE_OVERSIGHT | MAIL_SCOPE_SEND, info.id);
    temp_store_by_hand(&f->rig.disk, query);
    rig_turn(&f->rig, 31 * 1000); /* the cache */
    MUST_FAIL(mail_caller_by_key(&f->actions, secret_reveal(&text), &approver, &err), ERR_DENIED);
}

static void count_tenants(struct fixture *f, size_t expected)
{
    struct mail_tenant_row *rows;
    size_t count;

    MUST(store_mail_tenant_list(f->rig.disk.store, f->arena, &rows, &count, &err));
    assert_int_equal(count, expected);
}

static void a_mistyped_tenant_is_not_made_by_a_key(void **state)
{
    struct fixture *f = *state;
    struct mail_key_want want = { .name = STR("k"), .scopes = MAIL_SCOPE_OVERSIGHT, .tenant = STR("rde") };
    struct mail_key_info info;
    struct secret text;
    struct made alice;
    struct team_row team;
    struct err refusal;
    bool pending;

    make_inbox(f, "alice", "red", &alice);
    MUST(action_mail_key_create(&f->actions, &f->operator_, &(struct mail_key_want){ .name = STR("k"), .scopes = 8 },
                                f->arena, &info, &text, &pending, &err)); /* makes "default" */
    count_tenants(f, 2);
    assert_false(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &refusal));
    assert_int_equal(refusal.kind, ERR_NOT_FOUND);
    assert_non_null(strstr(refusal.message, "'rde'"));
    assert_non_null(strstr(refusal.message, "mail inbox list"));
    want.tenant = STR("a-name-that-is-as-long-as-a-name-of-a-tenant-can-be-63-letters-");
    assert_false(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &refusal));
    assert_int_equal(refusal.kind, ERR_NOT_FOUND);
    assert_non_null(strstr(refusal.message, "makes a new one")); /* nothing is cut off */
    want.tenant = STR("Not A Name");
    MUST_FAIL(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err),
              ERR_INVALID);
    MUST_FAIL(action_oversight_address(&f->actions, &f->operator_, STR("rde"), STR("x@y.example"), STR(""), f->arena,
                                       &pending, &err),
              ERR_NOT_FOUND);
    count_tenants(f, 2);
    /* A team has one as soon as it is needed. */
    MUST(store_team_add(f->rig.disk.store, STR("rde"), f->arena, &team, &err));
    want.tenant = STR("rde");
    MUST(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err));
    count_tenants(f, 3);
}

static void an_inbox_says_that_its_tenant_is_new(void **state)
{
    struct fixture *f = *state;
    struct inbox_want bad = { .local = STR("not a name"), .tenant = STR("green"), .mode = -1 };
    struct made first, second;
    bool pending;

    make_inbox(f, "alice", "red", &first);
    assert_true(first.info.made_tenant);
    make_inbox(f, "bobby", "red", &second);
    assert_false(second.info.made_tenant);
    MUST_FAIL(
        action_inbox_create(&f->actions, &f->operator_, &bad, f->arena, &second.info, &second.key, &pending, &err),
        ERR_INVALID);
    bad.local = STR("alice");
    MUST_FAIL(
        action_inbox_create(&f->actions, &f->operator_, &bad, f->arena, &second.info, &second.key, &pending, &err),
        ERR_CONFLICT);
    count_tenants(f, 1); /* an inbox that was refused has made none */
}

static bool has_directory(struct fixture *f, const char *inbox_id)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", f->starter.dir, inbox_id);
    return access(path, F_OK) == 0;
}

/* As a crash leaves it: the file is there, and the row is not. */
static void make_unmade(struct fixture *f, char out[MAIL_INBOX_ID_BYTES])
{
    struct mail_reader reader = { .key_id = "01HADDED000000000000000000" };
    struct mail_inbox_new want = { .inbox_id = out, .readers = &reader, .reader_count = 1, .actor = STR("operator") };
    struct seal_key public_key;

    mail_ulid(out);
    MUST(mail_inbox_make(f->setup.mail, &want, &public_key, &err));
}

static void what_a_crash_left_of_an_inbox_is_removed_and_nothing_that_has_a_row(void **state)
{
    enum { NEVER_FINISHED = LIMIT_MAIL_SWEEP + 3, USED = NEVER_FINISHED, WITH_ROW, DELETED, SHREDDED, TENANT, COUNT };
    struct fixture *f = *state;
    char(*ids)[MAIL_INBOX_ID_BYTES] = calloc(COUNT, sizeof *ids);
    struct made made[3];

    for (int i = 0; i < NEVER_FINISHED; i++)
        make_unmade(f, ids[i]);
    make_unmade(f, ids[USED]);
    MUST(mail_audit_add(f->setup.mail, ids[USED], STR("something"), STR("x"), STR("x"), STR("{}"), &err));
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = { "alice", "bobby", "carol" };
        make_inbox(f, names[i], "red", &made[i]);
        memcpy(ids[WITH_ROW + i], made[i].info.id, sizeof *ids);
    }
    memcpy(ids[TENANT], made[0].info.tenant_id, sizeof *ids);
    MUST(store_mail_inbox_delete(f->rig.disk.store, str_from(ids[DELETED]), &err));
    MUST(store_mail_inbox_delete(f->rig.disk.store, str_from(ids[SHREDDED]), &err));
    MUST(store_mail_inbox_shredded(f->rig.disk.store, str_from(ids[SHREDDED]), &err));
    struct mail_unmade unmade = { .ids = (const char(*)[MAIL_INBOX_ID_BYTES])ids, .count = COUNT };
    action_mail_unmade(&f->actions, &unmade);
    assert_int_equal(unmade.next, LIMIT_MAIL_SWEEP); /* a part at a time */
    while (unmade.next < unmade.count)
        action_mail_unmade(&f->actions, &unmade);
    assert_int_equal(unmade.removed, NEVER_FINISHED);
    assert_int_equal(unmade.kept, 1);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(has_directory(f, ids[i]), i >= NEVER_FINISHED);
    assert_true(can_list(f, &made[0].caller, made[0].info.id, &(struct err){ 0 }));
    free(ids);
}

static void inboxes_that_have_a_row_do_not_delay_the_removal_of_what_a_crash_left(void **state)
{
    enum { WITH_ROW = 3 * LIMIT_MAIL_SWEEP };
    char(*ids)[MAIL_INBOX_ID_BYTES] = calloc(WITH_ROW + 1, sizeof *ids);
    struct fixture *f = *state;
    struct made made;

    make_inbox(f, "alice", "red", &made);
    for (int i = 0; i < WITH_ROW; i++)
        memcpy(ids[i], made.info.id, sizeof *ids);
    make_unmade(f, ids[WITH_ROW]);
    struct mail_unmade unmade = { .ids = (const char(*)[MAIL_INBOX_ID_BYTES])ids, .count = WITH_ROW + 1 };
    action_mail_unmade(&f->actions, &unmade);
    assert_int_equal(unmade.next, unmade.count);
    assert_int_equal(unmade.removed, 1);
    free(ids);
}

static void approvers_open_their_own_tenants_key_only(void **state)
{
    struct fixture *f = *state;
    struct mail_key_want want = { .name = STR("k"), .scopes = MAIL_SCOPE_OVERSIGHT, .tenant = STR("red") };
    struct mail_approver by_key, by_operator;
    struct mail_key_info info;
    struct mail_caller approver;
    struct secret text;
    struct made alice, bob;
    bool pending;

    make_inbox(f, "alice", "red", &alice);
    make_inbox(f, "bobby", "blue", &bob);
    MUST(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&text), &approver, &err));
    MUST(mail_approver_for(&f->actions, &approver, alice.info.tenant_id, true, f->arena, &by_key, &err));
    MUST(mail_approver_for(&f->actions, &f->operator_, alice.info.tenant_id, true, f->arena, &by_operator, &err));
    assert_memory_equal(by_key.private_key.bytes, by_operator.private_key.bytes, SEAL_KEY_BYTES);
    MUST(mail_approver_for(&f->actions, &f->operator_, bob.info.tenant_id, true, f->arena, &by_operator, &err));
    assert_memory_not_equal(by_key.private_key.bytes, by_operator.private_key.bytes, SEAL_KEY_BYTES);
    MUST_FAIL(mail_approver_for(&f->actions, &approver, bob.info.tenant_id, false, f->arena, &by_key, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(mail_approver_for(&f->actions, &alice.caller, alice.info.tenant_id, false, f->arena, &by_key, &err),
              ERR_DENIED);
    /* An approver has no inbox. */
    MUST_FAIL(can_list(f, &approver, alice.info.id, &err), ERR_DENIED);
    approver.scopes = MAIL_SCOPE_OVERSIGHT_READ;
    MUST_FAIL(mail_approver_for(&f->actions, &approver, alice.info.tenant_id, true, f->arena, &by_key, &err),
              ERR_DENIED);
    MUST(mail_approver_for(&f->actions, &approver, alice.info.tenant_id, false, f->arena, &by_key, &err));
}

static void a_new_admin_token_gets_the_approvers_key_from_an_oversight_key(void **state)
{
    struct fixture *f = *state;
    struct mail_key_want want = { .name = STR("k"), .scopes = MAIL_SCOPE_OVERSIGHT };
    struct seal_key public_key, private_key;
    struct mail_caller approver, operator_;
    struct mail_approver opened;
    struct mail_key_info info;
    char hash[STORE_HASH_BYTES];
    struct secret text;
    struct made alice;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    MUST(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&text), &approver, &err));
    store_secret_hash(STR("another token"), hash);
    assert_true(secret_set(&f->admin_hash, str_from(hash)));
    seal_pair_of(STR("another token"), "operator", &public_key, &private_key);
    memcpy(f->setup.operator_public, public_key.bytes, sizeof f->setup.operator_public);
    MUST(mail_caller_by_admin(&f->actions, STR("another token"), &operator_, &err));
    MUST_FAIL(mail_approver_for(&f->actions, &operator_, alice.info.tenant_id, true, f->arena, &opened, &err),
              ERR_CONFLICT);
    MUST(mail_approver_for(&f->actions, &approver, alice.info.tenant_id, true, f->arena, &opened, &err));
    MUST(mail_approver_for(&f->actions, &operator_, alice.info.tenant_id, true, f->arena, &opened, &err));
}

/* ---- codes and modes ---- */

static void a_mode_goes_down_freely_and_up_with_a_code(void **state)
{
    struct fixture *f = *state;
    struct inbox_change change = no_change;
    struct inbox_info info;
    struct made alice;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    change.mode = MAIL_AUTONOMOUS;
    MUST_FAIL(action_inbox_update(&f->actions, &alice.caller, STR(""), &change, f->arena, &info, &pending, &err),
              ERR_DENIED);
    MUST_FAIL(action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), STR("AAA-AAA"), -1, f->arena, &info, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(
        action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), STR(""), MAIL_AUTONOMOUS, f->arena, &info, &err),
        ERR_DENIED);
    MUST_FAIL(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_GATED_SEND, f->arena, &err),
              ERR_INVALID);
    MUST(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_AUTONOMOUS, f->arena, &err));
    MUST(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_MONITORED, f->arena, &err));
    /* The code of the last request, for what that asked for. */
    struct str code = the_code(f);
    MUST(action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), code, MAIL_AUTONOMOUS, f->arena, &info, &err));
    assert_int_equal(info.mode, MAIL_MONITORED);
    MUST_FAIL(action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), code, -1, f->arena, &info, &err),
              ERR_NOT_FOUND);
    MUST(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_AUTONOMOUS, f->arena, &err));
    MUST_FAIL(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_AUTONOMOUS, f->arena, &err),
              ERR_LIMIT);
    change.mode = MAIL_READ_ONLY;
    struct mail_caller sender = alice.caller;
    sender.scopes = MAIL_SCOPE_SEND; /* an agent lowers its own mode */
    MUST(action_inbox_update(&f->actions, &sender, STR(""), &change, f->arena, &info, &pending, &err));
    assert_int_equal(info.mode, MAIL_READ_ONLY);
    MUST(action_inbox_raise_mode(&f->actions, &f->operator_, str_from(alice.info.id), STR(""), MAIL_AUTONOMOUS,
                                 f->arena, &info, &err));
    assert_int_equal(info.mode, MAIL_AUTONOMOUS);
    assert_true(has_audit(f, alice.info.id, "mode.request") && has_audit(f, alice.info.id, "mode.raise") &&
                has_audit(f, alice.info.id, "mode.lower"));
}

static void a_code_has_five_tries_and_a_day(void **state)
{
    struct fixture *f = *state;
    struct inbox_info info;
    struct made alice;
    struct str wrong = STR("000-000");

    rig_stand();
    make_inbox(f, "alice", "", &alice);
    MUST(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_MONITORED, f->arena, &err));
    struct str code = the_code(f);
    assert_int_equal(code.len, 7);
    assert_int_equal(code.at[3], '-');
    for (int i = 0; i < 5; i++)
        MUST_FAIL(action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), i ? wrong : STR("x"), -1, f->arena,
                                          &info, &err),
                  ERR_DENIED);
    MUST_FAIL(action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), code, -1, f->arena, &info, &err),
              ERR_NOT_FOUND);
    assert_true(has_audit(f, alice.info.id, "code.wrong"));
    /* A new one; lower case and without its dash is the same. */
    MUST(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_MONITORED, f->arena, &err));
    code = the_code(f);
    rig_turn(&f->rig, UINT64_C(24) * 3600 * 1000);
    MUST_FAIL(action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), code, -1, f->arena, &info, &err),
              ERR_NOT_FOUND);
    MUST(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_MONITORED, f->arena, &err));
    code = the_code(f);
    rig_turn(&f->rig, UINT64_C(23) * 3600 * 1000);
    struct str spelt = arena_format(f->arena, " %.3s%.3s ", code.at, code.at + 4);
    text_lower((char *)(uintptr_t)spelt.at, spelt.len);
    MUST(action_inbox_raise_mode(&f->actions, &alice.caller, STR(""), spelt, -1, f->arena, &info, &err));
    assert_int_equal(info.mode, MAIL_MONITORED);
}

static void a_code_is_for_one_request_of_one_key(void **state)
{
    struct fixture *f = *state;
    struct made alice, bob;
    struct mail_allow allow, *list;
    size_t count;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    make_inbox(f, "bobby", "", &bob);
    MUST(action_allow_add(&f->actions, &alice.caller, STR(""), STR("*@Example.com"), STR(""), f->arena, &allow,
                          &pending, &err));
    assert_true(pending);
    struct str code = the_code(f);
    MUST(action_allow_add(&f->actions, &alice.caller, STR(""), STR("*@example.com"), STR(""), f->arena, &allow,
                          &pending, &err));
    CHECK_STR(the_code(f), code); /* asked again: the same */
    MUST_FAIL(action_allow_add(&f->actions, &alice.caller, STR(""), STR("*@evil.example"), code, f->arena, &allow,
                               &pending, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(action_allow_add(&f->actions, &bob.caller, STR(""), STR("*@example.com"), code, f->arena, &allow,
                               &pending, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(action_allow_add(&f->actions, &alice.caller, STR(""), STR("example.com"), code, f->arena, &allow,
                               &pending, &err),
              ERR_INVALID);
    MUST(action_allow_add(&f->actions, &alice.caller, STR(""), STR("*@example.com"), code, f->arena, &allow, &pending,
                          &err));
    assert_false(pending);
    MUST(action_allow_list(&f->actions, &alice.caller, STR(""), f->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    MUST(action_allow_list(&f->actions, &bob.caller, STR(""), f->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    MUST_FAIL(action_allow_add(&f->actions, &alice.caller, STR(""), STR("*@example.com"), code, f->arena, &allow,
                               &pending, &err),
              ERR_NOT_FOUND);
    /* The operator needs none. */
    MUST(action_allow_remove(&f->actions, &f->operator_, str_from(alice.info.id), str_from(allow.id), STR(""), f->arena,
                             &pending, &err));
    assert_false(pending);
    MUST(action_allow_list(&f->actions, &alice.caller, STR(""), f->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    struct mail_code *codes;
    MUST_FAIL(action_mail_codes(&f->actions, &alice.caller, f->arena, &codes, &count, &err), ERR_DENIED);
}

/* Asks and applies from several threads at once: one of them raises. */
struct race {
    struct fixture *f;
    const struct mail_caller *caller;
    struct str code;
    bool won;
};

static void *race_run(void *argument)
{
    struct race *race = argument;
    struct inbox_info info;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    race->won = action_inbox_raise_mode(&race->f->actions, race->caller, STR(""), race->code, -1, &arena, &info, &err);
    arena_done(&arena);
    return NULL;
}

static void of_two_uses_of_a_code_one_wins(void **state)
{
    struct fixture *f = *state;
    struct race races[4];
    pthread_t threads[4];
    struct made alice;
    unsigned won = 0;

    make_inbox(f, "alice", "", &alice);
    MUST(action_inbox_request_mode(&f->actions, &alice.caller, STR(""), MAIL_MONITORED, f->arena, &err));
    struct str code = the_code(f);
    for (int i = 0; i < 4; i++) {
        races[i] = (struct race){ .f = f, .caller = &alice.caller, .code = code };
        assert_int_equal(pthread_create(&threads[i], NULL, race_run, &races[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        won += races[i].won;
    }
    assert_int_equal(won, 1);
}

/* ---- grants ---- */

static void a_grant_waits_for_the_inboxs_own_key_and_ends_at_once(void **state)
{
    struct fixture *f = *state;
    struct made alice, boss, other;
    struct mail_grant grant, *grants;
    size_t count;

    rig_stand();
    make_inbox(f, "alice", "", &alice);
    make_inbox(f, "boss", "", &boss);
    make_inbox(f, "other", "blue", &other);
    struct str inbox = str_from(alice.info.id), to = str_from(boss.info.id);
    MUST_FAIL(action_grant_create(&f->actions, &alice.caller, to, inbox, MAIL_GRANT_LIST, 60, STR("r"), f->arena,
                                  &grant, &err),
              ERR_DENIED);
    MUST_FAIL(action_grant_create(&f->actions, &f->operator_, to, inbox, 4, 60, STR("r"), f->arena, &grant, &err),
              ERR_INVALID);
    MUST_FAIL(action_grant_create(&f->actions, &f->operator_, to, inbox, MAIL_GRANT_LIST, 60, STR(""), f->arena, &grant,
                                  &err),
              ERR_INVALID);
    MUST_FAIL(action_grant_create(&f->actions, &f->operator_, to, inbox, MAIL_GRANT_LIST, 0, STR("r"), f->arena, &grant,
                                  &err),
              ERR_INVALID);
    MUST_FAIL(action_grant_create(&f->actions, &f->operator_, str_from(other.info.id), inbox, MAIL_GRANT_LIST, 60,
                                  STR("r"), f->arena, &grant, &err),
              ERR_INVALID);
    MUST_FAIL(can_list(f, &boss.caller, alice.info.id, &err), ERR_NOT_FOUND);

    MUST(action_grant_create(&f->actions, &f->operator_, to, inbox, MAIL_GRANT_LIST, 3600, STR("looks after alice"),
                             f->arena, &grant, &err));
    assert_false(grant.is_effective);
    MUST_FAIL(can_list(f, &boss.caller, alice.info.id, &err), ERR_CONFLICT);
    MUST(can_list(f, &alice.caller, "", &err)); /* alice's own key is used */
    MUST(can_list(f, &boss.caller, alice.info.id, &err));
    MUST(action_grant_list(&f->actions, &boss.caller, f->arena, &grants, &count, &err));
    assert_int_equal(count, 1);
    assert_true(grants[0].is_effective);
    CHECK_STR(grants[0].reason, STR("looks after alice"));
    MUST(action_grant_list(&f->actions, &other.caller, f->arena, &grants, &count, &err));
    assert_int_equal(count, 0);

    /* No other verb, no other key, and every use is in alice's audit. */
    struct mail_box box;
    MUST_FAIL(mail_box_for(&f->actions, &boss.caller, inbox, MAIL_USE_READ, f->arena, &box, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_box_for(&f->actions, &boss.caller, inbox, MAIL_USE_SEND, f->arena, &box, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_box_for(&f->actions, &boss.caller, inbox, MAIL_USE_ADMIN, f->arena, &box, &err), ERR_NOT_FOUND);
    MUST_FAIL(can_list(f, &other.caller, alice.info.id, &err), ERR_NOT_FOUND);
    MUST(mail_box_for(&f->actions, &boss.caller, inbox, MAIL_USE_LIST, f->arena, &box, &err));
    assert_true(box.can_read && box.reader.grant.len > 0);
    struct mail_audit *rows;
    bool used = false;
    MUST(action_audit_list(&f->actions, &alice.caller, STR(""), 0, 0, f->arena, &rows, &count, &err));
    for (size_t i = 0; i < count; i++)
        used = used || str_eq(rows[i].actor, box.reader.grant);
    assert_true(used);
    assert_true(has_audit(f, alice.info.id, "grant.create") && has_audit(f, alice.info.id, "grant.effective"));

    /* Revoked: also the reader that was had before opens nothing. */
    struct mail_filter filter = { .inbound = true, .in_status = -1, .state = -1, .has_attachments = -1 };
    struct mail_page page;
    MUST_FAIL(action_grant_revoke(&f->actions, &boss.caller, str_from(grant.id), f->arena, &err), ERR_DENIED);
    MUST(action_grant_revoke(&f->actions, &f->operator_, str_from(grant.id), f->arena, &err));
    MUST_FAIL(can_list(f, &boss.caller, alice.info.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_list(f->setup.mail, alice.info.id, &box.reader, &filter, f->arena, &page, &err), ERR_DENIED);
    MUST_FAIL(action_grant_revoke(&f->actions, &f->operator_, str_from(grant.id), f->arena, &err), ERR_NOT_FOUND);
    assert_true(has_audit(f, alice.info.id, "grant.revoke"));

    /* Expired: the same, and the sweep removes its wrap. By a key's id this time. */
    MUST(action_grant_create(&f->actions, &f->operator_, str_from(boss.caller.key_id), inbox,
                             MAIL_GRANT_LIST | MAIL_GRANT_READ, 60, STR("r"), f->arena, &grant, &err));
    MUST(can_list(f, &alice.caller, "", &err));
    MUST(mail_box_for(&f->actions, &boss.caller, inbox, MAIL_USE_READ, f->arena, &box, &err));
    rig_turn(&f->rig, 61 * 1000);
    MUST_FAIL(can_list(f, &boss.caller, alice.info.id, &err), ERR_NOT_FOUND);
    MUST(mail_list(f->setup.mail, alice.info.id, &box.reader, &filter, f->arena, &page, &err));
    action_mail_sweep(&f->actions, clock_wall_us());
    MUST_FAIL(mail_list(f->setup.mail, alice.info.id, &box.reader, &filter, f->arena, &page, &err), ERR_DENIED);
}

/* ---- accounts ---- */

static void an_account_reaches_what_it_has_made(void **state)
{
    struct fixture *f = *state;
    struct mail_caller account, other;
    struct mail_account info;
    struct made one, two, three;
    struct inbox_info *list;
    size_t count;

    make_account(f, "192.0.2.1", &account);
    make_account(f, "192.0.2.2", &other);
    assert_int_equal(account.kind, MAIL_CALLER_ACCOUNT);
    assert_true(account.is_lobster);
    MUST(create_by(f, &account, "one", &one, &err));
    assert_true(str_starts(secret_reveal(&one.key), STR("lm_sk_live_")));
    MUST(can_list(f, &account, "", &err)); /* its only one */
    MUST(create_by(f, &account, "two", &two, &err));
    MUST_FAIL(can_list(f, &account, "", &err), ERR_INVALID);
    MUST(can_list(f, &account, one.info.id, &err));
    MUST(can_list(f, &two.caller, two.info.id, &err));
    MUST_FAIL(can_list(f, &two.caller, one.info.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(can_list(f, &other, one.info.id, &err), ERR_NOT_FOUND);
    MUST(action_inbox_list(&f->actions, &account, f->arena, &list, &count, &err));
    assert_int_equal(count, 2);
    MUST(action_inbox_list(&f->actions, &two.caller, f->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    MUST(action_account_get(&f->actions, &account, f->arena, &info, &err));
    assert_int_equal(info.inbox_count, 2);
    assert_int_equal(info.inbox_most, 3);
    assert_string_equal(info.id, account.account_id);
    MUST(create_by(f, &account, "three", &three, &err));
    MUST_FAIL(create_by(f, &account, "four", &three, &err), ERR_LIMIT);
    MUST(action_inbox_delete(&f->actions, &account, str_from(one.info.id), f->arena, &err));
    MUST(create_by(f, &account, "four", &three, &err));
    struct inbox_want want = { .tenant = STR("blue"), .mode = -1 };
    bool pending;
    MUST_FAIL(action_inbox_create(&f->actions, &account, &want, f->arena, &one.info, &one.key, &pending, &err),
              ERR_DENIED);
}

static void with_strict_inbox_keys_an_account_only_provisions(void **state)
{
    struct fixture *f = *state;
    struct mail_caller account;
    struct made one;
    struct mail_box box;
    struct err why = { 0 };

    f->setup.strict_inbox_keys = true;
    make_account(f, "192.0.2.1", &account);
    MUST(create_by(f, &account, "one", &one, &err));
    assert_false(can_list(f, &account, one.info.id, &why));
    assert_int_equal(why.kind, ERR_DENIED);
    assert_non_null(strstr(why.message, "own token"));
    MUST_FAIL(mail_box_for(&f->actions, &account, str_from(one.info.id), MAIL_USE_SEND, f->arena, &box, &err),
              ERR_DENIED);
    MUST(can_list(f, &one.caller, "", &err));
    /* Not only refused: it has nothing that opens the inbox, also when the option is gone. */
    f->setup.strict_inbox_keys = false;
    MUST_FAIL(can_list(f, &account, one.info.id, &err), ERR_DENIED);
    MUST(action_inbox_delete(&f->actions, &account, str_from(one.info.id), f->arena, &err));
}

static void sign_ups_are_limited_by_place(void **state)
{
    struct fixture *f = *state;
    struct mail_account account;
    struct secret token;
    uint32_t retry_s;

    rig_stand();
    static const struct {
        const char *place;
        bool fine;
    } rows[] = {
        { "192.0.2.1", true },       { "192.0.2.1", true },
        { "192.0.2.1", false },      { "::ffff:192.0.2.1", false },
        { "192.0.2.2", true },       { "2001:db8::1", true },
        { "2001:db8::2:3", true },   { "2001:db8:0:0:ffff::", false },
        { "2001:db8:0:1::1", true },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (rows[i].fine) {
            MUST(action_account_create(&f->actions, str_from(rows[i].place), f->arena, &account, &token, &retry_s,
                                       &err));
        } else {
            MUST_FAIL(
                action_account_create(&f->actions, str_from(rows[i].place), f->arena, &account, &token, &retry_s, &err),
                ERR_LIMIT);
            assert_in_range(retry_s, 3590, 3601);
        }
    }
    assert_false(store_has(f, "192.0.2.1"));
    rig_turn(&f->rig, UINT64_C(3601) * 1000);
    MUST(action_account_create(&f->actions, STR("192.0.2.1"), f->arena, &account, &token, &retry_s, &err));
    f->setup.signups_per_hour = 0;
    MUST_FAIL(action_account_create(&f->actions, STR("192.0.2.9"), f->arena, &account, &token, &retry_s, &err),
              ERR_DENIED);
}

static void refused_sign_ups_do_not_shut_out_others(void **state)
{
    struct fixture *f = *state;
    struct mail_account account;
    struct secret token;
    uint32_t retry_s;
    struct err err;
    int made = 0;

    rig_stand();
    for (int i = 0; i < LIMIT_MAIL_SIGNUPS + 10; i++)
        made += action_account_create(&f->actions, STR("192.0.2.1"), f->arena, &account, &token, &retry_s, &err);
    assert_int_equal(made, 2);
    if (!action_account_create(&f->actions, STR("192.0.2.2"), f->arena, &account, &token, &retry_s, &err))
        fail_msg("%s", err_text(&err));
}

static void a_multimail_key_creates_a_mailbox_with_a_code_and_reaches_it(void **state)
{
    struct fixture *f = *state;
    struct inbox_want want = { .local = STR("second"), .mode = -1 };
    struct made first, second;
    struct inbox_info *list;
    size_t count;
    bool pending;

    make_inbox(f, "first", "", &first);
    struct mail_caller reader = first.caller;
    reader.scopes = MAIL_SCOPE_READ | MAIL_SCOPE_SEND;
    MUST_FAIL(action_inbox_create(&f->actions, &reader, &want, f->arena, &second.info, &second.key, &pending, &err),
              ERR_DENIED);
    MUST(action_inbox_create(&f->actions, &first.caller, &want, f->arena, &second.info, &second.key, &pending, &err));
    assert_true(pending);
    assert_int_equal(f->events, 1);
    want.approval_code = the_code(f);
    MUST(action_inbox_create(&f->actions, &first.caller, &want, f->arena, &second.info, &second.key, &pending, &err));
    assert_false(pending);
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&second.key), &second.caller, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&first.key), &first.caller, &err));
    MUST(can_list(f, &first.caller, second.info.id, &err));
    MUST(can_list(f, &first.caller, "", &err)); /* its own */
    MUST(can_list(f, &second.caller, "", &err));
    MUST_FAIL(can_list(f, &second.caller, first.info.id, &err), ERR_NOT_FOUND);
    MUST(action_inbox_list(&f->actions, &first.caller, f->arena, &list, &count, &err));
    assert_int_equal(count, 2);
    f->setup.strict_inbox_keys = true;
    MUST_FAIL(can_list(f, &first.caller, second.info.id, &err), ERR_DENIED);
    MUST(can_list(f, &first.caller, "", &err));
}

static void copies_go_to_an_address_outside_of_this_server(void **state)
{
    struct fixture *f = *state;
    struct mail_account account;
    struct mail_box box;
    struct made alice;
    bool pending;

    make_inbox(f, "alice", "red", &alice);
    struct str red = STR("red"), none = STR(""), good = STR("Boss@example.com");
    MUST_FAIL(action_oversight_address(&f->actions, &f->operator_, red, STR("alice@MAIL.test"), none, f->arena,
                                       &pending, &err),
              ERR_INVALID);
    MUST_FAIL(
        action_oversight_address(&f->actions, &f->operator_, red, STR("*@example.com"), none, f->arena, &pending, &err),
        ERR_INVALID);
    MUST(action_oversight_address(&f->actions, &f->operator_, red, good, none, f->arena, &pending, &err));
    MUST(mail_box_by_id(&f->actions, str_from(alice.info.id), f->arena, &box, &err));
    CHECK_STR(box.oversight_address, good);
    MUST(action_account_get(&f->actions, &alice.caller, f->arena, &account, &err));
    CHECK_STR(account.oversight_address, good);
    assert_false(store_has(f, "Boss"));
    /* An agent that would turn it off needs the code. */
    MUST_FAIL(action_oversight_address(&f->actions, &alice.caller, STR("blue"), none, none, f->arena, &pending, &err),
              ERR_DENIED);
    MUST(action_oversight_address(&f->actions, &alice.caller, none, none, none, f->arena, &pending, &err));
    assert_true(pending);
    MUST(mail_box_by_id(&f->actions, str_from(alice.info.id), f->arena, &box, &err));
    CHECK_STR(box.oversight_address, good);
    MUST(action_oversight_address(&f->actions, &alice.caller, none, none, the_code(f), f->arena, &pending, &err));
    MUST(mail_box_by_id(&f->actions, str_from(alice.info.id), f->arena, &box, &err));
    CHECK_STR(box.oversight_address, none);
}

static void what_concerns_no_inbox_is_in_the_tenants_audit(void **state)
{
    struct fixture *f = *state;
    struct mail_key_want want = { .name = STR("k"), .scopes = MAIL_SCOPE_OVERSIGHT, .tenant = STR("red") };
    struct mail_key_info info;
    struct mail_caller account;
    struct mail_audit *audits;
    struct secret text;
    struct made alice;
    struct str *refs;
    uint64_t rows;
    size_t count;
    bool pending;

    make_inbox(f, "alice", "red", &alice);
    make_account(f, "192.0.2.1", &account);
    MUST(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err));
    MUST(action_mail_key_revoke(&f->actions, &f->operator_, str_from(info.id), STR(""), f->arena, &pending, &err));
    MUST(action_oversight_address(&f->actions, &f->operator_, STR("red"), STR("a@example.com"), STR(""), f->arena,
                                  &pending, &err));
    assert_true(has_audit(f, "tenant:red", "key.create") && has_audit(f, "tenant:red", "key.revoke") &&
                has_audit(f, "tenant:red", "oversight.address") && has_audit(f, "tenant:default", "account.create"));
    assert_false(has_audit(f, "tenant:default", "key.create"));
    MUST(action_inbox_delete(&f->actions, &alice.caller, STR(""), f->arena, &err));
    MUST(action_audit_refs(&f->actions, &f->operator_, f->arena, &refs, &count, &err));
    assert_int_equal(count, 3); /* two tenants and alice's, who is deleted */
    for (size_t i = 0; i < count; i++)
        MUST(action_audit_verify(&f->actions, &f->operator_, refs[i], f->arena, &rows, &err));
    MUST_FAIL(action_audit_verify(&f->actions, &f->operator_, STR("tenant:blue"), f->arena, &rows, &err),
              ERR_NOT_FOUND);
    /* Nobody else's, and no inbox is to be had by a tenant's id. */
    MUST_FAIL(action_audit_list(&f->actions, &account, STR("tenant:default"), 0, 0, f->arena, &audits, &count, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(action_audit_refs(&f->actions, &account, f->arena, &refs, &count, &err), ERR_DENIED);
    MUST_FAIL(can_list(f, &account, account.tenant_id, &err), ERR_NOT_FOUND);
}

static void the_first_inbox_is_made_once(void **state)
{
    struct fixture *f = *state;
    struct secret key, token, other;
    struct mail_caller by_key, by_token;
    struct inbox_info *list;
    size_t count;

    mail_key_text(false, &key);
    mail_key_text(true, &token);
    mail_key_text(false, &other);
    MUST(action_mail_first(&f->actions, &key, &token, f->arena, &err));
    MUST(action_mail_first(&f->actions, &key, &token, f->arena, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&key), &by_key, &err));
    MUST(mail_caller_by_key(&f->actions, secret_reveal(&token), &by_token, &err));
    MUST(can_list(f, &by_key, "", &err));
    MUST(can_list(f, &by_token, "", &err));
    MUST(action_inbox_list(&f->actions, &f->operator_, f->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(list[0].address, STR("agent@mail.test"));
    /* The key was lost, and the server has made a new one. */
    MUST(action_mail_first(&f->actions, &other, &token, f->arena, &err));
    MUST(action_inbox_list(&f->actions, &f->operator_, f->arena, &list, &count, &err));
    assert_int_equal(count, 2);
}

/* ---- sandboxes ---- */

static void start_sandbox(struct fixture *f, const char *inbox, struct sandbox_info *out)
{
    struct pair metadata = { STR("mail.inbox"), str_from(inbox) };
    struct sandbox_want want = f->rig.want;

    want.team_id = store_team_default(f->rig.disk.store);
    if (inbox) {
        want.metadata = &metadata;
        want.metadata_count = 1;
    }
    MUST(sandbox_create(f->rig.all, &want, f->arena, out, &err));
}

static void a_sandbox_gets_its_own_inbox_at_first_use(void **state)
{
    struct fixture *f = *state;
    struct mail_caller first, again, other;
    struct sandbox_info one, two;
    struct made alice, foreign;

    make_inbox(f, "alice", "", &alice);
    make_inbox(f, "foreign", "blue", &foreign);
    start_sandbox(f, NULL, &one);
    start_sandbox(f, NULL, &two);
    MUST(mail_caller_by_sandbox(&f->actions, one.id, STR(""), &first, &err));
    MUST(mail_caller_by_sandbox(&f->actions, one.id, STR("mm_live_nonsense"), &again, &err));
    MUST(mail_caller_by_sandbox(&f->actions, two.id, STR(""), &other, &err));
    assert_int_equal(first.kind, MAIL_CALLER_SANDBOX);
    assert_false(mail_is_keyless(&first));
    assert_string_equal(first.inbox_id, again.inbox_id);
    assert_string_not_equal(first.inbox_id, other.inbox_id);
    assert_int_equal(first.scopes, MAIL_SCOPE_READ | MAIL_SCOPE_SEND);
    MUST(can_list(f, &again, "", &err));
    MUST_FAIL(can_list(f, &again, other.inbox_id, &err), ERR_NOT_FOUND);
    MUST_FAIL(can_list(f, &again, alice.info.id, &err), ERR_NOT_FOUND);
    struct made made;
    MUST_FAIL(create_by(f, &first, "more", &made, &err), ERR_DENIED);

    /* A key of the same tenant is honoured for what it is a key of, and no other. */
    MUST(mail_caller_by_sandbox(&f->actions, one.id, secret_reveal(&alice.key), &again, &err));
    assert_int_equal(again.kind, MAIL_CALLER_SANDBOX);
    assert_string_equal(again.inbox_id, alice.info.id);
    MUST(can_list(f, &again, alice.info.id, &err));
    MUST_FAIL(can_list(f, &again, first.inbox_id, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, one.id, secret_reveal(&foreign.key), &again, &err), ERR_DENIED);
    struct mail_key_want want = { .name = STR("k"), .scopes = MAIL_SCOPE_OVERSIGHT };
    struct mail_key_info info;
    struct secret text;
    bool pending;
    MUST(action_mail_key_create(&f->actions, &f->operator_, &want, f->arena, &info, &text, &pending, &err));
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, one.id, secret_reveal(&text), &again, &err), ERR_DENIED);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, STR("inobody"), STR(""), &again, &err), ERR_DENIED);
}

struct first_use {
    struct fixture *f;
    struct str sandbox_id;
    char inbox_id[MAIL_INBOX_ID_BYTES];
};

static void *first_use_run(void *argument)
{
    struct first_use *use = argument;
    struct mail_caller caller;
    struct err err;

    if (mail_caller_by_sandbox(&use->f->actions, use->sandbox_id, STR(""), &caller, &err))
        memcpy(use->inbox_id, caller.inbox_id, sizeof use->inbox_id);
    else
        print_error("%s\n", err_text(&err));
    return NULL;
}

static void two_first_uses_at_once_make_one_inbox(void **state)
{
    struct fixture *f = *state;
    struct first_use uses[4];
    pthread_t threads[4];
    struct sandbox_info one;

    start_sandbox(f, NULL, &one);
    for (int i = 0; i < 4; i++) {
        uses[i] = (struct first_use){ .f = f, .sandbox_id = one.id };
        assert_int_equal(pthread_create(&threads[i], NULL, first_use_run, &uses[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(mail_inbox_id_valid(str_from(uses[0].inbox_id)));
    for (int i = 1; i < 4; i++)
        assert_string_equal(uses[0].inbox_id, uses[i].inbox_id);
    assert_int_equal(f->events, 1);
}

static void metadata_names_the_sandboxs_inbox(void **state)
{
    struct fixture *f = *state;
    struct made alice, bob, foreign;
    struct mail_caller caller, account;
    struct sandbox_info by_address, by_id, by_foreign, by_nothing;
    struct mail_box box;
    struct made made;

    make_inbox(f, "alice", "", &alice);
    make_inbox(f, "bobby", "", &bob);
    make_inbox(f, "foreign", "blue", &foreign);
    start_sandbox(f, "Alice@mail.test", &by_address);
    start_sandbox(f, alice.info.id, &by_id);
    start_sandbox(f, foreign.info.id, &by_foreign);
    start_sandbox(f, "nobody@mail.test", &by_nothing);
    MUST(mail_caller_by_sandbox(&f->actions, by_address.id, STR(""), &caller, &err));
    assert_string_equal(caller.inbox_id, alice.info.id);
    assert_int_equal(caller.scopes, MAIL_SCOPE_SEND);
    assert_true(mail_is_keyless(&caller));
    MUST(mail_box_for(&f->actions, &caller, STR(""), MAIL_USE_SEND, f->arena, &box, &err));
    assert_false(box.can_read);
    MUST_FAIL(can_list(f, &caller, "", &err), ERR_DENIED);
    caller.scopes |= MAIL_SCOPE_READ;
    MUST_FAIL(can_list(f, &caller, "", &err), ERR_DENIED);
    MUST(mail_caller_by_sandbox(&f->actions, by_id.id, secret_reveal(&alice.key), &caller, &err));
    assert_false(mail_is_keyless(&caller));
    MUST(can_list(f, &caller, "", &err));
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, by_id.id, secret_reveal(&bob.key), &caller, &err), ERR_DENIED);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, by_foreign.id, STR(""), &caller, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, by_foreign.id, secret_reveal(&foreign.key), &caller, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, by_nothing.id, STR(""), &caller, &err), ERR_NOT_FOUND);

    /* An account's token: only the inbox that is named. */
    make_account(f, "192.0.2.1", &account);
    MUST(create_by(f, &account, "one", &made, &err));
    struct sandbox_info by_account;
    start_sandbox(f, made.info.id, &by_account);
    MUST(mail_caller_by_sandbox(&f->actions, by_account.id, secret_reveal(&account.credential), &caller, &err));
    assert_string_equal(caller.inbox_id, made.info.id);
    assert_string_equal(caller.account_id, "");
    MUST(can_list(f, &caller, "", &err));
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, by_id.id, secret_reveal(&account.credential), &caller, &err),
              ERR_DENIED);
}

/* Its row is gone when this returns; no other is waited for. */
static void end_sandbox(struct fixture *f, struct str id)
{
    MUST(sandbox_kill(f->rig.all, store_team_default(f->rig.disk.store), id, "test", &err));
}

/* The token that the sandbox gets, and what it may do with it. */
static void sign_up(struct fixture *f, struct str sandbox_id, struct mail_account *account, struct secret *token,
                    struct mail_caller *out)
{
    struct str place = arena_format(f->arena, "sandbox:%.*s", STR_ARG(sandbox_id));
    uint32_t retry_s;

    MUST(action_account_create(&f->actions, place, f->arena, account, token, &retry_s, &err));
    MUST(mail_caller_by_sandbox(&f->actions, sandbox_id, secret_reveal(token), out, &err));
}

static void a_sandbox_signs_up_as_its_own_inbox(void **state)
{
    struct fixture *f = *state;
    struct mail_account account, again, shown;
    struct mail_caller caller, plain, other;
    struct sandbox_info one, two, bound;
    struct secret token, same, third;
    struct inbox_info *list;
    struct made alice, made;
    uint32_t retry_s;
    size_t count;

    make_inbox(f, "alice", "", &alice);
    start_sandbox(f, NULL, &one);
    start_sandbox(f, NULL, &two);
    start_sandbox(f, alice.info.id, &bound);
    f->setup.signups_per_hour = 0; /* for the network */
    f->setup.strict_inbox_keys = true;
    MUST(mail_caller_by_sandbox(&f->actions, one.id, STR(""), &plain, &err));
    for (int i = 0; i < 5; i++)
        sign_up(f, one.id, &account, &token, &caller);
    assert_string_equal(account.id, plain.inbox_id);
    assert_string_equal(caller.inbox_id, plain.inbox_id);
    assert_string_equal(caller.account_id, plain.inbox_id);
    assert_true(caller.is_lobster && token.len == strlen("lm_sk_live_") + 43);
    assert_int_equal(f->events, 2); /* alice's inbox, and that of the sandbox */
    assert_int_equal(temp_store_ask(&f->rig.disk, "SELECT COUNT(*) FROM mail_accounts"), 0);
    sign_up(f, one.id, &again, &same, &caller);
    assert_true(secret_eq(&token, secret_reveal(&same)));

    /* It makes inboxes, and reads them without another key. */
    MUST(create_by(f, &caller, "more.of.it", &made, &err));
    MUST(can_list(f, &caller, made.info.id, &err));
    MUST(can_list(f, &caller, "", &err));
    MUST(action_inbox_list(&f->actions, &caller, f->arena, &list, &count, &err));
    assert_int_equal(count, 2);
    MUST(action_account_get(&f->actions, &caller, f->arena, &shown, &err));
    assert_int_equal(shown.inbox_count, 2);
    assert_int_equal(shown.inbox_most, 1 + LIMIT_MAIL_SANDBOX_MORE);
    MUST_FAIL(action_inbox_delete(&f->actions, &caller, str_from(caller.inbox_id), f->arena, &err), ERR_DENIED);
    MUST_FAIL(can_list(f, &plain, made.info.id, &err), ERR_NOT_FOUND);

    /* The token is nothing outside, and in another sandbox: a copy has the same memory. */
    MUST_FAIL(mail_caller_by_key(&f->actions, secret_reveal(&token), &other, &err), ERR_DENIED);
    MUST(mail_caller_by_sandbox(&f->actions, two.id, secret_reveal(&token), &other, &err));
    assert_string_not_equal(other.inbox_id, caller.inbox_id);
    assert_string_equal(other.account_id, "");
    MUST_FAIL(can_list(f, &other, made.info.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(create_by(f, &other, "", &made, &err), ERR_DENIED);

    /* Nor has one an account that is bound to an inbox, or that has ended. */
    MUST_FAIL(action_account_create(&f->actions, arena_format(f->arena, "sandbox:%.*s", STR_ARG(bound.id)), f->arena,
                                    &shown, &third, &retry_s, &err),
              ERR_DENIED);
    MUST_FAIL(action_account_create(&f->actions, STR("sandbox:inobody"), f->arena, &shown, &third, &retry_s, &err),
              ERR_DENIED);
}

/* Deleting one makes no room: the file stays for a week. */
static void a_sandbox_makes_a_bounded_number_of_inboxes(void **state)
{
    struct fixture *f = *state;
    struct mail_account account;
    struct mail_caller caller;
    struct sandbox_info one;
    struct secret token;
    struct made made;

    start_sandbox(f, NULL, &one);
    sign_up(f, one.id, &account, &token, &caller);
    for (int i = 0; i < LIMIT_MAIL_SANDBOX_MORE; i++) {
        MUST(create_by(f, &caller, "", &made, &err));
        if (i % 2)
            MUST(action_inbox_delete(&f->actions, &caller, str_from(made.info.id), f->arena, &err));
    }
    MUST_FAIL(create_by(f, &caller, "", &made, &err), ERR_LIMIT);
    MUST_FAIL(store_mail_inbox_add(f->rig.disk.store,
                                   &(struct mail_inbox_row){ .id = STR("01JMXK9F2A0000000000000001"),
                                                             .tenant_id = str_from(caller.tenant_id),
                                                             .account_id = str_from(caller.account_id) },
                                   &(struct mail_inbox_most){ .account = LIMIT_MAIL_SANDBOX_MORE, .of_sandbox = true },
                                   &(struct mail_key_row){ 0 }, NULL, &err),
              ERR_LIMIT);
}

static size_t directories(struct fixture *f)
{
    size_t count = 0;
    DIR *dir = opendir(f->starter.dir);

    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += mail_inbox_id_valid(str_from(entry->d_name));
    closedir(dir);
    return count;
}

static int64_t mail_rows(struct fixture *f)
{
    return temp_store_ask(&f->rig.disk, "SELECT (SELECT COUNT(*) FROM mail_inboxes) + (SELECT COUNT(*) FROM mail_keys) "
                                        "+ (SELECT COUNT(*) FROM mail_accounts) + (SELECT COUNT(*) FROM mail_codes) + "
                                        "(SELECT COUNT(*) FROM mail_sandboxes) + (SELECT COUNT(*) FROM mail_grants) + "
                                        "(SELECT COUNT(*) FROM mail_rates)");
}

static void what_a_sandbox_has_made_is_gone_with_it(void **state)
{
    struct fixture *f = *state;
    struct mail_account account;
    struct mail_caller caller, by_key;
    struct sandbox_info one, two;
    struct made alice, more[3];
    struct secret token;

    make_inbox(f, "alice", "", &alice);
    size_t had_directories = directories(f);
    int64_t had_rows = mail_rows(f);
    start_sandbox(f, NULL, &one);
    sign_up(f, one.id, &account, &token, &caller);
    for (int i = 0; i < 3; i++)
        MUST(create_by(f, &caller, "", &more[i], &err));
    MUST(action_inbox_delete(&f->actions, &caller, str_from(more[2].info.id), f->arena, &err));
    /* A code that the operator could give, and something that is held. */
    MUST(action_inbox_request_mode(&f->actions, &caller, str_from(more[0].info.id), MAIL_AUTONOMOUS, f->arena, &err));
    MUST(store_mail_inbox_idle(f->rig.disk.store, str_from(more[1].info.id), 7, 9, 0, &err));
    start_sandbox(f, NULL, &two);
    MUST(mail_caller_by_sandbox(&f->actions, two.id, STR(""), &by_key, &err));
    action_mail_ended(&f->actions);
    assert_int_equal(directories(f), had_directories + 5);

    end_sandbox(f, one.id);
    /* In front's absence, too: nothing but the store and the directories is looked at. */
    mail_busy_free(f->setup.busy);
    f->setup.busy = mail_busy_new();
    (void)action_mail_tick(&f->actions, clock_wall_us()); /* quiet since the crash */
    MUST(store_mail_inbox_idle(f->rig.disk.store, str_from(caller.inbox_id), 0, 0, 0, &err));
    action_mail_ended(&f->actions);
    assert_int_equal(directories(f), had_directories + 1);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, one.id, secret_reveal(&token), &caller, &err), ERR_DENIED);
    end_sandbox(f, two.id);
    action_mail_ended(&f->actions);
    assert_int_equal(directories(f), had_directories);
    assert_int_equal(mail_rows(f), had_rows);
    MUST(can_list(f, &alice.caller, "", &err));
}

/* A request of the sandbox may still be under way when it ends. */
static void an_inbox_is_not_made_for_a_sandbox_that_has_ended(void **state)
{
    struct fixture *f = *state;
    struct mail_account account;
    struct mail_caller caller;
    struct sandbox_info one;
    struct secret token;
    struct made made;

    start_sandbox(f, NULL, &one);
    size_t had = directories(f);
    sign_up(f, one.id, &account, &token, &caller);
    end_sandbox(f, one.id);
    action_mail_ended(&f->actions);
    MUST_FAIL(create_by(f, &caller, "", &made, &err), ERR_DENIED);
    action_mail_ended(&f->actions);
    assert_int_equal(directories(f), had + 1); /* of the tenant's audit */
}

/* The audit says who let what leave: it outlives the sandbox. */
static void an_inbox_that_something_has_left_keeps_its_audit(void **state)
{
    struct fixture *f = *state;
    const uint64_t week_ms = UINT64_C(7) * 86400 * 1000;
    struct mail_account account;
    struct mail_caller caller;
    struct sandbox_info one;
    struct inbox_info info;
    struct secret token;
    struct made made;

    rig_stand();
    start_sandbox(f, NULL, &one);
    sign_up(f, one.id, &account, &token, &caller);
    MUST(create_by(f, &caller, "", &made, &err));
    MUST(mail_audit_add(f->setup.mail, made.info.id, STR("message.approve"), STR("x"), STR("operator"), STR("{}"),
                        &err));
    end_sandbox(f, one.id);
    action_mail_ended(&f->actions);
    action_mail_ended(&f->actions);
    assert_true(has_directory(f, made.info.id));
    assert_int_equal(temp_store_ask(&f->rig.disk, "SELECT COUNT(*) FROM mail_keys WHERE revoked_us = 0"), 0);
    MUST(store_mail_inbox_idle(f->rig.disk.store, str_from(made.info.id), 0, 0, 0, &err));
    rig_turn(&f->rig, week_ms + 1000);
    action_mail_sweep(&f->actions, clock_wall_us());
    MUST_FAIL(action_inbox_get(&f->actions, &f->operator_, str_from(made.info.id), f->arena, &info, &err),
              ERR_NOT_FOUND);
    assert_true(has_audit(f, made.info.id, "inbox.shred") && has_audit(f, made.info.id, "message.approve"));
}

/* What it has sent may still be decided about: a sandbox seldom lives as long as a person takes. */
static void the_own_inbox_of_a_sandbox_stays_while_something_is_held(void **state)
{
    struct fixture *f = *state;
    struct mail_caller caller, again;
    struct sandbox_info one;
    struct inbox_info info;

    start_sandbox(f, NULL, &one);
    MUST(mail_caller_by_sandbox(&f->actions, one.id, STR(""), &caller, &err));
    struct str id = str_from(caller.inbox_id);
    MUST(store_mail_inbox_idle(f->rig.disk.store, id, 0, 1, 0, &err)); /* something is held */
    end_sandbox(f, one.id);
    action_mail_ended(&f->actions);
    MUST(action_inbox_get(&f->actions, &f->operator_, id, f->arena, &info, &err));
    MUST_FAIL(mail_caller_by_key(&f->actions, secret_reveal(&caller.credential), &again, &err), ERR_DENIED);
    assert_int_equal(temp_store_ask(&f->rig.disk, "SELECT COUNT(*) FROM mail_sandboxes"), 0);
    MUST(store_mail_inbox_idle(f->rig.disk.store, id, 0, 0, 0, &err));
    action_mail_ended(&f->actions);
    MUST_FAIL(action_inbox_get(&f->actions, &f->operator_, id, f->arena, &info, &err), ERR_NOT_FOUND);
    assert_false(has_directory(f, caller.inbox_id));
}

/* ---- room ---- */

static void set_bytes(struct fixture *f, const struct made *made, uint64_t bytes)
{
    MUST(store_mail_inbox_idle(f->rig.disk.store, str_from(made->info.id), 0, 0, bytes, &err));
}

static void mail_takes_a_bounded_part_of_the_disk(void **state)
{
    enum { MIB = 1 << 20 };
    struct fixture *f = *state;
    struct made alice, blue, more;
    struct mail_caller account;
    uint32_t retry_s;
    struct str to = STR("x@y.example");
    struct send_want want = { .to_count = 1, .to = &to, .text = STR("x") };
    struct sent_info sent;

    make_inbox(f, "alice", "", &alice);
    make_inbox(f, "blue", "blue", &blue);
    make_account(f, "192.0.2.1", &account);
    f->setup.disk_bytes = 2 * MIB;
    set_bytes(f, &alice, MIB); /* half of it */
    MUST_FAIL(create_by(f, &account, "", &more, &err), ERR_LIMIT);
    MUST_FAIL(create_by(f, &f->operator_, "", &more, &err), ERR_LIMIT);
    MUST_FAIL(action_send(&f->actions, &alice.caller, &want, f->arena, &sent, &retry_s, &err), ERR_LIMIT);
    assert_true(retry_s > 0);
    MUST_FAIL(action_send(&f->actions, &blue.caller, &want, f->arena, &sent, &retry_s, &err), ERR_UNAVAILABLE);
    make_inbox(f, "other.blue", "blue", &more); /* the other tenant has room */
    set_bytes(f, &blue, MIB - 2 * 163840);
    MUST_FAIL(action_send(&f->actions, &more.caller, &want, f->arena, &sent, &retry_s, &err), ERR_UNAVAILABLE);
    set_bytes(f, &blue, MIB);
    set_bytes(f, &alice, MIB);
    MUST_FAIL(action_send(&f->actions, &more.caller, &want, f->arena, &sent, &retry_s, &err), ERR_LIMIT);
    set_bytes(f, &alice, 163840);
    MUST(create_by(f, &account, "", &more, &err));
}

static void a_team_and_the_server_have_a_bounded_number_of_inboxes(void **state)
{
    struct fixture *f = *state;
    struct mail_caller account, caller;
    struct sandbox_info one;
    struct made alice, made;

    make_inbox(f, "alice", "", &alice);
    make_account(f, "192.0.2.1", &account);
    start_sandbox(f, NULL, &one);
    temp_store_by_hand(
        &f->rig.disk,
        arena_text(f->arena,
                   arena_format(f->arena,
                                "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
                                "INSERT INTO mail_inboxes (id, handle, tenant_id, account_id, address_hash, "
                                "profile, public_key, mode, created_us, deleted_us, bytes) SELECT 'x' || i, "
                                "'h' || i, tenant_id, '', 'a' || i, '', '', 0, 1, 1, 1 FROM n, mail_inboxes",
                                LIMIT_MAIL_TENANT_INBOXES)));
    MUST_FAIL(create_by(f, &account, "", &made, &err), ERR_LIMIT);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, one.id, STR(""), &caller, &err), ERR_LIMIT);
    make_inbox(f, "by.the.operator", "", &made);
    make_inbox(f, "blue", "blue", &made);
}

/* ---- the end ---- */

static void a_deleted_inbox_is_shut_at_once_and_shredded_in_a_week(void **state)
{
    struct fixture *f = *state;
    struct mail_caller again;
    struct mail_box box;
    struct made alice;
    uint64_t rows;

    rig_stand();
    make_inbox(f, "alice", "", &alice);
    struct str id = str_from(alice.info.id);
    MUST(action_inbox_delete(&f->actions, &alice.caller, STR(""), f->arena, &err));
    MUST_FAIL(mail_caller_by_key(&f->actions, secret_reveal(&alice.key), &again, &err), ERR_DENIED);
    MUST_FAIL(can_list(f, &alice.caller, alice.info.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_box_by_id(&f->actions, id, f->arena, &box, &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_box_by_address(&f->actions, STR("alice@mail.test"), f->arena, &box, &err), ERR_NOT_FOUND);
    MUST_FAIL(action_inbox_delete(&f->actions, &f->operator_, id, f->arena, &err), ERR_NOT_FOUND);
    rig_turn(&f->rig, UINT64_C(6) * 86400 * 1000);
    action_mail_sweep(&f->actions, clock_wall_us());
    assert_false(has_audit(f, alice.info.id, "inbox.shred"));
    rig_turn(&f->rig, UINT64_C(25) * 3600 * 1000);
    action_mail_sweep(&f->actions, clock_wall_us());
    assert_true(has_audit(f, alice.info.id, "inbox.delete") && has_audit(f, alice.info.id, "inbox.shred"));
    MUST(action_audit_verify(&f->actions, &f->operator_, id, f->arena, &rows, &err));
    assert_true(rows >= 3);
    assert_int_equal(temp_store_ask(&f->rig.disk, "SELECT COUNT(*) FROM mail_inboxes WHERE profile <> ''"), 0);
}

static void overwrite_file(struct fixture *f, const char *inbox_id)
{
    char path[128], noise[8192];

    memset(noise, 'x', sizeof noise);
    mail_free(f->setup.mail);
    f->setup.mail = starter_mail(&f->starter);
    /* Its worker ends now, and removes the journal last. */
    snprintf(path, sizeof path, "%s/%s/inbox.db-wal", f->starter.dir, inbox_id);
    for (int i = 0; i < 10000 && access(path, F_OK) == 0; i++)
        usleep(1000);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/%s/inbox.db", f->starter.dir, inbox_id);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, noise, sizeof noise, 0), sizeof noise);
    close(fd);
}

static void a_damaged_file_is_tried_to_be_shredded_for_a_day_and_no_longer(void **state)
{
    struct fixture *f = *state;
    struct mail_inbox_row row;
    struct made alice, bob;

    rig_stand();
    make_inbox(f, "alice", "", &alice);
    make_inbox(f, "bobby", "", &bob);
    for (const struct made *made = &alice; made; made = made == &alice ? &bob : NULL)
        MUST(action_inbox_delete(&f->actions, &f->operator_, str_from(made->info.id), f->arena, &err));
    overwrite_file(f, alice.info.id);
    rig_turn(&f->rig, UINT64_C(8) * 86400 * 1000);
    for (uint32_t i = 1; i <= LIMIT_MAIL_SHRED_TRIES + 2; i++) {
        action_mail_sweep(&f->actions, clock_wall_us());
        MUST(store_mail_inbox_get(f->rig.disk.store, str_from(alice.info.id), f->arena, &row, &err));
        assert_int_equal(row.shred_tries, MIN(i, (uint32_t)LIMIT_MAIL_SHRED_TRIES));
        assert_int_equal(row.shredded_us, 0);
    }
    MUST(store_mail_inbox_get(f->rig.disk.store, str_from(bob.info.id), f->arena, &row, &err));
    assert_true(row.shredded_us > 0 && row.shred_tries == 0);
    assert_true(has_directory(f, alice.info.id));
}

/* ---- webhooks ---- */

static void webhooks_need_a_code_unless_an_account_asks_from_outside(void **state)
{
    struct fixture *f = *state;
    const struct str events[] = { STR("message.received") };
    static const char *const bad[] = { "http://example.com/",   "https://", "https://u:p@example.com/", "ftp://x",
                                       "https://exa mple.com/", "" };
    struct webhook_want want = { .url = STR("https://example.com/hook"), .events = events, .event_count = 1 };
    struct mail_webhook webhook, *list;
    struct mail_caller account, inside;
    struct made alice, one, two;
    size_t count;
    bool pending;

    make_inbox(f, "alice", "", &alice);
    MUST(action_webhook_add(&f->actions, &alice.caller, &want, f->arena, &webhook, &pending, &err));
    assert_true(pending);
    want.approval_code = the_code(f);
    MUST(action_webhook_add(&f->actions, &alice.caller, &want, f->arena, &webhook, &pending, &err));
    assert_false(pending);
    assert_true(str_starts(webhook.secret, STR("whsec_")));
    MUST(action_webhook_list(&f->actions, &alice.caller, f->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        want.url = str_from(bad[i]);
        MUST_FAIL(action_webhook_add(&f->actions, &alice.caller, &want, f->arena, &webhook, &pending, &err),
                  ERR_INVALID);
    }
    const struct str twice[] = { STR("message.received"), STR("message.sent"), STR("message.received") };
    want = (struct webhook_want){ .url = STR("https://example.com/hook"), .events = twice, .event_count = 3 };
    MUST_FAIL(action_webhook_add(&f->actions, &alice.caller, &want, f->arena, &webhook, &pending, &err), ERR_INVALID);

    /* An account's: in all of its inboxes, listed and removed as one. */
    want = (struct webhook_want){ .url = STR("https://example.com/all"), .events = events, .event_count = 1 };
    make_account(f, "192.0.2.1", &account);
    MUST_FAIL(action_webhook_add(&f->actions, &account, &want, f->arena, &webhook, &pending, &err), ERR_NOT_FOUND);
    MUST(create_by(f, &account, "one", &one, &err));
    MUST(create_by(f, &account, "two", &two, &err));
    MUST(action_webhook_add(&f->actions, &account, &want, f->arena, &webhook, &pending, &err));
    assert_false(pending);
    MUST(action_webhook_list(&f->actions, &account, f->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    MUST(action_webhook_list(&f->actions, &two.caller, f->arena, &list, &count, &err));
    assert_int_equal(count, 1);
    MUST(action_webhook_enable(&f->actions, &account, str_from(webhook.id), f->arena, &err));
    MUST_FAIL(action_webhook_remove(&f->actions, &alice.caller, str_from(webhook.id), f->arena, &err), ERR_NOT_FOUND);
    MUST(action_webhook_remove(&f->actions, &account, str_from(webhook.id), f->arena, &err));
    MUST(action_webhook_list(&f->actions, &two.caller, f->arena, &list, &count, &err));
    assert_int_equal(count, 0);
    MUST_FAIL(action_webhook_remove(&f->actions, &account, str_from(webhook.id), f->arena, &err), ERR_NOT_FOUND);

    /* From inside a sandbox it would be a way around the sandbox's network rules. */
    struct sandbox_info sandbox;
    start_sandbox(f, NULL, &sandbox);
    MUST(mail_caller_by_sandbox(&f->actions, sandbox.id, secret_reveal(&account.credential), &inside, &err));
    MUST(action_webhook_add(&f->actions, &inside, &want, f->arena, &webhook, &pending, &err));
    assert_true(pending);
}

static void without_mail_everything_says_so(void **state)
{
    struct fixture *f = *state;
    struct mail_caller caller;
    struct inbox_info *list;
    size_t count;

    f->actions.mail = NULL;
    MUST_FAIL(mail_caller_by_key(&f->actions, STR("mm_live_x"), &caller, &err), ERR_UNAVAILABLE);
    MUST_FAIL(mail_caller_by_admin(&f->actions, ADMIN, &caller, &err), ERR_UNAVAILABLE);
    MUST_FAIL(mail_caller_by_sandbox(&f->actions, STR("i"), STR(""), &caller, &err), ERR_UNAVAILABLE);
    MUST_FAIL(action_inbox_list(&f->actions, &f->operator_, f->arena, &list, &count, &err), ERR_UNAVAILABLE);
    action_mail_sweep(&f->actions, 0);
}

#define DESK_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    static const struct CMUnitTest cases[] = {
        DESK_CASE(an_inbox_is_made_with_its_key_and_found_by_id_and_address),
        DESK_CASE(an_address_is_given_once_and_dots_do_not_count),
        DESK_CASE(the_store_shows_no_name_address_or_key),
        DESK_CASE(settings_of_an_inbox_are_its_own_administrators),
        DESK_CASE(what_belongs_to_others_looks_like_what_does_not_exist),
        DESK_CASE(a_row_that_cannot_be_read_leaves_the_others_in_the_list),
        DESK_CASE(the_operator_reads_and_sends_nothing),
        DESK_CASE(the_name_of_a_key_does_not_look_like_its_scopes),
        DESK_CASE(a_key_is_made_with_the_operators_code_and_revoked_at_once),
        DESK_CASE(a_key_never_sends_and_approves),
        DESK_CASE(what_a_crash_left_of_an_inbox_is_removed_and_nothing_that_has_a_row),
        DESK_CASE(inboxes_that_have_a_row_do_not_delay_the_removal_of_what_a_crash_left),
        DESK_CASE(a_mistyped_tenant_is_not_made_by_a_key),
        DESK_CASE(an_inbox_says_that_its_tenant_is_new),
        DESK_CASE(approvers_open_their_own_tenants_key_only),
        DESK_CASE(a_new_admin_token_gets_the_approvers_key_from_an_oversight_key),
        DESK_CASE(a_mode_goes_down_freely_and_up_with_a_code),
        DESK_CASE(a_code_has_five_tries_and_a_day),
        DESK_CASE(a_code_is_for_one_request_of_one_key),
        DESK_CASE(of_two_uses_of_a_code_one_wins),
        DESK_CASE(a_grant_waits_for_the_inboxs_own_key_and_ends_at_once),
        DESK_CASE(an_account_reaches_what_it_has_made),
        DESK_CASE(with_strict_inbox_keys_an_account_only_provisions),
        DESK_CASE(sign_ups_are_limited_by_place),
        DESK_CASE(refused_sign_ups_do_not_shut_out_others),
        DESK_CASE(a_multimail_key_creates_a_mailbox_with_a_code_and_reaches_it),
        DESK_CASE(copies_go_to_an_address_outside_of_this_server),
        DESK_CASE(what_concerns_no_inbox_is_in_the_tenants_audit),
        DESK_CASE(the_first_inbox_is_made_once),
        DESK_CASE(a_sandbox_gets_its_own_inbox_at_first_use),
        DESK_CASE(two_first_uses_at_once_make_one_inbox),
        DESK_CASE(metadata_names_the_sandboxs_inbox),
        DESK_CASE(a_sandbox_signs_up_as_its_own_inbox),
        DESK_CASE(a_sandbox_makes_a_bounded_number_of_inboxes),
        DESK_CASE(what_a_sandbox_has_made_is_gone_with_it),
        DESK_CASE(an_inbox_is_not_made_for_a_sandbox_that_has_ended),
        DESK_CASE(an_inbox_that_something_has_left_keeps_its_audit),
        DESK_CASE(the_own_inbox_of_a_sandbox_stays_while_something_is_held),
        DESK_CASE(mail_takes_a_bounded_part_of_the_disk),
        DESK_CASE(a_team_and_the_server_have_a_bounded_number_of_inboxes),
        DESK_CASE(a_deleted_inbox_is_shut_at_once_and_shredded_in_a_week),
        DESK_CASE(a_damaged_file_is_tried_to_be_shredded_for_a_day_and_no_longer),
        DESK_CASE(webhooks_need_a_code_unless_an_account_asks_from_outside),
        DESK_CASE(without_mail_everything_says_so),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
