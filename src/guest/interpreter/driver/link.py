"""The link to guestd: frames over a socket, as main.py lists them."""
import _thread
import os
import socket
import struct
from json import dumps, loads  # themselves: user code that puts others into their place means its own

from .result import ERROR_MAX, capped, result_line, tell_left_out
from .streams import flush_standard


def call_into(results, function, argument):
    """What was got is kept, whatever a handler of a signal raises the moment after: nothing in here is Python's own code."""
    results.extend(map(function, (argument,)))


class Link:
    """
    User code shows things from its threads, and from handlers of signals, which may also raise in the middle of anything here:
    an interrupt is such a one. So one thread sends at a time, half a frame that is out is gone on with by whoever sends next,
    and half a message that has come is kept.
    """

    def __init__(self, fd):
        self.sock = socket.socket(fileno=fd)
        self.owner = os.getpid()
        self.running = False  # user code runs: an interrupt is for it
        self.lock = _thread.RLock()
        self.is_sending = False
        self.frames = []  # to be sent: (frame, the bytes of it that each call has sent)
        self.pieces = []  # of the message that is on its way

    def send(self, letter, text=""):
        if os.getpid() != self.owner:
            os._exit(0)  # a child that user code has forked came out of its cell: it has no cell of its own
        data = text.encode("ascii", "backslashreplace")
        with self.lock:
            self.frames.append((struct.pack(">IB", len(data) + 1, ord(letter)) + data, []))
            if self.is_sending:
                return  # by this thread, which is in a handler now, and goes on below
            self.is_sending = True
            try:
                while self.frames:
                    self._send_some(*self.frames[0])
            finally:
                self.is_sending = False

    def _send_some(self, frame, sent):
        rest = memoryview(frame)[sum(sent):]
        if rest:
            call_into(sent, self.sock.send, rest)
        else:
            del self.frames[0]

    def receive(self):
        """The next message, or None when guestd has closed."""
        if not self._gather(4) or not self._gather(4 + struct.unpack(">I", b"".join(self.pieces)[:4])[0]):
            return None
        message = loads(b"".join(self.pieces)[4:])
        self.pieces = []
        return message

    def _gather(self, size):
        """So much of a message. False when guestd has closed."""
        while (missing := size - sum(map(len, self.pieces))) > 0:
            call_into(self.pieces, self.sock.recv, min(missing, 1 << 20))
            if not self.pieces[-1]:
                return False
        return True

    def on_interrupt(self, number, frame):
        if self.running:
            raise KeyboardInterrupt

    # What a cell says.

    def result(self, bundle, is_main):
        if bundle:
            flush_standard()
            line, left_out = result_line(bundle, is_main)
            tell_left_out(left_out)
            self.send("L", line)

    def error(self, name, value, trace):
        flush_standard()
        name, value, trace = (capped(text, ERROR_MAX) for text in (name, value, trace))
        self.send("X", dumps({"type": "error", "name": name, "value": value, "traceback": trace}))

    def count(self, number):
        self.send("C", dumps({"type": "number_of_executions", "execution_count": number}))


class Silent:
    """Takes the place of the link while the zygote warms up: nobody is there to be told."""

    def count(self, number):
        pass

    def result(self, bundle, is_main):
        if bundle:
            result_line(bundle, is_main)

    def error(self, name, value, trace):
        pass


def text_of(exception):
    try:
        return str(exception)
    except Exception:
        return "<the exception cannot be shown as text>"
