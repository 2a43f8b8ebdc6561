"""pydantic-ai-harness: its E2BSandbox as the workspace of an agent with Pydantic AI's function model, and by hand."""

import asyncio

import e2b
from checks import check, done, running
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.workspaces import WorkspaceRef, WorkspaceTimeoutError
from pydantic_ai_harness import E2BSandbox, Shell
from pydantic_ai_harness.e2b_sandbox import E2BSandboxBackend

run = asyncio.Runner().run
with check("create"):
    backend = E2BSandboxBackend(sandbox_timeout=300)
    assert run(backend.run(["echo", "hello"])).stdout == "hello\n"
    run(run(backend.get_sandbox()).kill())
with check("attach to a sandbox", vital=True):
    sandbox_id = run(e2b.AsyncSandbox.create(timeout=300)).sandbox_id
    reference = WorkspaceRef(provider="e2b", id=sandbox_id)
    backend = E2BSandbox(env={"GREETING": "hello"}, sandbox_timeout=300).backend(reference)
    assert run(backend.working_dir()) == "/home/user"
with check("run a command"):
    result = run(backend.run("echo $GREETING; echo err >&2", shell=True))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello\n", "err\n"), result
with check("exit code"):
    assert run(backend.run("exit 3", shell=True)).exit_code == 3
with check("files"):
    run(backend.make_dir("/home/user/new"))
    run(backend.write_bytes("/home/user/new/a.txt", b"one\n"))
    assert run(backend.read_bytes("/home/user/new/a.txt")) == b"one\n"
    assert [entry.name for entry in run(backend.list_dir("/home/user/new"))] == ["a.txt"]
    assert run(backend.stat("/home/user/new/a.txt")).size == 4
with check("remove"):
    run(backend.remove("/home/user/new/a.txt"))
    assert not run(backend.exists("/home/user/new/a.txt"))
with check("file that is not there"):
    try:
        run(backend.read_bytes("/home/user/none"))
        raise RuntimeError("there was no error")
    except FileNotFoundError:
        pass
with check("file that is a directory"):
    try:
        run(backend.read_bytes("/home/user"))
        raise RuntimeError("there was no error")
    except IsADirectoryError:
        pass
with check("timeout"):
    try:
        run(backend.run("echo begun; sleep 30", shell=True, timeout=2))
        raise RuntimeError("there was no error")
    except WorkspaceTimeoutError as error:
        assert error.stdout == "begun\n", error.stdout
    assert run(backend.run("pgrep -f '^sleep 30' | wc -l", shell=True)).stdout == "0\n"
with check("agent"):
    replies = [
        ModelResponse([ToolCallPart("run_command", {"command": "echo $((6 * 7))"})]),
        ModelResponse([TextPart("done")]),
    ]
    agent = Agent(FunctionModel(lambda *_: replies.pop(0)), capabilities=[E2BSandbox(sandbox_timeout=300), Shell()])
    result = run(agent.run("go", workspace=reference))
    parts = [part for message in result.all_messages() for part in message.parts]
    outputs = [part.content for part in parts if isinstance(part, ToolReturnPart)]
    assert "42" in str(outputs) and result.output == "done", outputs
with check("kill"):
    run(E2BSandbox().destroy(reference))
    assert sandbox_id not in running()
done()
