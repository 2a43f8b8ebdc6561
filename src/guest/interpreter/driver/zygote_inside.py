"""The zygote inside a sandbox: guestd's child, who forks an interpreter for every three descriptors she gets."""
import os
import socket

from .interpreter import become_interpreter, rehearse, settle
from .warmth import QUIET_MS, make_shell, steps_to_warmth, take_step

SPARE_MS = 5  # without a request before she makes a spare child


def zygote_inside(door, is_alone):
    """Alone with one child, and cold: an interpreter that shares nothing with any other."""
    import select
    told = make_shell(is_alone)
    steps = iter(()) if is_alone else steps_to_warmth()
    is_warm = is_alone
    poll = select.poll()
    poll.register(door, select.POLLIN)
    poll.register(told, select.POLLIN)
    has_children = False
    spare, is_short = Spare(), False
    while True:
        is_done = is_warm and (is_alone or is_short or spare.sock)
        ready = dict(poll.poll(None if is_done or not has_children else QUIET_MS if not is_warm else SPARE_MS))
        if told in ready:
            os.read(told, 4096)
            collect_children(door)
        if door.fileno() in ready:
            byte, fds, flags, address = socket.recv_fds(door, 16, 3)
            if not byte:
                os._exit(0)  # guestd has closed
            if len(fds) == 3:
                has_children, is_short = True, False
                try:
                    if not spare.give(fds):
                        fork_interpreter(door, fds)
                except OSError:
                    pass  # no more processes, or no memory: guestd sees the socket close and says so
            for fd in fds:
                os.close(fd)
        elif not ready and not is_warm:
            is_warm = not take_step(steps)
        elif not ready:
            try:
                spare.make(door)
            except OSError:
                is_short = True  # not again before somebody asks


def ended_children():
    """Process id and status of each child that has ended since the last time."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


def collect_children(door):
    for pid, status in ended_children():
        door.send(f"{pid} {status}".encode())


def fork_interpreter(door, fds):
    if os.fork() == 0:
        try:
            door.detach()
            settle()
            become_interpreter(fds)
        finally:
            os._exit(1)  # whatever went wrong: a child that returns from here is a second zygote at the same door


class Spare:
    """A child that has settled already and waits for its descriptors: most of what a fork costs is paid before it is asked for."""

    def __init__(self):
        self.sock = None

    def make(self, door):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            self.sock = ours
            return
        try:
            ours.close()
            door.detach()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # where the door was
            settle()
            rehearse()
            byte, fds, flags, address = socket.recv_fds(theirs, 16, 3)
            if len(fds) == 3:
                become_interpreter(fds)
        finally:
            os._exit(0)

    def give(self, fds):
        """False when there is none, or it has died while it waited."""
        sock, self.sock = self.sock, None
        if not sock:
            return False
        try:
            socket.send_fds(sock, [b"f"], fds)
            return True
        except OSError:
            return False
        finally:
            sock.close()
