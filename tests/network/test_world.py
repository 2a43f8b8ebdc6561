"""The world itself, seen by a client without a sandbox.

Everything is reachable here, the private addresses too. So a test that finds an address refused has found a rule, and
not a server that was never there.
"""

import pytest

import world
from world import HOSTS, MACHINE

PLAIN = [name for name, address in HOSTS.items() if ":" not in address]
SIX = [name for name, address in HOSTS.items() if ":" in address]


@pytest.mark.parametrize("name", [*PLAIN, *SIX])
def test_every_address_answers_over_http_and_tls(plain, name, hosts):
    address = HOSTS[name]
    answer = plain.ok("http", address, "any.test")
    assert (answer["to"], answer["host"]) == (address, "any.test")
    answer = plain.ok("https", address, "one.test", plain.ca)
    assert (answer["to"], answer["sni"], answer["tls"]) == (address, "one.test", True)
    assert hosts.seen("request", to=address, sni="one.test")


def test_every_mail_port_answers(plain):
    for port in world.MAIL_PORTS:
        assert plain.ok("tcp", HOSTS["mail"], port, "", True).startswith("220 ")


def test_dns_knows_addresses_chains_text_and_what_is_not_there(plain):
    server = HOSTS["dns"]
    assert plain.ok("dns", "one.test", 1, server)["answers"] == [["one.test", 1, HOSTS["one"], 60]]
    assert plain.ok("dns", "one.test", 28, server)["answers"] == [["one.test", 28, HOSTS["one_six"], 60]]
    chain = plain.ok("dns", "chain.test", 1, server)["answers"]
    assert [row[1] for row in chain] == [5, 5, 5, 1] and chain[-1][2] == HOSTS["one"]
    assert plain.ok("dns", "text.test", 16, server)["answers"][0][2] == "hello from TXT"
    assert plain.ok("dns", "nothing.test", 1, server)["rcode"] == 3
    assert plain.ok("dns", "anything.wild.test", 1, server)["answers"][0][2] == HOSTS["one"]


def test_dns_rebinds_and_truncates_and_lies(plain, hosts):
    server = HOSTS["dns"]
    twice = {plain.ok("dns", "rebind.test", 1, server)["answers"][0][2] for _ in range(2)}
    assert twice == {HOSTS["one"], HOSTS["ten"]}
    assert plain.ok("dns", "big.test", 16, server)["truncated"]
    assert plain.ok("dns", "big.test", 16, server, True)["size"] > 50_000
    assert plain.ok("dns", "wrongaddr.test", 1, server)["answers"][0][2] == HOSTS["one"]
    assert plain.ok("dns", "wrongid.test", 1, server)["id"] != 0x1234
    assert plain.fails("dns_raw", "12340100000100000000000006" + b"silent".hex() + "04" + b"test".hex() + "0000010001", server, 1)
    assert plain.fails("dns", "bomb.test", 1, server)["error"] in ("ValueError", "RecursionError")
    assert hosts.seen("dns", name="silent.test")


def test_udp_and_icmp_arrive_and_are_noticed(plain, hosts):
    hosts.forget()
    assert plain.ok("udp", HOSTS["one"], 443) == "x"
    assert plain.ok("udp", HOSTS["one_six"], 9999) == "x"
    assert plain.ok("ping", HOSTS["one"])
    assert plain.ok("ping", HOSTS["one_six"])
    assert len(hosts.seen("udp")) == 2
    assert {event["family"] for event in hosts.wait_seen("icmp")} == {4, 6}


def test_hostile_peers_are_hostile(plain):
    address = HOSTS["hostile"]
    assert plain.fails("tcp", address, world.RESET_PORT)["error"] == "ConnectionResetError"
    assert plain.ok("tcp", address, world.EARLY_END_PORT) == "bye\n"
    assert plain.ok("is_open", address, world.MUTE_PORT)
    assert plain.ok("tcp", HOSTS["one"], world.COUNT_PORT, "x" * 1000, True) == "1000\n"
    assert plain.fails("tcp", HOSTS["one"], world.CLOSED_PORT)["error"] == "ConnectionRefusedError"
    assert plain.fails("tcp", world.NOBODY, 80)["text"].endswith("Network is unreachable")
    assert plain.fails("https", address, "one.test", plain.ca, None, world.HUGE_HELLO_PORT)["error"] == "SSLError"


def test_a_hello_in_pieces_is_answered(plain):
    assert plain.ok("split_hello", HOSTS["one"], "one.test", 40).startswith("1603")
    assert plain.ok("split_hello", HOSTS["one"], "one.test", 7, True).startswith("1603")


def test_the_proxy_asks_for_its_password(plain, hosts):
    # hello with a method list of user and password; then the two; then CONNECT one.test:80
    user, password = world.SOCKS_USER.encode(), world.SOCKS_PASSWORD.encode()
    login = b"\5\1\2" + b"\1" + bytes([len(user)]) + user + bytes([len(password)]) + password
    ask = b"\5\1\0\3" + bytes([8]) + b"one.test" + (80).to_bytes(2, "big")
    get = b"GET / HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n"
    said = bytes.fromhex(plain.ok("raw", HOSTS["socks"], world.SOCKS_PORT, (login + ask + get).hex()))
    assert said.startswith(b"\5\2\1\0\5\0\0\1") and b'"host": "one.test"' in said
    assert hosts.seen("socks", target="one.test", user=world.SOCKS_USER)
    hosts.forget()
    wrong = b"\5\1\2" + b"\1\1a\1b"
    assert bytes.fromhex(plain.ok("raw", HOSTS["socks"], world.SOCKS_PORT, wrong.hex())) == b"\5\2\1\1"


def test_package_servers_have_files(plain, hosts):
    import subprocess

    def get(url):
        return subprocess.run(
            ["curl", "-sS", "--fail", "--noproxy", "*", "--cacert", plain.ca, "--connect-to", f"::{HOSTS['packages']}:", url],
            check=True,
            stdout=subprocess.PIPE,
        ).stdout

    assert b"tiny-1.0-py3-none-any.whl" in get("https://pypi.org/simple/tiny/")
    assert b'"latest"' in get("https://registry.npmjs.org/tiny")
    assert b"refs/heads/main" in get("https://github.com/tiny/tiny.git/info/refs")
    assert b"Filename: ./tiny_1_all.deb" in get("http://deb.debian.org/tiny/Packages")


def test_the_machine_is_alone_in_its_namespace(plain):
    """Nothing of the real machine's network is here: its addresses, its routes, its Internet."""
    links = world.run("ip", "-oneline", "link").splitlines()
    assert len(links) == 2, links
    addresses = world.run("ip", "-oneline", "address")
    assert all(address in addresses for address in MACHINE.values())
