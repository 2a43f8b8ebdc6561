/*
 * mcp.h - the Model Context Protocol for mail, on POST /mcp: JSON-RPC 2.0 over "streamable HTTP", without sessions.
 *
 * The key decides which service's tools there are: MultiMail's or LobsterMail's. A tool runs the handler of a route of that
 * service's API with the caller of this request (mcp_tools.h, mail_run()), so it has the same permissions, limits and
 * errors. tools/list has only the tools that the key's scopes allow.
 */
#ifndef API_MCP_H
#define API_MCP_H

#include "api/mail_dialect.h"

extern const struct mail_dialect mail_mcp;

#endif
