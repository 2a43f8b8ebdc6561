"""The zygote: one process for all sandboxes of a template, outside of them. Its forks enter a sandbox and become interpreters.

Keeper sends a socket and a pidfd of each sandbox; guestd sends requests on that socket. A fork waits in advance (the prefork). On
a request the zygote tells the prefork which sandbox to enter, and makes the next prefork when it is idle. enter.c does the
entering. The zygote itself never receives from a sandbox's socket and never waits for a guest: closing a descriptor that a guest
has sent can take as long as the guest likes.
"""
import gc
import os
import signal
import socket
import sys
import time

from .here import here
from .interpreter import after_fork, become_interpreter
from .stamps import Stamps
from .warmth import QUIET_MS, make_shell, take_step, warmup_steps

ENTER_FD, STATUS_FD = 3, 4  # as in zygote_child.h
ENTER_SANDBOX, DROP_SOCKET = b"d", b"b"  # as in enter.h
READY, TAKEN, BUSY, IDLE, WARM, FAILED = b"r", b"t", b"b", b"i", b"w", b"f"  # as in zygote_child.h
SANDBOX_FDS = 2
SANDBOXES_MAX = 2048  # each holds up to five descriptors
SPAWNS_MAX = 8  # at once, all sandboxes together; one a sandbox
PREFORK_MS = 20  # idle before the next prefork is made: the last fork is on its way to its first cell
SPAWN_S = 2  # a spawn that takes longer is held up by the guest
CROWDED_S = 0.5  # the same for the oldest while others wait for a place


class Zygote:
    def __init__(self, control):
        import select
        self.control = control
        self.enter = Enter()
        begun_ns = time.time_ns()
        make_shell()
        here.stamps = Stamps()
        here.stamps.take(begun_ns)
        gc.freeze()
        self.child_ended = watch_children()
        self.poll_all, self.poll_no_requests = select.poll(), select.poll()
        for poll in (self.poll_all, self.poll_no_requests):
            poll.register(control.fileno(), select.POLLIN)
            poll.register(self.child_ended, select.POLLIN)
        self.pollin, self.pollhup = select.POLLIN, select.POLLHUP
        self.sandboxes = {}  # by socket, least recently served first
        self.spawns = {}  # by the order's socket
        self.prefork = None  # (pid, socket for its order)
        self.steps = warmup_steps()
        self.is_warm = False
        self.fork_failed = False  # do not try again before the next request

    def serve_forever(self):
        self.report(READY)
        while True:
            is_full = len(self.spawns) >= SPAWNS_MAX
            ready = dict((self.poll_no_requests if is_full else self.poll_all).poll(self.poll_timeout_ms()))
            if self.child_ended in ready:
                os.read(self.child_ended, 4096)
                self.collect_children()
            if self.control.fileno() in ready:
                self.add_sandbox()
            for fd in [fd for fd in self.spawns if fd in ready]:
                self.end_spawn(self.spawns[fd])
            self.end_late_spawns()
            for fd in [fd for fd in self.sandboxes if fd in ready]:
                self.serve_request(self.sandboxes[fd])
            if not ready and not self.is_warm:
                self.report(BUSY)
                self.is_warm = not take_step(self.steps)
                self.report(IDLE + WARM if self.is_warm else IDLE)
            elif not ready and not self.prefork:
                try:
                    self.make_prefork()
                except OSError:
                    self.fork_failed = True

    def report(self, letter):
        os.write(STATUS_FD, letter)

    def poll_timeout_ms(self):
        if not self.is_warm:
            return QUIET_MS
        if not self.prefork and not self.fork_failed:
            return PREFORK_MS
        return int(1000 * self.patience_s()) if self.spawns else None

    def patience_s(self):
        return SPAWN_S if len(self.spawns) < SPAWNS_MAX else CROWDED_S

    def make_prefork(self):
        self.prefork = self.enter.fork()
        if not self.prefork:
            self.become_interpreter()

    def become_interpreter(self):
        """In the fork: it is inside the sandbox and confined, and has closed the zygote's descriptors. Never returns."""
        try:
            self.control.detach()
            after_fork()
            for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
                del sys.path_importer_cache[path]  # the zygote has no such directory; the sandbox may have it
            become_interpreter(list(self.enter.fds))
        finally:
            os._exit(1)

    def order_prefork(self, letter, fds):
        """Gives the prefork its order. Returns its pid and the order's socket, which the caller closes."""
        if not self.prefork:
            self.make_prefork()
        (pid, sock), self.prefork = self.prefork, None
        try:
            with_socket(sock, socket.send_fds, [letter], fds)
        except OSError:
            os.close(sock)
            raise
        return pid, sock

    def add_sandbox(self):
        data, fds, flags, address = socket.recv_fds(self.control, 16, SANDBOX_FDS)
        if not data:
            os._exit(0)  # keeper has closed the socket, or died
        self.forget_older(data[1:])
        if len(fds) == SANDBOX_FDS and len(self.sandboxes) < SANDBOXES_MAX:
            self.sandboxes[fds[0]] = Sandbox(fds, data[1:])
            self.poll_all.register(fds[0], self.pollin)
        else:
            for fd in fds:
                os.close(fd)
        self.report(TAKEN)

    def forget_older(self, slot):
        """
        Keeper sends a second one to a sandbox whose first may have been closed. If it was not, guestd closes the second. Only
        a hostile guestd has more that are open.
        """
        busy = [spawn.sandbox for spawn in self.spawns.values()]
        older = [one for one in self.sandboxes.values() if one.slot == slot]
        for one in older[:-1]:
            if one not in busy:
                self.drop_sandbox(one)

    def serve_request(self, sandbox):
        if len(self.spawns) >= SPAWNS_MAX:
            return  # it is served first next time
        try:
            # Peek: the content is the guest's. Keeper's socket filter drops empty messages, so empty means closed.
            if not with_socket(sandbox.socket, socket.socket.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                self.remove_sandbox(sandbox)
                return
            self.fork_failed = False
            pid, order = self.order_prefork(ENTER_SANDBOX, sandbox.fds)
        except BlockingIOError:
            return
        except OSError:
            self.drop_sandbox(sandbox)  # no more processes, or no memory: guestd sees its socket close and helps itself
            return
        self.spawns[order] = Spawn(sandbox, pid, order)
        for poll in (self.poll_all, self.poll_no_requests):
            poll.register(order, 0)  # no event but the hang-up, which is always reported
        self.poll_all.unregister(sandbox.socket)
        self.sandboxes[sandbox.socket] = self.sandboxes.pop(sandbox.socket)

    def collect_children(self):
        for pid, status in ended_children():
            if self.prefork and pid == self.prefork[0]:
                os.close(self.prefork[1])
                self.prefork = None
            spawn = next((spawn for spawn in self.spawns.values() if spawn.pid == pid), None)
            if spawn:
                spawn.pid = None
                if status:
                    self.end_spawn(spawn, failed=True)

    def end_spawn(self, spawn, failed=False):
        """After a failure the sandbox's socket is closed. A fork that the guest has stopped inside is left to keeper."""
        for poll in (self.poll_all, self.poll_no_requests):
            poll.unregister(spawn.order)
        del self.spawns[spawn.order]
        os.close(spawn.order)
        if spawn.pid:
            os.kill(spawn.pid, signal.SIGKILL)  # not collected yet, so the number is still its own
        self.poll_all.register(spawn.sandbox.socket, self.pollin)
        if failed:
            self.drop_sandbox(spawn.sandbox)

    def end_late_spawns(self):
        now = time.monotonic()
        late = [spawn for spawn in self.spawns.values() if spawn.begun < now - SPAWN_S]
        if not late and len(self.spawns) == SPAWNS_MAX:
            # One that has hung up wants nothing.
            waiting = sum(fd in self.sandboxes and not events & self.pollhup for fd, events in self.poll_all.poll(0))
            late = [spawn for spawn in self.spawns.values() if spawn.begun < now - CROWDED_S][:waiting]
        for spawn in late:
            self.end_spawn(spawn, failed=True)

    def remove_sandbox(self, sandbox):
        """When its socket is closed at the other end and empty."""
        self.poll_all.unregister(sandbox.socket)
        del self.sandboxes[sandbox.socket]
        for fd in sandbox.fds:
            os.close(fd)

    def drop_sandbox(self, sandbox):
        """
        The socket's queue may hold descriptors of the guest, and closing the last copy of one can block. So a child gets a copy
        of the socket and ends: if the close blocks, it blocks that child.
        """
        try:
            os.close(self.order_prefork(DROP_SOCKET, [sandbox.socket])[1])
        except OSError:
            pass  # no memory for a child: the close below may block, which is better than a socket that hangs
        self.remove_sandbox(sandbox)


class Enter:
    """enter.c: a fork that enters a sandbox. Needs ctypes in the template; without it there is no zygote."""

    def __init__(self):
        import ctypes
        libc = ctypes.CDLL(None)

        class Hooks(ctypes.Structure):
            _fields_ = [(name, ctypes.c_void_p) for name in ("before", "parent", "child", "fork")]
            _fields_ += [("rseq_offset", ctypes.c_int64)]

        python = ctypes.pythonapi
        hooks = Hooks(*(ctypes.cast(f, ctypes.c_void_p).value for f in (
            python.PyOS_BeforeFork, python.PyOS_AfterFork_Parent, python.PyOS_AfterFork_Child, libc.fork)))
        try:
            if ctypes.c_uint.in_dll(libc, "__rseq_size").value:
                hooks.rseq_offset = ctypes.c_ssize_t.in_dll(libc, "__rseq_offset").value
        except ValueError:
            pass  # a C library without rseq
        self.library = ctypes.PyDLL(f"/proc/self/fd/{ENTER_FD}")
        self.fds = (ctypes.c_int * 3)()
        failed = self.library.enter_open(ctypes.byref(hooks))
        if failed:
            raise OSError(-failed, "enter_open")

    def fork(self):
        """In the zygote: (pid, socket for the order). In the fork, once it is in a sandbox: None, and self.fds are set."""
        ours, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        pid = self.library.enter_spare(theirs, self.fds)
        if pid == 0:
            return None
        os.close(theirs)
        if pid < 0:
            os.close(ours)
            raise OSError("fork")
        return pid, ours


class Sandbox:
    def __init__(self, fds, slot):
        self.fds = fds  # in the order of enter.h: the socket that guestd sends requests on, the sandbox's pidfd
        self.slot = slot
        self.socket = fds[0]


class Spawn:
    """A fork on its way into a sandbox. Over when `order` hangs up: the fork is confined, or has ended."""

    def __init__(self, sandbox, pid, order):
        self.sandbox, self.pid, self.order = sandbox, pid, order
        self.begun = time.monotonic()


def watch_children():
    """A pipe that becomes readable when a child has ended, for poll()."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    return read_end


def ended_children():
    """(pid, status) of each child that has ended since the last call."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


def with_socket(fd, function, *arguments):
    """Calls a method of a temporary socket object: an object that a fork inherits could close a descriptor of the fork."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
    try:
        return function(sock, *arguments)
    finally:
        sock.detach()


def run_zygote(control):
    try:
        zygote = Zygote(control)
    except BaseException as failure:
        os.write(STATUS_FD, FAILED + f"{type(failure).__name__}: {failure}".encode("ascii", "replace")[:200])
        os._exit(1)
    zygote.serve_forever()
