#include "wire/dns.h"

#include <stdio.h>

#include "base/limits.h"
#include "test.h"

/* "\7example\3com\0": a name on the wire. */
#define EXAMPLE_COM "\7example\3com\0"
#define ONE_QUESTION "\0\1\0\0\0\0\0\0"
#define A_IN "\0\1\0\1"

static struct dns_question parsed(struct str message)
{
    struct dns_question q;

    assert_int_equal(dns_question_parse(message, &q), DNS_PARSED);
    assert_int_equal(q.code, DNS_FINE);
    return q;
}

static void a_question_is_read(void **state)
{
    (void)state;
    struct dns_question q = parsed(STR("\xab\xcd\1\0" ONE_QUESTION "\7eXample\3COM\0" A_IN));

    assert_int_equal(q.id, 0xabcd);
    assert_int_equal(q.type, DNS_A);
    assert_string_equal(q.name, "example.com");
    assert_true(q.recursion_desired);
    assert_false(q.has_edns);
    assert_int_equal(q.udp_room, 512);

    q = parsed(STR("\0\1\0\0" ONE_QUESTION "\0\0\2\0\1")); /* NS of the root */
    assert_string_equal(q.name, "");
    assert_int_equal(q.type, DNS_NS);
    assert_false(q.recursion_desired);
}

static void a_question_says_how_much_fits_a_datagram(void **state)
{
    (void)state;
    static const struct {
        uint16_t said, room;
    } rows[] = { { 0, 512 }, { 511, 512 }, { 1232, 1232 }, { 4096, 4096 }, { 65535, 4096 } };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char message[] = "\0\1\1\0\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\0\0\x29..\0\0\0\0\0\0";
        char *at = memmem(message, sizeof message, "..", 2);
        at[0] = (char)(rows[i].said >> 8);
        at[1] = (char)rows[i].said;
        struct dns_question q = parsed(str_of(message, sizeof message - 1));
        assert_true(q.has_edns);
        assert_int_equal(q.udp_room, rows[i].room);
    }
}

static void what_is_wrong_with_a_question_is_answered(void **state)
{
    (void)state;
    static const struct {
        struct str message;
        enum dns_parse parse;
        enum dns_code code;
    } rows[] = {
        { STR_INIT(""), DNS_NOISE, 0 },
        { STR_INIT("\0\1\1\0\0\1\0\0\0\0\0"), DNS_NOISE, 0 },                   /* half a head */
        { STR_INIT("\0\1\x81\0" ONE_QUESTION EXAMPLE_COM A_IN), DNS_NOISE, 0 }, /* an answer */
        { STR_INIT("\0\1\1\0\0\0\0\0\0\0\0\0"), DNS_WRONG, DNS_FORMAT_ERROR },  /* no question */
        { STR_INIT("\0\1\1\0\0\2\0\0\0\0\0\0" EXAMPLE_COM A_IN EXAMPLE_COM A_IN), DNS_WRONG, DNS_FORMAT_ERROR },
        { STR_INIT("\0\1\1\0\0\1\0\1\0\0\0\0" EXAMPLE_COM A_IN), DNS_WRONG, DNS_FORMAT_ERROR },   /* with an answer */
        { STR_INIT("\0\1\x28\0" ONE_QUESTION EXAMPLE_COM A_IN), DNS_WRONG, DNS_NOT_IMPLEMENTED }, /* update */
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\7example\3com"), DNS_WRONG, DNS_FORMAT_ERROR },
        { STR_INIT("\0\1\1\0" ONE_QUESTION EXAMPLE_COM "\0\1\0"), DNS_WRONG, DNS_FORMAT_ERROR },
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\x3f"
                   "abc\0" A_IN),
          DNS_WRONG, DNS_FORMAT_ERROR }, /* 63 claimed */
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\x40"
                   "abc\0" A_IN),
          DNS_WRONG, DNS_FORMAT_ERROR },                                                    /* a label of type 1 */
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\xc0\x0c" A_IN), DNS_WRONG, DNS_FORMAT_ERROR }, /* points at itself */
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\3abc\xc0\x0c" A_IN), DNS_WRONG, DNS_FORMAT_ERROR },
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\xc0\x00" A_IN), DNS_WRONG, DNS_FORMAT_ERROR },      /* into the head */
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\xff\xff" A_IN), DNS_WRONG, DNS_FORMAT_ERROR },      /* past the end */
        { STR_INIT("\0\1\1\0" ONE_QUESTION EXAMPLE_COM A_IN "x"), DNS_WRONG, DNS_FORMAT_ERROR }, /* a byte more */
        { STR_INIT("\0\1\1\0" ONE_QUESTION EXAMPLE_COM "\0\1\0\3"), DNS_WRONG, DNS_REFUSED },    /* class CHAOS */
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\3a.b\3com\0" A_IN), DNS_WRONG, DNS_REFUSED },
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\3a\0b\3com\0" A_IN), DNS_WRONG, DNS_REFUSED },
        { STR_INIT("\0\1\1\0" ONE_QUESTION "\4b\xc3\xbc"
                   "c\3com\0" A_IN),
          DNS_WRONG, DNS_REFUSED },
        { STR_INIT("\0\1\1\0" ONE_QUESTION EXAMPLE_COM "\0\xff\0\1"), DNS_WRONG, DNS_NOT_IMPLEMENTED }, /* ANY */
        { STR_INIT("\0\1\1\0" ONE_QUESTION EXAMPLE_COM "\0\xfc\0\1"), DNS_WRONG, DNS_NOT_IMPLEMENTED }, /* AXFR */
        { STR_INIT("\0\1\1\0" ONE_QUESTION EXAMPLE_COM "\0\x29\0\1"), DNS_WRONG, DNS_NOT_IMPLEMENTED }, /* OPT */
        /* EDNS: version 1, twice, with a name, cut */
        { STR_INIT("\0\1\1\0\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\0\0\x29\4\0\0\1\0\0\0\0"), DNS_WRONG,
          DNS_BAD_VERSION },
        { STR_INIT("\0\1\1\0\0\1\0\0\0\0\0\2" EXAMPLE_COM A_IN "\0\0\x29\4\0\0\0\0\0\0\0\0\0\x29\4\0\0\0\0\0\0\0"),
          DNS_WRONG, DNS_FORMAT_ERROR },
        { STR_INIT("\0\1\1\0\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\1a\0\0\x29\4\0\0\0\0\0\0\0"), DNS_WRONG,
          DNS_FORMAT_ERROR },
        { STR_INIT("\0\1\1\0\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\0\0\x29\4\0\0\0\0\0\xff\xff"), DNS_WRONG,
          DNS_FORMAT_ERROR },
        { STR_INIT("\0\1\1\0\0\1\0\0\0\0\xff\xff" EXAMPLE_COM A_IN), DNS_WRONG, DNS_FORMAT_ERROR },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct dns_question q;
        enum dns_parse got = dns_question_parse(rows[i].message, &q);
        if (got != rows[i].parse || (got == DNS_WRONG && q.code != rows[i].code))
            fail_msg("row %zu: parse %d, code %d", i, got, q.code);
        if (got == DNS_WRONG) { /* it can be answered, and the answer has the id */
            auto_buf struct buf out = buf_make(NULL, DNS_MESSAGE_MAX);
            dns_write_answer(&out, &q, &(struct dns_answer){ .code = q.code, .ede = DNS_EDE_NONE }, q.udp_room);
            assert_true(out.len >= 12 && out.len <= 512);
            assert_int_equal(out.data[1], 1);
            assert_true(out.data[2] & 0x80);
        }
    }
}

static void the_longest_name_fits(void **state)
{
    (void)state;
    for (unsigned last = 60; last <= 62; last++) {
        auto_buf struct buf m = buf_make(NULL, 1024);
        buf_add(&m, STR("\0\1\1\0" ONE_QUESTION));
        for (int i = 0; i < 4; i++) { /* 3 * 64 + 1 + last + 1 */
            unsigned size = i < 3 ? 63 : last;
            buf_add_char(&m, (char)size);
            for (unsigned k = 0; k < size; k++)
                buf_add_char(&m, 'a');
        }
        buf_add_char(&m, '\0');
        buf_add(&m, STR(A_IN));
        struct dns_question q;
        enum dns_parse got = dns_question_parse(buf_str(&m), &q);
        assert_int_equal(got, last <= 61 ? DNS_PARSED : DNS_WRONG);
        if (got == DNS_PARSED)
            assert_int_equal(strlen(q.name), 3 * 64 + last);
    }
}

static struct dns_record address_record(struct str name, const char *bytes)
{
    struct dns_record record = { .name = name, .type = DNS_A, .ttl_s = 300 };

    memcpy(record.address, bytes, 4);
    return record;
}

static void an_answer_echoes_the_question_and_has_its_records(void **state)
{
    (void)state;
    struct dns_question q = parsed(STR("\xab\xcd\1\0" ONE_QUESTION "\7eXample\3com\0" A_IN));
    struct dns_record records[] = {
        { .name = STR("example.com"), .type = DNS_CNAME, .ttl_s = 60, .target = STR("b.example.net") },
        address_record(STR("b.example.net"), "\xc0\0\2\1"),
    };
    struct dns_answer answer = { .count = 2, .records = records, .ede = DNS_EDE_NONE };
    auto_buf struct buf out = buf_make(NULL, DNS_MESSAGE_MAX);

    dns_write_answer(&out, &q, &answer, q.udp_room);
    CHECK_STR(buf_str(&out), STR("\xab\xcd\x81\x80\0\1\0\2\0\0\0\0"
                                 "\7eXample\3com\0" A_IN "\xc0\x0c\0\5\0\1\0\0\0\x3c\0\x0f\1b\7example\3net\0"
                                 "\1b\7example\3net\0\0\1\0\1\0\0\1\x2c\0\4\xc0\0\2\1"));
}

static void an_answer_that_does_not_fit_is_cut_and_says_so(void **state)
{
    (void)state;
    struct dns_question q = parsed(STR("\xab\xcd\1\0" ONE_QUESTION EXAMPLE_COM A_IN));
    struct dns_record records[100];
    struct dns_answer answer = { .count = 100, .records = records, .ede = DNS_EDE_NONE };

    for (int i = 0; i < 100; i++)
        records[i] = address_record(STR("example.com"), "\xc0\0\2\1");
    auto_buf struct buf out = buf_make(NULL, DNS_MESSAGE_MAX), whole = buf_make(NULL, DNS_MESSAGE_MAX);
    dns_write_answer(&out, &q, &answer, q.udp_room);
    assert_true(out.len <= 512 && out.len > 496);
    assert_true(out.data[2] & 2); /* truncated */
    assert_int_equal((unsigned char)out.data[7], (512 - 29) / 16);
    dns_write_answer(&whole, &q, &answer, DNS_MESSAGE_MAX);
    assert_false(whole.data[2] & 2);
    assert_int_equal(whole.len, 29 + 100 * 16);
}

static void a_refusal_says_why_to_those_who_understand(void **state)
{
    (void)state;
    struct dns_answer answer = { .code = DNS_REFUSED, .ede = DNS_EDE_PROHIBITED, .reason = STR("no") };
    struct dns_question plain = parsed(STR("\0\1\1\0" ONE_QUESTION EXAMPLE_COM A_IN));
    struct dns_question edns = parsed(STR("\0\1\1\0\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\0\0\x29\4\xd0\0\0\0\0\0\0"));
    auto_buf struct buf a = buf_make(NULL, DNS_MESSAGE_MAX), b = buf_make(NULL, DNS_MESSAGE_MAX);

    dns_write_answer(&a, &plain, &answer, 512);
    CHECK_STR(buf_str(&a), STR("\0\1\x81\x85" ONE_QUESTION EXAMPLE_COM A_IN));
    dns_write_answer(&b, &edns, &answer, 1232);
    CHECK_STR(buf_str(&b),
              STR("\0\1\x81\x85\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\0\0\x29\x10\0\0\0\0\0\0\x08\0\x0f\0\4\0\x12no"));
    answer.code = DNS_BAD_VERSION;
    answer.ede = DNS_EDE_NONE;
    buf_clear(&b);
    dns_write_answer(&b, &edns, &answer, 1232);
    CHECK_STR(buf_str(&b), STR("\0\1\x81\x80\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\0\0\x29\x10\0\1\0\0\0\0\0"));
}

/* ---- a server's answers ---- */

static struct arena arena;
static struct err err;

static int begin(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int end(void **state)
{
    (void)state;
    arena_done(&arena);
    return 0;
}

static bool read_answer(struct str message, uint16_t type, struct dns_answer *out)
{
    return dns_answer_parse(message, 1, STR("example.com"), type, &arena, out, &err);
}

#define ANSWER(counts) "\0\1\x81\x80" counts EXAMPLE_COM A_IN
#define RECORD(name, type, ttl, data) name type "\0\1" ttl data
#define HERE "\xc0\x0c"

static void our_question_is_read_by_our_own_reader(void **state)
{
    (void)state;
    auto_buf struct buf out = buf_make(NULL, 1024);

    dns_write_question(&out, 0x1234, STR("www.example.com"), DNS_AAAA);
    struct dns_question q = parsed(buf_str(&out));
    assert_int_equal(q.id, 0x1234);
    assert_string_equal(q.name, "www.example.com");
    assert_int_equal(q.type, DNS_AAAA);
    assert_true(q.recursion_desired && q.has_edns);
    assert_int_equal(q.udp_room, 1232);
}

static void a_chain_of_aliases_is_followed_in_any_order(void **state)
{
    (void)state;
    struct dns_answer a;
    /* The address, then b -> c, then example.com -> b; and records that have nothing to do with it. */
    assert_true(read_answer(
        STR(ANSWER("\0\1\0\5\0\0\0\0") RECORD("\1c\0", "\0\1", "\0\0\0\x50", "\0\4\xc0\0\2\1") RECORD(
            "\1b\0", "\0\5", "\0\0\0\x40", "\0\3\1c\0") RECORD("\4evil\0", "\0\1", "\0\0\0\1", "\0\4\xc0\0\2\x63")
                RECORD(HERE, "\0\5", "\0\0\0\x60", "\0\3\1b\0") RECORD(HERE, "\0\x10", "\0\0\0\1", "\0\2\1x")),
        DNS_A, &a));
    assert_int_equal(a.code, DNS_FINE);
    assert_int_equal(a.count, 3);
    assert_int_equal(a.ttl_s, 0x40);
    CHECK_STR(a.records[0].name, STR("example.com"));
    CHECK_STR(a.records[0].target, STR("b"));
    CHECK_STR(a.records[1].target, STR("c"));
    CHECK_STR(a.records[2].name, STR("c"));
    assert_memory_equal(a.records[2].address, "\xc0\0\2\1", 4);
}

static void records_that_do_not_belong_to_the_name_are_left_out(void **state)
{
    (void)state;
    struct dns_answer a;

    assert_true(read_answer(STR(ANSWER("\0\1\0\1\0\0\0\0") RECORD("\4evil\0", "\0\1", "\0\0\0\1", "\0\4\xc0\0\2\x63")),
                            DNS_A, &a));
    assert_int_equal(a.count, 0);
}

static void aliases_in_a_circle_are_an_error(void **state)
{
    (void)state;
    struct dns_answer a;

    assert_false(read_answer(STR(ANSWER("\0\1\0\2\0\0\0\0") RECORD("\1b\0", "\0\5", "\0\0\0\1", "\0\2" HERE)
                                     RECORD(HERE, "\0\5", "\0\0\0\1", "\0\3\1b\0")),
                             DNS_A, &a));
    assert_non_null(strstr(err.message, "circle"));
    assert_false(read_answer(STR(ANSWER("\0\1\0\1\0\0\0\0") RECORD(HERE, "\0\5", "\0\0\0\1", "\0\2" HERE)), DNS_A, &a));
}

static void no_such_name_holds_as_long_as_its_zone_says(void **state)
{
    (void)state;
    struct dns_answer a;

    assert_true(read_answer(STR("\0\1\x81\x83\0\1\0\0\0\1\0\0" EXAMPLE_COM A_IN
                                "\3com\0\0\6\0\1\0\0\1\0\0\x1a\1a\0\1b\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\x3c"),
                            DNS_A, &a));
    assert_int_equal(a.code, DNS_NO_SUCH_NAME);
    assert_int_equal(a.count, 0);
    assert_int_equal(a.ttl_s, 60);
}

static void other_codes_are_a_failure_of_the_server(void **state)
{
    (void)state;
    struct dns_answer a;

    assert_true(read_answer(STR("\0\1\x81\x85\0\1\0\0\0\0\0\0" EXAMPLE_COM A_IN), DNS_A, &a));
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
    /* an extended code, in EDNS */
    assert_true(
        read_answer(STR("\0\1\x81\x80\0\1\0\0\0\0\0\1" EXAMPLE_COM A_IN "\0\0\x29\4\0\1\0\0\0\0\0"), DNS_A, &a));
    assert_int_equal(a.code, DNS_SERVER_FAILURE);
}

static void a_truncated_answer_is_not_read_further(void **state)
{
    (void)state;
    struct dns_answer a;

    assert_true(read_answer(STR("\0\1\x83\x80\0\1\0\x7f\0\0\0\0" EXAMPLE_COM A_IN "\xc0"), DNS_A, &a));
    assert_true(a.is_truncated);
    assert_int_equal(a.count, 0);
}

static void every_known_type_survives_reading_and_writing(void **state)
{
    (void)state;
    static const struct {
        uint16_t type;
        struct str data; /* with its length */
    } rows[] = {
        { DNS_A, STR_INIT("\0\4\xc0\0\2\1") },
        { DNS_AAAA, STR_INIT("\0\x10\x20\1\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\1") },
        { DNS_CNAME, STR_INIT("\0\7\1b\3net\0") },
        { DNS_NS, STR_INIT("\0\7\1b\3net\0") },
        { DNS_PTR, STR_INIT("\0\7\1b\3net\0") },
        { DNS_MX, STR_INIT("\0\x09\0\x0a\1b\3net\0") },
        { DNS_SRV, STR_INIT("\0\x0d\0\1\0\2\1\xbb\1b\3net\0") },
        { DNS_SOA, STR_INIT("\0\x1a\1a\0\1b\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5") },
        { DNS_TXT, STR_INIT("\0\x06\2hi\0\1!") },
        { DNS_SSHFP, STR_INIT("\0\4\1\1ab") },
        { DNS_TLSA, STR_INIT("\0\5\3\1\1ab") },
        { DNS_CAA, STR_INIT("\0\x0a\0\5issuea.b") },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        auto_buf struct buf m = buf_make(NULL, 1024);
        auto_buf struct buf back = buf_make(NULL, 1024);
        auto_buf struct buf question = buf_make(NULL, 1024);
        struct dns_question q;
        struct dns_answer a;

        buf_add(&m, STR("\0\1\x81\x80\0\1\0\1\0\0\0\0" EXAMPLE_COM));
        buf_add_char(&m, (char)(rows[i].type >> 8));
        buf_add_char(&m, (char)rows[i].type);
        buf_add(&m, STR("\0\1" HERE));
        buf_add_char(&m, (char)(rows[i].type >> 8));
        buf_add_char(&m, (char)rows[i].type);
        buf_add(&m, STR("\0\1\0\0\0\x3c"));
        buf_add(&m, rows[i].data);
        assert_true(dns_type_is_known(rows[i].type));
        if (!read_answer(buf_str(&m), rows[i].type, &a) || a.count != 1)
            fail_msg("type %u: %s", rows[i].type, err.message);
        buf_add(&question, STR("\0\1\1\0" ONE_QUESTION));
        buf_add(&question, str_of(m.data + 12, 17));
        q = parsed(buf_str(&question));
        dns_write_answer(&back, &q, &a, 512);
        CHECK_STR(buf_str(&back), buf_str(&m));
        /* One byte less or more in the data is noticed. */
        for (int change = -1; change <= 1; change += 2) {
            bool is_free_form = rows[i].type == DNS_SSHFP || rows[i].type == DNS_TLSA || rows[i].type == DNS_CAA;
            auto_buf struct buf odd = buf_make(NULL, 1024);
            buf_add(&odd, buf_str(&m));
            size_t size_at = m.len - rows[i].data.len + 1;
            odd.data[size_at] = (char)(odd.data[size_at] + change);
            if (change > 0)
                buf_add_char(&odd, 'x');
            else
                odd.len--;
            assert_int_equal(read_answer(buf_str(&odd), rows[i].type, &a), is_free_form);
        }
    }
}

static void types_with_addresses_of_their_own_are_not_decoded(void **state)
{
    (void)state;
    struct dns_answer a;

    assert_false(dns_type_is_known(DNS_HTTPS));
    assert_false(dns_type_is_known(DNS_SVCB));
    assert_false(dns_type_is_known(DNS_ANY));
    assert_false(dns_type_is_known(4711));
    assert_true(read_answer(STR("\0\1\x81\x80\0\1\0\1\0\0\0\0" EXAMPLE_COM "\0\x41\0\1" HERE
                                "\0\x41\0\1\0\0\0\x3c\0\x0b\0\1\0\0\4\0\4\xc0\0\2\1"),
                            DNS_HTTPS, &a));
    assert_int_equal(a.count, 0);
}

static void answers_to_something_else_are_refused(void **state)
{
    (void)state;
    static const struct str rows[] = {
        STR_INIT(""),
        STR_INIT("\0\1\x81\x80"),
        STR_INIT("\0\2\x81\x80\0\1\0\0\0\0\0\0" EXAMPLE_COM A_IN),         /* another id */
        STR_INIT("\0\1\1\x80\0\1\0\0\0\0\0\0" EXAMPLE_COM A_IN),           /* a question */
        STR_INIT("\0\1\x81\x80\0\0\0\0\0\0\0\0"),                          /* without the question */
        STR_INIT("\0\1\x81\x80\0\1\0\0\0\0\0\0\7example\3net\0" A_IN),     /* another name */
        STR_INIT("\0\1\x81\x80\0\1\0\0\0\0\0\0" EXAMPLE_COM "\0\x1c\0\1"), /* another type */
        STR_INIT("\0\1\x81\x80\0\1\0\0\0\0\0\0" EXAMPLE_COM "\0\1\0\3"),   /* another class */
        STR_INIT(ANSWER("\0\1\0\1\0\0\0\0")),                              /* fewer records than it says */
        STR_INIT(ANSWER("\0\1\xff\xff\xff\xff\xff\xff") RECORD(HERE, "\0\1", "\0\0\0\1", "\0\4\xc0\0\2\1")),
        STR_INIT(ANSWER("\0\1\0\0\0\0\0\0") "x"),                                                      /* a byte more */
        STR_INIT(ANSWER("\0\1\0\1\0\0\0\0") RECORD("\xc0\x1d", "\0\1", "\0\0\0\1", "\0\4\xc0\0\2\1")), /* at itself */
        STR_INIT(ANSWER("\0\1\0\1\0\0\0\0") RECORD("\xc0\xff", "\0\1", "\0\0\0\1", "\0\4\xc0\0\2\1")), /* forward */
        STR_INIT(ANSWER("\0\1\0\1\0\0\0\0") RECORD(HERE, "\0\1", "\0\0\0\1", "\xff\xff\xc0\0\2\1")),
    };
    struct dns_answer a;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (read_answer(rows[i], DNS_A, &a))
            fail_msg("row %zu was taken", i);
}

/* 64 KiB of records whose names are chains of pointers, as deep as they go. */
static void a_compression_bomb_is_refused_fast(void **state)
{
    (void)state;
    auto_buf struct buf m = buf_make(NULL, DNS_MESSAGE_MAX);
    struct dns_answer a;

    buf_add(&m, STR(ANSWER("\0\1\xff\xff\0\0\0\0")));
    unsigned at = 12;
    while (m.len + 12 < DNS_MESSAGE_MAX) {
        unsigned here = (unsigned)m.len;
        buf_add_char(&m, (char)(0xc0 | at >> 8));
        buf_add_char(&m, (char)at);
        buf_add(&m, STR("\0\1\0\1\0\0\0\1\0\0"));
        if (here < 0x3fff)
            at = here; /* the next name points at this one, which points at the one before… */
    }
    assert_false(read_answer(buf_str(&m), DNS_A, &a));
    assert_true(arena.used < 256 * 1024);
}

static void of_many_records_the_first_are_used(void **state)
{
    (void)state;
    auto_buf struct buf m = buf_make(NULL, DNS_MESSAGE_MAX);
    struct dns_answer a;

    buf_add(&m, STR("\0\1\x81\x80\0\1\x0f\xa0\0\0\0\0" EXAMPLE_COM A_IN)); /* 4000 */
    for (int i = 0; i < 4000; i++)
        buf_add(&m, STR(RECORD(HERE, "\0\1", "\0\0\0\1", "\0\4\xc0\0\2\1")));
    assert_true(read_answer(buf_str(&m), DNS_A, &a));
    assert_int_equal(a.count, LIMIT_DNS_RECORDS);
}

static void ttls_have_a_cap(void **state)
{
    (void)state;
    struct dns_answer a;

    assert_true(read_answer(STR(ANSWER("\0\1\0\1\0\0\0\0") RECORD(HERE, "\0\1", "\x7f\xff\xff\xff", "\0\4\xc0\0\2\1")),
                            DNS_A, &a));
    assert_int_equal(a.ttl_s, LIMIT_DNS_TTL_S);
    assert_true(
        read_answer(STR(ANSWER("\0\1\0\1\0\0\0\0") RECORD(HERE, "\0\1", "\x80\0\0\0", "\0\4\xc0\0\2\1")), DNS_A, &a));
    assert_int_equal(a.ttl_s, 0);
}

#define ARENA_CASE(function) cmocka_unit_test_setup_teardown(function, begin, end)

int main(void)
{
    const struct CMUnitTest cases[] = {
        CASE(a_question_is_read),
        CASE(a_question_says_how_much_fits_a_datagram),
        CASE(what_is_wrong_with_a_question_is_answered),
        CASE(the_longest_name_fits),
        CASE(an_answer_echoes_the_question_and_has_its_records),
        CASE(an_answer_that_does_not_fit_is_cut_and_says_so),
        CASE(a_refusal_says_why_to_those_who_understand),
        CASE(our_question_is_read_by_our_own_reader),
        ARENA_CASE(a_chain_of_aliases_is_followed_in_any_order),
        ARENA_CASE(records_that_do_not_belong_to_the_name_are_left_out),
        ARENA_CASE(aliases_in_a_circle_are_an_error),
        ARENA_CASE(no_such_name_holds_as_long_as_its_zone_says),
        ARENA_CASE(other_codes_are_a_failure_of_the_server),
        ARENA_CASE(a_truncated_answer_is_not_read_further),
        ARENA_CASE(every_known_type_survives_reading_and_writing),
        ARENA_CASE(types_with_addresses_of_their_own_are_not_decoded),
        ARENA_CASE(answers_to_something_else_are_refused),
        ARENA_CASE(a_compression_bomb_is_refused_fast),
        ARENA_CASE(of_many_records_the_first_are_used),
        ARENA_CASE(ttls_have_a_cap),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
