/*
 * composer_main() - makes MIME from drafts, and reads MIME that others have made, each message in a child of its own.
 *   holds     a channel to front
 *   must not  read a message itself: only its children do (forker.h); open a file, connect anywhere
 *
 * The program is cloister-mail and not cloister, so that the libraries that parse mail are not loaded into keeper, front and
 * the workers of inboxes.
 */
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/limits.h"
#include "daemon/forker.h"
#include "daemon/roles.h"
#include "mail/compose.h"
#include "privsep/role.h"

#ifndef COMPOSER_CPU_S /* a test has less time */
#define COMPOSER_CPU_S (LIMIT_COMPOSE_MS / 1000)
#endif

static bool serve(void *context, int fd, struct err *err)
{
    (void)context;
    return composer_serve(fd, err);
}

/*
 * Every system call of a child. Left out on purpose: everything that makes a descriptor, starts a process or reads the
 * machine's files. iconv finds the character sets that composer_prepare() has loaded, and no others.
 */
static const struct confine_rule child_calls[] = { FORKER_CHILD_CALLS, { NULL } };

/* Every system call of the parent, and what a child needs on its way to the list above. It opens nothing. */
const struct confine_rule composer_calls[] = { FORKER_CHILD_CALLS, FORKER_PARENT_CALLS, { NULL } };

int composer_main(const struct role_row *self)
{
    (void)self;
    return forker_run(&(struct forker_config){
        .what = "message",
        .message = MESSAGE_COMPOSE,
        .children_most = 4 * LIMIT_COMPOSERS,
        .seconds = COMPOSER_CPU_S + 1, /* front has given up by then */
        .yield_ms = LIMIT_COMPOSER_YIELD_MS,
        .limits = { .memory_bytes = LIMIT_COMPOSER_BYTES,
                    .cpu_s = COMPOSER_CPU_S,
                    .files = ROLE_FIRST_FD,
                    .no_file_data = true },
        .calls = child_calls,
        .serve = serve,
    });
}
