"""What a sandbox reaches, rule by rule. Each row is one sentence, one policy, and one attempt.

An attempt that is refused fails at once inside, and the hosts of the world have seen nothing of it.
"""

import pytest

import world
from world import HOSTS, MACHINE

ONE, TWO, DENIED = HOSTS["one"], HOSTS["two"], HOSTS["denied"]
ONE_SIX, TWO_SIX, DENIED_SIX = HOSTS["one_six"], HOSTS["two_six"], HOSTS["denied_six"]
OFF = {"allow_internet_access": False}
NOTHING = {"network": {"denyOut": ["0.0.0.0/0"]}}


def network(**fields):
    return {"network": fields}


def only(*allowed, **fields):
    return {"network": {"allowOut": list(allowed), "denyOut": ["0.0.0.0/0"], **fields}}


# sentence, options of create, address, port
REACHED = [
    ("the default reaches a public address", {}, ONE, 80),
    ("the default reaches a public address over IPv6", {}, ONE_SIX, 80),
    ("the default reaches ports other than those of the web", {}, ONE, 8080),
    ("internet access that is asked for is the default", {"allow_internet_access": True}, ONE, 80),
    ("documentation ranges are ordinary addresses", {}, DENIED, 80),
    ("documentation ranges are ordinary addresses over IPv6", {}, DENIED_SIX, 80),
    ("an address that is denied denies no other", network(denyOut=[DENIED]), ONE, 80),
    ("a range that is denied denies no other", network(denyOut=["203.0.113.0/24"]), ONE, 80),
    ("an IPv4 range that is denied denies no IPv6", network(denyOut=["203.0.113.0/24"]), DENIED_SIX, 80),
    ("an address that is allowed wins over no internet access", {**OFF, **network(allowOut=[ONE])}, ONE, 80),
    ("a range that is allowed wins over no internet access", {**OFF, **network(allowOut=["198.51.100.0/24"])}, TWO, 80),
    ("an address that is allowed wins over everything denied", only(ONE), ONE, 80),
    ("an address that is allowed wins over its range denied", network(allowOut=[DENIED], denyOut=["203.0.113.0/24"]), DENIED, 80),
    ("a range that is allowed wins over an address denied", network(allowOut=["203.0.113.0/24"], denyOut=[DENIED]), DENIED, 80),
]  # fmt: skip

# sentence, options of create, address, port, what the log says of it
REFUSED = [
    ("no internet access refuses a public address", OFF, ONE, 80, "no internet access"),
    ("no internet access refuses a public address over IPv6", OFF, ONE_SIX, 80, "internet"),
    ("no internet access refuses every port", OFF, ONE, 8080, "internet"),
    ("allowing one address allows no other", {**OFF, **network(allowOut=[ONE])}, TWO, 80, "internet"),
    ("an address that is denied is refused", network(denyOut=[DENIED]), DENIED, 80, "denyOut"),
    ("an address in a denied range is refused", network(denyOut=["203.0.113.0/24"]), DENIED, 80, "denyOut"),
    ("0.0.0.0/0 denies everything", NOTHING, ONE, 80, "denyOut"),
    ("0.0.0.0/0 denies IPv6 too", NOTHING, ONE_SIX, 80, "denyOut"),
    ("everything denied but one address refuses the others", only(ONE), TWO, 80, "denyOut"),
    *(
        (f"{name} is not public and is refused", {}, HOSTS[name], 80, "not a public address")
        for name in ("ten", "private", "seventeen", "carrier", "metadata", "benchmark", "reserved", "unique_local", "nat64_ten", "sixtofour_ten")
    ),
    *(
        (f"{name} is refused even if the sandbox may reach it", network(allowOut=[HOSTS[name]]), HOSTS[name], 80, "not a public address")
        for name in ("ten", "metadata", "carrier")
    ),
    ("allowing everything does not allow private addresses", network(allowOut=["0.0.0.0/0"]), HOSTS["private"], 80, "not a public address"),
    ("the machine's public address is refused", {}, MACHINE["public"], 80, "machine"),
    ("the machine's private address is refused", {}, MACHINE["private"], 80, "machine"),
    ("the machine's IPv6 address is refused", {}, MACHINE["six"], 80, "machine"),
    ("the machine's address is refused even if the sandbox may reach it", network(allowOut=[MACHINE["public"]]), MACHINE["public"], 80, "machine"),
    *((f"mail port {port} is refused", {}, HOSTS["mail"], port, "mail") for port in world.MAIL_PORTS),
    ("mail ports are refused even if the sandbox may reach the address", only(HOSTS["mail"]), HOSTS["mail"], 25, "mail"),
]  # fmt: skip


@pytest.mark.parametrize("sentence, fields, address, port", REACHED, ids=[row[0] for row in REACHED])
def test_reached(cloister, hosts, sentence, fields, address, port):
    answer = cloister.shared_box(**fields).ok("http", address, "any.test", port)
    assert answer["to"] == address


@pytest.mark.parametrize("sentence, fields, address, port, why", REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(cloister, hosts, sentence, fields, address, port, why):
    box = cloister.shared_box(**fields)
    hosts.forget()
    box.refused("http", address, "any.test", port)
    assert not hosts.seen("tcp", to=address, port=port)
    lines = box.wait_log(address, str(port))
    assert lines, f"the log does not mention {address} port {port}: {box.log()}"
    assert any(why in line for line in lines), lines


def test_a_policy_that_means_nothing_is_refused_with_its_reason(cloister):
    for fields, says in (
        (network(allowOut=["one.test"]), "0.0.0.0/0"),
        (network(denyOut=["one.test"]), "denyOut"),
        (network(allowOut=["300.1.2.3"]), "allowOut"),
        (network(allowOut=["1.2.3.4/33"]), "allowOut"),
        (network(denyOut=[7]), "denyOut"),
        (network(dnsServers=["not an address"]), "dnsServers"),
        ({"allow_internet_access": "yes"}, "allow_internet_access"),
    ):
        answer = cloister.server.api("POST", "/v2/sandboxes", {"templateID": "base", **fields})
        assert answer.status == 400 and says in answer.json["message"], (fields, answer)


def test_the_operators_ranges_lift_the_rule_about_private_addresses_and_no_other(lenient, hosts):
    on, off = lenient.box(allow_internet_access=True), lenient.box()
    hosts.forget()
    assert on.ok("http", HOSTS["ten"], "any.test")["to"] == HOSTS["ten"]
    assert on.ok("http", HOSTS["unique_local"], "any.test")["to"] == HOSTS["unique_local"]
    for name in ("private", "metadata", "carrier"):
        on.refused("http", HOSTS[name], "any.test")
    on.refused("tcp", HOSTS["ten"], 25)
    # Without internet access the operator's range is not reached: it is not an allowOut.
    off.refused("http", HOSTS["ten"], "any.test")
    assert {event["to"] for event in hosts.seen("tcp")} == {HOSTS["ten"], HOSTS["unique_local"]}


@pytest.mark.parametrize("name", ["two", "two_six", "seventeen"])
def test_what_the_operator_denies_is_refused_whatever_is_allowed(lenient, hosts, name):
    box = lenient.shared_box(allow_internet_access=True, network={"allowOut": ["0.0.0.0/0", HOSTS[name]]})
    hosts.forget()
    box.refused("http", HOSTS[name], "any.test")
    assert not hosts.seen("tcp", to=HOSTS[name])
    lines = box.wait_log(HOSTS[name], "80")
    assert any("lets no sandbox reach" in line for line in lines), lines
    assert box.ok("http", ONE, "any.test")["to"] == ONE


def test_a_name_does_not_lead_to_what_the_operator_denies(lenient, hosts):
    box = lenient.shared_box(network={"allowOut": ["two.test", "one.test"], "denyOut": ["0.0.0.0/0"]})
    hosts.forget()
    assert box.fails("http", "two.test", "two.test")["error"] != "TimeoutError"
    assert box.fails("http", ONE, "two.test")["error"] != "TimeoutError"
    assert not hosts.seen("tcp", to=TWO) and not hosts.seen("tcp", to=TWO_SIX)
    assert any("lets no sandbox reach" in line for line in box.wait_log("two.test"))
    assert box.ok("http", "one.test", "one.test")["to"] in (ONE, ONE_SIX)


def test_a_name_leads_to_a_private_address_only_where_the_operator_allows_it(lenient, hosts):
    fields = {"allowOut": ["private.test", "metadata.test"], "denyOut": ["0.0.0.0/0"]}
    box = lenient.box(allow_internet_access=True, network=fields)
    hosts.forget()
    assert box.ok("http", "private.test", "private.test")["to"] == HOSTS["ten"]
    assert box.ok("http", DENIED, "private.test")["to"] == HOSTS["ten"]
    assert box.fails("http", DENIED, "metadata.test")["error"] != "TimeoutError"
    assert {event["to"] for event in hosts.seen("tcp")} == {HOSTS["ten"]}


def test_the_operators_default_is_off_and_a_sandbox_may_ask_for_more(lenient, hosts):
    hosts.forget()
    lenient.shared_box().refused("http", ONE, "any.test")
    assert not hosts.seen("tcp", to=ONE)
    assert lenient.shared_box(allow_internet_access=True).ok("http", ONE, "any.test")["to"] == ONE


def test_what_was_asked_for_is_what_get_shows(make_box):
    box = make_box(**OFF, **network(allowOut=[ONE, "203.0.113.0/24"], denyOut=["0.0.0.0/0"]))
    row = box.server.api("GET", f"/sandboxes/{box.id}").json
    assert row["allowInternetAccess"] is False
    assert row["network"]["allowOut"] == [ONE, "203.0.113.0/24"] and row["network"]["denyOut"] == ["0.0.0.0/0"]


def test_one_sandbox_does_not_have_the_rules_of_another(make_box, hosts):
    closed, open_ = make_box(**OFF), make_box()
    hosts.forget()
    closed.refused("http", ONE, "any.test")
    assert open_.ok("http", ONE, "any.test")["to"] == ONE
    closed.refused("http", ONE, "any.test")
    assert len(hosts.seen("tcp", to=ONE)) == 1
