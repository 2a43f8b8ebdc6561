/*
 * How it works: mail/ asks keeper for a worker of an inbox, and the composer and webhooks for a child, each by a request that a
 * worker of front waits for. About once a second a job lets messages leave whose time has come, and closes connections to
 * idle inboxes. While it waits for an inbox that is stuck, the next second begins another job, which goes on with the others.
 * What happens to messages is told from any thread: each event is posted to the loop.
 *
 * An inbox is made before its row is written, so a crash in between leaves a directory that nobody knows. Those that are there
 * at the start, before the first request, are looked up a few at a time by the same job. So are inboxes whose sandboxes have
 * ended, which are removed.
 */
#include "daemon/front_mail.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/inboxes.h"
#include "mail/seal.h"

enum { TICK_MS = 1000 };
#define SWEEP_US (3600 * INT64_C(1000000))

struct ticker {
    struct job job;
    struct front_mail *mail;
    bool is_running;
    bool sweeps;     /* calls action_mail_sweep() too */
    int64_t next_us; /* when action_mail_tick() wants to be called again */
};

struct front_mail {
    struct front_mail_config config;
    struct mail_setup setup;
    struct timer timer;
    struct ticker tickers[LIMIT_MAIL_SWEEPERS];
    int64_t swept_us; /* when action_mail_sweep() was called last */
    char (*listed)[MAIL_INBOX_ID_BYTES];
    struct mail_unmade unmade;
    bool is_stopping;
};

/* ---- connections; on a worker ---- */

static bool take_connection(struct channel *channel, enum message_type type, struct str payload, int *out_fd,
                            struct err *err)
{
    auto_answer struct channel_answer answer = { 0 };

    if (!channel_call(channel, type, payload, &answer, err))
        return false;
    if (answer.len || answer.fds.count != 1)
        return err_set(err, ERR_INTERNAL, "a reply to %s without a connection", message_type_name[type]);
    *out_fd = take_fd(&answer.fds.at[0]);
    return true;
}

static bool open_inbox(void *context, const char *inbox_id, bool make, int *out_fd, struct err *err)
{
    struct front_mail *mail = context;
    auto_buf struct buf payload = buf_make(NULL, 2 * MAIL_INBOX_ID_BYTES);

    inboxes_pack(&payload, inbox_id, make);
    return take_connection(mail->config.keeper, MESSAGE_INBOX, buf_str(&payload), out_fd, err);
}

static bool remove_inbox(void *context, const char *inbox_id, struct err *err)
{
    struct front_mail *mail = context;
    auto_buf struct buf payload = buf_make(NULL, 2 * MAIL_INBOX_ID_BYTES);
    auto_answer struct channel_answer answer = { 0 };

    pack_str(&payload, str_from(inbox_id));
    return channel_call(mail->config.keeper, MESSAGE_UNMAKE, buf_str(&payload), &answer, err);
}

static bool open_composer(void *context, int *out_fd, struct err *err)
{
    struct front_mail *mail = context;

    return take_connection(mail->config.composer, MESSAGE_COMPOSE, STR(""), out_fd, err);
}

static bool open_hook(void *context, int *out_fd, struct err *err)
{
    struct front_mail *mail = context;

    return take_connection(mail->config.webhooks, MESSAGE_HOOK, STR(""), out_fd, err);
}

/* ---- events ---- */

struct told {
    struct loop_task task;
    struct front_mail *mail;
    struct mail_event event;
};

static void tell(struct loop_task *task)
{
    auto_free struct told *told = container_of(task, struct told, task);
    const struct front_mail_config *config = &told->mail->config;

    if (!told->mail->is_stopping)
        config->heard(config->context, &told->event);
}

static void on_heard(void *context, const struct mail_event *event)
{
    struct front_mail *mail = context;
    struct told *told = NEW(struct told);

    *told = (struct told){ .task.fn = tell, .mail = mail, .event = *event };
    loop_post(mail->config.loop, &told->task);
}

static void on_held(void *context, const char *inbox_id, const char *message_id)
{
    struct mail_event event = { .kind = MAIL_EVENT_PENDING, .at_us = clock_wall_us() };

    memcpy(event.inbox_id, inbox_id, strnlen(inbox_id, sizeof event.inbox_id - 1));
    memcpy(event.message_id, message_id, strnlen(message_id, sizeof event.message_id - 1));
    on_heard(context, &event);
}

/* ---- time ---- */

static void on_timer(struct timer *timer);

static bool list_directories(struct front_mail *mail, struct err *err)
{
    char page[LIMIT_INBOXES_PAGE][MAIL_INBOX_ID_BYTES];
    char after[MAIL_INBOX_ID_BYTES] = "";
    uint32_t count;

    do {
        auto_buf struct buf payload = buf_make(NULL, 2 * MAIL_INBOX_ID_BYTES);
        auto_answer struct channel_answer answer = { 0 };
        pack_str(&payload, str_from(after));
        if (!channel_call(mail->config.keeper, MESSAGE_INBOXES, buf_str(&payload), &answer, err) ||
            !inboxes_page_unpack(str_of(answer.payload, answer.len), page, &count, err))
            return false;
        if (!count)
            break;
        mail->listed = mem_grow(mail->listed, (mail->unmade.count + count) * sizeof *mail->listed);
        memcpy(mail->listed + mail->unmade.count, page, count * sizeof *page);
        mail->unmade.count += count;
        memcpy(after, page[count - 1], sizeof after);
    } while (mail->unmade.count < LIMIT_INBOXES_LISTED);
    return true;
}

void front_mail_first(struct front_mail *mail)
{
    const struct mail_settings *settings = mail->config.settings;
    struct arena arena;
    struct err err;

    /* Before the first inbox is made, here or by a request: what is there now and has no row never gets one. */
    if (!list_directories(mail, &err))
        log_warn("mail: unused directories are not looked for: %s", err_text(&err));
    mail->unmade.ids = (const char(*)[MAIL_INBOX_ID_BYTES])mail->listed;
    arena_init(&arena);
    if (!action_mail_first(mail->config.actions, &settings->inbox_key, &settings->token, &arena, &err))
        log_error("the first inbox cannot be made, so the keys for mail that `cloister env` prints do not work: %s",
                  err_text(&err));
    arena_done(&arena);
}

/* A few at a time. */
static void look_up_unmade(struct front_mail *mail)
{
    if (mail->unmade.next < mail->unmade.count)
        action_mail_unmade(mail->config.actions, &mail->unmade);
    else
        free(take_ptr(&mail->listed));
}

static void job_run(struct job *job)
{
    struct ticker *ticker = container_of(job, struct ticker, job);
    struct front_mail *mail = ticker->mail;
    int64_t now_us = clock_wall_us();

    ticker->next_us = action_mail_tick(mail->config.actions, now_us);
    if (ticker->sweeps)
        action_mail_sweep(mail->config.actions, now_us);
    if (ticker == &mail->tickers[0]) {
        look_up_unmade(mail);
        action_mail_ended(mail->config.actions);
    }
    mail_close_idle(mail->setup.mail);
}

static void job_done(struct job *job)
{
    struct ticker *ticker = container_of(job, struct ticker, job);
    struct front_mail *mail = ticker->mail;
    int64_t wait_us = ticker->next_us - clock_wall_us();

    ticker->is_running = false;
    if (!mail->is_stopping)
        timer_set(&mail->timer, mail->config.loop, (uint64_t)MIN(MAX(wait_us, 0) / 1000, TICK_MS), on_timer);
}

static struct ticker *free_ticker(struct front_mail *mail)
{
    for (size_t i = 0; i < COUNT_OF(mail->tickers); i++)
        if (!mail->tickers[i].is_running)
            return &mail->tickers[i];
    return NULL;
}

static void on_timer(struct timer *timer)
{
    struct front_mail *mail = container_of(timer, struct front_mail, timer);

    struct ticker *ticker = free_ticker(mail);
    int64_t now_us = clock_wall_us();

    if (ticker) {
        *ticker = (struct ticker){ .job = { .run = job_run, .done = job_done },
                                   .mail = mail,
                                   .is_running = true,
                                   .sweeps = llabs(now_us - mail->swept_us) >= SWEEP_US }; /* the clock may go back */
        if (ticker->sweeps)
            mail->swept_us = now_us;
        workers_run(mail->config.workers, &ticker->job);
    }
    /* Never later than in TICK_MS: until then a message may have come that is due. */
    timer_set(timer, mail->config.loop, TICK_MS, on_timer);
}

void front_mail_begin(struct front_mail *mail)
{
    timer_set(&mail->timer, mail->config.loop, 0, on_timer);
}

void front_mail_stop(struct front_mail *mail)
{
    mail->is_stopping = true;
    timer_clear(&mail->timer);
}

/* ---- life ---- */

struct front_mail *front_mail_new(const struct front_mail_config *config, struct err *err)
{
    const struct mail_settings *settings = config->settings;

    if (!seal_begin(err))
        return NULL;
    struct front_mail *mail = NEW(struct front_mail);
    struct mail_config office = {
        .open_inbox = open_inbox,
        .remove_inbox = remove_inbox,
        .open_composer = open_composer,
        .open_hook = open_hook,
        .held = on_held,
        .context = mail,
    };
    struct str server_key = secret_reveal(&settings->server_key);
    mail->config = *config;
    seal_pair_of(server_key, "server", &office.server_public, &office.server_private);
    seal_derive(server_key, "server secret", &office.server_secret);
    mail->setup = (struct mail_setup){
        .mail = mail_new(&office),
        .busy = mail_busy_new(),
        .domain = settings->domain,
        .strict_inbox_keys = settings->strict_inbox_keys,
        .webhooks_http = settings->webhooks_http,
        .sends_per_minute = settings->sends_per_minute,
        .sends_per_day = settings->sends_per_day,
        .inboxes_most = settings->inboxes_most,
        .signups_per_hour = settings->signups_per_hour,
        .disk_bytes = (uint64_t)settings->disk_gb << 30,
        .heard = on_heard,
        .context = mail,
    };
    memcpy(mail->setup.operator_public, settings->operator_public.bytes, sizeof mail->setup.operator_public);
    memcpy(mail->setup.server_secret, office.server_secret.bytes, sizeof mail->setup.server_secret);
    explicit_bzero(&office, sizeof office);
    return mail;
}

void front_mail_free(struct front_mail *mail)
{
    if (!mail)
        return;
    timer_clear(&mail->timer);
    mail_busy_free(mail->setup.busy);
    mail_free(mail->setup.mail);
    explicit_bzero(&mail->setup, sizeof mail->setup);
    free(mail->listed);
    free(mail);
}

const struct mail_setup *front_mail_setup(const struct front_mail *mail)
{
    return &mail->setup;
}
