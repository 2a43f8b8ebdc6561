"""An interpreter: takes its descriptors, then runs cells."""
import gc
import os
import signal
import sys
import time

from .here import here
from .link import Link, SilentLink, text_of
from .packages import show_figures
from .streams import flush_standard, standard_streams


def after_fork():
    """
    In a fork of the zygote: undo what only the zygote needs, and get what no two processes may share.
    A session of its own, because interrupts go to the process group; entropy of its own.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fresh_entropy()


def fresh_entropy():
    """Forks of one zygote share the seed of string hashes, which a running Python cannot change. All other seeds are renewed."""
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def prefer_for_oom_kill():
    """A cell that eats all memory must not cost another context its interpreter."""
    try:
        with open("/proc/self/oom_score_adj", "w") as knob:
            knob.write("300")
    except OSError:
        pass


def become_interpreter(fds):
    """Takes the three descriptors (socket, stdout, stderr), closes all others, and serves cells. Does not return."""
    import fcntl
    high = 100  # out of the way of the low numbers that user code expects to get
    prefer_for_oom_kill()
    if sys.path[:1] != [""]:
        sys.path.insert(0, "")
    null = os.open("/dev/null", os.O_RDONLY)
    conn = fcntl.fcntl(fds[0], fcntl.F_DUPFD_CLOEXEC, high)
    os.dup2(null, 0)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)
    os.closerange(3, high)
    standard_streams()
    here.link = Link(conn)
    signal.signal(signal.SIGINT, here.link.on_interrupt)
    gc.enable()
    try:
        if is_stale():
            here.link.send("S")
            os._exit(0)
        serve_cells()
        flush_standard()
    except BaseException:
        os._exit(1)
    os._exit(0)


def is_stale():
    return here.stamps is not None and not here.stamps.still_hold()


def serve_cells():
    """Start message, then cells, until guestd closes the socket or a cell calls exit()."""
    here.link.send("H")
    message = here.link.receive()
    if message and message["op"] == "rehearse":  # this is the spare: no context waits for it yet
        rehearse()
        if message.get("tell"):  # an older guestd takes no W
            here.link.send("W")
        here.link.done()
        message = here.link.receive()
    if not message:
        return
    if message["late"] and is_stale():
        here.link.send("S")
        return
    set_environment(message["env"])
    time.tzset()
    enter_directory(message["cwd"], message["env"].get("HOME", "/"))
    here.link.send("R")
    here.link.done()
    begun = []
    while True:
        try:
            run_cells(begun)
            return
        except Exception as failure:
            if isinstance(failure, OSError) and failure.errno:
                raise  # user code has closed the link
            print_stray_error()


def run_cells(begun):
    """
    A signal handler that a cell has set may raise anywhere in our own code. The error is printed, and this is called again: it
    goes on where it was. A cell whose number is in `begun` is not run a second time.
    """
    while True:
        here.link.running = False
        message = here.link.receive()
        if not message:
            return
        if message["cell"] not in begun:
            begun[:] = [message["cell"]]
            run_cell(message)
        here.link.running = False
        flush_standard()
        here.link.send("D", str(message["cell"]))  # sending it twice is fine: guestd compares the number
        if here.shell.wants_exit:
            flush_files()
            return
        here.link.done()


def enter_directory(wanted, home):
    """If the wanted directory cannot be entered, the home directory or / has to do, and stderr says so."""
    try:
        os.chdir(wanted)
        return
    except OSError as failure:
        why = failure.strerror
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")
    print(f"The directory {wanted} cannot be entered ({why}): this context works in {os.getcwd()}.", file=sys.stderr)


def print_stray_error():
    """The current exception with the frame that raised it, without our own frames."""
    import traceback
    try:
        traceback.print_exc(limit=-1)
    except Exception:  # sys.stderr may be anything
        pass
    flush_standard()


def flush_files():
    """Files that a cell has not closed. os._exit() does not flush them, and a normal exit is not made for a fork."""
    import io
    for value in gc.get_objects():
        if type(value) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            try:
                value.flush()
            except (OSError, ValueError):
                pass  # closed, or the disk is full


def rehearse():
    """Runs a first cell, so that the memory it writes to is this process's own before a user waits for it."""
    link, here.link = here.link, SilentLink()
    here.shell.run("1+1")
    here.link = link
    here.shell.user_ns.pop("_", None)
    here.shell.forget_warmup()


def set_environment(wanted):
    for name in list(os.environ):
        if name not in wanted:
            del os.environ[name]
    os.environ.update(wanted)


def run_cell(message):
    signal.signal(signal.SIGINT, here.link.on_interrupt)  # an earlier cell may have set another handler
    if message.get("reseed"):  # the sandbox is a copy: the original goes on with the same numbers
        try:
            fresh_entropy()
        except Exception:  # user code may have put anything in the place of these modules
            print_stray_error()
    try:
        with Environment(message.get("env")):
            try:
                here.link.running = True
                here.shell.run(message["code"])
                show_figures()
            finally:
                here.link.running = False
    except KeyboardInterrupt:
        here.link.error("KeyboardInterrupt", "", "KeyboardInterrupt")
    except SystemExit:
        pass
    except BaseException as failure:  # of the shell itself; the shell reports errors of the cell
        here.link.error(type(failure).__name__, text_of(failure), "")


class Environment:
    """Variables for one cell: set before it, restored after it, unless the cell has changed them."""

    def __init__(self, wanted):
        self.wanted = wanted or {}

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.wanted}
        os.environ.update(self.wanted)

    def __exit__(self, *failure):
        for name, value in self.wanted.items():
            if os.environ.get(name) != value:
                continue
            if self.before[name] is None:
                del os.environ[name]
            else:
                os.environ[name] = self.before[name]
