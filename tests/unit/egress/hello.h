/*
 * hello.h - a TLS ClientHello with a server's name in it, and nothing else of interest.
 */
#ifndef TESTS_UNIT_EGRESS_HELLO_H
#define TESTS_UNIT_EGRESS_HELLO_H

#include "base/buf.h"
#include "base/pack.h"

static inline void hello_u24(struct buf *out, size_t value)
{
    pack_u8(out, (uint8_t)(value >> 16));
    pack_u16(out, (uint16_t)value);
}

/* NULL: without the extension. */
static inline struct buf hello_make_for(const char *name, const char *protocol)
{
    struct buf extensions = buf_make(NULL, 1024), body = buf_make(NULL, 2048), out = buf_make(NULL, 4096);

    if (name) {
        struct str server = str_from(name);
        pack_u16(&extensions, 0); /* server_name */
        pack_u16(&extensions, (uint16_t)(server.len + 5));
        pack_u16(&extensions, (uint16_t)(server.len + 3));
        pack_u8(&extensions, 0); /* host_name */
        pack_u16(&extensions, (uint16_t)server.len);
        buf_add(&extensions, server);
    }
    if (protocol) {
        struct str offered = str_from(protocol);
        pack_u16(&extensions, 16); /* ALPN */
        pack_u16(&extensions, (uint16_t)(offered.len + 3));
        pack_u16(&extensions, (uint16_t)(offered.len + 1));
        pack_u8(&extensions, (uint8_t)offered.len);
        buf_add(&extensions, offered);
    }
    pack_u16(&extensions, 43); /* supported_versions: 1.3 */
    pack_u16(&extensions, 3);
    pack_u8(&extensions, 2);
    pack_u16(&extensions, 0x0304);
    pack_u16(&body, 0x0303);
    for (int i = 0; i < 32; i++)
        pack_u8(&body, (uint8_t)i);
    pack_u8(&body, 0);  /* no session */
    pack_u16(&body, 2); /* one cipher suite */
    pack_u16(&body, 0x1301);
    pack_u8(&body, 1); /* one compression: none */
    pack_u8(&body, 0);
    pack_u16(&body, (uint16_t)extensions.len);
    buf_add(&body, buf_str(&extensions));
    pack_u8(&out, 0x16);
    pack_u16(&out, 0x0301);
    pack_u16(&out, (uint16_t)(body.len + 4));
    pack_u8(&out, 1); /* ClientHello */
    hello_u24(&out, body.len);
    buf_add(&out, buf_str(&body));
    buf_done(&extensions);
    buf_done(&body);
    return out;
}

static inline struct buf hello_make(const char *name)
{
    return hello_make_for(name, NULL);
}

#endif
