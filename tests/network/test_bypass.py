"""Ways around egress that a guest can try. None leads anywhere, and each fails at once."""

import socket
import threading

import pytest

import world
from world import HOSTS, MACHINE

ONE, TEN = HOSTS["one"], HOSTS["ten"]


@pytest.fixture(scope="module")
def box(cloister):
    return cloister.shared_box()


@pytest.mark.parametrize("address", [ONE, HOSTS["one_six"], HOSTS["metadata"], MACHINE["public"]])
def test_icmp_fails_at_once(box, hosts, address):
    hosts.forget()
    result = box.fails("ping", address)
    assert result["error"] != "TimeoutError", result
    assert not hosts.seen("icmp")


@pytest.mark.parametrize("port", [443, 9999, 123])
@pytest.mark.parametrize("address", [ONE, HOSTS["one_six"], HOSTS["ten"]])
def test_udp_fails_at_once(box, hosts, address, port):
    """443 is QUIC: browsers and curl fall back to TCP when it is refused."""
    hosts.forget()
    result = box.fails("udp", address, port)
    assert result["error"] != "TimeoutError", result
    assert not hosts.seen("udp")


@pytest.mark.parametrize("address", [f"::ffff:{TEN}", f"::ffff:{HOSTS['metadata']}", f"::ffff:{MACHINE['private']}", "::ffff:127.0.0.1", f"::{TEN}"])
def test_a_private_address_inside_of_ipv6_is_refused(box, hosts, address):
    """::ffff:127.0.0.1 is the guest's own loopback, where nothing listens."""
    hosts.forget()
    result = box.fails("http", address, "any.test")
    assert result["error"] != "TimeoutError", result
    assert not hosts.seen("tcp")


@pytest.mark.parametrize("address", ["0.0.0.0", "255.255.255.255", "224.0.0.1", "0.0.0.1", "ff02::1", "::", "fe80::1"])
def test_addresses_that_are_none_are_refused(box, hosts, address):
    hosts.forget()
    result = box.fails("http", address, "any.test", 8080)
    assert result["error"] != "TimeoutError", result
    assert not hosts.seen("tcp")


def test_the_servers_own_port_is_refused(box, cloister):
    """The API listens on the machine's loopback. A guest's loopback is its own."""
    for address in ("127.0.0.1", MACHINE["public"], MACHINE["private"], MACHINE["six"]):
        result = box.fails("http", address, "localhost", cloister.server.port, "/health")
        assert result["error"] in ("ConnectionRefusedError", "ConnectionResetError"), (address, result)


def test_services_on_the_machine_are_refused(box):
    """On all of its addresses: one that listens to everybody is the case that hurts."""
    accepted = []
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = listener.getsockname()[1]

    def accept():
        while True:
            try:
                accepted.append(listener.accept())
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    try:
        with socket.create_connection((MACHINE["public"], port), 5):
            pass  # it can be reached: from the machine itself
        for address in (MACHINE["public"], MACHINE["private"], MACHINE["six"], "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0"):
            result = box.fails("tcp", address, port)
            assert result["error"] in ("ConnectionRefusedError", "ConnectionResetError"), (address, result)
        assert len(accepted) == 1
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_new_address_of_the_machine_is_refused_at_once(box):
    """Addresses come and go; there is no list that could be out of date."""
    world.run("ip", "address", "add", "198.51.100.200/32", "dev", "up0")
    listener = socket.create_server(("198.51.100.200", 0))
    try:
        box.refused("tcp", "198.51.100.200", listener.getsockname()[1])
        listener.settimeout(0.5)
        with pytest.raises(TimeoutError):
            listener.accept()
    finally:
        listener.close()
        world.run("ip", "address", "del", "198.51.100.200/32", "dev", "up0")


def test_the_listening_sockets_themselves_lead_nowhere(box, hosts):
    """A guest sees what listens in its namespace and connects to it without being redirected."""
    found = box.ok("listeners")
    assert found, "nothing listens at all"
    hosts.forget()
    for address, port in found:
        for call in (("http", address, "one.test", port), ("https", address, "one.test", box.ca, None, port)):
            result = box.call(*call)
            assert "ok" not in result or "to" not in result["ok"], (address, port, result)
    assert not hosts.seen("tcp")
    assert box.wait_log("socket of Cloister's own")


def test_guests_cannot_change_their_network(box):
    for command in ("ip link add x type dummy", "ip route add 203.0.113.0/24 dev lo", "nft flush ruleset", "iptables -F"):
        program = command.split()[0]
        result = box.run("sudo", "-n", "sh", "-c", f"command -v {program} >/dev/null || exit 99; {command}")
        assert result.code != 0, command
    code = "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)"  # netfilter
    raw = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    for text in (code, raw):
        assert box.run("sudo", "-n", "python3", "-c", text + ".send(b'x')").code != 0


def test_another_sandbox_is_not_reachable(make_box, hosts):
    """Both have the same addresses; each sees only itself."""
    first, second = make_box(), make_box()
    first.run("python3 -m http.server 8123 --bind 0.0.0.0 >/dev/null 2>&1 & python3 -m http.server 8124 --bind :: >/dev/null 2>&1 & sleep 1")
    own = first.run("hostname -I 2>/dev/null; python3 -c \"print(open('/proc/net/fib_trie').read())\"").stdout
    addresses = {word for word in own.split() if word.count(".") == 3 and word[0].isdigit()} | {"127.0.0.1", "::1"}
    for address in addresses:
        for port in (8123, 8124):
            result = second.fails("http", address.split("/")[0], "any.test", port)
            assert result["error"] != "TimeoutError", (address, result)


def test_loopback_is_the_guests_own(box):
    assert box.ok("serve_once", 8125) == "mine"
    assert box.ok("serve_once", 8126, "::1") == "mine"
