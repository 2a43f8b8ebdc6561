"""PUT /sandboxes/{id}/network on a live sandbox: what it opens, and what it cuts."""

import json

import pytest

import world
from server import wait_for
from world import HOSTS

ONE, TWO, DENIED = HOSTS["one"], HOSTS["two"], HOSTS["denied"]


def in_background(box, function, *arguments, name="job"):
    """Starts a function of guest.py; returns one that waits for its result."""
    text = json.dumps(arguments).replace("'", "'\\''")
    box.run(f"rm -f /tmp/{name}.*; (python3 /tmp/guest.py {function} '{text}' >/tmp/{name}.half 2>&1; mv /tmp/{name}.half /tmp/{name}.done) >/dev/null 2>&1 &")

    def result():
        assert wait_for(lambda: box.run("test", "-e", f"/tmp/{name}.done").code == 0, 40, 0.2), box.run("cat", f"/tmp/{name}.half")
        return json.loads(box.run("cat", f"/tmp/{name}.done").stdout)

    return result


def wait_file(box, path):
    assert wait_for(lambda: box.run("test", "-e", path).code == 0, 20, 0.1), path


def test_it_replaces_the_whole_policy(make_box, hosts):
    box = make_box()
    assert box.ok("http", DENIED, "any.test")
    box.update(denyOut=["203.0.113.0/24"])
    box.refused("http", DENIED, "any.test")
    assert box.ok("http", ONE, "any.test")
    box.update(denyOut=["198.51.100.0/24"])
    assert box.ok("http", DENIED, "any.test")
    box.refused("http", ONE, "any.test")
    box.update()
    assert box.ok("http", DENIED, "any.test") and box.ok("http", ONE, "any.test")


def test_it_switches_internet_access_off_and_on(make_box, hosts):
    box = make_box()
    box.update(allow_internet_access=False)
    hosts.forget()
    box.refused("http", ONE, "any.test")
    assert box.fails("resolve", "one.test")
    assert not hosts.seen()
    box.update(allow_internet_access=True)
    assert box.ok("http", "one.test", "one.test")


def test_it_cuts_what_is_no_longer_allowed_and_nothing_else(make_box, hosts):
    box = make_box()
    cut = in_background(box, "keep_talking", DENIED, world.ECHO_PORT, 12, "/tmp/cut.on", name="cut")
    kept = in_background(box, "keep_talking", ONE, world.ECHO_PORT, 4, "/tmp/kept.on", name="kept")
    wait_file(box, "/tmp/cut.on")
    wait_file(box, "/tmp/kept.on")
    box.update(denyOut=["203.0.113.0/24"])
    assert cut()["ok"]["how"] in ("ConnectionResetError", "BrokenPipeError", "end")
    assert kept()["ok"]["how"] == "time"


def test_it_cuts_connections_that_a_name_had_allowed(make_box, hosts):
    box = make_box(network={"allowOut": ["one.test"], "denyOut": ["0.0.0.0/0"]})
    box.ok("resolve", "one.test")
    job = in_background(box, "keep_talking", "one.test", world.ECHO_PORT, 30, "/tmp/job.on")
    wait_file(box, "/tmp/job.on")
    box.update(allowOut=["two.test"], denyOut=["0.0.0.0/0"])
    assert job()["ok"]["how"] in ("ConnectionResetError", "BrokenPipeError", "end")


def test_it_is_there_before_the_answer(make_box, hosts):
    """No window after 204 in which the old policy holds."""
    box = make_box()
    for _ in range(5):
        box.update(denyOut=[ONE])
        hosts.forget()
        box.refused("http", ONE, "any.test")
        assert not hosts.seen("tcp", to=ONE)
        box.update()
        assert box.ok("http", ONE, "any.test")


def test_get_shows_the_new_policy(make_box):
    box = make_box()
    box.update(allowOut=[ONE], denyOut=["0.0.0.0/0"])
    row = box.server.api("GET", f"/sandboxes/{box.id}").json
    assert row["network"]["allowOut"] == [ONE] and row["network"]["denyOut"] == ["0.0.0.0/0"]


@pytest.mark.parametrize("body", [{"allowOut": ["one.test"]}, {"denyOut": ["x y"]}, {"dnsServers": ["::"]}, []], ids=str)
def test_a_bad_policy_changes_nothing(make_box, body):
    box = make_box(network={"denyOut": [DENIED]})
    answer = box.server.api("PUT", f"/sandboxes/{box.id}/network", body)
    assert answer.status == 400, answer
    box.refused("http", DENIED, "any.test")
    assert box.ok("http", ONE, "any.test")


def test_an_unknown_sandbox_is_404(cloister):
    assert cloister.server.api("PUT", "/sandboxes/nosuchsandbox0000000/network", {}).status == 404


def test_the_policy_outlives_every_restart(make_box, cloister):
    """Of egress, of front and of the whole server: the sandbox goes on with the policy that it had."""
    import os
    import signal

    box = make_box()
    box.update(denyOut=["203.0.113.0/24"])
    for role in ("egress", "front"):
        pid = cloister.role_pid(role)
        os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: cloister.role_pid(role) not in (None, pid), 20)
        cloister.server.wait_until_up()
        assert wait_for(lambda: "ok" in box.call("http", ONE, "any.test"), 20), f"no way out after the end of {role}"
        box.refused("http", DENIED, "any.test")
    cloister.server.stop()
    cloister.server.start()
    assert wait_for(lambda: "ok" in box.call("http", ONE, "any.test"), 20), "no way out after a restart of the server"
    box.refused("http", DENIED, "any.test")
