"""websocket.py - the client's side of RFC 6455, as much as tests need: short text messages, one frame each. It is also copied
into sandboxes, so it needs nothing but Python."""

import base64
import json
import os
import socket
import struct
import time

TEXT, CLOSE, PING = 1, 8, 9


class Refused(Exception):
    """The answer to the handshake was not 101."""

    def __init__(self, status, body):
        super().__init__(f"{status} {body!r}")
        self.status, self.body = status, body


class Closed(Exception):
    """status: of the close; None if the connection just ended."""

    def __init__(self, status=None):
        super().__init__(f"closed with {status}")
        self.status = status


class WebSocket:
    def __init__(self, host, port, path, headers=None, tls=None, timeout=20):
        self.rest = b""
        self.socket = socket.create_connection((host, port), timeout=timeout)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        fields = {
            "Host": host, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(), **(headers or {}),
        }  # fmt: skip
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self.rest:
            self.more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 101:
            self.refused(head, status)

    def refused(self, head, status):
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        while len(self.rest) < int(length.partition(b":")[2]):
            self.more()
        self.close()
        raise Refused(status, self.rest)

    def more(self):
        piece = self.socket.recv(65536)
        if not piece:
            raise Closed
        self.rest += piece

    def take(self, count):
        while len(self.rest) < count:
            self.more()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def send(self, **message):
        data = json.dumps(message).encode()
        size = struct.pack(">B", 0x80 | len(data)) if len(data) < 126 else struct.pack(">BH", 0x80 | 126, len(data))
        self.socket.sendall(bytes([0x80 | TEXT]) + size + bytes(4) + data)  # a mask of zeros

    def receive(self):
        """The next text, decoded; pings of the protocol are left out."""
        while True:
            first, size = self.take(2)
            if size >= 126:
                size = int.from_bytes(self.take(2 if size == 126 else 8), "big")
            data = self.take(size)
            if first & 15 == CLOSE:
                raise Closed(int.from_bytes(data[:2], "big") if data else None)
            if first & 15 == TEXT:
                return json.loads(data)

    def until(self, kind, seconds=20):
        """All messages up to the first of this type."""
        got, end = [], time.monotonic() + seconds
        while not got or got[-1]["type"] != kind:
            self.socket.settimeout(max(end - time.monotonic(), 0.01))
            got.append(self.receive())
        return got

    def close(self):
        self.socket.close()
