"""crewai-tools: its three E2B tools, run as its agents run them."""

from checks import check, done, running
from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool

with check("command in a sandbox of its own", vital=True):
    before = set(running())
    result = E2BExecTool().run(command="echo out; echo err >&2")
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (0, "out\n", "err\n"), result
    assert set(running()) <= before, "the sandbox is still there"
with check("create a sandbox that stays"):
    shell = E2BExecTool(persistent=True, envs={"GREETING": "hello"})
    assert shell.run(command="echo $GREETING")["stdout"] == "hello\n"
    sandbox_id = shell._persistent_sandbox.sandbox_id
with check("files"):
    files = E2BFileTool(sandbox_id=sandbox_id)
    assert files.run(action="write", path="/home/user/new/a.txt", content="one\n")["bytes"] == 4
    # No "append": it passes a bytearray on, which the SDK that it pins does not take.
    assert files.run(action="read", path="/home/user/new/a.txt")["content"] == "one\n"
    assert [entry["name"] for entry in files.run(action="list", path="/home/user/new")["entries"]] == ["a.txt"]
    assert files.run(action="info", path="/home/user/new/a.txt")["size"] == 4
    files.run(action="mkdir", path="/home/user/sub")
    files.run(action="delete", path="/home/user/new/a.txt")
    assert not files.run(action="exists", path="/home/user/new/a.txt")["exists"]
with check("bytes"):
    files.run(action="write", path="/home/user/raw", content="AP8=", binary=True)
    assert files.run(action="read", path="/home/user/raw", binary=True)["content"] == "AP8="
with check("state across calls"):
    shell.run(command="echo kept > /home/user/kept")
    assert shell.run(command="cat kept", cwd="/home/user")["stdout"] == "kept\n"
with check("exit code"):
    try:
        shell.run(command="exit 3")
        raise RuntimeError("there was no error")
    except Exception as error:
        assert "code 3" in str(error), error
with check("timeout"):
    try:
        shell.run(command="sleep 30", timeout=1)
        raise RuntimeError("there was no error")
    except Exception as error:
        # The SDK that it pins stops reading at the same moment, and either end may be first.
        assert "deadline exceeded" in str(error) or "timed out" in str(error), error
with check("close"):
    shell.close()
    assert sandbox_id not in running()
with check("run code"):
    python = E2BPythonTool(persistent=True)
    python.run(code="x = [1, 2, 3]")
    assert python.run(code="sum(x)")["text"] == "6"
    assert python.run(code="1 / 0")["error"]["name"] == "ZeroDivisionError"
    python.close()
done()
