"""E2B's own command line against our server: list, create, exec, kill; templates, also as projects of its own."""

import json
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import time
import uuid

import pytest
from server import wait_for

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


def check_built(e2b, server, name, command, output):
    row = server.api("GET", f"/templates/aliases/{name}")
    assert row.status == 200, row
    sandbox = server.create(templateID=name)
    try:
        result = e2b("sandbox", "exec", sandbox["sandboxID"], command)
        assert (result.returncode, result.stdout) == (0, output), result
    finally:
        server.api("DELETE", f"/sandboxes/{sandbox['sandboxID']}")
        assert e2b("template", "delete", name, "--yes").returncode == 0


def run_project(server, home, language, kind):
    """The project's own way to build: what its Makefile or package.json runs."""
    if language == "typescript":
        packages = pathlib.Path(CLI).parents[1]
        if not (packages / ".bin" / "tsx").exists():
            pytest.skip("tsx is not installed; run.py does it")
        (home / "node_modules").symlink_to(packages)
        words = [str(home / "node_modules" / ".bin" / "tsx"), f"build.{kind}.ts"]
    else:
        words = [sys.executable, f"build_{kind}.py"]
    return subprocess.run(words, cwd=home, env=server.environment(), capture_output=True, text=True, timeout=120, check=False)


LANGUAGES = ("typescript", "python-sync", "python-async")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_project_of_template_init_builds(e2b, server, tmp_path, language):
    name = f"init-{language}"
    for tried in (name, f"{name}-dev"):
        server.api("DELETE", f"/templates/{tried}")  # of a run that was killed
    result = e2b("template", "init", "--name", name, "--language", language)
    assert result.returncode == 0, result
    home = tmp_path / name
    code = next(home.glob("template.*"))
    text = code.read_text()
    assert "e2bdev/base" in text, text
    code.write_text(text.replace("echo Hello World E2B!", "echo hello > greeting"))
    for kind, made in (("dev", f"{name}-dev"), ("prod", name)):
        if kind == "prod" and language != "python-sync":
            continue  # once is enough for a script that differs only in the name
        done = run_project(server, home, language, kind)
        assert done.returncode == 0 and "[builder 1/1]" in done.stdout + done.stderr, done
        check_built(e2b, server, made, "cat greeting", "hello\n")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_project_of_template_migrate_builds(e2b, server, tmp_path, language):
    name = f"migrate-{language}"
    for tried in (name, f"{name}-dev"):
        server.api("DELETE", f"/templates/{tried}")
    (tmp_path / "a.txt").write_text("from the context\n")
    (tmp_path / "e2b.Dockerfile").write_text(
        "FROM e2bdev/base\nENV GREETING=hi\nCOPY a.txt /srv/\nWORKDIR /srv\nRUN echo $GREETING > made && id -un >> made\n"
    )
    (tmp_path / "e2b.toml").write_text(
        f'template_id = "aaaaaaaaaaaaaaaaaaaa"\ntemplate_name = "{name}"\ndockerfile = "e2b.Dockerfile"\n'
        'start_cmd = "sleep 1000"\nready_cmd = "pgrep sleep"\ncpu_count = 1\nmemory_mb = 512\n'
    )
    result = e2b("template", "migrate", "--language", language)
    assert result.returncode == 0 and not (tmp_path / "e2b.Dockerfile").exists(), result
    done = run_project(server, tmp_path, language, "prod")
    assert done.returncode == 0, done
    row = next(row for row in server.api("GET", "/templates").json if name in row["aliases"])
    assert (row["cpuCount"], row["memoryMB"]) == (1, 512)
    check_built(e2b, server, name, "cat /srv/a.txt /srv/made; pgrep -x sleep > /dev/null && pwd", "from the context\nhi\nroot\n/srv\n")


def test_the_options_of_template_create(e2b, server, tmp_path):
    name = "cli-options"
    server.api("DELETE", f"/templates/{name}")
    home = tmp_path / "project"
    home.mkdir()
    (home / "Other.Dockerfile").write_text(f"FROM e2bdev/base\nRUN echo {uuid.uuid4().hex} > /home/user/when\n")
    words = ["template", "create", name, "--path", str(home), "--dockerfile", "Other.Dockerfile", "--cmd", "sleep 2000", "--ready-cmd", "pgrep -f 'sleep 2000'"]
    first, second = e2b(*words), e2b(*words)
    assert first.returncode == 0 and second.returncode == 0, (first, second)
    cached = "CACHED [builder 3/"  # USER and WORKDIR come first
    assert "RUN echo " in first.stdout and cached not in first.stdout and cached in second.stdout, (first, second)
    assert e2b(*words, "--no-cache").returncode == 0  # release 2.19.0 never sends it: it reads another name of the option
    (home / "Other.Dockerfile").write_text("FROM e2bdev/base\nRUN exit 7\n")
    failed = e2b(*words)
    assert failed.returncode != 0 and "exit status 7" in failed.stdout + failed.stderr, failed
    check_built(e2b, server, name, "pgrep -x sleep > /dev/null && test -s when && echo fine", "fine\n")


def test_questions_on_a_terminal(server, tmp_path):
    """Without --yes they ask."""
    name = "cli-asks"
    server.api("DELETE", f"/templates/{name}")
    ids = server.api("POST", "/v3/templates", {"name": name}).json
    path = f"/templates/{ids['templateID']}/builds/{ids['buildID']}"
    assert server.api("POST", f"/v2{path}", {"fromTemplate": "base"}).status == 202
    assert wait_for(lambda: server.api("GET", f"{path}/status").json["status"] == "ready")
    env = {**server.environment(), "HOME": str(tmp_path), "NO_COLOR": "1", "TERM": "xterm"}
    answers = {
        ("publish", "n"): lambda: server.api("GET", f"/templates/aliases/{name}").json["public"] is False,
        ("publish", "y"): lambda: server.api("GET", f"/templates/aliases/{name}").json["public"] is True,
        ("unpublish", "y"): lambda: server.api("GET", f"/templates/aliases/{name}").json["public"] is False,
        ("delete", "n"): lambda: server.api("GET", f"/templates/aliases/{name}").status == 200,
        ("delete", "y"): lambda: server.api("GET", f"/templates/aliases/{name}").status == 404,
    }
    for (verb, answer), is_so in answers.items():
        output = on_terminal([CLI, "template", verb, name], env, tmp_path, answer)
        assert is_so(), (verb, answer, output)


def on_terminal(words, env, cwd, answer):
    """Answers the first question, and gives all that was printed."""
    main, other = pty.openpty()
    process = subprocess.Popen(words, env=env, cwd=cwd, stdin=other, stdout=other, stderr=other, start_new_session=True)
    os.close(other)
    output, has_answered, end = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if not select.select([main], [], [], 0.2)[0]:
                if process.poll() is not None:
                    break
                continue
            try:
                piece = os.read(main, 4096)
            except OSError:  # the terminal is gone with the last process that had it
                break
            output += piece
            if not has_answered and b"?" in output and b"(" in output:
                has_answered = True
                os.write(main, answer.encode() + b"\r")
        process.wait(20)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(main)
    return output.decode(errors="replace")
