"""The pool: creates take sandboxes that were started before. They must be as good as new, and nothing of it may be left."""

import concurrent.futures
import datetime
import functools
import http.client
import json
import os
import pathlib
import random
import signal
import subprocess
import threading
import time
import uuid

import pytest
from server import wait_for
from test_faults import come_back, use
from traces import inventory, rows, traces_by_id, traces_of

MOST = 6
ROLES = ["front", "keeper", "egress"]
ROUNDS = 4  # each with a moment of its own
OFF = "Internet access is off for this sandbox"  # in files of a sandbox that has none


def figures(server):
    token = (server.data / "admin-token").read_text().strip()
    answer = server.call("GET", "/admin/pool", headers={"X-Admin-Token": token})
    assert answer.status == 200, answer
    return answer.json


def kill(server, box):
    assert server.api("DELETE", f"/sandboxes/{box['sandboxID']}").status == 204


def fill(server):
    """`base` is expected at the start: as many wait as are kept at least."""
    assert wait_for(lambda: figures(server)["ready"] >= 2), figures(server)


def taken(server, **fields):
    """A sandbox from the pool. If none of its kind waits yet, a later create finds one."""

    def take():
        before = figures(server)["taken"]
        box = server.create(**fields)
        if figures(server)["taken"] == before + 1:
            return box
        kill(server, box)

    box = wait_for(take, pause=0.2)
    assert box, figures(server)
    return box


def waiting(server):
    """Ids that keeper has and the API does not know."""
    directories = {entry.name for entry in (server.data / "sandboxes").iterdir()}
    return directories - set(rows(server))


def test_the_operator_sees_it_and_nobody_else_does(pool_server):
    fill(pool_server)
    shown = figures(pool_server)
    assert shown["most"] == MOST and shown["missed"] == 0 and shown["taken"] == 0, shown
    assert pool_server.api("GET", "/admin/pool").status in (401, 403)
    assert pool_server.running() == []
    for sandbox_id in waiting(pool_server):
        assert pool_server.api("GET", f"/sandboxes/{sandbox_id}").status == 404
        assert pool_server.api("DELETE", f"/sandboxes/{sandbox_id}").status == 404
        answer = pool_server.edge("GET", {"sandboxID": sandbox_id}, "/health")
        assert answer.status == 502, answer


def test_what_waits_serves_nobody(pool_server):
    """guestd has no token yet: it must refuse everything until it has one. It is asked from inside its own network."""
    fill(pool_server)
    for sandbox_id in waiting(pool_server):
        processes = [line.split()[1] for line in traces_of(pool_server, sandbox_id) if line.startswith("process: ")]
        ask = (
            "import http.client as h; c = h.HTTPConnection('127.0.0.1', 49983, timeout=10);"
            "c.request('GET', '/files?path=/etc/passwd'); print(c.getresponse().status)"
        )
        done = subprocess.run(
            ["nsenter", "--net", f"--target={processes[0]}", "python3", "-c", ask], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "503", done.stdout


def test_one_from_the_pool_is_as_one_made_for_the_call(pool_server):
    fill(pool_server)
    box = taken(pool_server, envVars={"FROM_CREATE": "yes"}, metadata={"who": "me"}, timeout=77)
    events = pool_server.api("GET", f"/events/sandboxes/{box['sandboxID']}").json
    assert [event["type"].rsplit(".", 1)[1] for event in events] == ["created"], events
    sandbox = use(pool_server, box)
    assert sandbox.commands.run("echo $FROM_CREATE $E2B_SANDBOX_ID").stdout.split() == ["yes", box["sandboxID"]]
    assert sandbox.commands.run("id -un; pwd").stdout.split() == ["user", "/home/user"]
    described = pool_server.api("GET", f"/sandboxes/{box['sandboxID']}").json
    assert described["metadata"] == {"who": "me"}
    assert pool_server.edge("GET", {**box, "envdAccessToken": "wrong"}, "/files?path=/etc/passwd").status == 401
    kill(pool_server, box)
    assert wait_for(lambda: not traces_of(pool_server, box["sandboxID"])), traces_of(pool_server, box["sandboxID"])


# Runs as root in a sandbox. First it prints what a guest can see of others, then it leaves a mark wherever it can.
LIFE = r"""
import ctypes, hashlib, json, mmap, os, pwd, signal, socket, subprocess, sys, time

mark, name = sys.argv[1], "left-of-a-life"
KEY, CREATE = 0x436c6f69, 0o1666  # of System V's objects: the same in each life
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError as error:
        return os.strerror(error.errno)


def call(function, *arguments):
    return os.strerror(ctypes.get_errno()) if function(*arguments) == -1 else "there"


def connect(address):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        return "there"
    except OSError as error:
        return os.strerror(error.errno)


def listening(path):
    lines = [line.split() for line in read(path).splitlines()[1:]]
    return sorted(words[1] for words in lines if words[3:4] in (["0A"], ["07"]))


def walk():
    users, named, foreign, etc = {user.pw_uid for user in pwd.getpwall()}, [], [], {}
    for top, directories, files in os.walk("/"):
        if top == "/":
            directories[:] = [entry for entry in directories if entry not in ("proc", "sys")]
        for entry in directories + files:
            path = os.path.join(top, entry)
            found = os.lstat(path)
            if name in entry:
                named.append(path)
            if found.st_uid not in users:
                foreign.append(path)
            if path.startswith("/etc/") and entry in files:
                etc[path] = hashlib.sha256(read(path).encode()).hexdigest()
    return named, foreign, etc


def is_fresh():
    with open("/tmp/fresh", "wb+") as file:
        os.posix_fallocate(file.fileno(), 0, 8 << 20)
        empty = not file.read().strip(b"\0")
    os.unlink("/tmp/fresh")
    return empty and not mmap.mmap(-1, 8 << 20).read().strip(b"\0")


named, foreign, etc = walk()
same = {
    "files of another life": named,
    "files of unknown users": foreign,
    "files in /etc": etc,
    "shared memory": call(libc.shmget, KEY, 0, 0),
    "semaphores": call(libc.semget, KEY, 0, 0),
    "queue": call(libc.msgget, KEY, 0),
    "posix queue": call(libc.mq_open, f"/{name}".encode(), os.O_RDONLY),
    "sysv": [len(read(f"/proc/sysvipc/{kind}").splitlines()) for kind in ("shm", "sem", "msg")],
    "abstract socket": connect(f"\0{name}"),
    "sockets": [listening(f"/proc/net/{kind}") for kind in ("tcp", "tcp6", "udp", "udp6")],
    "routes": [sorted(read(f"/proc/net/{kind}").splitlines()) for kind in ("route", "arp", "if_inet6", "ip_tables_names")],
    "addresses": sorted({line.strip() for line in read("/proc/net/fib_trie").splitlines() if "+--" not in line}),
    "mounts": sorted(line.split()[4] for line in read("/proc/self/mountinfo").splitlines()),
    "keys": read("/proc/keys"),
    "fresh memory and files are zero": is_fresh(),
}
processes = {pid: [read(f"/proc/{pid}/cmdline"), read(f"/proc/{pid}/environ")] for pid in os.listdir("/proc") if pid.isdigit()}
seen = {
    "hostname": socket.gethostname(),
    "boot id": read("/proc/sys/kernel/random/boot_id"),
    "entropy": os.urandom(16).hex(),
    "uid map": read("/proc/self/uid_map").split(),
    "began": int(read("/proc/1/stat").rsplit(")", 1)[1].split()[19]),
    "unix sockets": read("/proc/net/unix"),
    "processes": processes,
    "environment": dict(os.environ),
    "crontab": subprocess.run("crontab -l; at -l", shell=True, capture_output=True, text=True).stdout,
}

# The marks.
left, refused = [], []


def leave(what, function):
    try:
        function()
        left.append(what)
    except (OSError, subprocess.CalledProcessError):
        refused.append(what)


def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def write(path):
    with open(path, "w") as file:
        file.write(mark + "\n")


def share():
    identity = check(libc.shmget(KEY, 4096, CREATE))
    ctypes.memmove(libc.shmat(identity, None, 0), mark.encode(), len(mark))


def owned_by(uid):
    path = f"/home/user/{name}-{uid}"
    write(path)
    os.chown(path, uid, uid)


def stay():
    # A process with a timer, a socket without a file and the mark in its arguments. Nothing but the end of the sandbox ends it.
    if os.fork() == 0:
        os.setsid()
        for signal_number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signal_number, signal.SIG_IGN)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0{name}")
        listener.listen()
        for fd in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        signal.signal(signal.SIGALRM, lambda *_: write(f"/tmp/{name}-tick"))
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        while True:
            signal.pause()


for place in "/ /tmp /home/user /root /run /dev/shm /var/tmp /var/lib /var/spool /usr/local/bin /etc".split():
    leave(place, lambda: write(f"{place}/{name}"))
for uid in (1, 1000, 4321, 65533):
    leave(f"a file of user {uid}", lambda: owned_by(uid))
leave("shared memory", share)
leave("semaphores", lambda: check(libc.semget(KEY, 3, CREATE)))
leave("queue", lambda: check(libc.msgget(KEY, CREATE)))
leave("posix queue", lambda: check(libc.mq_open(f"/{name}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)))
leave("hostname", lambda: socket.sethostname(mark[:8]))
leave("process", stay)
leave("route", lambda: subprocess.run(["ip", "route", "add", "198.51.100.0/24", "dev", "lo"], check=True, capture_output=True))
leave("address", lambda: subprocess.run(["ip", "address", "add", "198.51.100.1/32", "dev", "lo"], check=True, capture_output=True))
print(json.dumps({"same": same, "seen": seen, "left": left, "refused": refused}))
"""


def host_ticks():
    return float(pathlib.Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")


def one_life(server, mark, has_network):
    """What a sandbox from the pool sees. It is killed with everything it has left."""
    began = time.time()
    box = taken(server, envVars={"SECRET": mark}, metadata={"life": mark}, allow_internet_access=has_network)
    events = server.api("GET", f"/events/sandboxes/{box['sandboxID']}").json
    assert [event["type"].rsplit(".", 1)[1] for event in events] == ["created"], events
    sandbox = use(server, box)
    sandbox.files.write("/tmp/life.py", LIFE)
    life = json.loads(sandbox.commands.run(f"python3 /tmp/life.py {mark}", user="root", timeout=60).stdout)
    life["seen"].update(
        logs=server.api("GET", f"/v2/sandboxes/{box['sandboxID']}/logs").json,
        events=events,
        described=server.api("GET", f"/sandboxes/{box['sandboxID']}").json,
        pip=sandbox.commands.run("cat /etc/pip.conf /etc/resolv.conf; true").stdout,
    )
    metrics = server.api("GET", f"/sandboxes/{box['sandboxID']}/metrics").json
    assert all(entry["timestampUnix"] >= int(began) for entry in metrics), metrics
    life.update(box=box, mark=mark, end_asked=host_ticks())
    kill(server, box)
    return life


def test_nothing_of_one_life_is_seen_by_the_next(pool_server):
    """Each life looks for traces of the others, then leaves as many as it can. Every other one has no network."""
    fill(pool_server)
    secret, lives = uuid.uuid4().hex, []
    for nth in range(6):
        assert wait_for(lambda: figures(pool_server)["ready"])
        lives.append(one_life(pool_server, f"{secret}-{nth}-", nth % 2 == 1))
    for nth, life in enumerate(lives):
        text = json.dumps([life["same"], life["seen"]])
        assert text.count(secret) == text.count(life["mark"]) > 0, text
        assert life["same"] == lives[nth % 2]["same"]
        assert (OFF in life["seen"]["pip"]) == (nth % 2 == 0), life["seen"]["pip"]
        assert life["same"]["files of another life"] == [] and life["same"]["fresh memory and files are zero"], life
        # It must have left something, or the next could not have seen it.
        must = {"/tmp", "/dev/shm", "a file of user 4321", "shared memory", "semaphores", "queue", "process"}
        assert must <= {*life["left"]}, life
        others = [other for other in lives if other is not life]
        for own in ("boot id", "entropy"):
            assert life["seen"][own] not in [other["seen"][own] for other in others]
        for own in ("sandboxID", "envdAccessToken"):
            assert life["box"][own] not in [other["box"][own] for other in others]
        # Ids of users outside are used again, but only when nothing that had them runs any more.
        for earlier in [other for other in lives[:nth] if other["seen"]["uid map"] == life["seen"]["uid map"]]:
            assert life["seen"]["began"] >= int(earlier["end_asked"]), (life["seen"], earlier["seen"])
    assert wait_for(lambda: not {life["box"]["sandboxID"] for life in lives} & set(traces_by_id(pool_server)))


def test_ids_of_users_are_used_again_and_find_no_files_of_others(pool_server):
    """The lowest free ids are taken, so a later sandbox has those of an earlier one. Other servers on this machine use some."""
    without_pool(pool_server)
    used = []
    for _ in range(10):
        box = pool_server.create()
        sandbox = use(pool_server, box)
        ids = sandbox.commands.run("cat /proc/self/uid_map").stdout.split()
        there = sandbox.commands.run("ls -lan / /tmp /home/user /dev/shm", user="root").stdout
        assert " 4321 " not in there and "mine" not in there, there
        if ids in used:
            break
        used.append(ids)
        sandbox.commands.run("for at in / /tmp /home/user /dev/shm; do echo x >$at/mine; chown 4321 $at/mine; done", user="root")
        kill(pool_server, box)
        assert wait_for(lambda: not traces_by_id(pool_server)), traces_by_id(pool_server)
    else:
        raise AssertionError(f"no ids were used twice: {used}")


def test_a_token_of_one_life_opens_no_other(pool_server):
    first, second = taken(pool_server), taken(pool_server)
    path = "/files?path=/etc/passwd"
    for box, other in ((first, second), (second, first)):
        assert pool_server.edge("GET", box, path).status == 200
        assert pool_server.edge("GET", {**box, "envdAccessToken": other["envdAccessToken"]}, path).status == 401
    kill(pool_server, first)
    third = taken(pool_server)
    assert pool_server.edge("GET", {**third, "envdAccessToken": first["envdAccessToken"]}, path).status == 401
    assert pool_server.edge("GET", first, path).status == 502


def test_a_deadline_of_one_life_ends_no_other(pool_server):
    """Nor does the time in the pool count: a sandbox begins with its create."""
    fill(pool_server)
    time.sleep(2)  # in the pool
    asked = time.time()
    first = taken(pool_server, timeout=3)
    kill(pool_server, first)
    second = taken(pool_server, timeout=60)
    described = pool_server.api("GET", f"/sandboxes/{second['sandboxID']}").json
    started, ends = (datetime.datetime.fromisoformat(described[field]).timestamp() for field in ("startedAt", "endAt"))
    assert started >= int(asked) and 59 <= ends - started <= 61, (asked, started, ends)
    time.sleep(max(0, asked + 6 - time.time()))
    assert pool_server.running() == [second["sandboxID"]]
    assert use(pool_server, second).commands.run("echo lives").stdout == "lives\n"


def test_metrics_begin_with_the_sandbox(pool_server):
    """The first one takes much memory, the second none of it."""

    def memory(box):
        """Of each sample."""
        samples = pool_server.api("GET", f"/sandboxes/{box['sandboxID']}/metrics").json
        assert all(sample["timestampUnix"] >= int(asked) for sample in samples), (asked, samples)
        return [sample["memUsed"] for sample in samples]

    fill(pool_server)
    asked = time.time()
    first = taken(pool_server)
    use(pool_server, first).commands.run("python3 -c 'import time; much = b\"x\" * 200_000_000; time.sleep(60)'", background=True)
    assert wait_for(lambda: max(memory(first), default=0) > 200e6), memory(first)
    kill(pool_server, first)
    asked = time.time()
    second = taken(pool_server)
    assert wait_for(lambda: memory(second)), "no metrics"
    assert max(memory(second)) < 100e6, memory(second)


def test_a_stop_leaves_nothing_of_the_pool(pool_server):
    kept = pool_server.create()
    fill(pool_server)
    assert waiting(pool_server)
    pool_server.stop()
    assert wait_for(lambda: waiting(pool_server) == set()), waiting(pool_server)
    pool_server.start()
    assert pool_server.running() == [kept["sandboxID"]]
    assert "left over" not in pool_server.log_tail(30)


def end_role(server, role):
    pid = server.pid if role == "keeper" else server.role_pid(role)
    if pid:  # or it has just ended
        os.kill(pid, signal.SIGKILL)
    if role == "keeper":
        server.process.wait(20)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_that_is_killed_during_a_refill_leaves_nothing(pool_server, role):
    kept = pool_server.create()
    for _ in range(4):
        for _ in range(4):  # so that refills are under way
            kill(pool_server, pool_server.create())
        end_role(pool_server, role)
        come_back(pool_server)
    pool_server.stop()
    assert wait_for(lambda: waiting(pool_server) == set()), waiting(pool_server)
    pool_server.start()
    assert pool_server.running() == [kept["sandboxID"]]
    sandbox = use(pool_server, kept)
    assert sandbox.commands.run("echo lives").stdout == "lives\n"
    pool_server.kill_all()
    assert wait_for(lambda: not any("cloister" not in line for line in inventory(pool_server)["directories"]))


class Clients:
    """What clients were told, by sandbox. A call that was cut says nothing: its sandbox may be there or not."""

    def __init__(self, server):
        self.server = server
        self.alive = {}  # created and never asked to end
        self.gone = set()  # killed, and the server has said so
        self.wrong = []

    def call(self, *words):
        try:
            return self.server.api(*words, timeout=20)
        except (OSError, http.client.HTTPException):
            return None

    def create(self):
        answer = self.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600})
        if answer and answer.status == 201:
            self.alive[answer.json["sandboxID"]] = answer.json
        return answer and answer.status == 201

    def kill(self, sandbox_id):
        del self.alive[sandbox_id]
        answer = self.call("DELETE", f"/sandboxes/{sandbox_id}")
        if answer and answer.status == 204:
            self.gone.add(sandbox_id)
        elif answer and answer.status == 404:
            self.wrong.append(f"{sandbox_id} was lost before its kill")

    def check(self):
        """Those that are not to be gone answer, those that are gone are so for the API at once, and for the host soon."""
        server = self.server
        assert not self.wrong, self.wrong
        running = set(server.running())
        assert not running & self.gone, running & self.gone
        assert set(self.alive) <= running, set(self.alive) - running
        for box in self.alive.values():
            assert wait_for(lambda: server.edge("GET", box, "/files?path=/etc/passwd").status == 200), box
        assert wait_for(lambda: not self.gone & set(traces_by_id(server))), traces_by_id(server)
        assert not self.gone & set(server.running())


def has_nothing(server):
    """For a server without a pool."""
    return not traces_by_id(server) and not any((server.data / "trash").iterdir())


def without_pool(server):
    server.stop()
    server.options = ["--pool", "off"]
    server.start()
    server.kill_all()
    assert wait_for(lambda: has_nothing(server)), traces_by_id(server)
    return inventory(server)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("moment", ["take", "kill", "recycle"])
def test_a_role_that_is_killed_loses_no_sandbox_and_leaves_none(pool_server, moment, role):
    """While creates take sandboxes from the pool, while kills are asked for, and while what was killed is cleared away."""
    server, options = pool_server, pool_server.options
    before = without_pool(server)
    server.stop()
    server.options = options
    server.start()
    clients = Clients(server)
    for nth in range(ROUNDS):
        chance = random.Random(f"{moment} {role} {nth}")
        for _ in range(0 if moment == "take" else 8):
            assert wait_for(clients.create), server.log_tail()
        fill(server)
        doomed = chance.sample(sorted(clients.alive), 0 if moment == "take" else 6)
        jobs = [functools.partial(clients.kill, sandbox_id) for sandbox_id in doomed] or [clients.create] * 8
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as threads:
            done = [threads.submit(job) for job in jobs]
            if moment == "recycle":
                concurrent.futures.wait(done)
            time.sleep(chance.uniform(0, 0.6 if moment == "recycle" else 0.1))
            end_role(server, role)
            for job in done:
                job.result()
        come_back(server)
        clients.check()
    server.stop()
    server.start()
    clients.check()
    clients.gone |= set(clients.alive)
    clients.alive.clear()
    assert without_pool(server) == before
    clients.check()


def test_a_new_egress_serves_what_waits(pool_server):
    """Its sockets are given to the next egress, and the policy of the create that takes one reaches it."""
    fill(pool_server)
    egress = pool_server.role_pid("egress")
    os.kill(egress, signal.SIGKILL)
    assert wait_for(lambda: pool_server.role_pid("egress") not in (None, egress))
    box = taken(pool_server, allow_internet_access=False)
    out = use(pool_server, box).commands.run(
        "python3 -c 'import socket; s = socket.create_connection((\"192.0.2.1\", 80), 5); print(s.recv(1))' 2>&1 || true"
    ).stdout
    assert "Error" in out and "timed out" not in out, out
    assert wait_for(lambda: "192.0.2.1" in json.dumps(pool_server.api("GET", f"/v2/sandboxes/{box['sandboxID']}/logs").json))


def build(server, name, text):
    made = server.api("POST", "/v3/templates", {"name": name, "cpuCount": 1, "memoryMB": 512}).json
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    steps = [{"type": "RUN", "args": [f"echo {text} > /srv/text", "root"]}]
    answer = server.api("POST", f"/v2{path}", {"fromTemplate": "base", "steps": steps})
    assert answer.status == 202, answer

    def is_ready():
        state = server.api("GET", f"{path}/status").json
        assert state["status"] != "error", state
        return state["status"] == "ready"

    assert wait_for(is_ready, seconds=120)
    return made["templateID"]


def test_a_template_that_is_built_again_or_deleted_is_not_given_out(pool_server):
    name = f"pool-{uuid.uuid4().hex[:8]}"
    template = build(pool_server, name, "one")
    for _ in range(2):
        box = taken(pool_server, templateID=name)
        assert use(pool_server, box).files.read("/srv/text") == "one\n"
        kill(pool_server, box)
    kinds = figures(pool_server)["kinds"]

    assert build(pool_server, name, "two") == template
    for _ in range(3):
        box = pool_server.create(templateID=name)
        assert use(pool_server, box).files.read("/srv/text") == "two\n"
        kill(pool_server, box)
    assert wait_for(lambda: figures(pool_server)["kinds"] == kinds), figures(pool_server)  # none waits for the old one

    assert pool_server.api("DELETE", f"/templates/{template}").status in (200, 204)
    assert pool_server.api("POST", "/v2/sandboxes", {"templateID": name}).status == 404
    assert wait_for(lambda: figures(pool_server)["kinds"] == kinds - 1), figures(pool_server)


def test_a_template_that_changes_during_creates_is_not_given_out_afterwards(pool_server):
    """Clients create from it all the time. What counts is when a create was asked for."""
    name = f"pool-{uuid.uuid4().hex[:8]}"
    template = build(pool_server, name, "one")
    kill(pool_server, taken(pool_server, templateID=name))
    found, is_over = [], threading.Event()

    def ask():
        while not is_over.is_set():
            asked, text = time.monotonic(), None
            answer = pool_server.api("POST", "/v2/sandboxes", {"templateID": name, "timeout": 60})
            if answer.status == 201:
                text = pool_server.edge("GET", answer.json, "/files?path=/srv/text").body.decode().strip()
                kill(pool_server, answer.json)
            found.append((asked, answer.status, text))
            time.sleep(random.uniform(0, 0.2))

    def delete():
        """Refused while one of its sandboxes runs."""
        return pool_server.api("DELETE", f"/templates/{template}").status in (200, 204)

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        try:
            asking = [threads.submit(ask) for _ in range(3)]
            assert build(pool_server, name, "two") == template
            built = time.monotonic()
            time.sleep(1)
            deleting = time.monotonic()
            assert wait_for(delete, pause=0.01)
            deleted = time.monotonic()
            time.sleep(1)
        finally:
            is_over.set()
        for job in asking:
            job.result()
    during = [(status, text) for asked, status, text in found if asked < built]
    after = [(status, text) for asked, status, text in found if built <= asked < deleting]
    at_the_end = [(status, text) for asked, status, text in found if deleting <= asked < deleted]
    gone = [(status, text) for asked, status, text in found if deleted <= asked]
    assert (201, "one") in during and set(during) <= {(201, "one"), (201, "two")}, set(during)
    assert set(after) == {(201, "two")}, set(after)
    assert set(at_the_end) <= {(201, "two"), (404, None)}, set(at_the_end)
    assert set(gone) == {(404, None)}, set(gone)


def test_it_can_be_off(pool_server):
    pool_server.stop()
    pool_server.options = ["--pool", "off"]
    pool_server.start()
    for _ in range(3):
        kill(pool_server, pool_server.create())
    shown = figures(pool_server)
    assert shown["most"] == 0 and shown["ready"] == 0 and shown["made"] == 0, shown
    assert wait_for(lambda: waiting(pool_server) == set())


def run_cell(server, box, code):
    answer = server.edge("POST", box, "/execute", {"code": code, "language": "python"}, port=49999,
                         headers={"X-Access-Token": box["envdAccessToken"], "Content-Type": "application/json"})
    assert answer.status == 200, answer
    lines = [json.loads(line) for line in answer.body.splitlines() if line]
    return "".join(line["text"] for line in lines if line["type"] == "stdout")


def test_after_code_was_run_an_interpreter_waits_in_each(pool_server):
    """It gets the environment of the create that takes its sandbox, and shares nothing with the others."""
    fill(pool_server)
    assert figures(pool_server)["withInterpreter"] == 0
    box = pool_server.create()
    assert run_cell(pool_server, box, "print(6 * 7)") == "42\n"
    kill(pool_server, box)
    if not wait_for(lambda: figures(pool_server)["withInterpreter"] >= 2, seconds=60):
        pytest.skip("no warm interpreters on this machine: its kernel is older than 6.3, or doctor says why")
    numbers = []
    authority = "import os; print(os.path.exists('/etc/ssl/certs/cloister-authority.pem'))"
    for life in range(3):
        assert wait_for(lambda: figures(pool_server)["withInterpreter"] >= 1)
        box = taken(pool_server, envVars={"LIFE": f"life {life}"})
        # guestd writes to /etc while the interpreter gets ready, and the code must run after that.
        assert run_cell(pool_server, box, authority) == "True\n"
        contexts = pool_server.edge("GET", box, "/contexts", port=49999, headers={"X-Access-Token": box["envdAccessToken"]})
        assert contexts.json[0]["language"] == "python", contexts.json
        assert run_cell(pool_server, box, "import os; print(os.environ['LIFE'], 'left' in globals())") == f"life {life} False\n"
        numbers.append(run_cell(pool_server, box, "import random, uuid; left = 1; print(random.random(), uuid.uuid4())"))
        kill(pool_server, box)
    assert len(set(numbers)) == 3, numbers
