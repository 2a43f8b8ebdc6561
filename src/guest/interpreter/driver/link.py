"""The link to guestd: frames over a socket, as main.py lists them."""
import json
import os
import socket
import struct

from .result import capped, result_line, tell_left_out
from .streams import flush_standard


class Link:
    def __init__(self, fd):
        self.sock = socket.socket(fileno=fd)
        self.owner = os.getpid()
        self.running = False  # user code runs: an interrupt is for it
        self.sending = False  # half a frame is out: an interrupt must wait
        self.interrupted = False

    def send(self, letter, text=""):
        if os.getpid() != self.owner:
            os._exit(0)  # a child that user code has forked came out of its cell: it has no cell of its own
        data = text.encode("ascii", "backslashreplace")
        self.sending = True
        try:
            self.sock.sendall(struct.pack(">IB", len(data) + 1, ord(letter)) + data)
        finally:
            self.sending = False
        if self.interrupted:
            self.interrupted = False
            if self.running:
                raise KeyboardInterrupt

    def receive(self):
        """The next message, or None when guestd has closed."""
        head = self._exactly(4)
        body = head and self._exactly(struct.unpack(">I", head)[0])
        return json.loads(body) if body else None

    def _exactly(self, size):
        pieces = []
        while size:
            piece = self.sock.recv(min(size, 1 << 20))
            if not piece:
                return None
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def on_interrupt(self, number, frame):
        if not self.running:
            return
        if self.sending:
            self.interrupted = True
        else:
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
        self.send("X", json.dumps({"type": "error", "name": name, "value": capped(value), "traceback": capped(trace)}))

    def count(self, number):
        self.send("C", json.dumps({"type": "number_of_executions", "execution_count": number}))


class Silent:
    """Takes the place of the link while the mother warms up: nobody is there to be told."""

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
