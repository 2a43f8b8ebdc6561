/*
 * client.h - the server behind a command: its address, the credential, one call at a time.
 *
 *   credential   the API key in E2B_API_KEY; with --data, or without that variable, the key of the data directory. The
 *                admin token is always the data directory's.
 *   address      --url. Otherwise a key of the environment goes to E2B_API_URL, and a key or token of a data directory
 *                goes to the server of that directory: an environment variable must not redirect the admin token.
 *
 * So a user needs either the lines that `cloister env` prints, or sudo.
 */
#ifndef CLI_CLIENT_H
#define CLI_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"
#include "base/secret.h"
#include "base/str.h"
#include "cli/command.h"
#include "cli/text.h"
#include "wire/json.h"

enum {
    CLIENT_ADDRESS_BYTES = 64,
    CLIENT_CALL_MS = 130000, /* wait_for_email takes 120 s at most, a create 60 s */
    CLIENT_PAUSE_MS =
        LIMIT_PAUSE_MS + 60000, /* what the server gives a pause or a snapshot, which may copy gigabytes */
};

struct client {
    struct cli *cli;
    char address[CLIENT_ADDRESS_BYTES]; /* "127.0.0.1:7070" */
    bool is_by_url;                     /* the address comes from a URL, not from the data directory */
    struct str credential_name;         /* the header that carries it */
    struct secret credential;
    uint64_t timeout_ms;         /* of a call; client_open() sets what most need */
    const char *credential_from; /* for messages: "the admin token of /var/lib/cloister" */
};

/* The caller is the holder of an API key, or the operator with the admin token of the data directory. */
enum client_as {
    CLIENT_AS_CALLER,
    CLIENT_AS_ADMIN,
};

/* True without an API key: a command for the whole server then uses the admin token. */
bool client_is_operator(const struct cli *cli);
bool client_open(struct client *client, struct cli *cli, enum client_as as, struct err *err) must_use;
void client_close(struct client *client); /* wipes the credential */
#define auto_client __attribute__((cleanup(client_close)))

struct client_answer {
    unsigned status;
    json_t *json;          /* NULL when the body was empty; the caller's to release */
    struct str next_token; /* of X-Next-Token; empty on the last page */
};
/* One API call. Any status but 2xx is an error with the server's message. body may be empty. */
bool client_call(struct client *client, const char *method, struct str target, struct str body,
                 struct client_answer *out, struct err *err) must_use;

/* One GET on a connection of its own. *out_json is the caller's to release; NULL when the body was empty. */
bool client_get(struct cli *cli, enum client_as as, struct str target, json_t **out_json, struct err *err) must_use;
/* All pages of a list as one array, which is the caller's to release. `first` has a query. */
json_t *client_get_pages(struct client *client, struct str first, struct err *err) must_use;
/* The target `before` + id + `after`, with the id percent-encoded. */
bool client_target(struct cli *cli, struct str before, struct str id, struct str after, struct str *out,
                   struct err *err) must_use;
/* What --json prints. Always true, so that a command can end with it. */
bool client_print(struct cli *cli, const json_t *json);

/* One element of an answer as a row of a table. */
typedef bool client_row_fn(struct cli *cli, struct table *table, const json_t *item, struct err *err);
/* For an answer that lacks a field: the server must be of another version. Always false. */
bool client_misread(struct err *err);
/* Prints a list: as it is with --json, otherwise as a table, or `empty` when there are no rows. */
bool client_print_list(struct cli *cli, const json_t *list, const char *const *heads, client_row_fn *row,
                       const char *empty, struct err *err) must_use;

/* The kind that an HTTP status stands for; the inverse of the table in api/. */
enum err_kind client_kind_of(unsigned status);
/* An error with the server's message. err has room for its beginning only; cli->refusal keeps it whole. Always false. */
bool client_refused(struct cli *cli, enum err_kind kind, struct str message, struct err *err);
/* An error answer as a struct err: the body's "message", or the status when there is none. Always false. */
bool client_error(struct cli *cli, unsigned status, struct str body, struct err *err);

/* ---- the pieces, for `env` and for tests ---- */

/*
 * "http://localhost:7070/" → "127.0.0.1:7070". Only http (no TLS yet), and only literal addresses and localhost (no
 * resolver).
 */
bool client_parse_url(struct str url, char out_address[CLIENT_ADDRESS_BYTES], struct err *err) must_use;
/* --url, or an E2B_API_URL that comes with its key; NULL: the address is the data directory's. */
const char *client_url(const struct cli *cli, enum client_as as);
/* It is not the server of the data directory: a command that changes that directory is of no use for it. */
bool client_is_elsewhere(struct cli *cli) must_use;
/* The address that the server of that data directory listens on; 0.0.0.0 becomes 127.0.0.1, which can be dialled. */
bool client_server_address(const char *data, char out_address[CLIENT_ADDRESS_BYTES], struct err *err) must_use;
/* For a command that starts it again: " --listen ADDRESS", or nothing if that is the default. In cli's arena. */
struct str client_listen_again(struct cli *cli);
/* False if the server of this directory was started with --mail off. */
bool client_server_has_mail(const char *data);
/*
 * For `env`: the server's domain, and the absolute path of its certificates. False if the server is older than these.
 */
bool client_server_domain(const char *data, char *out_domain, size_t domain_size, char *out_tls, size_t tls_size)
    must_use;
/* A one-line file of the data directory ("api-key", "admin-token"). */
bool client_read_secret(const char *data, const char *name, struct secret *out, struct err *err) must_use;

#endif
