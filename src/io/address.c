#include "io/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>

bool address_parse(struct str text, struct sockaddr_storage *out_address, socklen_t *out_len, struct err *err)
{
    struct str whole = text, host, port;
    char host_text[INET6_ADDRSTRLEN];
    uint64_t number;

    bool is_v6 = str_skip(&text, STR("["));
    if (!str_cut(&text, is_v6 ? ']' : ':', &host) || !text.at)
        goto bad;
    if (is_v6 && !str_skip(&text, STR(":")))
        goto bad;
    port = text;
    if (!str_to_u64(port, UINT16_MAX, &number) || host.len >= sizeof host_text || str_has_char(host, '\0'))
        goto bad;
    memcpy(host_text, host.at, host.len);
    host_text[host.len] = '\0';

    struct sockaddr_storage address = { 0 };
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    if (!is_v6 && inet_pton(AF_INET, host_text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)number);
        *out_len = sizeof *v4;
    } else if (is_v6 && inet_pton(AF_INET6, host_text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)number);
        *out_len = sizeof *v6;
    } else {
        goto bad;
    }
    *out_address = address;
    return true;
bad:
    return err_set(err, ERR_INVALID, "'%.*s' is not an address and a port such as 127.0.0.1:7070 or [::1]:7070",
                   STR_ARG(whole));
}
