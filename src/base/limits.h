/*
 * limits.h - every size and time that a peer could stretch, with its reason.
 *
 * What passes one of these fails as ERR_LIMIT (or ERR_TIMEOUT) and names the limit.
 */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

/* HTTP, both directions */
#define LIMIT_HEAD_BYTES (64 * 1024)     /* request or status line plus headers; signed links and cookies are long */
#define LIMIT_HEADERS 128                /* SDKs send about 25 */
#define LIMIT_TARGET_BYTES (16 * 1024)   /* path and query; metadata filters are encoded three times */
#define LIMIT_CHUNK_LINE_BYTES 1024      /* chunk size line with extensions */
#define LIMIT_API_BODY_BYTES (16 << 20)  /* code for an interpreter, and what it prints about itself */
#define LIMIT_CALL_BODY_BYTES (1 << 20)  /* of the server's own API: a create has 192 KiB, before escapes */
#define LIMIT_COLLECT_BYTES (64 << 20)   /* bodies that a server has in memory, all connections together */
#define LIMIT_DISCARD_BYTES (256 * 1024) /* of an unwanted body that we read to keep a connection usable */
#define LIMIT_HEAD_MS 30000              /* from the first byte of a head to its end: slow-loris */
#define LIMIT_BODY_IDLE_MS 120000        /* between two reads of a body */
#define LIMIT_WRITE_IDLE_MS 120000       /* a client that takes hardly anything for so long has gone: fewer than… */
#define LIMIT_WRITE_LEAST_BYTES 65536    /* …so many, of what was there for it all the time: 550 bytes a second */
#define LIMIT_KEEPALIVE_MS 620000        /* longer than the 300 s for which the Python SDK pools idle connections */
#define LIMIT_STRANGER_MS 15000          /* the same for who has not shown a key, or reached a sandbox */
#define LIMIT_STRANGER_BODY_MS 15000     /* LIMIT_BODY_IDLE_MS for who asks the edge without a token */
#define LIMIT_CONNECTIONS 4096           /* per listener; RLIMIT_NOFILE is 20,000 on small machines */
#define LIMIT_TURN_REQUESTS 4            /* of one connection, sent all at once; then the others have their turn */
#define LIMIT_TURN_PIECES 64             /* the same for a body in chunks: each may be a byte and cost a system call */
#define LIMIT_POUR_LEAST (256 * 1024)    /* of a body left: it is worth a pipe to have the kernel hand it on */
#define LIMIT_STREAM_BUFFER (256 * 1024) /* unsent bytes of one stream before its source is asked to wait */

/* JSON and RPC */
#define LIMIT_JSON_DEPTH 64               /* nothing of ours nests deeper than 8 */
#define LIMIT_JSON_VALUES 20000           /* of one request, six megabytes parsed; a create has 1,100 at most */
#define LIMIT_JSON_LARGE_VALUES (1 << 20) /* a chart with all its points, a list of all sandboxes with their metadata */
#define LIMIT_RPC_BYTES (4 << 20)         /* one Connect message; SendInput carries user data in base64 */

/* Names and ids */
#define LIMIT_ID_BYTES 32     /* sandbox and template ids with the zero byte */
#define LIMIT_NAME_BYTES 128  /* template aliases, key names */
#define LIMIT_PATH_BYTES 4096 /* PATH_MAX, zero byte included */

/* A sandbox's own settings */
#define LIMIT_METADATA_PAIRS 64
#define LIMIT_METADATA_BYTES (64 * 1024)
#define LIMIT_ENV_PAIRS 1024
#define LIMIT_ENV_BYTES (128 * 1024) /* the kernel takes 2 MiB for all of argv and environment */
#define LIMIT_TIMEOUT_S (24 * 3600)  /* longest life of one run */
#define LIMIT_SANDBOXES 1000         /* at once, all keys together */
#define LIMIT_METRICS 720            /* samples kept of one sandbox, twice: an hour of every five seconds is 40 KB */
#define LIMIT_METRICS_KEPT 1000      /* sandboxes that are gone and can still be asked about… */
#define LIMIT_METRICS_KEPT_S 3600    /* …for so long */
#define LIMIT_LOG_TEXT_BYTES 256     /* of a command, in a log line */
#define LIMIT_LOG_BATCH 128          /* lines that guestd tells at once; more than that while we are slow are dropped */
#define LIMIT_LOG_PAUSE_MS 50        /* between two such: what guestd could make us do with them */
#define LIMIT_LOG_BYTES (64 * 1024)  /* log lines kept of one sandbox, the newest… */
#define LIMIT_LOGS_KEPT 200          /* …and of so many that are gone */
#define LIMIT_METERS 4096            /* keys whose rate is remembered before those that have rested are forgotten */
#define LIMIT_LAYERS 32              /* overlay lowers of one template */

/*
 * Free room on the data directory's file system below which no sandbox is started: enough for the directories of all
 * the starts under way, for what guestd and a first command write, and for the server to refill its own reserve.
 */
#define LIMIT_ROOM_BYTES (32 << 20)
#define LIMIT_ROOM_INODES 1024

/*
 * Front's workers. A start waits for a guestd whose answer is up to whoever made the template, so starts have a share of
 * them, and each key a share of that; the rest of its burst waits without a worker. Keeper makes one after the other, so
 * eight are enough to keep it busy.
 */
#define LIMIT_WORKERS 32
#define LIMIT_STARTS 24                       /* of the workers; get, list and kill find one of the others */
#define LIMIT_STARTS_PER_KEY 8                /* of LIMIT_STARTS */
#define LIMIT_STARTS_WAITING 1024             /* of one key: of LIMIT_CONNECTIONS, which each holds one of… */
#define LIMIT_STARTS_WAITING_BYTES (16 << 20) /* …and their bodies, of LIMIT_COLLECT_BYTES */

/* Edge */
#define LIMIT_EDGE_CONNECTIONS 512 /* requests and tunnels at once into one sandbox; an SDK opens up to 200 */
#define LIMIT_EDGE_SHARE 3072    /* the same for all sandboxes together: of LIMIT_CONNECTIONS, the API keeps the rest */
#define LIMIT_EDGE_KEY 2048      /* the same for the sandboxes of one key: of LIMIT_EDGE_SHARE, others get something */
#define LIMIT_EDGE_STRANGERS 192 /* of LIMIT_EDGE_CONNECTIONS, without a token; guestd takes 256, an SDK opens 200 */
#define LIMIT_EDGE_OUTSIDERS 224 /* strangers and signed links: at least 32 for links */
#define LIMIT_EDGE_GUESTD 224    /* open at one port of guestd's, which takes 256: from here on outsiders make room */
#define LIMIT_EDGE_STRANGERS_PART 2 /* both get one of so many parts of LIMIT_EDGE_SHARE and of LIMIT_EDGE_KEY */
#define LIMIT_EDGE_IDLE 8           /* kept connections to one guestd; a thousand sandboxes share our descriptors */
#define LIMIT_EDGE_IDLE_MS 60000    /* how long they are kept; far below what guestd waits */
#define LIMIT_EDGE_GATHER_BYTES (8 * 1024)  /* request bodies that go to guestd whole; of LIMIT_COLLECT_BYTES */
#define LIMIT_EDGE_REPLAY_BYTES (16 * 1024) /* of a request body kept in case a kept connection turns out dead */
#define LIMIT_EDGE_DIALS 5                  /* attempts at a port that is not open yet… */
#define LIMIT_EDGE_DIAL_PAUSE_MS 100        /* …with pauses of so much, twice, three and four times so much between */
#define LIMIT_EDGE_DIAL_MS 30000            /* for one connect: a service that does not accept */
#define LIMIT_LINKS_KNOWN 256               /* signed links whose sandbox is remembered */
#define LIMIT_LINK_TRIES 100000             /* a second and address: a wrong signature is tried on every sandbox */
#define LIMIT_LINK_SOURCES 1024             /* addresses whose tries are remembered */
#define LIMIT_RELAY_LINGER_MS 30000         /* without a byte, after one of two joined sides has ended */

/* Between our processes */
#define LIMIT_MESSAGE_BYTES (64 * 1024) /* one privsep datagram */
#define LIMIT_MESSAGE_FDS 5             /* a command: its image, three ends and a report */
#define LIMIT_STATS 16 /* sandboxes measured at one request: a start must not wait for more than a millisecond or two */
#define LIMIT_GUESTLINK_BYTES (512 * 1024) /* the environment is the largest thing in it */
#define LIMIT_START_MS 10000               /* for a new guestd to answer; on a very busy machine a second or two */
#define LIMIT_STOP_MS 10000                /* how long an asker may want to wait for the end of a killed sandbox */
#define LIMIT_KEEPER_MS 35000              /* a keeper that says nothing for so long is stuck */

/* In the sandbox */
#define LIMIT_PROCESSES 512 /* started through the API and not yet forgotten */
#define LIMIT_ARGS 4096
#define LIMIT_ARGS_BYTES (1 << 20)
#define LIMIT_RING_BYTES (4 << 20) /* kept output of one process */
#define LIMIT_LIST_ENTRIES 100000  /* of one ListDir */
#define LIMIT_LIST_DEPTH 64
#define LIMIT_USERS_BYTES (1 << 20)   /* /etc/passwd, /etc/group: the guest's own files */
#define LIMIT_NSS_BYTES (1 << 16)     /* /etc/nsswitch.conf, the same; Debian's has 500 bytes */
#define LIMIT_OUTPUT_BYTES (64 << 20) /* kept output of all processes together; past it each keeps little */
#define LIMIT_RETAIN_MS 30000         /* how long an ended process can still be asked for its end, as upstream */
#define LIMIT_ATTACH_MS 250           /* how much later than a client's return the news of its last end may come */
#define LIMIT_STALL_MS 10000          /* a stream that holds the others up for so long is cut */
#define LIMIT_SPAWN_MS 30000    /* from fork to the program; a busy sandbox takes seconds, a stopped child for ever */
#define LIMIT_KILL_WAIT_MS 2000 /* an uninterruptible process: answer before the client gives up */
#define LIMIT_LIST_BYTES (32 << 20) /* the answer of one ListDir; 100,000 entries with short names */
#define LIMIT_UPLOAD_FILES 1000     /* parts of one multipart upload */
#define LIMIT_WATCHERS 1024         /* of the whole sandbox; a kilobyte each, and they share one inotify instance */
#define LIMIT_WATCH_STREAMS 192     /* of them, those that each hold a connection: of LIMIT_GUEST_CONNECTIONS */
#define LIMIT_WATCH_DIRS 8192       /* of one recursive watch */
#define LIMIT_WATCH_EVENTS 100000   /* not yet fetched from one watcher */
#define LIMIT_WATCH_QUEUE 16384     /* records waiting for one slow watcher; the kernel's own default for an instance */

/* guestd's own memory, which its cgroup limits. Whoever asks shares these with all others that do. */
#define LIMIT_GUEST_CONNECTIONS 256          /* heads of 64 KiB and buffers of 256 KiB each; an SDK opens up to 200 */
#define LIMIT_GUEST_COLLECT_BYTES (32 << 20) /* bodies of calls under way */
#define LIMIT_INPUT_BYTES (16 << 20)         /* of StreamInput, not yet taken by a process */
#define LIMIT_CONFIG_BYTES (16 << 20)        /* arguments and variables of what runs, which List gives back */
#define LIMIT_LIST_NAME_BYTES (8 << 20)      /* names that one ListDir holds to sort them */
#define LIMIT_ANSWERS_BYTES (32 << 20)       /* whole answers, such as listings, on their way to clients */
#define LIMIT_WATCH_PLACE_BYTES (16 << 20)   /* directories under watch with their names, once for each who watches */
#define LIMIT_WATCH_TOLD_BYTES (16 << 20)    /* names found in new directories, until the kernel has told them too */
#define LIMIT_WATCH_KEPT_BYTES (32 << 20)    /* events not yet fetched; past it whoever has left most loses them */
#define LIMIT_WATCH_QUEUE_BYTES (8 << 20)    /* records waiting for slow watchers; the same */
#define LIMIT_UPLOAD_MEMORY_BYTES (32 << 20) /* in use on a tmpfs that takes uploads: their pages are ours */

#endif
