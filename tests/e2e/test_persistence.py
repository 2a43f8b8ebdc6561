"""What is kept is kept: through a kill of the whole server, damage, a full disk, and everything at the same time.

Each sandbox here ends as running, paused or gone: never two of it, and never lost once the API has said that it is paused.
All of it needs images of processes on disk, and is skipped aloud where the machine has no CRIU.
"""

import concurrent.futures
import contextlib
import http.client
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from e2b import CommandExitException, PtySize, SandboxException
from e2b_code_interpreter import Sandbox
from server import SHARED_DATA, Server, layers_of, prepare, wait_for
from test_faults import come_back
from test_full_disk import FILL_BYTES, SmallDisk
from traces import inventory, rows, traces_of

FULL = "code-interpreter-v1"
PARKED_IMAGE = "held 3"  # in its record: its processes are an image, and those that ran are being ended


@pytest.fixture(scope="module")
def mine(server):
    """A server to kill, with sandboxes whose memory can be written to disk."""
    data = server.data.parent / f"{server.data.name}-faults"
    prepare(data)
    own = Server(data)
    own.start_when_free()
    own.kill_all()
    reason = why_no_images(own)
    if reason:
        own.stop()
        pytest.skip(f"no images of processes on this machine: {reason}")
    yield own
    try:
        if own.process is None or own.process.poll() is not None:
            own.start()
        own.kill_all()
    finally:
        own.stop()


def why_no_images(server):
    box = server.create()
    answer = snapshot(server, box)
    if answer.status == 201:
        assert server.api("DELETE", f"/templates/{answer.json['snapshotID']}").status == 204
    server.api("DELETE", f"/sandboxes/{box['sandboxID']}")
    return answer.json["message"] if answer.status == 503 else None


@pytest.fixture(autouse=True)
def tidy(mine):
    """Nothing of one test is left for the next."""
    yield
    if mine.process is None or mine.process.poll() is not None:
        mine.start()
    mine.kill_all()


def use(server, sandbox_id, **options):
    return Sandbox.connect(
        sandbox_id, timeout=600, api_key=server.key, api_url=server.url, sandbox_url=server.url, **options
    )


def make(server, template="base", **options):
    return Sandbox.create(
        template, timeout=600, api_key=server.key, api_url=server.url, sandbox_url=server.url, **options
    )


def pause(server, sandbox_id, memory=True):
    return server.api("POST", f"/sandboxes/{sandbox_id}/pause", {"memory": memory})


def connect(server, sandbox_id, **fields):
    return server.api("POST", f"/v2/sandboxes/{sandbox_id}/connect", {"timeout": 600, **fields})


def snapshot(server, box, **fields):
    return server.api("POST", f"/sandboxes/{box['sandboxID']}/snapshots", fields)


def fork(server, sandbox_id, count=1):
    return server.api("POST", f"/sandboxes/{sandbox_id}/fork", {"count": count})


def state_of(server, sandbox_id):
    """None: gone."""
    answer = server.api("GET", f"/sandboxes/{sandbox_id}")
    assert answer.status in (200, 404), answer
    return answer.json["state"] if answer.status == 200 else None


def place_of(server, sandbox_id):
    return server.data / "sandboxes" / sandbox_id


def guestds(sandbox_id):
    """The processes on the host that are pid 1 of that sandbox. More than one would be two of it.

    Not the dead: what a restore had made when it was cut short has the host's init as its parent, which takes note of its
    end when it likes. On some machines that is seconds later.
    """
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has just ended
            places = [line for line in status.with_name("cgroup").read_text().splitlines() if sandbox_id in line]
            if all(place.endswith(" (deleted)") for place in places):
                continue
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            ids = lines["NSpid"].split()
            if len(ids) > 1 and ids[-1] == "1" and lines["State"].split()[0] not in "ZX":
                found.append(int(ids[0]))
    return found


def is_on_disk(server, sandbox_id):
    record = (place_of(server, sandbox_id) / "state").read_text().splitlines()
    return PARKED_IMAGE in record and not guestds(sandbox_id)


def wait_until_on_disk(server, *ids):
    assert wait_for(lambda: all(is_on_disk(server, sandbox_id) for sandbox_id in ids)), server.log_tail()


def kill_everything(server):
    """All roles at once: none has time to tell another. Sandboxes are keeper's children too, and not the server."""
    children = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    roles = [pid for pid in map(int, children) if is_role(pid)]
    for pid in [server.pid, *roles]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.process.wait()


def is_role(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"role"]
    except OSError:
        return False  # it has just ended


def first_line(box, command, **options):
    return box.commands.run(command, **options).stdout.strip()


def start_sleeper(box):
    """A process to look for afterwards; no stream of the SDK's hangs on it."""
    return first_line(box, "(setsid sleep 36000 >/dev/null 2>&1 & echo $!)")


def lives(box, pid):
    return first_line(box, f"kill -0 {pid} 2>/dev/null && echo alive || true") == "alive"


# ---- to disk, and back in another server ----

VARIABLES = {  # how each interpreter remembers, and is asked
    "python": ("kept = [41]", "print(kept[0] + 1)"),
    "javascript": ("globalThis.kept = 41", "console.log(kept + 1)"),
    "r": ("kept <- 41", "cat(kept + 1)"),
    "bash": ("kept=41", "echo $((kept + 1))"),
}
# A deleted file, which only this shell still has open, and a stream: both are asked for later.
SHELL = """exec 3<>/home/user/gone; echo 'what was in it' >&3; rm /home/user/gone
for i in 1 2 3; do echo line $i; done
read word; echo "heard $word"; cat /proc/self/fd/3; exit 7"""


@pytest.fixture
def full(mine):
    """Interpreters of all languages where there is a template with them, else Python."""
    templates = [name for t in mine.api("GET", "/templates").json for name in t["names"]]
    if FULL not in templates:
        pytest.skip(f"there is no template {FULL}: cloister template build code-interpreter")
    return make(mine, FULL, envs={"COLOR": "blue"})


# Where the template has no vi: knows i, Escape and :wq.
EDITOR = """
import os, sys, termios, tty
before = termios.tcgetattr(0)
tty.setraw(0, termios.TCSANOW)
os.read(0, 1)
text = b""
while (key := os.read(0, 1)) != b"\\x1b":
    text += key
while os.read(0, 1) not in (b"\\r", b"\\n"):
    pass
termios.tcsetattr(0, termios.TCSANOW, before)
open(sys.argv[1], "wb").write(text + b"\\n")
"""


def test_everything_lives_through_a_pause_to_disk_and_a_kill_of_the_server(mine, full):
    box = full
    sandbox_id = box.sandbox_id
    for language, (code, _) in VARIABLES.items():
        assert not box.run_code(code, language=language, timeout=60).error
    box.files.write("/tmp/www/hello", "hello")
    web = first_line(box, "cd /tmp/www && (setsid python3 -m http.server 8000 >/dev/null 2>&1 & echo $!)")
    routing = {"sandboxID": sandbox_id}
    assert wait_for(lambda: mine.edge("GET", routing, "/hello", port=8000).status == 200)
    shell = box.commands.run(SHELL, background=True, stdin=True, timeout=0)
    assert wait_for(lambda: first_line(box, "ls /home/user/gone 2>/dev/null || echo gone") == "gone")
    editor = box.pty.create(PtySize(rows=24, cols=80), timeout=0)
    program = "vi -u NONE" if first_line(box, "command -v vi || true") else "python3 /tmp/editor.py"
    box.files.write("/tmp/editor.py", EDITOR)
    box.pty.send_stdin(editor.pid, f"exec {program} /home/user/draft\n".encode())
    assert wait_for(lambda: first_line(box, f"cat /proc/{editor.pid}/comm || true")[:2] == program[:2])
    time.sleep(1)  # it sets the terminal up, of which nothing is to be seen either
    box.pty.send_stdin(editor.pid, b"iwritten before the pause")
    time.sleep(0.5)  # it reads that; there is nothing to see of it outside
    box.commands.run("echo in memory > /dev/shm/note")
    boot_id = first_line(box, "cat /proc/sys/kernel/random/boot_id")

    box.pause()
    wait_until_on_disk(mine, sandbox_id)
    kill_everything(mine)
    mine.start()
    assert state_of(mine, sandbox_id) == "paused"
    assert connect(mine, sandbox_id).status == 201

    box = use(mine, sandbox_id)
    clock = float(box.run_code("import time; time.time()").text)
    assert abs(clock - time.time()) < 5, "its clock stood still"
    for language, (_, code) in VARIABLES.items():
        result = box.run_code(code, language=language, timeout=60)
        assert not result.error and "".join(result.logs.stdout).strip() == "42", (language, result)
    assert lives(box, web) and mine.edge("GET", routing, "/hello", port=8000).body == b"hello"
    assert first_line(box, "cat /dev/shm/note") == "in memory"
    assert first_line(box, "echo $COLOR") == "blue"
    assert first_line(box, "cat /proc/sys/kernel/random/boot_id") == boot_id

    again = box.commands.connect(shell.pid, timeout=20)
    box.commands.send_stdin(shell.pid, "me\n")
    with pytest.raises(CommandExitException) as ended:
        again.wait()
    assert ended.value.exit_code == 7 and ended.value.stdout.endswith("heard me\nwhat was in it\n"), ended.value.stdout

    seen = box.pty.connect(editor.pid, timeout=20)
    box.pty.send_stdin(editor.pid, b", and after it\x1b:wq\n")
    seen.wait()
    assert first_line(box, "cat /home/user/draft") == "written before the pause, and after it"


def test_it_can_be_kept_again_and_again(mine):
    """From one slot to another, and with the files of each round."""
    box = make(mine)
    pid = start_sleeper(box)
    for i in range(2):
        box.files.write(f"/home/user/{i}", str(i))
        box.pause()
        wait_until_on_disk(mine, box.sandbox_id)
        if i == 0:
            kill_everything(mine)
            mine.start()
            other = make(mine)  # has its place now
        box = use(mine, box.sandbox_id)
        assert lives(box, pid)
    assert first_line(box, "cat /home/user/0 /home/user/1") == "01"
    assert other.is_running() and not lives(other, pid)


# ---- images that cannot be used ----


def other_kernel(image):
    text = (image / "cloister").read_text()
    (image / "cloister").write_text(text.replace("\nkernel ", "\nkernel 2.4.", 1))


def cut(name):
    def damage(image):
        path = sorted(image.glob(name))[-1]
        os.truncate(path, path.stat().st_size // 2)

    return damage


def garble(name):
    def damage(image):
        path = sorted(image.glob(name))[-1]
        path.write_bytes(os.urandom(path.stat().st_size))

    return damage


DAMAGES = {
    "of another kernel": other_kernel,
    "no list of its own": lambda image: (image / "cloister").unlink(),
    "half a list": cut("cloister"),
    "garbage for a list": garble("cloister"),
    "half of the pages": cut("pages-*.img"),
    "no pages": lambda image: [path.unlink() for path in image.glob("pages-*.img")],
    "garbage for a process": garble("core-*.img"),
    "half a table of files": cut("files.img"),
    "no user namespace": lambda image: [path.unlink() for path in image.glob("userns-*.img")],
    "nothing at all": lambda image: [path.unlink() for path in image.iterdir()],
}


def test_a_damaged_image_is_refused_and_the_files_still_start(mine):
    boxes = {name: make(mine) for name in DAMAGES}
    for name, box in boxes.items():
        box.files.write("/home/user/note", name)
        assert pause(mine, box.sandbox_id).status == 204
    wait_until_on_disk(mine, *(box.sandbox_id for box in boxes.values()))
    for name, box in boxes.items():
        DAMAGES[name](place_of(mine, box.sandbox_id) / "image")
    for name, box in boxes.items():
        for _ in range(2):  # it is as paused as before
            mark = mine.log_path.stat().st_size
            answer = connect(mine, box.sandbox_id)
            assert answer.status == 409 and "on_resume='reboot'" in answer.json["message"], (name, answer)
            assert mine.log_path.read_text()[mark:].count("did not come back") <= 1, name  # it was tried once
            assert state_of(mine, box.sandbox_id) == "paused" and not guestds(box.sandbox_id), name
        answer = connect(mine, box.sandbox_id, memory=False)
        assert answer.status == 201, (name, answer)
        assert use(mine, box.sandbox_id).files.read("/home/user/note") == name
        assert len(guestds(box.sandbox_id)) == 1


# ---- compressed ----

KEPT_CODE = "import os; kept = os.urandom(40 << 20) + bytes(40 << 20); sum_before = sum(kept[::4096])"


@pytest.fixture
def compressing(mine):
    """The same server, but memory is compressed a second after it was written or used."""
    before = list(mine.options)
    yield restart_with(mine, *before, "--compress-after", "1")
    restart_with(mine, *before)


def restart_with(server, *options):
    if server.process is not None and server.process.poll() is None:
        server.stop()
    server.options = list(options)
    server.start_when_free()
    return server


def is_compressed(image):
    return (image / "pages.zst").exists() and not list(image.glob("pages-*.img"))


def wait_until_compressed(server, image):
    assert wait_for(lambda: is_compressed(image)), server.log_tail()


def pages_bytes(image):
    return sum(path.stat().st_size for path in image.glob("pages*"))


@pytest.mark.timeout(300)
def test_a_compressed_image_comes_back_with_its_variables(compressing):
    box = make(compressing, FULL) if has_full(compressing) else make(compressing)
    box.run_code(KEPT_CODE)
    pid = start_sleeper(box)
    image = place_of(compressing, box.sandbox_id) / "image"
    for restarts in (False, True):
        assert pause(compressing, box.sandbox_id).status == 204
        wait_until_on_disk(compressing, box.sandbox_id)
        wait_until_compressed(compressing, image)
        if restarts:
            kill_everything(compressing)
            compressing.start_when_free()
        row = wait_for(lambda: measured(compressing, box.sandbox_id), 60)
        assert row, "it was not measured"
        assert (40 << 20) < row["memoryBytes"] < row["memoryRawBytes"] - (30 << 20), row
        assert row["diskBytes"] > 0, row
        box = use(compressing, box.sandbox_id)
        assert box.run_code("print(sum(kept[::4096]) == sum_before)").logs.stdout == ["True\n"]
        assert lives(box, pid)
        assert not image.exists()


def measured(server, sandbox_id):
    """The row of a paused sandbox, once it says what it takes, compressed."""
    row = server.api("GET", f"/sandboxes/{sandbox_id}").json
    return row if row.get("memoryBytes", 0) < row.get("memoryRawBytes", 0) else None


def has_full(server):
    return FULL in [name for t in server.api("GET", "/templates").json for name in t["names"]]


@pytest.mark.timeout(300)
def test_copies_of_a_compressed_snapshot(compressing):
    box = make(compressing)
    pid = start_sleeper(box)
    made = snapshot(compressing, {"sandboxID": box.sandbox_id}, name="small").json
    kept = max((compressing.data / "snapshots").iterdir(), key=lambda path: path.stat().st_ctime)
    try:
        wait_until_compressed(compressing, kept / "image")
        assert wait_for(
            lambda: any(
                row["memoryBytes"] < row["memoryRawBytes"] for row in compressing.api("GET", "/snapshots").json
            ),
            60,
        ), "its new size is not in the list"
        with concurrent.futures.ThreadPoolExecutor(4) as pool:  # pages are made again once, for all of them
            copies = list(pool.map(lambda _: make(compressing, made["snapshotID"]), range(4)))
        for copy in copies:
            assert lives(copy, pid)
            copy.kill()
        wait_until_compressed(compressing, kept / "image")  # nobody uses it any more
        hurt(kept / "image" / "pages.zst")
        answer = compressing.api("POST", "/v2/sandboxes", {"templateID": made["snapshotID"]})
        assert answer.status == 409 and "make a new snapshot" in answer.json["message"], answer
    finally:
        assert compressing.api("DELETE", "/templates/small").status == 204


def hurt(path):
    """One bit in the middle."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_compressed_image_is_refused_and_the_files_still_start(compressing):
    damages = {
        "a bit": hurt,
        "cut short": lambda path: os.truncate(path, path.stat().st_size - 1),
        "empty": lambda path: os.truncate(path, 0),
    }
    boxes = {name: make(compressing) for name in damages}
    for name, box in boxes.items():
        box.files.write("/home/user/note", name)
        assert pause(compressing, box.sandbox_id).status == 204
    for name, box in boxes.items():
        image = place_of(compressing, box.sandbox_id) / "image"
        wait_until_compressed(compressing, image)
        damages[name](image / "pages.zst")
        for _ in range(2):  # it is as paused as before
            answer = connect(compressing, box.sandbox_id)
            assert answer.status == 409 and "on_resume='reboot'" in answer.json["message"], (name, answer)
            assert state_of(compressing, box.sandbox_id) == "paused" and not guestds(box.sandbox_id), name
        answer = connect(compressing, box.sandbox_id, memory=False)
        assert answer.status == 201, (name, answer)
        assert use(compressing, box.sandbox_id).files.read("/home/user/note") == name


@pytest.mark.timeout(300)
def test_a_kill_while_it_is_compressed_loses_nothing(compressing):
    box = make(compressing)
    box.run_code(KEPT_CODE)
    image = place_of(compressing, box.sandbox_id) / "image"
    caught = 0
    for round_number in range(4):
        assert pause(compressing, box.sandbox_id).status == 204
        wait_until_on_disk(compressing, box.sandbox_id)
        assert wait_for(lambda: (image / "pages.zst.new").exists() or is_compressed(image), pause=0.001)
        time.sleep(0.05 * round_number)
        caught += not is_compressed(image)
        kill_everything(compressing)
        assert is_compressed(image) or pages_bytes(image) > 80 << 20
        compressing.start_when_free()
        if round_number % 2:
            wait_until_compressed(compressing, image)  # it begins anew, and what was cut short is gone
            assert not list(image.glob("*.new"))
        box = use(compressing, box.sandbox_id)
        assert box.run_code("print(sum(kept[::4096]) == sum_before)").logs.stdout == ["True\n"]
    assert caught, "it was always too late: make it larger"


# ---- what is too old ----


def execute(server, statement, *values):
    with contextlib.closing(sqlite3.connect(server.data / "store" / "cloister.db")) as store, store:
        return store.execute(statement, values).rowcount


def test_what_is_too_old_goes_and_nothing_else(mine):
    old, young, running = make(mine), make(mine), make(mine)
    for box in (old, young):
        assert pause(mine, box.sandbox_id, memory=False).status == 204
    for name in ("old", "young", "used"):
        assert snapshot(mine, {"sandboxID": running.sandbox_id}, name=name, memory=False).status == 201
    made = make(mine, "used")
    before = list(mine.options)
    mine.stop()
    days_us = 5 * 24 * 3600 * 1_000_000
    assert execute(mine, "UPDATE sandboxes SET deadline_us = deadline_us - ? WHERE id = ?", days_us, old.sandbox_id) == 1
    for name in ("old", "used"):
        assert execute(mine, "UPDATE snapshots SET used_us = used_us - ? WHERE name = ?", days_us, name) == 1
    try:
        mine.start()  # without the options all of it stays
        time.sleep(5)
        assert state_of(mine, old.sandbox_id) == "paused"
        assert names_of_snapshots(mine) == {"old", "young", "used"}
        restart_with(mine, *before, "--snapshot-days", "3", "--paused-days", "4")
        assert wait_for(lambda: state_of(mine, old.sandbox_id) is None), mine.log_tail()
        assert wait_for(lambda: names_of_snapshots(mine) == {"young", "used"}), mine.log_tail()
        assert wait_for(lambda: not place_of(mine, old.sandbox_id).exists())  # after the answer
        assert state_of(mine, young.sandbox_id) == "paused"
        assert state_of(mine, running.sandbox_id) == state_of(mine, made.sandbox_id) == "running"
        killed = mine.api("GET", f"/events/sandboxes/{old.sandbox_id}?types=sandbox.lifecycle.killed").json
        assert [event["eventData"]["kill_reason"] for event in killed] == ["retention"]
        deleted = mine.api("GET", f"/events/sandboxes/{running.sandbox_id}?types=sandbox.snapshot.deleted").json
        assert [event["eventData"]["snapshot_id"] for event in deleted] == ["old:default"]
        assert connect(mine, young.sandbox_id).status == 201
    finally:
        restart_with(mine, *before)
        mine.kill_all()
        for name in names_of_snapshots(mine):
            assert mine.api("DELETE", f"/templates/{name}").status == 204


def names_of_snapshots(server):
    return {row["snapshotID"].split("/")[-1].split(":")[0] for row in server.api("GET", "/snapshots").json}


def test_a_template_may_go_while_a_sandbox_made_from_it_is_paused(mine):
    """Its layers stay for as long as a record names them: the server that starts next removes all others."""
    boxes = [make(mine), make(mine)]
    pid = start_sleeper(boxes[0])
    assert pause(mine, boxes[0].sandbox_id).status == 204
    assert pause(mine, boxes[1].sandbox_id, memory=False).status == 204
    wait_until_on_disk(mine, boxes[0].sandbox_id)
    bases = [path for path in (mine.data / "templates").iterdir() if "name base\n" in path.read_text()]
    texts = [path.read_text() for path in bases]
    assert bases
    try:
        for path in bases:
            path.unlink()
        mine.stop()
        mine.start()
        assert mine.api("POST", "/sandboxes", {"templateID": "base"}).status == 404
        for box in boxes:
            assert connect(mine, box.sandbox_id).status == 201, mine.log_tail()
            assert first_line(use(mine, box.sandbox_id), "test -x /bin/sh && echo there") == "there"
        assert lives(use(mine, boxes[0].sandbox_id), pid)
        (copy,) = ids_of(fork(mine, boxes[0].sandbox_id))  # and all else works with it
        assert lives(use(mine, copy), pid)
    finally:
        mine.stop()
        for path, text in zip(bases, texts):
            path.write_text(text)
        mine.start()


# ---- what cannot be written to disk ----

TRACE = """import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    time.sleep(36000)
assert libc.ptrace(16, child, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PTRACE_ATTACH
os.waitpid(child, 0)
open("/tmp/ready", "w").close()
time.sleep(36000)
"""


def start_a_debugger(box):
    box.files.write("/tmp/trace.py", TRACE)
    box.commands.run("python3 /tmp/trace.py", background=True, timeout=0)
    assert wait_for(lambda: box.files.exists("/tmp/ready")), "it cannot trace"


def start_a_root_shell(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), timeout=0)
    box.pty.send_stdin(terminal.pid, b"sudo -s\n")
    # A shell of root's below sudo's own process; its prompt means that it has the terminal.
    assert wait_for(lambda: first_line(box, "pgrep -u root -P $(pgrep -nx sudo) || true"))
    box.pty.send_stdin(terminal.pid, b"touch /tmp/ready\n")
    assert wait_for(lambda: box.files.exists("/tmp/ready"))


@pytest.mark.parametrize(
    ("start", "reason"),
    [(start_a_root_shell, "sudo -s"), (start_a_debugger, "debugged")],
    ids=["a-root-shell-in-a-terminal", "a-debugged-process"],
)
def test_what_cannot_be_written_to_disk_is_refused_with_a_reason_and_goes_on(mine, start, reason):
    box = make(mine)
    pid = start_sleeper(box)
    start(box)
    before = guestds(box.sandbox_id)
    for ask in (lambda: snapshot(mine, {"sandboxID": box.sandbox_id}), lambda: fork(mine, box.sandbox_id)):
        answer = ask()
        assert answer.status == 400 and reason in answer.json["message"], answer
        assert "mode='filesystem'" in answer.json["message"], answer
        assert state_of(mine, box.sandbox_id) == "running" and lives(box, pid)
    assert guestds(box.sandbox_id) == before and list((mine.data / "snapshots").iterdir()) == []
    # Paused it stays in memory, and the log says why.
    mark = mine.log_path.stat().st_size
    box.pause()
    said = f"sandbox {box.sandbox_id}: its memory stays in RAM"
    assert wait_for(lambda: said in mine.log_path.read_text()[mark:]), mine.log_tail()
    assert state_of(mine, box.sandbox_id) == "paused" and guestds(box.sandbox_id) == before
    box = use(mine, box.sandbox_id)
    assert lives(box, pid)
    # And what the answer has offered works.
    copy = snapshot(mine, {"sandboxID": box.sandbox_id}, memory=False)
    assert copy.status == 201, copy
    assert mine.api("DELETE", f"/templates/{copy.json['snapshotID']}").status == 204
    assert pause(mine, box.sandbox_id, memory=False).status == 204
    assert not lives(use(mine, box.sandbox_id), pid)


# Ends its children as soon as it sees the clock jump, which is while the last of them are still being brought back.
KILLER = """
import os, time
children = []
for _ in range(100):
    pid = os.fork()
    if not pid:
        time.sleep(10000)
    children.append(pid)
open("/tmp/killer-is-up", "w").close()
before = time.time()
while time.time() - before < 0.5:
    before = time.time()
for pid in reversed(children):
    os.kill(pid, 9)
time.sleep(10000)
"""


def test_processes_that_end_each_other_as_they_come_back_hold_nothing_up(mine):
    box = make(mine)
    box.files.write("/tmp/killer.py", KILLER)
    box.commands.run(
        "setsid python3 /tmp/killer.py >/dev/null 2>&1 </dev/null & while [ ! -e /tmp/killer-is-up ]; do sleep 0.05; done"
    )
    assert pause(mine, box.sandbox_id).status == 204
    wait_until_on_disk(mine, box.sandbox_id)
    answer = connect(mine, box.sandbox_id)
    if answer.status == 409:
        assert "ended just as it came back" in answer.json["message"]
        assert state_of(mine, box.sandbox_id) == "paused"
        assert connect(mine, box.sandbox_id, memory=False).status == 201
    else:
        assert answer.status == 201, answer
    assert box.commands.run("echo up").stdout == "up\n"


# ---- at the same time ----


def at_once(*calls):
    """All of them started together; their results in order."""
    gate = threading.Barrier(len(calls))

    def run(call):
        gate.wait()
        return call()

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [job.result() for job in [pool.submit(run, call) for call in calls]]


def check_whole(server, sandbox_id, pid):
    """It is there once, and goes on where it was."""
    assert state_of(server, sandbox_id) in ("running", "paused")
    answer = connect(server, sandbox_id)
    assert answer.status in (200, 201), answer
    assert len(guestds(sandbox_id)) == 1
    assert lives(use(server, sandbox_id), pid)


def statuses(answers):
    return sorted(answer.status for answer in answers)


def test_pauses_at_the_same_time_are_one(mine):
    box = make(mine)
    pid, sandbox_id = start_sleeper(box), box.sandbox_id
    answers = at_once(*[lambda: pause(mine, sandbox_id)] * 8)
    assert 204 in statuses(answers) and set(statuses(answers)) <= {204, 409}
    assert state_of(mine, sandbox_id) == "paused"
    events = mine.api("GET", f"/events/sandboxes/{sandbox_id}?types=sandbox.lifecycle.paused").json
    assert len(events) == 1
    check_whole(mine, sandbox_id, pid)


def test_pauses_forks_snapshots_and_resumes_in_each_others_way(mine):
    """Each is done, or refused because of another; what was made is whole."""
    box = make(mine)
    pid, sandbox_id = start_sleeper(box), box.sandbox_id
    for _ in range(4):
        paused, forked, copied, connected = at_once(
            lambda: pause(mine, sandbox_id),
            lambda: fork(mine, sandbox_id),
            lambda: snapshot(mine, {"sandboxID": sandbox_id}),
            lambda: connect(mine, sandbox_id),
        )
        assert paused.status in (204, 409) and connected.status in (200, 201, 409), (paused, connected)
        assert forked.status in (201, 409) and copied.status in (201, 409), (forked, copied)
        if forked.status == 201:
            (one,) = forked.json
            check_whole(mine, one["sandbox"]["sandboxID"], pid)
            mine.api("DELETE", f"/sandboxes/{one['sandbox']['sandboxID']}")
        if copied.status == 201:
            assert mine.api("DELETE", f"/templates/{copied.json['snapshotID']}").status == 204
        check_whole(mine, sandbox_id, pid)
    assert wait_for(lambda: not list((mine.data / "snapshots").iterdir()))


def wait_while_written(server, sandbox_id):
    assert wait_for(lambda: (place_of(server, sandbox_id) / "image.new").exists(), pause=0.005)


BEFORE_A_KILL = {  # what is asked for before, and what goes on while the kill comes
    "running": ([], None),
    "pausing": ([], pause),
    "pausing without memory": ([], lambda server, sandbox_id: pause(server, sandbox_id, memory=False)),
    "paused": ([pause], None),
    "being written": ([pause, wait_while_written], None),
    "on disk": ([pause, wait_until_on_disk], None),
    "on disk without memory": ([lambda server, sandbox_id: pause(server, sandbox_id, memory=False)], None),
    "thawing": ([pause], connect),
    "coming back": ([pause, wait_until_on_disk], connect),
    "rebooting": ([pause, wait_until_on_disk], lambda server, sandbox_id: connect(server, sandbox_id, memory=False)),
    "copied": ([], lambda server, sandbox_id: snapshot(server, {"sandboxID": sandbox_id})),
    "forked": ([], fork),
}


def test_a_kill_ends_it_in_every_state(mine):
    """At several moments of each; what was made of it meanwhile is a copy of its own, or there is none."""
    before = inventory(mine)
    for name, (steps, meanwhile) in BEFORE_A_KILL.items():
        boxes = [mine.create()["sandboxID"] for _ in range(3 if meanwhile else 1)]
        for step in steps:
            for sandbox_id in boxes:
                step(mine, sandbox_id)
        for i, sandbox_id in enumerate(boxes):

            def kill(sandbox_id=sandbox_id, delay=0.02 * i):
                time.sleep(delay)
                return mine.api("DELETE", f"/sandboxes/{sandbox_id}")

            other = (lambda s=sandbox_id, m=meanwhile: m(mine, s)) if meanwhile else lambda: None
            killed, answer = at_once(kill, other)
            assert killed.status == 204, (name, killed)
            if answer is not None:
                assert answer.status in (200, 201, 204, 404, 409), (name, answer)
            if answer is not None and answer.status == 201 and name == "copied":
                assert mine.api("DELETE", f"/templates/{answer.json['snapshotID']}").status == 204
            if answer is not None and answer.status == 201 and name == "forked":
                for one in answer.json:
                    if one.get("sandbox"):
                        mine.api("DELETE", f"/sandboxes/{one['sandbox']['sandboxID']}")
            assert state_of(mine, sandbox_id) is None, name
            assert wait_for(lambda s=sandbox_id: not traces_of(mine, s)), (name, traces_of(mine, sandbox_id))
    assert wait_for(lambda: inventory(mine) == before), (before, inventory(mine))
    assert wait_for(lambda: not list((mine.data / "snapshots").iterdir()))


# ---- copies ----

NUMBERS = """import os, random, secrets, uuid
[random.random(), random.SystemRandom().random(), secrets.token_hex(8), str(uuid.uuid4()), os.urandom(8).hex()]"""


def ids_of(forked):
    assert forked.status == 201, forked
    assert all("sandbox" in one for one in forked.json), forked
    return [one["sandbox"]["sandboxID"] for one in forked.json]


def test_a_fork_has_no_token_and_no_random_numbers_of_its_parents(mine):
    box = make(mine)
    box.run_code(NUMBERS)  # so that there are generators to copy
    ids = ids_of(fork(mine, box.sandbox_id, 3))
    boxes = [box, *(use(mine, sandbox_id) for sandbox_id in ids)]
    drawn = [text for one in boxes for text in one.run_code(NUMBERS).text.strip("[]").replace("\n", "").split(", ")]
    assert len(drawn) == 20 and len(set(drawn)) == 20, drawn
    tokens = [mine.api("GET", f"/sandboxes/{one.sandbox_id}").json["envdAccessToken"] for one in boxes]
    assert len(set(tokens)) == 4
    for sandbox_id in ids:  # the parent's opens none of them
        answer = mine.edge("GET", {"sandboxID": sandbox_id, "envdAccessToken": tokens[0]}, "/files?path=/etc/hostname")
        assert answer.status in (401, 403), answer
    # Of the shell, too, which has no generator of ours; and each knows its name.
    assert len({first_line(one, "cat /proc/sys/kernel/random/uuid") for one in boxes}) == 4
    assert [first_line(one, "echo $E2B_SANDBOX_ID") for one in boxes] == [one.sandbox_id for one in boxes]
    for one in boxes:
        assert abs(float(first_line(one, "date +%s.%N")) - time.time()) < 5


def test_a_resume_keeps_a_seed_that_was_set(mine):
    """It is the same sandbox: what its program has begun it goes on with."""
    box = make(mine)
    box.run_code("import random; random.seed(1)")
    box.pause()
    wait_until_on_disk(mine, box.sandbox_id)
    assert use(mine, box.sandbox_id).run_code("random.random()").text == str(random.Random(1).random())


def test_twenty_forks_at_once(mine):
    box = make(mine)
    pid = start_sleeper(box)
    box.files.write("/home/user/note", "of the parent")
    ids = ids_of(fork(mine, box.sandbox_id, 20))
    assert len({box.sandbox_id, *ids}) == 21 and set(mine.running()) == {box.sandbox_id, *ids}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:

        def look(sandbox_id):
            copy = use(mine, sandbox_id)
            copy.commands.run(f"echo {sandbox_id} > /home/user/own")
            return lives(copy, pid), copy.files.read("/home/user/note"), first_line(copy, "cat /home/user/own")

        assert list(pool.map(look, ids)) == [(True, "of the parent", sandbox_id) for sandbox_id in ids]
    assert lives(box, pid) and not box.files.exists("/home/user/own")
    # By several callers: each gets its own, or is told to wait for the other.
    answers = at_once(*[lambda: fork(mine, box.sandbox_id, 2)] * 3)
    made = [sandbox_id for answer in answers if answer.status == 201 for sandbox_id in ids_of(answer)]
    assert made and len(set(made)) == len(made) and set(statuses(answers)) <= {201, 409}
    assert wait_for(lambda: not list((mine.data / "snapshots").iterdir()))


def fork_when_free(server, sandbox_id, count, seconds=90):
    """Copies of one sandbox are made one call at a time: the others are told so, and ask again."""
    end = time.monotonic() + seconds
    while (answer := fork(server, sandbox_id, count)).status == 409 and time.monotonic() < end:
        time.sleep(0.1)
    return answer


@pytest.mark.timeout(300)
def test_a_hundred_forks_at_once(mine):
    """Each is whole, or was refused by a limit that its error names; and nothing is left of them afterwards."""
    box = make(mine)
    pid = start_sleeper(box)
    before = inventory(mine)
    answers = at_once(*[lambda: fork_when_free(mine, box.sandbox_id, 20)] * 5)
    assert {answer.status for answer in answers} <= {201, 429}, answers
    for answer in answers:
        refused = [one["error"] for one in answer.json if "error" in one] if answer.status == 201 else [answer.json]
        assert all(one["code"] == 429 and "sandboxes" in one["message"] for one in refused), refused
    ids = [one["sandbox"]["sandboxID"] for a in answers if a.status == 201 for one in a.json if "sandbox" in one]
    print("made", len(ids))
    assert ids and len(set(ids)) == len(ids)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda sandbox_id: lives(use(mine, sandbox_id), pid), ids))
        assert set(pool.map(lambda sandbox_id: len(guestds(sandbox_id)), ids)) == {1}
        assert {a.status for a in pool.map(lambda one: mine.api("DELETE", f"/sandboxes/{one}"), ids)} == {204}
    assert lives(box, pid) and wait_for(lambda: inventory(mine) == before)
    assert wait_for(lambda: not any(guestds(sandbox_id) for sandbox_id in ids))
    assert wait_for(lambda: not list((mine.data / "snapshots").iterdir()))


def test_a_fork_right_after_a_context_was_made(mine):
    """guestd is about to have one more interpreter in store, which no image may catch half-way."""
    for _ in range(6):
        box = make(mine)
        for _ in range(2):
            assert box.run_code("1 + 1", context=box.create_code_context()).text == "2"
        (copy,) = ids_of(fork(mine, box.sandbox_id))
        assert use(mine, copy).run_code("2 + 2", context=use(mine, copy).create_code_context()).text == "4"
        mine.kill_all()


# ---- roles that die ----


class Rounds:
    """One sandbox at a time, which somebody pauses, resumes, copies and forks while roles are killed."""

    def __init__(self, server, seed):
        self.server, self.random = server, random.Random(seed)
        self.box = make(server)
        self.sandbox_id = self.box.sandbox_id
        self.pid = start_sleeper(self.box)

    def act(self, what=None):
        """What is asked for, and what the API says to it; None: it did not come to say anything."""
        what = what or self.random.choice(["pause", "pause", "connect", "connect", "snapshot", "fork"])
        with contextlib.suppress(OSError, http.client.HTTPException):
            if what == "pause":
                answer = pause(self.server, self.sandbox_id)
            elif what == "connect":
                answer = connect(self.server, self.sandbox_id)
            elif what == "snapshot":
                answer = snapshot(self.server, {"sandboxID": self.sandbox_id})
            else:
                answer = fork(self.server, self.sandbox_id)
            return what, answer
        return what, None

    def kill(self, victims=("keeper", "front", "egress", "all"), within_s=0.15):
        victim = self.random.choice(victims)
        time.sleep(self.random.random() * within_s)
        if victim == "all":
            kill_everything(self.server)
        else:
            pid = self.server.pid if victim == "keeper" else self.server.role_pid(victim)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if victim == "keeper":
                self.server.process.wait()
        return victim

    def check(self, story):
        """Running or paused, once, and whole."""
        server = self.server
        come_back(server)
        copies = [sandbox_id for sandbox_id in server.running() if sandbox_id != self.sandbox_id]
        state = state_of(server, self.sandbox_id)
        assert state in ("running", "paused"), (story, state, server.log_tail())
        answer = connect_patiently(server, self.sandbox_id)
        assert answer.status in (200, 201), (story, answer, server.log_tail())
        assert len(guestds(self.sandbox_id)) == 1, (story, server.log_tail())
        assert lives_when_reached(server, self.sandbox_id, self.pid), (story, server.log_tail())
        for copy in copies:  # of forks of which nobody heard: they are whole, too
            assert len(guestds(copy)) == 1 and lives_when_reached(server, copy, self.pid), (story, copy)
            assert server.api("DELETE", f"/sandboxes/{copy}").status == 204
        assert wait_for(lambda: not [c for c in copies if traces_of(server, c)]), story


def lives_when_reached(server, sandbox_id, pid):
    """A copy that a front has begun before it died may still be made: until then the sandbox stands still."""
    end = time.monotonic() + 20
    while True:
        try:
            return lives(use(server, sandbox_id), pid)
        except SandboxException:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def connect_patiently(server, sandbox_id):
    """A role that has just come back may still be busy with what it has found."""
    end = time.monotonic() + 20
    while True:
        answer = connect(server, sandbox_id)
        if answer.status not in (409, 503) or time.monotonic() > end:
            return answer
        time.sleep(0.1)


# A few, for as long as all tests can wait; CLOISTER_KILL_ROUNDS=N are N of them, however long they take.
ROUNDS, ROUNDS_S = 16, 45
KILL_ROUNDS = int(os.environ.get("CLOISTER_KILL_ROUNDS", 0))


@pytest.mark.timeout(180 + 15 * KILL_ROUNDS)
def test_whoever_dies_and_whenever_it_is_running_or_paused_and_whole(mine):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rounds = Rounds(mine, seed)
    end = time.monotonic() + ROUNDS_S
    for i in range(KILL_ROUNDS or ROUNDS):
        if not KILL_ROUNDS and time.monotonic() > end:
            break
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            if i % 4 == 3:  # from the disk: coming back takes another way then, and longer
                assert pause(mine, rounds.sandbox_id).status == 204
                wait_until_on_disk(mine, rounds.sandbox_id)
                killing = pool.submit(rounds.kill, ("keeper", "all"), 0.3)
                story = [rounds.act("connect")]
            else:
                killing = pool.submit(rounds.kill)
                story = [rounds.act() for _ in range(2)]
            story.append(killing.result())
        rounds.check((seed, i, story))
    for one in mine.api("GET", "/snapshots").json:
        assert mine.api("DELETE", f"/templates/{one['snapshotID']}").status == 204
    mine.kill_all()
    mine.stop()
    mine.start()  # what was half made when a role died is cleared away
    assert wait_for(lambda: not list((mine.data / "sandboxes").iterdir())) and not rows(mine)


# ---- no room ----


class LayeredDisk(SmallDisk):
    """Snapshots make layers, so the directory of layers is its own; only the templates' are read from where they are."""

    def __init__(self, home, size, options):
        super().__init__(home, size, options)
        subprocess.run(["umount", str(home / "layers")], check=True)
        for layer in {name for template in (home / "templates").iterdir() for name in layers_of(template)}:
            (home / "layers" / layer).mkdir()
            self.bind(layer)

    def bind(self, layer):
        target = self.home / "layers" / layer
        subprocess.run(["mount", "--bind", str(SHARED_DATA / "layers" / layer), str(target)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)

    def drop(self):
        self.end_guests()
        for layer in (self.home / "layers").iterdir():
            if os.path.ismount(layer):
                subprocess.run(["umount", "--lazy", str(layer)], check=False)
        super().drop()


@pytest.fixture
def small(mine):
    disk = LayeredDisk(mine.data.parent / f"{mine.data.name}-small", "384M", ["-N", "16384"])
    own = Server(disk.home)
    own.log_dir, own.disk = mine.data.parent / mine.data.name, disk
    try:
        own.start()
        yield own
    finally:
        try:
            if own.process is None or own.process.poll() is not None:
                own.start()
            own.kill_all()
            wait_for(lambda: not any((disk.home / "trash").iterdir()))
        finally:
            own.stop()
            disk.drop()


def check_no_room(answer):
    assert answer.status == 507 and "disk" in answer.json["message"], answer


def check_stays_in_memory(server, box, pid):
    """Paused, not written, and back."""
    mark = server.log_path.stat().st_size
    assert pause(server, box.sandbox_id).status == 204
    said = f"sandbox {box.sandbox_id}: its memory stays in RAM"
    assert wait_for(lambda: said in server.log_path.read_text()[mark:]), server.log_tail()
    assert state_of(server, box.sandbox_id) == "paused" and len(guestds(box.sandbox_id)) == 1
    assert connect(server, box.sandbox_id).status == 201
    assert lives(box, pid)


@pytest.mark.timeout(180)
def test_a_disk_that_gets_full_in_the_middle_costs_nothing_but_room(small):
    """First by the image itself, which is larger than the disk; then because a guest takes whatever is free."""
    box = make(small)
    memory = "import os, time; kept = os.urandom(420 << 20); open('/tmp/ready', 'w').close(); time.sleep(36000)"
    pid = first_line(box, f'(setsid python3 -c "{memory}" >/dev/null 2>&1 & echo $!)')
    assert wait_for(lambda: box.files.exists("/tmp/ready"))
    before, _ = small.disk.free()
    for answer in (snapshot(small, {"sandboxID": box.sandbox_id}), fork(small, box.sandbox_id)):
        check_no_room(answer)
        assert lives(box, pid)
    check_stays_in_memory(small, box, pid)
    assert wait_for(lambda: small.disk.free()[0] > before - (16 << 20)), "what was written of it is still there"
    assert not list((small.data / "snapshots").iterdir())
    box.commands.run(f"kill {pid}")

    pid = start_sleeper(box)
    greedy = make(small)
    greedy.commands.run(FILL_BYTES, background=True, timeout=0)
    assert wait_for(small.disk.is_full, 60), small.disk.free()
    for answer in (snapshot(small, {"sandboxID": box.sandbox_id}), fork(small, box.sandbox_id)):
        check_no_room(answer)
        assert lives(box, pid)
    check_stays_in_memory(small, box, pid)
    assert greedy.kill() is True
    # There is room again, and nobody has to restart anything.
    assert wait_for(lambda: small.disk.free()[0] > 64 << 20)
    assert pause(small, box.sandbox_id).status == 204
    wait_until_on_disk(small, box.sandbox_id)
    assert connect(small, box.sandbox_id).status == 201
    assert lives(box, pid)
