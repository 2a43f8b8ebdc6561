"""`cloister template build DIR`: a Dockerfile, without root and without an SDK; and the same steps as the SDK's."""

import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import uuid

import pytest
from e2b import Sandbox, Template
from server import build_dir, wait_for

NOBODY = 65534
BUILT = re.compile(r"^Built in [0-9.]+ s: \d+ [KM]iB written by its steps, template [a-z0-9]{20}, build [0-9a-f-]{36}$", re.MULTILINE)


@pytest.fixture(autouse=True)
def others_may_enter():
    for directory in (build_dir(), *build_dir().parents):
        if not directory.stat().st_mode & 0o001:
            pytest.skip(f"the command is run as another user, who may not enter {directory}")


@pytest.fixture
def name(server):
    """A name that no other test uses; every template that begins with it is deleted afterwards."""
    prefix = f"e2e-{uuid.uuid4().hex[:12]}"
    yield prefix
    server.kill_all()
    for row in server.api("GET", "/templates").json:
        if any(alias.startswith(prefix) for alias in row["aliases"]):
            server.api("DELETE", f"/templates/{row['templateID']}")


@pytest.fixture
def project(tmp_path):
    """Writes a directory with a Dockerfile; everybody may read it."""
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to("/tmp") and path != pathlib.Path("/tmp"):
            path.chmod(0o755)

    def write(dockerfile, files=()):
        directory = tmp_path / f"p{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        for path, content in {"Dockerfile": dockerfile, **dict(files)}.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, pathlib.Path):
                target.symlink_to(content)
            else:
                target.write_text(content)
                target.chmod(0o644)
        return directory

    return write


def command(*words):
    return [str(build_dir() / "cloister"), "template", "build", *map(str, words)]


def client_of(server):
    """As any user of the API: the variables that `cloister env` prints, and no right to read the data directory."""
    return {"env": {**os.environ, **server.environment(), "TMPDIR": "/tmp"}, "user": NOBODY if os.geteuid() == 0 else None}


def build(server, *words, **options):
    return subprocess.run(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
        **{**client_of(server), **options},
    )


def steps_of(text):
    """[("RUN x", "cached" or a time)] of what was shown, without output."""
    return re.findall(r"^\[ *\d+/\d+\] (.*?)(?:  (cached|[0-9.]+ s))?$", text, re.MULTILINE)


DOCKERFILE = """\
# syntax=docker/dockerfile:1
FROM e2bdev/base
ARG GREETING=hello
ENV WHO="the world"
COPY --chmod=0755 app.sh data /app/
RUN echo "$GREETING $WHO" > /app/greeting && \\
    echo done with it
EXPOSE 8000
RUN useradd -m keeper
USER keeper
WORKDIR /app
CMD sleep 1234
"""
FILES = {
    "data/numbers": "1 2 3\n",
    "data/skipped.o": "x",
    ".dockerignore": "**/*.o\n",
    "data/link": pathlib.Path("numbers"),
}


def test_a_user_that_may_not_enter_the_workdir_begins_at_home(server, name, project):
    directory = project("FROM e2bdev/base\nRUN useradd -m keeper\nUSER keeper\n")  # without WORKDIR it is /home/user
    done = build(server, directory, "--name", name)
    assert done.returncode == 0, done.stderr
    with Sandbox.create(name, timeout=120) as box:
        assert box.commands.run("id -un; pwd").stdout == "keeper\n/home/keeper\n"


def test_a_dockerfile_becomes_a_template(server, name, project):
    directory = project(DOCKERFILE, {**FILES, "app.sh": f"echo {name}\n", "data/name": f"{name}\n"})
    done = build(server, directory, "--name", name, "--cpu", 1, "--memory", 512, "--ready", "pgrep sleep")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{name}\n"
    assert BUILT.search(done.stderr), done.stderr
    assert f"sandbox create {name}\n" in done.stderr
    assert f"{directory}/Dockerfile, line 8: EXPOSE is not needed" in done.stderr
    assert "Uploaded app.sh: 1 file, 1 KiB\n" in done.stderr and "Uploaded data: 3 files, 1 KiB\n" in done.stderr
    assert "    done with it\n" in done.stderr
    assert [text for text, _ in steps_of(done.stderr)] == [
        "FROM e2bdev/base",
        "ARG GREETING=hello",
        'ENV WHO="the world"',
        "COPY app.sh /app/",
        "COPY data /app/",
        'RUN echo "$GREETING $WHO" > /app/greeting && echo done with it',
        "RUN useradd -m keeper",
        "USER keeper",
        "WORKDIR /app",
        "start: sleep 1234",
    ]
    with Sandbox.create(name, timeout=120) as box:
        assert box.commands.run("whoami; pwd; ls; cat greeting link").stdout.split() == (
            "keeper /app app.sh greeting link name numbers hello the world 1 2 3".split()
        )
        assert box.commands.run("stat -c '%A %U' app.sh; pgrep -x sleep | wc -l").stdout.split() == ["-rwxr-xr-x", "root", "1"]
    row = next(row for row in server.api("GET", "/templates").json if name in row["aliases"])
    assert (row["cpuCount"], row["memoryMB"]) == (1, 512)


def test_what_has_not_changed_is_not_built_again(server, name, project):
    dockerfile = f"FROM e2bdev/base\nRUN echo {name}\nCOPY a /x/\nRUN cat /x/a\n"
    directory = project(dockerfile, {"a": f"one {name}\n"})
    first = build(server, directory, "--name", name)
    assert first.returncode == 0 and "Uploaded a:" in first.stderr, first.stderr
    second = build(server, directory, "--name", f"{name}:v2")
    assert second.returncode == 0 and second.stdout == f"{name}:v2\n", second.stderr
    assert [how for _, how in steps_of(second.stderr)] == ["cached"] * 4, second.stderr
    assert "Uploaded" not in second.stderr
    (directory / "a").write_text(f"two {name}\n")
    third = build(server, directory, "--name", name)
    assert [how == "cached" for _, how in steps_of(third.stderr)] == [True, True, False, False], third.stderr
    assert "Uploaded a:" in third.stderr and f"    two {name}\n" in third.stderr
    forced = build(server, directory / "Dockerfile", "--name", name, "--no-cache", "--json")
    assert "cached" not in forced.stderr.partition("\n")[2], forced.stderr
    answer = json.loads(forced.stdout)
    assert answer["name"] == name and len(answer["templateID"]) == 20 and uuid.UUID(answer["buildID"]), answer
    assert 0 < answer["stepBytes"] < 1 << 20, answer


def test_the_sdk_finds_the_steps_of_the_command_in_the_cache(server, name, project):
    dockerfile = f"FROM e2bdev/base\nENV N={name}\nCOPY --chown=user d/* /x/\nRUN echo $N > /x/n\nWORKDIR /x\n"
    directory = project(dockerfile, {"d/a": "one\n", "d/e/f": "two\n"})
    done = build(server, directory, "--name", name)
    assert done.returncode == 0, done.stderr
    lines = []
    recipe = Template(file_context_path=str(directory)).from_dockerfile(str(directory / "Dockerfile"))
    Template.build(recipe, f"{name}-sdk", on_build_logs=lines.append)
    steps = [line.message for line in lines if "[builder " in line.message]
    assert len(steps) == 7 and all(step.startswith("CACHED ") for step in steps), steps


def test_arguments_of_the_command_line(server, name, project):
    directory = project("ARG BASE=nosuch\nFROM e2bdev/$BASE\nARG V=1\nRUN echo v$V > /v\n")
    done = build(server, directory, "--name", name, "--build-arg", "V=2", "--build-arg=BASE=base", "--build-arg", "X=1")
    assert done.returncode == 0, done.stderr
    assert f"--build-arg X is not used: {directory}/Dockerfile has no ARG X" in done.stderr
    with Sandbox.create(name, timeout=120) as box:
        assert box.commands.run("cat /v").stdout == "v2\n"


def test_a_step_that_fails_names_its_line(server, name, project):
    directory = project("FROM e2bdev/base\n# why not\nRUN seq 30 && \\\n    echo oops >&2; exit 3\n")
    done = build(server, directory, "--name", name)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    shown = [line.strip() for line in done.stderr.splitlines()]
    assert [line for line in shown if line.isdigit()] == [str(i) for i in range(1, 31)], shown
    assert "oops" in shown and any(line.startswith("failed after ") for line in shown), shown
    assert shown[-2] == f"{directory}/Dockerfile:3: RUN seq 30 && \\", shown
    assert shown[-1].startswith(f"cloister: {directory}/Dockerfile, line 3: failed to run command 'seq 30 && ")
    assert shown[-1].endswith("exit status 3")
    missing = build(server, project(f"FROM {name}.invalid/nosuch\n"), "--name", name)
    assert missing.returncode == 2 and "Dockerfile, line 1: " in missing.stderr, missing.stderr


@pytest.mark.parametrize(
    "dockerfile, code, says",
    [
        ("FROM a\nFROM b\n", 2, "line 2: a second FROM"),
        ("FROM a\n\nFOO bar\n", 2, "line 3: unknown instruction: FOO"),
        ("FROM a\nCOPY --from=x a b\n", 2, "line 2: --from is not supported"),
        ("FROM a\nADD http://x/y /z\n", 2, "line 2: ADD of a URL is not supported"),
        ("FROM a\nRUN x\nCOPY nosuch /x\n", 4, "line 3: there is no nosuch in "),
        ("FROM a\nCOPY ../x /x\n", 2, "line 2: ../x is outside"),
        ("", 2, "there is no FROM"),
    ],
)
def test_a_bad_dockerfile_never_gets_to_the_server(server, project, dockerfile, code, says):
    before = server.api("GET", "/templates").json
    done = build(server, project(dockerfile))
    assert done.returncode == code and says in done.stderr, done.stderr
    assert server.api("GET", "/templates").json == before


def test_a_mistake_in_the_command_says_what_to_do(server, tmp_path, project):
    done = build(server, tmp_path / "nosuch")
    assert done.returncode == 4 and "there is no directory or Dockerfile" in done.stderr, done.stderr
    (tmp_path / "empty").mkdir()
    done = build(server, tmp_path / "empty")
    assert done.returncode == 4 and "there is no Dockerfile in" in done.stderr, done.stderr
    done = build(server, project("FROM a\n"), "--memory", "lots")
    assert done.returncode == 2 and "--memory needs a number" in done.stderr, done.stderr
    done = build(server, project("FROM a\n"), "--name", "No Name")
    assert done.returncode == 2 and "name" in done.stderr.lower(), done.stderr
    wrong = {**os.environ, **server.environment(), "E2B_API_KEY": "e2b_" + "0" * 40}
    done = build(server, project("FROM a\n"), env=wrong)
    assert done.returncode == 3 and "refuses the key" in done.stderr, done.stderr


def test_a_recipe_comes_before_a_directory_of_its_name(server, tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "Dockerfile").write_text("FOO\n")
    tmp_path.chmod(0o755)
    done = build(server, "--data", tmp_path / "data", "base", cwd=tmp_path)
    assert "needs root" in done.stderr or done.returncode == 3, done.stderr
    for words in (["code-interpreter-v1"], ["base", "--guestd", "/g"], ["--dns=127.0.0.1", "base"]):
        done = build(server, "--data", tmp_path / "data", *words, cwd=tmp_path)
        assert "needs root" in done.stderr or done.returncode == 3, (words, done.stderr)
    done = build(server, "base", "--config", tmp_path / "none", cwd=tmp_path)
    assert "configuration file" in done.stderr and "none" in done.stderr, done.stderr
    done = build(server, "./base", "--name", "base", cwd=tmp_path)
    assert done.returncode == 2 and "./base/Dockerfile, line 1: unknown instruction: FOO" in done.stderr, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_build(server, name, project, number):
    directory = project(f"FROM e2bdev/base\nRUN echo begun {name}; sleep 600\n")
    process = subprocess.Popen(
        command(directory, "--name", name), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **client_of(server)
    )
    shown = []
    for line in process.stderr:
        shown.append(line)
        if f"    begun {name}" in line:
            break
    process.send_signal(number)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number, (shown, rest)
    assert "stopped after" in rest and "interrupted; the build is cancelled" in rest, rest
    template = next(row for row in server.api("GET", "/templates").json if name in row["aliases"])["templateID"]

    def last():
        return server.api("GET", f"/templates/{template}").json["builds"][0]

    wait_for(lambda: last()["status"] == "error", 30)
    path = f"/templates/{template}/builds/{last()['buildID']}"
    assert server.api("GET", f"{path}/status").json["reason"]["message"] == "build was cancelled"
    assert server.api("DELETE", path).status == 409  # it does not run any more
    assert server.api("DELETE", f"/templates/{template}/builds/{uuid.uuid4()}").status == 404


def test_on_a_terminal_the_last_line_stands_below_the_step(server, name, project):
    directory = project(f"FROM e2bdev/base\nRUN echo one {name}; sleep 1; echo two; exit 1\n")
    line = " ".join(command(directory, "--name", name))
    environment = {**client_of(server)["env"], "TERM": "xterm", "SHELL": "/bin/sh"}
    done = subprocess.run(
        ["script", "-qec", f"stty cols 70; {line}", "/dev/null"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        timeout=300,
        check=False,
    )
    shown = done.stdout.decode()
    assert done.returncode == 2, shown
    screen = replay(shown, 70)
    assert screen[0] == "[1/2] FROM e2bdev/base  cached", screen
    assert re.fullmatch(r"\[2/2\] RUN echo one e2e-.*  failed after [0-9.]+ s", screen[1]), screen
    assert screen[2:4] == [f"    one {name}", "    two"], screen
    assert "\033[2m" in shown and "\033[31mfailed" in shown


def replay(text, width):
    """What is on the screen in the end, of the few sequences that we use."""
    rows, row, column = [""], 0, 0
    for piece in re.findall(r"\033\[\d*[A-Za-z]|.|\n", text, re.DOTALL):
        if piece == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif piece == "\r":
            column = 0
        elif piece == "\033[A":
            assert row > 0
            row -= 1
        elif piece == "\033[K":
            rows[row] = rows[row][:column]
        elif not piece.startswith("\033"):
            rows[row] = rows[row][:column].ljust(column) + piece + rows[row][column + 1 :]
            column += 1
            assert column < width or row > 1, rows[row]  # a step's line never wraps
    return rows


class Recorder(http.server.BaseHTTPRequestHandler):
    """A server that takes every build and remembers its recipe."""

    recipe = None

    def log_message(self, *_):
        pass

    def answer(self, status, body=None):
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v3/templates":
            ids = {"templateID": "t" * 20, "buildID": str(uuid.uuid4())}
            self.answer(202, {**ids, "public": False, "aliases": [body["name"]], "names": [], "tags": ["default"]})
        else:
            Recorder.recipe = body
            self.answer(202)

    def do_GET(self):
        if "/files/" in self.path:
            self.answer(201, {"present": True})
        else:
            self.answer(200, {"status": "ready", "logEntries": [], "logs": [], "templateID": "t", "buildID": "b"})


TREE = {
    "a.txt": "a\n",
    "b c.txt": "x",
    "dir/sub/x": "1",
    "dir/sub/x.py": "1",
    "dir/y.py": "2",
    "dir/.h": "3",
    "dir/l": pathlib.Path("y.py"),
    "ld": pathlib.Path("dir"),
    "dir.z": "q",
    ".dockerignore": "dir/sub\n!dir/sub/x.py\n**/*.z\n",
}
RECIPES = [
    "FROM e2bdev/base\nRUN pip install flask\nCOPY a.txt /app/\nWORKDIR /app\n",
    "# escape=`\nFROM u:22 AS b\nENV A=1 B=\"x y\" C='z $A' D=$A/${B:-q} E=a` b\nARG V=3 W X=\"q r\"\nRUN echo `\n  hi\n",
    'FROM a\nRUN a && \\\n  # c\n  b && \\\n\n  c\nRUN ["echo", "b c", "it\'s"]\nUSER "bob"\nWORKDIR /a/$B\nENV OLD of  it\n',
    'FROM a\nRUN <<EOF\necho 1\n\techo 2\nEOF\nRUN <<-EOF\n\ttab\n\tEOF\nRUN <<"X Y"\n#!/usr/bin/env python3\nprint(1)\nX Y\n',
    "FROM a\nRUN cat <<A > /1 && cat <<'B' > /2\none $x\nA\ntwo $y\nB\n",
    "FROM a\nCOPY <<EOF /x/y\nhi $W ${A:-b} \\$C `date` $(date) \\\\ ${Z#a\\*} $\nEOF\n",
    "FROM a\nCOPY --chmod=0644 --chown=a:b <<'E-F' <<-G /dir/\nlit $x\nE-F\n\ttabbed\n\tG\n",
    "FROM a\nCOPY --chown=user:grp --chmod=755 dir /d/\nCOPY dir/* /e/\nCOPY a.txt dir /f/\nADD . /all\nCOPY **/*.py /py/\n",
    "FROM a\nCOPY ld /ld\nCOPY ./dir/ /g\nCOPY dir/sub/../y.py /h\nCOPY ?.txt /i\nCOPY [ab].txt /j\nCOPY ** /k\n",
    'FROM a\nCOPY dir/** /k\nCOPY * /k\nCOPY */ /k\nCOPY ld/y.py /l\nCOPY "b c.txt" /q\\ r/\nCOPY ["b c.txt", "/x/"]\n',
    'FROM a\nENTRYPOINT ["python3", "-m", "http.server"]\nCMD ["80 00"]\n',
    "FROM a\nENTRYPOINT [\"x\"]\nCMD echo $HOME 'q'\nEXPOSE 80\nLABEL a=b\nHEALTHCHECK CMD x\n",
    "FROM a\nARG M=0755\nCOPY --chmod=$M a.txt /\nCOPY --chmod=${N:-700} a.txt /\n",
]


@pytest.mark.parametrize("dockerfile", RECIPES)
def test_the_steps_are_those_of_the_sdk(project, dockerfile):
    directory = project(dockerfile, TREE)
    recorder = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=recorder.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{recorder.server_port}"
        environment = {**os.environ, "E2B_API_KEY": "e2b_" + "0" * 40, "E2B_API_URL": url}
        done = subprocess.run(
            command(directory), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        recorder.shutdown()
        recorder.server_close()
    assert done.returncode == 0, done.stderr
    recipe = Template(file_context_path=str(directory)).from_dockerfile(str(directory / "Dockerfile"))
    assert what_counts(Recorder.recipe) == what_counts(json.loads(Template.to_json(recipe)))


def what_counts(recipe):
    steps = [(step["type"], step["args"], step.get("filesHash")) for step in recipe["steps"]]
    return recipe["fromImage"], recipe.get("startCmd"), recipe.get("readyCmd"), steps
