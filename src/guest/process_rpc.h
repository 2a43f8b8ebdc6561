/*
 * process_rpc.h - process.Process, method by method: decode, ask process.h, encode.
 */
#ifndef GUEST_PROCESS_RPC_H
#define GUEST_PROCESS_RPC_H

#include "guest/rpc.h"

extern const struct rpc_method process_list, process_start, process_connect, process_update, process_send_input,
    process_stream_input, process_close_stdin, process_send_signal;

#endif
