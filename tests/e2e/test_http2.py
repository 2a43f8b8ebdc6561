"""HTTP/2 on the server's port, with curl and with frames made by hand: API, edge, cuts, and clients that misbehave."""

import hashlib
import json
import os
import socket
import ssl
import struct
import subprocess

import pytest
from server import cloister, wait_for
from test_edge import serve

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS = 1, 4
CANCEL, ENHANCE_YOUR_CALM = 8, 11
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CURL_STREAM_ERROR = 92

SERVICE = """
import hashlib, http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path.startswith("/never-ends"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\\r\\nfirst\\r\\n")
            self.wfile.flush()
            self.connection.recv(1)
            open("/tmp/left" + self.path.replace("/", "-"), "w").close()
        elif self.path == "/large":
            self.answer(bytes(range(256)) * 400000)
        else:
            self.answer(f"{self.path} {self.headers}".encode())
    def do_POST(self):
        digest = hashlib.sha256()
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                digest.update(self.rfile.read(size))
                self.rfile.readline()
        else:
            digest.update(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(digest.hexdigest().encode())
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

SHORT_QUEUE = """
import runpy, sys
sys.argv[1:1] = ["--bind", "127.0.0.1"]
runpy.run_module("http.server", run_name="__main__")
"""


class Names:
    """How the server is reached by name: its domain, and the certificate that clients trust."""

    def __init__(self, server):
        lines = json.loads(cloister("env", "--json", data=server.data, stdout=subprocess.PIPE, text=True).stdout)
        self.domain = lines["E2B_DOMAIN"]
        self.ca = lines["NODE_EXTRA_CA_CERTS"]
        self.port = server.port

    def api(self, path):
        return f"https://api.{self.domain}{path}"

    def edge(self, box, port, path):
        return f"https://{port}-{box['sandboxID']}.{self.domain}{path}"

    def curl(self, *options, **how):
        command = ["curl", "--silent", "--show-error", "--max-time", "60", "--cacert", self.ca, *options]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **how)

    def connect(self):
        """A connection of our own that has agreed on h2."""
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols(["h2"])
        name = f"api.{self.domain}".split(":")[0]
        connection = context.wrap_socket(socket.create_connection(("127.0.0.1", self.port)), server_hostname=name)
        assert connection.selected_alpn_protocol() == "h2"
        connection.settimeout(20)
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
        return connection


@pytest.fixture(scope="module")
def names(server):
    return Names(server)


@pytest.fixture(scope="module")
def box(server):
    made = server.create(timeout=600)
    serve(server, made, 8000, SERVICE)
    yield made
    server.api("DELETE", f"/sandboxes/{made['sandboxID']}")


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def request(stream, path, end=True):
    """GET, https, without compression of names and values."""
    text = b"\x82\x87\x04" + bytes([len(path)]) + path.encode() + b"\x01\x01x"
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, text)


def frames_until_end(connection, data=b""):
    """What the server sends before it closes, after `data`: (kind, flags, stream, payload) each."""
    try:
        while piece := connection.recv(65536):
            data += piece
    except (ConnectionError, ssl.SSLError):
        pass
    found = []
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def away_code(frames):
    codes = [struct.unpack(">II", payload[:8])[1] for kind, _, _, payload in frames if kind == GOAWAY]
    return codes[-1] if codes else None


# ---- serving ----


def test_the_api_answers_with_http_2_and_with_http_1_1(server, names):
    for option, version in (("--http2", "2"), ("--http1.1", "1.1")):
        done = names.curl(
            option, "-w", "%{http_version} %{http_code}", "-H", f"X-API-Key: {server.key}", names.api("/v2/sandboxes")
        )
        assert done.stdout.decode().endswith(f"{version} 200"), done


def test_without_tls_there_is_no_http_2(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(PREFACE)
        assert connection.recv(1000).startswith(b"HTTP/1.1 505 ")


def test_the_edge_forwards_heads_both_ways(server, names, box):
    done = names.curl("--http2", "-i", "-H", "X-Own: value", "-H", "Cookie: a=1", names.edge(box, 8000, "/path?query"))
    text = done.stdout.decode()
    assert text.startswith("HTTP/2 200"), done
    assert f"/path?query Host: 8000-{box['sandboxID']}.{names.domain}" in text
    assert "x-own: value" in text.lower() and "cookie: a=1" in text.lower()
    assert "transfer-encoding" not in text.lower()


def test_many_requests_share_a_connection(server, names, box):
    urls = names.edge(box, 8000, "/[1-100]")
    done = names.curl("--http2", "--parallel", "--parallel-max", "100", "-w", "%{num_connects} %{http_code}\n", urls)
    lines = [line for line in done.stdout.decode().splitlines() if line.endswith(" 200")]
    assert len(lines) == 100, done
    assert sum(int(line.split()[0][-1]) for line in lines) <= 2


def test_a_crowd_reaches_a_service_with_a_short_queue(server, names, box):
    """Five connections wait at most for `python3 -m http.server`. Those that find no place must not wait for long."""
    serve(server, box, 8001, SHORT_QUEUE)
    urls = names.edge(box, 8001, "/?[1-100]")
    done = names.curl("--http2", "--parallel", "--parallel-max", "100", "-o", os.devnull, "-w", "%{http_code}\n", urls)
    assert done.stdout.decode().splitlines().count("200") == 100, done


def test_large_bodies_arrive_whole_both_ways(server, names, box, tmp_path):
    done = names.curl("--http2", names.edge(box, 8000, "/large"))
    assert hashlib.sha256(done.stdout).hexdigest() == hashlib.sha256(bytes(range(256)) * 400000).hexdigest()
    upload = tmp_path / "upload"
    upload.write_bytes(os.urandom(1 << 20) * 50)
    want = hashlib.sha256(upload.read_bytes()).hexdigest()
    for options in (["--data-binary", f"@{upload}"], ["--data-binary", f"@{upload}", "-H", "Content-Length:"]):
        done = names.curl("--http2", *options, names.edge(box, 8000, "/"))
        assert done.stdout.decode() == want, done.stderr


def test_a_refusal_of_the_edge_arrives(server, names, box):
    done = names.curl("--http2", "-w", "%{http_code}", names.edge(box, 3999, "/"))
    assert done.stdout.decode().endswith("502") and b"port is not open" in done.stdout


# ---- cuts ----


def test_a_killed_sandbox_resets_its_streams_and_no_others(server, names, box):
    other = server.create(timeout=60)
    serve(server, other, 8000, SERVICE)
    command = ["curl", "-sS", "-N", "--http2", "--cacert", names.ca]
    streams = {}
    for sandbox in (other, box):
        url = names.edge(sandbox, 8000, "/never-ends")
        streams[sandbox["sandboxID"]] = subprocess.Popen(
            [*command, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    cut, kept = streams[other["sandboxID"]], streams[box["sandboxID"]]
    assert cut.stdout.read(5) == b"first" and kept.stdout.read(5) == b"first"
    server.api("DELETE", f"/sandboxes/{other['sandboxID']}")
    assert cut.wait(20) == CURL_STREAM_ERROR
    assert b"INTERNAL_ERROR" in cut.stderr.read()
    assert kept.poll() is None
    kept.kill()
    kept.wait()


def test_a_client_that_cancels_is_noticed(server, names, box):
    """The service inside sees its connection end."""

    def has_left():
        return server.edge("GET", box, "/files?path=/tmp/left-never-ends-until-cancelled").status == 200

    client = subprocess.Popen(
        ["curl", "-sS", "-N", "--http2", "--cacert", names.ca, names.edge(box, 8000, "/never-ends-until-cancelled")],
        stdout=subprocess.PIPE,
    )
    assert client.stdout.read(5) == b"first"
    assert not has_left()
    client.kill()
    client.wait()
    assert wait_for(has_left)


# ---- clients that misbehave ----


def test_rapid_resets_end_the_connection_and_hurt_nobody_else(server, names):
    connection = names.connect()
    reset = struct.pack(">I", CANCEL)
    try:
        for i in range(5000):
            stream = 2 * i + 1
            connection.sendall(request(stream, "/health") + frame(RST_STREAM, 0, stream, reset))
    except (ConnectionError, ssl.SSLError):
        pass
    assert away_code(frames_until_end(connection)) == ENHANCE_YOUR_CALM
    assert names.curl("--http2", "-w", "%{http_code}", names.api("/health")).stdout == b"204"


def test_a_flood_of_pings_ends_the_connection(server, names):
    connection = names.connect()
    heard = b""
    try:
        for _ in range(200):
            connection.sendall(frame(PING, 0, 0, b"12345678") * 100)
            heard += connection.recv(65536)
    except (ConnectionError, ssl.SSLError):
        pass
    assert away_code(frames_until_end(connection, heard)) == ENHANCE_YOUR_CALM
    assert names.curl("--http2", "-w", "%{http_code}", names.api("/health")).stdout == b"204"


def test_bytes_that_are_not_http_2_close_the_connection(server, names):
    connection = names.connect()
    connection.sendall(b"\xff" * 4096)
    frames = frames_until_end(connection)
    assert all(kind != DATA for kind, _, _, _ in frames)
