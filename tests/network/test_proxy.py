"""egressProxy: every TCP connection goes through the SOCKS5 proxy that the policy names, after the rules."""

import pytest

from world import HOSTS, SOCKS_PASSWORD, SOCKS_PORT, SOCKS_TLS_PORT, SOCKS_USER

ONE, DENIED, SOCKS = HOSTS["one"], HOSTS["denied"], HOSTS["socks"]


def proxied(port=SOCKS_PORT, host=SOCKS, network=None, **fields):
    return {"network": {"egressProxy": {"address": f"{host}:{port}", **fields}, **(network or {})}}


@pytest.fixture
def through(cloister, hosts):
    """A function that makes a sandbox behind the proxy and forgets what was seen before."""

    def make(**fields):
        box = cloister.shared_box(**proxied(**fields))
        hosts.forget()
        return box

    return make


def test_a_connection_goes_through_the_proxy_by_address(through, hosts):
    box = through()
    assert box.ok("http", ONE, "one.test")["to"] == ONE
    (seen,) = hosts.seen("socks")
    assert (seen["target"], seen["port"], seen["tls"], seen["user"]) == (ONE, 80, False, None)


def test_a_name_that_was_looked_up_is_what_the_proxy_gets(through, hosts):
    box = through()
    assert box.ok("https", "four.test", "one.test", box.ca)
    assert [seen["target"] for seen in hosts.seen("socks")] == ["four.test"]


def test_the_password_goes_to_the_proxy_and_nowhere_else(through, hosts):
    box = through(username=SOCKS_USER, password=SOCKS_PASSWORD)
    assert box.ok("http", ONE, "one.test")["to"] == ONE
    assert hosts.seen("socks")[0]["user"] == SOCKS_USER
    found = box.run("env; cat /etc/environment /proc/*/environ; true", user="root")
    assert SOCKS_PASSWORD not in found.stdout
    listed = box.server.api("GET", f"/sandboxes/{box.id}").body
    assert SOCKS_PASSWORD.encode() not in listed


def test_a_wrong_password_fails_closed_and_the_log_says_why(make_box, hosts):
    box = make_box(**proxied(username=SOCKS_USER, password="s3cret"))
    hosts.forget()
    box.refused("http", ONE, "one.test")
    assert not hosts.seen("request")
    lines = box.wait_log("egress proxy", "user name and password")
    assert lines and not any("s3cret" in line for line in lines)


def test_a_proxy_that_is_not_there_fails_closed(make_box, hosts):
    box = make_box(**proxied(port=4444))
    hosts.forget()
    box.refused("http", ONE, "one.test")
    assert not hosts.seen("request")


def test_a_proxy_at_a_private_address_is_refused_at_create(cloister):
    answer = cloister.server.api("POST", "/v2/sandboxes", {"templateID": "base", **proxied(host=HOSTS["ten"])})
    assert answer.status == 400 and "egressProxy" in answer.json["message"], answer


def test_a_proxy_at_a_private_address_is_not_dialed(make_box, hosts):
    """A name that leads there; the address itself is refused by the API."""
    box = make_box(**proxied(host="private.test", port=8080))
    hosts.forget()
    box.refused("http", ONE, "one.test")
    assert not hosts.seen("tcp")
    assert box.wait_log("egress proxy", "may reach")


def test_a_proxy_with_tls_is_verified_by_its_name(through, hosts):
    tls = {"enabled": True, "caCert": hosts.ca.read_text()}
    box = through(host="socks.test", port=SOCKS_TLS_PORT, tls=tls)
    assert box.ok("http", ONE, "one.test")["to"] == ONE
    assert hosts.seen("socks")[0]["tls"] is True


@pytest.mark.parametrize("tls", [{"enabled": True}, {"enabled": True, "serverName": "other.example", "caCert": "CA"}], ids=str)
def test_a_proxy_that_cannot_be_verified_gets_nothing(make_box, hosts, tls):
    if "caCert" in tls:
        tls = {**tls, "caCert": hosts.ca.read_text()}
    box = make_box(**proxied(host="socks.test", port=SOCKS_TLS_PORT, tls=tls))
    hosts.forget()
    box.refused("http", ONE, "one.test")
    assert not hosts.seen("socks") and not hosts.seen("request")


def test_a_proxy_without_tls_is_not_used_where_tls_is_wanted(make_box, hosts):
    box = make_box(**proxied(host="socks.test", tls={"enabled": True, "caCert": hosts.ca.read_text()}))
    hosts.forget()
    box.refused("http", ONE, "one.test")
    assert not hosts.seen("socks")


def test_the_rules_come_before_the_proxy(through, hosts):
    box = through(network={"denyOut": ["203.0.113.0/24"]})
    box.refused("http", DENIED, "denied.test")
    box.refused("http", HOSTS["ten"], "private.test")
    assert not hosts.seen("socks")
    assert box.ok("http", ONE, "one.test")["to"] == ONE


def test_an_update_switches_the_proxy_on_and_off(make_box, hosts):
    box = make_box()
    hosts.forget()
    assert box.ok("http", ONE, "one.test")
    assert not hosts.seen("socks")
    box.update(egressProxy={"address": f"{SOCKS}:{SOCKS_PORT}"})
    assert box.ok("http", ONE, "one.test")
    assert len(hosts.seen("socks")) == 1
    box.update()
    assert box.ok("http", ONE, "one.test")
    assert len(hosts.seen("socks")) == 1
