"""Network rules as an SDK's user sets them, and what programs in a sandbox without internet access see.

Without it they fail at once, and do not retry for a minute: before, npm took 71 seconds, pip 8, apt-get 7. The timeouts
of these commands are what is tested. Nothing here needs the Internet; tests/network has one of its own.
"""

import io
import json
import os
import re
import signal
import subprocess
import zipfile

import pytest

from e2b import CommandExitException, NotFoundException, PtySize, Sandbox, SandboxException, TimeoutException
from server import cloister, wait_for

TIMEOUT_S = 5  # of a command that takes half a second on an idle machine; what waits for a network takes at least 7
TRIES = 3  # what waits for a network does it each time, a machine that is busy does not
OFF = "Internet access is off for this sandbox"
REASON_HOST = "internet-access-is-off-for-this-sandbox.invalid"  # what programs cannot resolve; see src/guest/network.c
CLOSED = "192.0.2.1"  # a documentation address: no packet to it leaves, because a rule refuses it


@pytest.fixture(scope="module")
def box(server):
    with Sandbox.create("base", timeout=300, allow_internet_access=False) as sandbox:
        yield sandbox


def fails(box, command, **options):
    """All that it said. A timeout in each try is a failed test."""
    for nth in range(TRIES):
        try:
            box.commands.run(command, timeout=TIMEOUT_S, **options)
        except CommandExitException as error:
            return error.stdout + error.stderr
        except TimeoutException:
            if nth == TRIES - 1:
                raise
        else:
            break
    raise AssertionError(f"{command} has worked")


@pytest.mark.parametrize(
    "command, says",
    [
        ("pip install left-pad", REASON_HOST),
        ("pip install -q left-pad", "internet-access-is-off-for-this-sandbox/left-pad"),
        ("sudo pip install left-pad", REASON_HOST),
        ("sudo su - user -c 'pip install left-pad'", REASON_HOST),
        ("env -i pip install left-pad", REASON_HOST),
        ("npm install left-pad", f"ENOTFOUND {REASON_HOST}"),
        ("env -i npm install left-pad", f"ENOTFOUND {REASON_HOST}"),
        ("sudo npm install --global left-pad", f"ENOTFOUND {REASON_HOST}"),
        ("npx --yes left-pad", f"ENOTFOUND {REASON_HOST}"),
        ("git clone https://example.com/a/b", f"Could not resolve host: {REASON_HOST}"),
        ("env -i git clone https://example.com/a/b", f"Could not resolve host: {REASON_HOST}"),
        ("pip install git+https://example.com/a/b", f"Could not resolve host: {REASON_HOST}"),
        ("sudo apt-get update", f"Could not resolve '{REASON_HOST}'"),
        ("sudo apt-get install -y sl", OFF),
        ("sudo apt-get install -qq -y sl", OFF),
        ("curl -sS https://example.com", "Could not resolve host: example.com"),
        ("git clone git@example.com:a/b", "Could not resolve hostname example.com"),
        ("node -e \"fetch('https://example.com').catch(e => { throw e.cause })\"", "ENOTFOUND example.com"),
    ],
)
def test_what_needs_the_network_fails_at_once_and_says_why(box, command, says):
    assert says in fails(box, command)


LISTS = """
mkdir -p /tmp/lists && cd /tmp/lists
echo "deb [trusted=yes] $1 ./" >sources.list
sudo apt-get -o Dir::Etc::sourcelist=/tmp/lists/sources.list -o Dir::Etc::sourceparts=- update
"""


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_apt_says_why_for_every_source(box, scheme):
    said = fails(box, f"set -- {scheme}://example.com; {LISTS}")
    assert REASON_HOST in said, said


def test_names_of_the_sandbox_itself_resolve(box):
    code = "import socket; print(socket.gethostbyname('localhost'), socket.gethostbyname(socket.gethostname()))"
    assert box.commands.run(f'python3 -c "{code}"').stdout == "127.0.0.1 127.0.0.1\n"


def test_the_callers_variables_win(box):
    found = box.commands.run("npm config get fetch-retries; npm_config_fetch_retries=3 npm config get fetch-retries")
    assert found.stdout == "0\n3\n"


def test_the_files_that_one_looks_at_say_why_and_what_to_do(box):
    """Not nsswitch.conf: mail's names resolve in every sandbox."""
    names = ("motd", "resolv.conf", "pip.conf", "npmrc", "gitconfig")
    for path in [f"/etc/{name}" for name in names]:
        text = box.files.read(path)
        assert OFF in text and "allow_internet_access=True" in text and "update_network()" in text
    rest = box.commands.run("getent passwd user").stdout
    assert rest.startswith("user:x:1000:"), rest


def wheel(name):
    """The smallest one that pip installs."""
    files = {
        f"{name}.py": "answer = 42\n",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/RECORD": "",
    }
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return room.getvalue()


def test_what_was_uploaded_can_be_installed(box):
    box.files.write("/tmp/wheels/tiny-1.0-py3-none-any.whl", wheel("tiny"))
    box.commands.run("pip install --no-index --find-links /tmp/wheels tiny")
    assert box.commands.run("python3 -c 'import tiny; print(tiny.answer)'").stdout == "42\n"
    box.files.write(
        "/tmp/deb/DEBIAN/control", "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"
    )
    box.files.write("/tmp/deb/usr/share/tiny/answer", "43\n")
    box.commands.run("dpkg-deb --build /tmp/deb /tmp/tiny.deb && sudo apt-get install -y /tmp/tiny.deb")
    assert box.files.read("/usr/share/tiny/answer") == "43\n"
    box.files.write("/tmp/npm/package.json", '{"name": "tiny", "version": "1.0.0"}')
    box.files.write("/tmp/npm/index.js", "module.exports = 44\n")
    # With retries it would take more than a minute.
    box.commands.run("cd /tmp && npm pack ./npm && mkdir app && cd app && npm install ../tiny-1.0.0.tgz", timeout=30)
    assert box.commands.run("node -p 'require(\"tiny\")'", cwd="/tmp/app").stdout == "44\n"


# A package of each kind, and a server for all of them, on 127.0.0.1.
SERVICES = """
set -e
mkdir -p /tmp/services/simple/near /tmp/work/deb/DEBIAN
cd /tmp/work
cp /tmp/near-1.0-py3-none-any.whl /tmp/services/simple/near/
(cd npm && npm pack && mv near-1.0.0.tgz /tmp/services/)
printf 'Package: near\\nVersion: 1\\nArchitecture: all\\nMaintainer: a\\nDescription: b\\n' >deb/DEBIAN/control
dpkg-deb --root-owner-group --build deb /tmp/services/near.deb
(cat deb/DEBIAN/control; echo Filename: ./near.deb; echo Size: $(stat -c %s /tmp/services/near.deb)
 echo SHA256: $(sha256sum </tmp/services/near.deb | cut -d' ' -f1)) >/tmp/services/Packages
git init -q --bare /tmp/services/near.git
git -C /tmp/services/near.git update-server-info
cd /tmp/services
python3 -m http.server 8088 --bind 127.0.0.1 >/dev/null 2>&1 &
curl -s --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null http://127.0.0.1:8088/
"""


def test_services_of_the_sandbox_are_reached_as_before(box):
    box.files.write("/tmp/near-1.0-py3-none-any.whl", wheel("near"))
    box.files.write("/tmp/work/npm/package.json", '{"name": "near", "version": "1.0.0"}')
    version = {"name": "near", "version": "1.0.0", "dist": {"tarball": "http://127.0.0.1:8088/near-1.0.0.tgz"}}
    near = {"name": "near", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    box.files.write("/tmp/services/near", json.dumps(near))
    box.commands.run(SERVICES)
    for command in (
        "pip install --index-url http://127.0.0.1:8088/simple near && python3 -c 'import near'",
        "mkdir /tmp/nearby && cd /tmp/nearby && npm install --registry http://localhost:8088/ near && ls node_modules/near",
        "git clone http://127.0.0.1:8088/near.git /tmp/near",
        f"set -- http://127.0.0.1:8088; {LISTS}",
        f"set -- http://localhost:8088; {LISTS}",
        "sudo apt-get -o Dir::Etc::sourcelist=/tmp/lists/sources.list install -y near",
    ):
        box.commands.run(command)
    # TLS there is theirs: nothing listens on this port, and that is what they say.
    for host in ("127.0.0.1", "localhost"):
        assert f"Failed to connect to {host}" in fails(box, f"git clone https://{host}:9/a/b")
        assert REASON_HOST not in fails(box, f"set -- https://{host}:9; {LISTS}")


def test_a_terminal_says_so_first(box):
    said = []
    terminal = box.pty.create(PtySize(rows=24, cols=80))
    box.pty.send_stdin(terminal.pid, b"exit\n")
    terminal.wait(on_pty=lambda data: said.append(bytes(data)))
    assert OFF in b"".join(said).decode(), said


def test_a_command_does_not(box):
    """Nor does a login shell inside it: frameworks wrap each command in `sh -lc`, and read what it prints."""
    for command in ("true", "sh -lc true", "bash -lc true", "sudo su - user -c true"):
        result = box.commands.run(command)
        assert (result.stdout, result.stderr) == ("", ""), command


# ---- rules ----


def detail(server, box):
    return server.api("GET", f"/sandboxes/{box.sandbox_id}").json


def files_of(box):
    names = "motd resolv.conf nsswitch.conf pip.conf npmrc gitconfig"
    return box.commands.run(f"cd /etc; cat {names} 2>/dev/null; ls -A apt/apt.conf.d .").stdout


def test_internet_access_is_on_unless_it_is_switched_off(server):
    with Sandbox.create("base", timeout=60) as box:
        assert detail(server, box)["allowInternetAccess"] is True
        assert box.get_info().allow_internet_access is True
        assert OFF not in files_of(box) and "90cloister-network" not in files_of(box)
    with Sandbox.create("base", timeout=60, network={"deny_out": ["0.0.0.0/0"]}) as box:
        assert OFF in files_of(box)  # the same in other words
    with Sandbox.create("base", timeout=60, allow_internet_access=False, network={"allow_out": ["1.1.1.1"]}) as box:
        assert OFF not in files_of(box)  # something is reachable


def test_the_templates_own_files_come_back_with_internet_access(server):
    with Sandbox.create("base", timeout=60) as box:
        before = files_of(box)
        box.update_network({"allow_internet_access": False})
        assert detail(server, box)["allowInternetAccess"] is False
        assert "Could not resolve" in fails(box, "curl -sS http://example.com")
        assert OFF in files_of(box)
        box.update_network({})
        assert detail(server, box)["allowInternetAccess"] is True
        assert files_of(box) == before


def test_what_was_configured_meanwhile_stays_and_is_all_that_stays(server):
    with Sandbox.create("base", timeout=60, allow_internet_access=False) as box:
        box.commands.run(
            "sudo git config --system user.name a && sudo npm config set --location=global fund=false && "
            "sudo pip config --global set global.timeout 9"
        )
        box.update_network({})
        found = box.commands.run("cd /etc; cat gitconfig npmrc pip.conf")
        assert found.stdout.split() == "[user] name = a fund=false [global] timeout = 9".split()


def test_lines_and_modes_of_the_sandboxs_own_files_stay(server):
    with Sandbox.create("base", timeout=60) as box:
        box.commands.run(
            "cd /etc && sudo sh -c 'printf \"fetch-retries=0\\n\" >npmrc; printf \"[user]\\n\\tname = a\\n\" >gitconfig' && "
            "sudo chown user:user gitconfig && sudo chmod 600 gitconfig npmrc"
        )
        shown = "cd /etc; sudo cat npmrc; stat -c '%a %U %G' npmrc gitconfig"
        before = box.commands.run(shown).stdout
        assert before.split() == "fetch-retries=0 600 root root 600 user user".split()
        box.update_network({"allow_internet_access": False})
        assert "insteadOf" in box.commands.run("cat /etc/gitconfig").stdout
        assert box.commands.run(shown).stdout == before
        box.commands.run("echo search corp.example | sudo tee -a /etc/resolv.conf")
        box.update_network({})
        assert box.commands.run(shown).stdout == before
        lines = box.commands.run("cat /etc/resolv.conf").stdout.splitlines()
        assert "search corp.example" in lines and OFF not in "".join(lines)
        assert [line for line in lines if line.startswith("nameserver")] not in ([], ["nameserver 127.0.0.1"])


def lines_of(server, box, wanted):
    """The warnings in its log, once there are so many; egress reports about once a second."""

    def enough():
        lines = server.api("GET", f"/v2/sandboxes/{box.sandbox_id}/logs?level=warn&direction=forward").json["logs"]
        return lines if len(lines) >= wanted else None

    return wait_for(enough)


def test_a_refused_connection_fails_at_once_and_is_in_log_events_and_metrics(server):
    with Sandbox.create("base", timeout=60, network={"deny_out": [f"{CLOSED}/24"]}) as box:
        assert float(fails(box, f"curl -s -w '%{{time_total}}' http://{CLOSED}:81/")) < 1
        line = lines_of(server, box, 1)[0]
        assert f"{CLOSED}" in line["message"] and "denyOut has 192.0.2.0/24" in line["message"], line
        assert line["fields"]["event_type"] == "network_refused"
        assert line["fields"]["destination"] == f"{CLOSED}:81"
        events = server.api("GET", f"/events/sandboxes/{box.sandbox_id}?types=sandbox.network.refused").json
        assert events[0]["eventData"]["refused"][0]["destination"] == f"{CLOSED}:81"
        latest = wait_for(lambda: server.api("GET", f"/sandboxes/metrics?sandbox_ids={box.sandbox_id}").json["sandboxes"])
        assert latest[box.sandbox_id]["networkRefused"] == 1
        assert box.get_metrics()[0].cpu_count == 2  # the SDK takes the fields that it does not know


def test_private_addresses_are_refused_and_the_log_says_why(server):
    with Sandbox.create("base", timeout=60) as box:
        for address in ("10.0.0.1", "169.254.169.254", "192.168.1.1", "[fd00::1]"):
            fails(box, f"curl -sS http://{address}/")
        messages = [line["message"] for line in lines_of(server, box, 4)]
        assert all("--egress-allow" in message for message in messages), messages


@pytest.mark.parametrize("role", ["front", "egress"])
def test_rules_survive_the_death_of_a_role(own_server, monkeypatch, role):
    for name, value in own_server.environment().items():
        monkeypatch.setenv(name, value)
    with Sandbox.create("base", timeout=120, network={"deny_out": [CLOSED]}) as box:
        before = own_server.role_pid(role)
        os.kill(before, signal.SIGKILL)
        assert wait_for(lambda: own_server.role_pid(role) not in (None, before))
        own_server.wait_until_up()

        def is_refused_by_its_rule():
            # Until egress has the rules again it refuses everything, for another reason.
            fails(box, f"curl -sS http://{CLOSED}/")
            lines = own_server.api("GET", f"/v2/sandboxes/{box.sandbox_id}/logs?level=warn").json["logs"]
            return any(f"denyOut has {CLOSED}" in line["message"] for line in lines)

        assert wait_for(is_refused_by_its_rule)
        assert own_server.api("GET", f"/sandboxes/{box.sandbox_id}").json["network"]["denyOut"] == [CLOSED]


# Takes the address and port that egress's socket has, as soon as it can, and keeps them until it is told to let go.
THIEF = """
import os
import socket
import time
open("/tmp/trying", "w").close()
while True:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind(("127.77.0.1", 1))
        break
    except OSError:
        s.close()
s.listen()
open("/tmp/taken", "w").close()
while not os.path.exists("/tmp/let-go"):
    time.sleep(0.05)
s.settimeout(0)
try:
    s.accept()
    print("got a connection", flush=True)
except BlockingIOError:
    print("got nothing", flush=True)
"""


def test_a_guest_that_takes_egresss_port_is_without_network_until_it_lets_go(own_server, monkeypatch):
    for name, value in own_server.environment().items():
        monkeypatch.setenv(name, value)
    network = {"deny_out": [CLOSED]}

    def is_refused_by_its_rule(box):
        fails(box, f"curl -sS http://{CLOSED}/")  # also while keeper cannot make egress's socket
        lines = own_server.api("GET", f"/v2/sandboxes/{box.sandbox_id}/logs?level=warn").json["logs"]
        return any(f"denyOut has {CLOSED}" in line["message"] for line in lines)

    with (
        Sandbox.create("base", timeout=120, network=network) as box,
        Sandbox.create("base", timeout=120, network=network) as other,
    ):
        box.files.write("/tmp/thief.py", THIEF)
        thief = box.commands.run("python3 /tmp/thief.py", background=True)
        assert wait_for(lambda: box.files.exists("/tmp/trying"))
        for _ in range(5):  # the thief has the port if it is faster than keeper
            os.kill(wait_for(lambda: own_server.role_pid("egress")), signal.SIGKILL)
            if wait_for(lambda: box.files.exists("/tmp/taken"), 5):
                break
        assert box.files.exists("/tmp/taken")
        for _ in range(3):
            fails(box, f"curl -sS --max-time 5 http://{CLOSED}/")
        box.files.write("/tmp/let-go", "")
        assert thief.wait().stdout == "got nothing\n"
        assert wait_for(lambda: is_refused_by_its_rule(box))
        assert wait_for(lambda: is_refused_by_its_rule(other))


def test_what_was_set_is_shown_but_for_secrets(server):
    proxy = {"address": "proxy.example.com:1080", "username": "u", "password": "hunter2"}
    network = {
        "allow_out": ["1.1.1.1", "api.example.com"],
        "deny_out": lambda ctx: [ctx.all_traffic],
        "egress_proxy": proxy,
        "rules": {"api.example.com": [{"transform": {"headers": {"X-Key": "v"}}}]},
    }
    with Sandbox.create("base", timeout=60, network=network) as box:
        shown = detail(server, box)["network"]
        assert shown["allowOut"] == ["1.1.1.1", "api.example.com"] and shown["denyOut"] == ["0.0.0.0/0"]
        assert shown["egressProxy"] == {"address": "proxy.example.com:1080", "username": "u"}
        assert shown["rules"] == {"api.example.com": [{"transform": {"headers": {"X-Key": "v"}}}]}
        assert "hunter2" not in str(detail(server, box))
        info = box.get_info()
        assert info.network["allow_out"] == ["1.1.1.1", "api.example.com"], info.network


@pytest.mark.parametrize(
    "network, says",
    [
        ({"allow_out": ["example.com"]}, "also set allow_internet_access to false"),
        ({"deny_out": ["example.com"]}, "deny_out in Python"),
        ({"allow_out": ["not a host"]}, "allow_out in Python"),
        ({"dns_servers": ["dns.example.com"]}, "dns_servers in Python"),
        ({"egress_proxy": {"address": "nowhere"}}, "egress_proxy in Python"),
    ],
)
def test_a_mistake_is_named_as_its_user_wrote_it(server, network, says):
    before = server.running()
    with pytest.raises(SandboxException, match=says):
        Sandbox.create("base", network=network)
    assert server.running() == before
    with Sandbox.create("base", timeout=60) as box:
        with pytest.raises(SandboxException, match=says):
            box.update_network(network)


def test_an_update_of_a_killed_sandbox_is_not_found(server):
    box = Sandbox.create("base", timeout=60)
    box.kill()
    with pytest.raises(NotFoundException):
        box.update_network({"deny_out": [CLOSED]})


def test_the_operators_default_counts_where_the_caller_says_nothing(own_server):
    own_server.stop()
    own_server.options = ["--internet", "off"]
    own_server.start()
    for asked, is_on in (({}, False), ({"allow_internet_access": True}, True), ({"network": {}}, False)):
        box = own_server.create(**asked)
        path = f"/sandboxes/{box['sandboxID']}"
        assert own_server.api("GET", path).json["allowInternetAccess"] is is_on
        assert own_server.api("PUT", f"{path}/network", {}).status == 204
        assert own_server.api("GET", path).json["allowInternetAccess"] is False


def test_the_command_line_opens_one_sandbox_where_the_default_is_off(own_server):
    def run(*words):
        env = own_server.environment()
        return cloister(*words, data=own_server.data, stdout=subprocess.PIPE, text=True, env=env).stdout

    own_server.stop()
    own_server.options = ["--internet", "off"]
    own_server.start()
    closed, opened = run("sandbox", "create").strip(), run("sandbox", "create", "--internet").strip()
    assert re.search(r"^internet access +off$", run("sandbox", "info", closed), re.M)
    assert re.search(r"^internet access +on$", run("sandbox", "info", opened), re.M)
    assert re.search(r"^internet access +on$", run("sandbox", "network", closed, "--internet"), re.M)
    assert re.search(r"^internet access +off$", run("sandbox", "network", closed, "--reset"), re.M)


def test_the_command_line_makes_shows_and_changes_rules(server):
    def run(*words):
        return cloister(*words, data=server.data, stdout=subprocess.PIPE, text=True, env=os.environ).stdout

    box = run("sandbox", "create", "--no-internet", "--allow-out", "example.com", "--timeout", "60").strip()
    shown = run("sandbox", "info", box)
    assert re.search(r"^internet access +off$", shown, re.M) and re.search(r"^allowed out +example.com$", shown, re.M), shown
    shown = run("sandbox", "network", box, "--deny-out", CLOSED)
    assert re.search(r"^internet access +on$", shown, re.M) and re.search(rf"^denied out +{CLOSED}$", shown, re.M), shown
    assert re.search(r"^denied out +-$", run("sandbox", "network", box, "--reset"), re.M)
    assert run("sandbox", "kill", box).strip() == box


# ---- ports that expect TLS ----

SERVE_TLS = """
import http.server, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tmp/cert.pem", "/tmp/key.pem")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), http.server.SimpleHTTPRequestHandler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def test_a_service_that_expects_tls_is_reached(server):
    with Sandbox.create("base", timeout=60, network={"https_ports": [8443]}) as box:
        box.commands.run(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=mine -days 2"
            " -keyout /tmp/key.pem -out /tmp/cert.pem"
        )
        box.files.write("/tmp/site/index.html", "served by TLS")
        box.files.write("/tmp/serve.py", SERVE_TLS)
        box.commands.run("python3 /tmp/serve.py", background=True, cwd="/tmp/site")
        answer = server.edge("GET", {"sandboxID": box.sandbox_id}, "/", port=8443)
        assert (answer.status, answer.body) == (200, b"served by TLS"), answer
        assert detail(server, box)["network"]["httpsPorts"] == [8443]


def test_guestds_own_port_cannot_expect_tls(server):
    with pytest.raises(SandboxException, match="https_ports in Python"):
        Sandbox.create("base", network={"https_ports": [49983]})
