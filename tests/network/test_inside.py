"""Names that stay inside (--inside): every sandbox reaches the operator's services, and nothing more by them."""

import http.server
import json
import os
import signal
import socketserver
import threading

import pytest

import world
from conftest import World
from server import TEST_DATA, wait_for
from test_packages import APT, INSTALLS, trust
from test_update import in_background, wait_file
from world import HOSTS, SOCKS_PORT

OFF = {"allow_internet_access": False}
MIRRORED = ("pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "github.com")
MIRROR, MIRROR_ADDRESS = "mirror.internal", "192.0.0.64"
# Each kind of policy that could be in the way.
POLICIES = {
    "with internet access": {},
    "without internet access": OFF,
    "everything is denied": {"network": {"denyOut": ["0.0.0.0/0"]}},
    "its address is denied": {"network": {"denyOut": ["192.0.0.0/24"]}},
    "only another name is allowed": {"network": {"allowOut": ["one.test"], "denyOut": ["0.0.0.0/0"]}},
    "no name may be looked up": {"network": {"allowOut": ["one.test"], "denyOut": ["0.0.0.0/0"], "dnsServers": []}},
    "with its own DNS server": {"network": {"allowOut": ["one.test"], "denyOut": ["0.0.0.0/0"], "dnsServers": [HOSTS["silent_dns"]]}},
    "with header rules": {"network": {"rules": {"one.test": [{"transform": {"headers": {"X-Key": "1"}}}]}}},
    "with a proxy": {"network": {"egressProxy": {"address": f"{HOSTS['socks']}:{SOCKS_PORT}"}}},
}


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"service": "mirror", "host": self.headers["Host"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


@pytest.fixture(scope="module")
def services(hosts):
    """On the machine's loopback: a web server and an echo."""
    made = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page), socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)]
    for server in made:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in made]
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def inside(hosts, services):
    web, echo = services
    made = World(
        hosts,
        "--inside", f"{MIRROR}:80=127.0.0.1:{web}", "--inside", f"mail.internal:25=127.0.0.1:{echo}",
        "--inside", f"{MIRROR}:7=127.0.0.1:{echo},two.test:80=127.0.0.1:{web}",
        "--inside", f"{MIRROR}:9=127.0.0.1:1",  # where nothing listens
        "--inside", f"deb.debian.org:80={HOSTS['packages']}:80",
        "--inside", ",".join(f"{name}:443={HOSTS['packages']}:443" for name in MIRRORED),
        data=TEST_DATA.with_name(f"{TEST_DATA.name}-inside"),
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("fields", POLICIES.values(), ids=POLICIES.keys())
def test_every_sandbox_reaches_it(inside, hosts, fields):
    box = inside.shared_box(**fields)
    hosts.forget()
    assert box.ok("resolve", MIRROR) == [MIRROR_ADDRESS]
    assert box.ok("http", MIRROR, MIRROR) == {"service": "mirror", "host": MIRROR}
    answer = box.ok("dns", MIRROR, 28)  # AAAA
    assert (answer["rcode"], answer["answers"]) == (0, [])
    # Its other port, and a mail port that the operator has named.
    assert box.ok("tcp", MIRROR, 7, "echo", True) == "echo"
    assert box.ok("tcp", "mail.internal", 25, "HELO", True) == "HELO"
    assert not hosts.seen(), "something left"


def test_without_internet_access_nothing_else_is_reached(inside, hosts):
    box = inside.shared_box(**OFF)
    hosts.forget()
    box.refused("http", HOSTS["one"], "any.test")
    box.refused("http", world.MACHINE["public"], "any.test")
    found = box.fails("resolve", "one.test")
    assert found["error"] == "gaierror" and "not known" in found["text"] and found["seconds"] < 3, found
    assert box.ok("dns", f"data.{MIRROR}", 1)["rcode"] == 3
    assert box.ok("dns", "one.test", 1, HOSTS["google_dns"], True)["rcode"] == 3
    assert not hosts.seen()


REASON = "internet-access-is-off-for-this-sandbox"
# What each says is the program's own text about a name that is not resolved, or about the host that is in its place.
FAILS = [
    ("npm", "cd /tmp && npm install --registry https://one.test/ tiny", "ENOTFOUND"),
    ("git", "git clone https://one.test/tiny.git /tmp/clone", REASON),
    ("apt-get", APT.format(options="-q").replace("deb.debian.org", "one.test"), REASON),
    ("pip", "pip install --index-url https://one.test/simple tiny", "not known"),
    ("curl", "curl -sS https://one.test/", "Could not resolve host"),
]


@pytest.mark.parametrize("program, command, says", FAILS, ids=[row[0] for row in FAILS])
def test_without_internet_access_programs_fail_at_once(inside, hosts, program, command, says):
    box = inside.shared_box(**OFF)
    hosts.forget()
    result = box.run(command, timeout=20)
    text = result.stdout + result.stderr
    assert result.code != 0 and says in text, result
    assert text.count("Retrying") <= 1, result
    assert not hosts.seen(), "something left"


def test_without_internet_access_the_sandbox_says_what_it_reaches(inside):
    box = inside.shared_box(**OFF)
    assert "services that its operator provides" in box.run("cat /etc/motd").stdout


@pytest.mark.parametrize("program, install, show, answer", INSTALLS, ids=[row[0] for row in INSTALLS])
def test_a_mirror_serves_a_sandbox_without_internet_access(inside, hosts, program, install, show, answer):
    """At the names that programs know, so that none of them is configured."""
    box = inside.shared_box(metadata={"for": "packages"}, **OFF)
    hosts.forget()
    result = box.run(install, env=trust(box))
    assert result.code == 0, result
    assert box.run(show).stdout.strip() == answer
    assert hosts.seen("request", to=HOSTS["packages"]) and not hosts.seen("dns")


@pytest.mark.parametrize("port", [22, 443, 25, 465, 587])
def test_its_other_ports_are_refused_and_the_log_says_so(inside, hosts, port):
    box = inside.shared_box()
    box.refused("tcp", MIRROR, port, "x", True)
    assert box.wait_log(f"{MIRROR} ({MIRROR_ADDRESS}) port {port} refused", "--inside")


def test_a_service_that_is_not_there_is_named_in_the_log(inside):
    box = inside.shared_box(**OFF)
    box.refused("tcp", MIRROR, 9, "x", True)
    assert box.wait_log(f"service {MIRROR}:9 (--inside) failed: connect: Connection refused")


def test_mail_ports_stay_refused_elsewhere(inside):
    box = inside.shared_box()
    box.refused("tcp", HOSTS["mail"], 25)
    assert box.wait_log(HOSTS["mail"], "ports 25, 465 and 587")


def test_the_name_servers_cannot_lead_it_elsewhere(inside, hosts):
    """They know two.test, as another address; so does an answer that the guest has got elsewhere."""
    for fields in ({}, {"network": {"allowOut": ["two.test"], "denyOut": ["0.0.0.0/0"], "dnsServers": [HOSTS["dns"]]}}):
        box = inside.shared_box(**fields)
        hosts.forget()
        for over_tcp in (False, True):
            answer = box.ok("dns", "two.test", 1, HOSTS["dns"], over_tcp)
            assert [row[2] for row in answer["answers"]] == ["192.0.0.66"]
        assert box.ok("http", "two.test", "two.test")["service"] == "mirror"
        assert not hosts.seen()
    # Where a name allows a connection, it decides where: here to the service, whatever address was dialled.
    assert box.ok("http", HOSTS["two"], "two.test")["service"] == "mirror"
    assert not hosts.seen()


def test_the_addresses_beside_it_are_refused(inside, hosts):
    box = inside.shared_box()
    box.refused("http", "192.0.0.127", MIRROR)
    box.refused("http", "64:ff9b::c000:40", MIRROR)  # NAT64 of its address


def test_an_update_of_the_rules_does_not_disturb_it(inside):
    box = inside.box()
    job = in_background(box, "keep_talking", MIRROR, 7, 4, "/tmp/job.on")
    wait_file(box, "/tmp/job.on")
    box.update(allow_internet_access=False)
    assert box.ok("http", MIRROR, MIRROR)["service"] == "mirror"
    box.update(egressProxy={"address": f"{HOSTS['socks']}:{SOCKS_PORT}"})
    box.update(denyOut=["0.0.0.0/0"])
    assert job()["ok"]["how"] == "time"
    assert box.ok("http", MIRROR, MIRROR)["service"] == "mirror"
    box.kill()


def test_it_is_counted_like_any_connection(inside):
    box = inside.box(**OFF)
    assert box.ok("tcp", MIRROR, 7, "x" * 100000, True) == "x" * 100000

    def counted():
        rows = box.server.api("GET", f"/sandboxes/{box.id}/metrics").json
        return any(r["networkConnections"] and min(r["networkBytesIn"], r["networkBytesOut"]) >= 100000 for r in rows)

    assert wait_for(counted, 20)
    box.kill()


def test_it_is_there_after_every_restart(inside):
    boxes = [inside.box(), inside.box(**OFF)]
    for role in ("egress", "front"):
        pid = inside.role_pid(role)
        os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: inside.role_pid(role) not in (None, pid), 20)
        inside.server.wait_until_up()
        for box in boxes:
            assert wait_for(lambda: "ok" in box.call("http", MIRROR, MIRROR), 20), f"not reached after the end of {role}"
    inside.server.stop()
    inside.server.start()
    for box in boxes:
        assert wait_for(lambda: "ok" in box.call("http", MIRROR, MIRROR), 20), "not reached after a restart"
        box.kill()
    inside.shared.clear()
