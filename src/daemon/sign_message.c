#include "daemon/sign_message.h"

#include <string.h>

#include "base/pack.h"

void sign_request_pack(struct buf *out, const struct tls_to_sign *want)
{
    pack_str(out, str_of(want->key_id, TLS_KEY_ID_BYTES));
    pack_u8(out, (uint8_t)want->algorithm);
    pack_str(out, want->bytes);
}

bool sign_request_unpack(struct str payload, struct tls_to_sign *out, struct err *err)
{
    struct unpack in = unpack_from(payload);
    struct str key_id = unpack_str(&in, TLS_KEY_ID_BYTES);
    uint8_t algorithm = unpack_u8(&in);
    struct str bytes = unpack_str(&in, TLS_BLOCK_BYTES);

    if (!unpack_done(&in, err))
        return err_wrap(err, "sign");
    if (key_id.len != TLS_KEY_ID_BYTES || algorithm == 0 || algorithm >= TLS_ALGORITHM_END || bytes.len == 0)
        return err_set(err, ERR_INVALID, "malformed message: sign");
    memcpy(out->key_id, key_id.at, TLS_KEY_ID_BYTES);
    out->algorithm = algorithm;
    out->bytes = bytes;
    return true;
}

void sign_reply_pack(struct buf *out, struct str signature)
{
    pack_str(out, signature);
}

bool sign_reply_unpack(struct str payload, unsigned char out[TLS_SIGNATURE_BYTES], size_t *out_len, struct err *err)
{
    struct unpack in = unpack_from(payload);
    struct str signature = unpack_str(&in, TLS_SIGNATURE_BYTES);

    if (!unpack_done(&in, err))
        return err_wrap(err, "signature");
    if (signature.len == 0)
        return err_set(err, ERR_INVALID, "malformed message: an empty signature");
    memcpy(out, signature.at, signature.len);
    *out_len = signature.len;
    return true;
}
