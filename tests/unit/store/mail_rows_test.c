#include "store/mail_rows.h"

#include <time.h>

#include "base/clock.h"
#include "base/limits.h"
#include "temp_store.h"

#define TENANT STR("01TENANT000000000000000000")
static const int64_t HOUR_US = INT64_C(3600) * 1000000;

/* Turned by the test; the store needs no loop. */
static int64_t ahead_us;

static uint64_t turned_mono_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000 + (uint64_t)ahead_us;
}

static int64_t turned_wall_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000 + ahead_us;
}

static int set_up(void **state)
{
    static const struct clock_source turned = { turned_mono_us, turned_wall_us };

    ahead_us = 0;
    clock_use(&turned);
    if (temp_store_set_up(state) != 0)
        return -1;
    struct temp_store *t = *state;
    struct mail_tenant_row row = { .id = TENANT,
                                   .name = STR("default"),
                                   .approver_public = STR("public"),
                                   .approver_sealed = STR("sealed"),
                                   .sealed_to = STR("to") },
                           out;
    MUST(store_mail_tenant_ensure(t->store, &row, &t->arena, &out, &err));
    return 0;
}

static int tear_down(void **state)
{
    int failed = temp_store_tear_down(state);

    clock_use(NULL);
    return failed;
}

static struct mail_key_row key_of(struct temp_store *t, const char *text, const char *id, const char *inbox_id)
{
    char *hash = arena_alloc(&t->arena, STORE_HASH_BYTES);

    store_secret_hash(str_from(text), hash);
    return (struct mail_key_row){ .id = str_from(id),
                                  .tenant_id = TENANT,
                                  .inbox_id = str_from(inbox_id),
                                  .name = STR("name"),
                                  .prefix = STR("mm_live_abcd"),
                                  .hash = str_from(hash),
                                  .scopes = 3,
                                  .is_own = true };
}

static void add_inbox(struct temp_store *t, const char *id, const char *address)
{
    struct mail_key_row key = key_of(t, id, id, id);
    struct mail_inbox_row row = { .id = str_from(id),
                                  .tenant_id = TENANT,
                                  .address_hash = str_from(address),
                                  .profile = STR("profile"),
                                  .public_key = STR("public"),
                                  .mode = 2 };

    MUST(store_mail_inbox_add(t->store, &row, &(struct mail_inbox_most){ 0 }, &key, NULL, &err));
}

static void a_tenant_is_made_once_and_keeps_its_bytes(void **state)
{
    struct temp_store *t = *state;
    struct mail_tenant_row other = { .id = STR("01OTHER"), .name = STR("default"), .approver_public = STR("x") }, out;

    MUST(store_mail_tenant_ensure(t->store, &other, &t->arena, &out, &err));
    CHECK_STR(out.id, TENANT);
    MUST(store_mail_tenant_reseal(t->store, TENANT, STR("new"), STR("key"), &err));
    MUST(store_mail_tenant_oversight(t->store, TENANT, str_of("\0\1\377", 3), &err));
    temp_store_reopen(t);
    MUST(store_mail_tenant_get(t->store, TENANT, STR(""), &t->arena, &out, &err));
    CHECK_STR(out.approver_sealed, STR("new"));
    CHECK_STR(out.sealed_to, STR("key"));
    CHECK_STR(out.oversight, str_of("\0\1\377", 3));
    MUST_FAIL(store_mail_tenant_get(t->store, STR(""), STR("nobody"), &t->arena, &out, &err), ERR_NOT_FOUND);
}

static void a_key_is_found_without_a_query_until_it_changes(void **state)
{
    struct temp_store *t = *state;
    struct mail_key_owner owner;
    struct mail_key_row row;

    add_inbox(t, "01INBOX0000000000000000000", "hash");
    MUST_FAIL(store_mail_key_find(t->store, STR("nonsense"), &owner, &err), ERR_DENIED);
    MUST(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err));
    assert_string_equal(owner.inbox_id, "01INBOX0000000000000000000");
    assert_string_equal(owner.account_id, "");
    assert_int_equal(owner.scopes, 3);
    /* From the cache: what somebody does with the sqlite3 shell is seen half a minute later. */
    temp_store_by_hand(t, "UPDATE mail_keys SET scopes = 1");
    MUST(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err));
    assert_int_equal(owner.scopes, 3);
    ahead_us += 31 * INT64_C(1000000);
    MUST(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err));
    assert_int_equal(owner.scopes, 1);
    /* What goes through the store is seen at once. */
    MUST(store_mail_key_change(t->store, str_from(owner.id), STR("n"), 7, &err));
    MUST(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err));
    assert_int_equal(owner.scopes, 7);
    MUST(store_mail_key_give_account(t->store, str_from(owner.id), STR("01ACCOUNT"), &err));
    MUST(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err));
    assert_string_equal(owner.account_id, "01ACCOUNT");
    MUST_FAIL(store_mail_key_give_account(t->store, str_from(owner.id), STR("01SECOND"), &err), ERR_CONFLICT);
    struct mail_account_row account;
    MUST(store_mail_account_get(t->store, STR("01ACCOUNT"), &t->arena, &account, &err));
    assert_true(account.last_used_us > 0);
    MUST_FAIL(store_mail_account_get(t->store, STR("01SECOND"), &t->arena, &account, &err), ERR_NOT_FOUND);
    MUST(store_mail_key_own(t->store, STR("01INBOX0000000000000000000"), &t->arena, &row, &err));
    MUST(store_mail_key_revoke(t->store, row.id, &err));
    MUST_FAIL(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err), ERR_DENIED);
    MUST_FAIL(store_mail_key_revoke(t->store, row.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_mail_key_own(t->store, STR("01INBOX0000000000000000000"), &t->arena, &row, &err), ERR_NOT_FOUND);
    struct mail_key_row same = key_of(t, "01INBOX0000000000000000000", "01AGAIN", "");
    MUST_FAIL(store_mail_key_add(t->store, &same, &err), ERR_CONFLICT); /* a revoked text stays revoked */
}

static void an_address_stays_taken_and_deleting_revokes(void **state)
{
    struct temp_store *t = *state;
    struct mail_inbox_row row, *stale;
    struct mail_key_owner owner;
    size_t count;

    add_inbox(t, "01INBOX0000000000000000000", "hash");
    MUST(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err));
    struct mail_key_row key = key_of(t, "another", "01KEY", "01OTHER0000000000000000000");
    struct mail_inbox_row twin = { .id = STR("01OTHER0000000000000000001"),
                                   .tenant_id = TENANT,
                                   .address_hash = STR("hash") };
    MUST_FAIL(store_mail_inbox_add(t->store, &twin, &(struct mail_inbox_most){ 0 }, &key, NULL, &err), ERR_CONFLICT);
    MUST_FAIL(store_mail_key_find(t->store, STR("another"), &owner, &err), ERR_DENIED); /* nor its key */
    MUST(store_mail_inbox_by_handle(t->store, STR("0000000000"), &t->arena, &row, &err));
    CHECK_STR(row.profile, STR("profile"));
    MUST_FAIL(store_mail_inbox_mode(t->store, row.id, 3, 0, &err), ERR_CONFLICT);
    MUST(store_mail_inbox_mode(t->store, row.id, 2, 0, &err));
    MUST(store_mail_inbox_delete(t->store, row.id, &err));
    MUST_FAIL(store_mail_inbox_delete(t->store, row.id, &err), ERR_NOT_FOUND);
    MUST_FAIL(store_mail_key_find(t->store, STR("01INBOX0000000000000000000"), &owner, &err), ERR_DENIED);
    MUST_FAIL(store_mail_inbox_add(t->store, &twin, &(struct mail_inbox_most){ 0 }, &key, NULL, &err), ERR_CONFLICT);
    MUST(store_mail_inbox_by_address(t->store, STR("hash"), &t->arena, &row, &err));
    assert_true(row.deleted_us > 0);
    MUST_FAIL(store_mail_inbox_mode(t->store, row.id, 0, 2, &err), ERR_CONFLICT);
    for (uint32_t i = 0; i < LIMIT_MAIL_SHRED_TRIES; i++) {
        MUST(store_mail_inbox_stale(t->store, INT64_MAX, 10, &t->arena, &stale, &count, &err));
        assert_true(count == 1 && stale[0].shred_tries == i);
        MUST(store_mail_inbox_shred_failed(t->store, row.id, &err));
    }
    MUST(store_mail_inbox_stale(t->store, INT64_MAX, 10, &t->arena, &stale, &count, &err));
    assert_int_equal(count, 0); /* given up */
    MUST(store_mail_inbox_shredded(t->store, row.id, &err));
    MUST(store_mail_inbox_get(t->store, row.id, &t->arena, &row, &err));
    CHECK_STR(row.profile, STR(""));
}

static void an_accounts_inboxes_are_counted_when_one_is_added(void **state)
{
    struct temp_store *t = *state;
    struct mail_inbox_row *rows;
    uint32_t number;
    size_t count;

    for (int i = 0; i < 4; i++) {
        char id[27], address[8];
        snprintf(id, sizeof id, "01INBOX%019d", i);
        snprintf(address, sizeof address, "a%d", i);
        struct mail_key_row key = key_of(t, id, id, id);
        struct mail_inbox_row row = {
            .id = str_from(id), .tenant_id = TENANT, .account_id = STR("01ACCOUNT"), .address_hash = str_from(address)
        };
        if (i < 3)
            MUST(store_mail_inbox_add(t->store, &row, &(struct mail_inbox_most){ .account = 3 }, &key, NULL, &err));
        else
            MUST_FAIL(store_mail_inbox_add(t->store, &row, &(struct mail_inbox_most){ .account = 3 }, &key, NULL, &err),
                      ERR_LIMIT);
    }
    MUST(store_mail_inbox_count(t->store, STR("01ACCOUNT"), false, &number, &err));
    assert_int_equal(number, 3);
    MUST(store_mail_inbox_count(t->store, STR(""), false, &number, &err));
    assert_int_equal(number, 0);
    struct mail_inbox_filter filter = { .account_id = STR("01ACCOUNT") };
    MUST(store_mail_inbox_list(t->store, &filter, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 3);
    filter.tenant_id = STR("another");
    MUST(store_mail_inbox_list(t->store, &filter, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 0);
}

static void timers_and_marks_survive_a_restart(void **state)
{
    struct temp_store *t = *state;
    struct mail_inbox_row *rows;
    int64_t next_us;
    size_t count;

    add_inbox(t, "01INBOX000000000000000000A", "a");
    add_inbox(t, "01INBOX000000000000000000B", "b");
    add_inbox(t, "01INBOX000000000000000000C", "c");
    MUST(store_mail_inbox_idle(t->store, STR("01INBOX000000000000000000A"), 2000, 1, 163840, &err));
    MUST(store_mail_inbox_idle(t->store, STR("01INBOX000000000000000000B"), 1000, 0, 163840, &err));
    MUST(store_mail_inbox_idle(t->store, STR("01INBOX000000000000000000C"), 5000, 0, 163840, &err));
    temp_store_reopen(t);
    MUST(store_mail_inbox_due(t->store, MAIL_DUE_TIMER, STR(""), 2000, 10, &t->arena, &rows, &count, &next_us, &err));
    assert_int_equal(count, 2);
    CHECK_STR(rows[0].id, STR("01INBOX000000000000000000B"));
    assert_int_equal(next_us, 5000);
    MUST(store_mail_inbox_dirty(t->store, STR("01INBOX000000000000000000B"), &err));
    MUST(store_mail_inbox_dirty(t->store, STR("01INBOX000000000000000000B"), &err));
    MUST(store_mail_inbox_dirty(t->store, STR("01INBOX000000000000000000C"), &err));
    temp_store_reopen(t);
    MUST(store_mail_inbox_due(t->store, MAIL_DUE_TIMER, STR(""), 2000, 10, &t->arena, &rows, &count, &next_us, &err));
    assert_int_equal(count, 1); /* those with the mark are not among them */
    assert_int_equal(next_us, 0);
    MUST(store_mail_inbox_due(t->store, MAIL_DUE_DIRTY, STR(""), 0, 10, &t->arena, &rows, &count, NULL, &err));
    assert_int_equal(count, 2);
    MUST(store_mail_inbox_due(t->store, MAIL_DUE_PENDING, TENANT, 0, 10, &t->arena, &rows, &count, NULL, &err));
    assert_int_equal(count, 3);
    MUST(store_mail_inbox_due(t->store, MAIL_DUE_PENDING, STR("another"), 0, 10, &t->arena, &rows, &count, NULL, &err));
    assert_int_equal(count, 0);
    MUST(store_mail_inbox_delete(t->store, STR("01INBOX000000000000000000C"), &err));
    MUST(store_mail_inbox_due(t->store, MAIL_DUE_DIRTY, STR(""), 0, 10, &t->arena, &rows, &count, NULL, &err));
    assert_int_equal(count, 1);
}

static void a_rate_is_kept_also_when_the_clock_goes_back(void **state)
{
    struct temp_store *t = *state;
    uint32_t retry_s;

    for (int i = 0; i < 3; i++)
        MUST(store_mail_rate(t->store, "x", STR("me"), 3, HOUR_US, &retry_s, &err));
    MUST_FAIL(store_mail_rate(t->store, "x", STR("me"), 3, HOUR_US, &retry_s, &err), ERR_LIMIT);
    assert_in_range(retry_s, 3599, 3601);
    MUST(store_mail_rate(t->store, "x", STR("you"), 3, HOUR_US, &retry_s, &err));
    MUST(store_mail_rate(t->store, "y", STR("me"), 3, HOUR_US, &retry_s, &err));
    MUST_FAIL(store_mail_rate(t->store, "z", STR("me"), 0, HOUR_US, &retry_s, &err), ERR_LIMIT);
    assert_in_range(retry_s, 3599, 3601);
    ahead_us += 1800 * INT64_C(1000000);
    MUST_FAIL(store_mail_rate(t->store, "x", STR("me"), 3, HOUR_US, &retry_s, &err), ERR_LIMIT);
    assert_in_range(retry_s, 1799, 1801);
    ahead_us += 1801 * INT64_C(1000000);
    MUST(store_mail_rate(t->store, "x", STR("me"), 3, HOUR_US, &retry_s, &err));
    /* Counted at a time that is a year ahead: it must not count for a year. */
    temp_store_by_hand(t, "UPDATE mail_rates SET at_us = at_us + 31536000000000");
    for (int i = 0; i < 3; i++)
        MUST(store_mail_rate(t->store, "x", STR("me"), 3, HOUR_US, &retry_s, &err));
}

static void a_code_is_tried_five_times_and_spent_once(void **state)
{
    struct temp_store *t = *state;
    struct mail_code_row row = { .id = STR("01CODE"),
                                 .tenant_id = TENANT,
                                 .asked = STR("h"),
                                 .cipher = STR("c"),
                                 .created_us = 1000,
                                 .expires_us = 2000 },
                         out, *rows;
    size_t count;

    MUST(store_mail_code_put(t->store, &row, &err));
    MUST(store_mail_code_find(t->store, STR("h"), 1999, &t->arena, &out, &err));
    MUST_FAIL(store_mail_code_find(t->store, STR("h"), 2000, &t->arena, &out, &err), ERR_NOT_FOUND);
    for (int i = 0; i < 5; i++)
        MUST(store_mail_code_try(t->store, STR("01CODE"), 5, &err));
    MUST_FAIL(store_mail_code_try(t->store, STR("01CODE"), 5, &err), ERR_NOT_FOUND);
    row.id = STR("01SECOND");
    MUST(store_mail_code_put(t->store, &row, &err)); /* in place of the first */
    MUST(store_mail_code_list(t->store, STR(""), 1500, &t->arena, &rows, &count, &err));
    assert_int_equal(count, 1);
    MUST(store_mail_code_spend(t->store, STR("01SECOND"), &err));
    MUST_FAIL(store_mail_code_spend(t->store, STR("01SECOND"), &err), ERR_NOT_FOUND);
    MUST_FAIL(store_mail_code_try(t->store, STR("01SECOND"), 5, &err), ERR_NOT_FOUND);
}

#define ROWS_CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    static const struct CMUnitTest cases[] = {
        ROWS_CASE(a_tenant_is_made_once_and_keeps_its_bytes),
        ROWS_CASE(a_key_is_found_without_a_query_until_it_changes),
        ROWS_CASE(an_address_stays_taken_and_deleting_revokes),
        ROWS_CASE(an_accounts_inboxes_are_counted_when_one_is_added),
        ROWS_CASE(timers_and_marks_survive_a_restart),
        ROWS_CASE(a_rate_is_kept_also_when_the_clock_goes_back),
        ROWS_CASE(a_code_is_tried_five_times_and_spent_once),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
