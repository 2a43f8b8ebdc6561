"""Builds of templates by the SDK, on the base template: no network and no registry is needed."""

import asyncio
import hashlib
import random
import subprocess
import uuid

import pytest
from e2b import AsyncSandbox, AsyncTemplate, BuildException, Sandbox, Template, wait_for_file
from server import build_dir, wait_for

TEAM = "readers"
SLOW = "sleep 120"


@pytest.fixture
def name(server):
    """A name that no other test uses; every template that begins with it is deleted afterwards."""
    prefix = f"e2e-{uuid.uuid4().hex[:12]}"
    yield prefix
    server.kill_all()
    for row in server.api("GET", "/templates").json:
        if any(alias.startswith(prefix) for alias in row["aliases"]):
            server.api("DELETE", f"/templates/{row['templateID']}")


def build(template, name, **options):
    lines = []
    info = Template.build(template, name, cpu_count=1, memory_mb=512, on_build_logs=lines.append, **options)
    return info, [line.message for line in lines]


def status_of(server, info):
    return server.api("GET", f"/templates/{info.template_id}/builds/{info.build_id}/status").json


def test_a_template_is_built_and_used(server, name):
    recipe = (
        Template()
        .from_template("base")
        .set_workdir("/app")
        .set_envs({"GREETING": "hello world"})
        .run_cmd(f'echo "$GREETING" > greeting.txt; : {name}')
        .run_cmd("id -un > /made-by", user="root")
    )
    info, lines = build(recipe, name)
    assert info.name == name and info.tags == ["default"]
    assert any("Build finished" in line for line in lines), lines
    row = next(row for row in server.api("GET", "/templates").json if row["templateID"] == info.template_id)
    assert row["buildStatus"] == "ready" and row["buildID"] == info.build_id and row["spawnCount"] == 0
    assert (row["cpuCount"], row["memoryMB"]) == (1, 512)
    with Sandbox.create(name, timeout=120) as box:
        assert box.commands.run("pwd; cat greeting.txt; cat /made-by; id -un; echo [$GREETING]").stdout == (
            "/app\nhello world\nroot\nuser\n[]\n"
        )
        assert server.api("DELETE", f"/templates/{name}").status == 400
    row = next(row for row in server.api("GET", "/templates").json if row["templateID"] == info.template_id)
    assert row["spawnCount"] == 1 and row["lastSpawnedAt"]
    # The same again: nothing is run.
    again, lines = build(recipe, name)
    assert again.template_id == info.template_id and again.build_id != info.build_id
    assert any(line.startswith("CACHED ") and "greeting.txt" in line for line in lines), lines
    assert Template.exists(name) and Template.exists(f"{name}:default")


def test_a_step_that_fails_is_named_and_the_build_before_stays(server, name):
    first, _ = build(Template().from_template("base").run_cmd("echo one > ~/n"), name)
    with pytest.raises(BuildException, match="exit status 3"):
        build(Template().from_template("base").run_cmd("echo two > ~/n").run_cmd("exit 3"), name)
    detail = server.api("GET", f"/templates/{first.template_id}").json
    failed = detail["builds"][0]
    assert failed["status"] == "error" and detail["buildStatus"] == "error" and detail["buildID"] == first.build_id
    status = server.api("GET", f"/templates/{first.template_id}/builds/{failed['buildID']}/status").json
    assert status["reason"]["step"] == "2" and status["reason"]["message"].startswith("failed to run command")
    with Sandbox.create(name, timeout=60) as box:
        assert box.commands.run("cat ~/n").stdout == "one\n"


def test_the_asynchronous_sdk_builds_too(server, name, tmp_path):
    (tmp_path / "one.txt").write_text(f"{name}\n")

    async def run():
        recipe = AsyncTemplate(file_context_path=tmp_path).from_template("base").copy("one.txt", "/one.txt")
        lines = []
        info = await AsyncTemplate.build(recipe, name, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
        assert await AsyncTemplate.exists(name) and lines
        assigned = await AsyncTemplate.assign_tags(name, "v1")
        assert assigned.build_id == info.build_id
        with pytest.raises(BuildException, match="exit status 4"):
            await AsyncTemplate.build(AsyncTemplate().from_template(f"{name}:v1").run_cmd("exit 4"), f"{name}-child")
        box = await AsyncSandbox.create(f"{name}:v1", timeout=60)
        try:
            assert (await box.commands.run("cat /one.txt")).stdout == f"{name}\n"
        finally:
            await box.kill()

    asyncio.run(run())


def test_tags_mean_builds(server, name):
    def recipe(text):
        return Template().from_template("base").run_cmd(f"echo {text} > ~/n")

    def says(ref):
        with Sandbox.create(ref, timeout=60) as box:
            return box.commands.run("cat ~/n").stdout.strip()

    first, _ = build(recipe("one"), f"{name}:v1", tags=["stable"])
    second, _ = build(recipe("two"), f"{name}:v2")
    assert first.template_id == second.template_id and sorted(first.tags) == ["stable", "v1"]
    answer = server.api("POST", "/v2/sandboxes", {"templateID": name})
    assert answer.status == 404 and "tag 'default' does not exist" in answer.json["message"]
    assert says(f"{name}:v1") == says(f"default/{name}:stable") == says(f"{name}:{first.build_id}") == "one"
    assigned = Template.assign_tags(f"{name}:v2", ["stable", "default"])
    assert assigned.build_id == second.build_id and sorted(assigned.tags) == ["default", "stable"]
    assert says(name) == says(f"{name}:stable") == "two"
    tags = {row.tag: row.build_id for row in Template.get_tags(name)}
    assert tags == {tag: second.build_id for tag in ("default", "stable", "v2")} | {"v1": first.build_id}
    Template.remove_tags(name, ["stable", "never"])
    assert {row.tag for row in Template.get_tags(name)} == {"default", "v1", "v2"}
    history = server.api("GET", f"/templates/{name}/tags/default/assignments").json
    assert [row["buildId"] for row in history["data"]] == [second.build_id]


def test_a_template_of_ones_own_is_a_base_and_its_start_command_runs(server, name):
    parent = (
        Template()
        .from_template("base")
        .run_cmd("echo parent > ~/who")
        .set_start_cmd("sleep 1; date > /tmp/started; sleep 1000", wait_for_file("/tmp/started"))
    )
    info, lines = build(parent, name)
    order = [next(i for i, line in enumerate(lines) if text in line) for text in ("Running start command", "Template is ready")]
    assert order == sorted(order)
    build(Template().from_template(name).run_cmd("cat ~/who > ~/child"), f"{name}-child")
    for ref in (name, f"{name}-child"):
        with Sandbox.create(ref, timeout=60) as box:
            assert box.files.exists("/tmp/started")
    # Without its parent the child goes on.
    assert server.api("DELETE", f"/templates/{info.template_id}").status == 204
    with Sandbox.create(f"{name}-child", timeout=60) as box:
        assert box.commands.run("cat ~/child").stdout == "parent\n"


def test_files_are_copied(server, name, tmp_path):
    """The archives of several COPY steps, uploaded by signed links; one is large enough to come in many pieces."""
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "a.txt").write_text(f"{name}\n")  # else the cache knows it from the last run
    (tmp_path / "folder" / "deep" / "b.txt").write_text("b\n")
    (tmp_path / "folder" / "link").symlink_to("a.txt")
    (tmp_path / "large").write_bytes(random.Random(1).randbytes(20 << 20))
    digest = hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest()
    recipe = (
        Template(file_context_path=tmp_path)
        .from_template("base")
        .copy("folder", "/app/folder")
        .copy("folder/*.txt", "/app/texts/", mode=0o600)
        .copy("large", "/data/", user="root")
        .run_cmd("cat /app/folder/link /app/folder/deep/b.txt > ~/joined")
    )
    build(recipe, name)
    with Sandbox.create(name, timeout=60) as box:
        assert box.commands.run("cat ~/joined").stdout == f"{name}\nb\n"
        assert box.commands.run("sha256sum /data/large").stdout.split()[0] == digest
        assert box.commands.run("stat -c '%U %a' /app/texts/a.txt /data/large").stdout.split()[:3] == ["user", "600", "root"]
    # Not a byte is sent again, and nothing is run.
    _, lines = build(recipe, name)
    assert sum(line.startswith("CACHED ") for line in lines) >= 4, lines
    # What changed, and what follows.
    (tmp_path / "folder" / "a.txt").write_text(f"changed {name}\n")
    _, lines = build(recipe, name)
    assert not any(line.startswith("CACHED ") and "COPY" in line for line in lines), lines
    with Sandbox.create(name, timeout=60) as box:
        assert box.commands.run("cat ~/joined").stdout == f"changed {name}\nb\n"


def test_a_copy_without_its_archive_fails_the_step(server, name):
    made = server.api("POST", "/v3/templates", {"name": name}).json
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    steps = [{"type": "RUN", "args": ["true"]}, {"type": "COPY", "args": ["a", "b", "", ""], "filesHash": "c" * 64}]
    assert server.api("POST", f"/v2{path}", {"fromTemplate": "base", "steps": steps}).status == 202
    assert wait_for(lambda: server.api("GET", f"{path}/status").json["status"] == "error", seconds=30)
    assert server.api("GET", f"{path}/status").json["reason"]["step"] == "2"


def test_a_build_is_cancelled_by_a_newer_one_and_by_a_delete(server, name):
    slow = Template().from_template("base").run_cmd(SLOW)
    first = Template.build_in_background(slow, name)
    assert status_of(server, first)["status"] == "building"
    assert Template.get_build_status(first).status == "building"
    build(Template().from_template("base"), name)
    assert wait_for(lambda: status_of(server, first)["status"] == "error", seconds=20)
    assert "cancelled" in status_of(server, first)["reason"]["message"]
    second = Template.build_in_background(slow, f"{name}:slow")
    assert server.api("DELETE", f"/templates/{name}").status == 204
    answer = server.api("GET", f"/templates/{second.template_id}/builds/{second.build_id}/status")
    assert answer.status == 400 and "not found" in answer.json["message"]
    assert not Template.exists(name)

    def sleeps():
        return SLOW in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout

    assert wait_for(lambda: not sleeps(), seconds=20)


def test_sources_that_are_not_there_fail_the_build(server, name):
    for source, message in (("no-such-template", "template 'no-such-template' not found"), ("base:v9", "not found")):
        with pytest.raises(BuildException, match=message):
            build(Template().from_template(source), name)
    row = server.api("GET", f"/templates/{name}").json
    assert row["buildStatus"] == "error" and row["builds"][0]["status"] == "error"
    status = server.api("GET", f"/templates/{row['templateID']}/builds/{row['builds'][0]['buildID']}/status").json
    assert status["reason"]["step"] == "base"


def test_a_public_template_can_be_used_by_others(server, name):
    def cli(*words):
        command = [str(build_dir() / "cloister"), *words, "--data", str(server.data)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    cli("team", "delete", TEAM, "--force")
    cli("team", "create", TEAM)
    theirs = {"api_key": cli("key", "create", "ci", "--team", TEAM), "api_url": server.url, "sandbox_url": server.url}
    try:
        build(Template().from_template("base").run_cmd("echo shared > ~/n"), name)
        body = {"templateID": f"default/{name}", "timeout": 60}
        headers = {"X-API-Key": theirs["api_key"]}
        assert server.call("POST", "/v2/sandboxes", body, headers).status == 404
        assert server.api("PATCH", f"/v2/templates/{name}", {"public": True}).json == {"names": [f"default/{name}"]}
        with Sandbox.create(f"default/{name}", timeout=60, **theirs) as box:
            assert box.commands.run("cat ~/n").stdout == "shared\n"
        copy = Template().from_template(f"default/{name}").run_cmd("cat ~/n > ~/m")
        Template.build(copy, f"{name}-copy", api_key=theirs["api_key"], api_url=server.url)
        server.api("PATCH", f"/v2/templates/{name}", {"public": False})
        assert server.call("POST", "/v2/sandboxes", body, headers).status == 404
        # Their sandboxes do not keep it, and go on without it.
        server.api("PATCH", f"/v2/templates/{name}", {"public": True})
        with Sandbox.create(f"default/{name}", timeout=60, **theirs) as box:
            assert server.api("DELETE", f"/templates/{name}").status == 204
            assert box.commands.run("cat ~/n").stdout == "shared\n"
    finally:
        cli("team", "delete", TEAM, "--force")


def test_a_build_that_a_crash_cuts_off_is_an_error(server, name):
    slow = Template().from_template("base").run_cmd("echo kept > ~/n").run_cmd(SLOW)
    info = Template.build_in_background(slow, name)
    assert wait_for(lambda: any(SLOW in line["message"] for line in status_of(server, info)["logEntries"]), seconds=30)
    server.process.kill()
    server.process.wait()
    server.start_when_free()
    status = status_of(server, info)
    assert status["status"] == "error" and status["reason"]["message"], status
    # What was sealed before is sound, and used again.
    again, lines = build(Template().from_template("base").run_cmd("echo kept > ~/n"), name)
    with Sandbox.create(name, timeout=60) as box:
        assert box.commands.run("cat ~/n").stdout == "kept\n"
    assert again.template_id == info.template_id
