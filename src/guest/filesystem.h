/*
 * filesystem.h - filesystem.Filesystem, method by method.
 */
#ifndef GUEST_FILESYSTEM_H
#define GUEST_FILESYSTEM_H

#include "guest/rpc.h"

extern const struct rpc_method filesystem_stat, filesystem_list_dir, filesystem_make_dir, filesystem_move,
    filesystem_remove;
/* in watch_rpc.c */
extern const struct rpc_method filesystem_watch_dir, filesystem_create_watcher, filesystem_get_watcher_events,
    filesystem_remove_watcher;

#endif
