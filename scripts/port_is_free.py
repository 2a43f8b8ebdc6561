#!/usr/bin/env python3
"""port_is_free.py ADDRESS:PORT - fails if something listens there, so that `make up` says so before it builds a template.

Only that: what else is wrong with the address the server says itself, and better.
"""
import errno
import socket
import sys

host, _, port = sys.argv[1].rpartition(":")
family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
try:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        probe.bind((host.strip("[]"), int(port)))
        probe.listen()
except (OSError, OverflowError, ValueError) as error:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        sys.exit(f"{sys.argv[1]} is in use, by a cloister that runs already or by another program; "
                 "choose another address with make up LISTEN=127.0.0.1:7171")
