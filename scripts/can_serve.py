#!/usr/bin/env python3
"""can_serve.py ADDRESS:PORT DATA - fails if a server runs there already, so that `make up` builds no template before.

Only that, and an address without a port: what else is wrong the server says itself, and better.
"""
import errno
import fcntl
import os
import socket
import sys

address, data = sys.argv[1:]
host, _, port = address.rpartition(":")
if not host or not port.isdigit():
    sys.exit(f"'{address}' is not an address and a port; try make up LISTEN=127.0.0.1:{port if port.isdigit() else 7070}")
# Not the address that was asked for: it is in use.
LISTEN = "LISTEN=127.0.0.1:" + ("7272" if port == "7171" else "7171")
OTHER = f"make up DATA=/srv/other {LISTEN}"

try:
    # Keeper holds this lock (src/isolation/native/native.c).
    directory = os.open(os.path.join(data, "sandboxes"), os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(directory)
except BlockingIOError:
    sys.exit(f"a cloister runs already with the data directory {data}: use that one, or stop it, or start another "
             f"beside it with {OTHER}")
except OSError:
    pass

family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
try:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        probe.bind((host.strip("[]"), int(port)))
        probe.listen()
except (OSError, OverflowError, ValueError) as error:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        sys.exit(f"{address} is in use, by a cloister with another data directory or by another program; choose another "
                 f"address with make up {LISTEN}")
