#include "privsep/message.h"

#include <string.h>

enum { ERRNO_MAX = 4095 }; /* the kernel's own bound */

const char *const message_type_name[MESSAGE_TYPE_END] = {
#define MESSAGE_TYPE(type, name) [MESSAGE_##type] = name,
    MESSAGE_TYPES(MESSAGE_TYPE)
#undef MESSAGE_TYPE
};

void message_pack_head(struct buf *out, const struct message_head *head)
{
    pack_u8(out, (uint8_t)head->shape);
    pack_u16(out, (uint16_t)head->type);
    pack_u32(out, head->id);
}

void message_unpack_head(struct unpack *in, struct message_head *out_head)
{
    uint8_t shape = unpack_u8(in);
    uint16_t type = unpack_u16(in);
    uint32_t id = unpack_u32(in);

    if (shape < MESSAGE_REQUEST || shape >= MESSAGE_SHAPE_END || type == MESSAGE_NONE || type >= MESSAGE_TYPE_END ||
        (id == 0) != (shape == MESSAGE_EVENT))
        in->failed = true;
    *out_head = (struct message_head){ .shape = in->failed ? 0 : (enum message_shape)shape,
                                       .type = in->failed ? 0 : (enum message_type)type,
                                       .id = in->failed ? 0 : id };
}

void message_pack_err(struct buf *out, const struct err *err)
{
    pack_u8(out, (uint8_t)err->kind);
    pack_u32(out, (uint32_t)err->sys);
    pack_str(out, str_from(err->message));
    pack_str(out, str_from(err->trail));
}

void message_unpack_err(struct unpack *in, struct err *out_err)
{
    uint8_t kind = unpack_u8(in);
    uint32_t sys = unpack_u32(in);

    memset(out_err, 0, sizeof *out_err);
    unpack_text(in, out_err->message, sizeof out_err->message);
    unpack_text(in, out_err->trail, sizeof out_err->trail);
    /* Callers would take an error of kind ERR_NONE for success. */
    if (kind == ERR_NONE || kind >= ERR_KIND_COUNT || sys > ERRNO_MAX)
        in->failed = true;
    out_err->kind = in->failed ? ERR_INTERNAL : (enum err_kind)kind;
    out_err->sys = in->failed ? 0 : (int)sys;
}

void message_pack_id(struct buf *out, const char *id)
{
    pack_str(out, str_from(id));
}

bool message_sandbox_id_valid(const char *id)
{
    size_t len = strnlen(id, LIMIT_ID_BYTES);

    return len && len < LIMIT_ID_BYTES && id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789")] == '\0';
}

void message_unpack_id(struct unpack *in, char out_id[LIMIT_ID_BYTES])
{
    unpack_text(in, out_id, LIMIT_ID_BYTES);
    if (!message_sandbox_id_valid(out_id)) {
        in->failed = true;
        out_id[0] = '\0';
    }
}
