"""server.py - a real server for tests, beside whatever else runs on this machine.

It has a data directory of its own, so that it cannot touch the sandboxes, keys or sockets of a server somebody uses;
only the base template is shared, by hard links, because making one takes minutes. The directory stays between runs on
purpose: sandboxes outlive every role, so those of a run that was killed are found, and ended, by the next. Its store and
its mail do not: rows and inboxes of a hundred runs make every sweep slower, until a test fails.

    CLOISTER_BUILD      where the programs are (default: build-asan, or else build)
    CLOISTER_DATA       whose base template to share; it is built there if it is missing (default: /var/lib/cloister)
    CLOISTER_TEST_DATA  the data directory of the tests (default: /var/lib/cloister-test)
    CLOISTER_E2E_DOMAIN if set: SDKs get a domain and certificates, and no URLs, so they use TLS for everything
"""

import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_DATA = pathlib.Path(os.environ.get("CLOISTER_DATA", "/var/lib/cloister"))
TEST_DATA = pathlib.Path(os.environ.get("CLOISTER_TEST_DATA", "/var/lib/cloister-test"))
ENVD_PORT = 49983
POOL = None  # for servers that do not say; None: as the program has it
PR_SET_PDEATHSIG = 1


def build_dir():
    named = os.environ.get("CLOISTER_BUILD")
    for path in [ROOT / named] if named else [ROOT / "build-asan", ROOT / "build"]:
        if (path / "src" / "daemon" / "cloister").exists():
            # Again each time: after a new link the short names still lead to the old programs.
            subprocess.run([str(ROOT / "scripts" / "link-programs.sh"), str(path)], check=True)
        if (path / "cloister").exists():
            return path
    raise RuntimeError("there is no build to test: run `make` first, or name one in CLOISTER_BUILD")


def cloister(*arguments, data=None, **options):
    command = [str(build_dir() / "cloister"), *arguments]
    if data:
        command += ["--data", str(data)]
    return subprocess.run(command, check=True, **options)


def share_template(data):
    """The base template in `data`, linked from the shared directory, where it is made first if need be.

    Only layers that a template there refers to. Older ones stay behind whenever a template is built anew, and a server
    removes at its start what nothing refers to: each start would make and delete them again, gigabytes of files.
    """
    templates = SHARED_DATA / "templates"
    if not any("name base\n" in path.read_text() for path in templates.glob("*")):
        cloister("template", "build", "base", data=SHARED_DATA)
    for name in ("layers", "templates"):
        (data / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    # A link is only good within one file system.
    link = ["--link"] if os.stat(SHARED_DATA / "layers").st_dev == os.stat(data / "layers").st_dev else []
    for layer in dict.fromkeys(layer for path in templates.iterdir() for layer in layers_of(path)):
        if not (data / "layers" / layer).exists():
            # Under another name first: a run that is killed half-way must not leave half a layer.
            half = data / "layers" / f"{layer}.half"
            shutil.rmtree(half, ignore_errors=True)
            subprocess.run(["cp", "--archive", *link, str(SHARED_DATA / "layers" / layer), str(half)], check=True)
            half.rename(data / "layers" / layer)
    for template in templates.iterdir():
        shutil.copy(template, data / "templates" / template.name)


MARK = "made-by-tests"  # in directories that are nobody else's
LEFTOVERS = ("store", "mail", "snapshots", "lobstermail-token", "multimail-key", "test-server.log")


def prepare(data):
    """For a server that begins with nothing but templates. One that somebody uses, or that is not ours, stays as it is."""
    own = not data.exists() or (data / MARK).exists()
    own = own or ("cloister-test" in data.name and (data / "test-server.log").exists())  # from before there was a mark
    if own and data.resolve() != SHARED_DATA.resolve():
        data.mkdir(mode=0o755, parents=True, exist_ok=True)
        (data / MARK).touch()
        remove_leftovers(data)
    share_template(data)


def remove_leftovers(data):
    sandboxes = data / "sandboxes"
    if not sandboxes.exists():
        return
    lock = os.open(sandboxes, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # keeper has it for as long as it runs
        for name in LEFTOVERS:
            path = data / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def layers_of(template):
    """The names in its lines 'layer NAME'."""
    lines = [line.split() for line in template.read_text().splitlines()]
    return [words[1] for words in lines if len(words) == 2 and words[0] == "layer"]


def free_port():
    """Below the ports that the kernel gives to outgoing connections: one of those could take it before the server does."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10081, lowest) if lowest > 11000 else 0  # browsers refuse 10080
        with socket.socket() as s, contextlib.suppress(OSError):  # in use
            s.bind(("127.0.0.1", port))
            return s.getsockname()[1]


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


class Server:
    def __init__(self, data=TEST_DATA, options=()):
        self.data = pathlib.Path(data)
        self.options = list(options)
        self.pool = POOL
        self.port = free_port()
        self.process = None
        self.log_dir = self.data
        self.log_path = None
        self.key = None
        self.lines = {}
        self.wrapper = []  # a command in front of the program

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def start(self, seconds=30):
        self.log_path = self.log_dir / "test-server.log"
        self.data.mkdir(mode=0o755, parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.wrapper,
                    str(build_dir() / "cloister"),
                    "serve",
                    "--data",
                    str(self.data),
                    "--listen",
                    f"127.0.0.1:{self.port}",
                    *([] if "--pool" in self.options or not self.pool else ["--pool", self.pool]),
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self.before_start,
            )
        self.wait_until_up(seconds)
        self.lines = json.loads(cloister("env", "--json", data=self.data, stdout=subprocess.PIPE, text=True).stdout)
        # Not where it was last time: a server that answers can be found.
        assert self.lines["E2B_API_URL"] == self.url, self.lines["E2B_API_URL"]
        self.key = self.lines["E2B_API_KEY"]
        return self

    def start_when_free(self, seconds=60):
        """After a run that was killed: its server may not have ended yet."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.start()
            except RuntimeError as error:
                if "another cloister uses this data directory" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.5)

    def before_start(self):
        """In the new process, before it becomes the server."""
        die_with_parent()

    def wait_until_up(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log_tail()}")
            try:
                if self.call("GET", "/health", timeout=2).status < 300:
                    return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"the server is not up after {seconds} s:\n{self.log_tail()}")

    def log_tail(self, lines=40):
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, seconds=20):
        """As an operator does. Sandboxes that are still there keep running."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def environment(self, by_domain=bool(os.environ.get("CLOISTER_E2E_DOMAIN"))):
        """The lines that a user pastes, and nothing else of E2B's."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        lines = dict(self.lines)
        if by_domain:
            del lines["E2B_API_URL"], lines["E2B_SANDBOX_URL"]
        return {**clean, **lines}

    # ---- the API, by hand ----

    def call(self, method, path, body=None, headers=None, timeout=60, host=None):
        """One request on a connection of its own; no key unless `headers` has one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body).encode()
            headers = dict(headers or {})
            if host:
                headers["Host"] = host
            connection.request(method, path, body, headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def api(self, method, path, body=None, headers=None, **options):
        return self.call(method, path, body, {"X-API-Key": self.key, **(headers or {})}, **options)

    def create(self, **fields):
        answer = self.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 120, **fields})
        assert answer.status == 201, answer
        return answer.json

    def edge(self, method, sandbox, path, body=None, port=ENVD_PORT, headers=None, **options):
        routing = {"E2b-Sandbox-Id": sandbox["sandboxID"], "E2b-Sandbox-Port": str(port)}
        if port == ENVD_PORT and sandbox.get("envdAccessToken"):
            routing["X-Access-Token"] = sandbox["envdAccessToken"]
        return self.call(method, path, body, {**routing, **(headers or {})}, **options)

    def running(self):
        answer = self.api("GET", "/v2/sandboxes?state=running,paused")
        assert answer.status == 200, answer
        return [row["sandboxID"] for row in answer.json]

    def kill_all(self):
        """Returns when nothing of them runs: a kill is answered before."""
        while ids := self.running():  # a page of them
            for sandbox_id in ids:
                answer = self.api("DELETE", f"/sandboxes/{sandbox_id}")
                assert answer.status in (204, 404), answer
            wait_for(lambda ids=ids: not any((self.data / "sandboxes" / sandbox_id).exists() for sandbox_id in ids))

    # ---- its processes ----

    def front_pid(self):
        """Whoever holds the listening socket."""
        inode = None
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1] == f"0100007F:{self.port:04X}" and fields[3] == "0A":
                inode = fields[9]
        holders = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and holds_socket(int(pid), inode)]
        others = [pid for pid in holders if pid != self.pid]
        return (others or holders or [None])[0]

    def role_pid(self, role):
        """The process of a role that keeper has started; None while there is none."""
        for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if words[1:3] == [b"role", role.encode()]:
                return int(pid)
        return None


def holds_socket(pid, inode):
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == f"socket:[{inode}]" for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False  # it has just ended


def wait_for(what, seconds=30, pause=0.05):
    """What `what` returns, as soon as it is true. The limit is for what never happens, not for what is slow."""
    end = time.monotonic() + seconds
    while True:
        result = what()
        if result or time.monotonic() > end:
            return result
        time.sleep(pause)
