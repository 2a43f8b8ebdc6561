"""e2b-haystack: its toolset by hand, and an Agent with Haystack's mock generator."""

from checks import check, done, running
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack_integrations.tools.e2b import E2BToolset

toolset = E2BToolset(environment_vars={"GREETING": "hello"})
tools = {tool.name: tool for tool in toolset}


def bash(command, **options):
    return tools["run_bash_command"].invoke(command=command, **options)


with check("create", vital=True):
    toolset.warm_up()
    sandbox_id = toolset.sandbox._sandbox.sandbox_id
with check("run a command"):
    assert bash("echo out; echo err >&2") == "exit_code: 0\nstdout:\nout\n\nstderr:\nerr\n"
with check("environment"):
    assert "hello" in bash("echo $GREETING")
with check("exit code"):
    assert bash("exit 3").startswith("exit_code: 3\n")
with check("files"):
    tools["write_file"].invoke(path="/home/user/new/a.txt", content="one\n")
    assert tools["read_file"].invoke(path="/home/user/new/a.txt") == "one\n"
    bash("mkdir /home/user/new/sub")
    listed = tools["list_directory"].invoke(path="/home/user/new").split()
    assert sorted(name.rstrip("/") for name in listed) == ["a.txt", "sub"], listed
with check("state across calls"):
    bash("echo two >> /home/user/new/a.txt")
    assert tools["read_file"].invoke(path="/home/user/new/a.txt") == "one\ntwo\n"
with check("file that is not there"):
    try:
        tools["read_file"].invoke(path="/home/user/none")
        raise RuntimeError("there was no error")
    except Exception as error:
        assert "Failed to read file" in str(error), error
with check("server in the background"):
    bash("nohup python3 -m http.server 8000 >/dev/null 2>&1 &")
    assert "200" in bash("sleep 1; curl -s -o /dev/null -w '%{http_code}' http://localhost:8000/")
with check("timeout"):
    try:
        bash("nohup python3 -m http.server 8001 >/dev/null 2>&1 & sleep 30", timeout=2)
        raise RuntimeError("there was no error")
    except Exception as error:
        assert "timeout" in str(error).lower() or "timed out" in str(error).lower(), error
with check("server left by a command that timed out"):
    assert "200" in bash("curl -s -o /dev/null -w '%{http_code}' http://localhost:8001/")
with check("agent"):
    call = ToolCall(tool_name="run_bash_command", arguments={"command": "echo $((6 * 7))"}, id="1")
    mock = MockChatGenerator(responses=[ChatMessage.from_assistant(tool_calls=[call]), "done"])
    result = Agent(chat_generator=mock, tools=toolset).run(messages=[ChatMessage.from_user("compute")])
    outputs = [part.result for message in result["messages"] for part in message.tool_call_results]
    assert "42" in str(outputs) and result["last_message"].text == "done", result
with check("close"):
    toolset.warm_up()  # the agent may have closed it
    toolset.close()
    assert sandbox_id not in running()
done()
