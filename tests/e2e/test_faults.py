"""Things go wrong: roles are killed, creates fail half-way, disks and ids run out. Nothing may be left or lost."""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from e2b import Sandbox
from server import Server, prepare, share_template, wait_for
from traces import inventory, rows, traces_of


def use(server, box):
    """Sandboxes made with one server's API, reached with the SDK."""
    return Sandbox.connect(box["sandboxID"], api_key=server.key, api_url=server.url, sandbox_url=server.url)


def come_back(server, seconds=20):
    """After a kill: the roles that are left restart the one that died, or all end and the operator starts again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.process.poll() is not None:
            server.start()
            return
        try:
            if server.call("GET", "/health", timeout=2).status < 300:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"the server did not come back:\n{server.log_tail()}")


# ---- creates that fail ----


def test_a_create_that_fails_leaves_nothing(own_server):
    """The template's layers are hidden for a moment, so that a start breaks half-way."""
    before = inventory(own_server)
    layers = list((own_server.data / "layers").iterdir())
    for layer in layers:
        layer.rename(layer.with_name(f"hidden-{layer.name}"))
    try:
        for _ in range(3):
            answer = own_server.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60})
            assert answer.status >= 500 and answer.json["code"] == answer.status, answer
            assert answer.headers.get("should-retry", "false") == "false"
    finally:
        for layer in layers:
            layer.with_name(f"hidden-{layer.name}").rename(layer)
    assert wait_for(lambda: inventory(own_server) == before), inventory(own_server)
    box = own_server.create()
    assert own_server.edge("GET", box, "/health").status < 300


def test_a_guestd_that_never_answers_is_a_failed_create(own_server, tmp_path):
    """The daemon put inside is a program that only sleeps."""
    source, program = tmp_path / "sleep.c", tmp_path / "cloister-guestd"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    subprocess.run(["cc", "-static", "-o", str(program), str(source)], check=True)
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    own_server.stop()
    broken = Server(own_server.data, ["--guestd", str(program)])
    broken.start()
    try:
        before = inventory(broken)
        answer = broken.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60}, timeout=60)
        assert answer.status >= 500 and answer.json["code"] == answer.status, answer
        assert wait_for(lambda: inventory(broken) == before), inventory(broken)
    finally:
        broken.stop()


def test_the_number_of_sandboxes_is_limited(own_server):
    own_server.stop()
    small = Server(own_server.data, ["--sandboxes", "2"])
    small.start()
    try:
        boxes = [small.create() for _ in range(2)]
        answer = small.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60})
        assert answer.status == 429 and answer.json["code"] == 429, answer
        assert answer.headers["should-retry"] == "false" and "retry-after" not in answer.headers
        small.api("DELETE", f"/sandboxes/{boxes[0]['sandboxID']}")
        assert small.create()
    finally:
        small.kill_all()
        small.stop()


# ---- roles that die ----


def check_alive(server, box):
    found = use(server, box)
    assert found.commands.run("cat note").stdout == "remember"
    assert box["sandboxID"] in server.running()


@pytest.fixture
def remembered(own_server):
    box = own_server.create(timeout=300, metadata={"keep": "me"})
    use(own_server, box).files.write("note", "remember")
    return box


def test_a_killed_front_comes_back_with_its_sandboxes(own_server, remembered):
    before = own_server.api("GET", f"/sandboxes/{remembered['sandboxID']}").json
    os.kill(own_server.front_pid(), signal.SIGKILL)
    come_back(own_server)
    assert own_server.api("GET", f"/sandboxes/{remembered['sandboxID']}").json == before
    check_alive(own_server, remembered)
    assert own_server.create()


def test_logs_go_on_when_front_was_killed(own_server, remembered):
    """Also what ended while there was no front: keeper is held up until then, so that it cannot start one."""
    slow = start_slow(own_server, remembered)
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        os.kill(own_server.front_pid(), signal.SIGKILL)
        assert wait_for(lambda: not slow_runs())
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    come_back(own_server)
    check_logs_went_on(own_server, remembered, slow)


def test_logs_go_on_when_keeper_was_killed(own_server, remembered):
    """Also what ended while there was no server, and after each of several restarts."""
    slow = start_slow(own_server, remembered)
    own_server.process.kill()
    own_server.process.wait()
    assert wait_for(lambda: not slow_runs())
    own_server.start()
    check_logs_went_on(own_server, remembered, slow)
    own_server.stop()
    own_server.start()
    assert use(own_server, remembered).commands.run("echo again").stdout == "again\n"
    assert wait_for(lambda: len(processes_in_log(own_server, remembered)) == 2), processes_in_log(own_server, remembered)


def processes_in_log(server, box):
    answer = server.api("GET", f"/sandboxes/{box['sandboxID']}/logs").json["logs"]
    lines = [json.loads(entry["line"]) for entry in answer]
    return [(line["event_type"], line["pid"]) for line in lines if line["logger"] == "process"]


def start_slow(server, box):
    """A command of two seconds, which is in the log; its pid."""
    slow = str(use(server, box).commands.run("exec sleep 2.0625", background=True).pid)
    assert wait_for(lambda: ("process_start", slow) in processes_in_log(server, box))
    return slow


def slow_runs():
    return any(is_sleep(path, "2.0625") for path in pathlib.Path("/proc").glob("[0-9]*"))


def check_logs_went_on(server, box, slow):
    """A new front logs the end that happened while no front ran, then later starts and ends, once each."""
    assert use(server, box).commands.run("echo after").stdout == "after\n"
    assert wait_for(lambda: len(processes_in_log(server, box)) >= 3), processes_in_log(server, box)
    found = processes_in_log(server, box)
    assert found[0] == ("process_end", slow)
    assert [kind for kind, pid in found if pid != slow] == ["process_start", "process_end"]
    assert len(found) == 3


IMPOSTOR = """
import glob, json, os, socket, struct, subprocess, sys, threading, time

def packed(text):
    return struct.pack(">I", len(text)) + text

# What the host says first: that the token is "stolen" from now on.
SETUP = packed(b"\\x01" + packed(b"x") + packed(b"x") + packed(b"stolen") + b"\\0" + packed(b"root") + packed(b"") + b"\\1" + bytes(4))
found = []

def say(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    try:
        with socket.socket(family, kind) as sock:
            sock.settimeout(0.2)
            sock.connect(address)
            sock.sendall(SETUP)
            if family == socket.AF_UNIX:
                socket.send_fds(sock, [struct.pack("=I", 1)], [sock.fileno()])
            if sock.getsockname() != sock.getpeername() and sock.recv(1):  # not the socket itself, which TCP can connect to
                found.append(f"{address} answers")
    except OSError:
        pass

def addresses(states):
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if state in states:
            for end in (local, remote):
                host, port = end.split(":")
                yield socket.inet_ntoa(struct.pack("=I", int(host, 16))), int(port, 16)

# Ports of guestd itself answer HTTP to anybody.
PUBLIC = (0, 49983, 49999)

end = float("inf")

def look():
    for address in set(addresses(("01", "0A", "02", "03"))):
        if time.monotonic() < end and address[1] not in PUBLIC and address[0] != "0.0.0.0":
            say(address)

def hold_port():
    sock = socket.socket()
    try:
        sock.bind(("0.0.0.0", 1))
    except OSError:
        return False
    sock.listen(128)
    def serve():
        while True:
            peer, where = sock.accept()
            peer.settimeout(5)
            try:
                data = peer.recv(64)
            except OSError:
                data = b""
            if data and data != SETUP[:64]:
                found.append(f"{where} says {data}")
    threading.Thread(target=serve, daemon=True).start()
    return True

for path in glob.glob("/proc/1/fd/*"):
    for look_at in (os.readlink, lambda path: os.open(path, os.O_RDONLY), lambda path: os.open(path, os.O_PATH)):
        try:
            found.append(f"{path}: {look_at(path)}")
        except PermissionError:
            pass
for line in open("/proc/net/unix").read().splitlines()[1:]:
    # The socket for handovers is in this list: it is in the sandbox's network, and its name leads to a file of the host.
    for name in line.split()[7:]:
        if "guestd" in name:
            for path in (name, name.rpartition("/")[2], "\\0" + name):
                try:
                    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path)
                    found.append(path)
                except OSError:
                    pass
libc = __import__("ctypes").CDLL(None, use_errno=True)
pidfd = os.pidfd_open(1)
for fd in range(3, 64):
    if libc.syscall(438, pidfd, fd, 0) >= 0:
        found.append(f"descriptor {fd} of guestd")
for path in subprocess.run(["find", "/", "-xdev", "-type", "s"], capture_output=True, text=True).stdout.split():
    say(path, socket.AF_UNIX, socket.SOCK_SEQPACKET)
look()
print(json.dumps(found), flush=True)
if sys.argv[1:]:
    # From now on, until the server has come back: take the port that guestlink likes, and talk to all that listens.
    end = time.monotonic() + float(sys.argv[1])
    held = False
    while time.monotonic() < end:
        held = held or hold_port()
        look()
    with open("/tmp/impostor", "w") as out:
        json.dump({"held": held, "found": found}, out)
"""


@pytest.mark.parametrize("who", ["user", "root"])
def test_nobody_inside_is_taken_for_keeper(own_server, remembered, who):
    """Nor can the port or a flood of connections keep keeper from opening a new link."""
    box = use(own_server, remembered)
    box.files.write("/tmp/impostor.py", IMPOSTOR)
    python = "sudo python3" if who == "root" else "python3"
    assert json.loads(box.commands.run(f"{python} /tmp/impostor.py").stdout) == []
    box.commands.run(f"{python} /tmp/impostor.py 12", background=True)
    bystander = own_server.create(timeout=300)
    own_server.process.kill()
    own_server.process.wait()
    time.sleep(1)
    before = time.monotonic()
    own_server.start()
    assert time.monotonic() - before < 10
    assert use(own_server, bystander).commands.run("echo here").stdout == "here\n"
    assert use(own_server, remembered).commands.run("echo after").stdout == "after\n"
    assert wait_for(lambda: len(processes_in_log(own_server, remembered)) >= 2), "its log has stopped"
    assert wait_for(lambda: len(processes_in_log(own_server, bystander)) >= 2), "its neighbour's log has stopped"
    for _ in range(3):
        os.kill(own_server.front_pid(), signal.SIGKILL)
        come_back(own_server)
    box = use(own_server, remembered)
    assert wait_for(lambda: box.files.exists("/tmp/impostor"), 30)
    assert json.loads(box.files.read("/tmp/impostor")) == {"held": True, "found": []}
    token = {"X-Access-Token": "stolen"}
    assert own_server.edge("GET", remembered, "/files?path=/etc/passwd", headers=token).status == 401


def is_sleep(path, seconds):
    try:
        return (path / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode()
    except OSError:
        return False  # it has just ended


def test_a_killed_keeper_comes_back_with_its_sandboxes(own_server, remembered):
    before = own_server.api("GET", f"/sandboxes/{remembered['sandboxID']}").json
    front = own_server.front_pid()
    own_server.process.kill()
    own_server.process.wait()
    # Front does not outlive keeper: nobody would answer it.
    assert wait_for(lambda: not pathlib.Path(f"/proc/{front}").exists() or front == own_server.pid)
    own_server.start()
    assert own_server.api("GET", f"/sandboxes/{remembered['sandboxID']}").json == before
    check_alive(own_server, remembered)
    assert own_server.create()


def test_an_orderly_stop_leaves_sandboxes_running(own_server, remembered):
    own_server.stop()
    own_server.start()
    check_alive(own_server, remembered)


def test_processes_inside_keep_running_while_the_server_is_down(own_server, remembered):
    use(own_server, remembered).commands.run(
        "nohup sh -c 'while sleep 0.1; do echo x >> ticks; done' >/dev/null 2>&1 &"
    )
    own_server.process.kill()
    own_server.process.wait()
    time.sleep(1)
    own_server.start()
    found = use(own_server, remembered)

    def ticks():
        return int(found.commands.run("wc -l < ticks").stdout)

    first = ticks()
    assert first > 1  # it has gone on for the second without a server
    assert wait_for(lambda: ticks() > first)


def test_a_deadline_that_passes_while_the_server_is_down_is_kept(own_server):
    box = own_server.create(timeout=3)
    own_server.stop()
    time.sleep(4)
    own_server.start()
    assert wait_for(lambda: box["sandboxID"] not in own_server.running())
    assert wait_for(lambda: not traces_of(own_server, box["sandboxID"])), traces_of(own_server, box["sandboxID"])


@pytest.mark.parametrize("victim", ["front", "keeper"])
@pytest.mark.parametrize("delay_ms", [0, 5, 20, 60, 150])
def test_a_kill_in_the_middle_of_creates_orphans_nothing(own_server, victim, delay_ms):
    def create():
        try:
            own_server.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60}, timeout=10)
        except Exception:
            pass  # that is what we are here for

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(delay_ms / 1000)
    os.kill(own_server.front_pid() or own_server.pid if victim == "front" else own_server.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    time.sleep(0.2)
    come_back(own_server)
    assert wait_for(lambda: set(rows(own_server)) == set(own_server.running())), (
        rows(own_server),
        own_server.running(),
    )
    known = set(own_server.running())
    for sandbox_id in known:
        box = own_server.api("GET", f"/sandboxes/{sandbox_id}").json
        assert own_server.edge("GET", box, "/health").status < 300
    own_server.kill_all()
    assert wait_for(
        lambda: not inventory(own_server)["directories"] and not inventory(own_server)["rows"]
    ), inventory(own_server)

    def groups():
        return [group for group in inventory(own_server)["cgroups"] if any(sandbox_id in group for sandbox_id in known)]

    assert wait_for(lambda: not groups()), groups()


def test_a_kill_in_the_middle_of_kills_orphans_nothing(own_server):
    boxes = [own_server.create() for _ in range(4)]

    def kill(box):
        try:
            own_server.api("DELETE", f"/sandboxes/{box['sandboxID']}", timeout=10)
        except Exception:
            pass

    threads = [threading.Thread(target=kill, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    own_server.process.kill()
    own_server.process.wait()
    for thread in threads:
        thread.join()
    own_server.start()
    for box in boxes:
        if box["sandboxID"] in own_server.running():
            assert own_server.edge("GET", box, "/health").status < 300
        else:
            assert wait_for(lambda: not traces_of(own_server, box["sandboxID"])), traces_of(
                own_server, box["sandboxID"]
            )


# ---- neighbours ----


def test_two_servers_on_one_machine_leave_each_other_alone(server, own_server, made):
    mine = server.create()
    made.append(mine["sandboxID"])
    theirs = own_server.create()
    own_server.stop()
    own_server.start()
    assert server.edge("GET", mine, "/health").status < 300
    assert own_server.edge("GET", theirs, "/health").status < 300
    assert theirs["sandboxID"] not in server.running() and mine["sandboxID"] not in own_server.running()


def rows_by_node(data):
    with sqlite3.connect(f"file:{data}/store/cloister.db?mode=ro", uri=True, timeout=10) as database:
        return dict(database.execute("select id, node_id from sandboxes"))


def copy_store(source, target):
    """While neither server runs. Its owner may read it under any name."""
    shutil.rmtree(target / "store")
    subprocess.run(["cp", "--archive", str(source / "store"), str(target / "store")], check=True)


def test_two_servers_on_copies_of_one_store_leave_each_others_rows_alone(server, own_server):
    """Each copy has rows of the other's sandboxes, and no process for them."""
    data = server.data.parent / f"{server.data.name}-copy"
    prepare(data)
    first, second = own_server, Server(data).start()
    try:
        of_first = first.create(timeout=300)["sandboxID"]
        first.stop()
        second.stop()
        copy_store(first.data, second.data)
        second.start()
        of_second = second.create(timeout=300)["sandboxID"]
        assert second.running() == [of_second]
        second.stop()
        copy_store(second.data, first.data)
        first.start()
        assert first.running() == [of_first]
        ids = [(each.data / "node-id").read_text().strip() for each in (first, second)]
        assert rows_by_node(first.data) == {of_first: ids[0], of_second: ids[1]}
        second.start()
        assert second.running() == [of_second]
        assert rows_by_node(second.data) == {of_first: ids[0], of_second: ids[1]}
    finally:
        if second.process is None:
            second.start()
        second.kill_all()
        second.stop()
        for each in (first.data, second.data):  # later runs start with what is theirs
            with sqlite3.connect(each / "store" / "cloister.db", timeout=10) as database:
                node = (each / "node-id").read_text().strip()
                database.execute("delete from sandboxes where node_id <> ?", (node,))


@pytest.mark.timeout(300)
def test_a_layer_goes_when_no_template_and_no_sandbox_has_it(own_server):
    """The template is gone first, then the sandbox that was made from it; the bytes go with the trash."""
    layers, name = own_server.data / "layers", "f" * 64
    own_server.stop()
    base = next(path for path in (own_server.data / "templates").iterdir() if "name base\n" in path.read_text())
    (layers / name).mkdir(exist_ok=True)
    (layers / name / "mark").write_text("here")
    other = base.with_name("e" * 20)
    lines = base.read_text().replace(f"id {base.name}\n", f"id {other.name}\n").replace("name base\n", "name marked\n")
    other.write_text(lines.replace("cpu_millis", f"layer {name}\ncpu_millis"))
    own_server.start()
    box = own_server.create(templateID="marked", timeout=300)
    other.write_text("damaged\n")  # one bad file: the others are there, and no layer goes
    own_server.stop()
    own_server.start()
    assert (layers / name).exists() and own_server.create()["sandboxID"]
    other.unlink()
    own_server.stop()
    own_server.start()
    assert (layers / name / "mark").exists(), "a running sandbox has it"
    assert own_server.api("POST", "/sandboxes", {"templateID": "marked"}).status == 404
    read = own_server.edge("GET", box, "/files?path=/mark")
    assert (read.status, read.body) == (200, b"here")
    own_server.api("DELETE", f"/sandboxes/{box['sandboxID']}")
    assert wait_for(lambda: not traces_of(own_server, box["sandboxID"])), traces_of(own_server, box["sandboxID"])
    own_server.stop()
    own_server.start()
    assert not (layers / name).exists()
    # All of the trash goes in turn, and slowly while there is other work: also layers of templates of earlier runs.
    assert wait_for(lambda: not (own_server.data / "trash" / name).exists(), 200)
    assert any(path.name in base.read_text() for path in layers.iterdir()), "base has kept its own"


def test_a_layer_that_no_template_has_is_not_shared(tmp_path, monkeypatch):
    """A server of the tests would remove it at each start, and the next test would make it again."""
    shared, data = tmp_path / "shared", tmp_path / "data"
    for layer in ("used", "old"):
        (shared / "layers" / layer).mkdir(parents=True)
    (shared / "templates").mkdir()
    (shared / "templates" / "t").write_text("cloister-template 1\nid t\nname base\nlayer used\ncpu_millis 1\n")
    monkeypatch.setattr("server.SHARED_DATA", shared)
    share_template(data)
    assert [path.name for path in (data / "layers").iterdir()] == ["used"]
    assert [path.name for path in (data / "templates").iterdir()] == ["t"]


def test_what_earlier_runs_have_left_goes_unless_the_directory_is_somebody_elses(tmp_path, monkeypatch):
    """The tests' own setup, which must never remove what a person keeps."""
    monkeypatch.setattr("server.share_template", lambda data: None)
    ours, theirs, mine = tmp_path / "new", tmp_path / "cloister", tmp_path / "cloister-test-x"
    prepare(ours)
    for data in (ours, theirs, mine):
        for name in ("sandboxes", "layers", "store", "mail"):
            (data / name).mkdir(parents=True, exist_ok=True)
    (mine / "test-server.log").touch()  # from before directories had a mark
    used = os.open(ours / "sandboxes", os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_EX)
    prepare(ours)
    assert (ours / "store").exists()
    os.close(used)
    for data in (ours, theirs, mine):
        prepare(data)
        assert (data / "layers").exists()
        assert (data / "sandboxes").exists()
    assert not (ours / "store").exists()
    assert not (mine / "mail").exists()
    assert (theirs / "store").exists()
    assert (theirs / "mail").exists()


def test_a_second_server_on_the_same_data_is_refused(server):
    second = Server(server.data)
    with pytest.raises(RuntimeError) as caught:
        second.start(10)
    second.stop()
    assert "ended with" in str(caught.value)


def test_whether_code_wants_a_token_survives_restarts_of_front_and_keeper(own_server):
    def execute(box):
        return own_server.edge("POST", {"sandboxID": box["sandboxID"]}, "/execute", {"code": "print(6 * 7)"}, port=49999)

    def create():
        answer = own_server.api("POST", "/sandboxes", {"templateID": "base", "timeout": 120})
        assert answer.status == 201, answer
        return answer.json

    open_one, closed = create(), own_server.create()
    assert b"42" in execute(open_one).body and execute(closed).status == 401
    os.kill(own_server.front_pid(), signal.SIGKILL)
    come_back(own_server)
    assert b"42" in execute(open_one).body and execute(closed).status == 401
    own_server.stop()
    own_server.options = ["--token-for-code", "always"]
    own_server.start()
    assert b"42" in execute(open_one).body and execute(closed).status == 401
    assert execute(create()).status == 401  # from then on
