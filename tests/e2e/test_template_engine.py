"""What builds of templates promise beside their recipes: built once, short chains, no rest, defaults that stay."""

import contextlib
import pathlib
import signal
import threading
import uuid

import pytest
from e2b import Sandbox, Template
from server import wait_for

LAYERS_MOST = 128


@pytest.fixture
def name(server):
    """A name that no other test uses; every template that begins with it is deleted afterwards."""
    prefix = f"e2e-{uuid.uuid4().hex[:12]}"
    yield prefix
    server.kill_all()
    for row in server.api("GET", "/templates").json:
        if any(alias.startswith(prefix) for alias in row["aliases"]):
            server.api("DELETE", f"/templates/{row['templateID']}")


def build(recipe, name):
    lines = []
    Template.build(recipe, name, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
    return [line.message for line in lines]


def test_the_same_recipe_at_the_same_time_is_built_once(server, name):
    recipe = Template().from_template("base").run_cmd(f"sleep 1; cat /proc/sys/kernel/random/uuid > ~/{name}")
    lines = {}

    def run(which):
        lines[which] = build(recipe, f"{name}-{which}")

    threads = [threading.Thread(target=run, args=(which,)) for which in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(line.startswith("CACHED [builder 1/1]") for log in lines.values() for line in log) == 1, lines
    made = set()
    for which in (1, 2):
        with Sandbox.create(f"{name}-{which}", timeout=120) as box:
            made.add(box.commands.run(f"cat ~/{name}").stdout)
    assert len(made) == 1
    assert server.api("GET", "/sandboxes").json == []  # those of steps are never listed, and are gone


def test_more_steps_than_a_sandbox_can_have_layers(server, name):
    recipe = Template().from_template("base")
    for i in range(LAYERS_MOST + 10):
        recipe = recipe.run_cmd(f"echo {i} > ~/file{i}; rm -f ~/file{i - 2}")
    build(recipe, name)
    with Sandbox.create(name, timeout=120) as box:
        assert sorted(box.commands.run("ls ~").stdout.split()) == [f"file{LAYERS_MOST + 8}", f"file{LAYERS_MOST + 9}"]
        assert box.commands.run(f"cat ~/file{LAYERS_MOST + 9}").stdout.strip() == str(LAYERS_MOST + 9)


def test_a_template_of_a_hundred_layers_is_like_any_other(server, name):
    recipe = Template().from_template("base").run_cmd("mkdir ~/d && touch ~/d/first")
    for i in range(100):
        recipe = recipe.run_cmd(f"echo {i} | tee ~/file{i} > ~/last; rm -f ~/file{i - 7}")
    recipe = recipe.run_cmd("rm -r ~/d && echo file > ~/d && rm ~/d && mkdir ~/d && touch ~/d/second")
    build(recipe, name)
    look = "cd; find * -type f | sort; cat last"
    seen = "\n".join(["d/second", *(f"file{i}" for i in range(93, 100)), "last", "99\n"])
    with Sandbox.create(name, timeout=120) as box:
        assert (server.data / "sandboxes" / box.sandbox_id / "state").read_text().count("\nlayer ") > 100
        assert box.commands.run(look).stdout == seen
        sleeper = box.commands.run("sleep 3600", background=True)
        box.pause()
        again = Sandbox.connect(box.sandbox_id, timeout=120)
        assert again.commands.run(look).stdout == seen
        assert again.commands.run(f"cat /proc/{sleeper.pid}/comm").stdout == "sleep\n"
        snapshot = again.create_snapshot()
        with Sandbox.create(snapshot.snapshot_id, timeout=120) as copy:
            assert copy.commands.run(look).stdout == seen
        Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_the_defaults_of_a_template_outlive_pause_and_snapshot(server, name):
    build(Template().from_template("base").set_workdir("/srv/app").set_user("worker"), name)
    with Sandbox.create(name, timeout=120) as box:
        assert box.commands.run("id -un; pwd").stdout == "worker\n/srv/app\n"
        snapshot = box.create_snapshot()
        with Sandbox.create(snapshot.snapshot_id, timeout=120) as copy:
            assert copy.commands.run("id -un; pwd").stdout == "worker\n/srv/app\n"
        Sandbox.delete_snapshot(snapshot.snapshot_id)
        assert server.api("POST", f"/sandboxes/{box.sandbox_id}/pause", {"memory": False}).status == 204
        again = Sandbox.connect(box.sandbox_id, timeout=120)
        assert again.commands.run("id -un; pwd").stdout == "worker\n/srv/app\n"


def test_a_build_that_writes_nothing_outlives_what_it_is_from(server, name):
    with Sandbox.create("base", timeout=120) as box:
        box.commands.run(f"echo {name} > ~/mark")
        snapshot = box.create_snapshot()
    build(Template().from_template(snapshot.snapshot_id).set_envs({"A": "1"}), name)
    Sandbox.delete_snapshot(snapshot.snapshot_id)
    server.stop()  # the next start removes layers that nothing holds
    server.start_when_free()
    with Sandbox.create(name, timeout=120) as box:
        assert box.commands.run("cat ~/mark").stdout.strip() == name


def processes_of(sandbox_id):
    """By their cgroups, which have its name."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):  # it has just ended
            if sandbox_id in path.read_text():
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_build_ends_with_its_server(server, name, number):
    """Its sandbox too: nobody could use it, and no server would end it at its deadline."""
    before = {path.name for path in (server.data / "sandboxes").iterdir()}
    recipe = Template().from_template("base").run_cmd(f"echo {name}; sleep 1000")
    info = Template.build_in_background(recipe, name, cpu_count=1, memory_mb=512)
    status = f"/templates/{info.template_id}/builds/{info.build_id}/status?logsOffset=0"

    def runs():
        return any(f"[stdout]: {name}" in line["message"] for line in server.api("GET", status).json["logEntries"])

    assert wait_for(runs), server.api("GET", status)
    ours = [path.name for path in (server.data / "sandboxes").iterdir() if path.name not in before]
    assert any(processes_of(sandbox_id) for sandbox_id in ours), ours
    server.process.send_signal(number)
    assert server.process.wait(60) == 0
    assert wait_for(lambda: not any(processes_of(sandbox_id) for sandbox_id in ours)), ours
    assert "sandbox runs on" not in server.log_tail(), server.log_tail()
    server.start_when_free()
    ended = server.api("GET", status).json
    assert ended["status"] == "error"
    assert ended["reason"]["message"] == "the server was stopped during the build: start it again"
    # Said by the server that was stopped, and not found out by the next one.
    assert ended["logEntries"][-1]["message"].startswith("Build failed: the server was stopped"), ended
