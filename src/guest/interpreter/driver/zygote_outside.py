"""The zygote outside: one for all sandboxes of a template, whose children enter them before they become interpreters.

Keeper gives her doors, guestd asks at them, and enter.c does the entering. She reads nothing that a guest has sent and
waits for nothing that a guest can hold up.
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
from .warmth import QUIET_MS, make_shell, steps_to_warmth, take_step

ENTER_FD, VOICE_FD = 3, 4  # as zygote_child.h has them
ENTER_SANDBOX, DROP = b"d", b"b"  # as enter.h has them
READY, TAKEN, BUSY, IDLE, FAILED = b"r", b"t", b"b", b"i", b"f"  # as zygote_child.h has them
DOOR_FDS = 2
DOORS_MAX = 2048  # each holds up to five descriptors
SPAWNS_MAX = 8  # at once, all doors together; one a door
NEXT_MS = 20  # without a request before she makes the next child: not while the last one is on its way to its first cell
SPAWN_S = 2  # then somebody inside is holding it up


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
        self.told = watch_children()
        self.poll = select.poll()
        self.poll.register(control.fileno(), select.POLLIN)
        self.poll.register(self.told, select.POLLIN)
        self.poll_no_doors = select.poll()
        self.poll_no_doors.register(control.fileno(), select.POLLIN)
        self.poll_no_doors.register(self.told, select.POLLIN)
        self.wanted = select.POLLIN
        self.doors = {}  # by descriptor, in the order of their turns
        self.spawns = {}  # socket of the order -> Spawn
        self.ready_child = None  # (pid, socket): waits for its order
        self.steps = steps_to_warmth()
        self.is_warm = self.is_short = False

    def serve_forever(self):
        self.say(READY)
        while True:
            is_full = len(self.spawns) >= SPAWNS_MAX
            ready = dict((self.poll_no_doors if is_full else self.poll).poll(self.patience_ms()))
            if self.told in ready:
                os.read(self.told, 4096)
                self.collect()
            if self.control.fileno() in ready:
                self.take_door()
            for fd in [fd for fd in self.spawns if fd in ready]:
                self.end_spawn(self.spawns[fd])
            self.end_late_spawns()
            for fd in [fd for fd in self.doors if fd in ready]:
                self.serve(fd)
            if not ready and not self.is_warm:
                self.say(BUSY)
                self.is_warm = not take_step(self.steps)
                self.say(IDLE)
            elif not ready and not self.ready_child:
                try:
                    self.make_child()
                except OSError:
                    self.is_short = True  # not again before somebody asks

    def say(self, word):
        os.write(VOICE_FD, word)

    def patience_ms(self):
        if not self.is_warm:
            return QUIET_MS
        if not self.ready_child and not self.is_short:
            return NEXT_MS
        return 1000 * SPAWN_S if self.spawns else None

    def make_child(self):
        self.ready_child = self.enter.spare()
        if not self.ready_child:
            self.become_interpreter()

    def become_interpreter(self):
        """In the interpreter, confined already, all of its zygote's descriptors closed."""
        try:
            self.control.detach()
            after_fork()
            for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
                del sys.path_importer_cache[path]  # it was not there; here it may be
            become_interpreter(list(self.enter.fds))
        finally:
            os._exit(1)

    def order(self, letter, fds):
        """To a child that waits, or one made for it. Its pid and the socket, to be closed."""
        if not self.ready_child:
            self.make_child()
        (pid, sock), self.ready_child = self.ready_child, None
        try:
            with_socket(sock, socket.send_fds, [letter], fds)
        except OSError:
            os.close(sock)
            raise
        return pid, sock

    def take_door(self):
        byte, fds, flags, address = socket.recv_fds(self.control, 16, DOOR_FDS)
        if not byte:
            os._exit(0)  # keeper has closed, or died
        if len(fds) == DOOR_FDS and len(self.doors) < DOORS_MAX:
            self.doors[fds[0]] = Door(fds)
            self.poll.register(fds[0], self.wanted)
        else:
            for fd in fds:
                os.close(fd)
        self.say(TAKEN)

    def serve(self, fd):
        door = self.doors[fd]
        if len(self.spawns) >= SPAWNS_MAX:
            return  # its turn comes: those that were served stand behind it
        try:
            # Only looked at: what is in it is a guest's. Keeper's filter lets no empty message in, so this is the end.
            if not with_socket(fd, socket.socket.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                self.forget(door)
                return
            self.is_short = False
            pid, sock = self.order(ENTER_SANDBOX, door.fds)
        except BlockingIOError:
            return
        except OSError:
            self.drop(door)  # no more processes, or no memory: guestd sees it close, and has a zygote of its own
            return
        self.spawns[sock] = door.spawn = Spawn(door, pid, sock)
        for poll in (self.poll, self.poll_no_doors):
            poll.register(sock, 0)  # its end, which cannot be left out
        self.poll.unregister(fd)
        self.doors[fd] = self.doors.pop(fd)

    def collect(self):
        for pid, status in ended_children():
            if self.ready_child and pid == self.ready_child[0]:
                os.close(self.ready_child[1])
                self.ready_child = None
            spawn = next((spawn for spawn in self.spawns.values() if spawn.pid == pid), None)
            if spawn:
                spawn.pid = None
                if status:
                    self.end_spawn(spawn, failed=True)

    def end_spawn(self, spawn, failed=False):
        """A child that is held up on its way is none of ours any more: its sandbox has one at most, for its door is closed."""
        for poll in (self.poll, self.poll_no_doors):
            poll.unregister(spawn.sock)
        del self.spawns[spawn.sock]
        os.close(spawn.sock)
        if spawn.pid:
            os.kill(spawn.pid, signal.SIGKILL)  # if it has not just ended; it is collected either way
        spawn.door.spawn = None
        self.poll.register(spawn.door.fds[0], self.wanted)
        if failed:
            self.drop(spawn.door)

    def end_late_spawns(self):
        now = time.monotonic()
        for spawn in [spawn for spawn in self.spawns.values() if spawn.until < now]:
            self.end_spawn(spawn, failed=True)

    def forget(self, door):
        """One whose other end is closed, with nothing left in it."""
        self.poll.unregister(door.fds[0])
        del self.doors[door.fds[0]]
        for fd in door.fds:
            os.close(fd)

    def drop(self, door):
        """
        What may be in its queue are descriptors of a guest's, and the last one to close a descriptor can be made to wait. So
        a child takes the door with it when it ends, which waits for nothing.
        """
        try:
            os.close(self.order(DROP, [door.fds[0]])[1])
        except OSError:
            pass  # no memory for a child: a risk of waiting, against a door that hangs
        self.forget(door)


def watch_children():
    """A pipe that becomes readable when a child has ended, for poll()."""
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    return told


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


class Enter:
    """enter.c: a fork that enters a sandbox. Without ctypes in the template there is none."""

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
            pass  # a C library that does not use it
        self.library = ctypes.PyDLL(f"/proc/self/fd/{ENTER_FD}")
        self.fds = (ctypes.c_int * 3)()
        failed = self.library.enter_open(ctypes.byref(hooks))
        if failed:
            raise OSError(-failed, "enter_open")

    def spare(self):
        """(pid, the socket to send its order to); None in the interpreter once it is spawned, whose descriptors are self.fds."""
        ours, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        pid = self.library.enter_spare(theirs, self.fds)
        if pid == 0:
            return None
        os.close(theirs)
        if pid < 0:
            os.close(ours)
            raise OSError("fork")
        return pid, ours


class Door:
    def __init__(self, fds):
        self.fds = fds  # as enter.h orders them: the door itself, the sandbox's pidfd
        self.spawn = None  # the one under way


class Spawn:
    """Over when the child that was sent has ended and its own child is out of our hands: then nobody holds `sock`."""

    def __init__(self, door, pid, sock):
        self.door, self.pid, self.sock = door, pid, sock
        self.until = time.monotonic() + SPAWN_S


def with_socket(fd, function, *arguments):
    """On a descriptor that no object owns: in a child there must be none that would close what is not its own."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
    try:
        return function(sock, *arguments)
    finally:
        sock.detach()


def run_zygote(control):
    try:
        zygote = Zygote(control)
    except BaseException as failure:
        os.write(VOICE_FD, FAILED + f"{type(failure).__name__}: {failure}".encode("ascii", "replace")[:200])
        os._exit(1)
    zygote.serve_forever()
