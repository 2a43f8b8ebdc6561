"""langchain-e2b: its backend by hand, and a deep agent with a fake chat model."""

from checks import check, done, running
from deepagents import create_deep_agent
from e2b import Sandbox
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_e2b import E2BSandbox


class Script(GenericFakeChatModel):
    """Says the given messages, whatever the tools are."""

    def bind_tools(self, tools, **_):
        return self


def call(name, number, **arguments):
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": str(number)}])


with check("create", vital=True):
    backend = E2BSandbox(sandbox=Sandbox.create(timeout=300))
with check("run a command"):
    result = backend.execute("echo out; echo err >&2")
    assert (result.exit_code, result.output) == (0, "out\n\nerr\n"), result
with check("exit code"):
    assert backend.execute("exit 3").exit_code == 3
with check("files"):
    assert backend.write("/home/user/new/a.py", "one = 1\ntwo = 2\n").error is None
    assert backend.read("/home/user/new/a.py").file_data["content"] == "one = 1\ntwo = 2"
    assert [entry["path"] for entry in backend.ls("/home/user/new").entries] == ["/home/user/new/a.py"]
with check("edit"):
    assert backend.edit("/home/user/new/a.py", "two = 2", "two = 22").error is None
    assert backend.execute("python3 -c 'import sys; sys.path.append(\"new\"); import a; print(a.two)'").output == "22\n"
with check("grep and glob"):
    assert [match["line"] for match in backend.grep("two", "/home/user/new").matches] == [2]
    assert backend.glob("*.py", "/home/user/new").matches
with check("upload and download"):
    assert backend.upload_files([("/home/user/raw", bytes(range(256)))])[0].error is None
    assert backend.download_files(["/home/user/raw"])[0].content == bytes(range(256))
with check("file that is not there"):
    assert backend.download_files(["/home/user/none"])[0].error == "file_not_found"
with check("server in the background"):
    backend.execute("nohup python3 -m http.server 8000 >/dev/null 2>&1 &")
    assert "200" in backend.execute("sleep 1; curl -s -o /dev/null -w '%{http_code}' http://localhost:8000/").output
with check("timeout"):
    result = backend.execute("nohup python3 -m http.server 8001 >/dev/null 2>&1 & sleep 30", timeout=2)
    assert result.exit_code == 124 and "timed out" in result.output, result
with check("server left by a command that timed out"):
    assert "200" in backend.execute("curl -s -o /dev/null -w '%{http_code}' http://localhost:8001/").output
with check("agent"):
    script = [
        call("write_file", 1, file_path="/home/user/b.py", content="print(6 * 7)"),
        call("execute", 2, command="python3 /home/user/b.py"),
        call("read_file", 3, file_path="/home/user/b.py"),
        AIMessage("done"),
    ]
    agent = create_deep_agent(model=Script(messages=iter(script)), backend=backend)
    answers = agent.invoke({"messages": [("user", "go")]})["messages"]
    outputs = [str(message.content) for message in answers if message.type == "tool"]
    assert "42" in outputs[1] and "print(6 * 7)" in outputs[2] and answers[-1].content == "done", outputs
with check("kill"):
    backend._sandbox.kill()
    assert backend.id not in running()
done()
