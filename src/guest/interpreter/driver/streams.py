"""Standard input, output and error of an interpreter.

Output and error are real pipes at descriptors 1 and 2, so output of subprocesses and C code arrives in order with print(), and
printed text can never be taken for a frame. The input is empty.
"""
import sys
# Not of signal: its function makes an enum of each number, which is slow, and drops a ValueError meanwhile.
from _signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask, valid_signals

HELD_BACK = valid_signals() - {SIGINT}  # an interrupt is no Exception, and ends a flush() of the user's own


def standard_streams():
    import io
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        stream = io.TextIOWrapper(io.BufferedWriter(raw, 1 << 16), encoding="utf-8", errors="backslashreplace",
                                  line_buffering=True)
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def flush_standard():
    """
    The current streams and our own: user code may have replaced ours while half a line was in them. A signal handler that a cell
    has set may raise; its error must not be dropped as that of a stream, so signals wait until the end. (If the cell has started
    threads, the kernel may give a signal to one of them, and Python runs the handler here all the same.)
    """
    before = pthread_sigmask(SIG_BLOCK, ())
    try:
        pthread_sigmask(SIG_BLOCK, HELD_BACK)  # a handler that is due runs in this call, with the signals held back
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            try:
                getattr(sys, name).flush()
            except (Exception, SystemExit):  # user code may have put any object there, or none
                pass
    finally:
        pthread_sigmask(SIG_SETMASK, before)


class StdinNotImplementedError(RuntimeError):
    pass


def no_input(*args, **kwargs):
    raise StdinNotImplementedError("input() does not work here: a cell has no standard input. Put the value into the "
                                   "code, or pass it with envs.")
