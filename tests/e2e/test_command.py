"""The `cloister` command where it is more than a client: installed, interrupted, without root."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest
from server import ROOT, SHARED_DATA, Server, build_dir, free_port, wait_for

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def programs(tmp_path):
    """Both programs where everybody may run them."""
    home = tmp_path / "programs"
    home.mkdir()
    for name in ("cloister", "cloister-guestd"):
        shutil.copy(build_dir() / name, home / name)
    for path in (home, *home.parents):
        if path.is_relative_to("/tmp") and path != pathlib.Path("/tmp"):
            path.chmod(0o755)
    return home


def run(*command, **options):
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.fixture
def fake_bin():
    """A directory that every user can read, for programs that a build finds in place of the real ones: /tmp is hidden there."""
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="cloister-test-bin.") as name:
        os.chmod(name, 0o755)
        yield pathlib.Path(name)


def fake_mmdebstrap(home, text):
    script = home / "mmdebstrap"
    script.write_text(f"#!/bin/sh\n{text}")
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{home}:{os.environ['PATH']}"}


def endless_mmdebstrap(home):
    """Makes a little of a tree, then waits, with a grandchild in a session of its own that would wait on."""
    return fake_mmdebstrap(
        home,
        'for word; do case "$word" in /tmp/*) mkdir -p "$word/etc/deep"; cd "$word/etc/deep" ;; esac; done\n'
        'echo "I: running apt-get update"\n'
        f"setsid sh -c ': >started; sleep 1000; :' {home} &\n"
        "wait\n",
    )


def runs(word):
    """Is there a process with this word in its command line?"""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"\0{word}\0".encode() in path.read_bytes():
                return True
        except OSError:
            pass
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing_and_says_how_to_go_on(tmp_path, fake_bin, number):
    data = tmp_path / "data"
    started = data / "tmp" / "base" / "etc" / "deep" / "started"
    env = endless_mmdebstrap(fake_bin)
    command = [str(build_dir() / "cloister"), "template", "build", "base", "--data", str(data)]
    with subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # whatever these tests were started from
    ) as building:
        assert wait_for(started.exists)
        assert os.listdir(data / "tmp") == ["base"] and started.stat().st_uid == 0
        assert wait_for(lambda: runs(fake_bin))
        building.send_signal(number)
        out, err = building.communicate(timeout=60)
    assert building.returncode == 128 + number, err
    assert "Interrupted;" in err and "Nothing of it is left" in err and f"template build base --data {data}" in err, err
    assert out == ""
    for name in ("tmp", "layers", "templates"):
        assert os.listdir(data / name) == []
    assert wait_for(lambda: not runs(fake_bin))


def share_base(data):
    """Base alone: the other layers have many files."""
    for path in (SHARED_DATA / "templates").iterdir():
        text = path.read_text()
        if "name base\n" in text:
            for name in ("templates", "layers"):
                (data / name).mkdir(mode=0o700)
            shutil.copy(path, data / "templates" / path.name)
            for layer in re.findall(r"^layer (\w+)$", text, re.M):
                subprocess.run(["cp", "-al", SHARED_DATA / "layers" / layer, data / "layers" / layer], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_recipe_leaves_no_server_and_no_sandbox(server, number):  # a server has base: it made it if need be
    # Not in pytest's own directories, which only root can enter: roles of the server cannot.
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="cloister-test-recipe.") as name:
        data = pathlib.Path(name)
        data.chmod(0o755)
        share_base(data)
        before = {part: sorted(os.listdir(data / part)) for part in ("layers", "templates")}
        command = [str(build_dir() / "cloister"), "template", "build", "code-interpreter", "--data", name]
        log = data / "tmp" / "recipe-log"
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
        ) as building:
            began = wait_for(lambda: log.exists() and "fetching package lists" in log.read_text(), 60)
            inode = (data / "tmp" / "recipe-server").stat().st_ino if began else 0
            groups = list(pathlib.Path("/sys/fs/cgroup").rglob(f"cloister.*.{inode:x}"))
            building.send_signal(number)
            out, err = building.communicate(timeout=100)
        assert began and groups, err
        assert before == {part: sorted(os.listdir(data / part)) for part in before} and out == ""
        assert wait_for(lambda: not runs(name))
        assert not any(path.exists() for path in groups)  # nor a process in them: such groups cannot be removed
        if number == signal.SIGKILL:
            return  # the next build removes what is in tmp/
        assert building.returncode == 128 + number, err
        assert "Nothing of it is left" in err and f"template build code-interpreter --data {name}" in err, err
        assert os.listdir(data / "tmp") == []


def test_a_build_in_the_background_is_not_interrupted(tmp_path, fake_bin):
    data = tmp_path / "data"
    started = data / "tmp" / "base" / "etc" / "deep" / "started"
    env = endless_mmdebstrap(fake_bin)
    command = [str(build_dir() / "cloister"), "template", "build", "base", "--data", str(data)]
    with subprocess.Popen(
        command, env=env, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    ) as building:
        assert wait_for(started.exists)
        building.send_signal(signal.SIGINT)
        building.send_signal(signal.SIGTERM)  # which is not ignored: were both heeded, the first would be the reason
        building.communicate(timeout=60)
    assert building.returncode == 128 + signal.SIGTERM


def test_a_build_that_fails_says_why(tmp_path, fake_bin):
    env = fake_mmdebstrap(fake_bin, "echo 'E: no such mirror'\nexit 25\n")
    result = run(build_dir() / "cloister", "template", "build", "base", "--data", tmp_path / "data", env=env)
    assert result.returncode == 8 and "mmdebstrap failed: no such mirror" in result.stderr, result


def test_install_makes_a_command_that_finds_its_parts_and_uninstall_takes_it_back(tmp_path):
    where = [f"DESTDIR={tmp_path}", "PREFIX=/opt/cloister"]
    result = run("make", "-C", ROOT, "install", *where)
    assert result.returncode == 0, result
    installed = tmp_path / "opt" / "cloister" / "bin" / "cloister"
    assert run(installed, "version").stdout.startswith("cloister ")
    assert (installed.resolve().parent / "cloister-guestd").stat().st_mode & 0o777 == 0o755
    # On the PATH it goes by its name, elsewhere by its path.
    by_name = run("cloister", "help", "serve", env={**os.environ, "PATH": f"{installed.parent}:{os.environ['PATH']}"})
    assert "  sudo cloister serve\n" in by_name.stdout, by_name
    result = run("make", "-C", ROOT, "uninstall", *where)
    assert result.returncode == 0, result
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize("word, right", [("VERSIONS=latest", "newest"), ("SERVER=mine", "running")])
def test_make_clients_takes_no_word_that_it_does_not_know(word, right):
    result = run("make", "-n", "-C", ROOT, "clients", word)
    assert result.returncode == 2 and f"is {right}, or not set" in result.stderr, result


def test_doctor_without_root_does_not_claim_to_know(programs):
    result = run(programs / "cloister", "doctor", user=NOBODY, group=NOBODY, extra_groups=[])
    assert result.returncode in (3, 8), result
    assert "checks need root" in result.stdout and "Sandboxes can run here" not in result.stdout, result
    answer = json.loads(
        run(programs / "cloister", "doctor", "--json", user=NOBODY, group=NOBODY, extra_groups=[]).stdout
    )
    assert answer["ok"] is False
    assert "skip" in {check["verdict"] for check in answer["checks"]}
    assert all("fix" in check for check in answer["checks"] if check["verdict"] in ("warn", "fail"))


def test_doctor_looks_at_the_server_and_the_templates_of_the_directory_it_is_asked_about(programs, server, tmp_path):
    def checks(*arguments):
        result = run(programs / "cloister", "doctor", "--json", *arguments)
        return {check["check"]: check for check in json.loads(result.stdout)["checks"]}

    there = checks("--data", server.data)
    assert there["listen address"]["verdict"] == "ok", there["listen address"]
    assert f"127.0.0.1:{server.port}, where" in there["listen address"]["found"]
    taken = checks("--data", server.data, "--listen", f"127.0.0.1:{server.port}")["listen address"]
    assert taken["verdict"] == "warn" and "is taken" in taken["found"], taken
    # No server ever ran on this directory: doctor checks the address where a new one would listen.
    port = free_port()
    (tmp_path / "new").mkdir()
    new = checks("--data", tmp_path / "new", f"--listen=127.0.0.1:{port}")
    assert new["listen address"]["found"] == f"127.0.0.1:{port} is free"
    assert new["code-interpreter"]["verdict"] == "ok", new
    assert f"template build code-interpreter --data {tmp_path}"[:60] in new["code-interpreter"]["found"], new
    (tmp_path / "new" / "server").write_text(f"127.0.0.1:{port}\n")
    was = checks("--data", tmp_path / "new")["listen address"]["found"]
    assert was == f"127.0.0.1:{port} is free; the server of this directory used it last"


@pytest.mark.parametrize(
    "line, says",
    [
        ("inside = foo", "--inside takes NAME:PORT=ADDR:PORT"),
        ("egress-deny = bar", "--egress-deny takes addresses and CIDR blocks, not 'bar'"),
        ("internet = maybe", "--internet must be on or off, not 'maybe'"),
        ("domain = https://example.com", "--domain takes a name"),
        ("log = loud", "--log must be"),
        ("token-for-code = perhaps", "--token-for-code must be"),
        ("tls-key = /nowhere/key.pem", "--tls-cert and --tls-key belong together"),
    ],
)
def test_doctor_fails_a_configuration_that_serve_refuses(tmp_path, line, says):
    def rows():
        result = run(build_dir() / "cloister", "doctor", "--json", "--config", file, "--data", tmp_path)
        checks = json.loads(result.stdout)["checks"]
        return result.returncode, [check for check in checks if check["check"] == "configuration"]

    file = tmp_path / "cloister.conf"
    file.write_text(f"{line}\n")
    served = run(build_dir() / "cloister", "serve", "--config", file, "--data", tmp_path)
    assert served.returncode == 2 and says in served.stderr, served
    code, (row,) = rows()
    assert code == 8 and row["verdict"] == "fail" and says in row["found"], row
    assert str(file) in row["fix"], row
    file.write_text("")
    code, (row,) = rows()
    assert row["verdict"] == "ok", row


def test_doctor_has_a_row_for_every_mistake_of_a_configuration(tmp_path):
    file = tmp_path / "cloister.conf"
    options = ("internet", "log", "egress-allow", "egress-deny", "dns", "inside")
    file.write_text("".join(f"{option} = bad\n" for option in options))
    result = run(build_dir() / "cloister", "doctor", "--json", "--config", file, "--data", tmp_path)
    rows = [check for check in json.loads(result.stdout)["checks"] if check["check"] == "configuration"]
    assert len(rows) == len(options), rows
    for option in options:
        assert [row for row in rows if row["verdict"] == "fail" and row["found"].startswith(f"--{option} ")], (option, rows)


def test_a_template_of_another_version_is_served_and_told_about(server):
    data = server.data.parent / f"{server.data.name}-outdated"  # where the server's own user may go
    shutil.rmtree(data, ignore_errors=True)
    (data / "templates").mkdir(parents=True)
    (data / "layers").mkdir()
    for template in (server.data / "templates").iterdir():
        text = template.read_text()
        if "name base\n" in text:
            lines = [f"recipe {64 * '0'}" if line.startswith("recipe ") else line for line in text.splitlines()]
            (data / "templates" / template.name).write_text("\n".join(lines) + "\n")
    advice = f"template build base --data {data}"
    mine = Server(data)
    mine.start()
    try:
        assert wait_for(lambda: advice in mine.log_path.read_text()), mine.log_tail()
    finally:
        mine.stop()
    other = data / "templates" / ("t" * 20)
    base = next(template for template in (data / "templates").iterdir())
    other.write_text(base.read_text().replace("name base\n", "name code-interpreter-v1\n").replace(base.name, other.name))
    rows = json.loads(run(build_dir() / "cloister", "doctor", "--json", "--data", data).stdout)["checks"]
    for check, name in (("base template", "base"), ("code-interpreter", "code-interpreter")):
        row = next(row for row in rows if row["check"] == check)
        assert row["verdict"] == "warn" and f"template build {name} --data {data}"[:60] in row["fix"], row
    shutil.rmtree(data)
    rows = json.loads(run(build_dir() / "cloister", "doctor", "--json", "--data", server.data).stdout)["checks"]
    assert next(row for row in rows if row["check"] == "base template")["verdict"] == "ok", rows


def test_advice_works_for_who_reads_it(programs):
    result = run(programs / "cloister", "serve", user=NOBODY, group=NOBODY, extra_groups=[])
    assert result.returncode == 3, result
    assert "serving needs root" in result.stderr and "cloister serve\n" in result.stderr, result


def test_a_second_make_up_says_that_one_runs_already_before_it_builds_anything(server, tmp_path):
    def check(port, data):
        result = run(ROOT / "scripts" / "can_serve.py", f"127.0.0.1:{port}", data)
        assert result.stdout == "" and result.stderr.count("\n") == (result.returncode != 0)
        return result.stderr

    assert f"runs already with the data directory {server.data}" in check(server.port, server.data)
    assert f"runs already with the data directory {server.data}" in check(free_port(), server.data)
    assert f"127.0.0.1:{server.port} is in use" in check(server.port, tmp_path)
    assert check(free_port(), tmp_path) == ""
    assert server.call("GET", "/health").status == 204
    steps = run("make", "--dry-run", "up", cwd=ROOT).stdout
    assert steps.index("can_serve.py") < steps.index("template build base") < steps.index("template build code-int")


def test_the_domain_of_env_of_a_create_and_of_the_start_line_is_one(own_server):
    own_server.stop()
    own_server.options = ["--listen", f"0.0.0.0:{own_server.port}"]
    before = len(own_server.log_path.read_text())
    own_server.start()
    domain = f"cloister.localhost:{own_server.port}"
    assert own_server.lines["E2B_DOMAIN"] == domain
    assert own_server.create()["domain"] == domain
    line = f"Cloister is up on {own_server.url} and https://api.{domain}."
    assert wait_for(lambda: line in own_server.log_path.read_text()[before:]), own_server.log_tail()


def test_a_list_of_the_file_that_the_command_line_replaces_is_told_at_the_start(own_server, tmp_path):
    file = tmp_path / "cloister.conf"
    file.write_text("dns = 192.0.2.1\ndns = 192.0.2.2\negress-deny = 192.0.2.9\n")
    own_server.stop()
    own_server.options = ["--config", str(file), "--dns", "192.0.2.3", "--egress-deny", "192.0.2.8"]
    before = len(own_server.log_path.read_text())
    own_server.start()
    log = own_server.log_path.read_text()[before:]
    assert f"the command line replaces the 2 entries of 'dns' in {file}" in log, log
    assert "egress-deny" not in log, log  # it adds up


def test_a_server_that_stops_tells_what_runs_on_and_what_is_paused(own_server):
    sandbox_id = own_server.create()["sandboxID"]
    own_server.create()
    before = len(own_server.log_path.read_text())
    assert own_server.api("POST", f"/sandboxes/{sandbox_id}/pause", {"memory": False}).status == 204
    assert own_server.api("POST", f"/v2/sandboxes/{sandbox_id}/connect", {"timeout": 60}).status == 201
    assert own_server.api("POST", f"/sandboxes/{sandbox_id}/pause", {"memory": False}).status == 204
    own_server.stop()
    log = own_server.log_path.read_text()[before:]
    assert f"sandbox {sandbox_id}: resumed from its files\n" in log, log
    assert "1 sandbox runs on and 1 is paused; the next server here finds them again.\n" in log, log


def test_a_template_keeps_its_name(server, made):
    made.append(server.create()["sandboxID"])
    refused = cli(server, "snapshot", "create", made[0], "--name", "base", "--files-only")
    assert refused.returncode == 2 and "'base' is the name of a template; choose another name" in refused.stderr, refused
    assert cli(server, "sandbox", "pause", made[0], "--files-only").returncode == 0
    refused = cli(server, "sandbox", "exec", made[0], "true")
    assert refused.returncode == 125 and f"sandbox {made[0]} is paused; to bring it back: " in refused.stderr, refused
    refused = cli(server, "snapshot", "create", made[0], "--files-only")
    assert refused.returncode == 5 and "is paused; resume it first" in refused.stderr, refused


def test_the_log_of_a_sandbox_is_a_command(server, made):
    def logs(*words):
        return run(build_dir() / "cloister", "sandbox", "logs", *words, "--data", server.data)

    box = server.create(network={"denyOut": ["192.0.2.0/24"]})["sandboxID"]
    made.append(box)
    command = [build_dir() / "cloister", "sandbox", "exec", "--data", server.data, box]
    assert run(*command, "curl -s http://192.0.2.1:81/").returncode != 0
    assert wait_for(lambda: "192.0.2.1" in logs(box).stdout.partition(" warn ")[2]), logs(box)
    assert server.api("DELETE", f"/sandboxes/{box}").status == 204
    head, *lines = logs(box).stdout.splitlines()
    assert head.split() == ["TIME", "LEVEL", "TEXT"]
    words = [line.split(maxsplit=2) for line in lines]
    assert [time for time, _, _ in words] == sorted(time for time, _, _ in words), lines
    assert words[0][1:] == ["info", words[0][2]] and "sandbox started from template" in words[0][2], lines
    assert any("started: /bin/bash" in text and "192.0.2.1:81" in text for _, _, text in words), lines
    assert any(level == "warn" and "denyOut has 192.0.2.0/24" in text for _, level, text in words), lines
    assert words[-1][1:] == ["info", "sandbox ended: request"], lines
    assert [line["message"] for line in json.loads(logs(box, "--json").stdout)][-1] == "sandbox ended: request"
    missing = logs("inowhere")
    assert missing.returncode == 4 and "no log of 'inowhere'" in missing.stderr, missing


def cli(server, noun, verb, *words):
    return run(build_dir() / "cloister", noun, verb, "--data", server.data, *words)


def test_a_sandbox_is_put_to_sleep_and_woken_on_the_command_line(server, made):
    box = server.create()
    sandbox_id = box["sandboxID"]
    made.append(sandbox_id)
    assert cli(server, "sandbox", "exec", sandbox_id, "echo kept >/home/user/note").returncode == 0
    for more, kept in ([], "files and processes"), (["--files-only"], "files"):
        paused = cli(server, "sandbox", "pause", sandbox_id, *more)
        assert paused.returncode == 0 and paused.stdout == f"{sandbox_id}\n", paused
        listed = [line.split() for line in cli(server, "sandbox", "list").stdout.splitlines()]
        assert next(line for line in listed if line[0] == sandbox_id)[2] == "paused", listed
        info = cli(server, "sandbox", "info", sandbox_id).stdout.splitlines()
        assert any(line.split(None, 1) == ["kept", kept] for line in info), info
        again = cli(server, "sandbox", "pause", sandbox_id)
        assert again.returncode == 5 and "already paused" in again.stderr, again
        woken = cli(server, "sandbox", "resume", sandbox_id, "--timeout", "60")
        assert woken.returncode == 0 and woken.stderr == "", woken
        assert cli(server, "sandbox", "exec", sandbox_id, "cat /home/user/note").stdout == "kept\n"
    running = cli(server, "sandbox", "resume", sandbox_id)
    assert running.returncode == 0 and "running already" in running.stderr, running
    assert cli(server, "sandbox", "pause", "inothere0000000000000").returncode == 4


def test_a_snapshot_is_made_listed_used_and_deleted_on_the_command_line(server, made):
    box = server.create()
    made.append(box["sandboxID"])
    assert cli(server, "sandbox", "exec", box["sandboxID"], "head -c 100000 /dev/zero >/home/user/data").returncode == 0
    snapshot = cli(server, "snapshot", "create", box["sandboxID"], "--name", "by-command", "--files-only")
    assert snapshot.returncode == 0, snapshot
    name = snapshot.stdout.strip()
    try:
        rows = json.loads(cli(server, "snapshot", "list", "--sandbox", box["sandboxID"], "--json").stdout)
        assert [row["snapshotID"] for row in rows] == [name]
        assert 100_000 <= rows[0]["diskBytes"] < 10_000_000 and rows[0]["memoryBytes"] == 0, rows
        assert rows[0]["sandboxID"] == box["sandboxID"] and rows[0]["createdAt"]
        listed = cli(server, "snapshot", "list")
        assert name in listed.stdout and "on disk" in listed.stderr, listed
        copy = cli(server, "sandbox", "create", name).stdout.strip()
        made.append(copy)
        assert cli(server, "sandbox", "exec", copy, "wc -c </home/user/data").stdout == "100000\n"
        refused = cli(server, "snapshot", "delete", name)
        assert refused.returncode == 5 and f"made from it ({copy})" in refused.stderr, refused
        assert cli(server, "sandbox", "kill", copy).returncode == 0
    finally:
        for sandbox_id in made[1:]:
            cli(server, "sandbox", "kill", sandbox_id)
        deleted = cli(server, "snapshot", "delete", name)
    assert deleted.returncode == 0, deleted
    assert cli(server, "snapshot", "delete", name).returncode == 4
