"""Runs inside a sandbox: has the kernel hold as much as it can of one kind, and then waits.

    hoard.py KIND BYTES SECONDS      at most so many bytes, for at most so long, whatever protects the host
"""

import ctypes
import fcntl
import os
import resource
import select
import socket
import struct
import sys
import time

F_SETPIPE_SZ = 1031
BUFFER = 8 << 20
PIECE = bytes(60000)

held = []
taken = 0


class Enough(Exception):
    pass


def count(size):
    global taken
    taken += size
    if taken >= room or time.monotonic() >= end:
        raise Enough


def keep(*sockets):
    for sock in sockets:
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        held.append(sock)
    return sockets[0]


def pour(send):
    """Until it takes no more. A socket that drops says nothing of it, so not more than its buffers hold."""
    for _ in range(2 * BUFFER // len(PIECE)):
        try:
            count(send(PIECE))
        except OSError:
            return


def netlink():
    """Each message is wrong, and comes back whole."""
    keep(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    wrong = struct.pack("=IHHII", 16 + 30000, 9999, 1, 1, 0) + bytes(30000)
    for _ in range(280):
        count(held[-1].send(wrong))


def udp(family=socket.AF_INET, host="127.0.0.1"):
    sock = keep(socket.socket(family, socket.SOCK_DGRAM))
    sock.bind((host, 0))
    sock.connect(sock.getsockname())
    pour(sock.send)


def udp6():
    udp(socket.AF_INET6, "::1")


def corked():
    sock = keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.connect(("127.0.0.1", 9))
    count(sock.send(PIECE, socket.MSG_MORE))


def tcp():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        keep(client, listener.accept()[0])
    pour(client.send)
    pour(held[-1].send)


def local():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        keep(one, other)
        pour(one.send)
        pour(other.send)


def passed():
    """Descriptors on their way, each of a pipe that is full."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    keep(one, other)
    for _ in range(60):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        pour(lambda piece, writer=writer: os.write(writer, piece))
        try:
            socket.send_fds(one, [b"x"], [reader, writer])
        except OSError:
            return
        finally:
            os.close(reader)
            os.close(writer)


def others():
    libc = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        fcntl.fcntl(writer, F_SETPIPE_SZ, 1 << 20)
    except OSError:
        pass  # more than a user may have
    held.append((reader, writer))
    pour(lambda piece: os.write(writer, piece))
    memory = os.memfd_create("hoard")
    pour(lambda piece: os.write(memory, piece))
    queue = libc.msgget(0, 0o1600)
    while queue >= 0 and libc.msgsnd(queue, struct.pack("l", 1) + bytes(8000), 8000, 0o4000) == 0:
        count(8000)
    for _ in range(50):
        poll = select.epoll()
        event, timer, watch = libc.eventfd(0, 0), libc.timerfd_create(1, 0), libc.inotify_init()
        poll.register(event)
        held.append((poll, event, timer, watch, memory))
        count(2000)


def main():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    why = "nothing is left"
    try:
        while True:
            KINDS[kind]()
    except Enough:
        why = "enough"
    except (OSError, MemoryError) as error:
        why = str(error)
    print(taken, why, flush=True)
    time.sleep(max(0, end - time.monotonic()))


KINDS = {f.__name__: f for f in (netlink, udp, udp6, corked, tcp, local, passed, others)}

if __name__ == "__main__":
    kind, room, end = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    main()
