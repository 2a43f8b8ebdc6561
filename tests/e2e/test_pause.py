"""Pause, resume, snapshots and forks by the Python SDK, with and without asyncio, and the answers by hand.

What needs an image of processes on disk (snapshots with memory, forks) is skipped aloud where the machine has no CRIU.
"""

import asyncio
import concurrent.futures
import inspect
import time
import uuid

import pytest
from e2b import AsyncSandbox, NotFoundException, Sandbox, SandboxException
from server import wait_for

LOOP = asyncio.new_event_loop()
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
OURS = ("e2b.sandbox_async", "e2b.sandbox_sync")


class Blocking:
    """Lets a test call the asynchronous SDK as if it were the other one."""

    def __init__(self, thing):
        self.thing = thing

    def __getattr__(self, name):
        return blocking(getattr(self.thing, name))


def blocking(value):
    if inspect.isawaitable(value):
        return blocking(LOOP.run_until_complete(value))
    if isinstance(value, list):
        return [blocking(item) for item in value]
    if callable(value) and not isinstance(value, type):
        return lambda *arguments, **options: blocking(value(*arguments, **options))
    return Blocking(value) if type(value).__module__.startswith(OURS) else value


@pytest.fixture(params=["sync", "async"])
def sdk(server, request):
    return Sandbox if request.param == "sync" else Blocking(AsyncSandbox)


@pytest.fixture
def kept(server):
    """A list: snapshots whose ids a test puts there are deleted after it."""
    ids = []
    yield ids
    for snapshot_id in ids:
        Sandbox.delete_snapshot(snapshot_id)


@pytest.fixture
def make(sdk, kept, made):  # in this order: snapshots go when no sandbox is made from them
    """Creates a sandbox that is ended after the test."""

    def create(*arguments, **options):
        box = sdk.create(*arguments, **{"timeout": 120, **options})
        made.append(box.sandbox_id)
        return box

    return create


def state_of(server, box):
    answer = server.api("GET", f"/sandboxes/{box.sandbox_id}")
    return answer.json["state"] if answer.status == 200 else None


def pids(box):
    return [process.pid for process in box.commands.list()]


def first_line(box, command):
    return box.commands.run(command).stdout.strip()


def serve_http(server, box, port=8000):
    """A web server inside, which answers with what is in a file; its pid. No stream of the SDK's hangs on it."""
    box.files.write("/tmp/www/hello", "hello")
    pid = first_line(box, f"cd /tmp/www && (setsid python3 -m http.server {port} >/dev/null 2>&1 & echo $!)")
    assert wait_for(lambda: ask(server, box, port).status == 200)
    return pid


def lives(box, pid):
    return first_line(box, f"kill -0 {pid} && echo alive || true") == "alive"


def ask(server, box, port=8000, **options):
    return server.edge("GET", {"sandboxID": box.sandbox_id}, "/hello", port=port, **options)


@pytest.fixture(scope="session")
def needs_images(server):
    """Skips, aloud, what needs CRIU."""
    made = server.create()
    try:
        answer = server.api("POST", f"/sandboxes/{made['sandboxID']}/snapshots", {})
        if answer.status == 201:
            Sandbox.delete_snapshot(answer.json["snapshotID"])
        elif answer.status == 503 and ("CRIU" in answer.json["message"] or "cannot write" in answer.json["message"]):
            pytest.skip(f"no images of processes on this machine: {answer.json['message']}")
    finally:
        server.api("DELETE", f"/sandboxes/{made['sandboxID']}")


# ---- in memory ----


def test_processes_files_and_variables_live_through_a_pause(server, make):
    box = make(envs={"COLOR": "blue"})
    sleeper = box.commands.run("sleep 3600", background=True)
    box.files.write("/home/user/note", "kept")
    boot_id = first_line(box, BOOT_ID)
    assert box.pause() is True
    assert not box.is_running() and state_of(server, box) == "paused"
    box.connect()
    assert box.is_running() and state_of(server, box) == "running"
    assert sleeper.pid in pids(box)
    assert box.files.read("/home/user/note") == "kept"
    assert first_line(box, "echo $COLOR") == "blue"
    assert first_line(box, BOOT_ID) == boot_id
    assert box.commands.connect(sleeper.pid).kill()


def test_a_script_stands_still_and_then_goes_on(make):
    box = make()
    box.commands.run("for i in $(seq 600); do echo $i >> /tmp/count; sleep 0.1; done", background=True)
    time.sleep(0.5)
    box.pause()
    time.sleep(2)
    box.connect()
    count = int(first_line(box, "wc -l < /tmp/count"))
    assert 1 <= count < 20, "it ran while it was paused"
    assert wait_for(lambda: int(first_line(box, "wc -l < /tmp/count")) > count)
    assert first_line(box, "head -3 /tmp/count | xargs") == "1 2 3"


def test_a_web_server_answers_after_a_resume(server, make):
    box = make()
    serve_http(server, box)
    box.pause()
    answer = ask(server, box)
    assert answer.status == 502 and answer.json["message"] == "The sandbox was not found"
    box.connect()
    assert ask(server, box).body == b"hello"


def test_the_second_pause_says_that_it_is_paused(server, make):
    box = make()
    assert box.pause() is True
    assert box.pause() is False
    answer = server.api("POST", f"/sandboxes/{box.sandbox_id}/pause", {})
    assert answer.status == 409 and "already paused" in answer.json["message"]


def test_pauses_and_resumes_follow_each_other(make):
    box = make()
    sleeper = box.commands.run("sleep 3600", background=True)
    for _ in range(5):
        assert box.pause() is True
        box.connect()
        assert sleeper.pid in pids(box)


def test_a_command_under_way_is_cut_by_a_pause_and_can_be_found_again(make):
    box = make()
    pid = box.commands.run("sleep 2; echo done > /tmp/done; sleep 600", background=True).pid
    box.pause()
    box.connect()
    assert pid in pids(box)
    assert wait_for(lambda: first_line(box, "cat /tmp/done || true") == "done")


def test_a_connect_gives_the_new_deadline_and_the_same_token(server, made):
    box = server.create(timeout=60)
    made.append(box["sandboxID"])
    assert server.api("POST", f"/sandboxes/{box['sandboxID']}/pause").status == 204
    paused = server.api("GET", f"/sandboxes/{box['sandboxID']}").json
    answer = server.api("POST", f"/v2/sandboxes/{box['sandboxID']}/connect", {"timeout": 1000})
    assert answer.status == 201 and answer.json["envdAccessToken"] == box["envdAccessToken"]
    running = server.api("GET", f"/sandboxes/{box['sandboxID']}").json
    assert running["endAt"] > paused["endAt"] and running["startedAt"] > paused["startedAt"]
    assert server.api("POST", f"/sandboxes/{box['sandboxID']}/connect", {"timeout": 1}).status == 200
    assert server.api("GET", f"/sandboxes/{box['sandboxID']}").json["endAt"] == running["endAt"]


def test_connects_at_the_same_time_join_one_resume(server, make):
    box = make()
    box.pause()
    path = f"/v2/sandboxes/{box.sandbox_id}/connect"
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: server.api("POST", path, {}), range(12)))
    assert {answer.status for answer in answers} <= {200, 201} and 201 in {answer.status for answer in answers}
    events = server.api("GET", f"/events/sandboxes/{box.sandbox_id}?types=sandbox.lifecycle.resumed").json
    assert len(events) == 1


def test_a_reboot_starts_anew_from_the_files(make):
    box = make()
    sleeper = box.commands.run("sleep 3600", background=True)
    box.files.write("/home/user/note", "kept")
    boot_id = first_line(box, BOOT_ID)
    box.pause()
    box.connect(on_resume="reboot")
    assert first_line(box, BOOT_ID) != boot_id
    assert sleeper.pid not in pids(box)
    assert box.files.read("/home/user/note") == "kept"


# ---- files only ----


def test_a_pause_of_files_only_is_a_fresh_start(server, make):
    box = make(envs={"COLOR": "blue"}, metadata={"name": "files"})
    box.commands.run("sleep 3600", background=True)
    box.files.write("/home/user/note", "kept")
    boot_id = first_line(box, BOOT_ID)
    assert box.pause(mode="filesystem") is True
    detail = server.api("GET", f"/sandboxes/{box.sandbox_id}").json
    assert detail["state"] == "paused" and detail["pauseMode"] == "filesystem"
    assert not box.is_running()
    box.connect()
    assert first_line(box, BOOT_ID) != boot_id
    assert pids(box) == []
    assert box.files.read("/home/user/note") == "kept"
    assert first_line(box, "echo $COLOR") == "blue"
    assert box.get_info().metadata == {"name": "files"}


def test_files_live_through_several_pauses(make):
    box = make()
    for i in range(3):
        box.files.write(f"/home/user/{i}", str(i))
        box.commands.run(f"rm -f /home/user/{i - 1}")
        box.pause(mode="filesystem")
        box.connect()
    assert first_line(box, "cd /home/user && ls -d [0-9]*") == "2"


# ---- states ----


def test_lists_say_which_are_paused(server, make, made):
    tag = {"test": uuid.uuid4().hex}
    running, paused = make(metadata=tag), make(metadata=tag)
    paused.pause()
    filters = f"metadata=test%3D{tag['test']}"

    def listed(path):
        answer = server.api("GET", path)
        return {row["sandboxID"]: row["state"] for row in answer.json}, answer.headers.get("x-total-running")

    both = {running.sandbox_id: "running", paused.sandbox_id: "paused"}
    assert listed(f"/v2/sandboxes?{filters}") == (both, "1")
    assert listed(f"/v2/sandboxes?{filters}&state=running%2Cpaused") == (both, "1")
    assert listed(f"/v2/sandboxes?{filters}&state=running") == ({running.sandbox_id: "running"}, "1")
    assert listed(f"/v2/sandboxes?{filters}&state=paused") == ({paused.sandbox_id: "paused"}, None)
    assert listed(f"/sandboxes?{filters}")[0] == {running.sandbox_id: "running"}
    # The newest first, whatever the state, in pages.
    first = server.api("GET", f"/v2/sandboxes?{filters}&limit=1")
    second = server.api("GET", f"/v2/sandboxes?{filters}&limit=1&nextToken={first.headers['x-next-token']}")
    assert [row["sandboxID"] for row in first.json + second.json] == [paused.sandbox_id, running.sandbox_id]
    assert "x-next-token" not in second.headers


def test_a_paused_one_has_no_deadline_and_no_network_to_change(server, make):
    box = make()
    box.pause()
    assert server.api("POST", f"/sandboxes/{box.sandbox_id}/timeout", {"timeout": 10}).status == 404
    assert server.api("PUT", f"/sandboxes/{box.sandbox_id}/network", {}).status == 404
    assert server.api("POST", f"/sandboxes/{box.sandbox_id}/fork", {}).status == 409
    assert server.api("POST", f"/sandboxes/{box.sandbox_id}/snapshots", {}).status == 409


def test_a_paused_one_can_be_killed(server, sdk, make):
    box = make()
    box.pause()
    assert box.kill() is True
    assert box.kill() is False
    assert box.sandbox_id not in server.running()
    with pytest.raises(NotFoundException):
        sdk.connect(box.sandbox_id)


def test_resume_is_for_paused_ones(server, make):
    box = make()
    assert server.api("POST", f"/sandboxes/{box.sandbox_id}/resume").status == 409
    box.pause()
    assert server.api("POST", f"/sandboxes/{box.sandbox_id}/resume", {"timeout": 60}).status == 201
    assert server.api("POST", "/sandboxes/inotthere0000000000000/resume").status == 404


def test_events_tell_of_it(server, make):
    box = make()
    box.pause()
    box.connect()
    events = server.api("GET", f"/events/sandboxes/{box.sandbox_id}?orderAsc=true").json
    kinds = [event["type"].rsplit(".", 1)[1] for event in events]
    assert kinds[:3] == ["created", "paused", "resumed"]
    logs = server.api("GET", f"/sandboxes/{box.sandbox_id}/logs").json["logEntries"]
    assert {"sandbox paused", "sandbox resumed"} <= {entry["message"] for entry in logs}


@pytest.mark.parametrize(
    "path, body, field",
    [
        ("pause", {"memory": "no"}, "memory"),
        ("pause", {"requireHealthyGuest": 1}, "requireHealthyGuest"),
        ("connect", {"timeout": 10, "memory": 0}, "memory"),
        ("connect", {"timeout": "10"}, "timeout"),
        ("connect", {}, "timeout"),
        ("resume", {"timeout": -1}, "timeout"),
        ("resume", {"autoPause": "x"}, "autoPause"),
        ("fork", {"count": 0}, "count"),
        ("fork", {"count": 101}, "count"),
        ("fork", {"count": "2"}, "count"),
        ("fork", {"timeout": 0}, "timeout"),
        ("snapshots", {"name": 5}, "name"),
        ("snapshots", {"name": "No Spaces"}, "name"),
        ("snapshots", {"name": "elsewhere/x"}, "name"),
        ("snapshots", {"memory": "x"}, "memory"),
    ],
)
def test_a_wrong_type_is_refused_by_its_name(server, made, path, body, field):
    box = server.create()["sandboxID"]
    made.append(box)
    answer = server.api("POST", f"/sandboxes/{box}/{path}", body)
    assert answer.status == 400 and f"'{field}'" in answer.json["message"], answer
    assert state_of(server, Sandbox.connect(box)) == "running"


# ---- at the deadline, and by traffic ----


def test_a_sandbox_is_paused_at_its_deadline(server, make):
    box = make(timeout=2, lifecycle={"on_timeout": "pause"})
    sleeper = box.commands.run("sleep 3600", background=True)
    assert server.api("GET", f"/sandboxes/{box.sandbox_id}").json["lifecycle"] == {
        "autoResume": False,
        "onTimeout": "pause",
    }
    assert wait_for(lambda: state_of(server, box) == "paused", 10)
    assert not box.is_running()
    assert ask(server, box).status == 502
    assert state_of(server, box) == "paused", "traffic has woken it, though it may not"
    box.connect(timeout=60)
    assert sleeper.pid in pids(box)


def test_a_sandbox_is_paused_without_its_memory_at_its_deadline(server, make):
    box = make(timeout=2, lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})
    boot_id = first_line(box, BOOT_ID)
    assert wait_for(lambda: state_of(server, box) == "paused", 10)
    detail = wait_for(lambda: server.api("GET", f"/sandboxes/{box.sandbox_id}").json.get("pauseMode"))
    assert detail == "filesystem"
    box.connect(timeout=60)
    assert first_line(box, BOOT_ID) != boot_id


def test_traffic_wakes_a_sandbox_that_may_be_woken(server, make):
    box = make(lifecycle={"on_timeout": "pause", "auto_resume": True})
    pid = serve_http(server, box)
    box.pause()
    assert state_of(server, box) == "paused"
    # Not without the token, on guestd's port.
    answer = server.edge("GET", {"sandboxID": box.sandbox_id}, "/health")
    assert answer.status == 403 and state_of(server, box) == "paused"
    answer = ask(server, box)
    assert answer.status == 200 and answer.body == b"hello"
    assert state_of(server, box) == "running" and lives(box, pid)
    box.pause()
    assert box.is_running(), "a call with the token wakes it"
    box.pause()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert {answer.status for answer in pool.map(lambda _: ask(server, box), range(8))} == {200}


def test_lifecycles_that_contradict_themselves_are_refused(server):
    for fields, name in [
        ({"autoPauseMemory": False}, "autoPauseMemory"),
        ({"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}}, "autoResume"),
        ({"autoPause": "yes"}, "autoPause"),
        ({"autoResume": True}, "autoResume"),
        ({"autoResume": {"enabled": "x"}}, "enabled"),
    ]:
        answer = server.api("POST", "/v2/sandboxes", {"templateID": "base", **fields})
        assert answer.status == 400 and name in answer.json["message"], answer


# ---- snapshots ----


def all_of(paginator):
    found = []
    while paginator.has_next:
        found += paginator.next_items()
    return found


def test_a_snapshot_of_files_is_a_template(server, sdk, make, kept):
    box = make()
    box.files.write("/home/user/note", "from the snapshot")
    sleeper = box.commands.run("sleep 3600", background=True)
    snapshot = box.create_snapshot(mode="filesystem")
    kept.append(snapshot.snapshot_id)
    assert snapshot.snapshot_id.endswith(":default") and not snapshot.names
    assert sleeper.pid in pids(box), "the sandbox goes on"
    one, other = make(snapshot.snapshot_id), make(snapshot.snapshot_id.removesuffix(":default"))
    assert one.files.read("/home/user/note") == "from the snapshot"
    one.files.write("/home/user/note", "changed")
    assert other.files.read("/home/user/note") == "from the snapshot"
    assert box.files.read("/home/user/note") == "from the snapshot"
    assert pids(other) == []
    tokens = {server.api("GET", f"/sandboxes/{b.sandbox_id}").json["envdAccessToken"] for b in (box, one, other)}
    assert len(tokens) == 3


def test_snapshots_have_names_and_tags(server, sdk, make, kept):
    name = f"snap-{uuid.uuid4().hex[:12]}"
    box = make()
    box.files.write("/home/user/note", "1")
    first = box.create_snapshot(name=name, mode="filesystem")
    kept.append(first.snapshot_id)
    box.files.write("/home/user/note", "2")
    second = box.create_snapshot(name=f"{name}:v2", mode="filesystem")
    assert first.names and first.names == second.names and first.names[0].endswith(f"/{name}")
    assert first.snapshot_id == f"{first.names[0]}:default" and second.snapshot_id == f"{first.names[0]}:v2"
    for reference, text in [(name, "1"), (first.snapshot_id, "1"), (f"{name}:v2", "2"), (second.snapshot_id, "2")]:
        assert make(reference).files.read("/home/user/note") == text
    # Newest first, of this sandbox, by name, with and without a tag, in pages.
    assert [s.snapshot_id for s in all_of(box.list_snapshots())] == [second.snapshot_id, first.snapshot_id]
    assert [s.snapshot_id for s in all_of(box.list_snapshots(limit=1))] == [second.snapshot_id, first.snapshot_id]
    assert len(all_of(sdk.list_snapshots(name=name))) == 2
    assert [s.snapshot_id for s in all_of(sdk.list_snapshots(name=f"{name}:default"))] == [first.snapshot_id]
    assert all_of(sdk.list_snapshots(name="there-is-no-such-name")) == []
    # A new build of a tag takes its place.
    box.files.write("/home/user/note", "3")
    assert box.create_snapshot(name=name, mode="filesystem").snapshot_id == first.snapshot_id
    assert make(name).files.read("/home/user/note") == "3"
    assert len(all_of(sdk.list_snapshots(name=name))) == 2


def test_a_snapshot_is_deleted_once_and_not_while_it_is_used(server, sdk, make):
    box = make()
    snapshot = box.create_snapshot(mode="filesystem", name=f"gone-{uuid.uuid4().hex[:12]}")
    based = make(snapshot.snapshot_id)
    for _ in range(2):
        with pytest.raises(SandboxException) as caught:
            sdk.delete_snapshot(snapshot.snapshot_id)
        assert "made from it" in str(caught.value)
        based.pause()
    based.kill()
    assert sdk.delete_snapshot(snapshot.snapshot_id) is True
    assert sdk.delete_snapshot(snapshot.snapshot_id) is False
    with pytest.raises(SandboxException):
        make(snapshot.snapshot_id)


def test_a_template_of_the_operator_is_not_deleted(server):
    answer = server.api("DELETE", "/templates/base")
    assert answer.status == 403 and "operator" in answer.json["message"]
    assert server.api("DELETE", "/templates/elsewhere%2Fx%3Adefault").status == 403
    assert server.api("DELETE", "/templates/there-is-none").status == 404


def test_a_snapshot_outlives_its_sandbox_and_has_descendants(make, kept):
    box = make()
    box.files.write("/home/user/a", "a")
    first = box.create_snapshot(mode="filesystem")
    box.kill()
    child = make(first.snapshot_id)
    child.files.write("/home/user/b", "b")
    second = child.create_snapshot(mode="filesystem")
    child.kill()
    kept.append(second.snapshot_id)
    assert Sandbox.delete_snapshot(first.snapshot_id) is True
    assert first_line(make(second.snapshot_id), "cat /home/user/a /home/user/b") == "ab"


def test_a_snapshot_with_memory_has_its_processes(server, needs_images, make, kept):
    box = make()
    pid = serve_http(server, box)
    snapshot = box.create_snapshot()
    kept.append(snapshot.snapshot_id)
    copy = make(snapshot.snapshot_id, envs={"COLOR": "blue"})
    assert lives(copy, pid) and ask(server, copy).body == b"hello"
    assert first_line(copy, "echo $COLOR") == "blue"
    score = "sleep 0.3; cat /proc/self/oom_score_adj"  # a program inside is killed before guestd
    assert first_line(copy, score) == first_line(box, score) == "100"
    assert lives(box, pid) and ask(server, box).body == b"hello"


# ---- forks ----


def test_a_fork_has_the_files_and_processes_and_a_life_of_its_own(server, needs_images, make, made):
    box = make(metadata={"name": "parent"})
    sleeper = box.commands.run("sleep 3600", background=True)
    box.files.write("/home/user/note", "before")
    copies = box.fork(count=2)
    made.extend(copy.sandbox_id for copy in copies)
    assert len({box.sandbox_id, *(copy.sandbox_id for copy in copies)}) == 3
    for copy in copies:
        assert copy.files.read("/home/user/note") == "before" and sleeper.pid in pids(copy)
        assert copy.get_info().metadata == {"name": "parent"}
        assert copy.get_info().template_id == box.get_info().template_id
    copies[0].files.write("/home/user/note", "after")
    assert box.files.read("/home/user/note") == copies[1].files.read("/home/user/note") == "before"
    assert sleeper.pid in pids(box)


def test_forks_share_no_token_and_no_random_numbers(server, needs_images, make, made):
    box = make()
    copies = box.fork(count=3)
    made.extend(copy.sandbox_id for copy in copies)
    boxes = [box, *copies]
    tokens = {server.api("GET", f"/sandboxes/{b.sandbox_id}").json["envdAccessToken"] for b in boxes}
    numbers = {first_line(b, "head -c 16 /dev/urandom | od -An -tx1") for b in boxes}
    assert len(tokens) == len(numbers) == 4
    for one in boxes:
        for token in tokens:
            answer = server.edge("GET", {"sandboxID": one.sandbox_id, "envdAccessToken": token}, "/files?path=/etc/hostname")
            mine = token == server.api("GET", f"/sandboxes/{one.sandbox_id}").json["envdAccessToken"]
            assert answer.status == (200 if mine else 401), "a token opens one sandbox and no other"


def test_a_fork_of_what_is_gone_is_not_found(server, sdk, make):
    box = make()
    box.kill()
    with pytest.raises(NotFoundException):
        box.fork()
    assert server.api("POST", f"/sandboxes/{box.sandbox_id}/fork", {}).status == 404
