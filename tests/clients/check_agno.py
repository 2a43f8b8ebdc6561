"""agno: the methods of E2BTools, as its agents call them."""

import json
import pathlib
import tempfile

from agno.tools.e2b import E2BTools
from checks import check, done, fetch, running, wait_for

with check("create", vital=True):
    tools = E2BTools(timeout=300)
with check("run code"):
    assert "42" in tools.run_python_code("print(6 * 7)")
with check("state across calls"):
    tools.run_python_code("x = [1, 2, 3]")
    assert "Result 1: 6" in tools.run_python_code("sum(x)")
with check("error of user code"):
    assert tools.run_python_code("1 / 0").startswith("Error: ZeroDivisionError")
with check("picture"):
    tools.run_python_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()")
    made = tools.download_png_result(None)
    picture = pathlib.Path(made.images[0].filepath)
    assert picture.read_bytes().startswith(b"\x89PNG"), made
    picture.unlink()
with check("chart data"):
    # Not by download_chart_data, which takes the SDK's chart for a dictionary.
    assert tools.last_execution.results[0].chart.type.value == "line"
with check("run a command"):
    assert json.loads(tools.run_command("echo out; echo err >&2")) == ["STDOUT:\nout\n", "STDERR:\nerr\n"]
with check("streamed output"):
    assert json.loads(tools.stream_command("echo a; echo b")) in (["STDOUT: a\nb\n"], ["STDOUT: a\n", "STDOUT: b\n"])
with check("exit code"):
    assert "exited with code 3" in json.loads(tools.run_command("exit 3"))["message"]
with check("files"):
    assert tools.write_file_content("/home/user/a.txt", "text") == "/home/user/a.txt"
    assert tools.read_file_content("/home/user/a.txt") == "text"
    assert "a.txt" in tools.list_files("/home/user")
with check("upload"):
    with tempfile.NamedTemporaryFile(suffix=".bin") as local:
        local.write(bytes(range(256)))
        local.flush()
        assert tools.upload_file(local.name, "/home/user/up.bin") == "/home/user/up.bin"
    assert "256" in tools.run_command("stat -c %s /home/user/up.bin")
with check("file that is not there"):
    assert json.loads(tools.read_file_content("/home/user/none"))["status"] == "error"
with check("background command"):
    command = tools.run_background_command("sleep 100")
    assert "sleep 100" in tools.run_command("pgrep -fa '^sleep'")
    assert "terminated" in tools.kill_background_command(command)
    wait_for(lambda: "sleep 100" not in tools.run_command("pgrep -fa '^sleep' || true"))
with check("server with a URL"):
    url = tools.run_server("python3 -m http.server 8000 --directory /home/user", 8000)
    assert "a.txt" in fetch(url)
with check("sandbox timeout"):
    assert tools.set_sandbox_timeout(120) == "120"
with check("kill"):
    assert json.loads(tools.shutdown_sandbox())["status"] == "success"
    assert tools.sandbox.sandbox_id not in running()
done()
