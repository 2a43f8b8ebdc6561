"""TLS on the server's port: what it accepts, what it refuses, and what happens when a part of it is missing."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
from server import ROOT, Server, build_dir, prepare, wait_for

NAME = "api.cloister.localhost"
REQUEST = b"GET /health HTTP/1.1\r\nHost: api.cloister.localhost\r\nConnection: close\r\n\r\n"


def trusting(server):
    return ssl.create_default_context(cafile=server.lines["SSL_CERT_FILE"])


def raw(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def ask(server, context=None, name=NAME):
    """The first line of an answer over TLS."""
    with (context or trusting(server)).wrap_socket(raw(server), server_hostname=name) as wrapped:
        wrapped.sendall(REQUEST)
        return read_all(wrapped).split(b"\r\n")[0]


def read_all(connection):
    got = b""
    while piece := connection.recv(65536):
        got += piece
    return got


def is_fine(server, **options):
    return ask(server, **options) == b"HTTP/1.1 204 No Content"


class Wire:
    """A TLS client whose bytes the test carries itself."""

    def __init__(self, server, context=None, name=NAME):
        self.raw = raw(server)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or trusting(server)).wrap_bio(self.incoming, self.outgoing, server_hostname=name)

    def hello(self):
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def finish(self, send):
        """The handshake, with send() for our side's bytes."""
        while True:
            try:
                self.tls.do_handshake()
                send(self.outgoing.read())
                return
            except ssl.SSLWantReadError:
                send(self.outgoing.read())
                piece = self.raw.recv(65536)
                assert piece, "the server has closed"
                self.incoming.write(piece)

    def get(self, send):
        self.tls.write(REQUEST)
        send(self.outgoing.read())
        got = b""
        while True:
            try:
                piece = self.tls.read(65536)
                if not piece:
                    return got
                got += piece
            except ssl.SSLWantReadError:
                piece = self.raw.recv(65536)
                if not piece:
                    return got + b" without a close_notify"
                self.incoming.write(piece)
            except ssl.SSLZeroReturnError:
                return got


def test_one_port_speaks_both(server):
    assert is_fine(server)
    assert server.call("GET", "/health").status == 204
    with raw(server) as plain:
        plain.sendall(REQUEST)
        assert read_all(plain).startswith(b"HTTP/1.1 204")


def test_a_hello_may_come_byte_by_byte(server):
    wire = Wire(server)
    wire.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def slowly(data):
        for i in range(len(data)):
            wire.raw.sendall(data[i : i + 1])

    wire.finish(slowly)
    answer = wire.get(slowly)
    assert answer.startswith(b"HTTP/1.1 204") and b"close_notify" not in answer


def test_a_hello_may_come_in_many_records(server):
    wire = Wire(server)
    hello = wire.hello()
    body = hello[5:]
    pieces = [body[i : i + 50] for i in range(0, len(body), 50)]
    wire.raw.sendall(b"".join(hello[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces))
    wire.finish(wire.raw.sendall)
    assert wire.get(wire.raw.sendall).startswith(b"HTTP/1.1 204")


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\x16\x03\x01\xff\xff" + b"x" * 100,  # a record that is too long
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",  # a hello of 16 MiB
        b"\x16\x03\x01\x00\x04\x01\x00\xff\xff" + b"\x16\x03\x01\x40\x00" * 20000,
        b"\x16" + b"GET / HTTP/1.1\r\n\r\n" * 10,
        b"\x16" + bytes(range(256)) * 40,
    ],
)
def test_garbage_is_cut_off(server, bytes_):
    with raw(server) as connection:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            connection.sendall(bytes_)
            answer = read_all(connection)
            assert len(answer) < 100 and b"HTTP" not in answer, answer
        assert time.monotonic() - began < 5
    assert is_fine(server)


def test_a_client_that_says_nothing_more_is_cut_off(server):
    """LIMIT_TLS_HANDSHAKE_MS is ten seconds."""
    wire = Wire(server)
    wire.raw.sendall(wire.hello()[:20])
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        assert read_all(wire.raw) == b""
    assert 8 < time.monotonic() - began < 20


def test_without_a_name_there_is_a_certificate(server):
    context = trusting(server)
    context.check_hostname = False
    assert is_fine(server, context=context, name=None)


def test_an_address_of_loopback_is_in_the_certificate(server):
    assert is_fine(server, name="127.0.0.1")


def test_another_name_is_refused_by_the_client(server):
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(server, name="example.com")


def test_versions_before_1_2_are_refused(server):
    context = trusting(server)
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(server, context=context)


def test_1_2_and_1_3_both_work(server):
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = trusting(server)
        context.minimum_version = context.maximum_version = version
        assert is_fine(server, context=context)


def test_curl_and_node_trust_it(server):
    url = f"https://{server.lines['E2B_DOMAIN'].replace('cloister', 'api.cloister', 1)}/health"
    env = {**server.environment(), "SSL_CERT_DIR": "/etc/ssl/certs"}  # which curl heeds before SSL_CERT_FILE
    curl = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", url], env=env, capture_output=True)
    assert curl.stdout == b"204", curl
    if shutil.which("node"):
        code = f"fetch({url!r}).then(a => console.log(a.status))"
        assert subprocess.run(["node", "-e", code], env=env, capture_output=True).stdout == b"204\n"


def test_a_crowd_of_handshakes_leaves_api_calls_alone(server):
    """Half-open handshakes by the hundred, and more of them all the time."""
    stop = threading.Event()
    held = []

    def crowd():
        while not stop.is_set() and len(held) < 300:
            wire = Wire(server)
            wire.raw.sendall(wire.hello())
            held.append(wire)

    threads = [threading.Thread(target=crowd) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        slowest = 0
        for _ in range(20):
            began = time.monotonic()
            assert server.api("GET", "/v2/sandboxes").status == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 3
        assert is_fine(server)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for wire in held:
            wire.raw.close()


# ---- processes ----


def role_pid(server, role):
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if words[1:3] == [b"role", role.encode()] and parent == server.pid:
                return int(path.name)
    return None


def test_a_killed_signer_is_started_again_and_nothing_else_notices(own_server):
    with trusting(own_server).wrap_socket(raw(own_server), server_hostname=NAME) as open_one:
        for _ in range(3):
            old = role_pid(own_server, "signer")
            os.kill(old, signal.SIGKILL)
            assert is_fine(own_server)  # it waits for the new one
            assert wait_for(lambda: role_pid(own_server, "signer") not in (None, old))
        open_one.sendall(REQUEST)
        assert read_all(open_one).startswith(b"HTTP/1.1 204")
    assert own_server.call("GET", "/health").status == 204


def test_a_stopped_signer_stops_only_handshakes(own_server):
    pid = role_pid(own_server, "signer")
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = [Wire(own_server) for _ in range(10)]
        for wire in waiting:
            wire.raw.sendall(wire.hello())
        for _ in range(10):
            assert own_server.api("GET", "/v2/sandboxes").status == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    assert is_fine(own_server)
    for wire in waiting:
        wire.raw.close()


def test_the_key_is_in_signer_and_not_in_front(own_server):
    key = (own_server.data / "tls" / "authority.pem").read_bytes()
    assert b"PRIVATE KEY" in key
    der = subprocess.run(
        ["openssl", "pkey", "-outform", "DER"], input=key.split(b"-----END CERTIFICATE-----")[2], capture_output=True
    ).stdout
    secret = der[der.index(bytes.fromhex("0201010420")) + 5 :][:32]  # the number in an EC key
    assert is_fine(own_server)

    def has_it(role):
        pid = role_pid(own_server, role)
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                where, mode = line.split()[:2]
                start, end = (int(part, 16) for part in where.split("-"))
                if not mode.startswith("rw") or end - start > 1 << 28:
                    continue
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    content = memory.read(end - start)
                    if secret in content or secret[::-1] in content or key[-200:-40] in content:
                        return True
        return False

    assert has_it("signer")  # else this test finds nothing anywhere
    assert not has_it("front")


def test_a_full_descriptor_table_is_survived(own_server):
    own_server.stop()
    own_server.wrapper = ["prlimit", "--nofile=128:128"]
    own_server.start()
    own_server.wrapper = []
    front = role_pid(own_server, "front")
    first = trusting(own_server).wrap_socket(raw(own_server), server_hostname=NAME)
    held = []
    for _ in range(140):
        wire = Wire(own_server)
        wire.raw.sendall(wire.hello())
        held.append(wire)
    assert wait_for(lambda: len(os.listdir(f"/proc/{front}/fd")) >= 128, 10)
    first.sendall(REQUEST)  # what is open goes on
    assert read_all(first).startswith(b"HTTP/1.1 204")
    for wire in held:
        wire.raw.close()
    assert wait_for(lambda: is_fine(own_server), 10)
    assert role_pid(own_server, "front") == front


# ---- a domain of the operator's ----


def make_certificate(home, name, stem="own", days=30):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", str(days), "-subj", f"/CN={name}",
         "-addext", f"subjectAltName=DNS:{name},DNS:*.{name}", "-keyout", home / f"{stem}.key", "-out",
         home / f"{stem}.crt"],
        check=True,
        capture_output=True,
    )  # fmt: skip


@pytest.fixture
def domain_server(server, tmp_path):
    """With certificate files; and a function that starts it, so that a test can break the files first."""
    make_certificate(tmp_path, "boxes.test")
    data = server.data.parent / f"{server.data.name}-domain"
    prepare(data)
    files = ["--tls-cert", str(tmp_path / "own.crt"), "--tls-key", str(tmp_path / "own.key")]
    mine = Server(data, ["--domain", "boxes.test", *files])
    mine.home = tmp_path
    yield mine
    mine.stop()


def offered(server, name):
    """The certificate's subject alternative names, whoever has signed it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(raw(server), server_hostname=name) as wrapped:
        pem = ssl.DER_cert_to_PEM_cert(wrapped.getpeercert(binary_form=True))
    text = ["openssl", "x509", "-noout", "-serial", "-ext", "subjectAltName"]
    return subprocess.run(text, input=pem.encode(), capture_output=True, check=True).stdout.decode()


def test_the_name_decides_which_certificate(domain_server):
    domain_server.start()
    assert "DNS:boxes.test" in offered(domain_server, "api.boxes.test")
    assert "DNS:boxes.test" in offered(domain_server, None)
    assert "DNS:*.cloister.localhost" in offered(domain_server, "api.cloister.localhost")
    trusted = ssl.create_default_context(cafile=domain_server.home / "own.crt")
    assert is_fine(domain_server, context=trusted, name="api.boxes.test")
    assert is_fine(domain_server)  # the local authority's still works
    assert domain_server.lines["E2B_DOMAIN"] == "boxes.test"


def test_changed_files_are_loaded_and_bad_ones_are_not(domain_server):
    domain_server.start()
    known = len(domain_server.log_path.read_text())  # earlier runs have written to it, too

    def log():
        return domain_server.log_path.read_text()[known:]

    first = offered(domain_server, "api.boxes.test")
    make_certificate(domain_server.home, "boxes.test", "next")
    # The certificate alone: it does not match the key.
    (domain_server.home / "next.crt").rename(domain_server.home / "own.crt")
    assert wait_for(lambda: "not for this key" in log(), 30)
    assert offered(domain_server, "api.boxes.test") == first
    (domain_server.home / "next.key").rename(domain_server.home / "own.key")
    assert wait_for(lambda: offered(domain_server, "api.boxes.test") != first, 30)
    second = offered(domain_server, "api.boxes.test")
    # Files that vanish leave the server as it is, through a restart of its roles too.
    (domain_server.home / "own.crt").unlink()
    assert wait_for(lambda: "own.crt: No such file" in log(), 30)
    os.kill(role_pid(domain_server, "signer"), signal.SIGKILL)
    os.kill(role_pid(domain_server, "front"), signal.SIGKILL)
    assert wait_for(lambda: up(domain_server), 30)
    assert offered(domain_server, "api.boxes.test") == second
    assert log().count("own.crt: No such file") == 1  # said once


def doctor(server, *options):
    """What it says about names and the certificate: {check: row}."""
    run = subprocess.run(
        [str(build_dir() / "cloister"), "doctor", "--json", "--data", str(server.data), *options], capture_output=True
    )
    return {row["check"]: row for row in json.loads(run.stdout)["checks"]}


def test_doctor_looks_at_the_names_and_the_certificate_of_the_running_server(own_server):
    rows = doctor(own_server)
    assert rows["certificate"]["verdict"] == "ok"
    assert re.match(r"for \*\.cloister\.localhost, until 20[0-9-]+, (89|90) days", rows["certificate"]["found"])
    assert rows["names"]["found"].startswith("*.cloister.localhost leads to this machine")
    # Without the role that signs there is no handshake, and so no certificate.
    signer = role_pid(own_server, "signer")
    os.kill(signer, signal.SIGSTOP)
    try:
        row = doctor(own_server)["certificate"]
        assert row["verdict"] == "warn" and "no TLS at 127.0.0.1" in row["found"], row
    finally:
        os.kill(signer, signal.SIGCONT)


@pytest.mark.parametrize(
    "name, days, says",
    [
        ("boxes.test", 30, "clients refuse it: self-signed certificate"),
        ("boxes.test", -1, "clients refuse it: it ended on 20"),
        ("other.test", 30, "clients refuse it: it is for other.test and not for *.boxes.test"),
    ],
)
def test_doctor_says_what_clients_refuse_of_an_operators_certificate(domain_server, name, days, says):
    # req has no option for an end in the past, x509 has.
    make_certificate(domain_server.home, name)
    if days < 0:
        end(domain_server.home, name, days)
    domain_server.start()
    rows = doctor(domain_server)
    assert rows["certificate"]["verdict"] == "warn" and says in rows["certificate"]["found"], rows["certificate"]
    assert rows["certificate"]["fix"]
    assert rows["names"]["found"] == "*.boxes.test is unknown to programs"
    assert "*.boxes.test" in rows["names"]["fix"]


def end(home, name, days):
    """The same certificate, but one that ended some days ago."""
    text = f"subjectAltName=DNS:{name},DNS:*.{name}\n"
    (home / "names").write_text(text)
    command = ["openssl", "x509", "-in", home / "own.crt", "-signkey", home / "own.key", "-days", str(days)]
    subprocess.run([*command, "-extfile", home / "names", "-out", home / "own.crt"], check=True, capture_output=True)


def up(server):
    try:
        return server.call("GET", "/health", timeout=2).status == 204
    except OSError:
        return False


def test_files_that_do_not_fit_keep_the_server_from_starting(domain_server):
    make_certificate(domain_server.home, "boxes.test", "other")
    (domain_server.home / "other.key").rename(domain_server.home / "own.key")
    with pytest.raises(RuntimeError, match="not for this key"):
        domain_server.start()


def test_a_server_beyond_loopback_without_a_certificate_warns(server, tmp_path):
    program = [str(ROOT / os.environ.get("CLOISTER_BUILD", "build") / "cloister")]
    data = server.data.parent / f"{server.data.name}-domain"
    prepare(data)
    with open(tmp_path / "log", "w+") as log:
        process = subprocess.Popen(
            [*program, "serve", "--data", str(data), "--listen", "0.0.0.0:0"], stdout=log, stderr=log
        )
        try:
            assert wait_for(lambda: "WITHOUT A CERTIFICATE" in (tmp_path / "log").read_text(), 20)
        finally:
            process.terminate()
            process.wait(20)
