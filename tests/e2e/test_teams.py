"""Two keys of two teams on one server: neither sees, reaches, ends or learns of what the other has."""

import json
import subprocess

import pytest
from e2b import NotFoundException, Sandbox
from server import build_dir, wait_for

NOT_THERE = "inotthere000000000000"
TEAM = "lab"


def cli(server, *words, check=True):
    result = subprocess.run(
        [str(build_dir() / "cloister"), *words, "--data", str(server.data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert not check or result.returncode == 0, result
    return result


def delete_team(server):
    cli(server, "team", "delete", TEAM, "--force", check=False)


@pytest.fixture
def other_key(server):
    """The key of a second team, made and taken away with the command."""
    delete_team(server)  # of a run that was killed
    cli(server, "team", "create", TEAM)
    yield cli(server, "key", "create", "ci", "--team", TEAM).stdout.strip()
    delete_team(server)


def ask(server, key, method, path, body=None):
    return server.call(method, path, body, {"X-API-Key": key})


def use(server, key):
    return {"api_key": key, "api_url": server.url, "sandbox_url": server.url}


CALLS = [
    ("GET", "/sandboxes/{}", None),
    ("DELETE", "/sandboxes/{}", None),
    ("POST", "/sandboxes/{}/timeout", {"timeout": 0}),
    ("POST", "/sandboxes/{}/timeout", {"timeout": 60}),
    ("POST", "/sandboxes/{}/refreshes", {"duration": 60}),
    ("POST", "/sandboxes/{}/connect", {"timeout": 60}),
    ("POST", "/v2/sandboxes/{}/connect", {}),
    ("GET", "/sandboxes/{}/metrics", None),
    ("GET", "/sandboxes/metrics?sandbox_ids={}", None),
    ("GET", "/sandboxes/{}/logs", None),
    ("GET", "/v2/sandboxes/{}/logs", None),
    ("GET", "/events/sandboxes/{}", None),
]


def test_another_teams_sandbox_answers_like_one_that_does_not_exist(server, other_key):
    with Sandbox.create(timeout=120) as box:
        box.commands.run("echo secret")
        # There is something to be seen, for whom it belongs to.
        assert wait_for(lambda: "secret" in str(server.api("GET", f"/sandboxes/{box.sandbox_id}/logs").json))
        assert wait_for(lambda: server.api("GET", f"/sandboxes/{box.sandbox_id}/metrics").json)
        for method, path, body in CALLS:
            theirs = ask(server, other_key, method, path.format(box.sandbox_id), body)
            nobodys = ask(server, other_key, method, path.format(NOT_THERE), body)
            assert theirs.status == nobodys.status, (path, theirs, nobodys)
            assert theirs.body.replace(box.sandbox_id.encode(), NOT_THERE.encode()) == nobodys.body, path
        for path in ("/sandboxes", "/v2/sandboxes", "/events/sandboxes"):
            assert ask(server, other_key, "GET", path).json == [], path
        assert box.is_running() and box.commands.run("echo hi").stdout == "hi\n"


def test_the_sdk_of_another_team_finds_nothing(server, other_key):
    with Sandbox.create(timeout=120) as box:
        theirs = use(server, other_key)
        assert Sandbox.list(**theirs).next_items() == []
        assert Sandbox.kill(box.sandbox_id, **theirs) is False
        for call in (Sandbox.connect, Sandbox.get_info):
            with pytest.raises(NotFoundException):
                call(box.sandbox_id, **theirs)
        with pytest.raises(NotFoundException):
            Sandbox.set_timeout(box.sandbox_id, 10, **theirs)
        assert box.is_running()


def test_a_key_opens_nothing_at_the_edge(server, other_key):
    """What opens a sandbox there is its own token, which no answer to another team has."""
    with Sandbox.create(timeout=120) as mine, Sandbox.create(timeout=120, **use(server, other_key)) as theirs:
        token = ask(server, other_key, "GET", f"/sandboxes/{theirs.sandbox_id}").json["envdAccessToken"]
        rpc = {"Content-Type": "application/json", "Connect-Protocol-Version": "1"}
        routing = {"E2b-Sandbox-Id": mine.sandbox_id, "E2b-Sandbox-Port": "49983"}
        host = f"49983-{mine.sandbox_id}.localhost"
        for headers in ({}, {"X-Access-Token": token}, {"X-Access-Token": other_key}):
            for path, body, extra in (
                ("/process.Process/List", {}, rpc),
                ("/filesystem.Filesystem/ListDir", {"path": "/"}, rpc),
                ("/metrics", None, {}),
                ("/files?path=/etc/hostname", None, {}),
            ):
                method = "POST" if extra else "GET"
                assert server.call(method, path, body, {**routing, **headers, **extra}).status == 401
                with_key = {**headers, **extra, "X-API-Key": other_key}
                assert server.call(method, path, body, with_key, host=host).status == 401
            code = {"E2b-Sandbox-Id": mine.sandbox_id, "E2b-Sandbox-Port": "49999", "X-API-Key": other_key}
            assert server.call("POST", "/execute", {"code": "1"}, {**code, **headers}).status == 401
        for path in ("/init", "/freeze", "/upgrade"):
            assert server.call("POST", path, {}, {"X-API-Key": other_key}, host=host).status == 404


def test_both_teams_have_the_templates_and_their_own_idempotency_keys(server, other_key):
    names = [
        sorted(name for row in ask(server, key, "GET", "/templates").json for name in row["names"])
        for key in (server.key, other_key)
    ]
    assert names[0] == names[1] and "base" in names[0]
    made = []
    for key in (server.key, other_key):
        headers = {"X-API-Key": key, "Idempotency-Key": f"teams-{other_key[-8:]}"}
        answer = server.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60}, headers)
        assert answer.status == 201, answer
        made.append(answer.json["sandboxID"])
    assert made[0] != made[1]
    assert server.api("DELETE", f"/sandboxes/{made[0]}").status == 204


def test_a_team_outlives_a_restart_and_ends_with_all_it_has(own_server):
    delete_team(own_server)
    cli(own_server, "team", "create", TEAM)
    key = cli(own_server, "key", "create", "ci", "--team", TEAM).stdout.strip()
    box = ask(own_server, key, "POST", "/v2/sandboxes", {"templateID": "base"}).json
    own_server.stop()
    own_server.start()
    assert [row["sandboxID"] for row in ask(own_server, key, "GET", "/v2/sandboxes").json] == [box["sandboxID"]]
    assert own_server.running() == []
    teams = {row["slug"]: row for row in json.loads(cli(own_server, "team", "list", "--json").stdout)}
    assert teams[TEAM]["keyCount"] == 1 and teams[TEAM]["runningCount"] == 1
    assert f" {TEAM} " in cli(own_server, "key", "list").stdout

    refused = cli(own_server, "team", "delete", TEAM, check=False)
    assert refused.returncode == 5 and "1 API key and 1 running sandbox" in refused.stderr, refused
    assert "--force" in refused.stderr
    ended = cli(own_server, "team", "delete", TEAM, "--force")
    assert "keys revoked: 1, sandboxes killed: 1" in ended.stderr
    assert ask(own_server, key, "GET", "/v2/sandboxes").status == 401
    assert own_server.edge("GET", box, "/health").status == 502
    default = cli(own_server, "team", "delete", "default", "--force", check=False)
    assert default.returncode == 5 and "stays" in default.stderr, default


def test_the_operator_ends_the_sandboxes_of_all_teams_at_once(own_server):
    delete_team(own_server)
    cli(own_server, "team", "create", TEAM)
    key = cli(own_server, "key", "create", "ci", "--team", TEAM).stdout.strip()
    for each in (own_server.key, key):
        assert ask(own_server, each, "POST", "/v2/sandboxes", {"templateID": "base"}).status == 201
    assert "Sandboxes ended: 2." in cli(own_server, "sandbox", "kill", "--all").stderr
    for each in (own_server.key, key):
        assert ask(own_server, each, "GET", "/v2/sandboxes").json == []
    assert "Sandboxes ended: 0." in cli(own_server, "sandbox", "kill", "--all").stderr
    delete_team(own_server)
