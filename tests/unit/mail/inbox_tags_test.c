#include "mail_fixture.h"

/* ---- tags ---- */

/* Sets "key=value" pairs, and compares all tags afterwards. */
static void set_tags(struct office_fake *o, const struct fixture_inbox *box, const char *id,
                     const struct mail_pair *tags, uint32_t count, const char *want)
{
    struct buf got = buf_make(&o->arena, 1000);
    struct mail_pair *all;
    uint32_t all_count;

    MUST(mail_tags_set(o->mail, box->id, &box->reader, str_from(id), tags, count, &o->arena, &all, &all_count, &err));
    for (uint32_t i = 0; i < all_count; i++)
        buf_format(&got, "%s%.*s=%.*s", i ? " " : "", STR_ARG(all[i].key), STR_ARG(all[i].value));
    CHECK_STR(buf_str(&got), str_from(want));
}
#define PAIR(key, value)     \
    {                        \
        STR(key), STR(value) \
    }
#define SET_TAGS(id, want, ...)                                      \
    set_tags(o, &box, id, (const struct mail_pair[]){ __VA_ARGS__ }, \
             sizeof((const struct mail_pair[]){ __VA_ARGS__ }) / sizeof(struct mail_pair), want)

static void tags_are_merged_and_removed(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;

    inbox_make(o, &box, "one");
    struct mail_message m = arrive(o, &box, &(struct note){ .subject = "Tagged" });
    SET_TAGS(m.id, "colour=red size=4", PAIR("colour", "red"), PAIR("size", "4"));
    SET_TAGS(m.id, "colour=blue size=4 new=1", PAIR("colour", "blue"), PAIR("new", "1"), PAIR("none", ""));
    office_fake_restart(o);
    set_tags(o, &box, m.id, NULL, 0, "colour=blue size=4 new=1");
    SET_TAGS(m.id, "size=4 new=1", PAIR("colour", ""));
    struct mail_message got = read_one(o, &box, m.id, 0);
    assert_int_equal(got.tag_count, 2);
    CHECK_STR(got.tags[0].key, STR("size"));
    assert_int_equal(list(o, &box, &(struct mail_filter){ ALL }).rows[0].tag_count, 2);
    SET_TAGS(m.id, "", PAIR("size", ""), PAIR("new", ""));
}

static void tags_have_limits_and_count_as_storage(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_pair many[LIMIT_MAIL_TAGS + 1], *all;
    uint32_t count;

    inbox_make(o, &box, "one");
    struct mail_message m = arrive(o, &box, &(struct note){ .subject = "Tagged" });
    struct str id = str_from(m.id);
    int before = by_hand(o, &box, "SELECT bytes FROM storage");
    for (uint32_t i = 0; i <= LIMIT_MAIL_TAGS; i++)
        many[i] = (struct mail_pair){ arena_format(&o->arena, "key%u", i), STR("v") };
    MUST_FAIL(mail_tags_set(o->mail, box.id, &box.reader, id, many, LIMIT_MAIL_TAGS + 1, &o->arena, &all, &count, &err),
              ERR_LIMIT);
    MUST(mail_tags_set(o->mail, box.id, &box.reader, id, many, LIMIT_MAIL_TAGS, &o->arena, &all, &count, &err));
    assert_int_equal(count, LIMIT_MAIL_TAGS);
    MUST_FAIL(mail_tags_set(o->mail, box.id, &box.reader, id, &many[LIMIT_MAIL_TAGS], 1, &o->arena, &all, &count, &err),
              ERR_LIMIT);
    int after = by_hand(o, &box, "SELECT bytes FROM storage");
    assert_true(after > before + 64 * 9);
    MUST(mail_tags_set(o->mail, box.id, &box.reader, id, many, LIMIT_MAIL_TAGS, &o->arena, &all, &count, &err));
    assert_int_equal(by_hand(o, &box, "SELECT bytes FROM storage"), after);

    char long_text[LIMIT_MAIL_TAG_BYTES + 1];
    memset(long_text, 'a', sizeof long_text);
    struct mail_pair bad = { STR("key"), str_of(long_text, sizeof long_text) };
    MUST_FAIL(mail_tags_set(o->mail, box.id, &box.reader, id, &bad, 1, &o->arena, &all, &count, &err), ERR_INVALID);
    bad = (struct mail_pair){ STR(""), STR("value") };
    MUST_FAIL(mail_tags_set(o->mail, box.id, &box.reader, id, &bad, 1, &o->arena, &all, &count, &err), ERR_INVALID);
}

static void tags_need_a_message_that_the_reader_may_change(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box, other;
    struct mail_pair tag = PAIR("a", "b"), *all;
    uint32_t count;

    inbox_make(o, &box, "one");
    inbox_make(o, &other, "two");
    struct mail_message m = arrive(o, &box, &(struct note){ .subject = "Mine" });
    struct mail_message held = arrive(o, &box, &(struct note){ .subject = "Held", .mode = MAIL_GATED_ALL });
    struct mail_reader grant = box.reader;
    grant.grant = STR("grant:1");
    MUST_FAIL(mail_tags_set(o->mail, box.id, &grant, str_from(m.id), &tag, 1, &o->arena, &all, &count, &err),
              ERR_DENIED);
    MUST(mail_tags_set(o->mail, box.id, &grant, str_from(m.id), NULL, 0, &o->arena, &all, &count, &err));
    MUST_FAIL(mail_tags_set(o->mail, box.id, &other.reader, str_from(m.id), &tag, 1, &o->arena, &all, &count, &err),
              ERR_DENIED);
    MUST_FAIL(mail_tags_set(o->mail, other.id, &other.reader, str_from(m.id), &tag, 1, &o->arena, &all, &count, &err),
              ERR_NOT_FOUND);
    MUST_FAIL(mail_tags_set(o->mail, box.id, &box.reader, str_from(held.id), &tag, 1, &o->arena, &all, &count, &err),
              ERR_CONFLICT);
}

/* ---- contacts ---- */

static struct mail_contact add(struct office_fake *o, const struct fixture_inbox *box, const char *name,
                               const char *email, const char *tag)
{
    struct str tags[] = { str_from(tag) };
    struct mail_contact out, want = { .name = str_from(name), .email = str_from(email), .tags = tags, .tag_count = 1 };

    MUST(mail_contact_add(o->mail, box->id, &box->reader, &want, &o->arena, &out, &err));
    return out;
}

static size_t count_contacts(struct office_fake *o, const struct fixture_inbox *box, const char *query)
{
    struct mail_contact *out;
    size_t count;

    MUST(mail_contact_list(o->mail, box->id, &box->reader, str_from(query), &o->arena, &out, &count, &err));
    return count;
}

static void contacts_are_added_found_replaced_and_removed(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_contact *all;
    size_t count;

    inbox_make(o, &box, "one");
    struct mail_contact ann = add(o, &box, "Ann Archer", "ann@out.example", "friend");
    assert_int_equal(strlen(ann.id), MAIL_MESSAGE_ID_BYTES - 1);
    assert_true(ann.created_us > 0);
    add(o, &box, "Bo", "bo@out.example", "work");
    office_fake_restart(o);
    assert_int_equal(count_contacts(o, &box, ""), 2);
    assert_int_equal(count_contacts(o, &box, "ARCHER"), 1);
    assert_int_equal(count_contacts(o, &box, "out.example"), 2);
    assert_int_equal(count_contacts(o, &box, "work"), 1);
    assert_int_equal(count_contacts(o, &box, "wor"), 0);
    /* The same address again. */
    struct mail_contact again = add(o, &box, "Ann Baker", "ANN@out.example", "family");
    assert_string_equal(again.id, ann.id);
    assert_int_equal(again.created_us, ann.created_us);
    MUST(mail_contact_list(o->mail, box.id, &box.reader, STR("ann@"), &o->arena, &all, &count, &err));
    assert_int_equal(count, 1);
    CHECK_STR(all[0].name, STR("Ann Baker"));
    CHECK_STR(all[0].tags[0], STR("family"));
    MUST(mail_contact_remove(o->mail, box.id, str_from(ann.id), &err));
    MUST_FAIL(mail_contact_remove(o->mail, box.id, str_from(ann.id), &err), ERR_NOT_FOUND);
    MUST_FAIL(mail_contact_remove(o->mail, box.id, STR("x"), &err), ERR_NOT_FOUND);
    assert_int_equal(count_contacts(o, &box, ""), 1);
}

static void contacts_need_a_reader_and_an_address(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    struct mail_contact out, want = { .name = STR("No address") };

    inbox_make(o, &box, "one");
    MUST_FAIL(mail_contact_add(o->mail, box.id, &box.reader, &want, &o->arena, &out, &err), ERR_INVALID);
    want.email = STR("a@b.example");
    struct mail_reader grant = box.reader, wrong = box.reader;
    grant.grant = STR("grant:1");
    MUST_FAIL(mail_contact_add(o->mail, box.id, &grant, &want, &o->arena, &out, &err), ERR_DENIED);
    wrong.kek.bytes[3] ^= 1;
    MUST_FAIL(mail_contact_add(o->mail, box.id, &wrong, &want, &o->arena, &out, &err), ERR_DENIED);
    assert_int_equal(count_contacts(o, &box, ""), 0);
}

static void the_file_has_no_word_of_tags_and_contacts(void **state)
{
    struct office_fake *o = *state;
    struct fixture_inbox box;
    static const char *const words[] = { "Marguerite", "marguerite@out.example", "orchard", "plumtree", "walnut" };

    inbox_make(o, &box, "one");
    struct mail_message m = arrive(o, &box, &(struct note){ .subject = "Tagged" });
    SET_TAGS(m.id, "orchard=walnut", PAIR("orchard", "walnut"));
    add(o, &box, "Marguerite", "marguerite@out.example", "plumtree");
    office_fake_kill(o);
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (office_fake_has_bytes(o, box.id, str_from(words[i])))
            fail_msg("'%s' is in the file", words[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFICE_CASE(tags_are_merged_and_removed),
        OFFICE_CASE(tags_have_limits_and_count_as_storage),
        OFFICE_CASE(tags_need_a_message_that_the_reader_may_change),
        OFFICE_CASE(contacts_are_added_found_replaced_and_removed),
        OFFICE_CASE(contacts_need_a_reader_and_an_address),
        OFFICE_CASE(the_file_has_no_word_of_tags_and_contacts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
