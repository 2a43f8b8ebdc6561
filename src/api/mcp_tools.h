/*
 * mcp_tools.h - the tools of the two mail services, each as a call of the service's own API.
 *
 * A tool is a row: its name, what it says about itself, the schema of its arguments, and the route that it stands for. An
 * argument whose name is in the path goes there; the others become the query of a GET or the body of any other call. So a
 * tool can do exactly what the same key can do by the API, and nothing else.
 */
#ifndef API_MCP_TOOLS_H
#define API_MCP_TOOLS_H

#include <stdbool.h>
#include <stddef.h>

#include "wire/http1.h"

enum mcp_shape {
    MCP_JSON,      /* the answer as it is */
    MCP_UNTRUSTED, /* texts of messages in blocks of their own, marked as untrusted */
    MCP_FILE,      /* an attachment */
    MCP_WAIT,      /* waits for a message: mcp.c */
    MCP_SEND,      /* LobsterMail's send_email: the address of the inbox is looked up first */
};

struct mcp_tool {
    const char *name;
    const char *about;
    /*
     * Its arguments, a word each: NAME for a text, NAME[] for a list of texts, NAME# for a number, NAME? for true or false,
     * NAME{} for an object, NAME@ for attachments, NAME=a|b for one of these. A * at the end: it must be given.
     */
    const char *arguments;
    enum http_method method;
    const char *path; /* "{mailbox_id}" of MultiMail's is the key's own mailbox if it is not given */
    enum mcp_shape shape;
};

extern const struct mcp_tool mcp_multimail_tools[], mcp_lobstermail_tools[]; /* ended by a row without a name */

#endif
