"""Scripts as the reader of a tutorial writes them, run as programs of their own with the code-interpreter SDK as it is."""

import pathlib
import subprocess
import sys

import pytest
from test_interpreter import FULL, has_template

pytest.importorskip("e2b_code_interpreter")


@pytest.fixture(params=["base", FULL])
def create(server, request):
    """The first line of every tutorial. The SDK asks for code-interpreter-v1 when no template is named."""
    if request.param == "base":
        return lambda *options: "Sandbox.create(" + ", ".join(["'base'", *options]) + ")"
    if not has_template(server, FULL):
        pytest.skip(f"there is no template {FULL}: cloister template build code-interpreter")
    return lambda *options: "Sandbox.create(" + ", ".join(options) + ")"


def run(server, script, folder):
    program = pathlib.Path(folder) / "tutorial.py"
    program.write_text(script)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=server.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sum_of_a_list(server, create, tmp_path):
    script = f"""
from e2b_code_interpreter import Sandbox

with {create()} as sandbox:
    execution = sandbox.run_code("numbers = [1, 2, 3, 4]\\nsum(numbers)")
    print(execution.text)
"""
    assert run(server, script, tmp_path) == "10\n"


def test_smoke(server, create, tmp_path):
    script = f"""
from e2b_code_interpreter import Sandbox

sandbox = {create()}
execution = sandbox.run_code('''
import sys, platform
print("Python", sys.version)
print(platform.platform())
''')
for line in execution.logs.stdout:
    print(line, end="")
assert execution.error is None
sandbox.kill()
"""
    said = run(server, script, tmp_path).splitlines()
    assert said[0].startswith("Python 3.") and said[-1].startswith("Linux-")


def test_a_json_file_is_uploaded_and_computed_from(server, create, tmp_path):
    script = f"""
import json
from e2b_code_interpreter import Sandbox

orders = [{{"item": "tea", "price": 3.5, "count": 2}}, {{"item": "cake", "price": 4.25, "count": 4}}]
with {create()} as sandbox:
    sandbox.files.write("/home/user/orders.json", json.dumps(orders))
    execution = sandbox.run_code('''
import json
with open("/home/user/orders.json") as f:
    orders = json.load(f)
sum(o["price"] * o["count"] for o in orders)
''')
    print(execution.text)
"""
    assert run(server, script, tmp_path) == "24.0\n"


def test_rows_of_a_csv_are_counted_and_a_file_is_read_back(server, create, tmp_path):
    (tmp_path / "data.csv").write_text("name,age\n" + "".join(f"person {i},{20 + i}\n" for i in range(37)))
    script = f"""
from e2b_code_interpreter import Sandbox

with {create()} as sandbox:
    with open("data.csv", "rb") as file:
        sandbox.files.write("data.csv", file)
    execution = sandbox.run_code('''
import csv
with open("data.csv") as f:
    rows = list(csv.DictReader(f))
with open("summary.txt", "w") as f:
    f.write(f"{{len(rows)}} rows, oldest {{max(int(r['age']) for r in rows)}}")
len(rows)
''')
    print(execution.text)
    print(sandbox.files.read("/home/user/summary.txt"))
"""
    assert run(server, script, tmp_path) == "37\n37 rows, oldest 56\n"


def test_a_red_team_payload_gets_nowhere(server, create, tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "do-not-tell")
    script = f"""
from e2b_code_interpreter import Sandbox

with {create("allow_internet_access=False")} as sandbox:
    execution = sandbox.run_code('''
import os, urllib.request
for name, value in sorted(os.environ.items()):
    print("env", name, value)
for url in ("http://example.com/", "http://169.254.169.254/latest/meta-data/"):
    try:
        urllib.request.urlopen(url, timeout=3)
        print("REACHED", url)
    except Exception as error:
        print("blocked", url)
''')
    print("".join(execution.logs.stdout))
    assert not execution.error
"""
    said = run(server, script, tmp_path)
    assert said.count("blocked") == 2 and "REACHED" not in said
    secrets = [server.key, "do-not-tell", *(path.read_text().strip() for path in server.data.glob("*-token"))]
    assert "env HOME /home/user" in said and not any(secret in said for secret in secrets)


def test_running_after_kill_raises(server, create, tmp_path):
    script = f"""
from e2b_code_interpreter import Sandbox, TimeoutException

sandbox = {create()}
print(sandbox.run_code("1 + 1").text)
sandbox.kill()
try:
    sandbox.run_code("1 + 1")
    print("it ran")
except TimeoutException as error:
    print("raised")
"""
    assert run(server, script, tmp_path) == "2\nraised\n"


def test_what_run_code_writes_is_the_users(server, create, tmp_path):
    script = f"""
from e2b_code_interpreter import Sandbox

with {create()} as sandbox:
    sandbox.run_code("open('/home/user/made.txt', 'w').write('x')")
    print(sandbox.files.get_info("/home/user/made.txt").owner)
    for path in ("/etc/x", "/root/x"):
        print(sandbox.run_code(f"open('{{path}}', 'w')").error.name)
"""
    assert run(server, script, tmp_path) == "user\nPermissionError\nPermissionError\n"
