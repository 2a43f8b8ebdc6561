/*
 * Any bytes as MIME: what is read fits the packed form, and its HTML has no element or attribute that is not allowed.
 */
#include <stdlib.h>

#include "base/encode.h"
#include "base/limits.h"
#include "mail/compose.h"
#include "mail/content_pack.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    composer_prepare();
    return 0;
}

/* Of each tag only its name, and attributes that html.c writes. */
static void check_html(struct str html)
{
    static const struct str bad[] = { STR_INIT("<script"), STR_INIT("<style"),  STR_INIT("<iframe"), STR_INIT("<img"),
                                      STR_INIT("<svg"),    STR_INIT("<object"), STR_INIT("<form"),   STR_INIT("<!"),
                                      STR_INIT("<meta"),   STR_INIT("<link"),   STR_INIT("<base") };

    for (size_t i = 0; i < html.len; i++) {
        struct str rest = str_of(html.at + i, html.len - i), tag;
        if (html.at[i] != '<')
            continue;
        for (size_t k = 0; k < COUNT_OF(bad); k++)
            if (str_skip_nocase(&rest, bad[k]))
                abort();
        if (!str_cut(&rest, '>', &tag))
            abort();
        for (size_t k = 0; k + 3 < tag.len; k++)
            if (tag.at[k] == ' ' && tag.at[k + 1] == 'o' && tag.at[k + 2] == 'n')
                abort();
        struct str href = tag, scheme;
        if (str_skip(&href, STR("<a href=\"")) && str_cut(&href, ':', &scheme) && !str_eq_nocase(scheme, STR("http")) &&
            !str_eq_nocase(scheme, STR("https")) && !str_eq_nocase(scheme, STR("mailto")) &&
            !str_eq_nocase(scheme, STR("tel")))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    auto_buf struct buf packed = buf_make(NULL, LIMIT_MAIL_CONTENT_BYTES);
    struct mail_content c = { 0 }, got = { 0 };
    struct arena arena;
    struct err err;

    arena_init(&arena);
    if (parse_message(str_of(data, size), &arena, &c, &err)) {
        pack_content(&packed, &c, CONTENT_ALL);
        struct unpack in = unpack_from(buf_str(&packed));
        if (packed.overflowed || unpack_content(&in, &arena, &got) != CONTENT_ALL || !unpack_done(&in, &err))
            abort();
        if (!utf8_valid(c.text) || !utf8_valid(c.html) || !utf8_valid(c.subject) || !utf8_valid(c.from))
            abort();
        check_html(c.html);
    }
    arena_done(&arena);
    return 0;
}
