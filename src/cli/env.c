/*
 * env.c - the lines that point an unmodified SDK at this server: three for SDKs that know a URL for sandboxes, five for those
 * that only know a domain, which they reach by TLS, and for curl, and four for clients of mail, with the keys of the first
 * inbox.
 */
#include <limits.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/text.h"
#include "http/http.h"

#define HEALTH_TIMEOUT_MS 3000

enum { LINES_MAX = 12, DOMAIN_BYTES = 600 };

/* Only a warning: the lines are right for a server that starts later, too. */
static void warn_when_silent(struct cli *cli, const char *address)
{
    struct http_answer answer;
    struct err err;

    if (http_fetch(&cli->arena, str_from(address), STR("GET"), STR("/health"), NULL, 0, STR(""), HEALTH_TIMEOUT_MS,
                   &answer, &err))
        return;
    if (cli->url)
        fprintf(cli->note, "warning: no server answers at %s\n", address);
    else
        fprintf(cli->note, "warning: no server answers at %s, the last address of %s; `%s serve%s%.*s` starts one\n",
                address, cli_data(cli), cli_program_as_root(), cli_same_server(cli), STR_ARG(client_listen_again(cli)));
}

bool env_run(struct cli *cli, struct err *err)
{
    char address[CLIENT_ADDRESS_BYTES];
    auto_wipe struct secret key = { 0 }, inbox_key = { 0 }, token = { 0 };
    struct err no_mail;

    if (cli->url ? !client_parse_url(str_from(cli->url), address, err)
                 : !client_server_address(cli_data(cli), address, err))
        return false;
    if (!client_read_secret(cli_data(cli), "api-key", &key, err))
        return false;

    /* One port serves both: the API, and every sandbox by the routing headers that the SDKs send anyway. */
    struct str url = arena_format(&cli->arena, "http://%s", address);
    struct line {
        const char *name;
        struct str value;
    } lines[LINES_MAX] = {
        { "E2B_API_URL", url },
        { "E2B_SANDBOX_URL", url },
        { "E2B_API_KEY", secret_reveal(&key) },
    };
    size_t count = 3;
    char domain[DOMAIN_BYTES], tls[PATH_MAX];
    /* Another address than the directory's own may be of another machine, where this domain leads elsewhere. */
    if (!cli->url && client_server_domain(cli_data(cli), domain, sizeof domain, tls, sizeof tls)) {
        struct str bundle = arena_format(&cli->arena, "%s/ca-bundle.pem", tls);
        lines[count++] = (struct line){ "E2B_DOMAIN", str_from(domain) };
        lines[count++] = (struct line){ "SSL_CERT_FILE", bundle };
        lines[count++] = (struct line){ "REQUESTS_CA_BUNDLE", bundle }; /* requests knows only this one */
        lines[count++] = (struct line){ "CURL_CA_BUNDLE", bundle }; /* curl heeds SSL_CERT_DIR before SSL_CERT_FILE */
        lines[count++] = (struct line){ "NODE_EXTRA_CA_CERTS", bundle };
    }
    /* A server with --mail off has made no keys; those of an earlier start do not work with it. */
    if (client_server_has_mail(cli_data(cli)) &&
        client_read_secret(cli_data(cli), "multimail-key", &inbox_key, &no_mail) &&
        client_read_secret(cli_data(cli), "lobstermail-token", &token, &no_mail)) {
        lines[count++] = (struct line){ "MULTIMAIL_API_URL", url };
        lines[count++] = (struct line){ "MULTIMAIL_API_KEY", secret_reveal(&inbox_key) };
        lines[count++] = (struct line){ "LOBSTERMAIL_API_URL", url };
        lines[count++] = (struct line){ "LOBSTERMAIL_TOKEN", secret_reveal(&token) };
    }
    struct buf text = buf_make(&cli->arena, LINES_MAX * PATH_MAX);
    if (cli->json) {
        struct json_out out = json_out_to(&text);
        json_out_object(&out, NULL);
        for (size_t i = 0; i < count; i++)
            json_out_str(&out, lines[i].name, lines[i].value);
        json_out_end(&out);
        buf_add_char(&text, '\n');
    } else {
        for (size_t i = 0; i < count; i++) {
            buf_format(&text, "export %s=", lines[i].name);
            text_shell_quote(&text, lines[i].value);
            buf_add_char(&text, '\n');
        }
    }
    fwrite(text.data, 1, text.len, cli->out);
    explicit_bzero(text.data, text.len);
    warn_when_silent(cli, address);
    return true;
}
