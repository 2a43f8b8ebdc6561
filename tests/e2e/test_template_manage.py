"""`cloister template` with two teams: what each may see, tag, delete and prune, also while a build runs."""

import json
import os
import threading
import uuid

import pytest
from e2b import Sandbox, Template
from server import build_dir, wait_for
from test_command import run

TEAM = "managers"
MIB = 1 << 20


def as_operator(server, *words):
    return run(build_dir() / "cloister", *words, "--data", server.data)


def as_team(server, key, *words):
    env = {**os.environ, "E2B_API_URL": server.url, "E2B_API_KEY": key}
    return run(build_dir() / "cloister", *words, env=env)


def answer(result):
    assert result.returncode == 0, result
    return json.loads(result.stdout)


@pytest.fixture
def other_key(server):
    as_operator(server, "team", "delete", TEAM, "--force")  # of a run that was killed
    assert as_operator(server, "team", "create", TEAM).returncode == 0
    yield as_operator(server, "key", "create", "ci", "--team", TEAM).stdout.strip()
    as_operator(server, "team", "delete", TEAM, "--force")


@pytest.fixture
def name(server):
    """A name that no other test uses; every template that begins with it is deleted afterwards."""
    prefix = f"e2e-{uuid.uuid4().hex[:12]}"
    yield prefix
    server.kill_all()
    for row in server.api("GET", "/templates").json:
        if any(alias.startswith(prefix) for alias in row["aliases"]):
            server.api("DELETE", f"/templates/{row['templateID']}")


def recipe(name):
    return Template().from_template("base").run_cmd(f"head -c {MIB} /dev/urandom > ~/{name}").run_cmd("echo two > ~/two")


def build(template, name):
    lines = []
    info = Template.build(template, name, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
    return info, [line.message for line in lines]


def test_a_template_is_inspected_tagged_and_deleted(server, name):
    info, _ = build(recipe(name), name)
    template = answer(as_team(server, server.key, "template", "inspect", name, "--json"))
    assert template["templateID"] == info.template_id and template["buildID"] == info.build_id
    assert template["own"] and not template["public"] and template["lastBuild"]["status"] == "ready"
    steps = [layer for layer in template["layers"] if layer["origin"] == "step"]
    assert any(f"head -c {MIB}" in layer.get("step", "") and layer["bytes"] >= MIB for layer in steps), steps
    assert template["layers"][0]["origin"] == "operator" and template["layers"][0]["shared"]
    assert template["uses"] == {"sandboxes": 0, "snapshots": 0, "templates": 0}

    build(Template().from_template(name).run_cmd("true"), f"{name}-child")
    with Sandbox.create(name, timeout=120) as box:
        snapshot = answer(as_team(server, server.key, "snapshot", "create", box.sandbox_id, "--files-only", "--json"))
        template = answer(as_team(server, server.key, "template", "inspect", name, "--json"))
        assert template["uses"] == {"sandboxes": 1, "snapshots": 1, "templates": 1}
        assert all(layer["shared"] for layer in template["layers"])
        refused = as_team(server, server.key, "template", "delete", name)
        assert refused.returncode == 5 and box.sandbox_id in refused.stderr, refused
        as_team(server, server.key, "snapshot", "delete", snapshot["snapshotID"])

    shown = as_team(server, server.key, "template", "inspect", name)
    assert shown.returncode == 0 and "MADE BY" in shown.stdout and info.build_id in shown.stdout, shown
    assert as_team(server, server.key, "template", "tag", name, "v1", "stable").stdout == f"{name}:v1\n{name}:stable\n"
    rows = answer(as_team(server, server.key, "template", "list", "--json"))
    row = next(row for row in rows if row["templateID"] == info.template_id)
    assert row["tags"] == ["default", "stable", "v1"] and row["ownBytes"] + row["sharedBytes"] >= MIB
    assert as_team(server, server.key, "template", "untag", name, "v1").returncode == 0
    again = as_team(server, server.key, "template", "untag", name, "v1")
    assert again.returncode == 4 and "has no tag v1" in again.stderr, again
    template = answer(as_team(server, server.key, "template", "inspect", f"{name}:stable", "--json"))
    assert [tag["tag"] for tag in template["tags"]] == ["default", "stable"]
    assert as_team(server, server.key, "template", "inspect", f"{name}:v1").returncode == 4
    assert as_team(server, server.key, "template", "delete", f"{name}:stable").returncode == 2
    assert as_team(server, server.key, "template", "delete", name).stdout == f"{info.template_id}\n"
    assert as_team(server, server.key, "template", "inspect", name).returncode == 4


def test_another_team_sees_and_changes_nothing(server, other_key, name):
    info, _ = build(recipe(name), name)
    slug = next(row["slug"] for row in answer(as_operator(server, "team", "list", "--json")) if row["isDefault"])
    for ref in (name, f"{slug}/{name}"):
        assert as_team(server, other_key, "template", "inspect", ref).returncode == 4
    layer = answer(as_team(server, server.key, "template", "inspect", name, "--json"))["layers"][-1]["id"]
    assert as_team(server, other_key, "template", "inspect", layer).returncode == 4
    for words in (("inspect", info.template_id), ("delete", info.template_id), ("tag", info.template_id, "x")):
        refused = as_team(server, other_key, "template", *words)
        assert refused.returncode not in (0, 8), refused
    disk = answer(as_team(server, other_key, "template", "disk", "--json"))
    assert disk["templates"] == [] and disk["totalBytes"] == 0 and "downloadBytes" not in disk
    pruned = answer(as_team(server, other_key, "template", "prune", "--json"))
    assert pruned["freedBytes"] == 0 and "downloads" not in pruned
    assert server.call("POST", "/admin/template-prune", {}, {"X-API-Key": other_key}).status == 401
    _, lines = build(recipe(name), name)
    assert sum(line.startswith("CACHED [builder") for line in lines) == 2, lines  # nothing was taken from the first team
    # A public one can be used, so it can be looked at; what its steps were stays its team's.
    assert server.api("PATCH", f"/v2/templates/{name}", {"public": True}).status == 200
    shown = as_team(server, other_key, "template", "inspect", f"{slug}/{name}", "--json")
    template = answer(shown)
    assert template["public"] and not template["own"] and "lastBuild" not in template
    assert template["layers"][-1]["bytes"] > 0 and "/dev/urandom" not in shown.stdout
    mine = next(row for row in answer(as_operator(server, "template", "disk", "--json"))["templates"]
                if row["templateID"] == info.template_id)
    assert mine["name"] == f"{slug}/{name}" and mine["ownBytes"] >= MIB


def test_prune_frees_what_is_not_needed_beside_a_running_build(server, name):
    build(recipe(name), name)
    template = answer(as_team(server, server.key, "template", "inspect", name, "--json"))
    layers = [layer["id"] for layer in template["layers"]]
    assert all((server.data / "layers" / layer).exists() for layer in layers)
    slow = Template().from_template("base").run_cmd(f"echo kept > ~/{name}").run_cmd("sleep 12").run_cmd(f"cat ~/{name}")
    answer(as_operator(server, "template", "prune", "--json"))  # what other tests have left
    assert answer(as_operator(server, "template", "disk", "--json"))["cacheBytes"] == 0
    done = []
    thread = threading.Thread(target=lambda: done.append(build(slow, f"{name}-slow")))
    thread.start()
    try:
        assert wait_for(lambda: answer(as_operator(server, "template", "disk", "--json"))["cacheBytes"] > 0)
        kept = answer(as_team(server, server.key, "template", "prune", "--json"))
        assert kept["layers"]["count"] == 0, kept  # the template is on its steps, and the build that runs on its own
        assert as_team(server, server.key, "template", "delete", name).returncode == 0
        dry = answer(as_team(server, server.key, "template", "prune", "--dry-run", "--json"))
        assert dry["layers"]["count"] >= 2 and dry["layers"]["bytes"] >= MIB, (kept, dry)
        pruned = as_operator(server, "template", "prune")
        assert pruned.returncode == 0 and "freed" in pruned.stdout, pruned
        assert answer(as_operator(server, "template", "prune", "--json"))["layers"]["count"] == 0
        assert thread.is_alive()
    finally:
        thread.join(120)
    assert wait_for(lambda: not any((server.data / "layers" / layer).exists() for layer in layers[1:]), 60)
    assert (server.data / "layers" / layers[0]).exists()
    assert done and any("kept" in line for line in done[0][1]), done
    with Sandbox.create(f"{name}-slow", timeout=120) as box:
        assert box.commands.run(f"cat ~/{name}").stdout == "kept\n"
    _, lines = build(recipe(name), name)
    assert not any(line.startswith("CACHED [builder") for line in lines), lines
