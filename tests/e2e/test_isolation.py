"""What a program inside a sandbox sees, may do, and cannot take."""

import contextlib
import os
import pathlib
import random
import re
import subprocess
import time

import hoard
import pytest
from e2b import CommandExitException, PtySize, Sandbox, SandboxException
from server import Server, prepare, wait_for


def run(box, command, **options):
    try:
        return box.commands.run(command, **options)
    except CommandExitException as failed:
        return failed


def out(box, command, **options):
    result = run(box, command, **options)
    assert result.exit_code == 0, result
    return result.stdout.strip()


# ---- what one is ----


def test_sudo_works_without_a_password(shared_sandbox):
    assert out(shared_sandbox, "sudo id -u") == "0"
    assert out(shared_sandbox, "sudo -n true; echo $?") == "0"


def test_vim_is_there_until_another_is_installed(shared_sandbox):
    shared_sandbox.commands.run("vim --version")
    assert shared_sandbox.commands.run("update-alternatives --query vim | grep ^Best:").stdout == "Best: /usr/bin/vim.tiny\n"


def test_user_cannot_read_what_is_roots(shared_sandbox):
    result = run(shared_sandbox, "cat /etc/shadow")
    assert result.exit_code != 0 and "denied" in result.stderr
    assert out(shared_sandbox, "sudo cat /etc/shadow | head -c 5") == "root:"


def test_no_id_inside_is_the_hosts_root(shared_sandbox):
    for name in ("uid_map", "gid_map"):
        lines = [line.split() for line in out(shared_sandbox, f"cat /proc/self/{name}").splitlines()]
        assert lines, name
        for _, outside, count in lines:
            assert int(outside) > 0 and int(outside) + int(count) < 2**32


def host_pids_of(words):
    """The processes on the host with this command line, of any sandbox."""
    pids = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == b"".join(w.encode() + b"\0" for w in words):
                pids.append(int(entry.name))
    return pids


def freezer_of(pid):
    """Where the process is in the tree by which sandboxes are frozen; None: this machine has no such tree."""
    rows = [line.split(":", 2) for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for number, controllers, path in rows:
        if "/cloister." in path and (number == "0" or controllers == "freezer"):
            return path
    return None


def test_nothing_inside_is_outside_of_what_is_frozen(sandbox):
    """A pause freezes one cgroup: what is not in it would run on."""
    n = random.randrange(10**6, 10**8)  # no other sandbox on this host sleeps for as long
    sandbox.commands.run(f"sleep {n}", background=True)
    sandbox.commands.run(f"sudo sleep {n + 1}", background=True)
    sandbox.commands.run(f"setsid -f sh -c 'sleep {n + 2} & sleep {n + 3}' >/dev/null 2>&1 </dev/null")
    terminal = sandbox.pty.create(size=PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, f"sleep {n + 4}\n".encode())
    for seconds in range(n, n + 5):
        wait_for(lambda words=["sleep", str(seconds)]: host_pids_of(words))
    namespace = pathlib.Path(f"/proc/{host_pids_of(['sleep', str(n)])[0]}/ns/pid").readlink()
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == namespace:
                found[entry.name] = freezer_of(entry.name)
    assert len(found) >= 8, found  # guestd, its spawner, five sleeps, shells, sudo
    if set(found.values()) == {None}:
        pytest.skip("this machine has no freezer")
    places = {re.sub(r"/(guestd|user)$", "", place or "outside") for place in found.values()}  # on v2 these are below it
    assert len(places) == 1 and sandbox.sandbox_id in next(iter(places)), found


def test_root_inside_cannot_leave_its_cgroups(shared_sandbox):
    for command in (
        "mkdir -p /tmp/cg && mount -t cgroup2 none /tmp/cg",
        "mkdir -p /tmp/cg && mount -t cgroup -o freezer none /tmp/cg",
        # guestd has the files by which processes enter.
        "for n in /proc/1/fd/*; do (echo 0 >$n) 2>/dev/null && exit 0; done; exit 1",
        "nsenter --target 1 --cgroup true",
    ):
        result = run(shared_sandbox, f"sudo sh -c '{command}'")
        assert result.exit_code != 0, command
    assert out(shared_sandbox, "grep -- '- cgroup' /proc/self/mountinfo; ls /sys; true") == ""
    for line in out(shared_sandbox, "cat /proc/self/cgroup").splitlines():
        assert "cloister." not in line


def test_two_sandboxes_share_no_id(shared_sandbox, sandbox):
    ranges = []
    for box in (shared_sandbox, sandbox):
        for line in out(box, "cat /proc/self/uid_map").splitlines():
            _, outside, count = map(int, line.split())
            ranges.append(range(outside, outside + count))
    first, second = ranges[0], ranges[-1]
    assert first.stop <= second.start or second.stop <= first.start, ranges


NEIGHBOUR_SEES = '''
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK)
paths = ["/dev", "/dev/null", "/dev/zero", "/sys", "/proc/kcore", "/proc/pressure", "/run", "/dev/shm"]
paths = [path for path in paths if os.path.exists(path)]
for path in paths:
    assert libc.inotify_add_watch(fd, path.encode(), 0x3b) >= 0, path  # access, modify, close, open
open('/tmp/looks', 'w').close()
print(len(paths), flush=True)
sys.stdin.readline()
print(len(os.read(fd, 65536)) if select.select([fd], [], [], 0)[0] else 0, flush=True)
'''
NEIGHBOUR_TOUCHES = "cat /dev/null /proc/kcore; head -c 1 /dev/zero; ls /dev /sys /proc/pressure /run /dev/shm"


def test_what_a_neighbour_opens_is_not_seen(shared_sandbox, sandbox):
    sandbox.files.write("sees.py", NEIGHBOUR_SEES)
    for who, seen in ((shared_sandbox, False), (sandbox, True)):  # that it does see its own shows that it looks
        lines = []
        eye = sandbox.commands.run(
            "python3 -u sees.py", background=True, stdin=True, on_stdout=lambda text, lines=lines: lines.append(text)
        )
        assert wait_for(lambda: sandbox.files.exists("/tmp/looks"))
        sandbox.files.remove("/tmp/looks")
        run(who, NEIGHBOUR_TOUCHES)
        sandbox.commands.send_stdin(eye.pid, "\n")
        eye.wait(on_stdout=lambda text, lines=lines: lines.append(text))
        paths, events = map(int, "".join(lines).split()[:2])
        assert paths >= 6 and (events > 0) == seen, lines


def test_what_a_neighbour_locks_is_not_locked(shared_sandbox, sandbox):
    paths = "/dev /dev/null /dev/zero /sys /proc/kcore /proc/pressure /run"
    lock = "[ ! -e $p ] || { exec {fd}<$p && flock -x -n $fd; } || echo $p"
    hold = f"for p in {paths}; do {lock}; done >/tmp/unlocked 2>&1; touch /tmp/holds; sleep 60"
    holder = sandbox.commands.run(f"bash -c '{hold}'", background=True)
    try:
        assert wait_for(lambda: sandbox.files.exists("/tmp/holds"))
        # All, or else it would be no wonder that neighbours can lock them. One directory may stand in two places.
        for path in out(sandbox, "cat /tmp/unlocked").splitlines():
            assert run(sandbox, f"[ {path} -ef /sys ] || [ {path} -ef /dev ]").exit_code == 0, path
        assert run(sandbox, "flock -x -n /dev true").exit_code != 0  # its own holds
        assert out(sandbox, "cat /proc/locks") == ""  # open-file locks of neighbours would be in that list
        for path in paths.split():
            assert run(shared_sandbox, f"[ ! -e {path} ] || flock -x -n {path} true").exit_code == 0, path
    finally:
        holder.kill()


def test_processes_on_the_host_run_with_high_ids(shared_sandbox):
    shared_sandbox.commands.run("sleep 98765", background=True, user="root", timeout=60)
    look = ["pgrep", "-f", "^sleep 98765"]
    found = wait_for(lambda: subprocess.run(look, stdout=subprocess.PIPE, text=True, check=False).stdout.split())
    assert found
    for pid in found:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert all(int(uid) > 65535 for uid in re.search(r"^Uid:\s+(.*)$", status, re.M)[1].split()), status


# ---- what one sees ----


def test_only_its_own_processes_are_seen(shared_sandbox):
    listed = out(shared_sandbox, "ps -e -o pid=,comm=").splitlines()
    assert len(listed) < 20, listed
    assert out(shared_sandbox, "cat /proc/1/comm") != "systemd"
    assert int(out(shared_sandbox, "ls -d /proc/[0-9]* | wc -l")) < 20


def test_the_only_interface_is_loopback(shared_sandbox):
    assert (
        out(shared_sandbox, "ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
        == "lo"
    )
    assert out(shared_sandbox, "ip -o link | wc -l") == "1"
    assert "127.0.0.1/8" in out(shared_sandbox, "ip -o addr show lo")
    # Every address is local, and what is sent there is given to egress.
    assert out(shared_sandbox, "ip route").startswith("local default dev lo")
    assert out(shared_sandbox, "ip route | wc -l") == "1"


# The errno of connecting, sending and waiting for an answer, as a name. "ok" for an answer, "late" for none in five seconds.
REACH = """
import errno, socket, sys
for target in sys.argv[1:]:
    kind, address, port = target.split("/")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    outcome = "ok"
    try:
        with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as s:
            s.settimeout(5)
            s.connect((address, int(port)))
            s.send(b"hello")
            if not s.recv(1):
                outcome = "end"
    except OSError as error:
        outcome = "late" if isinstance(error, TimeoutError) else errno.errorcode[error.errno]
    print(target, outcome)
"""


def reach(box, *targets, user="user"):
    box.files.write("/tmp/reach.py", REACH)
    lines = out(box, f"python3 /tmp/reach.py {' '.join(targets)}", user=user).splitlines()
    return dict(map(str.split, lines))


@pytest.mark.parametrize("user", ["user", "root"])
def test_neither_the_host_nor_what_is_private_is_reached(shared_sandbox, server, user):
    targets = [
        f"tcp/127.0.0.1/{server.port}",
        f"tcp/::1/{server.port}",
        f"tcp/10.0.0.1/{server.port}",
        "tcp/169.254.169.254/80",
        "tcp/::ffff:169.254.169.254/80",
        "tcp/192.168.0.1/443",
        "tcp/fe80::1/80",
        "tcp/fd00::1/80",
        "tcp/127.77.0.1/1",  # egress's own socket
        "tcp/fd63:6c6f:6973::1/1",
        "tcp/192.0.0.1/80",
        "tcp/0.0.0.0/80",
        "tcp/224.0.0.1/80",
        "tcp/255.255.255.255/80",
    ]
    for target, outcome in reach(shared_sandbox, *targets, user=user).items():  # one that waits is "late"
        assert outcome in ("ECONNREFUSED", "ECONNRESET", "EINVAL", "ENETUNREACH"), (target, outcome)


def test_datagrams_that_are_no_dns_question_fail_at_once(shared_sandbox):
    targets = ["udp/1.1.1.1/443", "udp/2606:4700::1111/443", "udp/224.0.0.251/5353", "udp/192.0.0.1/123"]
    for target, outcome in reach(shared_sandbox, *targets, user="root").items():
        assert outcome == "EPERM", (target, outcome)


def test_root_inside_cannot_change_the_network(shared_sandbox):
    before = out(shared_sandbox, "ip -o addr; ip -o link; ip route; ip -6 route")
    for command in (
        "ip addr add 203.0.113.9/32 dev lo",
        "ip addr del 192.0.0.2/32 dev lo",
        "ip route del local default",
        "ip route add 203.0.113.0/24 dev lo",
        "ip rule add from all lookup 100",
        "ip link set lo down",
        "ip link add dummy0 type dummy",
        "ip link add veth0 type veth peer name veth1",
        "ip link add link lo name macvlan0 type macvlan",
        "ip tuntap add dev tap0 mode tap",
        "ip netns add other",
        "unshare --net true",
        "nsenter --net=/proc/1/ns/net ip link set lo down",
        "sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'",
        "python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)'",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "python3 -c 'import socket; socket.socket().setsockopt(0, 19, 1)'",
        "python3 -c 'import socket; socket.socket().setsockopt(1, 36, 1)'",
    ):
        assert run(shared_sandbox, command, user="root").exit_code != 0, command
    assert out(shared_sandbox, "ip -o addr; ip -o link; ip route; ip -6 route") == before


def test_no_socket_of_the_host_or_of_another_sandbox_is_reached(shared_sandbox, sandbox):
    import socket

    sandbox.commands.run("python3 -m http.server 8123", background=True)
    assert wait_for(lambda: run(sandbox, "curl -s http://127.0.0.1:8123/").exit_code == 0)
    with socket.socket(socket.AF_UNIX) as named, socket.socket() as served:
        named.bind("\0cloister-test-isolation")
        named.listen()
        served.bind(("127.0.0.1", 0))
        served.listen()
        connect = "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + 'cloister-test-isolation')"
        assert run(shared_sandbox, f'python3 -c "{connect}"', user="root").exit_code != 0
        targets = [f"tcp/127.0.0.1/{served.getsockname()[1]}", "tcp/127.0.0.1/8123", "tcp/192.0.0.2/8123"]
        for target, outcome in reach(shared_sandbox, *targets, user="root").items():
            assert outcome == "ECONNREFUSED", target


def test_mounts_are_its_own_and_name_nothing_of_the_host(shared_sandbox, server):
    mounts = out(shared_sandbox, "cat /proc/self/mountinfo")
    assert len(mounts.splitlines()) < 50
    for word in ("/var/lib/cloister", str(server.data), "/home/", "/etc/cloister"):
        assert word not in mounts, word
    assert str(server.data) not in out(shared_sandbox, "cat /proc/mounts")


def test_files_of_the_host_are_not_there(shared_sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("host only")
    for path in (str(secret), f"/proc/1/root{secret}", f"/proc/1/cwd{secret}", f"/../../..{secret}"):
        assert run(shared_sandbox, f"sudo cat {path}").exit_code != 0, path


def test_the_host_name_is_not_the_hosts(shared_sandbox):
    import socket

    assert out(shared_sandbox, "hostname") != socket.gethostname()


def test_a_sandbox_can_look_itself_up(shared_sandbox):
    assert out(shared_sandbox, "hostname") == out(shared_sandbox, "cat /etc/hostname")
    assert out(shared_sandbox, "getent hosts $(hostname)").split()[0] == "127.0.0.1"
    assert out(shared_sandbox, "hostname -f")


def test_devices_are_few_and_harmless(shared_sandbox):
    names = set(out(shared_sandbox, "ls /dev").split())
    assert {"null", "zero", "full", "random", "urandom", "tty"} <= names
    assert not names & {
        "mem",
        "kmem",
        "kvm",
        "sda",
        "vda",
        "loop0",
        "loop-control",
        "fuse",
        "net",
        "mapper",
        "kmsg",
        "port",
    }
    assert out(shared_sandbox, "echo hello > /dev/null; head -c 3 /dev/zero | od -An -tx1") == "00 00 00"


# ---- what root inside may not ----


SYSTEM_CALLS = [
    "175, 0, 0, 0",  # init_module
    "169, 0xfee1dead, 672274793, 0, 0",  # reboot: only switches Ctrl-Alt-Del, should it work
    "321, 0, 0, 0",  # bpf
    "298, 0, 0, -1, -1, 0",  # perf_event_open
    "250, 0, -3, 1",  # keyctl
    "425, 1, ctypes.create_string_buffer(120)",  # io_uring_setup
]


@pytest.mark.parametrize(
    "command",
    [
        "mknod /tmp/sda b 8 0",
        "mount -t proc proc /mnt",
        "mount -t tmpfs t /mnt",
        "mount --bind /proc/sys /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo x > /proc/sysrq-trigger",
        "echo x > /proc/sys/kernel/core_pattern",
        "unshare -U true",
        "unshare -m mount -t tmpfs t /mnt",
        "unshare -n true",
        "dmesg",
        "date -s 2001-01-01",
        "echo -1000 > /proc/1/oom_score_adj",
        "head -c 1 /proc/kcore",
        "grep -v '^0000000000000000' /proc/kallsyms",
        "ip link add d type dummy",
        "ip addr add 10.0.0.1/8 dev lo && ip route add default via 10.0.0.2",
        "chmod 777 /dev/null",
        "echo 1 > /sys/kernel/uevent_helper",
        *(f"python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall({call}) < 0)'" for call in SYSTEM_CALLS),
    ],
    ids=lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower())[:40],
)
def test_root_inside_cannot(shared_sandbox, command):
    result = run(shared_sandbox, command, user="root")
    assert result.exit_code not in (0, 127), result  # 127: there is no such program, so nothing was tried


def test_capabilities_are_the_few_that_packages_need(shared_sandbox):
    bounding = int(out(shared_sandbox, "grep CapBnd /proc/self/status", user="root").split()[1], 16)
    dangerous = {
        "sys_admin": 21,
        "sys_module": 16,
        "sys_rawio": 17,
        "sys_boot": 22,
        "sys_time": 25,
        "net_admin": 12,
        "sys_resource": 24,
        "mac_admin": 33,
        "mac_override": 32,
        "syslog": 34,
        "bpf": 39,
        "perfmon": 38,
        "sys_ptrace": 19,
        "dac_read_search": 2,
    }
    assert [name for name, bit in dangerous.items() if bounding >> bit & 1] == []


def test_seccomp_is_on(shared_sandbox):
    assert out(shared_sandbox, "grep ^Seccomp: /proc/self/status").split()[1] == "2"


def test_signals_do_not_leave(shared_sandbox):
    before = subprocess.run(["pgrep", "-c", "."], stdout=subprocess.PIPE, text=True, check=False).stdout
    box = Sandbox.create(timeout=60)
    try:
        run(box, "kill -9 -1", user="root")  # everything it can reach, ourselves included
        assert shared_sandbox.commands.run("echo alive").stdout == "alive\n"
        after = subprocess.run(["pgrep", "-c", "."], stdout=subprocess.PIPE, text=True, check=False).stdout
        assert abs(int(after) - int(before)) < 30
    finally:
        box.kill()


def test_the_daemon_inside_survives_root(sandbox):
    run(sandbox, "kill -9 1; kill -STOP 1; pkill -9 guestd", user="root")
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


# ---- limits ----

SMALL = {"--memory": 256, "--cpus": 1, "--pids": 64}


@pytest.fixture(scope="module")
def small_server(server):
    """A server whose sandboxes are small: what is plenty for one cannot be told from no limit at all."""
    data = server.data.parent / f"{server.data.name}-small"
    prepare(data)
    small = Server(data, [str(word) for option in SMALL.items() for word in option])
    small.start()
    small.kill_all()
    yield small
    small.kill_all()
    small.stop()


@contextlib.contextmanager
def small_box(small_server):
    box = Sandbox.create(timeout=120, api_key=small_server.key, api_url=small_server.url, sandbox_url=small_server.url)
    try:
        yield box
    finally:
        box.kill(api_key=small_server.key, api_url=small_server.url)


@pytest.fixture
def small_sandbox(small_server):
    with small_box(small_server) as box:
        yield box


def test_a_sandbox_has_the_size_that_the_operator_set(small_sandbox, small_server):
    info = small_server.api("GET", f"/sandboxes/{small_sandbox.sandbox_id}").json
    assert (info["memoryMB"], info["cpuCount"]) == (256, 1)


def test_a_sandbox_has_the_size_that_its_template_asks_for(server, made):
    for file in (server.data / "templates").iterdir():
        asked = dict(line.split(" ", 1) for line in file.read_text().splitlines())
        box = server.create(templateID=asked["name"])
        made.append(box["sandboxID"])
        info = server.api("GET", f"/sandboxes/{box['sandboxID']}").json
        assert info["memoryMB"] << 20 == int(asked["memory_bytes"]), asked
        assert info["cpuCount"] * 1000 == int(asked["cpu_millis"]), asked


def test_memory_is_limited_and_the_sandbox_still_answers(small_sandbox):
    assert out(small_sandbox, "python3 -c 'print(len(bytearray(100 << 20)))'") == str(100 << 20)
    assert run(small_sandbox, "python3 -c 'x = b\"x\" * (400 << 20)'").exit_code != 0
    assert small_sandbox.commands.run("echo alive").stdout == "alive\n"


def test_memory_for_files_in_tmpfs_counts_too(small_sandbox):
    assert run(small_sandbox, "head -c 400M /dev/zero > /dev/shm/x").exit_code != 0
    run(small_sandbox, "rm -f /dev/shm/x")
    assert small_sandbox.commands.run("echo alive").stdout == "alive\n"


def test_a_script_that_empties_run_leaves_shared_memory(small_sandbox):
    """/dev/shm is a directory of /run."""
    run(small_sandbox, "rm -rf /run/* 2>/dev/null", user="root")
    code = "from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=9); m.close(); m.unlink()"
    answer = run(small_sandbox, f"python3 -c '{code}' && ls -d /run/shm")
    assert answer.exit_code == 0 and answer.stdout == "/run/shm\n", answer


def kernel_memory():
    """What is neither free, nor a process's, nor a file's, in bytes."""
    lines = (line.split() for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    meminfo = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines}
    return meminfo["MemTotal"] - sum(
        meminfo[name] for name in ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable")
    )


NOISE = 128 << 20  # what else this machine does, in the best of so many tries
TRIES = 6


def hoard_once(box, kind, room):
    """By how much the kernel's part grew, and what the guest says."""
    box.files.write("hoard.py", pathlib.Path(hoard.__file__).read_text())
    before, most = kernel_memory(), 0
    command = box.commands.run(f"python3 hoard.py {kind} {room} 4", background=True, timeout=30)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        most = max(most, kernel_memory() - before)
        time.sleep(0.05)
    try:
        told = command.wait().stdout
    except (CommandExitException, SandboxException) as error:
        told = str(error)
    print(f"{kind}: the kernel's part grew by {most >> 20} MiB; {told}")
    return most, told


@pytest.mark.parametrize("kind", list(hoard.UNLISTED))
def test_the_right_one_of_twenty_is_ended_for_what_no_list_knows(small_server, kind):
    """All others work meanwhile, and none of them notices."""
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(small_box(small_server)) for _ in range(20)]
        work = "for i in $(seq 200); do ls -lR /etc >/dev/null; sleep 0.05; done; echo done"
        working = [box.commands.run(work, background=True, timeout=120) for box in boxes[1:]]
        culprit = boxes[0]
        before = kernel_memory()
        culprit.files.write("hoard.py", pathlib.Path(hoard.__file__).read_text())
        culprit.commands.run(f"python3 hoard.py {kind} {2 << 30} 60", background=True, timeout=60)
        assert wait_for(lambda: f"sandbox {culprit.sandbox_id} is ended: it has the kernel hold" in small_server.log_tail(50), 60)
        assert wait_for(lambda: kernel_memory() - before < NOISE, 60)
        assert all(command.wait().stdout == "done\n" for command in working)
        assert small_server.log_tail(100).count(" is ended: it has the kernel hold") == 1
        logs = small_server.api("GET", f"/sandboxes/{culprit.sandbox_id}/logs")
        assert "too much kernel memory outside its limit" in logs.body.decode(), logs


@pytest.mark.parametrize("kind", list(hoard.KINDS))
def test_what_the_kernel_holds_for_a_guest_stays_within_its_memory(small_server, kind):
    """
    Without protection each takes three times its limit, every time, or as much as it has the time for in error queues.
    Others on this machine take memory too, at times.
    """
    limit = SMALL["--memory"] << 20
    bound = limit + NOISE
    for _ in range(TRIES):
        with small_box(small_server) as box:
            most, told = hoard_once(box, kind, 3 * limit)
            log = small_server.log_tail(10)
            if kind in ("netlink", "corked", "unhashed"):
                assert f"{box.sandbox_id} is ended: its sockets" in log, told
                logs = small_server.api("GET", f"/sandboxes/{box.sandbox_id}/logs")
                assert "too much kernel memory outside its limit" in logs.body.decode(), logs
            elif f"{box.sandbox_id} is ended: its sockets are too many" not in log:
                assert box.commands.run("echo alive").stdout == "alive\n"
            if kind.startswith(("stamped", "errors")):
                assert told.endswith("error queues: 0\n"), told
        if most < bound:
            return
    raise AssertionError((kind, most >> 20, told, log))


MANY = """
import fcntl, os, resource, socket, sys, time
kind, count = sys.argv[1], int(sys.argv[2])
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
held = []
for i in range(count):
    if i % 3000 == 2999:
        if os.fork():
            break
        held.clear()
    if kind == "groups":
        if i % 200 == 0:
            held.append(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        group = socket.inet_pton(socket.AF_INET6, "ff01::%x" % (i + 16)) + (1).to_bytes(4, sys.byteorder)
        held[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    else:
        held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "bound" else socket.SOCK_STREAM))
    if kind == "bound":
        held[-1].bind(("127.0.0.1", 0))
else:
    print("all", flush=True)
    while True:  # the kernel's part grows and shrinks, so that keeper looks
        pipes = [os.pipe() for _ in range(60)]
        for _, writer in pipes:
            os.set_blocking(writer, False)
            try:
                fcntl.fcntl(writer, 1031, 1 << 20)
            except PermissionError:
                pass  # pipes of the last sandbox with these ids are still being freed: the next round gets them
            os.write(writer, bytes(1 << 20))
        time.sleep(0.1)
        for pair in pipes:
            os.close(pair[0])
            os.close(pair[1])
        time.sleep(0.1)
time.sleep(60)
"""


@pytest.mark.parametrize(("kind", "fine", "too_many"), [("plain", 1500, 3000), ("bound", 800, 1500), ("groups", 800, 2500)])
def test_a_guest_with_more_sockets_than_programs_need_is_ended(small_server, kind, fine, too_many):
    def ended():
        return f"{box.sandbox_id} is ended: its sockets" in small_server.log_tail(10)

    for count, expected in ((fine, False), (too_many, True)):
        with small_box(small_server) as box:
            box.files.write("many.py", MANY)
            command = box.commands.run(f"python3 many.py {kind} {count} > told 2>&1", background=True, timeout=60)
            if not expected:
                assert wait_for(lambda: run(box, "cat told").stdout) == "all\n"
            assert wait_for(ended, seconds=30 if expected else 3) is expected, box.files.read("told")
            command.disconnect()


UDP_ERRORS = """
import socket
for family, host, option in ((socket.AF_INET, "127.0.0.1", (0, 11)), (socket.AF_INET6, "::1", (41, 25))):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(*option, 1)
    sock.settimeout(5)
    sock.connect((host, 9))
    sock.send(b"x")
    try:
        sock.recv(1)
    except ConnectionRefusedError:
        print("refused", flush=True)
"""


def test_a_connected_udp_socket_still_hears_that_nobody_is_there(shared_sandbox):
    """The option that fills the error queue is answered and does nothing; resolvers and others ask for it first."""
    shared_sandbox.files.write("errors.py", UDP_ERRORS)
    assert out(shared_sandbox, "python3 errors.py").split() == ["refused", "refused"]


REFUSED_OPTION = """
import errno, socket
with socket.socket() as connection:
    for level, name, value in 3 * [(socket.IPPROTO_TCP, 31, b"tls\\0"), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]:
        try:
            connection.setsockopt(level, name, value)
            print("ok")
        except OSError as error:
            print(errno.errorcode[error.errno])
"""


def test_a_refused_socket_option_is_named_once_in_the_log(sandbox, server):
    sandbox.files.write("/tmp/option.py", REFUSED_OPTION)
    assert out(sandbox, "python3 /tmp/option.py").split() == 3 * ["ENOPROTOOPT", "ok"]

    def lines():
        logs = server.api("GET", f"/v2/sandboxes/{sandbox.sandbox_id}/logs?level=warn").json["logs"]
        return [line["message"] for line in logs if "socket option" in line["message"]]

    assert wait_for(lines)
    assert lines() == ["a program asked for socket option 31 of level 6 (TCP_ULP), which sandboxes do not have"]


def test_a_program_that_is_killed_while_keeper_answers_leaves_the_others_alone(shared_sandbox):
    shared_sandbox.files.write("/tmp/option.py", REFUSED_OPTION)
    run(shared_sandbox, "for i in $(seq 20); do timeout -s KILL 0.05 python3 /tmp/option.py & done; wait")
    assert out(shared_sandbox, "echo fine") == "fine"


def test_sync_answers_at_once_and_files_can_be_written(shared_sandbox):
    assert out(shared_sandbox, "echo x >/tmp/synced && sync && sync -f /tmp/synced && cat /tmp/synced") == "x"


def test_an_acl_in_memory_is_small(shared_sandbox):
    attributes = "import os, sys; os.setxattr('/run/shm/acl', 'user.x' if len(sys.argv) > 2 else 'system.posix_acl_access', bytes(int(sys.argv[1])))"
    assert "No space left" in run(shared_sandbox, f'touch /run/shm/acl; python3 -c "{attributes}" 65532').stderr
    assert "not supported" in run(shared_sandbox, f'python3 -c "{attributes}" 484').stderr  # of version 0: the kernel's answer
    assert run(shared_sandbox, f'python3 -c "{attributes}" 4096 user').exit_code == 0


def test_programs_find_addresses_and_interfaces(shared_sandbox):
    """What a sandbox may not hoard, it still has: the C library and `ip` ask for addresses by netlink."""
    code = "import socket; print(socket.getaddrinfo('localhost', 80)[0][4][0], socket.if_nameindex())"
    assert "'lo'" in out(shared_sandbox, f'python3 -c "{code}"')
    node = "console.log(require('os').networkInterfaces().lo[0].address)"
    if run(shared_sandbox, "command -v node").exit_code == 0:
        assert out(shared_sandbox, f'node -e "{node}"') == "127.0.0.1"
    for _ in range(3):
        assert out(shared_sandbox, "ip -o addr | wc -l") != "0"


SIGNALS = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
count = 0
while count < 200000 and libc.sigqueue(os.getpid(), 40, 0) == 0:
    count += 1
print(count, flush=True)
os.read(0, 1)
"""


def test_signals_that_wait_in_a_neighbour_take_none_from_others(shared_sandbox, sandbox):
    """The kernel also counts them for the owner of the user namespace, which all sandboxes of a template share."""
    for box in (shared_sandbox, sandbox):
        box.files.write("signals.py", SIGNALS)
    greedy = shared_sandbox.commands.run("python3 signals.py > /tmp/queued", background=True, stdin=True)
    assert wait_for(lambda: run(shared_sandbox, "cat /tmp/queued").stdout)
    try:
        assert int(out(sandbox, "python3 signals.py < /dev/null")) > 1000
    finally:
        greedy.kill()


QUEUES = """
import ctypes
rt = ctypes.CDLL("librt.so.1")
count = 0
while count < 200 and rt.mq_open(b"/q%d" % count, 0o102, 0o600, None) >= 0:
    count += 1
print(count)
"""


def test_message_queues_of_a_neighbour_take_none_from_others(shared_sandbox, sandbox):
    status = pathlib.Path("/proc/self/status").read_text()
    if not int(re.search(r"CapEff:\s+(\w+)", status)[1], 16) >> 24 & 1:
        pytest.skip("root has no CAP_SYS_RESOURCE here: keeper cannot raise what sandboxes of a template share")
    for box in (shared_sandbox, sandbox):
        box.files.write("queues.py", QUEUES)
        assert int(out(box, "python3 queues.py")) > 0


FORKS = """
import os, time
n = 0
try:
    while n < 1000:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        n += 1
except OSError:
    pass
print(n)
"""


def test_processes_are_limited_and_the_sandbox_still_answers(small_sandbox):
    small_sandbox.files.write("forks.py", FORKS)
    assert 10 < int(out(small_sandbox, "python3 forks.py")) < SMALL["--pids"]
    assert small_sandbox.is_running() is True


def test_a_command_starts_where_no_process_is_left(small_sandbox):
    """Its limit is used up, so that the spawner inside cannot fork: guestd does it from outside."""
    small_sandbox.files.write("forks.py", FORKS.replace("print(n)", "print(n, flush=True)\ntime.sleep(20)"))
    full = small_sandbox.commands.run("exec python3 forks.py", background=True)
    for _ in small_sandbox.commands.connect(full.pid):
        break  # it has printed
    # Only what the shell does by itself works in there, and that is enough to end it.
    assert small_sandbox.commands.run(f"kill -0 {full.pid} && echo there").stdout == "there\n"
    full.kill()
    assert small_sandbox.commands.run("true; /bin/echo fine").stdout == "fine\n"


def test_a_fork_bomb_hurts_only_itself(small_sandbox, shared_sandbox):
    bomb = small_sandbox.commands.run("bomb() { bomb | bomb & }; bomb; sleep 20", background=True, timeout=30)
    time.sleep(2)
    assert small_sandbox.is_running() is True
    assert shared_sandbox.commands.run("echo fine", timeout=30).stdout == "fine\n"
    bomb.disconnect()


def test_cpu_time_is_limited(small_sandbox):
    spin = "import os, time\nend = time.time() + 4\nwhile time.time() < end:\n    pass\nprint(sum(os.times()[:2]))"
    small_sandbox.files.write("spin.py", spin)
    used = [float(line) for line in out(small_sandbox, "for i in 1 2 3; do python3 spin.py & done; wait").split()]
    assert len(used) == 3 and sum(used) < 5, used  # three of them had four seconds of one CPU between them
    assert small_sandbox.commands.run("echo alive").stdout == "alive\n"


# ---- ends ----


def test_nothing_is_left_of_a_killed_sandbox(server):
    from traces import traces_of

    box = Sandbox.create(timeout=60)
    box.commands.run("sleep 1000", background=True)
    assert traces_of(server, box.sandbox_id)
    box.kill()
    assert wait_for(lambda: not traces_of(server, box.sandbox_id)), traces_of(server, box.sandbox_id)


# ---- what is left of one ----


def dying_cgroups(own):
    """How many memory cgroups of this server the kernel keeps although they are removed, in each way that there is to say it.

    v1 has two ways, and each can say too many. What is left of a removed cgroup is kept for its pages, so there are no more of
    them than pages that are charged to the server's sandboxes when none is there. And the kernel counts those of the whole
    machine, where others may end sandboxes too.
    """
    if (own / "cgroup.stat").exists():
        return [int(re.search(r"nr_dying_descendants (\d+)", (own / "cgroup.stat").read_text())[1])]
    stat = dict(line.split() for line in (own / "memory.stat").read_text().splitlines())
    pages = (int(stat["total_cache"]) + int(stat["total_rss"])) // 4096
    counted = int(re.search(r"^memory\s+\d+\s+(\d+)", pathlib.Path("/proc/cgroups").read_text(), re.MULTILINE)[1])
    top = [path for path in own.parents if (path / "memory.stat").exists()][-1]
    return [pages, counted - sum(1 for _ in os.walk(top))]


WRITES = "for f in $(seq 50); do echo $f > $f; done"
# Names that are not in the template's directories: the kernel keeps some megabytes for them.
MISSES = """perl -e '$r = rand; stat("/usr/lib/$r.$_") for 1..12000'"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [WRITES, f"{WRITES}; {MISSES}"], ids=["files", "files-and-names"])
def test_no_memory_cgroup_is_kept_by_the_files_that_a_sandbox_wrote(server, command):
    ended = 40
    mine = Server(server.data.parent / f"{server.data.name}-dying")
    prepare(mine.data)
    mine.start_when_free()
    try:
        mine.kill_all()

        def create_and_kill(count):
            boxes = [Sandbox.create(api_key=mine.key, api_url=mine.url, sandbox_url=mine.url) for _ in range(count)]
            for box in boxes:
                box.commands.run(command)
            for box in boxes:
                box.kill()

        data = mine.data.stat()
        name = f"cloister.{data.st_dev:x}.{data.st_ino:x}"
        own = next(path for path in pathlib.Path("/sys/fs/cgroup").rglob(name) if (path / "memory.stat").exists())
        create_and_kill(3)  # the first read what no other has read before, and that stays
        wait_for(lambda: not any(entry.is_dir() for entry in own.iterdir()))
        before = dying_cgroups(own)
        create_and_kill(ended)
        # If nothing took the pages back, there would be more than one for each. Those that are in the file system's journal
        # are taken back after its next commit, so their cgroups go some seconds later.
        assert wait_for(lambda: not any(entry.is_dir() for entry in own.iterdir()))

        def few():
            return any(now - then < ended / 10 for now, then in zip(dying_cgroups(own), before))

        assert wait_for(few, 60, pause=1), (before, dying_cgroups(own))
    finally:
        mine.stop()
