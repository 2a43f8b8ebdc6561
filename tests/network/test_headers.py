"""Header rules: TLS of exactly their hosts is ended, and the headers reach that host alone."""

import ctypes
import json
import os
import pathlib
import signal

import pytest

from conftest import World
from server import TEST_DATA, wait_for
from world import HOSTS, SOCKS_PORT

ONE, TWO = HOSTS["one"], HOSTS["two"]
BUNDLE = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
SECRET = "Bearer s3cret"


def rules(host="one.test", headers=None, **network):
    headers = headers or {"Authorization": SECRET}
    return {"network": {"rules": {host: [{"transform": {"headers": headers}}]}, **network}}


@pytest.fixture(scope="module")
def trusting(hosts):
    """A server on a machine that trusts the authority of the world: it sees another bundle than the rest of this machine."""
    both = hosts.work / "bundle.pem"
    both.write_bytes(BUNDLE.read_bytes() + hosts.ca.read_bytes())
    libc = ctypes.CDLL(None, use_errno=True)

    def show_bundle():
        for call in (
            lambda: libc.unshare(CLONE_NEWNS),
            lambda: libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None),
            lambda: libc.mount(str(both).encode(), str(BUNDLE).encode(), None, MS_BIND, None),
        ):
            if call() < 0:
                raise OSError(ctypes.get_errno(), "cannot show the server another bundle")

    made = World(hosts, data=TEST_DATA.with_name(f"{TEST_DATA.name}-trusting"), before=show_bundle)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def one(trusting, hosts):
    box = trusting.shared_box(**rules())
    hosts.forget()
    return box


def header(answer, name):
    return [value for key, value in answer["headers"] if key.lower() == name.lower()]


def test_a_header_is_set_on_requests_to_its_host(one):
    answer = one.ok("https", "one.test", "one.test", None)
    assert header(answer, "authorization") == [SECRET]
    assert (answer["sni"], answer["host"], answer["method"]) == ("one.test", "one.test", "GET")


def test_the_guests_own_header_is_replaced_and_the_others_stay(one):
    answer = one.ok("https", "one.test", "one.test", None, None, 443, "/a%2Fb?c=d", {"AUTHORIZATION": "guess", "X-Own": "1"})
    assert header(answer, "authorization") == [SECRET]
    assert header(answer, "x-own") == ["1"]
    assert answer["target"] == "/a%2Fb?c=d"


def test_the_next_address_of_a_host_is_tried(trusting):
    """The program dials the first address, at which there is nobody."""
    box = trusting.shared_box(**rules("spread.test"))
    answer = box.ok("https", "spread.test", "spread.test", None)
    assert (header(answer, "authorization"), answer["to"]) == ([SECRET], ONE)


def test_a_host_that_cannot_be_reached_is_answered_for_and_logged(trusting):
    box = trusting.shared_box(**rules("gone.test"))
    found = box.run("curl -sS -i https://gone.test/")
    assert found.code == 0 and " 502 " in found.stdout and "gone.test could not be reached" in found.stdout, found
    assert box.wait_log("request to gone.test failed", "unreachable")


def test_programs_trust_it_without_being_told(one):
    """curl reads the bundle, Python the directory or a variable, Node a variable, openssl the directory."""
    found = one.run("curl -sS --fail https://one.test/")
    assert found.code == 0 and header(json.loads(found.stdout), "authorization") == [SECRET], found
    program = "import urllib.request as r; print(r.urlopen('https://one.test/').read().decode())"
    for command in (f'python3 -c "{program}"', f'env -i python3 -c "{program}"'):
        found = one.run(command)
        assert found.code == 0 and SECRET in found.stdout, found
    if one.run("command -v node").code == 0:
        found = one.run("node -e \"fetch('https://one.test/').then(a => a.text()).then(console.log)\"")
        assert found.code == 0 and SECRET in found.stdout, found


def test_other_hosts_keep_their_own_tls(one, hosts):
    """Not even one that shares the address: the guest sees the certificate of the world."""
    one.fails("https", "two.test", "two.test", None)
    answer = one.ok("https", "two.test", "two.test", one.ca)
    assert header(answer, "authorization") == []


def test_the_secret_stays_outside(one):
    found = one.run("env; cat /proc/*/environ /etc/ssl/certs/cloister-authority.pem; true", user="root")
    assert "s3cret" not in found.stdout and "PRIVATE KEY" not in found.stdout


@pytest.mark.parametrize("address", [TWO, HOSTS["hostile"]])
def test_another_address_does_not_get_the_header(one, hosts, address):
    """The guest shows the name and dials another host: the request goes to the name's own address."""
    answer = one.ok("https", address, "one.test", None)
    assert answer["to"] in (ONE, HOSTS["one_six"])
    assert not hosts.seen("request", to=address)


def test_a_request_for_another_host_on_the_same_connection_is_refused(one, hosts):
    result = one.call("https", "one.test", "one.test", None, "two.test")
    assert "ok" not in result
    assert not hosts.seen("request")


def test_a_host_that_cannot_be_verified_does_not_get_the_header(trusting, hosts):
    """four.test leads to a web server whose certificate does not have this name."""
    box = trusting.box(**rules("four.test"))
    hosts.forget()
    found = box.run("curl -sS -o /dev/null -w '%{http_code}' https://four.test/")
    assert found.stdout == "502", found
    assert not hosts.seen("request")
    box.kill()


def test_a_wildcard_rule_has_the_names_below_it_and_not_the_apex(trusting, hosts):
    box = trusting.shared_box(**rules("*.wild.test"))
    assert header(box.ok("https", "a.wild.test", "a.wild.test", None), "authorization") == [SECRET]
    assert header(box.ok("https", "wild.test", "wild.test", box.ca), "authorization") == []


def test_a_rule_does_not_grant_access(trusting, hosts):
    box = trusting.box(**rules(denyOut=["0.0.0.0/0"]))
    hosts.forget()
    box.refused("https", ONE, "one.test", None)
    assert not hosts.seen("tcp")
    box.kill()


def test_rules_together_with_an_allowed_name(trusting):
    box = trusting.shared_box(**rules(allowOut=["one.test"], denyOut=["0.0.0.0/0"]))
    assert header(box.ok("https", "one.test", "one.test", None), "authorization") == [SECRET]
    box.fails("https", "two.test", "two.test", box.ca)


def test_rules_together_with_a_proxy(trusting, hosts):
    box = trusting.shared_box(**rules(egressProxy={"address": f"{HOSTS['socks']}:{SOCKS_PORT}"}))
    hosts.forget()
    assert header(box.ok("https", "one.test", "one.test", None), "authorization") == [SECRET]
    assert [seen["target"] for seen in hosts.seen("socks")] == ["one.test"]


def test_an_update_adds_changes_and_removes_rules(trusting):
    box = trusting.box()
    box.fails("https", "one.test", "one.test", None)
    box.update(**rules()["network"])
    assert header(box.ok("https", "one.test", "one.test", None), "authorization") == [SECRET]
    box.update(**rules(headers={"X-Other": "2"})["network"])
    answer = box.ok("https", "one.test", "one.test", None)
    assert (header(answer, "authorization"), header(answer, "x-other")) == ([], ["2"])
    box.update()
    box.fails("https", "one.test", "one.test", None)
    assert header(box.ok("https", "one.test", "one.test", box.ca), "x-other") == []
    box.kill()


def test_rules_survive_a_new_egress(trusting):
    box = trusting.box(**rules())
    assert box.ok("https", "one.test", "one.test", None)
    before = trusting.role_pid("egress")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: trusting.role_pid("egress") not in (None, before), 20)
    answer = wait_for(lambda: box.call("https", "one.test", "one.test", None).get("ok"), 20)
    assert header(answer, "authorization") == [SECRET]
    box.kill()


def test_large_bodies_pass(trusting, hosts):
    box = trusting.shared_box(**rules())
    size = 20 << 20
    assert box.run(f"curl -sS --fail https://one.test/bytes/{size} | wc -c").stdout.strip() == str(size)
    half = size // 2  # the host's answer has the body once more
    found = box.run(f"head -c {half} /dev/zero | tr '\\0' x >/tmp/body && curl -sS --fail -T /tmp/body https://one.test/up | "
                    "tr -cd x | wc -c")  # fmt: skip
    assert int(found.stdout) >= half, found
