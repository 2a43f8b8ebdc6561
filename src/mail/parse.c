#include "mail/compose.h"

bool parse_message(struct str mime, struct arena *arena, struct mail_content *out, struct err *err)
{
    (void)mime;
    (void)arena;
    (void)out;
    return err_set(err, ERR_UNAVAILABLE, "reading MIME is not possible yet");
}
