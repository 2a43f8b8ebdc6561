"""The link to guestd: frames over a socket; main.py lists them."""
import _thread
import os
import socket
import struct
from json import dumps, loads  # by name: user code may replace json.dumps

from .result import ERROR_MAX, capped, result_line, note_left_out
from .streams import flush_standard


def call_into(results, function, argument):
    """Keeps the result even if a signal handler raises right after the call: no Python code runs in between."""
    results.extend(map(function, (argument,)))


class Link:
    """
    User code displays results from threads and from signal handlers, and a handler may raise in the middle of any method here (an
    interrupt does). So one thread sends at a time, the next send() finishes a frame that was half sent, and receive() keeps a
    message that was half read, or read and not yet done.
    """

    def __init__(self, fd):
        self.sock = socket.socket(fileno=fd)
        self.owner = os.getpid()
        self.running = False  # user code runs: an interrupt raises in it
        self.lock = _thread.RLock()
        self.is_sending = False
        self.frames = []  # to be sent: (frame, [number of bytes that each call has sent])
        self.pieces = []  # of the message that is being read

    def send(self, letter, text=""):
        if os.getpid() != self.owner:
            os._exit(0)  # a child that user code has forked has returned from the cell: only its parent may answer
        data = text.encode("ascii", "backslashreplace")
        with self.lock:
            self.frames.append((struct.pack(">IB", len(data) + 1, ord(letter)) + data, []))
            if self.is_sending:
                return  # this thread is sending: we are in a signal handler, and the loop below goes on after it
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
        """The next message, or None when guestd has closed. The same again until done()."""
        if not self._gather(4) or not self._gather(4 + struct.unpack(">I", b"".join(self.pieces)[:4])[0]):
            return None
        return loads(b"".join(self.pieces)[4:])

    def done(self):
        self.pieces = []

    def _gather(self, size):
        """Reads until `size` bytes of the message are there. False when guestd has closed."""
        while (missing := size - sum(map(len, self.pieces))) > 0:
            call_into(self.pieces, self.sock.recv, min(missing, 1 << 20))
            if not self.pieces[-1]:
                return False
        return True

    def on_interrupt(self, number, frame):
        if self.running:
            raise KeyboardInterrupt

    # The lines of a cell.

    def result(self, bundle, is_main):
        if bundle:
            flush_standard()
            line, left_out = result_line(bundle, is_main)
            note_left_out(left_out)
            self.send("L", line)

    def error(self, name, value, trace):
        flush_standard()
        name, value, trace = (capped(text, ERROR_MAX) for text in (name, value, trace))
        self.send("X", dumps({"type": "error", "name": name, "value": value, "traceback": trace}))

    def count(self, number):
        self.send("C", dumps({"type": "number_of_executions", "execution_count": number}))


class SilentLink:
    """Takes the place of the link during warm-up: does the work and sends nothing."""

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
