/* The sandbox's own configuration files in /etc, which whoever is root there may fill with anything. */
#include "guest/network.c" /* its decoders are its own */

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_nsswitch(struct str text)
{
    auto_buf struct buf once = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES);
    struct str rest, line;
    unsigned hosts = 0;

    network_nsswitch_without_dns(text, &once);
    rest = buf_str(&once);
    while (rest.len && str_cut(&rest, '\n', &line))
        hosts += str_starts(str_trim(line), STR("hosts:"));
    check(!once.overflowed && hosts == 1 && str_ends(buf_str(&once), STR(NSSWITCH_HOSTS)));
}

static void check_ours_out(struct str text, struct str ours)
{
    auto_buf struct buf once = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES);
    auto_buf struct buf twice = buf_make(NULL, (size_t)2 * LIMIT_NSS_BYTES);

    ours_out(text, ours, &once);
    check(!once.overflowed && once.len <= text.len + 1);
    check(!once.len || !memmem(once.data, once.len, REASON, sizeof REASON - 1));
    ours_out(buf_str(&once), ours, &twice);
    check(str_eq(buf_str(&once), buf_str(&twice)));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct str text = str_of(data, size);

    if (size > LIMIT_NSS_BYTES)
        return 0; /* is not read */
    check_nsswitch(text);
    (void)network_has_nameserver(text);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        auto_buf struct buf made = buf_make(NULL, LIMIT_NSS_BYTES);
        check_ours_out(text, str_from(files[i].text));
        if (size <= LIMIT_INSIDE_BYTES)
            add_ours(&files[i], text, &made); /* as the list of names that was written before */
        check(size > LIMIT_INSIDE_BYTES || made.len);
    }
    return 0;
}
