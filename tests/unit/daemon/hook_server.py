#!/usr/bin/env python3
"""hook_server.py DIR - the outside, for webhooks_test.c: DNS, HTTP and HTTPS in a network namespace of its own.

Reads a line when the test has given it the interface `outside`, then writes "ready". Each request that it gets is a line
on standard output: address, method, path, Host, X-Signature and the body.
"""

import http.server
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

ADDRESSES = ["203.0.113.5/24", "203.0.113.7/24", "203.0.113.53/24", "10.9.0.5/24", "2001:db8:5::5/64"]
ZONE = {
    "hook.example.com": ["203.0.113.5"],
    "six.example.com": ["2001:db8:5::5"],
    "other.example.com": ["203.0.113.5"],  # not in the certificate
    "two.example.com": ["203.0.113.7", "203.0.113.5"],  # nothing listens at the first
    "private.example.com": ["10.9.0.5"],
    "mixed.example.com": ["203.0.113.5", "10.9.0.5"],
    "metadata.example.com": ["169.254.169.254"],
    "loopback.example.com": ["127.0.0.1"],
    "loopback6.example.com": ["::1"],
    "mapped.example.com": ["::ffff:10.9.0.5"],
    "nat64.example.com": ["64:ff9b::a09:5"],
    "machine.example.com": ["203.0.113.10"],  # the test's own side
    "many.example.com": [f"203.0.113.{n}" for n in range(100, 120)],
    "internal.internal": ["203.0.113.5"],
}
NAMES = ["hook", "six", "two", "private", "mixed", "machine"]
lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def answer_question(query):
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    end = at + 5
    kind = struct.unpack("!H", query[at + 1 : at + 3])[0]
    name = ".".join(labels).lower()
    records = b""
    count = 0
    for address in ZONE.get(name, []):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if kind != (28 if ":" in address else 1):
            continue
        data = socket.inet_pton(family, address)
        records += struct.pack("!HHHIH", 0xC00C, kind, 1, 60, len(data)) + data
        count += 1
    code = 0 if name in ZONE else 3
    return query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, count, 0, 0) + query[12:end] + records


def serve_dns():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("203.0.113.53", 53))
        while True:
            query, client = server.recvfrom(4096)
            server.sendto(answer_question(query), client)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        say(self.server.server_address[0], self.command, self.path, self.headers["Host"], self.headers["X-Signature"], body)
        if self.path == "/slow":
            time.sleep(60)
        self.send_response({"/redirect": 302, "/teapot": 418}.get(self.path, 200))
        if self.path == "/redirect":
            self.send_header("Location", "http://10.9.0.5/secret")
        text = b"x" * (1 << 20) if self.path == "/large" else b"thanks"
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            self.wfile.write(text)
        except OSError:
            pass

    do_GET = do_POST

    def log_message(self, *words):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


class Server6(Server):
    address_family = socket.AF_INET6


def serve(kind, address, port, context):
    server = kind((address, port), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main():
    folder = sys.argv[1]
    sys.stdin.readline()
    # Without link-local addresses, which cannot be used for a second or two.
    subprocess.run(["ip", "link", "set", "outside", "addrgenmode", "none"], check=True)
    for address in ADDRESSES:
        subprocess.run(["ip", "address", "add", address, "dev", "outside", "nodad"] if ":" in address else
                       ["ip", "address", "add", address, "dev", "outside"], check=True)
    subprocess.run(["ip", "link", "set", "outside", "up"], check=True)
    names = ",".join(f"DNS:{name}.example.com" for name in NAMES) + ",IP:203.0.113.5"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", "/CN=hook.example.com", "-addext", f"subjectAltName={names}",
                    "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"], check=True, stderr=subprocess.DEVNULL)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    threading.Thread(target=serve_dns, daemon=True).start()
    for address in ["203.0.113.5", "10.9.0.5"]:
        serve(Server, address, 80, None)
        serve(Server, address, 443, context)
    serve(Server6, "2001:db8:5::5", 443, context)
    say("ready")
    sys.stdin.readline()  # until the test ends


if __name__ == "__main__":
    main()
