/*
 * limits.h - every size and time that a peer influences, with its reason.
 *
 * A request beyond one of these fails as ERR_LIMIT (or ERR_TIMEOUT), with a message that names the limit.
 */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

/* HTTP, both directions */
#define LIMIT_HEAD_BYTES (64 * 1024)        /* request or status line plus headers; signed links and cookies are long */
#define LIMIT_HEADERS 128                   /* SDKs send about 25 */
#define LIMIT_TARGET_BYTES (16 * 1024)      /* path and query; metadata filters are encoded three times */
#define LIMIT_CHUNK_LINE_BYTES 1024         /* chunk size line with extensions */
#define LIMIT_API_BODY_BYTES (16 << 20)     /* a request with code for an interpreter */
#define LIMIT_PUBLIC_BODY_BYTES (64 * 1024) /* a request without a key: a decision about mail with its reason */
#define LIMIT_CALL_BODY_BYTES (1 << 20)  /* a request to the server's own API: a create has 192 KiB, before escapes */
#define LIMIT_COLLECT_BYTES (64 << 20)   /* request bodies in a server's memory, all connections together */
#define LIMIT_DISCARD_BYTES (256 * 1024) /* of an unwanted body, read so that the connection can be used again */
#define LIMIT_HEAD_MS 30000              /* from the first byte of a head to its end: slow-loris */
#define LIMIT_BODY_IDLE_MS 120000        /* between two reads of a body */
#define LIMIT_WRITE_IDLE_MS 120000       /* a client that reads less than LIMIT_WRITE_LEAST_BYTES in this time… */
#define LIMIT_WRITE_LEAST_BYTES 65536    /* …while more was waiting for it (550 bytes a second) is cut */
#define LIMIT_KEEPALIVE_MS 620000        /* longer than the 300 s for which the Python SDK pools idle connections */
#define LIMIT_STRANGER_MS 15000          /* LIMIT_KEEPALIVE_MS before a client has shown a key or reached a sandbox */
#define LIMIT_STRANGER_BODY_MS 15000     /* LIMIT_BODY_IDLE_MS of an edge request without a token */
#define LIMIT_CONNECTIONS 4096           /* per listener; RLIMIT_NOFILE is 20,000 on small machines */
#define LIMIT_TURN_REQUESTS 4            /* pipelined requests of one connection in one turn of the loop */
#define LIMIT_TURN_PIECES 64             /* chunks of one body in one turn: each may be a byte and cost a system call */
#define LIMIT_SPLICE_LEAST (256 * 1024)  /* splice a body through a pipe only if at least this much is left */
/* Pipes of bulk splices with slow takers, and what one holds: programs are woken less often for larger steps. */
#define LIMIT_SPLICE_PIPES 96
#define LIMIT_SPLICE_PIPE_BYTES (512 * 1024) /* the kernel gives a user 64 MiB of pipes */
#define LIMIT_STREAM_BUFFER (256 * 1024)     /* unsent bytes of one stream before backpressure stops its source */

/* HTTP/2: limits of things that HTTP/1.1 does not have. Heads, bodies, patience: as above. */
#define LIMIT_HTTP2_STREAMS 128      /* requests at once on one connection; RFC 9113 advises at least 100 */
#define LIMIT_HTTP2_EXCHANGES 4096   /* the same for all connections together; as many as LIMIT_CONNECTIONS */
#define LIMIT_HTTP2_FIELDS 1024      /* in one head, before cookies are joined; past it the connection ends */
#define LIMIT_HTTP2_CONTINUATIONS 8  /* frames of one head after its first; LIMIT_HEAD_BYTES fit into four of 16 KiB */
#define LIMIT_HTTP2_RESETS 256       /* streams that end early, in a burst; a client may give up all its streams… */
#define LIMIT_HTTP2_RESETS_PER_S 32  /* …and after the burst */
#define LIMIT_HTTP2_RESETS_TRUST 8   /* times both, for a client that has shown a key or a token */
#define LIMIT_HTTP2_FRAMES 4096      /* frames that bring nothing (PING, SETTINGS, empty DATA…), in a burst… */
#define LIMIT_HTTP2_FRAMES_PER_S 256 /* …and after the burst */
#define LIMIT_HTTP2_FRAMES_EACH 4    /* such frames more for each request, and for each DATA frame that we send */
#define LIMIT_HTTP2_ACKS 1000        /* PING and SETTINGS of one step, each of which we have to answer */
#define LIMIT_HTTP2_SESSION_BYTES \
    (4 << 20)                          /* nghttp2's own memory for one connection: 60 KiB, heads of answers apart */
#define LIMIT_HTTP2_WINDOW (64 * 1024) /* of a body, before it is wanted; as large as the protocol's default */
#define LIMIT_HTTP2_WINDOW_STRANGER (512 * 1024) /* of a wanted body, and of all bodies of a connection */
#define LIMIT_HTTP2_WINDOW_KNOWN (4 << 20)       /* both, after http_trust(): uploads as fast as with HTTP/1.1… */
#define LIMIT_HTTP2_WIDE 256             /* …for so many connections at once; the others have the smaller ones */
#define LIMIT_HTTP2_HELD_BYTES (8 << 20) /* of paused bodies of a connection, kept so that they do not stop others… */
#define LIMIT_HTTP2_HELD_ALL_BYTES \
    (64 << 20)                             /* …of all connections; past either a paused body stops its connection's */
#define LIMIT_HTTP2_UNSENT_BYTES (1 << 20) /* of all answers of a connection; past it each may have no more than… */
#define LIMIT_HTTP2_UNSENT_EACH (16 * 1024) /* …this before backpressure stops its source: a frame */

/* JSON and RPC */
#define LIMIT_JSON_DEPTH 64               /* nothing of ours nests deeper than 8 */
#define LIMIT_JSON_VALUES 20000           /* in one request, six megabytes parsed; a create has 1,100 at most */
#define LIMIT_JSON_LARGE_VALUES (1 << 20) /* a chart with all its points, a list of all sandboxes with their metadata */
#define LIMIT_RPC_BYTES (4 << 20)         /* one Connect message; SendInput carries user data in base64 */

/* Names and ids */
#define LIMIT_ID_BYTES 32     /* sandbox and template ids with the zero byte */
#define LIMIT_NAME_BYTES 128  /* template aliases, key names */
#define LIMIT_PATH_BYTES 4096 /* PATH_MAX, zero byte included */

/* A sandbox's own settings */
#define LIMIT_METADATA_PAIRS 64          /* a filter of a list is compared with each of them */
#define LIMIT_METADATA_BYTES (64 * 1024) /* in the row, in every list, and in memory while the sandbox runs */
#define LIMIT_ENV_PAIRS 1024             /* one guestlink message has all of them */
#define LIMIT_ENV_BYTES (128 * 1024)     /* the kernel takes 2 MiB for all of argv and environment */
#define LIMIT_TIMEOUT_S (24 * 3600)      /* longest life of one run */
#define LIMIT_SANDBOXES 1000             /* at once, all keys together */
/* Ended sandboxes that the kernel keeps, 0.3 MB each. A team with so many makes no others while memory is short. */
#define LIMIT_LEFT_OF_TEAM 512
#define LIMIT_ENDS 32               /* being killed at once: fewer than keeper lets die at a time, NATIVE_DYING */
#define LIMIT_POOL 256              /* sandboxes that wait for a create, besides those; 1 to 4 MB each… */
#define LIMIT_POOL_AUTO 128         /* …and with --pool auto: a burst of 100 and some more */
#define LIMIT_PAUSED 4000           /* paused ones; in memory each is up to 150 KB of metadata, log and metrics… */
#define LIMIT_PAUSED_PER_TEAM 1000  /* …and disk; so that one team cannot take every place */
#define LIMIT_METRICS 720           /* samples kept of one sandbox, twice: an hour of every five seconds is 40 KB */
#define LIMIT_METRICS_KEPT 1000     /* ended sandboxes whose metrics are kept… */
#define LIMIT_METRICS_KEPT_S 3600   /* …for this long */
#define LIMIT_LOG_TEXT_BYTES 256    /* of a command line, in a log line */
#define LIMIT_LOG_BATCH 128         /* log lines in one message of guestd's; it drops more while front is slow */
#define LIMIT_LOG_PAUSE_MS 50       /* between two such messages: bounds the work that a guestd can cause */
#define LIMIT_LOG_BYTES (64 * 1024) /* newest log lines kept of one sandbox… */
#define LIMIT_LOGS_KEPT 200         /* …and of this many ended ones */
#define LIMIT_REFUSED_LINES 30      /* of them, about refused connections, at once… */
#define LIMIT_REFUSED_LINES_PER_S 1 /* …and for each second… */
#define LIMIT_LOG_REFUSED_BYTES (LIMIT_LOG_BYTES / 4) /* …of which so much is kept: the rest is for other lines */
#define LIMIT_HTTPS_PORTS 32                          /* ports of a sandbox that the edge reaches by TLS */
#define LIMIT_METERS 4096 /* keys whose rate is remembered; past it, idle ones are forgotten */
#define LIMIT_LAYERS \
    128                 /* overlay lowers of one sandbox; a plan with all of them is 9 KiB. The kernel's limit is 500 */
#define LIMIT_FORKS 100 /* copies that one call asks for; E2B's limit */
#define LIMIT_SNAPSHOT_ENTRIES \
    4000000                    /* files of a sandbox that a snapshot copies: minutes; room on disk is the other limit */
#define LIMIT_IMAGE_FILES 8192 /* files from outside in one image of memory: 116 for an interpreter of the zygote */
#define LIMIT_IMAGE_TEXT_BYTES (LIMIT_IMAGE_FILES * 512) /* their list; most paths are below 100 bytes */
#define LIMIT_IMAGE_FILE_BYTES (UINT64_C(64) << 30)      /* one file in it: of the memory of one process */
#define LIMIT_PAGES_FILES 4096 /* files of pages, one for a process, that are compressed: keeper moves all at once */
#define LIMIT_PAGES_HEAD_BYTES (64 + LIMIT_PAGES_FILES * 40) /* the list of them */
#define LIMIT_GHOST_BYTES (200 << 20)  /* a file that is deleted and still open, which goes into the image */
#define LIMIT_DUMP_BYTES (512 << 20)   /* of CRIU's own memory: it looks for watched files among all names of a guest */
#define LIMIT_DUMP_MS 240000           /* to write a sandbox's memory to disk or read it: gigabytes on a slow disk */
#define LIMIT_COPIES 4                 /* sandboxes that stand still to be copied; others wait and run meanwhile… */
#define LIMIT_COPIES_PER_TEAM 2        /* …of one team: half of them, because a copy of many files takes minutes */
#define LIMIT_SNAPSHOT_DEPTH (1 << 20) /* directories below one another; the copy holds 64 bytes for each */

/* Template builds. */
#define LIMIT_IMAGE_LAYERS 127                       /* of an image from a registry; Docker has the same limit */
#define LIMIT_BUILDS_AT_ONCE 4                       /* each has a sandbox that may use all its CPUs */
#define LIMIT_BUILDS_TEAM 20                         /* running or waiting, as E2B has it */
#define LIMIT_BUILD_STEPS 1000                       /* of a recipe */
#define LIMIT_BUILD_LOG_BYTES (4 << 20)              /* of one build; a compiler's output fits */
#define LIMIT_BUILD_LINE_BYTES 4096                  /* longer lines are cut */
#define LIMIT_BUILD_MS (60 * 60 * 1000)              /* a whole build, as E2B has it */
#define LIMIT_BUILD_BYTES_TEAM (UINT64_C(50) << 30)  /* layers of steps and images of a team on disk… */
#define LIMIT_BUILD_BYTES (UINT64_C(100) << 30)      /* …and of all: past it old steps go, then builds fail */
#define LIMIT_READY_MS (10 * 60 * 1000)              /* until the ready command succeeds */
#define LIMIT_UPLOAD_BYTES (UINT64_C(5) << 30)       /* one archive for COPY */
#define LIMIT_UNPACKED_BYTES (UINT64_C(25000) << 20) /* an image's files together, as E2B has it */
#define LIMIT_UNPACKS 2                              /* layers being unpacked at once, a process each; others wait */
#define LIMIT_UNPACK_MS (15 * 60 * 1000)             /* for one: 25 GB on a disk of 28 MB a second */
#define LIMIT_UNPACK_ENTRIES 1000000                 /* of one layer; the largest known images have half of that */
#define LIMIT_UNPACK_ENTRY_BYTES 2048                /* of the archive for each, besides the file: headers, padding */
#define LIMIT_UNPACK_DEPTH 256                       /* directories in a name; each is held open while it is cleared */
#define LIMIT_TAR_NAME_BYTES 4096                    /* PATH_MAX */
#define LIMIT_TAR_HEADER_BYTES (1 << 20)             /* one pax header or long name */
#define LIMIT_TAR_XATTRS 64                          /* of one entry */
#define LIMIT_DOCKERFILE_BYTES (512 * 1024)          /* it becomes a request of LIMIT_CALL_BODY_BYTES, with escapes */
#define LIMIT_DOCKERFILE_VARS 1000                   /* ARG and ENV; each reference searches all */
#define LIMIT_DOCKERFILE_VALUE_BYTES (64 * 1024)     /* of one: ENV A=$A$A doubles it with each line */
#define LIMIT_CONTEXT_FILES 200000      /* of one COPY, in memory with their names; a node_modules has 50,000 */
#define LIMIT_IGNORE_BYTES (64 * 1024)  /* a .dockerignore */
#define LIMIT_IGNORE_PATTERNS 1000      /* of it: each file is matched against all… */
#define LIMIT_IGNORE_PATTERN_BYTES 1024 /* …and one of these */
#define LIMIT_ZSTD_WINDOW 27            /* a power of two: 128 MiB of memory, what `zstd -d` takes too */

/* Templates of a team, and what is uploaded for them. */
#define LIMIT_TEMPLATES_TEAM 1000              /* that a team has built… */
#define LIMIT_BUILDS_KEPT 200                  /* …and builds of each; past it, old ones that no tag means go */
#define LIMIT_TAGS 1000                        /* of one template… */
#define LIMIT_TAGS_CALL 100                    /* …and in one call… */
#define LIMIT_TAG_HISTORY 100                  /* …and assignments of a tag that are remembered */
#define LIMIT_BUILDS_WAITING 100               /* registered and not started, of one team… */
#define LIMIT_BUILD_WAITING_S (40 * 60)        /* …which fail after this time, as E2B has it */
#define LIMIT_BUILD_LOG_KEPT_S (7 * 24 * 3600) /* lines of a build, after its end */
#define LIMIT_BUILD_CPUS 8                     /* of a template, and… */
#define LIMIT_BUILD_MEMORY_MB 8192             /* …as E2B's default for teams has both */
#define LIMIT_BUILD_NAME_BYTES 128             /* a name with its tag, as E2B has it */
#define LIMIT_UPLOADS_TEAM_BYTES (UINT64_C(20) << 30) /* archives of a team; past it old ones go… */
#define LIMIT_UPLOADS_BYTES (UINT64_C(60) << 30)      /* …and of all teams… */
#define LIMIT_UPLOADS 20000                           /* …and how many: a block and an inode each… */
#define LIMIT_UPLOADS_TEAM 2000                       /* …of one team */
#define LIMIT_UPLOAD_KEPT_S (7 * 24 * 3600)           /* without being used */
#define LIMIT_UPLOAD_BUSY_S 3600        /* used so short a time ago, it stays: a build may be about to need it */
#define LIMIT_UPLOAD_LINK_S (30 * 60)   /* how long a link is good for, as E2B has it */
#define LIMIT_UPLOADS_AT_ONCE 64        /* that are read; the others wait, for their clients try only once… */
#define LIMIT_UPLOADS_AT_ONCE_TEAM 24   /* …of one team… */
#define LIMIT_UPLOADS_WAITING 1024      /* …and with those that wait, of LIMIT_CONNECTIONS… */
#define LIMIT_UPLOADS_WAITING_TEAM 512  /* …of one team: SDKs send all archives of a recipe at once */
#define LIMIT_UPLOAD_WORKERS 6          /* of LIMIT_WORKERS, which write what has come… */
#define LIMIT_UPLOAD_WORKERS_EACH 4     /* …of one team */
#define LIMIT_UPLOAD_CHUNK (256 * 1024) /* of one upload in memory, twice: one half is written, one is filled */

/* Images from registries. A registry is a stranger: its documents, its layers and its patience with us are all bounded. */
#define LIMIT_REFERENCE_BYTES 512              /* of an image; names have at most 255, tags 128, digests 71 */
#define LIMIT_REGISTRY_JSON_BYTES (4 << 20)    /* a manifest, index or configuration; registries have this limit */
#define LIMIT_REGISTRY_JSON_VALUES 200000      /* in one of them: an index of a thousand images has 20,000 */
#define LIMIT_REGISTRY_ERROR_BYTES (64 * 1024) /* of an answer that is no success; a code is looked for in it */
#define LIMIT_REGISTRY_TOKEN_BYTES (16 * 1024) /* of a bearer token; ECR's password has 2,500 */
#define LIMIT_REGISTRY_HEADER_BYTES (8 * 1024) /* of one header; signed links of S3 have 2,000 */
#define LIMIT_REGISTRY_REDIRECTS 5             /* one after the other; registries need one */
#define LIMIT_REGISTRY_TRIES 5                 /* of one request, if the registry is overloaded or away… */
#define LIMIT_REGISTRY_RESUMES 100             /* …and of one download that got further each time */
#define LIMIT_REGISTRY_WAIT_MS 60000           /* before one of these; more than this is not waited, if asked for */
#define LIMIT_REGISTRY_IDLE_MS 30000           /* without a byte */
#define LIMIT_REGISTRY_ADDRESSES 16            /* of a name; more are suspicious */
#define LIMIT_REGISTRY_MIRRORS 4               /* that are tried for one image */
#define LIMIT_LOGIN_BYTES (32 * 1024)          /* of one field of a login; a service account's JSON has 2,400 */
#define LIMIT_IMAGE_ENVS 1024                  /* variables of an image… */
#define LIMIT_IMAGE_ENV_BYTES (256 * 1024)     /* …all together: what execve(2) takes is more */
#define LIMIT_PULLS 8                          /* at once: each build has one; some look at downloads */
#define LIMIT_PULL_LAYERS 3                    /* of an image under way at once, a thread each, as Docker has it */
#define LIMIT_PULL_MS (45 * 60 * 1000)         /* one image, of LIMIT_BUILD_MS */
#define LIMIT_PULL_CPU_S 1200                  /* of that, computing: TLS and checksums of LIMIT_UNPACKED_BYTES */
#define LIMIT_PULL_MEMORY_BYTES (UINT64_C(1) << 30)  /* of a child; most is address space of libraries */
#define LIMIT_PULL_TEAM_BYTES 64                     /* of a team's id, which has 36 */
#define LIMIT_PULL_MESSAGE_BYTES (1 << 20)           /* between front and a child: the largest has the variables */
#define LIMIT_BLOBS_BYTES (UINT64_C(40) << 30)       /* downloads that are kept, all together; the oldest go first… */
#define LIMIT_BLOBS_SHARE 2                          /* …of which a team's downloads under way may have a half… */
#define LIMIT_BLOBS_STEP_BYTES (UINT64_C(256) << 20) /* …for downloads that come: no more than this ahead of each… */
#define LIMIT_BLOBS 20000                            /* …and files; layers of 150 images… */
#define LIMIT_BLOB_AGE_S (3 * 24 * 3600)             /* …and unused ones: what was unpacked is not needed again… */
#define LIMIT_PART_AGE_S (24 * 3600)                 /* …and downloads that nobody goes on with */
#define LIMIT_ARCHIVE_ENTRIES 100000                 /* files in an archive of `docker save`; three for each layer */
#define LIMIT_ARCHIVE_READINGS 16                    /* of one: it has 3, a layout up to 7, and some for links… */
#define LIMIT_ARCHIVE_READ_BYTES (8 * LIMIT_UNPACKED_BYTES) /* …unpacked in all of them: some minutes */

/* Snapshots that are kept. Each has up to LIMIT_LAYERS and takes what its sandbox has written, and its memory. */
#define LIMIT_SNAPSHOTS 1000                       /* all teams together; as many as sandboxes… */
#define LIMIT_SNAPSHOTS_TEAM 200                   /* …and of one team… */
#define LIMIT_SNAPSHOT_BYTES (UINT64_C(100) << 30) /* …and on disk, all together… */
#define LIMIT_SNAPSHOT_SHARE 2          /* …of which one team may have a half: others must have some, too */
#define LIMIT_KEPT_DAYS 36500           /* that an operator may say to keep what nobody uses: a century */
#define LIMIT_SNAPSHOT_ENTRY_BYTES 4096 /* what a file, directory or link counts for, besides its contents */

/*
 * Free room on the data directory's file system below which no sandbox is started: enough for the directories of all
 * the starts under way, for what guestd and a first command write, and for the server to refill its own reserve.
 */
#define LIMIT_ROOM_BYTES (32 << 20)
#define LIMIT_ROOM_INODES 1024

/*
 * Front's workers. A start waits for guestd, and the template's author decides how long that takes. So starts get a
 * share of the workers, and each key a share of that; the rest of a key's burst waits without a worker. Keeper makes
 * one sandbox after the other, so eight starts are enough to keep it busy.
 */
#define LIMIT_WORKERS 128
#define LIMIT_STARTS 24             /* of LIMIT_WORKERS; with mail's, the others are left for get and kill */
#define LIMIT_STARTS_PER_KEY 8      /* of LIMIT_STARTS */
#define LIMIT_SLOW_STARTS 16        /* creates that wait for a start command, of LIMIT_WORKERS: for minutes… */
#define LIMIT_SLOW_STARTS_PER_KEY 5 /* …of one key: the rest of its burst waits without a worker, as starts do */
#define LIMIT_STARTS_WAITING 1024   /* waiting starts of one key; each holds one of LIMIT_CONNECTIONS… */
#define LIMIT_STARTS_WAITING_BYTES (16 << 20) /* …and their bodies, of LIMIT_COLLECT_BYTES */
#define LIMIT_PAUSES 12                       /* calls that pause, resume, copy or read much, of LIMIT_WORKERS… */
#define LIMIT_PAUSES_PER_KEY 5                /* …of one key: less than half… */
#define LIMIT_PAUSES_WAITING 1024             /* …and waiting ones of one key */
#define LIMIT_CHANGES 4                       /* calls that change a sandbox's network, of LIMIT_WORKERS… */
#define LIMIT_CHANGES_PER_KEY 3               /* …of one key: those of one sandbox wait for each other… */
#define LIMIT_CHANGES_WAITING 256             /* …and waiting ones of one key */
#define LIMIT_DUE_PAUSES 6                    /* pauses at deadlines at once, of LIMIT_WORKERS; the others run on… */
#define LIMIT_DUE_PAUSES_PER_KEY 4            /* …of one key's sandboxes: a sync may take minutes */
#define LIMIT_FORK_HELPERS 6                  /* workers that help with copies, of LIMIT_WORKERS… */
#define LIMIT_FORK_HELPERS_PER_KEY 4          /* …and of one key; without them its own worker makes all */
#define LIMIT_WAKES 4                         /* sandboxes that traffic wakes at once, of LIMIT_WORKERS… */
#define LIMIT_WAKES_PER_KEY 3                 /* …of those of one key… */
#define LIMIT_WAKES_WAITING 256               /* …and those of one key that wait for their turn */
#define LIMIT_MAIL_CALLS 16                   /* mail requests at work, of LIMIT_WORKERS; each may wait for a disk… */
#define LIMIT_MAIL_CALLS_EACH 4               /* …of one inbox or key: calls for one inbox take turns anyway… */
#define LIMIT_MAIL_CALLS_WAITING 256          /* …and waiting ones of an inbox or key; past it 429… */
#define LIMIT_MAIL_CALLS_BYTES (20 << 20) /* …and the bodies of both; three of them fit into LIMIT_COLLECT_BYTES */

/*
 * TLS in. A handshake costs a signature (0.1 ms, an RSA key 1 ms), so few run at once; the others wait, one address
 * after the other.
 */
#define LIMIT_TLS_WORKERS 4                   /* of LIMIT_WORKERS, for handshakes… */
#define LIMIT_TLS_WORKERS_EACH 3              /* …and of these, for one address */
#define LIMIT_TLS_HANDSHAKES 1024             /* under way: 45 KB each; past it the oldest is given up */
#define LIMIT_TLS_HANDSHAKE_MS 10000          /* from the first byte to the last: slow-loris */
#define LIMIT_TLS_HANDSHAKE_BYTES (32 * 1024) /* from the peer; a hello with post-quantum keys has 2 KB */
#define LIMIT_TLS_IDLE_RECORDS 64             /* in a row without data: each key update costs us more than the peer */
#define LIMIT_TLS_SIGN_MS 2000                /* for signer to answer: it may just be starting again */
#define LIMIT_TLS_TICKET_S (6 * 3600)         /* a key for tickets is used for this long, and accepted for twice that */
#define LIMIT_TLS_CHAIN_BYTES (48 * 1024)     /* a certificate with its chain, in PEM; usual ones have 6 KB */
#define LIMIT_TLS_KEY_BYTES (16 * 1024)       /* a private key in PEM; RSA with 8192 bits has 6.4 KB */
#define LIMIT_TLS_CERTIFICATES 2              /* the operator's and the local authority's */

/* TLS out: the peer chooses what its certificates cost us to read and to verify. */
#define LIMIT_TLS_CLIENT_WORKERS 2 /* of LIMIT_WORKERS, for services inside sandboxes, and one for each sandbox */
#define LIMIT_TLS_PEER_CHAIN_BYTES (16 * 1024) /* certificates of a server; usual ones have 3 to 5 KB */
#define LIMIT_TLS_PEER_CHAIN 8                 /* of them, up to one that is trusted; usual are 3 */

/* Edge */
#define LIMIT_EDGE_CONNECTIONS 512 /* requests and tunnels at once into one sandbox; an SDK opens up to 200 */
#define LIMIT_EDGE_SHARE 3072    /* the same for all sandboxes together; the rest of LIMIT_CONNECTIONS is for the API */
#define LIMIT_EDGE_KEY 2048      /* the same for the sandboxes of one key; the rest of LIMIT_EDGE_SHARE is for others */
#define LIMIT_EDGE_STRANGERS 192 /* of LIMIT_EDGE_CONNECTIONS, without a token; guestd takes 256, an SDK opens 200 */
#define LIMIT_EDGE_OUTSIDERS 224 /* without a token or with a signed link: at least 32 for links */
#define LIMIT_EDGE_GUESTD 224    /* at one port of guestd, which takes 256; from here on outsiders are cut for others */
#define LIMIT_EDGE_STRANGERS_PART 2 /* strangers and outsiders each get 1/2 of LIMIT_EDGE_SHARE and of LIMIT_EDGE_KEY */
#define LIMIT_EDGE_IDLE 8           /* kept connections to one guestd; a thousand sandboxes share our descriptors */
#define LIMIT_EDGE_IDLE_MS 60000    /* how long they are kept; far below guestd's own idle limit */
#define LIMIT_EDGE_GATHER_BYTES (8 * 1024)  /* request bodies sent to guestd in one piece; of LIMIT_COLLECT_BYTES */
#define LIMIT_EDGE_REPLAY_BYTES (16 * 1024) /* of a request body, to send again if a kept connection was dead */
#define LIMIT_EDGE_WAKE_MS 60000            /* for a request to wait until its sandbox has resumed */
#define LIMIT_EDGE_WAKE_WAITING 128         /* requests that wait for one sandbox to resume… */
#define LIMIT_EDGE_WAKE_ALL 512      /* …and for all; each holds one of LIMIT_CONNECTIONS outside LIMIT_EDGE_SHARE */
#define LIMIT_EDGE_DIALS 5           /* attempts at a port that is not open yet… */
#define LIMIT_EDGE_DIAL_PAUSE_MS 100 /* …with pauses of 1, 2, 3 and 4 times this between them */
#define LIMIT_EDGE_DIAL_MS 30000     /* for one connect, to a service that does not accept */
#define LIMIT_EDGE_QUEUE_TRIES 8 /* connects that are given up early when a service's queue of connections is full… */
#define LIMIT_EDGE_QUEUE_MS 5 /* …the first after this time, each other after twice as long; then LIMIT_EDGE_DIAL_MS */
#define LIMIT_LINKS_KNOWN 256       /* signed links whose sandbox is remembered */
#define LIMIT_LINK_TRIES 100000     /* per second and address: a wrong signature is tried on every sandbox */
#define LIMIT_LINK_COUNTERS 4096    /* of tries, shared by all addresses (proxy/sources.h): 16 KiB */
#define LIMIT_RELAY_LINGER_MS 30000 /* without a byte, after one side of a relay has ended */

/*
 * What a sandbox may reach. Front keeps one policy per sandbox in the store and sends it to egress in one message, so all
 * of it together must also fit that; the rest are E2B's own limits where it has one.
 */
#define LIMIT_NET_POLICY_BYTES (60 * 1024) /* of LIMIT_MESSAGE_BYTES; the rest is for the message's head and the id */
#define LIMIT_NET_RANGES 1024    /* each of allowed and denied; every connection is compared with all of them */
#define LIMIT_NET_NAMES 1024     /* allowed host names; the same */
#define LIMIT_NET_NAME_BYTES 253 /* a host name without its trailing dot, RFC 1035 */
#define LIMIT_NET_DNS 10
#define LIMIT_NET_TRANSFORMS 10
#define LIMIT_NET_TRANSFORM_HOST_BYTES 128
#define LIMIT_NET_HEADERS 20 /* of one transform */
#define LIMIT_NET_HEADER_NAME_BYTES 64
#define LIMIT_NET_HEADER_VALUE_BYTES 2048
#define LIMIT_NET_PROXY_BYTES 255 /* host, user name, password each: the lengths in SOCKS5 are one byte */
#define LIMIT_NET_CA_BYTES 8192

/* The operator's network options */
#define LIMIT_ROOTS_BYTES (4 << 20) /* certificates that the host trusts; Debian's file has 220 KiB */
#define LIMIT_EGRESS_RANGES 128     /* of --egress-allow, and of --egress-deny; each connection is compared with all */
#define LIMIT_INSIDE 64             /* entries of --inside; as many as there are addresses for them, base/network.h */
#define LIMIT_MAIL_NAMES 9          /* mail.cloister.internal and the names of --mail-names; two ports each */
#define LIMIT_SERVICES (LIMIT_INSIDE + 2 * LIMIT_MAIL_NAMES)
#define LIMIT_INSIDE_BYTES 8192 /* all names of --inside, a line each: as long as the option may be */
#define LIMIT_RESOLVERS 3       /* name servers of --dns; as many as /etc/resolv.conf may have */

/* TLS that is only looked at; with keys for post-quantum exchange a hello has 2 KiB, and 8 with all that is defined. */
#define LIMIT_TLS_HELLO_BYTES 16384
#define LIMIT_TLS_HELLO_RECORD_BYTES (32 * 1024) /* with the heads of the records that it is split over */

/* DNS */
#define LIMIT_DNS_RECORDS 128        /* of one answer that are used; 4096 bytes have room for 253 addresses at most */
#define LIMIT_DNS_CHAIN 16           /* aliases from a name to its addresses; some servers follow 8, others 16 */
#define LIMIT_DNS_TTL_S 86400        /* an answer is kept a day at most, even if its zone says longer */
#define LIMIT_DNS_NEGATIVE_S 300     /* and "there is no such name" so long: people fix that and try again */
#define LIMIT_DNS_QUESTION_BYTES 512 /* of ours: head, name, EDNS, and two bytes over TCP */
#define LIMIT_DNS_TRIES 3            /* for one name, at one server after the other… */
#define LIMIT_DNS_TRY_MS \
    1500 /* …each so long: we answer before the 5 seconds have passed after which a libc gives up */
#define LIMIT_DNS_ASKING 384             /* names on their way at once, of all sandboxes; a socket each */
#define LIMIT_DNS_CACHE 4096             /* answers kept, of all sandboxes… */
#define LIMIT_DNS_CACHE_BYTES (16 << 20) /* …and their size */

/* Between our processes */
#define LIMIT_MESSAGE_BYTES (64 * 1024) /* one privsep datagram */
#define LIMIT_MESSAGE_FDS 5             /* a command: its image, three ends and a report */
#define LIMIT_TEMPLATES_PAGE 6          /* templates in one message; with 128 layers and long names each takes 9 KiB */
#define LIMIT_STATS 16 /* sandboxes measured in one request: a start behind it waits a millisecond or two at most */
/* Connections that wait at a listening socket in a sandbox; the kernel holds memory for each. */
#define LIMIT_BACKLOG 1024
/*
 * Send and receive buffer of a connection from a sandbox to egress; the kernel doubles them. They are egress's memory and
 * not the guest's: left to itself the kernel lets a receive buffer grow to 6 MiB, which a guest keeps full by having the
 * other side not read. Measured: with a larger send buffer downloads are slower, with a smaller receive buffer uploads.
 */
#define LIMIT_DIVERT_SEND (128 * 1024)
#define LIMIT_DIVERT_RECEIVE (512 * 1024)
#define LIMIT_BUNDLE_BYTES (4 << 20)       /* certificates that a sandbox trusts, in one file; Debian's has 220 KiB */
#define LIMIT_AUTHORITY_BYTES 4096         /* a certificate of P-256, in PEM: 700 */
#define LIMIT_GUESTLINK_BYTES (512 * 1024) /* one message; the environment is the largest part */
#define LIMIT_START_MS 10000               /* for a new guestd to answer; on a very busy machine a second or two */
#define LIMIT_STOP_MS 10000                /* longest wait for the end of a killed sandbox that a request may name */
#define LIMIT_HELD_PAGE 1000               /* sandboxes in one message of keeper's list: 37 KB at most */
/*
 * For keeper to write a sandbox to disk, or to bring it back: 64 GiB of memory on a disk that takes 150 MB a second. Keeper
 * does other things meanwhile.
 */
#define LIMIT_PAUSE_MS 600000
#define LIMIT_KEEPER_MS 35000 /* without an answer from keeper: it is stuck */

/* Egress: what leaves sandboxes */
#define LIMIT_FLOWS_REFUSALS 16    /* different refusals of one sandbox told in one record; the rest is counted */
#define LIMIT_FLOWS_TEXT_BYTES 512 /* of the sentence about one; it contains a name */
#define LIMIT_EGRESS_FLOWS 1024    /* connections of one sandbox; a browser has 256, a crawler some hundreds… */
/*
 * What the kernel holds for them is egress's memory: a sandbox whose connections are all stuck has it full. So the more
 * connections a sandbox has, the smaller are the buffers of the next one (socket_budget()): all but the first few have
 * 90 MiB together.
 */
#define LIMIT_EGRESS_LARGE 8 /* connections whose buffers to the outside grow to some MiB, for fast and far transfers */
#define LIMIT_EGRESS_FLOWS_LEAST 64 /* …and of all together, however few descriptors there are */
/*
 * New connections of one sandbox per second, after so many at once. One that has ended keeps its port of this machine for a
 * minute, and there are 28,000 ports to one destination: with these, a sandbox has about 11,000 of them at most. Installers
 * and crawlers open some hundreds at once.
 */
#define LIMIT_EGRESS_NEW_S 100
#define LIMIT_EGRESS_NEW_BURST 4096
/*
 * What egress takes in of one sandbox, whatever becomes of it: connections that it accepts and DNS questions that it reads. One
 * thread does that for all sandboxes. Past these it does not look at the sandbox's sockets for a while. For each new
 * connection above there may be a question, or one that is refused, and per second some more.
 */
#define LIMIT_EGRESS_TAKEN_S 500
#define LIMIT_EGRESS_TAKEN_BURST (2 * LIMIT_EGRESS_NEW_BURST)
#define LIMIT_EGRESS_PAUSE_MS 100       /* so long at least, so that a storm is 10 wake-ups a second and not 500 */
#define LIMIT_EGRESS_TURN 8             /* connections accepted of one sandbox, then all others have their turn */
#define LIMIT_EGRESS_BUFFER (64 * 1024) /* bytes of one connection in our memory, each way; bulk data is spliced */
#define LIMIT_EGRESS_INTERCEPTS 128     /* connections of one sandbox whose TLS ends here; 100 KiB each, both sides */
#define LIMIT_EGRESS_INSIDE 64          /* of one sandbox to services of --inside; some take 100 of all sandboxes */
#define LIMIT_EGRESS_SOCKETS 4 /* of one sandbox, to which its traffic is diverted: TCP and UDP, IPv4 and IPv6 */
/*
 * Of egress itself: standard streams (the log is one of them), channels to keeper and to an old and a new front, the loop's
 * own three, routes, what the last message has brought, and a connection that is accepted to be refused: 20, and some over.
 */
#define LIMIT_EGRESS_OWN 64
/*
 * Descriptors of all this together, and LIMIT_EGRESS_SOCKETS for each of --sandboxes and --pool; the rest of RLIMIT_NOFILE is for
 * connections, two each (egress_flows_max()).
 */
#define LIMIT_EGRESS_RESERVE (LIMIT_EGRESS_OWN + LIMIT_DNS_ASKING + 2 * LIMIT_SPLICE_PIPES)
/*
 * TLS towards the programs of one sandbox, for hosts with header rules, on the loop. Each connection costs about 1 ms, a
 * certificate for a new host 3. Past these a connection is refused.
 */
#define LIMIT_EGRESS_ACCEPTS_S 40 /* handshakes per second, after LIMIT_EGRESS_INTERCEPTS at once */
#define LIMIT_EGRESS_ISSUED_S 4   /* certificates per second, after LIMIT_EGRESS_ISSUED at once */
/* TLS handshakes of one sandbox with hosts and proxies; on the loop, where a dear one takes some milliseconds. */
#define LIMIT_EGRESS_HANDSHAKES 8    /* at once; the others wait… */
#define LIMIT_EGRESS_HANDSHAKES_S 20 /* …and per second, and in one burst */
#define LIMIT_EGRESS_ISSUED 32       /* hosts with header rules that one sandbox is connected to; 50 KiB each */
#define LIMIT_EGRESS_DIAL_MS 30000   /* for the outside to accept; the guest has been accepted by then, and waits */
/* …for one of several addresses, so that there is time for all */
#define LIMIT_EGRESS_DIAL_ONE_MS (LIMIT_EGRESS_DIAL_MS / LIMIT_EGRESS_TRIES)
#define LIMIT_EGRESS_ANSWER_MS \
    600000 /* for a host with header rules to begin its answer; a model may think for minutes */
#define LIMIT_EGRESS_NAME_BYTES (32 * 1024) /* of the first request's head, to find its Host in */
#define LIMIT_EGRESS_NAME_MS 10000          /* for the first bytes of a connection whose name matters… */
#define LIMIT_EGRESS_QUIET_MS 300    /* …to a port where a server may speak first: then the looked-up name counts */
#define LIMIT_EGRESS_RESOLVE_MS 8000 /* to look up that name again; TLS clients may give up after 10 seconds */
#define LIMIT_EGRESS_TRIES 4         /* addresses of one name that are tried */
#define LIMIT_EGRESS_PINS 512        /* addresses of names that one sandbox has looked up; 100 bytes each… */
#define LIMIT_EGRESS_PIN_NAMES 16    /* …and names of one address: each is compared with all names of the policy */
#define LIMIT_EGRESS_PIN_MS 600000   /* how long one holds at least, after its last use */
#define LIMIT_EGRESS_QUESTION_BYTES 4096 /* of one DNS question; 300 are usual at most */
#define LIMIT_EGRESS_ASK_MS 30000        /* without a question on a DNS connection over TCP */
#define LIMIT_EGRESS_IDLE_MS 21600000    /* without a byte either way: database pools and ssh are quiet for hours */
#define LIMIT_EGRESS_HALF_MS 600000      /* the same after one side has ended; a server may compute for minutes */
#define LIMIT_EGRESS_QUESTIONS 64        /* DNS questions of one sandbox at once, and names on their way for it… */
#define LIMIT_EGRESS_QUESTIONS_S 100     /* …and per second, in bursts of twice as many: a tunnel of 10 KB a second */
#define LIMIT_EGRESS_DNS_STREAMS 64      /* connections of one sandbox for DNS; each has one question and one answer */
#define LIMIT_EGRESS_EARLY_MS 60000      /* how long a policy is kept for a sandbox whose sockets have not come */
#define LIMIT_EGRESS_POLICY_MS 1000      /* how long sockets wait for their policy; front sends it at the same time */
#define LIMIT_RESOLV_CONF_BYTES 16384    /* of the host's /etc/resolv.conf; Debian's has 200 bytes */

/* In the sandbox */
#define LIMIT_PROCESSES 512           /* started through the API and not yet forgotten */
#define LIMIT_ARGS 4096               /* of one command; a shell's command line is one argument */
#define LIMIT_ARGS_BYTES (1 << 20)    /* together; half of what the kernel takes, the environment needs its part */
#define LIMIT_RING_BYTES (4 << 20)    /* kept output of one process */
#define LIMIT_LIST_ENTRIES 100000     /* of one ListDir */
#define LIMIT_LIST_DEPTH 64           /* of one ListDir; a descriptor is open for each level */
#define LIMIT_USERS_BYTES (1 << 20)   /* /etc/passwd, /etc/group: the guest's own files */
#define LIMIT_NSS_BYTES (1 << 16)     /* /etc/nsswitch.conf and gitconfig, the same; Debian's has 500 bytes */
#define LIMIT_OUTPUT_BYTES (64 << 20) /* kept output of all processes together; past it each keeps little */
#define LIMIT_RETAIN_MS 30000         /* how long the result of an ended process is kept, as upstream */
#define LIMIT_ATTACH_MS 250           /* a reconnecting client may come this long before its old connection's end */
#define LIMIT_STALL_MS 1000           /* a stream that blocks the other streams of its process for this long is cut */
#define LIMIT_SPAWN_MS 30000          /* from fork to exec; a busy sandbox takes seconds, a stopped child for ever */
#define LIMIT_KILL_WAIT_MS 2000 /* for a killed process to end; an uninterruptible one does not: answer all the same */
#define LIMIT_LIST_BYTES (32 << 20) /* the answer of one ListDir; 100,000 entries with short names */
#define LIMIT_UPLOAD_FILES 1000     /* parts of one multipart upload */
#define LIMIT_ACL_BYTES 484         /* 60 entries; both of a directory are then as large as what it is charged, 1 KB */
#define LIMIT_WATCHERS 1024         /* of the whole sandbox; an inotify instance and two kilobytes each */
#define LIMIT_WATCH_STREAMS 192     /* of them, streaming ones: each holds one of LIMIT_GUEST_CONNECTIONS */
#define LIMIT_WATCH_DIRS 8192       /* of one recursive watch */
#define LIMIT_WATCH_EVENTS 100000   /* of one watcher, not yet fetched */

/* Socket options that a sandbox is refused. */
#define LIMIT_OPTIONS_HEARD 256 /* calls that keeper answers; then the kernel does */
#define LIMIT_OPTIONS_NAMED 16  /* different ones in the sandbox's log; a program asks for one or two */

/* guestd's own memory, which its cgroup limits. All clients of the sandbox share each of these. */
#define LIMIT_GUEST_CONNECTIONS 256          /* heads of 64 KiB and buffers of 256 KiB each; an SDK opens up to 200 */
#define LIMIT_GUEST_COLLECT_BYTES (32 << 20) /* request bodies in memory */
#define LIMIT_INPUT_BYTES (16 << 20)         /* of StreamInput, not yet read by a process */
#define LIMIT_CONFIG_BYTES (16 << 20)        /* arguments and variables of running processes, which List returns */
#define LIMIT_LIST_NAME_BYTES (8 << 20)      /* names that one ListDir holds to sort them */
#define LIMIT_ANSWERS_BYTES (32 << 20)       /* whole answers, such as listings, on their way to clients */
#define LIMIT_WATCH_PLACE_BYTES (32 << 20)   /* watched directories with their names, here and in the kernel */
#define LIMIT_WATCH_TOLD_BYTES (16 << 20)    /* names found in new directories, until the kernel reports them too */
#define LIMIT_WATCH_KEPT_BYTES (32 << 20)    /* events not yet fetched; past it the watcher with most loses its own */
#define LIMIT_WATCH_QUEUE_BYTES (8 << 20)    /* records waiting in the kernel for slow watchers; the same */
#define LIMIT_UPLOAD_MEMORY_BYTES (32 << 20) /* in use on a tmpfs with uploads: guestd's cgroup pays for them */

/* Mail: processes and requests */
#define LIMIT_MAIL_FRAME_BYTES (64 << 20) /* between front and a worker: a packed message and what is said about it */
#define LIMIT_MAIL_BODY_BYTES (16 << 20)  /* a request that sends: ten megabytes of attachments in base64 */
#define LIMIT_INBOX_WORKERS 64            /* at once, all inboxes together; each has about 6 MiB */
#define LIMIT_INBOXES_PAGE 1000           /* ids of directories in one message: 32 KB of LIMIT_MESSAGE_BYTES */
#define LIMIT_INBOXES_LISTED 1000000      /* directories that a start looks at for unused ones: 27 MB for a moment */
#define LIMIT_INBOX_IDLE_MS 30000         /* then an idle worker ends */
#define LIMIT_INBOX_CALL_MS 20000         /* for a worker's answer */
#define LIMIT_INBOX_TURNS 8               /* calls for one inbox at once: a slow one leaves threads for others */
#define LIMIT_COMPOSERS 8                 /* messages being composed at once; each may take LIMIT_COMPOSER_BYTES */
#define LIMIT_COMPOSERS_EACH 2            /* …of one inbox: one with slow drafts leaves most of them to others… */
#define LIMIT_COMPOSERS_WAITING 4         /* …and waiting ones of an inbox, each with one of LIMIT_MAIL_CALLS */
#define LIMIT_COMPOSER_YIELD_MS 50        /* of a processor; then a child gives way to others. A usual one has 5 */
#define LIMIT_COMPOSE_MS 10000            /* for the composer's answer */
#define LIMIT_MAIL_PAGE 100               /* rows of a list */
#define LIMIT_MAIL_PAGE_BYTES (16 << 20)  /* …after which a page ends, so that the next row fits into a frame too */
#define LIMIT_MAIL_SCAN_ROWS 10000        /* messages that one call opens for a filter: 0.05 s, the first time 0.6 s */
#define LIMIT_MAIL_QUERY_BYTES 1000       /* each text of a filter */
#define LIMIT_MAIL_ACTOR_BYTES 128        /* who did something: "key:ULID", "sandbox:ID" */
#define LIMIT_MAIL_REASON_BYTES 4096      /* of a decision: a paragraph */
#define LIMIT_MAIL_UNDO_S 3600            /* how long an approved message may wait for a change of mind */
#define LIMIT_MAIL_WEBHOOK_EVENTS 32      /* of one subscription; the two services have nine each */
#define LIMIT_MAIL_TAGS 64                /* of a message… */
#define LIMIT_MAIL_TAG_BYTES 256          /* …key and value each */
#define LIMIT_MAIL_PARTICIPANTS 100       /* addresses that a thread names */
#define LIMIT_MAIL_THREAD_PEEK 20         /* messages that a list opens for the participants of a thread */
#define LIMIT_MAIL_THREAD_ROWS 500        /* messages of one thread in one answer: the newest ones */
#define LIMIT_MAIL_NAME_BYTES 256         /* a contact's name or tag, a webhook's secret or event */
#define LIMIT_MAIL_CONTACTS 1000          /* of an inbox: each list opens all of them */
#define LIMIT_MAIL_CONTACT_TAGS 20        /* of one contact */
#define LIMIT_MAIL_ALLOW 500              /* entries of an allowlist */
#define LIMIT_MAIL_WEBHOOKS 20            /* of an inbox: each event goes to all of them */
#define LIMIT_MAIL_WEBHOOK_FAILURES 10    /* in a row, then a webhook is disabled */
#define LIMIT_MAIL_URL_BYTES 2048         /* of a webhook */
#define LIMIT_MAIL_AUDIT_BYTES 4096       /* one field of a row of the audit */
#define LIMIT_MAIL_AUDIT_ROWS 500         /* of one list: two megabytes at most of what is usual */
#define LIMIT_MAIL_READERS 1000           /* credentials that may read one inbox: keys and grants; 150 bytes each */
#define LIMIT_MAIL_LINKS 1000             /* to messages of one inbox, that have not expired; as many to attachments */
#define LIMIT_MAIL_ONCE_BYTES 512         /* an idempotency key, or what is compared to find a message sent twice */
#define LIMIT_MAIL_HELD 1000              /* messages in one list of what is held; pending_most is far below */
#define LIMIT_MAIL_ROUND 100              /* messages that one tick changes at most; the next tick goes on */
#define LIMIT_MAIL_APPROVAL_S 86400       /* an approved message has this long to leave, then it is held again */
#define LIMIT_MAIL_RELEASE_S 1            /* before front repeats a delivery of its own that has failed */
#define LIMIT_INSIDE_CONNECTIONS 1024     /* of all sandboxes to mail; one sandbox has LIMIT_EGRESS_INSIDE */
#define LIMIT_GUESTS_COLLECT_BYTES (64 << 20) /* request bodies of sandboxes in front's memory */

/* Mail: front's rows */
#define LIMIT_MAIL_PROFILE_BYTES 16384  /* packed: address, names, signature and addresses for copies */
#define LIMIT_MAIL_PENDING_ROWS 10000   /* inboxes with held mail that one list asks */
#define LIMIT_MAIL_INBOXES 100000       /* of the server; each file has about 160 KB when it is empty, 16 GB together */
#define LIMIT_MAIL_TENANT_INBOXES 10000 /* of these of one tenant, which cannot take all; the operator may make more */
#define LIMIT_MAIL_SHREDDED_BYTES 65536 /* what counts for the audit of a shredded inbox; most have less */
#define LIMIT_MAIL_SANDBOX_MORE \
    10                          /* that a sandbox makes in its life besides its own: clients make one for each role */
#define LIMIT_MAIL_ENDED 64     /* inboxes of sandboxes that have ended, removed in one turn: some ms for each */
#define LIMIT_MAIL_GONE 100000  /* addresses of removed inboxes that nobody else gets yet; the oldest are given again */
#define LIMIT_MAIL_SIGNUPS 1000 /* in an hour, from all places: a network may have as many addresses as it likes */
#define LIMIT_MAIL_UNMADE 256   /* unused directories that one start removes: each may need a worker for it */
#define LIMIT_MAIL_LOOKUPS 4096 /* directories whose rows are looked up in one turn of that */
#define LIMIT_MAIL_SHRED 100    /* inboxes and grants that one sweep ends */
#define LIMIT_MAIL_SHRED_TRIES 24    /* of a damaged file, one in each sweep: a day */
#define LIMIT_MAIL_EVENTS 32         /* of a webhook; there are 18 names */
#define LIMIT_MAIL_KEYS_LISTED 10000 /* keys of one list; an inbox has a few */
#define LIMIT_MAIL_CODES 2000        /* of the operator, waiting for one tenant; a key has 50 at most */
#define LIMIT_MAIL_GRANTS 100        /* in force for one inbox; all are looked at when its credential is used */

/* Mail: the content of one message */
#define LIMIT_MAIL_RECIPIENTS 100               /* of one message that leaves: to, cc and bcc together */
#define LIMIT_MAIL_SHOWN 500                    /* addresses in one header of a message that arrives; others are cut */
#define LIMIT_MAIL_ADDRESS_BYTES 1024           /* as shown, with a name; the bare address has 254 at most, RFC 5321 */
#define LIMIT_MAIL_SUBJECT_BYTES 4096           /* 998 characters, as RFC 5322 has them in a line */
#define LIMIT_MAIL_MESSAGE_ID_BYTES 900         /* fits into a line of 998 with the header's name */
#define LIMIT_MAIL_REFERENCES_BYTES 8192        /* about a hundred messages of a thread */
#define LIMIT_MAIL_SIGNATURE_BYTES 800          /* 200 characters */
#define LIMIT_MAIL_DRAFT_BYTES (1 << 20)        /* of a draft, each of Markdown, text and HTML: 262,144 characters */
#define LIMIT_MAIL_TEXT_BYTES (2 << 20)         /* of a message, made readable; longer ones are cut */
#define LIMIT_MAIL_HTML_BYTES (2 << 20)         /* the same for sanitised HTML */
#define LIMIT_MAIL_PREVIEW_BYTES 800            /* 200 characters */
#define LIMIT_MAIL_ANSWERED_BYTES 8192          /* of the answered message, kept with its answer for the approver */
#define LIMIT_MAIL_ATTACHMENTS 10               /* of a draft */
#define LIMIT_MAIL_ATTACHMENTS_BYTES (10 << 20) /* of a draft, together */
#define LIMIT_MAIL_FILE_NAME_BYTES 255          /* as file systems have it */
#define LIMIT_MAIL_TYPE_BYTES 127               /* a media type; RFC 6838 gives each half 127, none has 80 together */
#define LIMIT_MAIL_MIME_BYTES (20 << 20)        /* a whole message: attachments in base64, and bodies */
#define LIMIT_MAIL_HEADER_BYTES (256 * 1024)    /* of a message that arrives, all headers of one part together */
#define LIMIT_MAIL_DEPTH 20                     /* parts within parts */
#define LIMIT_MAIL_PARTS 1000                   /* of one message */
#define LIMIT_MAIL_WARNINGS 64                  /* of the scan, about one message */
#define LIMIT_MAIL_WARNING_BYTES 1024           /* one of them; it may quote an address */
#define LIMIT_MAIL_FLAGS 16                     /* there are four */
#define LIMIT_MAIL_TREE_BYTES (192 << 20)       /* for the tree of HTML or Markdown: a tag of three bytes takes 150 */
#define LIMIT_MAIL_TREE_MS 1000                 /* of a processor for it; newsletters take ten */
#define LIMIT_MAIL_CONTENT_BYTES (48 << 20)     /* a packed message: MIME, attachments apart, bodies */
#define LIMIT_INBOX_PROCESSES (3 * LIMIT_INBOX_WORKERS) /* with those whose connection has just been closed */
#define LIMIT_INBOX_BYTES (512 << 20)    /* address space of a worker: a frame, its parts and ciphers, several times */
#define LIMIT_COMPOSER_BYTES (768 << 20) /* of a composer's child: the same, and MIME is decoded and encoded */
#define LIMIT_HOOKS 16                   /* webhooks being called at once, of LIMIT_WORKERS; one for each inbox… */
#define LIMIT_HOOKS_SLOW 8               /* …and of these, for inboxes whose last call took… */
#define LIMIT_HOOK_SLOW_MS 1000          /* …so long: servers that hang leave the others' places free */
#define LIMIT_HOOK_LOOKS 2               /* inboxes being asked for their webhooks at once, of LIMIT_WORKERS */
#define LIMIT_HOOK_CHECKS 4              /* addresses of new webhooks being checked at once, one for each inbox… */
#define LIMIT_HOOK_CHECKS_WAITING 2      /* …and waiting ones of an inbox, each with one of LIMIT_MAIL_CALLS… */
#define LIMIT_HOOK_CHECK_MS 3000         /* …for its name servers: somebody waits, and each call checks again */
#define LIMIT_HOOK_MS 10000              /* for a webhook's server, with looking up its name */
#define LIMIT_HOOK_URL_BYTES 2048        /* what servers and proxies take */
#define LIMIT_HOOK_HEADERS 16            /* of one request; we send six */
#define LIMIT_HOOK_BYTES (64 * 1024)     /* of one request; it tells that there is a message and has no content */
#define LIMIT_HOOK_ANSWER_BYTES (64 * 1024) /* of its answer, read and dropped */
#define LIMIT_HOOK_MEMORY_BYTES \
    (256 << 20) /* address space of the process that calls it: libcurl, OpenSSL, certificates */

/* Mail: calls of webhooks that wait, also for another try */
#define LIMIT_HOOKS_WAITING 1000 /* of all inboxes; then the inbox with most of them loses one */
#define LIMIT_HOOKS_EACH 100     /* of one inbox */
#define LIMIT_HOOKS_NONE 10000   /* inboxes that are remembered to have no webhook; 60 bytes each */
#define LIMIT_HOOKS_KNOWN 10000  /* inboxes with calls that wait, or with slow servers; 100 bytes each */

/* Mail: sending, holding and timers */
#define LIMIT_MAIL_PENDING 200              /* held messages of an inbox: more than a person reads in a day */
#define LIMIT_MAIL_STORAGE_BYTES (1 << 30)  /* of an inbox, all its messages; fifty of the largest */
#define LIMIT_MAIL_PENDING_LIST 100         /* held messages in one answer… */
#define LIMIT_MAIL_PENDING_TURN 10          /* …and of one inbox before the next inbox has its turn */
#define LIMIT_MAIL_PENDING_BYTES (4 << 20)  /* contents in one answer; as JSON, escaped and twice, below 64 MiB */
#define LIMIT_MAIL_PENDING_FIELD 16         /* what counts for the JSON around one of their strings */
#define LIMIT_MAIL_PENDING_PAGES 50         /* answers that `cloister mail pending` asks for */
#define LIMIT_MAIL_HOLD_S 604800            /* how long a message waits for a person: a week */
#define LIMIT_MAIL_SCHEDULE_S 31622400      /* how far ahead a message may be scheduled: a year */
#define LIMIT_MAIL_LINK_S 86400             /* an approval link */
#define LIMIT_MAIL_FILE_LINK_S 3600         /* a link to an attachment */
#define LIMIT_MAIL_KEY_BYTES 255            /* an idempotency key */
#define LIMIT_MAIL_SUSPECTS 10              /* last messages whose bodies are searched for a new recipient's address */
#define LIMIT_MAIL_SUSPECT_BYTES (64 << 10) /* …and how much of each */
#define LIMIT_MAIL_DISPATCH 16              /* messages of one inbox that leave in one turn; others go on meanwhile */
#define LIMIT_MAIL_DELIVER_S 14400          /* a local delivery is tried for so long while something is missing… */
#define LIMIT_MAIL_BROKEN_S 60              /* …or damaged; then the recipient counts as refused */
#define LIMIT_MAIL_QUIET_MS 2000            /* without a change, before the row of an inbox gets its next time */
#define LIMIT_MAIL_SWEEP 64                 /* inboxes that one tick looks at… */
#define LIMIT_MAIL_SWEEPERS 4               /* …and ticks at once, of LIMIT_WORKERS: one may wait for a stuck inbox */
#define LIMIT_MAIL_TURN_MS 5000             /* of one inbox, after which no other of its messages begins to leave */
#define LIMIT_MAIL_AWAY_MS 5000             /* a recipient that did not answer is not asked for so long at most… */
#define LIMIT_MAIL_SLOW_MS 500              /* …nor by a tick one that another delivery has waited for so long */
#define LIMIT_MAIL_RETRY_MS 300000          /* the longest pause after failures of one inbox */
#define LIMIT_MAIL_ROWS 1000000             /* inboxes that were in use when the server stopped */

/* Mail: waiting for it */
#define LIMIT_MAIL_POLL_S 25         /* a long poll; clients give up five seconds later */
#define LIMIT_MAIL_POLL_LOOKS 32     /* lists of one long poll, each after an event; what they find stays in memory */
#define LIMIT_MAIL_POLL_ROWS 20      /* messages of its answer */
#define LIMIT_MAIL_LISTENERS 16384   /* long polls and subscriptions, all together; 100 bytes each */
#define LIMIT_MAIL_LISTENERS_EACH 64 /* …to one inbox: each is told of each event */
#define LIMIT_WEBSOCKET_BYTES (16 * 1024) /* of a message from a client: a request with 256 ids has 10 KiB */
#define LIMIT_MAIL_SOCKETS 1024           /* WebSockets of all; some KiB each… */
#define LIMIT_MAIL_SOCKETS_EACH 16        /* …and of one key, or of a sandbox's inbox */
#define LIMIT_MAIL_SOCKET_INBOXES 256     /* that one subscribes to; an account has 100 */
#define LIMIT_MAIL_SOCKET_TASKS 256       /* events and requests that wait for a worker; past it the socket is closed */
#define LIMIT_MAIL_SOCKET_BYTES (4 << 20) /* not yet taken by the client; the same */
#define LIMIT_MAIL_SOCKET_MESSAGES 50     /* of a client in a second */
#define LIMIT_MAIL_SOCKET_PING_MS 30000   /* between two looks whether the client is there and its key is valid… */
#define LIMIT_MAIL_SOCKET_QUIET_MS 90000  /* …and without a byte from it */

#endif
