"""Connections that are odd: closed ports, half-closed, idle, many, cut; hostile peers; egress that is killed."""

import os
import resource
import signal
import time

import pytest

import world
from conftest import World
from server import TEST_DATA, wait_for
from test_update import in_background, wait_file
from world import HOSTS

ONE, HOSTILE = HOSTS["one"], HOSTS["hostile"]
LIMIT_TAKEN_BURST, LIMIT_TAKEN_S = 8192, 500  # base/limits.h


@pytest.fixture(scope="module")
def box(cloister):
    return cloister.shared_box()


def test_a_closed_port_is_refused_at_once(box):
    for address in (ONE, HOSTS["one_six"]):
        result = box.fails("tcp", address, world.CLOSED_PORT)
        assert result["error"] in ("ConnectionRefusedError", "ConnectionResetError"), result


def test_a_host_that_is_not_there_is_told_at_once(box):
    result = box.fails("tcp", world.NOBODY, 80)
    assert result["error"] != "TimeoutError", result


def test_data_is_whole_both_ways(box):
    code = """
import hashlib, os, socket, threading
data = os.urandom(1 << 20) * 64
s = socket.create_connection(("%s", %d))
threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)), daemon=True).start()
got = hashlib.sha256()
while piece := s.recv(1 << 20):
    got.update(piece)
print(got.hexdigest() == hashlib.sha256(data).hexdigest())
""" % (ONE, world.ECHO_PORT)
    assert box.run("python3", "-c", code).stdout == "True\n"


def test_a_half_closed_connection_still_carries_the_answer(box):
    assert box.ok("tcp", ONE, world.COUNT_PORT, "x" * 100_000, True) == "100000\n"


def test_a_peer_that_ends_first_still_gets_the_rest(box, hosts):
    hosts.forget()
    code = """
import socket, time
s = socket.create_connection(("%s", %d))
while s.recv(100): pass
for _ in range(10):
    s.sendall(b"y" * 1000); time.sleep(0.02)
s.close()
""" % (HOSTILE, world.EARLY_END_PORT)
    assert box.run("python3", "-c", code).code == 0
    assert [event["total"] for event in hosts.wait_seen("early_end")] == [10_000]


def test_an_idle_connection_stays(box):
    code = """
import socket, time
s = socket.create_connection(("%s", %d))
s.sendall(b"a"); assert s.recv(1) == b"a"
time.sleep(5)
s.sendall(b"b"); print(s.recv(1).decode())
""" % (ONE, world.ECHO_PORT)
    assert box.run("python3", "-c", code).stdout == "b\n"


def test_the_end_of_a_program_ends_its_connection_outside(box, hosts):
    hosts.forget()
    box.run("python3", "-c", f"import socket,os; s=socket.create_connection(('{HOSTILE}',{world.MUTE_PORT})); s.send(b'x'); os._exit(0)")
    assert hosts.wait_seen("closed", to=HOSTILE, port=world.MUTE_PORT)


def test_the_end_of_a_sandbox_ends_its_connections_outside(make_box, hosts):
    one = make_box()
    in_background(one, "keep_talking", ONE, world.ECHO_PORT, 60, "/tmp/job.on")
    wait_file(one, "/tmp/job.on")
    hosts.forget()
    one.kill()
    assert hosts.wait_seen("closed", to=ONE, port=world.ECHO_PORT)


def test_a_peer_that_resets_is_seen_as_a_reset(box):
    assert box.fails("tcp", HOSTILE, world.RESET_PORT)["error"] == "ConnectionResetError"


def test_slow_and_endless_peers_hold_up_nobody(box):
    """A byte now and then, headers without end, nothing at all, a huge hello: others go on meanwhile."""
    for i, (port, lines) in enumerate([(world.DRIP_PORT, ""), (world.HEADERS_PORT, ""), (world.MUTE_PORT, ""), (world.HUGE_HELLO_PORT, "x")]):
        code = f"import socket,time; s=socket.create_connection(('{HOSTILE}',{port})); s.sendall(b'{lines}'); time.sleep(15)"
        box.run(f'python3 -c "{code}" >/dev/null 2>&1 &')
    assert box.ok("http", ONE, "any.test")
    assert box.ok("resolve", "one.test")


def test_a_reader_that_stops_holds_no_memory_in_egress(box, cloister):
    """Backpressure: 40 connections to an endless source that nobody reads. Measured while they are open."""
    pid = cloister.role_pid("egress")
    before = resident_kib(pid)
    code = f"""
import os, socket, time
held = [socket.create_connection(('{ONE}', {world.SOURCE_PORT})) for _ in range(40)]
open('/tmp/reader.on', 'w').close()
while not os.path.exists('/tmp/reader.off'): time.sleep(0.05)
print(sum(len(s.recv(1)) for s in held))
"""
    box.run(f'rm -f /tmp/reader.*; (python3 -c "{code}" >/tmp/reader.half 2>&1; mv /tmp/reader.half /tmp/reader.done) >/dev/null 2>&1 &')
    wait_file(box, "/tmp/reader.on")
    most = 0
    for _ in range(20):  # buffers that are going to fill have filled within two seconds
        most = max(most, resident_kib(pid))
        time.sleep(0.1)
    box.run("touch", "/tmp/reader.off")
    wait_file(box, "/tmp/reader.done")
    assert box.run("cat", "/tmp/reader.done").stdout == "40\n"  # all had been open, with something to read
    assert most - before < 40 * 1024


def resident_kib(pid):
    text = open(f"/proc/{pid}/status", encoding="utf-8").read()
    return int(text.split("VmRSS:")[1].split()[0])


def test_ten_thousand_connections_of_one_sandbox_are_capped_and_others_go_on(make_box, cloister, hosts):
    """1,024 are open, the rest are refused at once with a line in the log; egress and other sandboxes live on."""
    many, other = make_box(), make_box()
    pid = cloister.role_pid("egress")
    result = in_background(many, "hold", ONE, world.ECHO_PORT, 10_000, 3)
    assert wait_for(lambda: other.call("http", ONE, "any.test").get("ok"), 20)
    found = result()["ok"]
    assert 100 <= found["alive"] <= 1024, found
    assert found["alive"] + found["reset"] + sum(found["errors"].values()) >= min(10_000, found["opened"]), found
    assert other.ok("http", ONE, "any.test")
    assert cloister.role_pid("egress") == pid
    assert many.wait_log("open connections")
    # They are given back.
    assert wait_for(lambda: many.call("http", ONE, "any.test").get("ok"), 20)


def test_a_storm_of_connections_is_accepted_at_a_rate_and_others_go_on(make_box):
    """Each is refused by a rule, at once. Most of them wait in the sandbox's own backlog, or do not get that far."""
    stormer, other = make_box(), make_box()
    began = time.monotonic()
    accepted = in_background(stormer, "connect_storm", HOSTS["ten"], 80, 40_000, "/tmp/storm.off")
    waits = stormer.wait_log("connections and DNS questions wait")
    for _ in range(20):
        answers = other.calls(*[("dns", "one.test")] * 10)
        assert [answer.get("ok", {}).get("rcode") for answer in answers] == [0] * 10, answers
        assert other.ok("http", ONE, "any.test")
    stormer.run("touch", "/tmp/storm.off")
    count = accepted()["ok"]

    def reported():
        rows = stormer.server.api("GET", f"/sandboxes/{stormer.id}/metrics").json
        return max((row["networkRefused"] for row in rows), default=0)

    assert wait_for(lambda: reported() >= min(count, LIMIT_TAKEN_BURST), 30), (reported(), count)
    taken, bound = reported(), LIMIT_TAKEN_BURST + LIMIT_TAKEN_S * (time.monotonic() - began)
    assert taken <= bound and waits, (taken, bound, count)
    # What waited is over, and the sandbox is served again.
    assert wait_for(lambda: stormer.call("http", ONE, "any.test").get("ok"), 20)


def test_egress_killed_in_mid_transfer_loses_the_connection_and_nothing_else(make_box, cloister):
    one, other = make_box(), make_box()
    job = in_background(one, "download", ONE, 80, "any.test", 1 << 40, "/tmp/job.on")
    wait_file(one, "/tmp/job.on")
    pid = cloister.role_pid("egress")
    os.kill(pid, signal.SIGKILL)
    found = job()["ok"]
    assert 0 < found["got"] < 1 << 40 and found["how"] in ("ConnectionResetError", "end"), found
    assert wait_for(lambda: cloister.role_pid("egress") not in (None, pid), 20)
    for box in (one, other):
        assert wait_for(lambda: "ok" in box.call("http", ONE, "any.test"), 20), "no way out after a restart of egress"
        assert box.ok("resolve", "one.test")
    assert one.run("true").code == 0


def test_a_full_descriptor_table_refuses_and_recovers(hosts):
    """A server with few descriptors: connections beyond them fail at once, nothing ends, and later ones work again."""

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    poor = World(hosts, data=TEST_DATA.with_name(f"{TEST_DATA.name}-poor"), before=few)
    try:
        boxes = [poor.box() for _ in range(4)]
        pid = poor.role_pid("egress")
        jobs = [in_background(box, "hold", ONE, world.ECHO_PORT, 600, 2) for box in boxes]
        found = [job()["ok"] for job in jobs]
        assert 0 < sum(row["alive"] for row in found) < 1024, found
        assert sum(row["reset"] + sum(row["errors"].values()) for row in found) > 0, found
        for box in boxes:
            assert wait_for(lambda box=box: "ok" in box.call("http", ONE, "any.test"), 20), "no way out afterwards"
        assert poor.role_pid("egress") == pid
    finally:
        poor.stop()


def test_bytes_and_connections_are_counted(make_box):
    box = make_box()
    box.ok("http", ONE, "any.test", 80, "/")
    box.ok("tcp", ONE, world.COUNT_PORT, "x" * 50_000, True)
    box.fails("tcp", HOSTS["ten"], 80)

    def rows():
        answer = box.server.api("GET", f"/sandboxes/{box.id}/metrics")
        newest = answer.json[-1] if answer.json else {}
        return newest if newest.get("networkBytesOut", 0) >= 50_000 else None

    found = wait_for(rows, 20, 0.5)
    assert found, box.server.api("GET", f"/sandboxes/{box.id}/metrics")
    assert found["networkConnections"] == 2 and found["networkRefused"] == 1 and found["networkBytesIn"] > 0, found


def open_files(pid):
    """Egress closes the sockets of sandboxes that other tests have just killed: those are left out."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    return names


def test_egress_has_no_power(cloister):
    """Its own user, no capabilities, a seccomp filter, none of front's files."""
    pid = cloister.role_pid("egress")
    status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status", encoding="utf-8").read().splitlines() if ":\t" in line)
    front = cloister.role_pid("front")
    front_uid = open(f"/proc/{front}/status", encoding="utf-8").read().split("Uid:\t")[1].split()[0]
    assert status["Uid"].split()[0] not in ("0", front_uid), status["Uid"]
    assert int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0
    assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"
    files = open_files(pid)
    assert not [name for name in files if "store" in name or ".db" in name], files


def test_egress_lives_through_all_of_this(cloister):
    text = cloister.server.log_path.read_text(errors="replace")
    # Not LeakSanitizer, which wants ptrace at the end of a role and does not get it.
    assert "AddressSanitizer" not in text and "runtime error" not in text
    assert "ssertion" not in text
