"""Rules about names: what is read from SNI, Host and DNS, and that a name that is allowed is the address reached."""

import pytest

from world import HOSTS

ONE, TWO, DENIED = HOSTS["one"], HOSTS["two"], HOSTS["denied"]


def names(*allowed, **fields):
    return {"network": {"allowOut": list(allowed), "denyOut": ["0.0.0.0/0"], **fields}}


ONLY_ONE = names("one.test")
WILD = names("*.wild.test")


@pytest.fixture
def one_only(cloister, hosts):
    box = cloister.shared_box(**ONLY_ONE)
    hosts.forget()
    return box


def test_an_allowed_name_is_reached_over_tls(one_only):
    answer = one_only.ok("https", "one.test", "one.test", one_only.ca)
    assert (answer["sni"], answer["host"]) == ("one.test", "one.test")


def test_an_allowed_name_is_reached_over_http(one_only):
    assert one_only.ok("http", "one.test", "one.test")["host"] == "one.test"


def test_an_allowed_name_is_read_in_any_case(one_only):
    assert one_only.ok("https", "one.test", "ONE.test", one_only.ca)
    assert one_only.ok("http", "one.test", "One.TEST")


def test_an_allowed_name_is_found_by_its_dns_answer_on_other_ports(one_only):
    """Neither SNI nor Host: the question that the sandbox asked leads to the address."""
    assert one_only.ok("resolve", "one.test")
    assert one_only.ok("http", "one.test", "one.test", 8080)["to"] in (ONE, HOSTS["one_six"])


@pytest.mark.parametrize("call", [
    ("https", TWO, "two.test", "CA"),
    ("http", TWO, "two.test"),
    ("https", DENIED, "denied.test", "CA"),
    ("http", TWO, "sub.one.test"),
    ("http", TWO, "one.test.two.test"),
    ("http", TWO, ""),
    ("tcp", TWO, 8080, "\0\1\2"),
    ("tcp", TWO, 8080, "SSH-2.0-x\r\n"),
], ids=str)  # fmt: skip
def test_another_name_is_refused(one_only, hosts, call):
    function, *arguments = [one_only.ca if part == "CA" else part for part in call]
    one_only.refused(function, *arguments)
    assert not hosts.seen("tcp")


def test_a_hello_without_a_name_is_refused(one_only, hosts):
    one_only.refused("https", TWO, None, one_only.ca)
    assert not hosts.seen("tcp")


def test_sni_of_an_allowed_name_leads_to_that_name_and_not_to_the_address_that_was_dialled(one_only, hosts):
    """The guest says one.test and dials another host: it is connected to one.test."""
    answer = one_only.ok("https", DENIED, "one.test", one_only.ca)
    assert answer["to"] in (ONE, HOSTS["one_six"])
    assert not hosts.seen("tcp", to=DENIED)


def test_host_of_an_allowed_name_leads_to_that_name_and_not_to_the_address_that_was_dialled(one_only, hosts):
    answer = one_only.ok("http", DENIED, "one.test")
    assert answer["to"] in (ONE, HOSTS["one_six"])
    assert not hosts.seen("tcp", to=DENIED)


def test_sni_that_differs_from_host_decides_alone(one_only, hosts):
    """Host is inside of TLS, which is not opened: the server of the allowed name gets it, whatever it says."""
    answer = one_only.ok("https", "one.test", "one.test", one_only.ca, "two.test")
    assert answer["to"] in (ONE, HOSTS["one_six"]) and answer["host"] == "two.test"
    one_only.refused("https", TWO, "two.test", one_only.ca, "one.test")
    assert not hosts.seen("tcp", to=TWO)


@pytest.mark.parametrize("pieces, records", [(2, False), (40, False), (200, False), (2, True), (7, True)])
def test_a_hello_in_pieces_is_read_as_one(one_only, hosts, pieces, records):
    assert one_only.ok("split_hello", ONE, "one.test", pieces, records).startswith("1603")
    hosts.forget()
    one_only.refused("split_hello", TWO, "two.test", pieces, records)
    assert not hosts.seen("tcp")


def test_a_hello_that_claims_megabytes_is_refused_and_costs_nothing(one_only, hosts):
    for claim, really in ((16_000_000, 100), (16_000_000, 100_000), (65_000, 70_000), (0, 0)):
        one_only.refused("claims_much", TWO, claim, really)
    assert not hosts.seen("tcp")


def test_a_star_allows_names_below_and_not_the_name_itself(cloister, hosts):
    box = cloister.shared_box(**WILD)
    hosts.forget()
    assert box.ok("https", "a.wild.test", "a.wild.test", box.ca)["sni"] == "a.wild.test"
    assert box.ok("http", "a.b.c.wild.test", "a.b.c.wild.test")["host"] == "a.b.c.wild.test"
    hosts.forget()
    box.refused("http", ONE, "wild.test")
    box.refused("http", ONE, "notwild.test")
    assert not hosts.seen("tcp")


def test_a_star_alone_allows_every_name_and_no_bare_address(cloister, hosts):
    box = cloister.shared_box(**names("*"))
    assert box.ok("https", "two.test", "two.test", box.ca)["sni"] == "two.test"
    hosts.forget()
    box.refused("tcp", DENIED, 8080, "\0\1\2")
    assert not hosts.seen("tcp")


def test_an_allowed_name_does_not_lead_to_a_private_address(cloister, hosts):
    """The owner of an allowed name can point it anywhere; the rule about addresses comes first."""
    box = cloister.shared_box(**names("private.test", "metadata.test", "mapped.test", "nat64.test", "machine.test", "loopback.test"))
    hosts.forget()
    for name in ("private.test", "metadata.test", "mapped.test", "nat64.test", "machine.test", "loopback.test"):
        for address in (ONE, DENIED):
            result = box.fails("http", address, name)
            assert result["error"] != "TimeoutError", result
    assert not hosts.seen("tcp")


def test_rebinding_never_reaches_the_private_address(cloister, hosts):
    """Each question for rebind.test gets the other answer: public, private, public…"""
    box = cloister.shared_box(**names("rebind.test"))
    default = cloister.shared_box()
    hosts.forget()
    for one in (box, default):
        for call in [("http", "rebind.test", "rebind.test")] * 6 + [("https", ONE, "rebind.test", box.ca)] * 4:
            one.call(*call)
    reached = {event["to"] for event in hosts.seen("tcp")}
    assert HOSTS["ten"] not in reached, reached
    assert reached <= {ONE}, reached


def test_a_name_that_moves_is_reached_where_it_is_now(cloister, hosts):
    """An address that the sandbox was not given for that name is not dialled: the name is looked up again."""
    hosts.set_name("moving.test", A=[ONE], ttl=0)
    box = cloister.box(**names("moving.test"))
    try:
        assert box.ok("http", "moving.test", "moving.test")["to"] == ONE
        hosts.forget()
        hosts.set_name("moving.test", A=[TWO], ttl=0)
        assert box.ok("https", DENIED, "moving.test", box.ca)["to"] == TWO
        assert not hosts.seen("tcp", to=DENIED)
    finally:
        box.kill()


def test_only_allowed_names_are_looked_up(one_only, hosts):
    """A name server that sees questions is a way out for data."""
    assert one_only.fails("resolve", "two.test")
    assert one_only.ok("dns", "secret-data.two.test")["rcode"] != 0
    assert not hosts.seen("dns", name="two.test")
    assert not hosts.seen("dns", name="secret-data.two.test")
    assert one_only.wait_log("two.test")


def test_names_of_private_networks_are_not_asked_for(cloister, hosts):
    """The host's name servers may know them. A policy that has such a name lets it be asked for."""
    box = cloister.shared_box()
    hosts.forget()
    for name in ("printer", "db.internal", "nas.local", "wiki.corp", "a.b.home.arpa"):
        assert box.ok("dns", name)["rcode"] == 3, name
    assert not hosts.seen("dns")
    assert box.wait_log("db.internal", "belongs to private networks")
    box = cloister.shared_box(**names("db.internal"))
    assert box.ok("dns", "db.internal")["rcode"] == 3  # the name servers' own word
    assert hosts.seen("dns", name="db.internal")


def test_dns_pins_for_one_sandbox_are_not_anothers(make_box, hosts):
    first, second = make_box(**names("one.test")), make_box(**names("two.test"))
    assert first.ok("resolve", "one.test")
    hosts.forget()
    second.refused("tcp", ONE, 8080, "GET / HTTP/1.1\r\n\r\n")
    assert not hosts.seen("tcp", to=ONE)


@pytest.mark.parametrize("name", ["private.test", "metadata.test", "mapped.test", "nat64.test"])
def test_addresses_that_are_not_public_are_left_out_of_answers(cloister, name):
    """The look-up fails already, so that no program takes such an address for the name's owner's."""
    box = cloister.shared_box()
    box.fails("resolve", name)
    assert box.wait_log("DNS question", name)


def test_dns_servers_of_a_policy_are_reached_where_names_are_allowed(cloister, hosts):
    """On all ports, as with E2B; a server that is asked there may be asked for any name."""
    box = cloister.shared_box(**names("one.test", dnsServers=[TWO]))
    hosts.forget()
    assert box.ok("http", TWO, "any.test")["to"] == TWO
    assert [row[2] for row in box.ok("dns", "two.test", 1, TWO)["answers"]] == [TWO]
    assert box.ok("dns", "two.test")["rcode"] == 3
    box.refused("tcp", DENIED, 8080, "\0\1\2")


def test_an_empty_list_of_dns_servers_means_no_lookups(cloister, hosts):
    box = cloister.shared_box(**names("one.test", dnsServers=[]))
    hosts.forget()
    assert box.ok("dns", "one.test")["rcode"] == 3
    assert not hosts.seen("dns", name="one.test")
    assert box.wait_log("one.test", "dnsServers")


def test_an_empty_list_of_dns_servers_counts_also_where_addresses_are_open(cloister, hosts):
    box = cloister.shared_box(network={"dnsServers": []})
    hosts.forget()
    assert box.ok("dns", "one.test")["rcode"] == 3
    assert not hosts.seen("dns", name="one.test")
    assert box.ok("http", ONE, "one.test")["to"] == ONE
    assert box.wait_log("one.test", "dnsServers")
