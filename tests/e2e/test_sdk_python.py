"""The Python SDK, unmodified: what a user writes, and what it promises in its documentation.

Runs with the newest release and with the oldest that we promise, so exceptions are named by what both share.
"""

import asyncio
import datetime
import hashlib
import threading
import time
import urllib.error
import urllib.request

import e2b
import httpcore
import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    Sandbox,
    SandboxException,
)
from e2b import InvalidArgumentException, TimeoutException

NOT_THERE = "inotthere0000000000000"
IS_OLD = not hasattr(e2b, "SandboxNotRunningException")
# Old releases let a broken connection, and a timeout that they notice themselves, through as they are.
TIMED_OUT = (TimeoutException, httpcore.TimeoutException) if IS_OLD else TimeoutException
NOT_RUNNING = TimeoutException if IS_OLD else e2b.SandboxNotRunningException
CUT_OFF = (
    (TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) if IS_OLD else e2b.SandboxNotRunningException
)


def now():
    return datetime.datetime.now(datetime.timezone.utc)


# ---- commands ----


def test_a_command_gives_its_output_and_exit_code(shared_sandbox):
    result = shared_sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0) and not result.error


def test_a_command_that_fails_raises_with_all_it_said(shared_sandbox):
    with pytest.raises(CommandExitException) as caught:
        shared_sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (3, "out\n", "err\n")


def test_a_command_that_does_not_exist_exits_with_127(shared_sandbox):
    with pytest.raises(CommandExitException) as caught:
        shared_sandbox.commands.run("no-such-program")
    assert caught.value.exit_code == 127


@pytest.mark.parametrize("text", ["it's", '"quoted" $HOME `x`', "ünïcödé ☃", "two\nlines", "a" * 100_000])
def test_text_passes_through_unchanged(shared_sandbox, text):
    result = shared_sandbox.commands.run('printf %s "$TEXT"', envs={"TEXT": text})
    assert result.stdout == text


def test_megabytes_of_output_arrive_whole(shared_sandbox):
    result = shared_sandbox.commands.run(
        "head -c 6000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2"
    )
    assert result.stdout == "x" * 6_000_000
    assert result.stderr == "y" * 3_000_000


def test_broken_utf8_does_not_break_the_command(shared_sandbox):
    result = shared_sandbox.commands.run(r"printf 'a\xff\xfeb'")
    assert result.exit_code == 0 and result.stdout.startswith("a") and result.stdout.endswith("b")


def test_envs_of_a_command_are_its_own(shared_sandbox):
    assert shared_sandbox.commands.run("echo $FOO", envs={"FOO": "bar"}).stdout == "bar\n"
    assert shared_sandbox.commands.run("echo $FOO").stdout == "\n"


def test_envs_of_a_sandbox_are_every_commands(server):
    box = Sandbox.create(timeout=60, envs={"FOO": "sandbox", "BAR": "kept"})
    try:
        assert box.commands.run("echo $FOO $BAR").stdout == "sandbox kept\n"
        assert box.commands.run("echo $FOO $BAR", envs={"FOO": "command"}).stdout == "command kept\n"
        assert box.commands.run("echo $FOO", user="root").stdout == "sandbox\n"
    finally:
        box.kill()


def test_the_working_directory_is_home_or_what_was_asked_for(shared_sandbox):
    assert shared_sandbox.commands.run("pwd").stdout == "/home/user\n"
    assert shared_sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert shared_sandbox.commands.run("pwd", user="root").stdout == "/root\n"


def test_a_working_directory_that_is_not_there_is_refused(shared_sandbox):
    with pytest.raises((InvalidArgumentException, SandboxException)):
        shared_sandbox.commands.run("pwd", cwd="/no/such/place")


def test_commands_run_as_user_or_as_whom_was_asked_for(shared_sandbox):
    assert shared_sandbox.commands.run("whoami; echo $HOME $USER").stdout == "user\n/home/user user\n"
    assert shared_sandbox.commands.run("whoami; id -u", user="root").stdout == "root\n0\n"


def test_an_unknown_user_is_refused(shared_sandbox):
    with pytest.raises((AuthenticationException, SandboxException)):
        shared_sandbox.commands.run("whoami", user="nobody-by-that-name")


def test_callbacks_get_output_as_it_comes(shared_sandbox):
    seen = []
    shared_sandbox.commands.run(
        "echo one; echo oops >&2; sleep 1; echo two",
        on_stdout=lambda text: seen.append(("out", text, time.monotonic())),
        on_stderr=lambda text: seen.append(("err", text, time.monotonic())),
    )
    out = [(text, at) for kind, text, at in seen if kind == "out"]
    assert [text for text, _ in out] == ["one\n", "two\n"]
    assert [text for kind, text, _ in seen if kind == "err"] == ["oops\n"]
    assert out[1][1] - out[0][1] > 0.5  # the first was not held back for the second


def test_a_background_command_can_be_waited_for(shared_sandbox):
    handle = shared_sandbox.commands.run("sleep 0.5; echo done", background=True)
    assert handle.pid > 0
    assert handle.wait().stdout == "done\n"


def test_a_background_command_is_listed_and_killed(shared_sandbox):
    handle = shared_sandbox.commands.run("sleep 100", background=True)
    assert handle.pid in [process.pid for process in shared_sandbox.commands.list()]
    assert shared_sandbox.commands.kill(handle.pid) is True
    assert handle.pid not in [process.pid for process in shared_sandbox.commands.list()]
    assert shared_sandbox.commands.kill(handle.pid) is False
    with pytest.raises(CommandExitException):
        handle.wait()


def test_killing_a_command_ends_its_children(shared_sandbox):
    handle = shared_sandbox.commands.run("sleep 4321 & sleep 4321; true", background=True)
    time.sleep(0.3)
    handle.kill()
    time.sleep(0.3)
    assert shared_sandbox.commands.run("pgrep -fc 'sleep 432[1]' || true").stdout.strip() == "0"


def test_a_running_command_can_be_connected_to(shared_sandbox):
    first = shared_sandbox.commands.run("sleep 1; echo late", background=True)
    second = shared_sandbox.commands.connect(first.pid)
    assert second.pid == first.pid
    assert second.wait().stdout == "late\n"


def test_connecting_to_a_process_that_is_not_there_is_not_found(shared_sandbox):
    with pytest.raises(NotFoundException):
        shared_sandbox.commands.connect(999999)


def test_input_reaches_a_command(shared_sandbox):
    handle = shared_sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    shared_sandbox.commands.send_stdin(handle.pid, "hello\n")
    assert handle.wait().stdout == "got hello\n"


def test_a_command_past_its_timeout_is_ended_and_says_so(shared_sandbox):
    began = time.monotonic()
    with pytest.raises(TIMED_OUT):
        shared_sandbox.commands.run("sleep 87654", timeout=1)
    assert time.monotonic() - began < 10
    time.sleep(0.5)
    assert shared_sandbox.commands.run("pgrep -fc 'sleep 8765[4]' || true").stdout.strip() == "0"


def test_many_commands_run_at_once(shared_sandbox):
    results = {}

    def run(i):
        results[i] = shared_sandbox.commands.run(f"sleep 0.2; echo {i}").stdout

    threads = [threading.Thread(target=run, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: f"{i}\n" for i in range(20)}


# ---- files ----


def test_what_is_written_is_read_back(shared_sandbox):
    info = shared_sandbox.files.write("hello.txt", "Grüße\n")
    assert info.path == "/home/user/hello.txt" and info.name == "hello.txt"
    assert shared_sandbox.files.read("hello.txt") == "Grüße\n"
    assert shared_sandbox.files.read("/home/user/hello.txt", format="bytes") == "Grüße\n".encode()
    assert shared_sandbox.commands.run("cat hello.txt; stat -c '%U %a' hello.txt").stdout == "Grüße\nuser 644\n"


def test_writing_again_replaces_the_whole_file(shared_sandbox):
    shared_sandbox.files.write("again.txt", "a long text")
    shared_sandbox.files.write("again.txt", "short")
    assert shared_sandbox.files.read("again.txt") == "short"


def test_an_empty_file_is_a_file(shared_sandbox):
    shared_sandbox.files.write("empty", "")
    assert shared_sandbox.files.read("empty") == ""
    assert shared_sandbox.files.read("empty", format="bytes") == b""


def test_large_binary_files_survive_both_ways(shared_sandbox):
    blob = hashlib.shake_128(b"cloister").digest(16 << 20)
    shared_sandbox.files.write("/tmp/blob", blob)
    assert shared_sandbox.commands.run("sha256sum /tmp/blob").stdout.split()[0] == hashlib.sha256(blob).hexdigest()
    assert bytes(shared_sandbox.files.read("/tmp/blob", format="bytes")) == blob
    assert b"".join(shared_sandbox.files.read("/tmp/blob", format="stream")) == blob


def test_parents_are_made_and_belong_to_the_user(shared_sandbox):
    shared_sandbox.files.write("made/by/writing.txt", "x")
    assert shared_sandbox.commands.run("stat -c %U made made/by").stdout == "user\nuser\n"


def test_several_files_are_written_at_once(shared_sandbox):
    infos = shared_sandbox.files.write_files([{"path": f"/tmp/many/{i}.txt", "data": f"file {i}"} for i in range(10)])
    assert [info.path for info in infos] == [f"/tmp/many/{i}.txt" for i in range(10)]
    assert shared_sandbox.files.read("/tmp/many/7.txt") == "file 7"


def test_a_directory_lists_its_entries_sorted_by_what_they_are(shared_sandbox):
    shared_sandbox.commands.run(
        "mkdir -p l/sub/deeper && echo 123 > l/a.txt && touch l/sub/b.txt && ln -s a.txt l/link"
    )
    entries = {entry.name: entry for entry in shared_sandbox.files.list("l")}
    assert set(entries) == {"a.txt", "sub", "link"}
    assert entries["a.txt"].type.value == "file" and entries["sub"].type.value == "dir"
    assert entries["a.txt"].path == "/home/user/l/a.txt"
    assert entries["a.txt"].size == 4 and entries["a.txt"].owner == "user"
    deep = [entry.path for entry in shared_sandbox.files.list("l", depth=3)]
    assert "/home/user/l/sub/deeper" in deep and "/home/user/l/sub/b.txt" in deep


def test_exists_says_whether(shared_sandbox):
    shared_sandbox.files.write("there", "x")
    assert shared_sandbox.files.exists("there") is True
    assert shared_sandbox.files.exists("/home/user") is True
    assert shared_sandbox.files.exists("not-there") is False


def test_info_of_a_file_is_what_stat_says(shared_sandbox):
    shared_sandbox.files.write("info.txt", "12345")
    info = shared_sandbox.files.get_info("info.txt")
    assert (info.name, info.path, info.size) == ("info.txt", "/home/user/info.txt", 5)
    assert info.permissions.endswith("rw-r--r--") and info.group == "user"


def test_removing_takes_files_and_whole_directories(shared_sandbox):
    shared_sandbox.commands.run("mkdir -p gone/with/all && touch gone/with/all/f g")
    shared_sandbox.files.remove("g")
    shared_sandbox.files.remove("gone")
    assert not shared_sandbox.files.exists("g") and not shared_sandbox.files.exists("gone")


def test_renaming_moves(shared_sandbox):
    shared_sandbox.files.write("old", "text")
    info = shared_sandbox.files.rename("old", "new")
    assert info.path == "/home/user/new"
    assert not shared_sandbox.files.exists("old") and shared_sandbox.files.read("new") == "text"


def test_making_a_directory_twice_says_so(shared_sandbox):
    assert shared_sandbox.files.make_dir("nested/dir") is True
    assert shared_sandbox.files.make_dir("nested/dir") is False


@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.read("missing"),
        lambda files: files.get_info("missing"),
        lambda files: files.list("missing"),
        lambda files: files.rename("missing", "elsewhere"),
    ],
    ids=["read", "get_info", "list", "rename"],
)
def test_what_is_not_there_is_not_found(shared_sandbox, call):
    with pytest.raises(NotFoundException):
        call(shared_sandbox.files)


def test_reading_a_directory_is_refused(shared_sandbox):
    with pytest.raises(InvalidArgumentException):
        shared_sandbox.files.read("/tmp")


def test_another_users_files_are_written_as_that_user(shared_sandbox):
    shared_sandbox.files.write("/root/secret", "root's", user="root")
    assert shared_sandbox.files.read("/root/secret", user="root") == "root's"
    assert shared_sandbox.commands.run("stat -c %U /root/secret", user="root").stdout == "root\n"


def test_signed_links_need_no_headers(shared_sandbox):
    shared_sandbox.files.write("linked.txt", "by link")
    link = shared_sandbox.download_url("linked.txt")
    with urllib.request.urlopen(link, timeout=10) as answer:
        assert answer.read() == b"by link"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(link.replace("linked.txt", "other.txt"), timeout=10)
    assert caught.value.code == 401


def test_an_expired_link_is_refused(shared_sandbox):
    shared_sandbox.files.write("linked.txt", "by link")
    link = shared_sandbox.download_url("linked.txt", use_signature_expiration=1)
    time.sleep(2.1)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(link, timeout=10)
    assert caught.value.code == 401


# ---- the life of a sandbox ----


def test_info_tells_what_was_asked_for(server):
    box = Sandbox.create("base", timeout=200, metadata={"job": "42", "with space": "v&=/é+"})
    try:
        info = box.get_info()
        assert info.sandbox_id == box.sandbox_id
        assert info.metadata == {"job": "42", "with space": "v&=/é+"}
        assert info.template_id and info.name == "base"
        assert abs((info.end_at - info.started_at).total_seconds() - 200) < 2
        assert abs((info.started_at - now()).total_seconds()) < 10
        assert info.state.value == "running"
        assert info.cpu_count >= 1 and info.memory_mb >= 128
    finally:
        box.kill()


def test_the_list_has_what_runs_and_filters_by_metadata(server):
    boxes = [Sandbox.create(timeout=60, metadata={"group": "a&b = c/d", "n": str(i)}) for i in range(3)]
    try:
        from e2b import SandboxQuery

        paginator = Sandbox.list(query=SandboxQuery(metadata={"group": "a&b = c/d"}), limit=2)
        first = paginator.next_items()
        assert paginator.has_next
        second = paginator.next_items()
        assert not paginator.has_next
        assert [info.sandbox_id for info in first + second] == [box.sandbox_id for box in reversed(boxes)]
        only = Sandbox.list(query=SandboxQuery(metadata={"group": "a&b = c/d", "n": "1"})).next_items()
        assert [info.sandbox_id for info in only] == [boxes[1].sandbox_id]
    finally:
        for box in boxes:
            box.kill()


def test_set_timeout_moves_the_end_both_ways(server):
    box = Sandbox.create(timeout=100)
    try:
        box.set_timeout(500)
        assert abs((box.get_info().end_at - now()).total_seconds() - 500) < 3
        box.set_timeout(50)
        assert abs((box.get_info().end_at - now()).total_seconds() - 50) < 3
    finally:
        box.kill()


def test_a_sandbox_ends_at_its_deadline(server):
    box = Sandbox.create(timeout=3)
    time.sleep(1)
    assert box.is_running() is True
    time.sleep(3)
    assert box.is_running() is False
    assert box.sandbox_id not in server.running()


def test_a_sandbox_can_be_connected_to_by_its_id(server):
    box = Sandbox.create(timeout=60)
    try:
        box.files.write("note", "x")
        again = Sandbox.connect(box.sandbox_id)
        assert again.sandbox_id == box.sandbox_id
        if not again.connection_config.sandbox_headers.get("E2b-Sandbox-Id"):
            pytest.skip("with E2B_SANDBOX_URL this release does not say which sandbox it means after connect")
        assert again.files.read("note") == "x"
        assert again.commands.run("echo hi").stdout == "hi\n"
    finally:
        box.kill()


def test_connecting_never_shortens_a_life(server):
    box = Sandbox.create(timeout=300)
    try:
        before = box.get_info().end_at
        Sandbox.connect(box.sandbox_id, timeout=10)
        assert box.get_info().end_at == before
        Sandbox.connect(box.sandbox_id, timeout=600)
        assert (box.get_info().end_at - before).total_seconds() > 200
    finally:
        box.kill()


def test_after_kill_everything_fails_as_documented(server):
    box = Sandbox.create(timeout=60)
    assert box.is_running() is True
    assert box.kill() is True
    assert box.sandbox_id not in [info.sandbox_id for info in Sandbox.list().next_items()]
    assert box.is_running() is False
    assert box.kill() is False
    for call in (
        lambda: box.commands.run("true"),
        lambda: box.commands.list(),
        lambda: box.files.read("x"),
        lambda: box.files.write("x", "y"),
        lambda: box.files.list("/"),
        lambda: box.files.exists("/"),
    ):
        with pytest.raises(NOT_RUNNING):
            call()
    for call in (lambda: box.get_info(), lambda: box.set_timeout(10), lambda: Sandbox.connect(box.sandbox_id)):
        with pytest.raises(NotFoundException):
            call()


def test_killing_a_sandbox_ends_its_running_commands_aloud(server):
    box = Sandbox.create(timeout=60)
    handle = box.commands.run("sleep 100", background=True)
    threading.Timer(0.5, box.kill).start()
    began = time.monotonic()
    with pytest.raises(CUT_OFF):
        handle.wait()
    assert time.monotonic() - began < 10


def test_killing_what_never_was_is_false(server):
    assert Sandbox.kill(NOT_THERE) is False


def test_a_wrong_key_is_an_authentication_error(server):
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)


def test_an_unknown_template_is_an_error_and_makes_nothing(server):
    before = server.running()
    with pytest.raises(SandboxException) as caught:
        Sandbox.create("no-such-template")
    assert "404" in str(caught.value)
    assert server.running() == before


def test_a_timeout_out_of_range_is_refused(server):
    with pytest.raises(SandboxException) as caught:
        Sandbox.create(timeout=10 * 24 * 3600)
    assert "400" in str(caught.value)


@pytest.mark.skipif("idempotency_key" not in Sandbox.create.__annotations__, reason="this SDK has no idempotency keys")
def test_the_same_idempotency_key_gives_the_same_sandbox(server):
    key = f"test-{time.time_ns()}"
    first = Sandbox.create(timeout=60, idempotency_key=key)
    try:
        second = Sandbox.create(timeout=60, idempotency_key=key)
        assert second.sandbox_id == first.sandbox_id
        with pytest.raises(SandboxException):
            Sandbox.create(timeout=61, idempotency_key=key)
    finally:
        first.kill()


# ---- the asynchronous client ----


def test_the_async_client_goes_the_whole_way(server):
    async def go():
        box = await AsyncSandbox.create(timeout=60, envs={"FOO": "bar"}, metadata={"kind": "async"})
        try:
            result = await box.commands.run("echo $FOO; echo err >&2")
            assert (result.stdout, result.stderr, result.exit_code) == ("bar\n", "err\n", 0)
            with pytest.raises(CommandExitException) as caught:
                await box.commands.run("exit 7", cwd="/tmp", user="root")
            assert caught.value.exit_code == 7

            seen = []
            await box.commands.run("echo one; sleep 0.5; echo two", on_stdout=seen.append)
            assert seen == ["one\n", "two\n"]

            handle = await box.commands.run("sleep 100", background=True)
            assert handle.pid in [process.pid for process in await box.commands.list()]
            assert await handle.kill() is True

            await box.files.write("a/file.txt", "text")
            assert await box.files.read("a/file.txt") == "text"
            assert await box.files.exists("a") is True
            assert [entry.name for entry in await box.files.list("a")] == ["file.txt"]
            await box.files.rename("a/file.txt", "a/new.txt")
            await box.files.remove("a/new.txt")
            assert await box.files.make_dir("a/b") is True
            assert await box.files.make_dir("a/b") is False

            assert (await box.get_info()).metadata == {"kind": "async"}
            await box.set_timeout(300)
            assert abs(((await box.get_info()).end_at - now()).total_seconds() - 300) < 3
        finally:
            assert await box.kill() is True
        assert await box.is_running() is False
        with pytest.raises(TimeoutException):
            await box.commands.run("true")

    asyncio.run(go())


def test_an_async_command_past_its_timeout_is_ended_by_the_server(server):
    async def go():
        box = await AsyncSandbox.create(timeout=60)
        try:
            began = time.monotonic()
            with pytest.raises(TIMED_OUT):
                await box.commands.run("sleep 30", timeout=1)
            assert time.monotonic() - began < 10
        finally:
            await box.kill()

    asyncio.run(go())


def test_ten_sandboxes_are_made_and_used_at_once(server):
    async def one(i):
        box = await AsyncSandbox.create(timeout=60)
        try:
            await box.files.write("who", str(i))
            return (await box.commands.run("cat who")).stdout
        finally:
            await box.kill()

    async def go():
        return await asyncio.gather(*(one(i) for i in range(10)))

    assert asyncio.run(go()) == [str(i) for i in range(10)]
