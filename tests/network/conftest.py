"""The world for a whole run, the server in it, and clients inside and outside of a sandbox."""

import base64
import json
import os
import pathlib
import struct
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
sys.dont_write_bytecode = True

import world  # noqa: E402
from server import TEST_DATA, Server, prepare, wait_for  # noqa: E402

for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]  # of the real machine: leads out of the world


@pytest.fixture(scope="session")
def hosts():
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes network namespaces")
    made = world.World()
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Client:
    """Calls functions of guest.py somewhere."""

    def call(self, function, *arguments):
        raise NotImplementedError

    def ok(self, function, *arguments):
        result = self.call(function, *arguments)
        assert "ok" in result, f"{function}{arguments}: {result}"
        return result["ok"]

    def fails(self, function, *arguments):
        result = self.call(function, *arguments)
        assert "error" in result, f"{function}{arguments} has worked: {str(result)[:300]}"
        return result


class Plain(Client):
    """On the machine, without a sandbox."""

    def __init__(self, hosts):
        self.ca = str(hosts.ca)

    def call(self, function, *arguments):
        result = subprocess.run(
            [sys.executable, str(HERE / "guest.py"), function, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            check=True,
            timeout=100,
        )
        return json.loads(result.stdout)


@pytest.fixture(scope="session")
def plain(hosts):
    return Plain(hosts)


# ---- a server in the world, and sandboxes ----

PATIENCE_S = float(os.environ.get("CLOISTER_TEST_PATIENCE_S", "20"))
REFUSED = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "SSLEOFError", "SSLError")


class Result:
    def __init__(self, code, output, errors):
        self.code, self.stdout, self.stderr = code, output, errors

    def __repr__(self):
        return f"<exit {self.code} {self.stdout[-600:]!r} {self.stderr[-600:]!r}>"


class Box(Client):
    """A sandbox of the server under test."""

    def __init__(self, server, hosts, **fields):
        self.server, self.hosts = server, hosts
        self.row = server.create(**{"timeout": 600, **fields})
        self.id = self.row["sandboxID"]
        self.ca = "/tmp/world-ca.pem"
        self.write("/tmp/guest.py", (HERE / "guest.py").read_bytes())
        self.write(self.ca, hosts.ca.read_bytes())

    def write(self, path, data):
        answer = self.server.edge("POST", self.row, f"/files?path={path}&username=user", data,
                                  headers={"Content-Type": "application/octet-stream"})  # fmt: skip
        assert answer.status == 200, answer

    def run(self, *command, env=None, user="user", timeout=100):
        """A program and its arguments; one text is for the shell."""
        if len(command) == 1:
            command = ("/bin/bash", "-c", command[0])
        message = json.dumps({
            "process": {"cmd": command[0], "args": list(command[1:]), "envs": env or {}, "cwd": "/tmp"}, "stdin": False,
        }).encode()  # fmt: skip
        answer = self.server.edge(
            "POST",
            self.row,
            "/process.Process/Start",
            struct.pack(">BI", 0, len(message)) + message,
            headers={
                "Content-Type": "application/connect+json",
                "Connect-Protocol-Version": "1",
                "Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode(),
            },
            timeout=timeout,
        )
        assert answer.status == 200, answer
        said, code, data = {"stdout": b"", "stderr": b""}, None, answer.body
        while len(data) >= 5:
            size = struct.unpack(">I", data[1:5])[0]
            event = json.loads(data[5 : 5 + size]).get("event", {})
            data = data[5 + size :]
            for name in said:
                said[name] += base64.b64decode(event.get("data", {}).get(name, ""))
            if "end" in event:
                code = event["end"].get("exitCode", 0)
        return Result(code, said["stdout"].decode(errors="replace"), said["stderr"].decode(errors="replace"))

    def call(self, function, *arguments):
        env = {"PATIENCE_S": str(PATIENCE_S)}
        result = self.run("/usr/bin/python3", "/tmp/guest.py", function, json.dumps(arguments), env=env)
        assert result.code == 0, result
        return json.loads(result.stdout)

    def calls(self, *calls):
        """Many in one process: (function, argument…) each."""
        return self.ok("many", [[function, arguments] for function, *arguments in calls])

    def refused(self, function, *arguments):
        """It fails with an error that a program sees, at once: a timeout is not one."""
        result = self.fails(function, *arguments)
        assert result["error"] in REFUSED, result
        return result

    def log(self):
        """What the sandbox's log says, newest last."""
        answer = self.server.api("GET", f"/v2/sandboxes/{self.id}/logs?direction=forward&limit=1000")
        assert answer.status == 200, answer
        return [entry["message"] for entry in answer.json["logs"]]

    def wait_log(self, *words, seconds=PATIENCE_S):
        """The lines that have all of these words, as soon as there is one."""
        return wait_for(lambda: [line for line in self.log() if all(word in line for word in words)], seconds)

    def update(self, **fields):
        answer = self.server.api("PUT", f"/sandboxes/{self.id}/network", fields)
        assert answer.status == 204, answer

    def kill(self):
        self.server.api("DELETE", f"/sandboxes/{self.id}")


class World:
    """The server under test and the hosts around it."""

    def __init__(self, hosts, *options, data=TEST_DATA, before=None, dns=world.HOSTS["dns"]):
        prepare(data)
        self.hosts = hosts
        self.server = Server(data, [*(["--dns", f"{dns}:53"] if dns else []), *options])
        (data / "test-server.log").unlink(missing_ok=True)
        if before:
            begin = self.server.before_start
            self.server.before_start = lambda: (before(), begin())
        self.server.start()
        self.server.kill_all()
        self.shared = {}

    def box(self, **fields):
        return Box(self.server, self.hosts, **fields)

    def shared_box(self, **fields):
        """One for all tests that only look and have the same policy."""
        key = json.dumps(fields, sort_keys=True)
        if key not in self.shared:
            self.shared[key] = self.box(**fields)
        return self.shared[key]

    def role_pid(self, name):
        """The process of a role: keeper starts it as `cloister role NAME …`."""
        children = pathlib.Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        for pid in children:
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if words[1:3] == [b"role", name.encode()]:
                return int(pid)
        return None

    def stop(self):
        try:
            self.server.kill_all()
        finally:
            self.server.stop()


@pytest.fixture(scope="session")
def cloister(hosts):
    made = World(hosts, "--mail-signups-per-hour", "1000")  # all runs of an hour come from one address
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def lenient(hosts):
    """Another server, whose operator allows and denies addresses that elsewhere are not, and whose default is off."""
    made = World(hosts, "--internet", "off", "--egress-allow", f"{world.HOSTS['ten']}/32", "--egress-allow",
                 "fd00:77::/32,172.16.0.0/12", "--egress-deny", f"{world.HOSTS['two']},{world.HOSTS['two_six']}/128",
                 "--egress-deny", f"{world.HOSTS['seventeen']}/32", data=TEST_DATA.with_name(f"{TEST_DATA.name}-lenient"))  # fmt: skip
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def box(cloister):
    """A new sandbox with the default policy, ended after the test."""
    made = cloister.box()
    yield made
    made.kill()


@pytest.fixture
def make_box(cloister):
    """A function that makes sandboxes with options of create; they end after the test."""
    made = []

    def make(**fields):
        made.append(cloister.box(**fields))
        return made[-1]

    yield make
    for one in made:
        one.kill()
