"""What the operator decides for all sandboxes: name servers, bandwidth."""

import ctypes
import subprocess

import pytest

import world
from conftest import World
from server import TEST_DATA
from world import HOSTS

CLONE_NEWNS = 0x00020000


@pytest.fixture(scope="module")
def limited(hosts):
    """A server with a limit on bandwidth, that finds its name server in /etc/resolv.conf."""
    file = hosts.work / "resolv.conf"
    file.write_text(f"# of the tests\nnameserver {HOSTS['dns']}\n")

    def own_resolv_conf():
        if ctypes.CDLL(None).unshare(CLONE_NEWNS):
            raise OSError("unshare")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "--bind", str(file), "/etc/resolv.conf"], check=True)

    data = TEST_DATA.with_name(f"{TEST_DATA.name}-limited")
    made = World(hosts, "--egress-rate", "2", data=data, before=own_resolv_conf, dns=None)
    try:
        yield made
    finally:
        made.stop()


def test_the_name_servers_of_the_machine_are_asked(limited, hosts):
    hosts.forget()
    assert limited.shared_box().ok("resolve", "two.test") == sorted([HOSTS["two"], HOSTS["two_six"]])
    assert hosts.seen("dns", name="two.test")


def test_a_name_server_that_does_not_answer_is_named_in_both_logs(hosts):
    deaf = World(hosts, data=TEST_DATA.with_name(f"{TEST_DATA.name}-deaf"), dns=HOSTS["silent_dns"])
    try:
        box = deaf.box()
        for name in ("one.test", "two.test"):
            box.fails("resolve", name)
            assert box.wait_log(f"DNS question for {name} failed: no DNS server of the host answered")
        lines = [line for line in deaf.server.log_tail(1000).splitlines() if "no name server" in line]
        assert len(lines) == 1, lines
        assert f"no name server answers: {HOSTS['silent_dns']}:53; --dns names others" in lines[0]
    finally:
        deaf.stop()


def test_the_rate_is_for_one_sandbox_and_each_direction(limited):
    """8 MiB at 2 MiB a second take 2 seconds at least, whatever the machine: a burst of some MiB is free."""
    box = limited.shared_box()
    code = """
import socket, threading, time
size = 8 << 20
begun = time.monotonic()
s = socket.create_connection(("%s", 80))
s.sendall(b"GET /bytes/%%d HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n" %% size)
got = 0
while piece := s.recv(1 << 20):
    got += len(piece)
assert got > size, got
down = time.monotonic() - begun
begun = time.monotonic()
s = socket.create_connection(("%s", %d))
s.sendall(b"x" * size)
s.shutdown(socket.SHUT_WR)
assert int(s.recv(100)) == size
print(down >= 2, time.monotonic() - begun >= 2)
""" % (HOSTS["one"], HOSTS["one"], world.COUNT_PORT)
    result = box.run("python3", "-c", code)
    assert result.stdout == "True True\n", result


def test_a_bad_option_is_refused_at_the_start_with_its_reason(hosts):
    for option, value, says in (
        ("--internet", "maybe", "internet"),
        ("--egress-allow", "10.0.0.0/33", "egress-allow"),
        ("--egress-allow", "example.com", "egress-allow"),
        ("--egress-deny", "example.com", "egress-deny"),
        ("--dns", "example.com", "dns"),
        ("--egress-rate", "-1", "egress-rate"),
        ("--inside", "mirror:80=127.0.0.1:80", "'mirror' is not a host name with a dot"),
        ("--inside", "mirror.internal:0=127.0.0.1:80", "the port of mirror.internal"),
        ("--inside", "mirror.internal:80=localhost:80", "an address and a port"),
        ("--inside", "a.test:80=127.0.0.1:80,A.test:80=127.0.0.1:81", "twice"),
    ):
        with pytest.raises(RuntimeError) as caught:
            World(hosts, option, value, data=TEST_DATA.with_name(f"{TEST_DATA.name}-limited"), dns=None)
        assert says in str(caught.value), (option, value, caught.value)
