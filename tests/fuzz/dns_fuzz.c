/*
 * The first byte says what the rest is: a guest's question, which is answered, or a server's answer to one of ours, which
 * is written for a guest and read once more. Answers stay within their room, and what we write we can read.
 */
#include <stdlib.h>

#include "base/limits.h"
#include "wire/dns.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void as_question(struct str message)
{
    struct dns_question question;
    struct dns_record record = { .type = DNS_A, .ttl_s = 60 };
    struct dns_answer answer = { .ede = DNS_EDE_BLOCKED, .reason = STR("fuzz"), .count = 1, .records = &record };

    if (dns_question_parse(message, &question) == DNS_NOISE)
        return;
    record.name = str_from(question.name);
    answer.code = question.code;
    auto_buf struct buf out = buf_make(NULL, DNS_MESSAGE_MAX);
    dns_write_answer(&out, &question, &answer, question.udp_room);
    if (out.len < 12 || out.len > question.udp_room || out.overflowed)
        abort();
    if (question.code != DNS_FINE)
        return;
    auto_buf struct buf asked = buf_make(NULL, 1024);
    struct dns_question again;
    dns_write_question(&asked, question.id, str_from(question.name), question.type);
    if (dns_question_parse(buf_str(&asked), &again) != DNS_PARSED ||
        !str_eq(str_from(again.name), str_from(question.name)) || again.type != question.type)
        abort();
}

static void as_answer(struct str message)
{
    static const uint16_t types[] = { DNS_A, DNS_AAAA, DNS_CNAME, DNS_SOA, DNS_MX, DNS_TXT, DNS_SRV, DNS_HTTPS };
    static const struct str name = STR_INIT("example.com");
    struct dns_answer answer, again;
    struct dns_question question;
    struct arena arena;
    struct err err;

    arena_init(&arena);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        if (!dns_answer_parse(message, 1, name, types[i], &arena, &answer, &err))
            continue;
        if (answer.count > LIMIT_DNS_RECORDS + LIMIT_DNS_CHAIN)
            abort();
        auto_buf struct buf asked = buf_make(NULL, 1024), out = buf_make(NULL, DNS_MESSAGE_MAX);
        dns_write_question(&asked, 1, name, types[i]);
        if (dns_question_parse(buf_str(&asked), &question) != DNS_PARSED)
            abort();
        answer.is_truncated = false;
        dns_write_answer(&out, &question, &answer, DNS_MESSAGE_MAX);
        if (!dns_answer_parse(buf_str(&out), 1, name, types[i], &arena, &again, &err))
            abort();
        if (!again.is_truncated && (again.count != answer.count || again.code != answer.code))
            abort();
    }
    arena_done(&arena);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 1)
        as_answer(str_of(data + 1, size - 1));
    else
        as_question(str_of(data + 1, size - 1));
    return 0;
}
