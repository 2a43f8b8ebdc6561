"""openai-agents: its E2B sandbox client by hand, and a SandboxAgent with the scripted model that it ships."""

import asyncio
import io
import pathlib

from agents import RunConfig, Runner
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions, E2BSandboxType
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call
from checks import check, done, fetch, running

run = asyncio.Runner().run
client = E2BSandboxClient()
here = pathlib.Path


def options(**more):
    return E2BSandboxClientOptions(**{"sandbox_type": E2BSandboxType.E2B, "timeout": 300, "on_timeout": "kill", **more})


def end(session):
    run(session._inner._sandbox.kill())


with check("create with the client's own defaults"):
    session = run(client.create(options=E2BSandboxClientOptions(sandbox_type=E2BSandboxType.E2B)))
    end(session)
with check("create", vital=True):
    manifest = Manifest(entries={"notes/a.txt": File(content=b"one\n")})
    session = run(client.create(manifest=manifest, options=options(envs={"GREETING": "hello"}, exposed_ports=(8000,))))
    sandbox_id = session._inner.state.sandbox_id
    run(session.start())
with check("run a command"):
    result = run(session.exec("echo $GREETING; echo err >&2"))
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"hello\n", b"err\n"), result
with check("exit code"):
    assert run(session.exec("exit 3")).exit_code == 3
with check("files"):
    assert run(session.read(here("notes/a.txt"))).read() == b"one\n"
    run(session.write(here("notes/b.txt"), io.BytesIO(b"two\n")))
    assert run(session.exec("cat notes/b.txt")).stdout == b"two\n"
    names = [here(entry.path).name for entry in run(session.ls("notes"))]
    assert sorted(name for name in names if name not in (".", "..")) == ["a.txt", "b.txt"], names
    run(session.rm("notes/b.txt"))
with check("file that is not there"):
    try:
        run(session.read(here("notes/none")))
        raise RuntimeError("there was no error")
    except Exception as error:
        assert "not" in str(error).lower(), error
with check("timeout"):
    try:
        run(session.exec("sleep 30", timeout=1))
        raise RuntimeError("there was no error")
    except Exception as error:
        assert "Timeout" in type(error).__name__, repr(error)
with check("terminal"):
    update = run(session.pty_exec_start("read name; echo hello $name", tty=True, yield_time_s=1))
    update = run(session.pty_write_stdin(session_id=update.process_id, chars="cloister\n", yield_time_s=2))
    assert b"hello cloister" in update.output, update
    run(session.pty_terminate_all())
with check("server in the background"):
    run(session.exec("nohup python3 -m http.server 8000 >/dev/null 2>&1 &"))
    endpoint = run(session.resolve_exposed_port(8000))
    assert "notes" in fetch(f"http://{endpoint.host}:{endpoint.port}/"), endpoint
with check("workspace as an archive"):
    archive = run(session.persist_workspace())
    run(session.exec("echo changed > notes/a.txt"))
    run(session.hydrate_workspace(io.BytesIO(archive.read())))
    assert run(session.read(here("notes/a.txt"))).read() == b"one\n"
with check("reconnect"):
    again = run(client.resume(session._inner.state))
    assert again._inner.state.sandbox_id == sandbox_id
    assert run(again.exec("cat notes/a.txt")).stdout == b"one\n"
with check("agent"):
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "echo $((6 * 7)) > answer; cat answer"}, call_id="1")],
            [assistant_message("done")],
        ]
    )
    agent = SandboxAgent(name="tester", model=model, capabilities=[Shell()])
    config = RunConfig(tracing_disabled=True, sandbox=SandboxRunConfig(session=session))
    result = run(Runner.run(agent, "go", run_config=config))
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "42" in str(outputs) and result.final_output == "done", outputs
with check("kill"):
    run(session.shutdown())
    assert sandbox_id not in running()
with check("workspace as a snapshot"):
    session = run(client.create(options=options(workspace_persistence="snapshot")))
    try:
        run(session.start())
        run(session.persist_workspace())
    finally:
        end(session)
with check("pause on exit"):
    session = run(client.create(options=options(pause_on_exit=True)))
    try:
        sandbox_id = session._inner.state.sandbox_id
        run(session.start())
        run(session._inner._sandbox.pause())  # what shutdown() does, which hides the error and kills
        assert run(client.resume(session._inner.state))._inner.state.sandbox_id == sandbox_id
    finally:
        end(session)
with check("MCP"):
    session = run(client.create(options=options(mcp={"duckduckgo": {}})))
    end(session)
with check("code interpreter sandbox"):
    session = run(client.create(options=options(sandbox_type=E2BSandboxType.CODE_INTERPRETER)))
    run(session.start())
    assert run(session.exec("python3 -c 'import pandas; print(pandas.__name__)'")).stdout == b"pandas\n"
    end(session)
done()
