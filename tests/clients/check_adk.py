"""google-adk: its E2BEnvironment by hand, and an agent with a model that answers from a script."""

import asyncio

from checks import check, done, running
from google.adk.agents import LlmAgent
from google.adk.integrations.e2b import E2BEnvironment
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types

run = asyncio.Runner().run


class Script(BaseLlm):
    """Says the given parts, one a turn."""

    parts: list

    async def generate_content_async(self, llm_request, stream=False):
        yield LlmResponse(content=types.Content(role="model", parts=[self.parts.pop(0)]))


def call(name, **arguments):
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


with check("create", vital=True):
    environment = E2BEnvironment(env_vars={"GREETING": "hello"})
    run(environment.initialize())
    sandbox_id = environment._sandbox.sandbox_id
with check("run a command"):
    result = run(environment.execute("echo $GREETING; echo err >&2"))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello\n", "err\n"), result
with check("exit code"):
    assert run(environment.execute("exit 3")).exit_code == 3
with check("files"):
    run(environment.write_file("new/a.txt", "one\n"))
    assert run(environment.read_file("new/a.txt")) == b"one\n"
with check("state across calls"):
    run(environment.execute("echo two >> new/a.txt"))
    assert run(environment.read_file("/home/user/new/a.txt")) == b"one\ntwo\n"
with check("file that is not there"):
    try:
        run(environment.read_file("none"))
        raise RuntimeError("there was no error")
    except FileNotFoundError:
        pass
with check("server in the background"):
    run(environment.execute("nohup python3 -m http.server 8000 >/dev/null 2>&1 &"))
    result = run(environment.execute("sleep 1; curl -s -o /dev/null -w '%{http_code}' http://localhost:8000/"))
    assert result.stdout == "200", result
with check("timeout"):
    assert run(environment.execute("nohup python3 -m http.server 8001 >/dev/null 2>&1 & sleep 30", timeout=2)).timed_out
with check("server left by a command that timed out"):
    result = run(environment.execute("curl -s -o /dev/null -w '%{http_code}' http://localhost:8001/"))
    assert result.stdout == "200", result
with check("agent"):
    script = Script(
        model="script",
        parts=[
            call("WriteFile", path="b.py", content="print(6 * 7)"),
            call("Execute", command="python3 b.py"),
            types.Part(text="done"),
        ],
    )
    agent = LlmAgent(name="tester", model=script, tools=[EnvironmentToolset(environment=environment)])

    async def talk():
        runner = InMemoryRunner(agent)
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="u")
        question = types.Content(role="user", parts=[types.Part(text="go")])
        return [event async for event in runner.run_async(user_id="u", session_id=session.id, new_message=question)]

    events = run(talk())
    answers = [response.response for event in events for response in event.get_function_responses()]
    assert "42" in str(answers[-1]), answers
with check("close"):
    run(environment.close())
    assert sandbox_id not in running()
with check("new sandbox after the old one ended"):
    environment = E2BEnvironment()
    run(environment.initialize())
    first = environment._sandbox.sandbox_id
    run(environment._sandbox.kill())
    assert run(environment.execute("echo again")).stdout == "again\n"
    assert environment._sandbox.sandbox_id != first
    run(environment.close())
done()
