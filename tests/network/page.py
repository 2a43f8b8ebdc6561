"""page.py - runs inside a sandbox: a web page that opens a WebSocket to where it came from. page.py PORT"""

import base64
import hashlib
import socketserver
import struct
import sys

PAGE = b"""<!DOCTYPE html><title>waiting</title><h1 id="text">a page from a sandbox</h1>
<script>
const socket = new WebSocket(location.origin.replace(/^http/, "ws") + "/socket");
socket.onopen = () => socket.send("hello from the page");
socket.onmessage = event => { document.title = "echo: " + event.data; };
socket.onerror = () => { document.title = "error"; };
</script>
"""
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            headers = {}
            while (text := self.rfile.readline().strip()):
                name, value = text.split(b":", 1)
                headers[name.lower()] = value.strip()
            if headers.get(b"upgrade", b"").lower() == b"websocket":
                self.echo(headers[b"sec-websocket-key"])
                return
            body = PAGE if b" / " in line else b""
            status = b"200 OK" if body else b"404 Not Found"
            head = b"HTTP/1.1 %s\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"
            self.wfile.write(head % (status, len(body)) + body)

    def echo(self, key):
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.wfile.write(head + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        while len(start := self.rfile.read(2)) == 2:
            size = start[1] & 127
            if size == 126:
                size = struct.unpack(">H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(size)))
            if start[0] & 15 == 8:
                return
            self.wfile.write(bytes([start[0], len(data)]) + data)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
