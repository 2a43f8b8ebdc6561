"""Interpreters that are forks of the zygote: they are confined like commands, they survive a zygote that dies, hangs or is stale,
and no guest can hold up another's.

How one tells: a fork has the command line of its zygote, whose last argument is "outside".
"""

import contextlib
import json
import os
import pathlib
import signal
import threading

import pytest

e2b_code_interpreter = pytest.importorskip("e2b_code_interpreter")

from e2b_code_interpreter import Sandbox  # noqa: E402
from server import wait_for  # noqa: E402

FULL = "code-interpreter-v1"
IS_FORK = "open('/proc/self/cmdline').read().endswith('\\0outside\\0')"


def zygotes(server):
    """The host's process ids of this server's zygotes."""
    return {pid for pid in in_zygotes_cgroups(server) if parent_of(pid) == server.pid}


def in_zygotes_cgroups(server):
    """Zygotes, and their forks that have not moved yet."""
    data = os.stat(server.data)
    own = f"cloister.{data.st_dev:x}.{data.st_ino:x}"
    found = set()
    for directory, _, _ in os.walk("/sys/fs/cgroup"):
        if f"/{own}/zygote" in directory and directory.endswith("/user"):
            with contextlib.suppress(FileNotFoundError):  # its zygote has just ended
                found |= {int(pid) for pid in pathlib.Path(directory, "cgroup.procs").read_text().split()}
    return found


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # it has just ended


def text(box, code, **options):
    result = box.run_code(code, **options)
    assert not result.error, result.error
    return result.text if result.text is not None else "".join(result.logs.stdout)


def is_fork(box, **options):
    return text(box, IS_FORK, **options) == "True"


def a_box_with_forks(template="base", **options):
    """The first sandbox of a server may come before its zygote is ready, and then uses the fallback."""
    boxes = []

    def attempt():
        boxes.append(Sandbox.create(template, timeout=300, **options))
        if is_fork(boxes[-1]):
            return boxes.pop()
        return None

    try:
        box = wait_for(attempt, 60, 0.5)
        assert box, "no interpreter came from the zygote"
        return box
    finally:
        for other in boxes:
            other.kill()


@pytest.fixture
def box(server):
    made = a_box_with_forks()
    yield made
    made.kill()


# Stops the second process that appears in its pid namespace: the first is on its way to fork that one.
STOPPER = r"""
#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

int main(void)
{
    enum { AHEAD = 24 };
    bool seen[AHEAD] = { false };
    time_t end = time(0) + 4;

    for (int found = 0; time(0) < end;)
        for (int i = 0; i < AHEAD; i++)
            if (!seen[i] && kill(getpid() + 1 + i, 0) == 0) {
                seen[i] = true;
                if (++found == 2)
                    return kill(getpid() + 1 + i, SIGSTOP);
            }
    return 1;
}
"""


@pytest.fixture
def full(server):
    names = [name for t in server.api("GET", "/templates").json for name in (t.get("aliases") or t.get("names") or [])]
    if FULL not in names:
        pytest.skip(f"there is no template {FULL}: cloister template build code-interpreter")
    a_box_with_forks(FULL).kill()
    made = Sandbox.create(FULL, timeout=300)
    yield made
    made.kill()


# ---- confined like a command ----

FACTS = """
import json, os, re, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
facts = {name: status[name].strip() for name in ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
                                                   "NoNewPrivs", "Seccomp", "Umask")}
facts["cgroup"] = open("/proc/self/cgroup").read()
facts["mounts"] = [re.sub("master:[0-9]+", "", line) for line in open("/proc/self/mountinfo")]
facts["namespaces"] = {name: os.readlink("/proc/self/ns/" + name) for name in sorted(os.listdir("/proc/self/ns"))}
facts["limits"] = [resource.getrlimit(number) for number in range(16)]
facts["leads"] = os.getsid(0) == os.getpgid(0)
facts["root"] = os.listdir("/")
facts["host"] = os.uname().nodename
print(json.dumps(facts))
"""


def test_it_has_what_a_command_has_and_no_more(box):
    box.files.write("/tmp/facts.py", FACTS)
    command = json.loads(box.commands.run("python3 /tmp/facts.py").stdout)
    cell = json.loads(text(box, FACTS))
    assert cell["CapEff"].strip("0") == "" and cell["Seccomp"] == "2"
    for name, value in command.items():
        assert cell[name] == value, name


def test_it_has_no_descriptor_but_its_own(box):
    listed = text(box, "import os; [os.readlink(f'/proc/self/fd/{n}') for n in sorted(map(int, os.listdir('/proc/self/fd')))"
                       " if os.path.islink(f'/proc/self/fd/{n}')]")
    kinds = [name.partition(":")[0] for name in eval(listed)]
    assert kinds == ["/dev/null", "pipe", "pipe", "socket"], listed


def test_sudo_works_in_it(box):
    assert text(box, "import subprocess; int(subprocess.run(['sudo', 'id', '-u'], capture_output=True).stdout)") == "0"


def test_it_cannot_enter_another_namespace(box):
    """setns and keyctl. An interpreter has its zygote's seccomp filter, which allows setns: the kernel refuses it."""
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (308, 250), "aarch64": (268, 219)}[os.uname().machine]
tries = [(numbers[0], os.pidfd_open(1), 0x7e020000), (numbers[1], 1, 0), (numbers[1], 0, -3)]
[(libc.syscall(*t), ctypes.get_errno()) for t in tries]
"""
    assert text(box, code) == "[(-1, 1), (-1, 1), (-1, 1)]"


def test_it_has_no_bpf_programs_of_its_own(box):
    """One call of each: thousands of programs would hang the kernel of this machine."""
    code = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
tries = [libc.syscall(number, 1, 0, 0), ctypes.get_errno(), libc.prctl(22, 2, 0), ctypes.get_errno()]
try:
    socket.socket(type=socket.SOCK_DGRAM).setsockopt(socket.SOL_SOCKET, 26, bytes(16))
except OSError as error:
    tries.append(error.errno)
tries
"""
    assert text(box, code) == "[-1, 22, -1, 22, 92]"  # EINVAL, not EFAULT, by which programs detect BPF; and ENOPROTOOPT


REFUSED = """
import errno, socket
def attempt(call):
    try:
        call()
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
      attempt(lambda: udp.setsockopt(socket.IPPROTO_IP, 64, b"")), attempt(lambda: udp.setsockopt(1, 36, 1)),
      attempt(lambda: udp.setsockopt(1, 2, 1)), attempt(lambda: socket.getaddrinfo("localhost", 80)))
"""


def test_what_the_capabilities_of_a_zygote_are_good_for_is_refused_by_its_filter(box):
    assert text(box, REFUSED).split() == ["EAFNOSUPPORT", "ENOPROTOOPT", "ENOPROTOOPT", "ok", "ok"]


def test_two_sandboxes_share_no_seed_and_no_secret(box):
    other = a_box_with_forks()
    code = ("import random, uuid, os, tempfile, multiprocessing; [random.random(), str(uuid.uuid4()), os.urandom(4).hex(),"
            " multiprocessing.current_process().authkey.hex()]")
    try:
        values = [eval(text(one, code)) for one in (box, other)]
        assert all(a != b for a, b in zip(*values)), values
    finally:
        other.kill()


def test_root_inside_sees_no_zygote(box):
    seen = box.commands.run("ps -e -o pid=,ppid=,args=", user="root").stdout.splitlines()
    pythons = [line.split() for line in seen if "python3" in line]
    assert pythons and all(line[1] == "1" for line in pythons), seen


def test_its_time_zone_and_directory_are_the_sandboxs(box):
    assert text(box, "import os, time; [os.getcwd(), os.environ['HOME'], time.tzname[0]]") == "['/home/user', '/home/user', 'UTC']"


# ---- when the zygote cannot be used ----


def test_a_layer_that_a_guest_has_written_has_no_zygote(server, box):
    """A zygote runs outside every sandbox: on a snapshot's layer it would run what the guest has put there."""
    before = zygotes(server)
    box.commands.run("sudo touch /etc/written-by-a-guest")
    snapshot = server.api("POST", f"/sandboxes/{box.sandbox_id}/snapshots", {"memory": False}).json["snapshotID"]
    child = Sandbox.create(template=snapshot, timeout=120)
    try:
        for _ in range(3):
            context = child.create_code_context()
            assert text(child, "import os; os.path.exists('/etc/written-by-a-guest')", context=context) == "True"
            assert not is_fork(child, context=context)
        assert zygotes(server) <= before
    finally:
        child.kill()
        assert server.api("DELETE", f"/templates/{snapshot}").status == 204


@pytest.mark.parametrize("name, value", [("PYTHONHASHSEED", "1"), ("OMP_NUM_THREADS", "1"), ("CLOISTER_INTERPRETER", "cold")])
def test_a_variable_that_changes_the_start_of_python_is_respected(box, name, value):
    own = Sandbox.create("base", timeout=120, envs={name: value})
    try:
        assert not is_fork(own)
        assert text(own, f"import os; os.environ[{name!r}]") == value
    finally:
        own.kill()


def test_a_changed_library_is_noticed(box):
    """In the standard library, which every template has. An upgrade of Python changes os.py too."""
    own = Sandbox.create("base", timeout=120)
    try:
        files = own.commands.run("python3 -c 'import os, json; print(os.__file__, json.__file__)'").stdout.strip()
        for mark in ("42", "43"):
            own.commands.run(f"for f in {files}; do echo 'MARK = {mark}' >> $f; done", user="root")
            context = own.create_code_context()
            assert text(own, "import json; json.MARK", context=context) == mark
            assert not is_fork(own, context=context)
    finally:
        own.kill()


def test_a_package_that_was_installed_since_is_the_one_that_is_imported(full):
    where = "/usr/lib/python3/dist-packages/pandas/__init__.py"
    where = full.commands.run("python3 -c 'import pandas; print(pandas.__file__)'").stdout.strip() or where
    full.commands.run(f"echo 'MARK = 1' >> {where}", user="root")
    assert text(full, "import pandas; pandas.MARK") == "1"
    full.commands.run(f"echo 'MARK = 22' >> {where}", user="root")
    assert text(full, "import pandas; pandas.MARK", context=full.create_code_context()) == "22"


def test_packages_of_the_user_are_found(box):
    own = Sandbox.create("base", timeout=120)
    try:
        where = own.commands.run("python3 -m site --user-site", envs={}).stdout.strip()
        own.files.write(f"{where}/mine.py", "x = 7")
        own.files.write(f"{where}/more.pth", "/home/user/elsewhere\n")
        own.files.write("/home/user/elsewhere/other.py", "x = 8")
        assert text(own, "import mine, other; [mine.x, other.x]") == "[7, 8]"
        assert is_fork(own)
    finally:
        own.kill()


def test_a_package_of_the_user_comes_before_the_templates(full):
    where = full.commands.run("python3 -m site --user-site").stdout.strip()
    full.files.write(f"{where}/pandas/__init__.py", "MARK = 'mine'")
    assert text(full, "import pandas; pandas.MARK") == "mine"


# ---- deaths ----


def interpreters(box):
    """Process ids, inside, of interpreters: guestd is their parent."""
    return set(box.commands.run("ps --ppid 1 -o pid=,comm= | awk '$2 ~ /python/ {print $1}'").stdout.split())


def wait_for_spare(box, contexts):
    assert wait_for(lambda: len(interpreters(box)) == contexts + 1, 20, 0.1), interpreters(box)
    return interpreters(box)


def test_from_the_second_context_on_there_is_a_spare(box):
    assert len(interpreters(box)) == 1, "a sandbox with one context has no spare"
    box.create_code_context()
    there = wait_for_spare(box, 2)
    third = box.create_code_context(cwd="/tmp")
    assert text(box, "import os; (os.getpid(), os.getcwd())", context=third) in [f"({pid}, '/tmp')" for pid in there]
    wait_for_spare(box, 3)


def test_a_spare_from_before_a_change_of_packages_is_not_used(box):
    box.create_code_context()
    wait_for_spare(box, 2)
    files = box.commands.run("python3 -c 'import os, json; print(os.__file__, json.__file__)'").stdout.strip()
    box.commands.run(f"for f in {files}; do echo 'MARK = 42' >> $f; done", user="root")
    context = box.create_code_context()
    assert text(box, "import json; json.MARK", context=context) == "42"
    assert not is_fork(box, context=context)


def test_a_killed_spare_is_replaced(box):
    box.create_code_context()
    before = interpreters(box)
    assert wait_for(lambda: len(interpreters(box)) == 3, 20, 0.1)
    (spare,) = interpreters(box) - before or {max(interpreters(box), key=int)}
    box.commands.run(f"kill -9 {spare}")
    context = box.create_code_context()
    assert text(box, "1 + 1", context=context) == "2"


def test_memory_over_the_limit_ends_the_cell_and_not_the_zygote(server, box):
    before = zygotes(server)
    result = box.run_code("x = []\nwhile True: x.append(bytearray(64 << 20))")
    assert result.error and ("MemoryError" in result.error.name or "SIGKILL" in result.error.value), result.error
    assert before and before <= zygotes(server)
    other = a_box_with_forks()
    other.kill()


def test_the_error_says_how_an_interpreter_ended(box):
    assert "status 3" in box.run_code("import os; os._exit(3)").error.value
    assert "signal 11" in box.run_code("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").error.value


def test_a_killed_zygote_is_replaced_and_its_interpreters_live_on(server, box):
    text(box, "x = 41")
    before = zygotes(server)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert text(box, "x + 1") == "42"
    assert not is_fork(box, context=box.create_code_context())
    a_box_with_forks().kill()
    assert zygotes(server) and not zygotes(server) & before
    assert wait_for(lambda: is_fork(box, context=box.create_code_context()), 60, 0.5), "the new one does not serve it"


def test_a_sandbox_that_asks_while_its_zygote_starts_is_served_by_it(server, box):
    """It gets a socket then, and another one when the zygote is ready."""
    def next_is_fork():
        context = box.create_code_context()
        try:
            return is_fork(box, context=context)
        finally:
            box.remove_code_context(context)

    before = zygotes(server)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert wait_for(next_is_fork, 60, 0.5)
    assert not zygotes(server) & before
    for _ in range(4):  # one of them may be a spare
        assert next_is_fork(), "the zygote has closed its socket"


def test_a_zygote_that_hangs_is_killed_and_its_sandboxes_use_the_fallback(server, box):
    before = zygotes(server)
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    own = Sandbox.create("base", timeout=120)
    try:
        assert not is_fork(own)
        assert wait_for(lambda: not zygotes(server) & before, 30)
    finally:
        own.kill()
    a_box_with_forks().kill()


def test_a_zygote_that_was_late_once_is_asked_again(server, box):
    before = zygotes(server)
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert not is_fork(box, context=box.create_code_context())
    finally:
        for pid in before & zygotes(server):
            os.kill(pid, signal.SIGCONT)
    assert wait_for(lambda: is_fork(box, context=box.create_code_context()), 20, 1)
    assert before <= zygotes(server)


def test_a_sandbox_killed_during_a_spawn_leaves_nothing(server, box):
    def run(victim):
        try:
            victim.run_code("1")
        except Exception as error:  # the sandbox was killed: any error will do
            print(f"{victim.sandbox_id}: {error}")

    ids = []
    for delay_ms in range(0, 40, 4):
        victim = Sandbox.create("base", timeout=60)
        ids.append(victim.sandbox_id)
        thread = threading.Thread(target=run, args=[victim])
        thread.start()
        thread.join(delay_ms / 1000)
        victim.kill()
        thread.join()
    assert is_fork(box, context=box.create_code_context())

    def left():
        return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name in ids]

    assert wait_for(lambda: not left(), 20), left()


def test_a_guest_that_stops_every_spawn_stops_only_its_own(server, box):
    """Its root sends SIGSTOP to every new process: spawns into this sandbox hang, spawns into others do not."""
    hostile = Sandbox.create("base", timeout=120)
    code = (
        "import os, signal\n"
        "while True:\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        if int(pid) not in (1, os.getpid(), os.getppid()):\n"
        "            try: os.kill(int(pid), signal.SIGSTOP)\n"
        "            except OSError: pass\n"
    )
    try:
        hostile.files.write("/tmp/storm.py", code)
        hostile.commands.run("exec python3 /tmp/storm.py", user="root", background=True, timeout=0)

        def run():
            try:
                hostile.run_code("1", timeout=5)
            except Exception as error:  # it never ends
                print(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            other = Sandbox.create("base", timeout=60)
            try:
                assert is_fork(other)
            finally:
                other.kill()
    finally:
        hostile.kill()
        for thread in threads:
            thread.join()


def execute(server, sandbox, code, **more):
    answer = server.edge("POST", sandbox, "/execute", {"code": code, **more}, port=49999,
                         headers={"X-Access-Token": sandbox["envdAccessToken"]})
    assert answer.status == 200, answer
    lines = [json.loads(line) for line in answer.body.splitlines() if line]
    return "".join(line.get("text", "") for line in lines if line["type"] in ("result", "stdout", "error"))


def test_a_killed_keeper_takes_its_zygotes_along_and_the_next_has_one_for_the_same_sandbox(own_server):
    def attempt():
        made = own_server.create()
        return made if execute(own_server, made, IS_FORK) == "True" else None

    sandbox = wait_for(attempt, 60, 0.5)
    assert sandbox, "no interpreter came from the zygote"
    assert execute(own_server, sandbox, "x = 41; x") == "41"
    before = zygotes(own_server)
    assert before
    own_server.process.kill()
    own_server.process.wait()
    assert wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in before), 10)
    own_server.start()
    assert execute(own_server, sandbox, "x + 1") == "42"

    def in_new_context():
        context = own_server.edge("POST", sandbox, "/contexts", {}, port=49999).json["id"]
        return execute(own_server, sandbox, IS_FORK, context_id=context) == "True"

    assert wait_for(in_new_context, 60, 0.5), "no fork of the zygote for a sandbox from before the restart"
    assert execute(own_server, sandbox, "x + 1") == "42"
    assert wait_for(attempt, 60, 0.5), "no interpreter came from the zygote after the restart"


def test_an_orderly_end_leaves_no_zygote_and_no_cgroup_of_one(own_server):
    execute(own_server, own_server.create(), "1")
    assert wait_for(lambda: zygotes(own_server), 10)
    own_server.kill_all()
    own_server.stop()
    data = os.stat(own_server.data)
    own = f"cloister.{data.st_dev:x}.{data.st_ino:x}"
    assert not [d for d, _, _ in os.walk("/sys/fs/cgroup") if f"/{own}/zygote" in d]


# ---- copies ----


def test_a_copy_goes_on_with_the_programs_that_its_interpreter_has(server, made):
    """Programs inside may replace a file that an interpreter from outside has mapped, as an upgrade does."""
    box = a_box_with_forks()
    made.append(box.sandbox_id)
    answer = server.api("POST", f"/sandboxes/{box.sandbox_id}/snapshots", {})
    if answer.status == 503:
        pytest.skip(f"no images of processes on this machine: {answer.json['message']}")
    Sandbox.delete_snapshot(answer.json["snapshotID"])
    text(box, "kept = 41")
    size_of = "stat -c %s $(readlink -f $(which python3))"
    box.commands.run("cp /bin/true /tmp/new && mv /tmp/new $(readlink -f $(which python3))", user="root")
    size = box.commands.run(size_of).stdout
    for _ in range(2):  # the second is a copy of a copy
        [copy] = server.api("POST", f"/sandboxes/{box.sandbox_id}/fork", {}).json
        box = Sandbox.connect(copy["sandbox"]["sandboxID"])
        made.append(box.sandbox_id)
        assert text(box, "kept + 1") == "42" and is_fork(box)
        assert box.commands.run(size_of).stdout == size
    snapshot = server.api("POST", f"/sandboxes/{box.sandbox_id}/snapshots", {}).json["snapshotID"]
    box = Sandbox.create(snapshot, timeout=120)
    made.append(box.sandbox_id)
    assert text(box, "kept + 2") == "43"
    box.kill()
    Sandbox.delete_snapshot(snapshot)


# ---- held up on the way in ----


def stopped_forks(server):
    found = set()
    for pid in in_zygotes_cgroups(server):
        with contextlib.suppress(OSError):  # it has just ended
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                found.add(pid)
    return found


def ask_for_context(box):
    with contextlib.suppress(Exception):  # it is paused meanwhile
        box.create_code_context()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("then", ["runs", "is paused"])
def test_a_fork_that_is_stopped_on_its_way_in_is_ended(server, then):
    """Until it has moved it is in the zygote's cgroup, which all sandboxes of the template share."""
    stopped = set()
    for _ in range(20):  # the fork may be faster
        box = a_box_with_forks()
        box.files.write("/tmp/stopper.c", STOPPER)
        box.commands.run("gcc -O2 -o /tmp/stopper /tmp/stopper.c")
        handle = box.commands.run("/tmp/stopper", user="root", background=True)
        thread = threading.Thread(target=ask_for_context, args=(box,))
        thread.start()
        stopped = wait_for(lambda: stopped_forks(server), 3, 0.02)
        if stopped and then == "is paused":
            box.pause()
        thread.join()
        if stopped:
            break
        handle.kill()
        box.kill()
    assert stopped, "no fork was stopped on its way in"
    assert wait_for(lambda: not stopped & stopped_forks(server), 30, 0.2), "a stopped fork stays in the zygote's cgroup"
    if then == "is paused":
        box.connect(timeout=60)
    assert text(box, "1 + 1") == "2"
    box.kill()
