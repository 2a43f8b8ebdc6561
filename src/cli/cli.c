/*
 * Tables first: commands, nouns, exit codes. A command line is one or two words that name a row of `commands`, then its
 * options and arguments (args.c). The help, the suggestions for a misspelled word and the exit codes come from the same
 * tables. Rows without a function are run by daemon/.
 */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/text.h"

/* ---- tables ---- */

static const char *const group_titles[GROUP_COUNT] = {
    [GROUP_SERVER] = "The server", [GROUP_SANDBOX] = "Sandboxes",
    [GROUP_MAIL] = "Mail",         [GROUP_ADMIN] = "Teams, keys and templates",
    [GROUP_OTHER] = "More",
};

static bool version_run(struct cli *cli, struct err *err);
static bool help_run(struct cli *cli, struct err *err);

static const struct command commands[] = {
    { "serve", GROUP_SERVER, "[--listen ADDR:PORT] [--data DIR] …", "run the server in the foreground",
      "Needs root to make sandboxes; everything that faces the network runs as an unprivileged user. The first start\n"
      "makes an API key in the data directory. Options can also be set in /etc/cloister/cloister.conf, one\n"
      "`name = value` per line.\n"
      "\n"
      "  sudo cloister serve\n"
      "  sudo cloister serve --listen 0.0.0.0:7070 --data /srv/cloister\n",
      0, 0, SIZE_MAX, 0, NULL },
    { "env", GROUP_SERVER, "[--data DIR] [--json]", "print the variables that point the SDKs at this server",
      "Shell lines for eval. The key in them is the server's first API key; those for mail are of the first inbox. "
      "SDKs that know no URL for sandboxes use\n"
      "E2B_DOMAIN by TLS; SSL_CERT_FILE names a file with the system's certificates and the local authority's.\n"
      "\n"
      "  eval \"$(sudo cloister env)\"\n",
      TAKES_DATA | TAKES_URL | TAKES_JSON, 0, 0, 0, env_run },
    { "doctor", GROUP_SERVER, "[--data DIR] [--json]", "check whether sandboxes can run on this machine",
      "Checks the kernel, namespaces, cgroups, disks and ports, prints what it found, and how to fix what is missing.\n"
      "The exit code is 8 when no sandbox can start, and 3 when some checks were skipped because they need root.\n"
      "\n"
      "  sudo cloister doctor\n",
      TAKES_DATA | TAKES_JSON, 0, 0, 0, NULL },

    { "sandbox list", GROUP_SANDBOX, "[--json]", "what is running or paused, newest first",
      "The sandboxes of the API key's team. STATE is running or paused; ENDS IN is the time left until the deadline,\n"
      "which a paused sandbox does not have. DISK is what a paused one takes there, once it was measured: its files,\n"
      "and its memory if that is on disk, compressed or not.\n"
      "\n"
      "  cloister sandbox list\n"
      "  cloister sandbox list --json | jq -r '.[].sandboxID'\n",
      TAKES_SERVER | TAKES_JSON, 0, 0, 0, sandbox_list_run },
    { "sandbox create", GROUP_SANDBOX,
      "[TEMPLATE] [--timeout SECONDS] [--internet | --no-internet] [--allow-out WHAT]… [--deny-out WHAT]…",
      "start a sandbox and print its id",
      "TEMPLATE is a template or a snapshot, `base` unless it is named. Without --internet and --no-internet the\n"
      "server's default counts: on, unless it was started with --internet off. A domain in --allow-out needs\n"
      "--no-internet, or --deny-out 0.0.0.0/0.\n"
      "\n"
      "  cloister sandbox create\n"
      "  cloister sandbox create --no-internet --allow-out pypi.org --allow-out '*.pythonhosted.org'\n",
      TAKES_SERVER | TAKES_JSON | TAKES_RULES | TAKES_TIMEOUT, 0, 1, 0, sandbox_create_run },
    { "sandbox info", GROUP_SANDBOX, "ID [--json]", "what is known of a sandbox, with its network rules",
      "  cloister sandbox info ID\n", TAKES_SERVER | TAKES_JSON, 1, 1, 0, sandbox_info_run },
    { "sandbox logs", GROUP_SANDBOX, "ID [--json]", "what has happened to a sandbox, and what its network refused",
      "Oldest first: its start and end, changes of its deadline and rules, commands that were started and ended, and\n"
      "connections that were refused, with the reason. Not the output of commands. The newest 1000 lines of the last\n"
      "7 days, also when the sandbox has ended.\n"
      "\n"
      "  cloister sandbox logs ID\n"
      "  cloister sandbox logs ID --json | jq -r '.[] | select(.level == \"warn\").message'\n",
      TAKES_SERVER | TAKES_JSON, 1, 1, 0, sandbox_logs_run },
    { "sandbox network", GROUP_SANDBOX,
      "ID [--internet | --no-internet] [--allow-out WHAT]… [--deny-out WHAT]… | --reset",
      "show or replace what a sandbox may reach",
      "Without options it shows the rules. With options these replace all rules that the sandbox had, its egress "
      "proxy\n"
      "and header rules too; connections that are no longer allowed are cut.\n"
      "\n"
      "  cloister sandbox network ID\n"
      "  cloister sandbox network ID --deny-out 203.0.113.0/24\n"
      "  cloister sandbox network ID --no-internet\n"
      "  cloister sandbox network ID --reset\n",
      TAKES_SERVER | TAKES_JSON | TAKES_RULES | TAKES_RESET, 1, 1, 0, sandbox_network_run },
    { "sandbox exec", GROUP_SANDBOX, "[-u USER] [-e NAME=VALUE]… [--cwd DIR] ID -- CMD…", "run a command in a sandbox",
      "Output is streamed. The exit code is the command's own (128 + N when signal N ended it; 125 when it could not "
      "be\n"
      "run at all). One word after the id is a line for the shell; several words are a command and its exact "
      "arguments.\n"
      "Standard input is not passed on. An interrupt ends the command too.\n"
      "\n"
      "  cloister sandbox exec ID 'ls | wc -l'\n"
      "  cloister sandbox exec -u root -e DEBUG=1 ID -- python3 -c 'import os; print(os.environ[\"DEBUG\"])'\n",
      TAKES_SERVER | TAKES_USER | TAKES_ENV | TAKES_CWD, 2, SIZE_MAX, 1, sandbox_exec_run },
    { "sandbox pause", GROUP_SANDBOX, "ID [--files-only] [--json]", "pause a sandbox with its files and processes",
      "Everything in it stands still: no processor time, no deadline, and its connections are cut. `sandbox resume`\n"
      "goes on where it was, with its processes. With --files-only the processes end, and a resume is a fresh start\n"
      "on the same files, with the same id. docs/persistence.md says what is kept.\n"
      "\n"
      "  cloister sandbox pause ID\n"
      "  cloister sandbox pause ID --files-only\n",
      TAKES_SERVER | TAKES_JSON | TAKES_FILES_ONLY, 1, 1, 0, sandbox_pause_run },
    { "sandbox resume", GROUP_SANDBOX, "ID [--timeout SECONDS] [--reboot] [--json]", "bring a paused sandbox back",
      "It lives for SECONDS from then on. One that runs already goes on running, and lives for SECONDS at least.\n"
      "--reboot leaves its processes behind and starts it afresh from its files: for one whose memory cannot be\n"
      "restored, for instance after an update of the kernel.\n"
      "\n"
      "  cloister sandbox resume ID\n"
      "  cloister sandbox resume ID --timeout 3600\n"
      "  cloister sandbox resume ID --reboot\n",
      TAKES_SERVER | TAKES_JSON | TAKES_TIMEOUT | TAKES_REBOOT, 1, 1, 0, sandbox_resume_run },
    { "sandbox fork", GROUP_SANDBOX, "ID [--count N] [--timeout SECONDS] [--json]",
      "copy a running sandbox, with its processes",
      "Prints the ids of the copies. The sandbox itself stands still for a moment and goes on. Each copy has an id\n"
      "and a token of its own, and lives for SECONDS. Needs a machine that can keep memory on disk; `doctor` tells.\n"
      "\n"
      "  cloister sandbox fork ID\n"
      "  cloister sandbox fork ID --count 5 --timeout 600\n",
      TAKES_SERVER | TAKES_JSON | TAKES_TIMEOUT | TAKES_COUNT, 1, 1, 0, sandbox_fork_run },
    { "sandbox kill", GROUP_SANDBOX, "ID… | --all", "end sandboxes and everything in them",
      "Prints the id of each sandbox it ended. --all ends every running and paused sandbox of the API key's team;\n"
      "paused ones lose their files. As root and without a key, --all ends those of all teams and prints only their\n"
      "number.\n"
      "\n"
      "  cloister sandbox kill i1x2y3z4\n"
      "  cloister sandbox kill --all\n"
      "  sudo cloister sandbox kill --all\n",
      TAKES_SERVER | TAKES_ALL, 0, SIZE_MAX, 0, sandbox_kill_run },

    { "snapshot create", GROUP_SANDBOX, "ID [--name NAME[:TAG]] [--files-only] [--json]",
      "keep a copy of a running sandbox and print its id",
      "The sandbox stands still for a moment and goes on. New sandboxes can be made from the snapshot as from a\n"
      "template: with the processes of the moment, or, with --files-only, with its files alone. A name that is\n"
      "used again gets a new build; the tag is `default` unless it is given.\n"
      "\n"
      "  cloister snapshot create ID --files-only\n"
      "  cloister snapshot create ID --name my-setup\n"
      "  cloister sandbox create my-setup\n",
      TAKES_SERVER | TAKES_JSON | TAKES_NAME | TAKES_FILES_ONLY, 1, 1, 0, snapshot_create_run },
    { "snapshot list", GROUP_SANDBOX, "[--sandbox ID] [--json]", "the team's snapshots, newest first, with their sizes",
      "FILES and MEMORY are what a snapshot takes on disk. A `-` below MEMORY: it has no processes.\n"
      "\n"
      "  cloister snapshot list\n"
      "  cloister snapshot list --sandbox ID\n"
      "  cloister snapshot list --json | jq -r '.[].snapshotID'\n",
      TAKES_SERVER | TAKES_JSON | TAKES_SANDBOX, 0, 0, 0, snapshot_list_run },
    { "snapshot delete", GROUP_SANDBOX, "SNAPSHOT [--json]", "delete a snapshot, with all tags of its name",
      "SNAPSHOT is an id or a name. A name is deleted with all its tags; NAME:TAG is accepted only if NAME has no\n"
      "other tag. Refused while a sandbox that was made from it runs or is paused. Prints what was deleted.\n"
      "\n"
      "  cloister snapshot delete my-setup\n",
      TAKES_SERVER | TAKES_JSON, 1, 1, 0, snapshot_delete_run },

    { "mail inbox create", GROUP_MAIL, "NAME [--tenant NAME] [--json]", "make an inbox and print its key, once",
      "NAME is the part of the address before the @. The key reads and sends; only with it can the inbox be read.\n"
      "The inbox is in the mode gated_send: a person approves each message before it leaves. A tenant that is not "
      "there\n"
      "yet is made, and the command says so; with --json the field made_tenant does.\n"
      "\n"
      "  sudo cloister mail inbox create sales-agent\n"
      "  sudo cloister mail inbox create helper --tenant acme --json\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_TENANT, 1, 1, 0, mail_inbox_create_run },
    { "mail inbox list", GROUP_MAIL, "[--json]", "the inboxes of all tenants", "  sudo cloister mail inbox list\n",
      TAKES_ADMIN | TAKES_JSON, 0, 0, 0, mail_inbox_list_run },
    { "mail inbox delete", GROUP_MAIL, "INBOX [--yes] [--json]", "delete an inbox; its address is not used again",
      "INBOX is an id or an address. Messages are overwritten after seven days; the audit stays.\n"
      "\n"
      "  sudo cloister mail inbox delete sales-agent@mail.cloister.localhost\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_YES, 1, 1, 0, mail_inbox_delete_run },
    { "mail pending", GROUP_MAIL, "[--json]", "messages that wait for a person, of all tenants",
      "  sudo cloister mail pending\n", TAKES_ADMIN | TAKES_JSON, 0, 0, 0, mail_pending_run },
    { "mail show", GROUP_MAIL, "ID [--json]", "exactly what would leave, and a link to the page that decides",
      "All recipients with copies, the text, attachments with their hashes, warnings, and what it answers. Works only\n"
      "for messages that are held. The link works once; without JavaScript too.\n"
      "\n"
      "  sudo cloister mail show em_01…\n",
      TAKES_ADMIN | TAKES_JSON, 1, 1, 0, mail_show_run },
    { "mail approve", GROUP_MAIL, "ID [--reason TEXT] [--sha256 HEX] [--yes] [--json]", "let a held message leave",
      "Shows the message first, and asks if this is a terminal; elsewhere the command is the decision. What is "
      "approved are the bytes with the hash that was\n"
      "shown: if they have changed meanwhile, nothing leaves.\n"
      "\n"
      "  sudo cloister mail approve em_01…\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_REASON | TAKES_DECISION | TAKES_YES, 1, 1, 0, mail_approve_run },
    { "mail reject", GROUP_MAIL, "ID [--reason TEXT] [--sha256 HEX] [--yes] [--json]", "refuse a held message",
      "  sudo cloister mail reject em_01… --reason 'wrong price'\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_REASON | TAKES_DECISION | TAKES_YES, 1, 1, 0, mail_reject_run },
    { "mail mode", GROUP_MAIL, "INBOX [MODE] [--json]", "show or set what an inbox may do without a person",
      "From the least freedom to the most: read_only, gated_all, gated_send, monitored, autonomous. An agent can "
      "lower\n"
      "its own mode, and raise it only with a code of yours (`mail codes`).\n"
      "\n"
      "  sudo cloister mail mode sales-agent@mail.cloister.localhost gated_all\n",
      TAKES_ADMIN | TAKES_JSON, 1, 2, 0, mail_mode_run },
    { "mail allow list", GROUP_MAIL, "INBOX [--json]", "recipients that an inbox may write to without approval",
      "  sudo cloister mail allow list INBOX\n", TAKES_ADMIN | TAKES_JSON, 1, 1, 0, mail_allow_list_run },
    { "mail allow add", GROUP_MAIL, "INBOX PATTERN [--json]", "add an address, or *@domain",
      "Counts in the mode gated_send only, and only if all recipients of a message are on the list.\n"
      "\n"
      "  sudo cloister mail allow add INBOX boss@example.com\n"
      "  sudo cloister mail allow add INBOX '*@example.com'\n",
      TAKES_ADMIN | TAKES_JSON, 2, 2, 0, mail_allow_add_run },
    { "mail allow remove", GROUP_MAIL, "INBOX ID [--json]", "remove an entry",
      "  sudo cloister mail allow remove INBOX ID\n", TAKES_ADMIN | TAKES_JSON, 2, 2, 0, mail_allow_remove_run },
    { "mail key create", GROUP_MAIL, "NAME [--scopes LIST] [--tenant NAME] [--json]",
      "make a key that approves, and print it, once",
      "The key decides about held mail of its tenant and reads nothing else. Keys that read and send are made with\n"
      "their inbox, or by a key of that inbox. The tenant must be there already: `mail inbox list` shows them.\n"
      "\n"
      "  sudo cloister mail key create anna --scopes oversight\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_SCOPES | TAKES_TENANT, 1, 1, 0, mail_key_create_run },
    { "mail key list", GROUP_MAIL, "[--json]", "mail's keys, without their secret part",
      "  sudo cloister mail key list\n", TAKES_ADMIN | TAKES_JSON, 0, 0, 0, mail_key_list_run },
    { "mail key revoke", GROUP_MAIL, "ID [--json]", "revoke one; it stops working at once",
      "  sudo cloister mail key revoke ID\n", TAKES_ADMIN | TAKES_JSON, 1, 1, 0, mail_key_revoke_run },
    { "mail codes", GROUP_MAIL, "[--json]", "one-time codes that agents have asked for",
      "An agent that wants a higher mode, a key, a webhook or an entry in its allowlist asks for a code. Give it the\n"
      "code if you agree; it is for exactly this request, for 24 hours.\n"
      "\n"
      "  sudo cloister mail codes\n",
      TAKES_ADMIN | TAKES_JSON, 0, 0, 0, mail_codes_run },
    { "mail oversight", GROUP_MAIL, "ADDRESS | none [--tenant NAME] [--json]",
      "where blind copies of what monitored inboxes send go", "  sudo cloister mail oversight boss@example.com\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_TENANT, 1, 1, 0, mail_oversight_run },
    { "mail grant create", GROUP_MAIL,
      "--to KEY|INBOX --inbox INBOX --verbs list,read --expires SECONDS --reason TEXT [--json]",
      "let a key read another inbox for some time",
      "Reading only. It takes effect when the inbox's own key is next used, because only that can open the inbox. "
      "Each\n"
      "use is in the audit of the inbox that is read.\n"
      "\n"
      "  sudo cloister mail grant create --to KEY --inbox INBOX --verbs list,read --expires 3600 --reason 'handover'\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_GRANT | TAKES_REASON, 0, 0, 0, mail_grant_create_run },
    { "mail grant list", GROUP_MAIL, "[--json]", "all grants", "  sudo cloister mail grant list\n",
      TAKES_ADMIN | TAKES_JSON, 0, 0, 0, mail_grant_list_run },
    { "mail grant revoke", GROUP_MAIL, "ID [--json]", "revoke one, at once", "  sudo cloister mail grant revoke ID\n",
      TAKES_ADMIN | TAKES_JSON, 1, 1, 0, mail_grant_revoke_run },
    { "mail audit", GROUP_MAIL, "INBOX [--json]", "what was done in an inbox, newest first",
      "Hashes instead of contents. Each row has the hash of the row before.\n"
      "\n"
      "  sudo cloister mail audit INBOX\n",
      TAKES_ADMIN | TAKES_JSON, 1, 1, 0, mail_audit_run },
    { "mail audit verify", GROUP_MAIL, "[INBOX] [--json]", "check that no audit was changed",
      "The exit code is 5 if one was.\n"
      "\n"
      "  sudo cloister mail audit verify\n",
      TAKES_ADMIN | TAKES_JSON, 0, 1, 0, mail_audit_verify_run },

    { "mcp", GROUP_MAIL, "[--url URL]", "mail's tools for an MCP client, on standard input and output",
      "For clients that start a program. The key in MULTIMAIL_API_KEY or LOBSTERMAIL_TOKEN decides which tools there "
      "are;\n"
      "clients that speak HTTP use the server's /mcp with the same key.\n"
      "\n"
      "  eval \"$(sudo cloister env)\"\n"
      "  cloister mcp\n",
      TAKES_MAIL_URL, 0, 0, 0, mcp_run },

    { "team create", GROUP_ADMIN, "NAME [--json]", "make a team, whose sandboxes no other team reaches",
      "Prints its id. It has no keys yet: `key create NAME --team TEAM` makes one. A team's name must have\n"
      "1 to 63 characters of a-z, 0-9, - and _, and begin with a letter or a digit.\n"
      "\n"
      "  sudo cloister team create research\n"
      "  KEY=$(sudo cloister key create ci --team research)\n",
      TAKES_ADMIN | TAKES_JSON, 1, 1, 0, team_create_run },
    { "team list", GROUP_ADMIN, "[--json]", "all teams, with the number of their keys and running sandboxes",
      "  sudo cloister team list\n", TAKES_ADMIN | TAKES_JSON, 0, 0, 0, team_list_run },
    { "team delete", GROUP_ADMIN, "NAME | ID [--force]", "delete a team that is not needed any more",
      "Refuses while the team has API keys or running sandboxes: revoke and kill them first, or use --force. The team\n"
      "`default` cannot be deleted, because the server's first key belongs to it.\n"
      "\n"
      "  sudo cloister team delete research\n"
      "  sudo cloister team delete research --force\n",
      TAKES_ADMIN | TAKES_FORCE, 1, 1, 0, team_delete_run },
    { "key create", GROUP_ADMIN, "[NAME] [--team TEAM] [--json]", "make an API key and print it, once",
      "Uses the admin token of the data directory, so it needs root. Only the key goes to standard output.\n"
      "A key reaches all sandboxes of its team and no others; `team create` makes teams.\n"
      "\n"
      "  KEY=$(sudo cloister key create ci)\n"
      "  KEY=$(sudo cloister key create ci --team research)\n",
      TAKES_ADMIN | TAKES_JSON | TAKES_TEAM, 0, 1, 0, key_create_run },
    { "key list", GROUP_ADMIN, "[--json]", "the keys of all teams, without their secret part",
      "With the id and the team of each, and when it was last used.\n"
      "\n"
      "  sudo cloister key list\n",
      TAKES_ADMIN | TAKES_JSON, 0, 0, 0, key_list_run },
    { "key revoke", GROUP_ADMIN, "ID | NAME", "revoke a key; it stops working at once",
      "By its id, or by its name if only one key has that name. Its sandboxes keep running until their deadlines.\n"
      "\n"
      "  sudo cloister key revoke ci\n",
      TAKES_ADMIN, 1, 1, 0, key_revoke_run },
    { "template list", GROUP_ADMIN, "[--json]", "what sandboxes can start from, and what else could be built",
      "Templates of the API key's team and of the operator. SIZE is what a template takes on disk, with what it "
      "shares\n"
      "with others; of the operator's it is not known.\n"
      "\n"
      "  cloister template list\n"
      "  cloister template list --json | jq -r '.[].templateID'\n",
      TAKES_SERVER | TAKES_JSON, 0, 0, 0, template_list_run },
    { "template inspect", GROUP_ADMIN, "NAME[:TAG] [--json]", "what a template is made of, and who uses it",
      "Its names, tags and layers, with the step that made each; SHARED says that another template of the team, or of\n"
      "the operator, has the layer too. What uses it is counted in the API key's team. Of another team's template "
      "that\n"
      "is public, steps and commands are not shown.\n"
      "\n"
      "  cloister template inspect hello\n"
      "  cloister template inspect hello:v2 --json | jq '.layers'\n",
      TAKES_SERVER | TAKES_JSON, 1, 1, 0, template_inspect_run },
    { "template tag", GROUP_ADMIN, "NAME[:TAG] NEW-TAG… [--json]", "give more tags to a build",
      "The tag must be of a ready build; it is `default` unless it is given. A new tag that the template has already\n"
      "moves to this build.\n"
      "\n"
      "  cloister template tag hello:v2 stable\n"
      "  cloister sandbox create hello:stable\n",
      TAKES_SERVER | TAKES_JSON, 2, SIZE_MAX, 0, template_tag_run },
    { "template untag", GROUP_ADMIN, "NAME TAG… [--json]", "remove tags; the builds stay",
      "The tag `default` cannot be removed.\n"
      "\n"
      "  cloister template untag hello stable\n",
      TAKES_SERVER | TAKES_JSON, 2, SIZE_MAX, 0, template_untag_run },
    { "template delete", GROUP_ADMIN, "NAME [--json]", "delete a template with all its tags and builds",
      "Refused while one of the team's sandboxes that was made from it runs or is paused. Layers that nothing else "
      "needs\n"
      "are removed soon after; its steps stay in the cache for a while, and `template prune` removes them at once.\n"
      "\n"
      "  cloister template delete hello\n",
      TAKES_SERVER | TAKES_JSON, 1, 1, 0, template_delete_run },
    { "template disk", GROUP_ADMIN, "[--json]", "what templates, their cache and uploads take on disk",
      "OWN is what goes when the template is deleted and pruned, SHARED what other templates have as well. As root "
      "and\n"
      "without a key: of all teams, with downloaded images.\n"
      "\n"
      "  cloister template disk\n"
      "  sudo cloister template disk\n",
      TAKES_SERVER | TAKES_JSON, 0, 0, 0, template_disk_run },
    { "template prune", GROUP_ADMIN, "[--dry-run] [--json]", "remove what no template, snapshot or sandbox needs",
      "Cached steps and what they have kept, and uploads that were not used in the last hour. Builds that run go on, "
      "and\n"
      "keep what they are on; the next build of a recipe may have to run steps again. As root and without a key: of "
      "all\n"
      "teams, with downloaded images. Prints what was freed.\n"
      "\n"
      "  cloister template prune --dry-run\n"
      "  sudo cloister template prune\n",
      TAKES_SERVER | TAKES_JSON | TAKES_DRY_RUN, 0, 0, 0, template_prune_run },
    { "template build", GROUP_ADMIN, "DIR|Dockerfile [--name NAME[:TAG]] … | base | code-interpreter",
      "make a template from a Dockerfile, or one of those that Cloister brings",
      "DIR has a Dockerfile (or an e2b.Dockerfile) and the files that it copies; .dockerignore counts. Its steps run "
      "on\n"
      "the server, in sandboxes, and those that have not changed come from its cache. Needs an API key, no root and "
      "no\n"
      "Docker. CMD or ENTRYPOINT, or --start, becomes a service that runs in every sandbox already. Ctrl-C cancels.\n"
      "\n"
      "  cloister template build . --name hello\n"
      "  cloister template build docker/Dockerfile.dev --name hello:dev --build-arg VERSION=3.12\n"
      "  cloister template build web --start 'python3 -m http.server 8000' --ready 'curl -sf localhost:8000'\n"
      "  cloister sandbox create hello\n"
      "\n"
      "`base` and `code-interpreter` are recipes, made from Debian packages by root of the server; ./base is a\n"
      "directory. code-interpreter is base with IPython, the usual Python packages, Bash, JavaScript, TypeScript, R "
      "and\n"
      "Java for run_code. They take a few minutes, and 1 GiB and 2.2 GiB below the data directory. It is safe to\n"
      "interrupt: a template is added whole or not at all. One that is up to date is built again only with --again.\n"
      "\n"
      "  sudo cloister template build base\n"
      "  sudo cloister template build code-interpreter\n",
      TAKES_SERVER | TAKES_JSON | TAKES_BUILD | TAKES_SIZE, 1, 1, 0, template_build_run },

    { "template import", GROUP_ADMIN, "FILE | DIR [--name NAME[:TAG]] [--image NAME] [--cpu N] [--memory MIB] [--json]",
      "make a template from an image in a file",
      "FILE is an archive of `docker save`, or a tar of an OCI layout; it may be compressed by gzip or zstd. DIR is "
      "an\n"
      "OCI layout, as `skopeo copy … oci:DIR` and umoci make it. The image is uploaded, so the server may be another\n"
      "machine, and needs no registry. The template belongs to the API key's team. What is added to the image, and\n"
      "which parts of it are not used: docs/images.md. The log goes to standard error, the name to standard output.\n"
      "\n"
      "  docker save python:3.13 | zstd > python.tar.zst && cloister template import python.tar.zst\n"
      "  cloister template import ./layout --name mine:v2 --image v2 --cpu 2 --memory 2048\n"
      "  cloister sandbox create mine:v2\n",
      TAKES_SERVER | TAKES_JSON | TAKES_IMPORT | TAKES_SIZE, 1, 1, 0, template_import_run },

    { "help", GROUP_OTHER, "[COMMAND]", "this text, or the help of one command",
      "COMMAND --help prints the same.\n"
      "\n"
      "  cloister help sandbox exec\n"
      "  cloister help exit-codes\n",
      0, 0, 3, 0, help_run },
    { "version", GROUP_OTHER, "", "which Cloister this is", "  cloister version\n", 0, 0, 0, 0, version_run },
};

/* The first words of commands that have two, for `cloister sandbox --help`. */
static const struct noun {
    const char *name;
    const char *about;
    const char *example;
} nouns[] = {
    { "sandbox",
      "A sandbox is a fresh Debian system in which an agent runs commands, until its deadline passes or it is killed.\n"
      "The SDKs create sandboxes; these commands do too, and manage them. They use the server that E2B_API_URL and\n"
      "E2B_API_KEY name. Without a key they use the server of the data directory, which needs root.\n",
      "  eval \"$(sudo cloister env)\"\n"
      "  cloister sandbox list\n"
      "  cloister sandbox exec ID -- python3 -c 'print(6 * 7)'\n" },
    { "snapshot",
      "A snapshot is a copy of a sandbox at one moment. New sandboxes can be made from it, any number of times, as\n"
      "from a template. It belongs to the API key's team and stays until it is deleted.\n",
      "  cloister snapshot create ID --name my-setup\n"
      "  cloister sandbox create my-setup\n"
      "  cloister snapshot list\n" },
    { "mail",
      "An agent's inbox has an address, a key and a file of its own. Messages leave only after a person has approved "
      "exactly\n"
      "those bytes, unless the inbox's mode says otherwise. These commands send the data directory's admin token to "
      "its\n"
      "server: they decide for all tenants, and read nothing but what is held.\n",
      "  sudo cloister mail pending\n"
      "  sudo cloister mail approve ID\n" },
    { "team",
      "A team owns sandboxes. Every key of a team reaches all of them; for keys of other teams they do not exist. The\n"
      "team `default` always exists. All teams share the operator's templates. Make a team for each party that must\n"
      "be kept apart from the others. These commands send the data directory's admin token to its server, or to\n"
      "--url; they ignore E2B_API_URL.\n",
      "  sudo cloister team create research\n"
      "  sudo cloister key create ci --team research\n" },
    { "key",
      "A client authenticates with an API key (E2B_API_KEY). The server stores only hashes of keys. Making and "
      "revoking\n"
      "keys needs the admin token in the data directory, which only root can read. The token goes to the server of "
      "that\n"
      "directory, or to --url; these commands ignore E2B_API_URL.\n",
      "  sudo cloister key create ci\n"
      "  sudo cloister key revoke ci\n" },
    { "template",
      "A sandbox starts from a template. Your own is built from a Dockerfile, without root and without Docker; E2B's "
      "SDKs\n"
      "and its command line do that too: docs/templates.md. `base` has Python, Node.js, git and a compiler;\n"
      "`code-interpreter` is base and everything for run_code. These two are built on the server, from Debian "
      "packages.\n",
      "  cloister template build . --name hello\n"
      "  cloister sandbox create hello\n"
      "  sudo cloister template build code-interpreter\n"
      "  cloister template list\n" },
};

/* Exit codes; `cloister help exit-codes` prints these rows. */
static const struct {
    int code;
    const char *meaning;
} exit_codes[ERR_KIND_COUNT] = {
    [ERR_NONE] = { 0, "done" },
    [ERR_INTERNAL] = { 1, "internal error, here or in the server" },
    [ERR_INVALID] = { 2, "the command line or the request was wrong" },
    [ERR_DENIED] = { 3, "not allowed: no root, or a wrong key" },
    [ERR_NOT_FOUND] = { 4, "not found" },
    [ERR_CONFLICT] = { 5, "not possible in the present state" },
    [ERR_LIMIT] = { 6, "too much or too many" },
    [ERR_TIMEOUT] = { 7, "it took too long" },
    [ERR_UNAVAILABLE] = { 8, "no server answers, or it cannot do it now" },
    [ERR_FULL] = { 9, "no room on disk, here or on the server" },
};

int cli_exit_code(enum err_kind kind)
{
    return exit_codes[kind].code;
}

int cli_fail(const struct err *err)
{
    /* The message is enough, except after a failed system call: then only the trail names the file or call. */
    if (err->sys && err->trail[0])
        fprintf(stderr, "cloister: %s\n", err_text(err));
    else
        fprintf(stderr, "cloister: %s\n", err->message);
    return cli_exit_code(err->kind);
}

/* err has room for the beginning of a long message; that of the server's is printed whole, with the advice at its end. */
static int fail(const struct cli *cli, const struct err *err)
{
    struct str rest = cli->refusal;

    if (strlen(err->message) < sizeof err->message - 1 || !str_skip(&rest, str_from(err->message)))
        return cli_fail(err);
    fprintf(stderr, "cloister: %.*s\n", STR_ARG(cli->refusal));
    return cli_exit_code(err->kind);
}

/* ---- help ---- */

/* Common spellings of help and version. */
static const char *const aliases[][2] = {
    { "--help", "help" },
    { "-h", "help" },
    { "--version", "version" },
    { "-V", "version" },
};

static const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(aliases); i++)
        if (strcmp(aliases[i][0], name) == 0)
            name = aliases[i][1];
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void print_sentence(FILE *out, const char *words)
{
    fprintf(out, "%c%s.\n", words[0] >= 'a' && words[0] <= 'z' ? words[0] - 'a' + 'A' : words[0], words + 1);
}

bool cli_help(FILE *out, const char *name)
{
    const struct command *command = command_find(name);

    if (!command)
        return false;
    fprintf(out, "%s %s %s\n\n", cli_program(), command->name, command->synopsis);
    print_sentence(out, command->help);
    fputc('\n', out);
    cli_teach(out, command->more);
    if (command->takes) {
        fprintf(out, "\nOptions\n");
        args_help(out, command->takes);
    }
    return true;
}

static const struct noun *noun_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(nouns); i++)
        if (strcmp(nouns[i].name, name) == 0)
            return &nouns[i];
    return NULL;
}

/* The command's name after the noun, or NULL if it is not a command of this noun. */
static const char *verb_of(const struct command *command, const char *noun)
{
    struct str rest = str_from(command->name);

    return str_skip(&rest, str_from(noun)) && str_skip(&rest, STR(" ")) ? rest.at : NULL;
}

static void noun_help(FILE *out, const struct noun *noun)
{
    cli_teach(out, noun->about);
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        if (!verb_of(&commands[i], noun->name))
            continue;
        fprintf(out, "\n%s %s %s\n    ", cli_program(), commands[i].name, commands[i].synopsis);
        print_sentence(out, commands[i].help);
    }
    fprintf(out, "\nFor example\n");
    cli_teach(out, noun->example);
    fprintf(out, "\n`%s help %s COMMAND` prints the help of one of them.\n", cli_program(), noun->name);
}

static void print_overview(FILE *out)
{
    cli_teach(out, "Cloister runs sandboxes for AI agents on your own machine and speaks E2B's API.\n"
                   "\n"
                   "  cloister COMMAND [OPTIONS]\n"
                   "  cloister help COMMAND\n"
                   "  cloister help exit-codes\n");
    for (size_t group = 0; group < GROUP_COUNT; group++) {
        fprintf(out, "\n%s\n", group_titles[group]);
        for (size_t i = 0; i < COUNT_OF(commands); i++)
            if (commands[i].group == group)
                fprintf(out, "  %-19s%s\n", commands[i].name, commands[i].help);
    }
    cli_teach(out, "\n"
                   "To begin: start the server, point another shell and the SDKs at it, list what is running\n"
                   "  sudo cloister serve\n"
                   "  eval \"$(sudo cloister env)\"\n"
                   "  python3 -c 'from e2b import Sandbox; print(Sandbox.create().commands.run(\"uname -a\").stdout)'\n"
                   "  cloister sandbox list\n");
}

static void print_exit_codes(FILE *out)
{
    fprintf(out, "Exit codes\n");
    for (int code = 0; code < ERR_KIND_COUNT; code++)
        for (size_t kind = 0; kind < ERR_KIND_COUNT; kind++)
            if (exit_codes[kind].code == code)
                fprintf(out, "  %d  %s\n", code, exit_codes[kind].meaning);
    fprintf(out, "`sandbox exec` returns the exit code of its command, or 125 when the command could not be run.\n");
}

/* ---- which command ---- */

/* "list, exec, kill": the verbs of a noun; or, for a verb alone, the commands that have it. */
static void list_choices(const char *noun, const char *verb, char *room, size_t size)
{
    room[0] = '\0';
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        const char *space = strchr(commands[i].name, ' ');
        const char *choice = noun ? verb_of(&commands[i], noun) : commands[i].name;
        if (!choice || (verb && (!space || strcmp(space + 1, verb) != 0)))
            continue;
        /* Of "inbox create" and "inbox list", which stand together, "inbox" once. */
        int len = noun ? (int)strcspn(choice, " ") : (int)strlen(choice);
        size_t used = strlen(room);
        if (noun && used >= (size_t)len && strncmp(room + used - (size_t)len, choice, (size_t)len) == 0)
            continue;
        (void)snprintf(room + used, size - used, "%s%.*s", used ? ", " : "", len, choice);
    }
}

static const char *nearest_command(const char *typed)
{
    const char *names[COUNT_OF(commands) + COUNT_OF(nouns)];
    size_t count = 0;

    for (size_t i = 0; i < COUNT_OF(nouns) && !strchr(typed, ' '); i++)
        names[count++] = nouns[i].name;
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        names[count++] = commands[i].name;
    return text_nearest(typed, names, count);
}

/* Explains the mistake: a noun alone, a misspelled word, a verb alone, or an unknown word. */
static bool unknown_command(const char *first, const char *second, struct err *err)
{
    const struct noun *noun = noun_find(first);
    char typed[80], choices[120];

    (void)snprintf(typed, sizeof typed, "%s%s%s", first, second ? " " : "", second ? second : "");
    list_choices(noun ? first : NULL, noun ? NULL : first, choices, sizeof choices);
    if (noun && !second)
        return err_set(err, ERR_INVALID, "'%s' needs one more word: %s; see `%s %s --help`", first, choices,
                       cli_program(), first);
    const char *meant = nearest_command(typed);
    if (!meant && !noun)
        meant = nearest_command(first);
    if (meant)
        return err_set(err, ERR_INVALID, "there is no command '%.60s'; did you mean '%s'?", typed, meant);
    if (noun)
        return err_set(err, ERR_INVALID, "there is no '%.40s %.40s'; there are %s", first, second, choices);
    if (choices[0])
        return err_set(err, ERR_INVALID, "there is no command '%.40s'; did you mean %s%s?", first,
                       strchr(choices, ',') ? "one of: " : "", choices);
    return err_set(err, ERR_INVALID, "there is no command '%.60s'; `%s help` lists them", first, cli_program());
}

/* One to three words; *out_used says how many. */
static const struct command *command_choose(int argc, char **argv, int *out_used, struct err *err)
{
    char pair[80];

    for (int words = 3; words >= 1; words--) {
        if (words > argc)
            continue;
        (void)snprintf(pair, sizeof pair, "%s%s%s%s%s", argv[0], words > 1 ? " " : "", words > 1 ? argv[1] : "",
                       words > 2 ? " " : "", words > 2 ? argv[2] : "");
        const struct command *command = command_find(pair);
        if (command) {
            *out_used = words;
            return command;
        }
    }
    (void)unknown_command(argv[0], argc > 1 && argv[1][0] != '-' ? argv[1] : NULL, err);
    return NULL;
}

static bool help_run(struct cli *cli, struct err *err)
{
    int used;

    if (cli->word_count == 0) {
        print_overview(cli->out);
        return true;
    }
    if (cli->word_count == 1 && strcmp(cli->words[0], "exit-codes") == 0) {
        print_exit_codes(cli->out);
        return true;
    }
    /* `help key` prints the help of all key commands. */
    const struct noun *noun = cli->word_count == 1 ? noun_find(cli->words[0]) : NULL;
    if (noun) {
        noun_help(cli->out, noun);
        return true;
    }
    const struct command *command = command_choose((int)cli->word_count, cli->words, &used, err);
    return command && cli_help(cli->out, command->name);
}

static bool version_run(struct cli *cli, struct err *err)
{
    (void)err;
    fprintf(cli->out, "cloister " CLOISTER_VERSION "\n");
    return true;
}

/* ---- running one ---- */

const char *cli_first_word(const char *name, int argc, char **argv)
{
    const struct command *command = command_find(name);

    return command ? args_first_word(argc, argv, command) : NULL;
}

void cli_init(struct cli *cli, FILE *out, FILE *note)
{
    *cli = (struct cli){ .out = out, .note = note };
    arena_init(&cli->arena);
    cli->is_colored = isatty(fileno(out)) && !getenv("NO_COLOR");
}

void cli_done(struct cli *cli)
{
    arena_done(&cli->arena);
}

const char *cli_same_server(struct cli *cli)
{
    struct buf text = buf_make(&cli->arena, 8192);

    if (cli->url) {
        buf_add(&text, STR(" --url "));
        text_shell_quote(&text, str_from(cli->url));
    }
    if (cli->data) {
        buf_add(&text, STR(" --data "));
        text_shell_quote(&text, str_from(cli->data));
    }
    buf_add_char(&text, '\0');
    return text.overflowed ? "" : text.data;
}

static bool run(struct cli *cli, const struct command *command, int argc, char **argv, struct err *err)
{
    if (!args_parse(argc, argv, command, cli, err))
        return false;
    if (cli->help)
        return cli_help(cli->out, command->name);
    if (!command->run)
        return err_set(err, ERR_INTERNAL, "'%s' is not part of this program", command->name);
    return command->run(cli, err);
}

static bool is_help(const char *word)
{
    const struct command *command = command_find(word);

    return command && command->run == help_run;
}

/* "mail inbox": the beginning of several commands. */
static bool is_group(const char *noun, const char *word)
{
    size_t len = strlen(word);

    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        const char *verb = verb_of(&commands[i], noun);
        if (verb && strncmp(verb, word, len) == 0 && verb[len] == ' ')
            return true;
    }
    return false;
}

int cli_main(int argc, char **argv, const struct cli_facts *facts)
{
    struct err err;
    struct cli cli;
    int used = 0;

    if (argc < 2) {
        print_overview(stderr);
        return cli_exit_code(ERR_INVALID);
    }
    const struct noun *noun = noun_find(argv[1]);
    if (noun && ((argc > 2 && is_help(argv[2])) || (argc > 3 && is_help(argv[3]) && is_group(noun->name, argv[2])))) {
        noun_help(stdout, noun);
        return 0;
    }
    const struct command *command = command_choose(argc - 1, argv + 1, &used, &err);
    if (!command)
        return cli_fail(&err);
    cli_init(&cli, stdout, stderr);
    cli.facts = facts;
    bool fine = run(&cli, command, argc - 1 - used, argv + 1 + used, &err);
    int code = fine ? cli.exit_code : fail(&cli, &err);
    if (!fine && cli.exit_code)
        code = cli.exit_code; /* exec: one of our codes could be mistaken for the command's */
    /* Output that cannot be written, on a full disk for instance, must not look like success. */
    if (fine && fflush(stdout) != 0) {
        if (errno != EPIPE) /* the reader has closed the pipe: no message */
            fprintf(stderr, "cloister: the output could not be written: %s\n", strerror(errno));
        code = cli_exit_code(ERR_INTERNAL);
    }
    cli_done(&cli);
    return code;
}
