"""The pool: creates take sandboxes that were started before. They must be as good as new, and nothing of it may be left."""

import json
import os
import signal
import subprocess
import time
import uuid

import pytest
from server import wait_for
from test_faults import come_back, inventory, rows, traces_of, use

MOST = 6


def figures(server):
    token = (server.data / "admin-token").read_text().strip()
    answer = server.call("GET", "/admin/pool", headers={"X-Admin-Token": token})
    assert answer.status == 200, answer
    return answer.json


def kill(server, box):
    assert server.api("DELETE", f"/sandboxes/{box['sandboxID']}").status == 204


def fill(server):
    """`base` is expected at the start: as many wait as are kept at least."""
    assert wait_for(lambda: figures(server)["ready"] >= 2), figures(server)


def taken(server, **fields):
    """A sandbox from the pool. If none of its kind waits yet, a later create finds one."""

    def take():
        before = figures(server)["taken"]
        box = server.create(**fields)
        if figures(server)["taken"] == before + 1:
            return box
        kill(server, box)

    box = wait_for(take, pause=0.2)
    assert box, figures(server)
    return box


def waiting(server):
    """Ids that keeper has and the API does not know."""
    directories = {entry.name for entry in (server.data / "sandboxes").iterdir()}
    return directories - set(rows(server))


def test_the_operator_sees_it_and_nobody_else_does(pool_server):
    fill(pool_server)
    shown = figures(pool_server)
    assert shown["most"] == MOST and shown["missed"] == 0 and shown["taken"] == 0, shown
    assert pool_server.api("GET", "/admin/pool").status in (401, 403)
    assert pool_server.running() == []
    for sandbox_id in waiting(pool_server):
        assert pool_server.api("GET", f"/sandboxes/{sandbox_id}").status == 404
        assert pool_server.api("DELETE", f"/sandboxes/{sandbox_id}").status == 404
        answer = pool_server.edge("GET", {"sandboxID": sandbox_id}, "/health")
        assert answer.status == 502, answer


def test_what_waits_serves_nobody(pool_server):
    """guestd has no token yet: it must refuse everything until it has one. It is asked from inside its own network."""
    fill(pool_server)
    for sandbox_id in waiting(pool_server):
        processes = [line.split()[1] for line in traces_of(pool_server, sandbox_id) if line.startswith("process: ")]
        ask = (
            "import http.client as h; c = h.HTTPConnection('127.0.0.1', 49983, timeout=10);"
            "c.request('GET', '/files?path=/etc/passwd'); print(c.getresponse().status)"
        )
        done = subprocess.run(
            ["nsenter", "--net", f"--target={processes[0]}", "python3", "-c", ask], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "503", done.stdout


def test_one_from_the_pool_is_as_one_made_for_the_call(pool_server):
    fill(pool_server)
    box = taken(pool_server, envVars={"FROM_CREATE": "yes"}, metadata={"who": "me"}, timeout=77)
    events = pool_server.api("GET", f"/events/sandboxes/{box['sandboxID']}").json
    assert [event["type"].rsplit(".", 1)[1] for event in events] == ["created"], events
    sandbox = use(pool_server, box)
    assert sandbox.commands.run("echo $FROM_CREATE $E2B_SANDBOX_ID").stdout.split() == ["yes", box["sandboxID"]]
    assert sandbox.commands.run("id -un; pwd").stdout.split() == ["user", "/home/user"]
    described = pool_server.api("GET", f"/sandboxes/{box['sandboxID']}").json
    assert described["metadata"] == {"who": "me"}
    assert pool_server.edge("GET", {**box, "envdAccessToken": "wrong"}, "/files?path=/etc/passwd").status == 401
    kill(pool_server, box)
    assert wait_for(lambda: not traces_of(pool_server, box["sandboxID"])), traces_of(pool_server, box["sandboxID"])


def test_nothing_of_one_life_is_seen_by_the_next(pool_server):
    fill(pool_server)
    secret = uuid.uuid4().hex
    seen = []
    for life in range(4):
        assert wait_for(lambda: figures(pool_server)["ready"])
        began = time.time()
        box = taken(pool_server, envVars={"SECRET": f"{secret}-{life}"}, metadata={"life": str(life)})
        sandbox = use(pool_server, box)
        everything = sandbox.commands.run(
            "cat /tmp/* /home/user/* /run/* /dev/shm/* /var/tmp/* 2>/dev/null; env; ps aux; crontab -l 2>&1; true",
            user="root",
        ).stdout
        assert everything.count(secret) == everything.count(f"{secret}-{life}"), everything
        logs = pool_server.api("GET", f"/v2/sandboxes/{box['sandboxID']}/logs").json
        assert secret not in json.dumps(logs)
        metrics = pool_server.api("GET", f"/sandboxes/{box['sandboxID']}/metrics").json
        assert all(entry["timestampUnix"] >= int(began) for entry in metrics), metrics
        boot_id, entropy = sandbox.commands.run(
            "cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'"
        ).stdout.split()
        seen += [boot_id, entropy, box["sandboxID"], box["envdAccessToken"]]
        for place in ("/tmp", "/home/user", "/run", "/dev/shm", "/var/tmp"):
            sandbox.commands.run(f"echo {secret}-{life} > {place}/left", user="root")
        sandbox.commands.run(f"nohup sleep 1000 {secret} >/dev/null 2>&1 & hostname {secret[:8]} || true", user="root")
        kill(pool_server, box)
    assert len(set(seen)) == len(seen), seen


def test_a_stop_leaves_nothing_of_the_pool(pool_server):
    kept = pool_server.create()
    fill(pool_server)
    assert waiting(pool_server)
    pool_server.stop()
    assert wait_for(lambda: waiting(pool_server) == set()), waiting(pool_server)
    pool_server.start()
    assert pool_server.running() == [kept["sandboxID"]]
    assert "left over" not in pool_server.log_tail(30)


@pytest.mark.parametrize("role", ["front", "keeper", "egress"])
def test_a_role_that_is_killed_during_a_refill_leaves_nothing(pool_server, role):
    kept = pool_server.create()
    for _ in range(4):
        for _ in range(4):  # so that refills are under way
            kill(pool_server, pool_server.create())
        pid = pool_server.pid if role == "keeper" else pool_server.role_pid(role)
        if pid:
            os.kill(pid, signal.SIGKILL)
        if role == "keeper":
            pool_server.process.wait(20)
        come_back(pool_server)
    pool_server.stop()
    assert wait_for(lambda: waiting(pool_server) == set()), waiting(pool_server)
    pool_server.start()
    assert pool_server.running() == [kept["sandboxID"]]
    sandbox = use(pool_server, kept)
    assert sandbox.commands.run("echo lives").stdout == "lives\n"
    pool_server.kill_all()
    assert wait_for(lambda: not any("cloister" not in line for line in inventory(pool_server)["directories"]))


def test_a_new_egress_serves_what_waits(pool_server):
    """Its sockets are given to the next egress, and the policy of the create that takes one reaches it."""
    fill(pool_server)
    egress = pool_server.role_pid("egress")
    os.kill(egress, signal.SIGKILL)
    assert wait_for(lambda: pool_server.role_pid("egress") not in (None, egress))
    box = taken(pool_server, allow_internet_access=False)
    out = use(pool_server, box).commands.run(
        "python3 -c 'import socket; s = socket.create_connection((\"192.0.2.1\", 80), 5); print(s.recv(1))' 2>&1 || true"
    ).stdout
    assert "Error" in out and "timed out" not in out, out
    assert wait_for(lambda: "192.0.2.1" in json.dumps(pool_server.api("GET", f"/v2/sandboxes/{box['sandboxID']}/logs").json))


def build(server, name, text):
    made = server.api("POST", "/v3/templates", {"name": name, "cpuCount": 1, "memoryMB": 512}).json
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    steps = [{"type": "RUN", "args": [f"echo {text} > /srv/text", "root"]}]
    answer = server.api("POST", f"/v2{path}", {"fromTemplate": "base", "steps": steps})
    assert answer.status == 202, answer

    def is_ready():
        state = server.api("GET", f"{path}/status").json
        assert state["status"] != "error", state
        return state["status"] == "ready"

    assert wait_for(is_ready, seconds=120)
    return made["templateID"]


def test_a_template_that_is_built_again_or_deleted_is_not_given_out(pool_server):
    name = f"pool-{uuid.uuid4().hex[:8]}"
    template = build(pool_server, name, "one")
    for _ in range(2):
        box = taken(pool_server, templateID=name)
        assert use(pool_server, box).files.read("/srv/text") == "one\n"
        kill(pool_server, box)

    assert build(pool_server, name, "two") == template
    for _ in range(3):
        box = pool_server.create(templateID=name)
        assert use(pool_server, box).files.read("/srv/text") == "two\n"
        kill(pool_server, box)

    assert pool_server.api("DELETE", f"/templates/{template}").status in (200, 204)
    assert pool_server.api("POST", "/v2/sandboxes", {"templateID": name}).status == 404


def test_it_can_be_off(pool_server):
    pool_server.stop()
    pool_server.options = ["--pool", "off"]
    pool_server.start()
    for _ in range(3):
        kill(pool_server, pool_server.create())
    shown = figures(pool_server)
    assert shown["most"] == 0 and shown["ready"] == 0 and shown["made"] == 0, shown
    assert wait_for(lambda: waiting(pool_server) == set())


def run_cell(server, box, code):
    answer = server.edge("POST", box, "/execute", {"code": code, "language": "python"}, port=49999,
                         headers={"X-Access-Token": box["envdAccessToken"], "Content-Type": "application/json"})
    assert answer.status == 200, answer
    lines = [json.loads(line) for line in answer.body.splitlines() if line]
    return "".join(line["text"] for line in lines if line["type"] == "stdout")


def test_after_code_was_run_an_interpreter_waits_in_each(pool_server):
    """It gets the environment of the create that takes its sandbox, and shares nothing with the others."""
    fill(pool_server)
    assert figures(pool_server)["withInterpreter"] == 0
    box = pool_server.create()
    assert run_cell(pool_server, box, "print(6 * 7)") == "42\n"
    kill(pool_server, box)
    if not wait_for(lambda: figures(pool_server)["withInterpreter"] >= 2, seconds=60):
        pytest.skip("no warm interpreters on this machine: its kernel is older than 6.3, or doctor says why")
    numbers = []
    for life in range(3):
        assert wait_for(lambda: figures(pool_server)["withInterpreter"] >= 1)
        box = taken(pool_server, envVars={"LIFE": f"life {life}"})
        assert run_cell(pool_server, box, "import os; print(os.environ['LIFE'], 'left' in globals())") == f"life {life} False\n"
        numbers.append(run_cell(pool_server, box, "import random, uuid; left = 1; print(random.random(), uuid.uuid4())"))
        kill(pool_server, box)
    assert len(set(numbers)) == 3, numbers
