"""smolagents: its E2BExecutor by hand, and a CodeAgent with a model that answers from a script."""

from checks import check, done, running
from smolagents import CodeAgent, LogLevel, Model, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import E2BExecutor


class Script(Model):
    """Says the given code, one piece a step."""

    def __init__(self, *pieces):
        super().__init__(model_id="script")
        self.pieces = list(pieces)

    def generate(self, messages, **_):
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on\n<code>\n{self.pieces.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: what to double
    """
    return number * 2


logger = AgentLogger(level=LogLevel.OFF)
with check("create", vital=True):
    executor = E2BExecutor([], logger)
with check("run code"):
    assert executor("6 * 7").output == "42"
with check("state across calls"):
    executor("x = [1, 2, 3]")
    assert executor("sum(x)").output == "6"
with check("output"):
    assert "hello" in executor("print('hello')").logs
with check("error of user code"):
    try:
        executor("1 / 0")
        raise RuntimeError("there was no error")
    except Exception as error:
        assert "ZeroDivisionError" in str(error), error
with check("variables"):
    executor.send_variables({"name": "cloister", "numbers": [1, 2]})
    assert executor("name + str(numbers)").output == "cloister[1, 2]"
with check("files"):
    executor("open('/home/user/a.txt', 'w').write('text')")
    assert executor("open('/home/user/a.txt').read()").output == "text"
with check("picture"):
    chart = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.gcf()"
    assert executor(chart).output.size[0] > 100
with check("kill"):
    sandbox_id = executor.sandbox.sandbox_id
    assert sandbox_id in running()
    executor.cleanup()
    assert sandbox_id not in running()
with check("agent"):
    model = Script("y = double(number=20) + 2\nprint(y)", "final_answer(y)")
    options = {"executor_type": "e2b", "max_steps": 3, "verbosity_level": LogLevel.OFF}
    with CodeAgent(tools=[double], model=model, **options) as agent:
        assert agent.run("what is 42?") == 42
with check("imports installed by pip"):
    executor = E2BExecutor(["cowsay"], logger)
    try:
        executor("import cowsay")
    except Exception:
        # The reason: smolagents does not pass on what pip has printed.
        again = "subprocess.run(['pip', 'install', 'cowsay'], capture_output=True, text=True)"
        executor(f"import subprocess\nraise Exception({again}.stderr)")
        raise
    finally:
        executor.cleanup()
done()
