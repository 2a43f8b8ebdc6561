"""The Python SDK, unmodified: what a user writes, and what it promises in its documentation.

Runs with the newest release and with older ones, down to the oldest that we promise, so exceptions are named by what
all share, and what a release does not have is skipped aloud.
"""

import asyncio
import datetime
import hashlib
import importlib.metadata
import inspect
import io
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
from e2b import InvalidArgumentException, PtySize, TimeoutException
from server import wait_for

NOT_THERE = "inotthere0000000000000"
IS_OLD = not hasattr(e2b, "SandboxNotRunningException")
# Their connect() sets the deadline, and they know no error of its own for a sandbox that is gone.
IS_OLDEST = importlib.metadata.version("e2b").startswith(("2.0.", "2.1.", "2.2."))
GONE = SandboxException if IS_OLDEST else NotFoundException
# Old releases let a broken connection, and a timeout that they notice themselves, through as they are.
TIMED_OUT = (TimeoutException, httpcore.TimeoutException) if IS_OLD else TimeoutException
NOT_RUNNING = TimeoutException if IS_OLD else e2b.SandboxNotRunningException
CUT_OFF = (
    (TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) if IS_OLD else e2b.SandboxNotRunningException
)


# Old releases keep one pool of connections for the process, tied to the loop that made it, so all tests share one loop.
LOOP = asyncio.new_event_loop()


def needs(function, *parameters):
    """Skips, aloud, what this release does not have."""
    if function is None:
        pytest.skip("this release has no such method")
    for name in parameters:
        if name not in inspect.signature(function).parameters:
            pytest.skip(f"this release's {function.__name__} has no {name}")
    return function


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
    out, err = [], []

    def on_stdout(text):
        out.append(text)
        shared_sandbox.files.write("/tmp/heard", "")  # the second line waits for this

    shared_sandbox.commands.run(
        "rm -f /tmp/heard; echo one; echo oops >&2; until [ -e /tmp/heard ]; do sleep 0.01; done; echo two",
        on_stdout=on_stdout,
        on_stderr=err.append,
    )
    assert (out, err) == (["one\n", "two\n"], ["oops\n"])


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


def count_of(sandbox, pattern):
    return int(sandbox.commands.run(f"pgrep -fc '{pattern}' || true").stdout)


def test_killing_a_command_ends_its_children(shared_sandbox):
    handle = shared_sandbox.commands.run("sleep 4321 & sleep 4321; true", background=True)
    assert wait_for(lambda: count_of(shared_sandbox, "sleep 432[1]") >= 2)
    handle.kill()
    assert wait_for(lambda: count_of(shared_sandbox, "sleep 432[1]") == 0)


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
    with pytest.raises(TIMED_OUT):
        shared_sandbox.commands.run("sleep 87654", timeout=1)
    assert wait_for(lambda: count_of(shared_sandbox, "sleep 8765[4]") == 0)


def test_what_detached_itself_outlives_a_timeout(shared_sandbox):
    for how in ("nohup", "setsid"):
        with pytest.raises(TIMED_OUT):
            shared_sandbox.commands.run(f"{how} sleep 76543 >/dev/null 2>&1 & sleep 76544", timeout=2)
        assert wait_for(lambda: count_of(shared_sandbox, "sleep 7654[4]") == 0)
        shared_sandbox.commands.run("pkill -f 'sleep 7654[3]'")  # raises if there is none


def test_setsid_keeps_the_exit_code(shared_sandbox):
    with pytest.raises(CommandExitException) as caught:
        shared_sandbox.commands.run("setsid sh -c 'echo out; exit 3'")
    assert (caught.value.exit_code, caught.value.stdout) == (3, "out\n")


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


def test_input_ends_when_it_is_closed(shared_sandbox):
    close = needs(getattr(shared_sandbox.commands, "close_stdin", None))
    handle = shared_sandbox.commands.run("cat; echo end", background=True, stdin=True)
    shared_sandbox.commands.send_stdin(handle.pid, "a\n")
    close(handle.pid)
    assert handle.wait().stdout == "a\nend\n"


def test_a_handle_passes_input_itself(shared_sandbox):
    handle = shared_sandbox.commands.run("cat; echo end", background=True, stdin=True)
    if not hasattr(handle, "send_stdin"):
        handle.kill()
        pytest.skip("this release's handle has no send_stdin")
    handle.send_stdin(b"a\n")
    handle.close_stdin()
    assert handle.wait().stdout == "a\nend\n"


def test_streamed_input_arrives_in_order_and_while_it_is_sent(shared_sandbox):
    stream_input = needs(getattr(shared_sandbox.commands, "stream_input", None))
    handle = shared_sandbox.commands.run("head -n 4 | sha256sum; echo end", background=True, stdin=True)
    lines = [b"x" * 100_000 + b"\n", "two\n", b"three\n", "four\n"]

    def pieces():
        for line in lines:
            yield line
            time.sleep(0.1)

    stream_input(handle.pid, pieces())
    whole = b"".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    assert handle.wait().stdout.split()[0] == hashlib.sha256(whole).hexdigest()
    with pytest.raises(NotFoundException):
        stream_input(999999, ["x"])


def test_input_for_a_process_that_is_not_there_is_not_found(shared_sandbox):
    with pytest.raises(NotFoundException):
        shared_sandbox.commands.send_stdin(999999, "x")
    if hasattr(shared_sandbox.commands, "close_stdin"):
        with pytest.raises(NotFoundException):
            shared_sandbox.commands.close_stdin(999999)


def test_a_handle_that_disconnects_leaves_the_command_running(shared_sandbox):
    handle = shared_sandbox.commands.run("sleep 1; echo late", background=True)
    handle.disconnect()
    assert handle.pid in [process.pid for process in shared_sandbox.commands.list()]
    assert shared_sandbox.commands.connect(handle.pid).wait().stdout == "late\n"


def test_a_list_of_commands_says_how_each_was_started(shared_sandbox):
    handle = shared_sandbox.commands.run("sleep 50", background=True, envs={"FOO": "bar"}, cwd="/tmp")
    listed = next(process for process in shared_sandbox.commands.list() if process.pid == handle.pid)
    assert listed.cwd == "/tmp" and listed.envs.get("FOO") == "bar" and "sleep 50" in listed.args
    assert handle.kill() is True and handle.kill() is False


# ---- terminals ----


def until_pty_says(handle, text):
    """Reads a terminal until it has said `text`, by the handle's own iterator."""
    seen = b""
    for _, _, data in handle:
        seen += data or b""
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} never came: {seen!r}")


def test_a_terminal_takes_input_and_knows_its_size(shared_sandbox):
    terminal = shared_sandbox.pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"FOO": "bar"})
    shared_sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $FOO-$PWD-$TERM; tty\n")
    seen = until_pty_says(terminal, b"/dev/pts/")
    assert b"24 80" in seen and b"bar-/tmp-xterm" in seen
    shared_sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=100))
    shared_sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    until_pty_says(terminal, b"40 100")
    shared_sandbox.pty.send_stdin(terminal.pid, b"exit 5\n")
    with pytest.raises(CommandExitException) as caught:
        terminal.wait()
    assert caught.value.exit_code == 5


def test_a_terminal_can_be_connected_to_and_killed(shared_sandbox):
    first = shared_sandbox.pty.create(PtySize(rows=24, cols=80), user="root")
    first.disconnect()
    again = needs(getattr(shared_sandbox.pty, "connect", None))(first.pid)
    shared_sandbox.pty.send_stdin(first.pid, b"echo $((6*7))-$(whoami)\n")
    until_pty_says(again, b"42-root")
    assert shared_sandbox.pty.kill(first.pid) is True
    with pytest.raises(CommandExitException):
        again.wait()
    assert shared_sandbox.pty.kill(first.pid) is False


def test_a_terminal_takes_streamed_input(shared_sandbox):
    stream_input = needs(getattr(shared_sandbox.pty, "stream_input", None))
    terminal = shared_sandbox.pty.create(PtySize(rows=24, cols=80))
    stream_input(terminal.pid, ["echo $((6*", b"7))\n", "exit\n"])
    seen = []
    assert terminal.wait(on_pty=seen.append).exit_code == 0
    assert b"42" in b"".join(seen)


def test_a_terminal_that_is_not_there_is_not_found(shared_sandbox):
    assert shared_sandbox.pty.kill(999999) is False
    # Old releases let this one error through as it came.
    with pytest.raises(Exception if IS_OLD else NotFoundException, match="not found"):
        shared_sandbox.pty.resize(999999, PtySize(rows=1, cols=1))
    with pytest.raises(NotFoundException):
        shared_sandbox.pty.send_stdin(999999, b"x")
    if hasattr(shared_sandbox.pty, "connect"):
        with pytest.raises(NotFoundException):
            shared_sandbox.pty.connect(999999)


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

    def status():
        try:
            return urllib.request.urlopen(link, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code

    assert wait_for(lambda: status() == 401)


def test_a_signed_link_takes_an_upload(shared_sandbox):
    link = shared_sandbox.upload_url("uploaded.txt", use_signature_expiration=60)
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="ignored"\r\n\r\nby link\r\n--b--\r\n'
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    with urllib.request.urlopen(urllib.request.Request(link, body, headers), timeout=10) as answer:
        assert answer.status == 200
    assert shared_sandbox.files.read("uploaded.txt") == "by link"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(link.replace("uploaded", "other"), body, headers), timeout=10)
    assert caught.value.code == 401


def test_streams_are_written_as_they_are_read(shared_sandbox):
    blob = hashlib.shake_128(b"stream").digest(3 << 20)
    shared_sandbox.files.write("/tmp/stream", io.BytesIO(blob))
    assert bytes(shared_sandbox.files.read("/tmp/stream", format="bytes")) == blob
    shared_sandbox.files.write("/tmp/text", io.StringIO("Grüße"))
    assert shared_sandbox.files.read("/tmp/text") == "Grüße"


def test_an_iterator_is_written_piece_by_piece(shared_sandbox):
    write = shared_sandbox.files.write
    if "Iterable" not in str(inspect.signature(write).parameters["data"].annotation):
        pytest.skip("this release's write takes no iterator")
    write("/tmp/pieces", (b"%d," % i for i in range(1000)))
    assert shared_sandbox.files.read("/tmp/pieces") == "".join(f"{i}," for i in range(1000))


def test_gzip_on_the_way_changes_nothing(shared_sandbox):
    needs(shared_sandbox.files.write, "gzip")
    text = "the same line again\n" * 20_000
    shared_sandbox.files.write("/tmp/zipped", text, gzip=True)
    assert shared_sandbox.commands.run("stat -c %s /tmp/zipped").stdout.strip() == str(len(text))
    assert shared_sandbox.files.read("/tmp/zipped", gzip=True) == text
    assert shared_sandbox.files.read("/tmp/zipped", format="bytes") == text.encode()
    infos = shared_sandbox.files.write_files([{"path": f"/tmp/z{i}", "data": f"{i}"} for i in range(3)], gzip=True)
    assert [info.name for info in infos] == ["z0", "z1", "z2"] and shared_sandbox.files.read("/tmp/z2") == "2"


def test_octet_streams_are_written(shared_sandbox):
    needs(shared_sandbox.files.write, "use_octet_stream")
    for asked in (True, False):
        shared_sandbox.files.write("/tmp/octets", b"\0\xff" * 1000, use_octet_stream=asked)
        assert bytes(shared_sandbox.files.read("/tmp/octets", format="bytes")) == b"\0\xff" * 1000


def test_metadata_of_a_file_stays_with_it(shared_sandbox):
    needs(shared_sandbox.files.write, "metadata")
    written = shared_sandbox.files.write("tagged", "x", metadata={"Author": "me", "job": "4 2"})
    assert written.metadata == {"author": "me", "job": "4 2"}
    shared_sandbox.files.rename("tagged", "renamed")
    assert shared_sandbox.files.get_info("renamed").metadata == {"author": "me", "job": "4 2"}
    listed = {entry.name: entry.metadata for entry in shared_sandbox.files.list(".")}
    assert listed["renamed"] == {"author": "me", "job": "4 2"}
    with pytest.raises(InvalidArgumentException):
        shared_sandbox.files.write("tagged", "x", metadata={"a key": "x"})


def test_no_files_at_all_are_written_as_asked(shared_sandbox):
    assert shared_sandbox.files.write_files([]) == []


def test_info_tells_links_and_directories_apart(shared_sandbox):
    shared_sandbox.commands.run("mkdir -p kinds && echo 1 > kinds/file && ln -sfn file kinds/link && chmod 750 kinds")
    folder, link = shared_sandbox.files.get_info("kinds"), shared_sandbox.files.get_info("kinds/link")
    assert folder.type.value == "dir" and folder.permissions.endswith("rwxr-x---") and folder.mode & 0o777 == 0o750
    assert link.symlink_target == "/home/user/kinds/file"
    modified = folder.modified_time
    if modified.tzinfo is None:  # old releases
        modified = modified.replace(tzinfo=datetime.timezone.utc)
    assert abs((modified - now()).total_seconds()) < 60


@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.list("plain"),
        lambda files: files.list(".", depth=0),
        lambda files: files.make_dir("plain"),
        lambda files: files.write("/tmp", "x"),
        lambda files: files.watch_dir("plain"),
    ],
    ids=["list", "depth", "make_dir", "write", "watch_dir"],
)
def test_what_makes_no_sense_is_refused(shared_sandbox, call):
    shared_sandbox.files.write("plain", "a file")
    with pytest.raises(InvalidArgumentException):
        call(shared_sandbox.files)


def test_an_unknown_users_files_are_refused(shared_sandbox):
    for call in (
        lambda: shared_sandbox.files.read("x", user="nobody-by-that-name"),
        lambda: shared_sandbox.files.write("x", "y", user="nobody-by-that-name"),
        lambda: shared_sandbox.files.list("/tmp", user="nobody-by-that-name"),
    ):
        with pytest.raises((AuthenticationException, SandboxException)):
            call()


def events_of(watcher, *wanted):
    """(name, type) of what was watched, once all of `wanted` have come."""
    seen = []

    def all_came():
        seen.extend((event.name, event.type.value) for event in watcher.get_new_events())
        return set(wanted) <= set(seen)

    assert wait_for(all_came), seen
    return seen


def test_a_watched_directory_tells_what_happens_in_it(shared_sandbox):
    shared_sandbox.files.make_dir("watched")
    watcher = shared_sandbox.files.watch_dir("watched")
    shared_sandbox.files.write("watched/a", "x")
    events_of(watcher, ("a", "create"), ("a", "write"))
    shared_sandbox.files.rename("watched/a", "watched/b")
    events_of(watcher, ("a", "rename"), ("b", "create"))
    shared_sandbox.commands.run("chmod 600 watched/b && rm watched/b")
    events_of(watcher, ("b", "chmod"), ("b", "remove"))
    watcher.stop()
    with pytest.raises(SandboxException):
        watcher.get_new_events()


def test_a_recursive_watch_sees_new_directories_too(shared_sandbox):
    shared_sandbox.files.make_dir("tree/old")
    watcher = shared_sandbox.files.watch_dir("tree", recursive=True)
    shared_sandbox.files.write("tree/old/f", "x")
    shared_sandbox.files.make_dir("tree/new")
    events_of(watcher, ("old/f", "write"), ("new", "create"))
    shared_sandbox.files.write("tree/new/g", "x")
    events_of(watcher, ("new/g", "write"))
    watcher.stop()


def test_a_watch_gives_entries_when_asked(shared_sandbox):
    needs(shared_sandbox.files.watch_dir, "include_entry")
    shared_sandbox.files.make_dir("entries")
    watcher = shared_sandbox.files.watch_dir("entries", include_entry=True)
    shared_sandbox.files.write("entries/a", "12345")
    events = []
    wait_for(lambda: events.extend(watcher.get_new_events()) or len(events) > 1)
    watcher.stop()
    entry = next(event.entry for event in events if event.type.value == "write")
    assert (entry.path, entry.type.value) == ("/home/user/entries/a", "file")


def test_a_watch_of_what_is_not_there_is_not_found(shared_sandbox):
    with pytest.raises(NotFoundException):
        shared_sandbox.files.watch_dir("not-there")


# ---- git ----


def test_git_goes_from_a_first_commit_to_push_and_pull(shared_sandbox):
    if not hasattr(shared_sandbox, "git"):
        pytest.skip("this release has no git")
    git = shared_sandbox.git
    git.configure_user("A Name", "a@example.com")
    git.init("repo", initial_branch="main")
    git.set_config("core.abbrev", "12", scope="local", path="repo")
    assert git.get_config("core.abbrev", scope="local", path="repo") == "12"
    shared_sandbox.files.write("repo/file", "one")
    assert not git.status("repo").is_clean
    git.add("repo")
    assert git.status("repo").has_staged
    git.commit("repo", "first")
    assert git.status("repo").is_clean and git.status("repo").current_branch == "main"

    git.create_branch("repo", "side")
    git.checkout_branch("repo", "main")
    assert git.branches("repo").current_branch == "main" and set(git.branches("repo").branches) == {"main", "side"}
    git.delete_branch("repo", "side")

    shared_sandbox.files.write("repo/file", "two")
    git.restore("repo", ["file"], worktree=True)
    assert shared_sandbox.files.read("repo/file") == "one"
    shared_sandbox.files.write("repo/file", "three")
    git.add("repo", files=["file"])
    git.reset("repo", mode="hard", target="HEAD")
    assert git.status("repo").is_clean

    git.init("far.git", bare=True, initial_branch="main")
    git.remote_add("repo", "origin", "/home/user/far.git")
    assert git.remote_get("repo", "origin") == "/home/user/far.git"
    git.push("repo", remote="origin", branch="main")
    git.clone("/home/user/far.git", path="copy")
    assert shared_sandbox.files.read("copy/file") == "one"
    shared_sandbox.files.write("repo/file", "four")
    git.add("repo")
    git.commit("repo", "second")
    git.push("repo")
    git.pull("copy")
    assert shared_sandbox.files.read("copy/file") == "four"


def test_git_says_what_went_wrong(shared_sandbox):
    if not hasattr(shared_sandbox, "git"):
        pytest.skip("this release has no git")
    git = shared_sandbox.git
    with pytest.raises(CommandExitException):
        git.status("/tmp")
    with pytest.raises((CommandExitException, SandboxException)):
        git.clone("/home/user/no-such-repository", path="nothing")
    git.configure_user("A Name", "a@example.com")
    git.init("lonely", initial_branch="main")
    git.commit("lonely", "empty", allow_empty=True)
    with pytest.raises(e2b.GitUpstreamException):
        git.pull("lonely")


# ---- the life of a sandbox ----


def test_info_tells_what_was_asked_for(server):
    box = Sandbox.create("base", timeout=200, metadata={"job": "42", "with space": "v&=/é+"})
    try:
        info = box.get_info()
        assert info.sandbox_id == box.sandbox_id
        assert info.metadata == {"job": "42", "with space": "v&=/é+"}
        assert info.template_id and info.name == "base"
        assert abs((info.end_at - info.started_at).total_seconds() - 200) < 2
        assert abs((info.started_at - now()).total_seconds()) < 60
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
        assert abs((box.get_info().end_at - now()).total_seconds() - 500) < 60
        box.set_timeout(50)
        assert abs((box.get_info().end_at - now()).total_seconds() - 50) < 40
    finally:
        box.kill()


def test_a_sandbox_ends_at_its_deadline(server):
    box = Sandbox.create(timeout=2)
    assert box.is_running() is True
    assert wait_for(lambda: box.is_running() is False)
    assert box.sandbox_id not in server.running()


def test_a_sandbox_can_be_connected_to_by_its_id(server):
    box = Sandbox.create(timeout=60)
    try:
        box.files.write("note", "x")
        again = Sandbox.connect(box.sandbox_id)
        assert again.sandbox_id == box.sandbox_id
        assert again.files.read("note") == "x"
        assert again.commands.run("echo hi").stdout == "hi\n"
    finally:
        box.kill()


def test_connecting_never_shortens_a_life(server):
    if IS_OLDEST:
        pytest.skip("this release sets the deadline when it connects")
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
        with pytest.raises(GONE):
            call()


def test_killing_a_sandbox_ends_its_running_commands_aloud(server):
    box = Sandbox.create(timeout=60)
    handle = box.commands.run("sleep 100", background=True)
    threading.Timer(0.5, box.kill).start()
    with pytest.raises(CUT_OFF):
        handle.wait()


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


def test_the_list_filters_by_state_and_goes_either_way(server):
    from e2b import SandboxQuery, SandboxState

    mark = {"mark": str(time.time_ns())}
    boxes = [Sandbox.create(timeout=60, metadata=mark).sandbox_id for _ in range(3)]
    try:
        query = SandboxQuery(metadata=mark, state=[SandboxState.RUNNING])
        assert [info.sandbox_id for info in Sandbox.list(query=query).next_items()] == boxes[::-1]
        paused = SandboxQuery(metadata=mark, state=[SandboxState.PAUSED])
        assert Sandbox.list(query=paused).next_items() == []
        first = Sandbox.list(query=query, limit=1)
        assert [info.sandbox_id for info in first.next_items()] == boxes[:1:-1]
        rest = Sandbox.list(query=query, limit=5, next_token=first.next_token)
        assert [info.sandbox_id for info in rest.next_items()] == boxes[1::-1]
        with pytest.raises(Exception, match="(?i)no more"):
            rest.next_items()
        if "order" in inspect.signature(Sandbox.list).parameters:
            assert [info.sandbox_id for info in Sandbox.list(query=query, order="asc").next_items()] == boxes
    finally:
        for sandbox_id in boxes:
            assert Sandbox.kill(sandbox_id) is True


def test_a_token_that_is_none_is_refused(server):
    with pytest.raises(SandboxException) as caught:
        Sandbox.list(next_token="not a token").next_items()
    assert "400" in str(caught.value)


def test_metrics_say_what_a_sandbox_uses(server):
    box = Sandbox.create(timeout=60)
    try:
        metrics = wait_for(box.get_metrics, 20, pause=0.5)
        assert metrics, "no sample after 20 s"
        last = metrics[-1]
        assert last.cpu_count >= 1 and 0 < last.mem_used <= last.mem_total and 0 < last.disk_used <= last.disk_total
        assert abs((last.timestamp - now()).total_seconds()) < 30
        old = now() - datetime.timedelta(hours=2)
        assert box.get_metrics(start=old, end=old + datetime.timedelta(hours=1)) == []
        with pytest.raises(SandboxException):
            box.get_metrics(start=now(), end=old)
    finally:
        box.kill()


def test_what_needs_only_an_id_needs_no_object(server):
    box = Sandbox.create(timeout=60)
    assert Sandbox.get_info(box.sandbox_id).sandbox_id == box.sandbox_id
    Sandbox.set_timeout(box.sandbox_id, 300)
    assert abs((box.get_info().end_at - now()).total_seconds() - 300) < 60
    assert Sandbox.get_metrics(box.sandbox_id) is not None
    assert Sandbox.kill(box.sandbox_id) is True
    with pytest.raises(GONE):
        Sandbox.get_info(box.sandbox_id)


def test_a_host_name_leads_to_a_port(shared_sandbox):
    assert shared_sandbox.get_host(3000).startswith(f"3000-{shared_sandbox.sandbox_id}.")


def test_a_pause_and_a_connect(server):
    """What every release has of it; test_pause.py has the rest."""
    box = Sandbox.create(timeout=60)
    try:
        pause = getattr(box, "pause", None) or needs(getattr(box, "beta_pause", None))
        pid = box.commands.run("sleep 3600", background=True).pid
        pause()
        assert box.is_running() is False
        box = Sandbox.connect(box.sandbox_id)
        assert box.is_running() is True and pid in [process.pid for process in box.commands.list()]
    finally:
        box.kill()


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
            assert abs(((await box.get_info()).end_at - now()).total_seconds() - 300) < 60
        finally:
            assert await box.kill() is True
        assert await box.is_running() is False
        with pytest.raises(TimeoutException):
            await box.commands.run("true")

    LOOP.run_until_complete(go())


def test_an_async_command_past_its_timeout_is_ended_by_the_server(server):
    async def go():
        box = await AsyncSandbox.create(timeout=60)
        try:
            with pytest.raises(TIMED_OUT):
                await box.commands.run("sleep 1000", timeout=1)
        finally:
            await box.kill()

    LOOP.run_until_complete(go())


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

    assert LOOP.run_until_complete(go()) == [str(i) for i in range(10)]


def test_async_commands_do_all_that_sync_ones_do(server):
    async def go():
        box = await AsyncSandbox.create(timeout=120)
        try:
            command = "read line; echo got $line; sleep 0.5; echo end"
            handle = await box.commands.run(command, background=True, stdin=True)
            await box.commands.send_stdin(handle.pid, "hello\n")
            again = await box.commands.connect(handle.pid)
            await handle.disconnect()
            result = await again.wait()
            assert result.stdout.endswith("end\n") and result.exit_code == 0

            if hasattr(box.commands, "close_stdin"):
                handle = await box.commands.run("cat; echo end", background=True, stdin=True)
                await box.commands.close_stdin(handle.pid)
                assert (await handle.wait()).stdout == "end\n"
            if hasattr(box.commands, "stream_input"):
                handle = await box.commands.run("head -n 2", background=True, stdin=True)
                async with box.commands.stream_input(handle.pid) as stream:
                    await stream.send("one\n")
                    await stream.send(b"two\n")
                assert (await handle.wait()).stdout == "one\ntwo\n"
            for call in (box.commands.connect(999999), box.commands.send_stdin(999999, "x")):
                with pytest.raises(NotFoundException):
                    await call
            assert await box.commands.kill(999999) is False
            with pytest.raises((AuthenticationException, SandboxException)):
                await box.commands.run("true", user="nobody-by-that-name")

            seen = []
            terminal = await box.pty.create(PtySize(rows=24, cols=80), on_data=seen.append)
            await box.pty.resize(terminal.pid, PtySize(rows=40, cols=100))
            await box.pty.send_stdin(terminal.pid, b"stty size; exit 5\n")
            with pytest.raises(CommandExitException) as caught:
                await terminal.wait()
            assert caught.value.exit_code == 5 and b"40 100" in b"".join(seen)
            terminal = await box.pty.create(PtySize(rows=24, cols=80), on_data=seen.append)
            assert await box.pty.kill(terminal.pid) is True
            assert await box.pty.kill(terminal.pid) is False
        finally:
            await box.kill()

    LOOP.run_until_complete(go())


def test_async_files_do_all_that_sync_ones_do(server):
    async def go():
        box = await AsyncSandbox.create(timeout=120)
        try:
            blob = hashlib.shake_128(b"async").digest(2 << 20)
            await box.files.write("/tmp/blob", blob)
            assert bytes(await box.files.read("/tmp/blob", format="bytes")) == blob
            assert b"".join([piece async for piece in await box.files.read("/tmp/blob", format="stream")]) == blob
            await box.files.write("/tmp/stream", io.BytesIO(blob))
            assert (await box.files.get_info("/tmp/stream")).size == len(blob)
            infos = await box.files.write_files([{"path": f"/tmp/many/{i}", "data": f"{i}"} for i in range(3)])
            assert [info.name for info in infos] == ["0", "1", "2"]
            assert len(await box.files.list("/tmp", depth=2)) >= 5
            parameters = inspect.signature(box.files.write).parameters
            if "gzip" in parameters:
                await box.files.write("/tmp/zipped", "a" * 100_000, gzip=True)
                assert await box.files.read("/tmp/zipped", gzip=True) == "a" * 100_000
            if "metadata" in parameters:
                await box.files.write("/tmp/tagged", "x", metadata={"job": "42"})
                assert (await box.files.get_info("/tmp/tagged")).metadata == {"job": "42"}
            files = box.files
            for call in (files.read("no"), files.list("no"), files.get_info("no"), files.rename("no", "x")):
                with pytest.raises(NotFoundException):
                    await call
            with pytest.raises(InvalidArgumentException):
                await box.files.read("/tmp")

            seen = []
            await box.files.make_dir("watched")
            watcher = await box.files.watch_dir("watched", seen.append, recursive=True)
            await box.files.write("watched/a", "x")
            for _ in range(100):
                if ("a", "write") in [(event.name, event.type.value) for event in seen]:
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError(seen)
            await watcher.stop()
            with pytest.raises(NotFoundException):
                await box.files.watch_dir("not-there", seen.append)
        finally:
            await box.kill()

    LOOP.run_until_complete(go())


def test_the_async_life_of_a_sandbox(server):
    async def go():
        box = await AsyncSandbox.create(timeout=60, metadata={"kind": "async life"})
        try:
            from e2b import SandboxQuery

            paginator = AsyncSandbox.list(query=SandboxQuery(metadata={"kind": "async life"}))
            assert [info.sandbox_id for info in await paginator.next_items()] == [box.sandbox_id]
            again = await AsyncSandbox.connect(box.sandbox_id, timeout=300)
            assert again.sandbox_id == box.sandbox_id
            assert abs(((await AsyncSandbox.get_info(box.sandbox_id)).end_at - now()).total_seconds() - 300) < 60
            assert isinstance(await box.get_metrics(), list)
            if hasattr(box, "git"):
                await box.git.init("repo", initial_branch="main")
                assert (await box.git.status("repo")).current_branch == "main"
        finally:
            assert await box.kill() is True
        assert await AsyncSandbox.kill(box.sandbox_id) is False
        for call in (box.get_info(), box.set_timeout(10), AsyncSandbox.connect(box.sandbox_id)):
            with pytest.raises(GONE):
                await call
        with pytest.raises(AuthenticationException):
            await AsyncSandbox.create(api_key="e2b_" + "0" * 40)

    LOOP.run_until_complete(go())
