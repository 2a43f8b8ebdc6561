#include "guest/filesystem.h"
#include "guest/watch.h"

static void not_yet(struct rpc *rpc, const json_t *request)
{
    (void)request;
    rpc_fail(rpc, CONNECT_UNIMPLEMENTED, "watching directories is not implemented yet");
}

const struct rpc_method filesystem_watch_dir = { "filesystem.Filesystem/WatchDir", RPC_SERVER_STREAM, not_yet, NULL };
const struct rpc_method filesystem_create_watcher = { "filesystem.Filesystem/CreateWatcher", RPC_UNARY, not_yet, NULL };
const struct rpc_method filesystem_get_watcher_events = { "filesystem.Filesystem/GetWatcherEvents", RPC_UNARY, not_yet,
                                                          NULL };
const struct rpc_method filesystem_remove_watcher = { "filesystem.Filesystem/RemoveWatcher", RPC_UNARY, not_yet, NULL };
