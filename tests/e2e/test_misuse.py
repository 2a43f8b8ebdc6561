"""What a careless or unlucky client does to one sandbox: each has its documented error, and leaves the sandbox healthy."""

import json
import pathlib
import socket
import struct

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    RateLimitException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from server import ENVD_PORT, wait_for

LONG_NAME = "x" * 256
LONG_PATH = "/tmp/" + "/".join(["d" * 200] * 30)
WATCHERS = 1000
NOISE = 20000  # files
OCTETS = {"Content-Type": "application/octet-stream"}
OUTPUT_BYTES = 10 << 30
# guestd's own, whatever it is told to hold; its caps add up to about as much, and a gigabyte would be no cap.
GUESTD_MOST_BYTES = 256 << 20


@pytest.fixture(scope="module")
def box(server):
    """One sandbox for all of this, so that what one test breaks the next one feels."""
    made = Sandbox.create(timeout=900)
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def healthy(box):
    yield
    assert box.commands.run("echo healthy").stdout == "healthy\n"
    box.files.write("/tmp/healthy", "yes")
    assert box.files.read("/tmp/healthy") == "yes"


def as_made(box):
    """What an API answer says of it, for calls by hand."""
    return {"sandboxID": box.sandbox_id, "envdAccessToken": box._envd_access_token}


def rpc(server, box, name, message):
    return server.edge("POST", as_made(box), f"/{name}", message, headers={"Content-Type": "application/json"})


def guestd_peak_bytes(box):
    """The most that guestd itself has ever had in memory."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and box.sandbox_id in (entry / "cgroup").read_text():
                status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
                if status["NSpid"].split()[-1] == "1":
                    return int(status["VmHWM"].split()[0]) << 10
        except OSError:
            pass  # it has just ended
    raise AssertionError("guestd is not there")


# ---- paths ----


@pytest.mark.parametrize("path", ["/tmp/" + LONG_NAME, LONG_PATH, "/tmp/zero\0byte"])
def test_paths_that_no_file_can_have_are_invalid(box, path):
    for call in (box.files.read, box.files.list, box.files.get_info, box.files.remove, box.files.make_dir):
        with pytest.raises((InvalidArgumentException, NotFoundException, SandboxException)) as caught:
            call(path)
        assert not isinstance(caught.value, TimeoutException), caught.value
    with pytest.raises(SandboxException):
        box.files.write(path, "x")
    with pytest.raises(SandboxException):
        box.files.rename("/tmp/healthy", path)


def test_text_that_is_not_utf8_is_an_invalid_argument(server, box):
    for name in ("filesystem.Filesystem/Stat", "process.Process/SendInput"):
        answer = rpc(server, box, name, b'{"path":"\xff\xfe","process":{"pid":1}}')
        assert answer.status == 400 and answer.json["code"] == "invalid_argument", answer
    # A name is bytes to Linux; what is said about it must be JSON all the same.
    answer = server.edge("POST", as_made(box), "/files?path=/tmp/%ff%fe", b"x", headers=OCTETS)
    assert answer.status in (200, 400), answer
    assert isinstance(answer.json, (dict, list))
    assert isinstance(box.files.list("/tmp"), list)


def test_directories_and_files_are_not_taken_for_each_other(box):
    box.files.make_dir("/tmp/directory")
    box.files.write("/tmp/file", "x")
    for call in (
        lambda: box.files.read("/tmp/directory"),
        lambda: box.files.write("/tmp/directory", "x"),
        lambda: box.files.list("/tmp/file"),
        lambda: box.files.make_dir("/tmp/file"),
        lambda: box.files.write("/tmp/file/below", "x"),
        lambda: box.files.watch_dir("/tmp/file"),
    ):
        with pytest.raises((InvalidArgumentException, SandboxException)):
            call()
    assert box.files.read("/tmp/file") == "x"


# ---- commands ----


def test_a_deleted_working_directory_is_said(box):
    box.commands.run("mkdir /tmp/gone")
    handle = box.commands.run("cd /tmp/gone && rmdir /tmp/gone && sleep 1 && echo still", background=True)
    assert handle.wait().stdout == "still\n"
    with pytest.raises(InvalidArgumentException) as caught:
        box.commands.run("true", cwd="/tmp/gone")
    assert "cwd '/tmp/gone' does not exist" in str(caught.value)


def test_an_unknown_user_is_refused_everywhere(box):
    for call in (
        lambda: box.commands.run("true", user="nobody-such"),
        lambda: box.files.read("/etc/hostname", user="nobody-such"),
        lambda: box.files.write("/tmp/x", "x", user="nobody-such"),
        lambda: box.files.list("/", user="nobody-such"),
    ):
        with pytest.raises(AuthenticationException):
            call()


def test_a_process_that_ignores_sigterm_is_killed(server, box):
    handle = box.commands.run("trap '' TERM; touch /tmp/deaf; while :; do sleep 0.1; done", background=True)
    assert wait_for(lambda: box.files.exists("/tmp/deaf"))
    selector = {"process": {"pid": handle.pid}}
    assert rpc(server, box, "process.Process/SendSignal", {**selector, "signal": "SIGNAL_SIGTERM"}).status == 200
    assert box.commands.run(f"kill -0 {handle.pid} && echo there").stdout == "there\n"
    assert box.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException):
        handle.wait()
    assert box.commands.run(f"kill -0 {handle.pid} 2>/dev/null || echo gone").stdout == "gone\n"


def test_input_to_a_dead_process_is_an_error(box):
    handle = box.commands.run("read x; exit 3", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "go\n")
    with pytest.raises(CommandExitException):
        handle.wait()
    with pytest.raises((NotFoundException, SandboxException)):
        box.commands.send_stdin(handle.pid, "late\n")
    assert box.commands.kill(handle.pid) is False
    # One that lives and has closed its input takes none either, and says so.
    handle = box.commands.run("exec <&-; echo closed; sleep 60", background=True, stdin=True)
    wait_for(lambda: box.commands.run(f"readlink /proc/{handle.pid}/fd/0 || true").stdout == "")
    with pytest.raises(SandboxException):
        box.commands.send_stdin(handle.pid, "nobody reads this\n")
    handle.kill()


@pytest.mark.timeout(400)
def test_ten_gigabytes_of_output_take_bounded_memory(box):
    handle = box.commands.run(f"head -c {OUTPUT_BYTES} /dev/zero; echo; echo the end; exit 7", background=True, timeout=0)
    pid = handle.pid
    handle.disconnect()  # nobody watches: the oldest output goes, and the process never waits
    assert wait_for(lambda: pid not in [p.pid for p in box.commands.list()], 300, pause=0.5)
    with pytest.raises(CommandExitException) as caught:
        box.commands.connect(pid).wait()
    assert caught.value.exit_code == 7 and caught.value.stdout.endswith("\nthe end\n")
    assert len(caught.value.stdout) <= 4 << 20
    assert guestd_peak_bytes(box) < GUESTD_MOST_BYTES


def test_a_client_that_does_not_read_makes_the_command_wait_in_bounded_memory(server, box):
    message = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", "yes"]}, "tag": "flood"}).encode()
    body = struct.pack(">BI", 0, len(message)) + message
    head = (
        "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\n"
        f"E2b-Sandbox-Id: {box.sandbox_id}\r\nE2b-Sandbox-Port: {ENVD_PORT}\r\n"
        f"X-Access-Token: {box._envd_access_token}\r\nContent-Type: application/connect+json\r\n"
        f"Connect-Protocol-Version: 1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    clients = []
    for _ in range(8):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(head.encode() + body)
        clients.append(client)
    assert wait_for(lambda: len([p for p in box.commands.list() if p.tag == "flood"]) == 8)
    assert box.commands.run("sleep 2; echo others go on").stdout == "others go on\n"
    for client in clients:
        client.close()
    for process in box.commands.list():
        if process.tag == "flood":
            box.commands.kill(process.pid)
    assert guestd_peak_bytes(box) < GUESTD_MOST_BYTES


# ---- files ----


@pytest.mark.parametrize("kind", ["multipart", "octet-stream"])
def test_a_client_that_vanishes_in_an_upload_leaves_no_half_file(server, box, kind):
    path = f"/tmp/half-{kind}"
    boundary = "b0undary"
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="half"\r\n\r\n'
    kinds = {"multipart": f"multipart/form-data; boundary={boundary}", "octet-stream": "application/octet-stream"}
    head = (
        f"POST /files?path={path} HTTP/1.1\r\nHost: x\r\n"
        f"E2b-Sandbox-Id: {box.sandbox_id}\r\nE2b-Sandbox-Port: {ENVD_PORT}\r\n"
        f"X-Access-Token: {box._envd_access_token}\r\nContent-Type: {kinds[kind]}\r\n"
        "Content-Length: 100000000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + (part.encode() if kind == "multipart" else b"") + b"x" * (8 << 20))
    assert wait_for(lambda: box.commands.run("ls -A /tmp | grep -c half- || true").stdout == "0\n")
    assert box.files.exists(path) is False


def test_a_full_file_system_is_not_enough_space(server, box):
    """A file system that is full: what is written does not stay, and what is freed can be used again."""
    box.commands.run("head -c 1T /dev/zero > /dev/shm/filler 2>/dev/null; true", timeout=0)
    try:
        answer = server.edge("POST", as_made(box), "/files?path=/dev/shm/more", b"x" * (1 << 20), headers=OCTETS)
        assert answer.status == 507 and answer.json["code"] == 507, answer
        with pytest.raises(SandboxException):
            box.files.write("/dev/shm/more", "x" * (1 << 20))
        assert box.files.exists("/dev/shm/more") is False
    finally:
        box.commands.run("rm -f /dev/shm/filler")
    box.files.write("/dev/shm/more", "x")
    box.files.remove("/dev/shm/more")


# ---- watching ----


def events(server, box, watcher):
    answer = rpc(server, box, "filesystem.Filesystem/GetWatcherEvents", {"watcherId": watcher})
    assert answer.status == 200, answer
    return [(event["type"].removeprefix("EVENT_TYPE_"), event["name"]) for event in answer.json["events"]]


def test_a_thousand_watchers_hear_what_happens(server, box):
    """Of the same directory, of the tree that it is in, and of one each: what they hear does not depend on the others."""
    box.commands.run(f"mkdir -p /tmp/many/same && cd /tmp/many && mkdir $(seq {WATCHERS // 2})")
    made = []
    try:
        for number in range(WATCHERS):
            path = ["/tmp/many", "/tmp/many/same"][number % 4 // 2] if number % 2 else f"/tmp/many/{number // 2 + 1}"
            message = {"path": path, "recursive": path == "/tmp/many"}
            answer = rpc(server, box, "filesystem.Filesystem/CreateWatcher", message)
            assert answer.status == 200, answer
            made.append((path, answer.json["watcherId"]))
        box.files.write("/tmp/many/same/file", "x")
        box.files.write("/tmp/many/7/file", "x")
        box.commands.run("mv /tmp/many/same/file /tmp/many/same/moved")
        upload = ["CREATE", "CHMOD", "WRITE"]  # as many as upstream has
        want = {
            "/tmp/many": [(kind, "same/file") for kind in upload]
            + [(kind, "7/file") for kind in upload]
            + [("RENAME", "same/file"), ("CREATE", "same/moved")],
            "/tmp/many/same": [(kind, "file") for kind in upload] + [("RENAME", "file"), ("CREATE", "moved")],
            "/tmp/many/7": [(kind, "file") for kind in upload],
        }
        for path, watcher in made:
            assert events(server, box, watcher) == want.get(path, []), path
        # Every other one goes, and the rest keep what they have.
        for path, watcher in made[::2]:
            assert rpc(server, box, "filesystem.Filesystem/RemoveWatcher", {"watcherId": watcher}).status == 200, path
        del made[::2]
        box.files.remove("/tmp/many/same/moved")
        for path, watcher in made:
            name = "same/moved" if path == "/tmp/many" else "moved"
            assert events(server, box, watcher) == [("REMOVE", name)], path
        assert guestd_peak_bytes(box) < GUESTD_MOST_BYTES
    finally:
        for _, watcher in made:
            rpc(server, box, "filesystem.Filesystem/RemoveWatcher", {"watcherId": watcher})
    box.files.watch_dir("/tmp/many").stop()


def test_a_noisy_directory_with_many_watchers_costs_little(server, box):
    """No watcher fetches its events. Those with too many waiting get an error, and guestd does not grow."""
    box.files.make_dir("/tmp/noise")
    made = [box.files.watch_dir("/tmp/noise") for _ in range(WATCHERS // 2)]
    try:
        box.commands.run(f"cd /tmp/noise && for i in $(seq {NOISE}); do : >$i; done", timeout=100)
        told = 0
        for watcher in made:
            try:
                watcher.get_new_events()
            except SandboxException as e:
                assert "watcher error" in str(e), e
                told += 1
        assert told > 0
        assert guestd_peak_bytes(box) < GUESTD_MOST_BYTES
        fresh = box.files.watch_dir("/tmp/noise")
        made.append(fresh)
        box.files.write("/tmp/noise/last", "x")
        assert [event.name for event in fresh.get_new_events()] == ["last"] * 3
    finally:
        for watcher in made:
            watcher.stop()


def test_watchers_have_a_limit_that_is_said(server, box):
    box.files.make_dir("/tmp/limit")
    made = []
    try:
        while len(made) < 2 * WATCHERS:
            answer = rpc(server, box, "filesystem.Filesystem/CreateWatcher", {"path": "/tmp/limit"})
            if answer.status != 200:
                break
            made.append(answer.json["watcherId"])
        assert answer.status == 429 and answer.json["code"] == "resource_exhausted", answer
        assert len(made) >= WATCHERS
        with pytest.raises(RateLimitException):
            box.files.watch_dir("/tmp/limit")
        box.files.write("/tmp/limit/file", "x")
        assert events(server, box, made[0]) == events(server, box, made[-1]) != []
    finally:
        for watcher in made:
            assert rpc(server, box, "filesystem.Filesystem/RemoveWatcher", {"watcherId": watcher}).status == 200
    box.files.watch_dir("/tmp/limit").stop()


# ---- options ----


@pytest.mark.parametrize(
    "options,as_written,on_the_wire",
    [
        ({"mcp": {"browserbase": {}}}, "mcp={", "mcp"),
        ({"mcp": {}}, "mcp={", "mcp"),
        ({"volume_mounts": {"/data": "v"}}, "volume_mounts=", "volumeMounts"),
    ],
    ids=["mcp", "empty mcp", "volume_mounts"],
)
def test_an_option_that_we_do_not_have_is_named_as_its_user_wrote_it(server, options, as_written, on_the_wire):
    before = server.running()
    with pytest.raises(SandboxException) as caught:
        Sandbox.create(**options)
    message = str(caught.value)
    assert as_written in message and on_the_wire in message and "not available" in message, message
    assert server.running() == before


def test_mcp_servers_with_a_template_of_the_callers_choice_fail_in_the_sdk(server):
    """It starts the gateway inside by itself, and ends the sandbox when the template has none."""
    before = server.running()
    with pytest.raises(SandboxException, match="Failed to start MCP gateway"):
        Sandbox.create("base", mcp={"browserbase": {}})
    assert server.running() == before


def test_a_timeout_past_the_longest_is_refused_by_create_and_cut_by_set_timeout(server):
    for seconds in (86401, 10**12):
        with pytest.raises(SandboxException, match="86400 seconds"):
            Sandbox.create(timeout=seconds)
    with Sandbox.create(timeout=60) as box:
        for seconds in (86401, 10**12):
            box.set_timeout(60)
            box.set_timeout(seconds)
            info = box.get_info()
            assert abs((info.end_at - info.started_at).total_seconds() - 86400) < 2


def test_an_unknown_sandbox_is_not_called_paused(server):
    """SDKs say "Paused sandbox … not found" to any 404 of connect. Our own message does not call it paused."""
    for method, path in (
        ("POST", "/sandboxes/inotthere/connect"),
        ("POST", "/v2/sandboxes/inotthere/connect"),
        ("GET", "/sandboxes/inotthere"),
        ("POST", "/sandboxes/inotthere/timeout"),
    ):
        answer = server.api(method, path, None if method == "GET" else {"timeout": 60})
        assert answer.status == 404 and answer.json["code"] == 404, answer
        assert answer.json["message"] == 'Sandbox "inotthere" does not exist or is not accessible'
