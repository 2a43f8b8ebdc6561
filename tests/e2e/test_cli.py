"""E2B's own command line against our server: list, create, exec, kill; templates."""

import json
import os
import re
import subprocess

import pytest

CLI = os.environ.get("CLOISTER_E2B_CLI")
pytestmark = pytest.mark.skipif(not CLI, reason="run.py installs @e2b/cli and sets CLOISTER_E2B_CLI")


@pytest.fixture
def e2b(server, tmp_path):
    def run(*arguments, stdin=subprocess.DEVNULL, **options):
        env = {**server.environment(), "HOME": str(tmp_path), "NO_COLOR": "1", "CI": "1"}
        return subprocess.run(
            [CLI, *arguments],
            env=env,
            cwd=tmp_path,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            **options
        )

    return run


def test_create_makes_a_sandbox_and_leaves_it_running(e2b, server, made):
    result = e2b("sandbox", "create", "base", "--detach", "--timeout", "120")
    assert result.returncode == 0, result
    found = re.search(r"\bi[a-z0-9]{20}\b", result.stdout + result.stderr)
    assert found, result
    made.append(found[0])
    assert found[0] in server.running()


def test_list_shows_what_runs(e2b, server, made):
    made.append(server.create(metadata={"from": "cli-test"})["sandboxID"])
    pretty = e2b("sandbox", "list")
    assert pretty.returncode == 0 and made[0] in pretty.stdout, pretty
    listed = e2b("sandbox", "list", "--format", "json", "--metadata", "from=cli-test")
    assert [row["sandboxId"] for row in json.loads(listed.stdout)] == made, listed


def test_list_says_so_when_nothing_runs(e2b, server):
    server.kill_all()
    result = e2b("sandbox", "list")
    assert result.returncode == 0 and "No sandboxes" in result.stdout + result.stderr, result


def test_exec_passes_output_and_exit_code(e2b, server, made):
    made.append(server.create()["sandboxID"])
    result = e2b("sandbox", "exec", made[0], "echo out; echo err >&2; exit 3")
    assert (result.returncode, result.stdout) == (3, "out\n"), result
    assert "err\n" in result.stderr


def test_exec_knows_user_directory_and_environment(e2b, server, made):
    made.append(server.create()["sandboxID"])
    result = e2b("sandbox", "exec", "-u", "root", "-c", "/tmp", "-e", "FOO=bar", made[0], "whoami; pwd; echo $FOO")
    assert (result.returncode, result.stdout) == (0, "root\n/tmp\nbar\n"), result


def test_exec_passes_piped_input(e2b, server, made):
    made.append(server.create()["sandboxID"])
    with subprocess.Popen(["printf", "a\nb\n"], stdout=subprocess.PIPE) as source:
        result = e2b("sandbox", "exec", made[0], "wc -l", stdin=source.stdout)
    assert (result.returncode, result.stdout.strip()) == (0, "2"), result


def test_kill_ends_a_sandbox_and_says_when_there_is_none(e2b, server, made):
    made.append(server.create()["sandboxID"])
    result = e2b("sandbox", "kill", made[0])
    assert result.returncode == 0 and made[0] in result.stdout, result
    assert made[0] not in server.running()
    again = e2b("sandbox", "kill", made[0])
    assert "found" in (again.stdout + again.stderr).lower(), again


def test_kill_all_ends_all(e2b, server):
    for _ in range(2):
        server.create()
    result = e2b("sandbox", "kill", "--all")
    assert result.returncode == 0, result
    assert server.running() == []


def test_templates_are_created_published_and_deleted(e2b, server, tmp_path):
    (tmp_path / "e2b.Dockerfile").write_text("FROM e2bdev/base\nWORKDIR /srv\nENV GREETING=hi\nRUN echo $GREETING > made\n")
    server.api("DELETE", "/templates/from-the-cli")  # of a run that was killed
    result = e2b("template", "create", "from-the-cli", "--cpu-count", "1", "--memory-mb", "512")
    assert result.returncode == 0, result
    listed = json.loads(e2b("template", "list", "--format", "json").stdout)
    rows = {name: row for row in listed for name in row["names"]}
    assert "base" in rows and rows["default/from-the-cli"]["buildStatus"] == "ready", listed
    sandbox = server.create(templateID="from-the-cli")
    try:
        result = e2b("sandbox", "exec", sandbox["sandboxID"], "cat /srv/made")
        assert result.stdout == "hi\n", result
    finally:
        server.api("DELETE", f"/sandboxes/{sandbox['sandboxID']}")
    result = e2b("template", "publish", "from-the-cli", "--yes")
    assert result.returncode == 0 and "default/from-the-cli" in result.stdout + result.stderr, result
    assert server.api("GET", "/templates/aliases/from-the-cli").json["public"] is True
    assert e2b("template", "unpublish", "from-the-cli", "--yes").returncode == 0
    assert server.api("GET", "/templates/aliases/from-the-cli").json["public"] is False
    assert e2b("template", "delete", "from-the-cli", "--yes").returncode == 0
    assert server.api("GET", "/templates/aliases/from-the-cli").status == 404
    result = e2b("template", "delete", "from-the-cli", "--yes")
    assert "404" in result.stdout + result.stderr, result
