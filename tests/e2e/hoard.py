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
SO_TIMESTAMPING = 37
SOF_TIMESTAMPING_TX_SOFTWARE = struct.pack("i", 1 << 1)
IP_RECVERR = 11
IPV6_RECVERR = 25
IPV6_2292PKTOPTIONS = 6
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


def unhashed():
    """As `corked`, and then out of the kernel's list of UDP sockets. One process has too few descriptors for all."""
    if len(held) >= 3000:
        if os.fork():
            raise Enough
        held.clear()
    corked()
    nobody = struct.pack("=H14x", socket.AF_UNSPEC)
    if ctypes.CDLL(None).connect(held[-1].fileno(), nobody, len(nobody)) < 0:
        raise OSError("a socket that cannot be disconnected")


def stamp(sock, each):
    """What is sent comes back with the time, in the error queue. Gives how to send a piece."""
    if each:
        option = (socket.SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_TX_SOFTWARE)
        return lambda piece: sock.sendmsg([piece], [option])
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_TX_SOFTWARE)
    return sock.send


def stamped(each=False):
    """To a socket whose receive buffer is too small for it."""
    other = keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    other.bind(("127.0.0.1", 0))
    sock = keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.connect(other.getsockname())
    pour(stamp(sock, each))


def stamped_each():
    stamped(True)


def stamped_tcp(each=False):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        other = keep(listener.accept()[0], client)
    send = stamp(client, each)
    for _ in range(300):
        try:
            count(send(PIECE[:16384]))
            while other.recv(65536):
                pass
        except BlockingIOError:
            pass


def stamped_tcp_each():
    stamped_tcp(True)


def errors(family=socket.AF_INET, host="127.0.0.1", option=(socket.IPPROTO_IP, IP_RECVERR)):
    """No socket has that port, so what was sent comes back: 600 bytes of it, and as much again for the kernel."""
    sock = keep(socket.socket(family, socket.SOCK_DGRAM))
    sock.setsockopt(*option, 1)
    for _ in range(6000):
        try:
            count(sock.sendto(PIECE[:600], (host, 9)))
        except ConnectionRefusedError:
            pass


def errors6():
    errors(socket.AF_INET6, "::1", (socket.IPPROTO_IPV6, IPV6_RECVERR))


def options():
    sock = keep(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
    nothing = struct.pack("=QII", 65536, 0, 0)
    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_2292PKTOPTIONS, nothing + bytes(65536 - len(nothing)))
    count(65536)


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


def locks():
    """Of records, from the end of the file: there a new one costs least."""
    for k in range(1000, 0, -1):
        place = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 2 * k, 1, 0)
        if k == 1000:
            held.append(os.memfd_create("locks"))
        fcntl.fcntl(held[-1], fcntl.F_SETLK, place)
        count(192)


def error_queues():
    """How many of the last sockets have something there: what a guest can fill with little is filled with much."""
    found = 0
    for sock in held[-10:]:
        try:
            found += isinstance(sock, socket.socket) and bool(sock.recvmsg(1, 1000, socket.MSG_ERRQUEUE))
        except OSError:
            pass
    return found


def main():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    why = "nothing is left"
    try:
        while True:
            (KINDS | UNLISTED)[kind]()
    except Enough:
        why = "enough"
    except (OSError, MemoryError) as error:
        why = str(error)
    print(f"{taken} {why}; error queues: {error_queues()}", flush=True)
    time.sleep(max(0, end - time.monotonic()))


KINDS = {
    f.__name__: f
    for f in (
        netlink,
        udp,
        udp6,
        corked,
        unhashed,
        stamped,
        stamped_each,
        stamped_tcp,
        stamped_tcp_each,
        errors,
        errors6,
        options,
        tcp,
        local,
        passed,
        others,
    )
}
UNLISTED = {f.__name__: f for f in (locks,)}  # no list of the kernel's says whose they are

if __name__ == "__main__":
    kind, room, end = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    main()
