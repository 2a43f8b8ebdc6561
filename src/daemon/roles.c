#include "daemon/roles.h"

#include <string.h>

#include "daemon/config.h"

const struct role_row roles[ROLE_COUNT] = {
    [ROLE_FRONT] = {
        .name = "front",
        .main = front_main,
        .user = offsetof(struct config, user),
        .grants = { GRANT_SETTINGS, GRANT_LISTENER, GRANT_STORE, GRANT_MEMINFO },
        .directory = GRANT_STORE,
        .calls = front_calls,
        .may_send = BIT(MESSAGE_READY) | BIT(MESSAGE_START) | BIT(MESSAGE_STOP) | BIT(MESSAGE_LIST) |
                    BIT(MESSAGE_LINK) | BIT(MESSAGE_DIAL) | BIT(MESSAGE_TEMPLATES) | BIT(MESSAGE_STATS) |
                    BIT(MESSAGE_WARM) | BIT(MESSAGE_PAUSE) | BIT(MESSAGE_UNPACK) | BIT(MESSAGE_INBOX) | BIT(MESSAGE_INBOXES) |
                    BIT(MESSAGE_UNMAKE),
        .restart_first_ms = 100,
        .restart_max_ms = 5000,
        .stop_ms = 8000,
    },
    [ROLE_EGRESS] = {
        .name = "egress",
        .main = egress_main,
        .user = offsetof(struct config, egress_user),
        .grants = { GRANT_EGRESS, GRANT_ROOTS },
        .calls = egress_calls,
        .peers = BIT(ROLE_FRONT),
        .restart_first_ms = 100,
        .restart_max_ms = 5000,
        .stop_ms = 2000,
    },
    [ROLE_SIGNER] = {
        .name = "signer",
        .main = signer_main,
        .user = offsetof(struct config, signer_user),
        .calls = signer_calls,
        .peers = BIT(ROLE_FRONT),
        .restart_first_ms = 100,
        .restart_max_ms = 5000,
        .stop_ms = 5000,
    },
    [ROLE_COMPOSER] = {
        .name = "composer",
        .user = offsetof(struct config, composer_user),
        .is_of_mail = true,
        .peers = BIT(ROLE_FRONT),
        .restart_first_ms = 100,
        .restart_max_ms = 5000,
        .stop_ms = 2000,
    },
    [ROLE_WEBHOOKS] = {
        .name = "webhooks",
        .user = offsetof(struct config, webhooks_user),
        .grants = { GRANT_EGRESS, GRANT_ROOTS },
        .is_of_mail = true,
        .peers = BIT(ROLE_FRONT),
        .restart_first_ms = 100,
        .restart_max_ms = 5000,
        .stop_ms = 2000,
    },
    [ROLE_PULLER] = {
        .name = "puller",
        .user = offsetof(struct config, puller_user),
        .grants = { GRANT_BLOBS, GRANT_PULLER, GRANT_EGRESS, GRANT_ROOTS },
        .directory = GRANT_BLOBS,
        .peers = BIT(ROLE_FRONT),
        .restart_first_ms = 100,
        .restart_max_ms = 5000,
        .stop_ms = 2000,
    },
    [ROLE_INBOX] = {
        .name = "inbox",
        .main = inbox_main,
        .grants = { GRANT_INBOX },
        .directory = GRANT_INBOX,
        .calls = inbox_calls,
        .on_demand = true,
        .is_of_mail = true,
    },
};

const struct role_row *role_find(const char *name)
{
    for (size_t i = 0; i < ROLE_COUNT; i++)
        if (strcmp(roles[i].name, name) == 0)
            return &roles[i];
    return NULL;
}
