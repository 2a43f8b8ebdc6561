"""The edge and guestd by hand: routing, exact refusals, files out of reach, streams that must not look whole."""

import base64
import hashlib
import http.client
import json
import os
import pathlib
import re
import resource
import socket
import struct
import threading
import time
import urllib.parse

import pytest
from e2b import Sandbox, SandboxException
from server import ENVD_PORT, wait_for

UNKNOWN = {"sandboxID": "inotthere0000000000000"}


@pytest.fixture(scope="module")
def box(server):
    """The answer to a create, for one sandbox that these tests share."""
    made = server.create(timeout=600)
    yield made
    server.api("DELETE", f"/sandboxes/{made['sandboxID']}")


def rpc(server, box, name, message, **options):
    return server.edge(
        "POST",
        box,
        f"/{name}",
        message,
        headers={"Content-Type": "application/json", **options.pop("headers", {})},
        **options,
    )


def start(server, box, command, seconds=60):
    """Runs a shell command to its end: exit code and standard output."""
    message = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", command]}, "stdin": False}).encode()
    answer = server.edge(
        "POST",
        box,
        "/process.Process/Start",
        struct.pack(">BI", 0, len(message)) + message,
        timeout=seconds,
        headers={"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"},
    )
    assert answer.status == 200, answer
    data, output, code = answer.body, b"", None
    while data:
        _, size = struct.unpack(">BI", data[:5])
        event = json.loads(data[5 : 5 + size]).get("event", {})
        data = data[5 + size :]
        output += base64.b64decode(event.get("data", {}).get("stdout", ""))
        if "end" in event:
            code = event["end"].get("exitCode", 0)
    return code, output.decode()


def serve(server, box, port, code):
    """A Python program inside that listens on 127.0.0.1:port."""
    path = f"/tmp/service-{port}.py"
    assert (
        server.edge(
            "POST", box, f"/files?path={path}", code.encode(), headers={"Content-Type": "application/octet-stream"}
        ).status
        == 200
    )
    start(server, box, f"nohup python3 {path} {port} >/tmp/service-{port}.log 2>&1 &")


# ---- routing ----


def test_an_unknown_sandbox_is_the_502_that_sdks_know(server):
    for port in (ENVD_PORT, 3000):
        answer = server.edge("GET", UNKNOWN, "/health", port=port)
        assert answer.status == 502
        assert answer.json == {"sandboxId": UNKNOWN["sandboxID"], "message": "The sandbox was not found", "code": 502}


def test_a_closed_port_is_the_502_that_sdks_know(server, box):
    answer = server.edge("GET", box, "/", port=3999)
    assert answer.status == 502
    assert answer.json == {
        "sandboxId": box["sandboxID"],
        "message": "The sandbox is running but port is not open",
        "port": 3999,
        "code": 502,
    }


def test_half_of_the_routing_headers_is_a_400(server, box):
    answer = server.call("GET", "/health", headers={"E2b-Sandbox-Id": box["sandboxID"]})
    assert (answer.status, answer.body.strip()) == (400, b"missing header")


@pytest.mark.parametrize(
    "host, text",
    [
        ("80-UP_PER.example.com", b"Invalid sandbox ID"),
        ("0-iabc.example.com", b"Invalid sandbox port"),
        ("99999-iabc.example.com", b"Invalid sandbox port"),
    ],
)
def test_a_bad_host_is_a_400(server, host, text):
    answer = server.call("GET", "/", host=host)
    assert (answer.status, answer.body.strip()) == (400, text)


@pytest.mark.parametrize(
    "path", ["/init", "//init", "/x/../init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade/"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_control_paths_are_a_404_for_every_method(server, box, method, path):
    for sandbox in (box, UNKNOWN):
        answer = server.edge(method, sandbox, path)
        assert answer.status == 404
        assert answer.json["code"] == 404 and answer.json["path"] == "/" + path.strip("/").rpartition("/")[2]


def test_health_answers_by_header_and_by_host(server, box):
    assert server.edge("GET", box, "/health").status in (200, 204)
    assert server.edge("GET", box, "//health").status in (200, 204)
    assert server.call("GET", "/health", host=f"{ENVD_PORT}-{box['sandboxID']}.sandboxes.example:7070").status in (
        200,
        204,
    )
    assert server.call("GET", "/health", host=f"{ENVD_PORT}-{box['sandboxID']}-6532622b.localhost").status in (200, 204)


def test_preflights_are_granted_whether_they_can_be_routed_or_not(server, box):
    ask = {
        "Origin": "http://page",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "e2b-sandbox-id,e2b-sandbox-port,x-access-token,content-type",
    }
    for host in (None, f"{ENVD_PORT}-{box['sandboxID']}.localhost", f"{ENVD_PORT}-{UNKNOWN['sandboxID']}.localhost"):
        answer = server.call("OPTIONS", "/files", headers=ask, host=host)
        assert answer.status == 204, (host, answer)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "x-access-token" in answer.headers["access-control-allow-headers"].lower()


# ---- services of the user's ----

ECHO = """
import http.server, sys
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        text = (self.requestline + '\\n' + str(self.headers)).encode() + body
        self.send_response(200); self.send_header('Content-Length', str(len(text))); self.end_headers()
        if self.command != 'HEAD': self.wfile.write(text)
    do_GET = do_POST = do_HEAD = do_PUT = do
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Echo).serve_forever()
"""


def test_a_service_on_loopback_is_reached_as_soon_as_it_listens(server, box):
    serve(server, box, 8000, ECHO)
    answer = wait_for(lambda: (a := server.edge("GET", box, "/a//b?c=d", port=8000)).status == 200 and a)
    assert answer and answer.body.startswith(b"GET /a//b?c=d HTTP/1.1\n"), answer
    by_host = server.call(
        "POST",
        "/x",
        b"body",
        host=f"8000-{box['sandboxID']}.example.com",
        headers={"X-Forwarded-For": "1.2.3.4", "Connection": "keep-alive, X-Hop", "X-Hop": "1"},
    )
    assert f"Host: 8000-{box['sandboxID']}.example.com\n".encode() in by_host.body and by_host.body.endswith(b"body")
    assert b"X-Forwarded" not in by_host.body and b"X-Hop" not in by_host.body


EVENTS = """
import http.server, os, sys, time
class Events(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        self.send_response(200); self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
        for i in range(100 if self.path == '/long' else 2):
            text = b'data: %d\\n\\n' % i
            self.wfile.write(b'%x\\r\\n%s\\r\\n' % (len(text), text)); self.wfile.flush()
            while self.path == '/held' and not os.path.exists('/tmp/go'): time.sleep(0.01)
            time.sleep(0.5 if self.path == '/long' else 0)
        self.wfile.write(b'0\\r\\n\\r\\n')
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Events).serve_forever()
"""


def test_events_arrive_as_they_are_sent(server, box):
    serve(server, box, 8001, EVENTS)
    assert wait_for(lambda: server.edge("GET", box, "/", port=8001).status == 200)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/held", headers={"E2b-Sandbox-Id": box["sandboxID"], "E2b-Sandbox-Port": "8001"})
    response = connection.getresponse()
    assert response.readline() == b"data: 0\n"  # the second is not sent before we have the first
    octets = {"Content-Type": "application/octet-stream"}
    assert server.edge("POST", box, "/files?path=/tmp/go", b"go", headers=octets).status == 200
    response.readline()
    assert response.readline() == b"data: 1\n"
    connection.close()


WEBSOCKET = """
import base64, hashlib, socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    c, _ = s.accept()
    head = b''
    while not head.endswith(b'\\r\\n\\r\\n'): head += c.recv(1)
    key = [l.split(b': ')[1] for l in head.split(b'\\r\\n') if l.lower().startswith(b'sec-websocket-key: ')][0]
    accept = base64.b64encode(hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
    c.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n'
              b'Sec-WebSocket-Accept: ' + accept + b'\\r\\n\\r\\n')
    while data := c.recv(65536): c.sendall(data)
    c.close()
"""


def open_websocket(server, box, port):
    key = base64.b64encode(os.urandom(16))
    s = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    s.sendall(
        b"GET /ws HTTP/1.1\r\nHost: %d-%s.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n" % (port, box["sandboxID"].encode(), key)
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = s.recv(1)
        assert piece, head
        head += piece
    want = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return s, head, want


def test_a_websocket_passes_through(server, box):
    serve(server, box, 8002, WEBSOCKET)
    s, head, want = open_websocket(server, box, 8002)
    assert head.startswith(b"HTTP/1.1 101 ") and want in head
    blob = os.urandom(1 << 20)
    threading.Thread(target=s.sendall, args=(blob,)).start()
    got = b""
    while len(got) < len(blob):
        got += s.recv(65536)
    assert got == blob
    s.close()


# ---- kills ----


def read_until_end(s):
    got = b""
    try:
        while piece := s.recv(65536):
            got += piece
    except ConnectionResetError:
        return got, True
    return got, False


def test_killing_a_sandbox_resets_its_streams_and_tunnels(server):
    box = server.create()
    serve(server, box, 8001, EVENTS)
    serve(server, box, 8002, WEBSOCKET)
    assert wait_for(lambda: server.edge("GET", box, "/", port=8001).status == 200)
    streams = []
    stream = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    stream.sendall(b"GET /long HTTP/1.1\r\nHost: 8001-%s.x.y\r\n\r\n" % box["sandboxID"].encode())
    assert stream.recv(100)
    streams.append(stream)
    streams.append(open_websocket(server, box, 8002)[0])
    message = json.dumps({"process": {"cmd": "/bin/sleep", "args": ["100"]}}).encode()
    command = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    command.sendall(
        b"POST /process.Process/Start HTTP/1.1\r\nHost: %d-%s.x.y\r\nX-Access-Token: %s\r\n"
        b"Content-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n"
        % (ENVD_PORT, box["sandboxID"].encode(), box["envdAccessToken"].encode(), len(message) + 5)
        + struct.pack(">BI", 0, len(message))
        + message
    )
    assert b" 200 " in command.recv(100)
    streams.append(command)
    assert server.api("DELETE", f"/sandboxes/{box['sandboxID']}").status == 204
    for s in streams:
        rest, was_reset = read_until_end(s)
        assert was_reset and not rest.endswith(b"0\r\n\r\n"), (rest, was_reset)
        s.close()
    assert server.edge("GET", box, "/health").json["message"] == "The sandbox was not found"


# ---- guestd's own rules ----


def test_without_the_token_nothing_inside_answers(server, box):
    for token in ({}, {"X-Access-Token": "wrong"}, {"X-Access-Token": ""}):
        headers = {"E2b-Sandbox-Id": box["sandboxID"], "E2b-Sandbox-Port": str(ENVD_PORT), **token}
        for path in ("/process.Process/List", "/filesystem.Filesystem/ListDir"):
            answer = server.call("POST", path, {}, {**headers, "Content-Type": "application/json"})
            assert answer.status == 401 and answer.json["code"] == 401, answer
        assert server.call("GET", "/files?path=/etc/passwd", headers=headers).status == 401
        assert (
            server.call(
                "POST", "/files?path=/tmp/x", b"x", headers={**headers, "Content-Type": "application/octet-stream"}
            ).status
            == 401
        )
        assert server.call("GET", "/health", headers=headers).status in (200, 204)


def test_one_sandboxes_token_is_no_good_for_another(server, box, made):
    other = server.create()
    made.append(other["sandboxID"])
    headers = {"X-Access-Token": box["envdAccessToken"], "Content-Type": "application/json"}
    assert server.edge("POST", other, "/process.Process/List", {}, headers=headers).status == 401


@pytest.mark.parametrize(
    "way",
    [
        "",
        "../../../../../../..",
        "/home/user/../..",
        "/proc/1/root",
        "/proc/self/root/../..",
        "out/..",
        "/%2e%2e/%2e%2e",
        "//..//..",
    ],
)
def test_no_path_leads_out_of_the_sandbox(server, box, tmp_path, way):
    secret = tmp_path / "secret"
    secret.write_text("host only")
    tmp_path.chmod(0o755)
    start(server, box, "ln -sfn / /home/user/out")
    for user in ("user", "root"):
        answer = server.edge("GET", box, f"/files?path={way}{secret}&username={user}")
        assert answer.status in (400, 404) and answer.json["code"] == answer.status, answer


@pytest.mark.parametrize(
    "path", ["/host", "/proc/1/environ", "/var/lib/cloister", "/../../var/lib/cloister/api-key", "/.oldroot"]
)
def test_nothing_of_the_host_is_a_file_inside(server, box, path):
    answer = server.edge("GET", box, f"/files?path={path}&username=root")
    assert server.key.encode() not in answer.body
    if path != "/proc/1/environ":
        assert answer.status in (400, 404), answer


@pytest.mark.parametrize(
    "query",
    [
        "path=%00",
        "path=/tmp/a%00b",
        "path=" + "a" * 5000,
        "path=%zz",
        "path=/tmp/x&username=%00",
        "path=/tmp/x&username=no-such-user",
        "path=/" + "d/" * 3000 + "f",
    ],
)
def test_bad_paths_are_a_4xx_and_write_nothing(server, box, query):
    for method, body in (("GET", None), ("POST", b"x")):
        answer = server.edge(method, box, f"/files?{query}", body, headers={"Content-Type": "application/octet-stream"})
        assert 400 <= answer.status < 500, answer
        assert answer.json["message"]


def test_a_link_inside_is_followed_inside(server, box):
    start(server, box, "ln -sfn / /home/user/out; echo linked > /tmp/target; ln -sfn /tmp/target /home/user/link")
    assert server.edge("GET", box, "/files?path=link").body == b"linked\n"
    assert server.edge("GET", box, "/files?path=out/tmp/target").body == b"linked\n"


BAD_RPC = {
    "empty": b"",
    "not json": b"{",
    "a list": b"[]",
    "wrong type": b'{"path":1}',
    "NUL": b'{"path":"/tmp/a\\u0000b"}',
    "broken utf-8": b'{"path":"\xff"}',
    "deep": b'{"path":' + b"[" * 5000 + b"]" * 5000 + b"}",
}


@pytest.mark.parametrize("body", BAD_RPC.values(), ids=[name.replace(" ", "-") for name in BAD_RPC])
@pytest.mark.parametrize("method", ["Stat", "MakeDir", "Remove", "ListDir"])
def test_a_bad_message_is_an_invalid_argument(server, box, method, body):
    answer = rpc(server, box, f"filesystem.Filesystem/{method}", body)
    assert answer.status == 400, answer
    assert answer.json["code"] == "invalid_argument", answer


def test_an_unknown_rpc_and_a_wrong_method_are_told_apart(server, box):
    assert rpc(server, box, "filesystem.Filesystem/NoSuch", {}).status in (404, 501)
    assert server.edge("GET", box, "/filesystem.Filesystem/Stat").status == 405


def test_the_root_directory_cannot_be_removed(server, box):
    answer = rpc(server, box, "filesystem.Filesystem/Remove", {"path": "/"})
    assert answer.status >= 400, answer
    assert start(server, box, "ls /bin/bash")[0] == 0


def test_a_large_file_goes_in_and_out_in_constant_memory(server, box):
    size = 256 << 20
    blob = os.urandom(1 << 20) * (size >> 20)
    front = pathlib.Path("/proc", str(server.front_pid()))

    def resident(which):
        return int(re.search(rf"{which}:\s+(\d+) kB", (front / "status").read_text())[1]) << 10

    def there_and_back():
        sent = server.edge("POST", box, "/files?path=/home/user/big", blob, headers={"Content-Type": "application/octet-stream"})
        assert sent.status == 200
        answer = server.edge("GET", box, "/files?path=/home/user/big", headers={"Accept-Encoding": "identity"})
        assert hashlib.sha256(answer.body).digest() == hashlib.sha256(blob).digest()

    there_and_back()  # a build with ASan keeps freed memory up to a limit: it is full afterwards
    (front / "clear_refs").write_text("5")  # the highest so far is now the present one
    before = resident("VmRSS")
    there_and_back()
    assert resident("VmHWM") - before < 64 << 20
    start(server, box, "rm -f /home/user/big")


# ---- strangers ----


def test_without_a_token_the_edge_says_what_guestd_says(server, shared_sandbox):
    """The edge refuses instead of guestd, with the same answer: a client cannot tell which of the two refused."""
    asked = [(49983, "/process.Process/List", "{}"), (49983, "/nowhere", ""), (49999, "/execute", '{"code": "1"}')]
    for port, path, body in asked:
        curl = f"curl -s -i -X POST -H 'Origin: x' -d '{body}' http://localhost:{port}{path}"
        inside = shared_sandbox.commands.run(curl).stdout.replace("\r\n", "\n")
        head, _, text = inside.partition("\n\n")
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])
        routing = {"E2b-Sandbox-Id": shared_sandbox.sandbox_id, "E2b-Sandbox-Port": str(port), "Origin": "x"}
        for token in ({}, {"X-Access-Token": "wrong"}):
            outside = server.call("POST", path, body.encode(), {**routing, **token})
            assert (outside.status, outside.body.decode()) == (401, text), (inside, outside)
            for name in ("content-type", "x-content-type-options", "access-control-allow-origin", "vary"):
                assert outside.headers.get(name, "").lower() == fields.get(name, ""), (name, inside, outside.headers)


def half_body(server, sandbox_id, port, path):
    """A connection whose request has begun and does not go on."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {sandbox_id}\r\nE2b-Sandbox-Port: {port}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{".encode()
    )
    return connection


TAKES_BODIES = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    "ports",
    [[(49983, "/process.Process/Start")], [(49999, "/contexts")], [(8000, "/")], [(49999, "/contexts"), (8000, "/")]],
    ids=["guestd", "code", "service", "both"],
)
def test_half_bodies_without_a_token_lock_nobody_out(server, made, ports):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), max(hard, 4096)))
    boxes = [Sandbox.create(timeout=300) for _ in range(3)]
    made += [box.sandbox_id for box in boxes]
    victim, others = boxes[0], boxes[1:]
    victim.files.write("/tmp/takes.py", TAKES_BODIES)
    victim.commands.run("python3 /tmp/takes.py", background=True)
    routing = {"E2b-Sandbox-Id": victim.sandbox_id, "E2b-Sandbox-Port": "8000"}
    assert wait_for(lambda: server.call("GET", "/", headers=routing).status == 200)
    held = []
    try:
        # Where a token is needed, and on routes that strangers may use.
        for port, path in ports:
            held += [half_body(server, victim.sandbox_id, port, path) for _ in range(600)]
        for box in others:
            held += [half_body(server, box.sandbox_id, *ports[0]) for _ in range(100)]

        for box in boxes:
            assert box.commands.run("echo here").stdout == "here\n"
            box.files.write("/tmp/note", "text")
            assert box.files.read("/tmp/note") == "text"
        # Whole requests of strangers are served too: incomplete ones are evicted for them.
        assert server.call("GET", "/", headers=routing).status == 200
        routing["E2b-Sandbox-Port"] = "49999"
        assert server.call("GET", "/contexts", headers=routing).status == 200
        assert server.api("GET", "/sandboxes").status == 200
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize("seconds", [1, 300], ids=["expired", "valid"])
def test_half_bodies_with_a_signed_link_lock_nobody_out(server, made, seconds):
    """Links get published: a client with a link is not the owner, and guestd refuses the link once it has expired."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), max(hard, 4096)))
    box = Sandbox.create(timeout=300)
    made.append(box.sandbox_id)
    url = urllib.parse.urlsplit(box.upload_url("/tmp/up", use_signature_expiration=seconds))
    if seconds == 1:
        time.sleep(2.5)
    held = []
    try:
        held += [half_body(server, box.sandbox_id, 49983, f"/files?{url.query}") for _ in range(600)]

        def owner_works():
            try:
                box.files.write("/tmp/note", "text")
                return box.commands.run("cat /tmp/note").stdout == "text"
            except SandboxException:
                return False

        # Not always at once: guestd begins an upload for each, and has as many connections until it has ended them.
        assert wait_for(owner_works)
        routing = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}
        # The link is for writing, so guestd answers 401. The request gets through: incomplete ones are evicted for it.
        assert wait_for(lambda: server.call("GET", f"/files?{url.query}", headers=routing).status == 401)
    finally:
        for connection in held:
            connection.close()


def test_nobody_waits_long_for_a_strangers_body(server, sandbox):
    """Fifteen seconds, and not the ten minutes that a stream of an owner's input may be silent for."""
    sandbox.files.write("/tmp/takes.py", TAKES_BODIES)
    sandbox.commands.run("python3 /tmp/takes.py", background=True)
    routing = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
    assert wait_for(lambda: server.call("GET", "/", headers=routing).status == 200)
    held = [
        (half_body(server, sandbox.sandbox_id, 49983, "/process.Process/Start"), b"HTTP/1.1 401 "),
        (half_body(server, sandbox.sandbox_id, 8000, "/"), b"HTTP/1.1 408 "),
    ]
    for connection, answer in held:
        connection.settimeout(25)
        with connection:
            said = b""
            while piece := connection.recv(4096):
                said += piece
            assert said.startswith(answer), said
