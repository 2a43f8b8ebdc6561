"""run_code, with the code-interpreter SDK as it is: state, errors, streams, contexts, and what tries to break them.

Everything that needs no package runs in `base` and, where it is built, in `code-interpreter-v1`; pictures, tables and other
languages only in the latter.
"""

import asyncio
import base64
import pathlib
import threading
import time

import pytest

e2b_code_interpreter = pytest.importorskip("e2b_code_interpreter")

from e2b_code_interpreter import AsyncSandbox, NotFoundException, Sandbox, SandboxException  # noqa: E402
from server import wait_for  # noqa: E402

FULL = "code-interpreter-v1"


def has_template(server, name):
    return any(name in (t.get("aliases") or t.get("names") or []) for t in server.api("GET", "/templates").json)


@pytest.fixture(scope="module", params=["base", FULL])
def box(server, request):
    if request.param != "base" and not has_template(server, request.param):
        pytest.skip(f"there is no template {request.param}: cloister template build code-interpreter")
    made = Sandbox.create(request.param, timeout=900)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def full(server):
    if not has_template(server, FULL):
        pytest.skip(f"there is no template {FULL}: cloister template build code-interpreter")
    made = Sandbox.create(FULL, timeout=900)
    yield made
    made.kill()


@pytest.fixture
def context(box):
    made = box.create_code_context()
    yield made
    try:
        box.remove_code_context(made)
    except NotFoundException:
        pass


def text(box, code, **options):
    result = box.run_code(code, **options)
    assert not result.error, result.error
    return result.text


# ---- what a tutorial shows ----


def test_the_value_of_the_last_expression_comes_back(box):
    assert text(box, "sum([1, 2, 3])") == "6"


def test_state_stays_between_cells(box, context):
    assert text(box, "x = 41", context=context) is None
    assert text(box, "x + 1", context=context) == "42"


def test_a_string_is_sent_without_its_quotes(box):
    assert text(box, "'abc'") == "abc"


def test_none_and_a_semicolon_give_no_result(box):
    assert box.run_code("None").results == [] and box.run_code("1;").results == []


def test_print_is_one_line_and_stderr_is_apart(box):
    result = box.run_code("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (result.logs.stdout, result.logs.stderr) == (["out\n"], ["err\n"])


def test_callbacks_hear_everything(box):
    out, err, results, errors = [], [], [], []
    box.run_code(
        "import sys\nprint('a')\nprint('b', file=sys.stderr)\n1/0",
        on_stdout=lambda m: out.append(m.line),
        on_stderr=lambda m: err.append(m.line),
        on_result=results.append,
        on_error=errors.append,
    )
    assert (out, err, results, [e.name for e in errors]) == (["a\n"], ["b\n"], [], ["ZeroDivisionError"])


def test_cells_are_counted(box, context):
    assert [box.run_code("1", context=context).execution_count for _ in range(3)] == [1, 2, 3]


def test_await_works_at_top_level(box):
    assert text(box, "import asyncio\nawait asyncio.sleep(0.01)\nawait asyncio.sleep(0, 'done')") == "done"


def test_an_indented_snippet_runs(box):
    assert text(box, "    x = 1\n    if x:\n        x += 1\n    x") == "2"


def test_a_list_comes_as_json_too_and_nan_is_null(box):
    result = box.run_code("[1, float('nan'), {'a': 2**80}]").results[0]
    assert result.json == [1, None, {"a": 2**80}]


def test_text_of_any_script_arrives_whole(box):
    words = "ünïcödé ☃ 🦄 \u2028 \x85 'quoted'"
    result = box.run_code(f"print({words!r}); {words!r}")
    assert "".join(result.logs.stdout) == words + "\n" and "☃ 🦄" in result.text


def test_a_shell_command_can_be_run_from_a_cell(box):
    assert "".join(box.run_code("!echo from $((1 + 1))").logs.stdout) == "from 2\n"


def test_output_of_subprocesses_and_c_code_is_not_lost(box):
    code = "import os, subprocess\nprint('1')\nsubprocess.run(['echo', '2'])\nos.write(1, b'3\\n')\nprint('4')"
    assert "".join(box.run_code(code).logs.stdout) == "1\n2\n3\n4\n"


def test_code_runs_as_user_in_its_home(box):
    assert text(box, "import os; [os.getuid(), os.getcwd(), os.environ['HOME']]") == "[1000, '/home/user', '/home/user']"
    text(box, "open('made-here', 'w').write('x')")
    assert box.commands.run("stat -c %U /home/user/made-here").stdout == "user\n"


@pytest.mark.parametrize("path", ["/etc/x", "/root/x"])
def test_files_of_root_cannot_be_written(box, path):
    assert box.run_code(f"open({path!r}, 'w')").error.name == "PermissionError"


def test_a_file_written_by_the_sdk_is_read_by_a_cell(box):
    box.files.write("/home/user/numbers.json", '{"numbers": [1, 2, 3]}')
    assert text(box, "import json; sum(json.load(open('numbers.json'))['numbers'])") == "6"


def test_the_environment_holds_nothing_of_the_host(box):
    names = set(eval(text(box, "import os; sorted(os.environ)")))
    allowed = {"PATH", "HOME", "USER", "LOGNAME", "LANG", "E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"}
    allowed |= {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}  # for mail's names by https
    assert names <= allowed, names - allowed


def test_nothing_outside_is_reachable_when_internet_is_off(server):
    with Sandbox.create("base", timeout=60, allow_internet_access=False) as offline:
        code = (
            "import socket\n"
            "def reach(host, port):\n"
            "    try:\n"
            "        with socket.create_connection((host, port), 2) as s:\n"
            "            s.sendall(b'x')\n"  # egress accepts a connection before it refuses it
            "            s.recv(1)\n"
            "        return 'reached'\n"
            "    except OSError as e:\n"
            "        return 'blocked'\n"
            "[reach('1.1.1.1', 443), reach('example.com', 80), reach('169.254.169.254', 80)]"
        )
        assert text(offline, code) == "['blocked', 'blocked', 'blocked']"


def test_running_after_kill_raises(server):
    gone = Sandbox.create("base", timeout=60)
    gone.kill()
    with pytest.raises(Exception):
        gone.run_code("1")


def test_async_works_alike(server):
    async def go():
        made = await AsyncSandbox.create("base", timeout=60)
        try:
            lines = []
            first, second = await asyncio.gather(
                made.run_code("print('a'); 1", on_stdout=lambda m: lines.append(m.line)), made.run_code("2")
            )
            return first.text, second.text, lines
        finally:
            await made.kill()

    assert asyncio.run(go()) == ("1", "2", ["a\n"])


# ---- variables ----


@pytest.mark.parametrize("value", ["plain", "it's", 'a "quote"', "two\nlines", "ünï ☃", "back\\slash", ""])
def test_a_variable_is_there_for_one_cell_whatever_it_holds(box, context, value):
    code = "import os; os.environ.get('FOO')"
    assert box.run_code(code + " == " + repr(value), envs={"FOO": value}, context=context).text == "True"
    assert box.run_code(code, context=context).text is None


def test_a_variable_of_the_sandbox_comes_back_after_being_overridden(server):
    with Sandbox.create("base", timeout=60, envs={"FOO": "mine"}) as made:
        code = "import os; os.environ['FOO']"
        assert [text(made, code), text(made, code, envs={"FOO": "other"}), text(made, code)] == ["mine", "other", "mine"]


# ---- contexts ----


def test_contexts_are_apart(box):
    one, two = box.create_code_context(), box.create_code_context()
    text(box, "x = 1", context=one)
    assert box.run_code("x", context=two).error.name == "NameError"
    assert [c.id for c in box.list_code_contexts()][-2:] == [one.id, two.id]
    box.remove_code_context(one)
    box.remove_code_context(two)
    with pytest.raises(NotFoundException):
        box.run_code("1", context=one)


def test_a_restart_forgets_variables_and_keeps_id_and_directory(box):
    made = box.create_code_context(cwd="/tmp")
    text(box, "x = 1", context=made)
    box.restart_code_context(made)
    assert box.run_code("x", context=made).error.name == "NameError"
    assert text(box, "import os; os.getcwd()", context=made) == "/tmp"
    box.remove_code_context(made)


def test_the_default_context_can_be_removed_and_comes_back(box):
    default = box.list_code_contexts()[0]
    box.remove_code_context(default)
    assert text(box, "1 + 1") == "2" and text(box, "2 + 2", language="python") == "4"


def test_a_directory_that_is_missing_is_an_error(box):
    with pytest.raises(SandboxException, match="cannot be used"):
        box.create_code_context(cwd="/no/such/directory")


def test_stderr_names_a_directory_that_the_user_may_not_enter(box):
    made = box.create_code_context(cwd="/root")
    assert made.cwd == "/root"
    result = box.run_code("1", context=made)
    assert result.text == "1" and "/root" in "".join(result.logs.stderr)
    box.remove_code_context(made)


def test_an_unknown_language_says_which_there_are(box):
    with pytest.raises(SandboxException, match="there are: python"):
        box.run_code("1", language="cobol")


def test_an_unknown_context_is_not_found(box):
    with pytest.raises(NotFoundException, match="not found"):
        box.run_code("1", context=type("C", (), {"id": "no-such-context"})())


# ---- faults ----


def test_a_syntax_error_is_an_error_object(box):
    error = box.run_code("def f(:").error
    assert error.name == "SyntaxError" and "def f(:" in error.traceback


def test_recursion_is_an_error_object(box):
    assert box.run_code("def f(): f()\nf()").error.name == "RecursionError"


def test_input_says_that_nobody_can_type(box):
    assert "a cell has no standard input" in box.run_code("input('name? ')").error.value


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os._exit(3)", "status 3"),
        ("import ctypes; ctypes.string_at(0)", "signal 11"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
def test_a_crash_is_an_error_and_the_next_cell_runs_at_once(box, context, code, why):
    other = text(box, "kept = 'here'")
    for _ in range(3):
        error = box.run_code(code, context=context).error
        assert error.name == "ContextRestarting" and why in error.value
        assert text(box, "1 + 1", context=context) == "2"
    assert other is None and text(box, "kept") == "here"


def test_output_before_a_crash_is_kept(box, context):
    result = box.run_code("print('last words'); import os; os._exit(1)", context=context)
    assert (result.logs.stdout, result.error.name) == ([], "ContextRestarting") or "last words\n" in result.logs.stdout
    result = box.run_code("print('last words', flush=True); import os; os._exit(1)", context=context)
    assert result.logs.stdout == ["last words\n"]


def test_memory_over_the_limit_ends_the_cell_and_no_other(box, context):
    text(box, "kept = 'here'")
    result = box.run_code("x = bytearray(8 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1", context=context)
    assert result.error.name in ("ContextRestarting", "MemoryError")
    assert text(box, "1 + 1", context=context) == "2" and text(box, "kept") == "here"


def test_a_fork_bomb_is_survived(box, context):
    code = "import os\nfor _ in range(3000):\n    try:\n        if os.fork() == 0:\n            os.read(os.pipe()[0], 1)\n"
    code += "    except OSError:\n        break\n"
    result = box.run_code(code, context=context)
    assert result.execution_count == 1
    box.restart_code_context(context)
    assert text(box, "1 + 1", context=context) == "2" and text(box, "1 + 1") == "2"
    assert only_few_processes_are_left(box)  # or the next test, in the same sandbox, cannot fork


def only_few_processes_are_left(box):
    """They have been killed; a busy machine needs a moment to free a thousand. Until then no command can start."""
    return any(sum(e.name.isdigit() for e in box.files.list("/proc")) < 100 or time.sleep(0.1) for _ in range(100))


BOMB = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"


@pytest.fixture
def small(server):
    """base's interpreters are small, so a fork bomb meets the limit on processes before the one on memory."""
    with Sandbox.create("base", timeout=300) as made:
        yield made


def test_a_fork_bomb_that_never_rests_ends_with_its_context(small):
    """Every child forks for ever. guestd must go on answering (files, health), and in the end no process is left."""
    box, context = small, small.create_code_context()
    text(box, "kept = 'here'")
    results = []
    runs = threading.Thread(target=lambda: results.append(box.run_code(BOMB, context=context, timeout=120)))
    runs.start()
    for i in range(20):
        box.files.write("/home/user/during", str(i))
        assert box.files.read("/home/user/during") == str(i) and box.is_running()
    box.restart_code_context(context)
    runs.join(60)
    assert results and results[0].error.name == "UnexpectedEndOfExecution"
    assert text(box, "1 + 1", context=context) == "2" and text(box, "kept") == "here"
    assert only_few_processes_are_left(box)


def test_a_fork_bomb_whose_client_has_gone_is_killed(small):
    box, context = small, small.create_code_context()
    leave(box, BOMB, 2, context=context)
    assert box.run_code("1 + 1", context=context, timeout=60).text == "2"
    assert only_few_processes_are_left(box)


def test_a_child_that_leaves_its_cell_does_not_answer_for_it(box, context):
    assert text(box, "import os; child = os.fork() == 0; 'one answer'", context=context) == "one answer"
    assert text(box, "2", context=context) == "2"


def test_exit_is_no_error_and_the_next_cell_runs(box, context):
    text(box, "x = 1; exit()", context=context)
    assert box.run_code("x", context=context).error.name == "NameError"


@pytest.mark.parametrize("flush", [True, False])
def test_no_printed_line_is_lost_at_any_rate(box, flush):
    lines = []
    box.run_code(f"for i in range(10000): print(i, flush={flush})", on_stdout=lambda m: lines.append(m.line))
    assert "".join(lines).splitlines() == [str(i) for i in range(10000)]


def test_a_hundred_megabytes_of_prints_arrive(box):
    seen = [0]

    def count(message):
        seen[0] += len(message.line)

    box.run_code("line = 'x' * 99\nfor _ in range(10**6): print(line)", on_stdout=count, timeout=120)
    assert seen[0] == 100 * 10**6


def test_a_gigabyte_of_prints_is_cut_with_a_note(box, context):
    text(box, "kept = 'here'")
    seen = {"stdout": 0, "note": 0}

    def count(message):
        seen["stdout"] += len(message.line)

    def note(message):
        seen["note"] += message.line.count("the rest was left out")

    code = "piece = ('x' * 99 + '\\n') * 10486\nfor _ in range(1024): print(piece, end='')\n'to the end'"
    result = box.run_code(code, context=context, on_stdout=count, on_stderr=note, timeout=300)
    assert result.text == "to the end" and seen["note"] == 1
    assert 100 << 20 < seen["stdout"] <= 128 << 20
    assert text(box, "1 + 1", context=context) == "2" and text(box, "kept") == "here"
    assert box.run_code("print('again')", context=context).logs.stdout == ["again\n"]


def test_prints_a_moment_apart_do_not_wait_for_each_other(box):
    """Each line arrives while the cell still runs: the cell waits for a file that the test writes on its arrival."""
    lines, path = [], "/home/user/go-on"
    box.commands.run(f"rm -f {path}*")

    def answer(message):
        lines.append(message.line)
        box.files.write(path + message.line.strip(), "x")

    code = (
        "import os, time\n"
        "for i in range(3):\n"
        "    print(i)\n"
        f"    while not os.path.exists(f'{path}{{i}}'): time.sleep(0.01)\n"
    )
    box.run_code(code, on_stdout=answer, timeout=60)
    assert lines == ["0\n", "1\n", "2\n"]


def test_a_huge_result_is_cut_with_a_note(box):
    result = box.run_code("'x' * (64 << 20)")
    assert len(result.text) < 8 << 20 and "left out" in result.text


def test_html_is_never_cut(box):
    """A page that is cut is broken; plotly's has more than 4 MiB of script before the first point."""
    result = box.run_code(
        "class Page:\n    def _repr_html_(self): return '<script>' + 'x' * (9 << 20) + '</script>'\nPage()"
    )
    html = result.results[0].html
    assert not result.error and not result.logs.stderr, result.logs.stderr
    assert len(html) == (9 << 20) + 17 and html.startswith("<script>x") and html.endswith("x</script>")


def test_of_a_result_that_is_too_large_the_rest_arrives_and_a_note(box):
    result = box.run_code(
        "class Page:\n"
        "    def __repr__(self): return 'a page'\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_markdown_(self): return 'm' * (17 << 20)\n"
        "    def _repr_html_(self): return 'h' * (18 << 20)\n"
        "Page()"
    )
    assert not result.error, result.error
    page = result.results[0]
    assert (page.text, page.svg, page.html) == ("a page", "<svg/>", None)
    assert page.markdown == "m" * (17 << 20)
    note = "".join(result.logs.stderr)
    assert "the result's html" in note and str(18 << 20)[:4] in note and "markdown" not in note, note


def test_a_result_that_is_too_large_as_a_whole_says_so(box):
    result = box.run_code(
        "class Page:\n    def _repr_mimebundle_(self, **k): return {'text/html': 'h' * (40 << 20)}\nPage()"
    )
    assert not result.error and "html" in "".join(result.logs.stderr), result
    assert result.results[0].html is None and result.results[0].text


def test_two_cells_on_one_context_run_in_order(box, context):
    results = {}

    def run(name, code):
        results[name] = box.run_code(code, context=context).text

    code = "import time; open('/tmp/first-runs', 'w').close(); time.sleep(0.5); order = ['first']; 'done'"
    first = threading.Thread(target=run, args=("first", code))
    first.start()
    assert wait_for(lambda: box.files.exists("/tmp/first-runs"))
    run("second", "order + ['second']")
    first.join()
    assert results == {"first": "done", "second": "['first', 'second']"}


def leave(box, code, after, **options):
    """Run a cell and disconnect while it runs: the SDK's own timeout drops the connection."""
    try:
        box.run_code(code, timeout=after / 2, **options)
    except Exception as error:
        return error
    raise AssertionError("the cell ended by itself")


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(300)", "!sleep 300"])
def test_a_cell_whose_client_has_gone_is_interrupted(box, context, code):
    text(box, "kept = 1", context=context)
    leave(box, code, 1, context=context)
    assert text(box, "kept", context=context) == "1"  # the interpreter was not killed


def test_a_cell_that_does_not_stop_is_killed_and_the_context_says_so(box, context):
    leave(box, "while True:\n    try:\n        while True: pass\n    except BaseException: pass", 1, context=context)
    result = box.run_code("1 + 1", context=context, timeout=30)
    assert result.text == "2" and "variables of this context are gone" in "".join(result.logs.stderr)


def test_a_cell_sent_in_the_instant_of_a_disconnect_is_answered(box, context):
    for _ in range(3):
        gone = threading.Thread(target=leave, args=(box, "import time; time.sleep(300)", 0.6), kwargs={"context": context})
        gone.start()
        time.sleep(0.59)
        assert box.run_code("1 + 1", context=context, timeout=20).text == "2"
        gone.join()


def test_removing_a_context_ends_its_cell(box, context):
    results = []
    code = "import time; open('/tmp/cell-runs', 'w').close(); time.sleep(60)"
    runs = threading.Thread(target=lambda: results.append(box.run_code(code, context=context)))
    runs.start()
    assert wait_for(lambda: box.files.exists("/tmp/cell-runs"))
    box.remove_code_context(context)
    runs.join(30)
    assert results[0].error.name == "UnexpectedEndOfExecution"


def test_contexts_run_at_the_same_time(box):
    """Each waits for all the others."""
    made = [box.create_code_context() for _ in range(4)]
    box.commands.run("rm -rf meet && mkdir meet")
    code = "import os, time\nopen('meet/{}', 'w')\nwhile len(os.listdir('meet')) < 4: time.sleep(0.01)\n'met'"
    met = []
    threads = [
        threading.Thread(target=lambda i=i, c=c: met.append(text(box, code.format(i), context=c, timeout=60)))
        for i, c in enumerate(made)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == ["met"] * 4
    for c in made:
        box.remove_code_context(c)


def test_forks_do_not_share_their_luck(box):
    code = "import random, uuid, os; [random.random(), str(uuid.uuid4()), os.urandom(4).hex(), os.getpid()]"
    made = [box.create_code_context() for _ in range(3)]
    values = [eval(text(box, code, context=c)) for c in made]
    for column in zip(*values):
        assert len(set(column)) == 3
    for c in made:
        box.remove_code_context(c)


@pytest.mark.timeout(300)
def test_a_fresh_interpreter_has_little_memory_of_its_own(full):
    """Once its zygote has warmed up, which takes some seconds, or minutes on a busy machine."""
    code = (
        "1 + 1\n"
        "lines = open('/proc/self/smaps_rollup').read().splitlines()\n"
        "sum(int(line.split()[1]) for line in lines if line.startswith('Private'))"
    )

    def private_kib():
        made = full.create_code_context()
        try:
            return int(text(full, code, context=made))
        finally:
            full.remove_code_context(made)

    assert wait_for(lambda: private_kib() < 4096, 240, 0.5)


def test_packages_that_the_zygote_has_imported_work_as_everywhere(full):
    """Collected, reloaded, deleted, forked, used by threads: the zygote's objects are immortal, which must not show."""
    code = (
        "import gc, importlib, json, multiprocessing, sys, threading\n"
        "import matplotlib.pyplot as plt, numpy as np, pandas as pd\n"
        "frame = pd.DataFrame({'k': np.arange(100000) % 7, 'v': np.arange(100000.0)})\n"
        "def work(n=0):\n"
        "    plt.figure().add_subplot().plot(np.sin(np.arange(100)))\n"
        "    plt.close('all')\n"
        "    return int(frame.groupby('k').v.sum().sum())\n"
        "results = [work() for _ in range(3)]\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: results += pool.map(work, range(4))\n"
        "threads = [threading.Thread(target=lambda: results.append(int(np.dot(frame.v, frame.k) > 0))) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "importlib.reload(json); del sys.modules['json']; import json\n"
        "for _ in range(3): gc.collect()\n"
        "[sorted(set(results)), json.loads(json.dumps({'a': [1]})), sys.intern('a' 'b')]"
    )
    for _ in range(3):
        made = full.create_code_context()
        assert text(full, code, context=made, timeout=120) == "[[1, 4999950000], {'a': [1]}, 'ab']"
        full.remove_code_context(made)


def test_cold_interpreters_share_nothing(server):
    with Sandbox.create("base", timeout=60, envs={"CLOISTER_INTERPRETER": "cold"}) as made:
        hashes = {text(made, "hash('seed')", context=made.create_code_context()) for _ in range(3)}
        assert len(hashes) == 3


# ---- pictures, tables, languages ----


def test_a_figure_is_a_picture_and_a_chart(full):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [1, 4, 9], label='squares')\nplt.title('t')\nplt.show()"
    result = full.run_code(code, timeout=120).results[0]
    assert base64.b64decode(result.png)[:4] == b"\x89PNG"
    assert result.chart.type.value == "line" and tuple(result.chart.elements[0].points[2]) == (3.0, 9.0)


def test_a_figure_as_svg(full):
    code = "%config InlineBackend.figure_formats = ['svg']\nimport matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()"
    made = full.create_code_context()
    result = full.run_code(code, context=made, timeout=120).results[0]
    assert "<svg" in result.svg and not result.png
    assert result.chart.type.value == "line" and result.chart.elements[0].points
    full.remove_code_context(made)


# The driver draws some of these once and some twice; the pictures must be those of matplotlib either way.
FIGURES = """
import datetime, io
import matplotlib.pyplot as plt, numpy as np
from PIL import Image
def line(): plt.plot([1, 2, 3], [1, 4, 9]); plt.title('squares')
def legend(): plt.plot([1, 2], label='a long label'); plt.legend(); plt.xlabel('x (s)'); plt.ylabel('y')
def legend_outside(): plt.plot([1, 2], label='a long label'); plt.legend(bbox_to_anchor=(1.05, 1))
def scatter(): plt.scatter(np.arange(50), np.arange(50) ** 2, c=np.arange(50)); plt.grid(True)
def bar(): plt.bar(['alpha', 'beta'], [3, 1]); plt.xticks(rotation=45)
def pie(): plt.pie([1, 2, 3], labels=['a', 'b', 'c'], autopct='%d')
def box(): plt.boxplot([[1, 2, 3, 9], [2, 3, 4, 4]], patch_artist=True)
def image(): plt.imshow(np.arange(100).reshape(10, 10))
def colorbar(): plt.imshow(np.arange(100).reshape(10, 10)); plt.colorbar()
def subplots():
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), sharex='col'); axes[0, 0].plot([1, 2]); axes[1, 0].plot([1, 2000000])
    axes[1, 1].imshow(np.eye(4)); figure.suptitle('all')
def tight(): line(); plt.tight_layout()
def constrained(): plt.subplots(2, 2, layout='constrained')[1][0, 0].set_ylabel('label')
def deep(): plt.figure().add_subplot(projection='3d').plot([1, 2], [1, 2], [1, 2])
def polar(): plt.polar([1, 2, 3], [1, 2, 3])
def twins(): plt.plot([1, 2]); plt.title('t'); plt.twinx().plot([200, 100]); plt.twiny().plot([1, 100])
def dates(): plt.plot([datetime.date(2024, 1, i) for i in range(1, 20)], range(19)); plt.gcf().autofmt_xdate()
def arrow(): line(); plt.annotate('far away', (2, 4), (4.2, 9), arrowprops={'arrowstyle': '->'})
def outside(): line(); plt.text(4, 5, 'outside of it'); plt.figtext(0.5, -0.1, 'below')
def table(): plt.plot([1]); plt.table(cellText=[['1', '2']], loc='bottom')
def equal(): plt.plot([1, 2], [1, 5]); plt.gca().set_aspect('equal')
def dpi(): plt.figure(figsize=(3.3, 2.7), dpi=133, facecolor='pink'); line()
def savefig_dpi(): plt.rcParams['savefig.dpi'] = 300; line()
"""


def test_a_picture_is_the_one_that_jupyter_makes(full):
    made = full.create_code_context()
    assert not full.run_code(FIGURES, context=made, timeout=120).error
    for name in [row.split("(")[0][4:] for row in FIGURES.splitlines() if row.startswith("def ")]:
        shown = full.run_code(f"plt.rcdefaults(); {name}(); plt.show()", context=made).results
        full.files.write("/home/user/shown.png", base64.b64decode(shown[0].png))
        code = (
            f"plt.rcdefaults(); {name}(); figure = plt.gcf(); out = io.BytesIO()\n"
            "figure.canvas.print_figure(out, format='png', dpi=figure.dpi, bbox_inches='tight',\n"
            "    facecolor=figure.get_facecolor(), edgecolor=figure.get_edgecolor())\n"
            "plt.close('all')\n"
            "one, other = Image.open('shown.png'), Image.open(out)\n"
            "(one.size, one.info['dpi']) == (other.size, other.info['dpi']) and one.tobytes() == other.tobytes()"
        )
        assert len(shown) == 1 and text(full, code, context=made) == "True", name
    full.remove_code_context(made)


def test_text_in_a_chart_may_be_of_any_script(full):
    """A warning names the glyph that no font has."""
    code = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.title('図表 차트 图表')\nplt.show()"
    result = full.run_code(code, timeout=120)
    assert result.results[0].png and "Glyph" not in "".join(result.logs.stderr)


def test_a_table_is_text_html_and_data(full):
    result = full.run_code("import pandas as pd\npd.DataFrame({'a': [1, None], 'b': ['x', 'y']})", timeout=120).results[0]
    assert "<table" in result.html and result.data == {"a": [1.0, None], "b": ["x", "y"]} and result.is_main_result


@pytest.mark.parametrize(
    ("code", "field"),
    [
        ("from IPython.display import Latex, display; display(Latex('$x$'))", "latex"),
        ("from IPython.display import JSON, display; display(JSON({'a': 1}))", "json"),
        ("from IPython.display import Javascript, display; display(Javascript('1'))", "javascript"),
        ("from IPython.display import Markdown, display; display(Markdown('# t'))", "markdown"),
        ("from IPython.display import HTML, display; display(HTML('<b>'))", "html"),
        ("display({'text/latex': 'x'}, raw=True)", "latex"),
    ],
)
def test_every_kind_of_result_has_its_field(full, code, field):
    assert field in list(full.run_code(code).results[0].formats())


@pytest.mark.parametrize(
    ("language", "code", "out"),
    [
        ("bash", "echo $((1 + 1))", "2\n"),
        ("javascript", "console.log(1 + 1)", "2\n"),
        ("typescript", "const x: number = 2; console.log(x)", "2\n"),
        ("r", "cat(1 + 1)", "2"),
        ("java", 'System.out.println(1 + 1)', "2\n"),
    ],
)
def test_other_languages(full, language, code, out):
    result = full.run_code(code, language=language, timeout=120)
    assert not result.error and "".join(result.logs.stdout) == out


@pytest.mark.parametrize(("language", "code"), [("bash", 'echo "$FOO"'), ("javascript", "console.log(process.env.FOO)")])
def test_a_variable_for_one_cell_in_another_language(full, language, code):
    assert "".join(full.run_code(code, language=language, envs={"FOO": "it's"}, timeout=60).logs.stdout) == "it's\n"
    assert "it's" not in "".join(full.run_code(code, language=language).logs.stdout)


# ---- on disk ----


def test_variables_and_services_live_through_a_pause_to_disk(server):
    if not has_template(server, FULL):
        pytest.skip(f"there is no template {FULL}: cloister template build code-interpreter")
    if not pathlib.Path("/var/cache/cloister/criu").exists():
        pytest.skip("there is no CRIU: scripts/criu.sh fetches it")
    box = Sandbox.create(FULL, timeout=300)
    try:
        record = server.data / "sandboxes" / box.sandbox_id / "state"
        text(box, "import pandas as pd; frame = pd.DataFrame({'a': [1, 2, 3]}); x = 40")
        text(box, "let y = 5; y", language="javascript")
        box.run_code("z=7", language="bash")
        box.commands.run("python3 -m http.server 8000 >/dev/null 2>&1 &")
        ticks = box.commands.run("while true; do echo tick; sleep 0.1; done", background=True)
        for turn in range(2):
            box.pause()
            assert wait_for(lambda: "\nheld 3\n" in record.read_text(), 60), record.read_text()
            box = Sandbox.connect(box.sandbox_id, timeout=300)
            assert text(box, "x += 1; (x, int(frame.a.sum()))") == f"({41 + turn}, 6)"
        assert text(box, "y + 1", language="javascript") == "6"
        assert box.run_code("echo $((z + 1))", language="bash").logs.stdout == ["8\n"]
        assert box.commands.run("curl -s -o /dev/null -w '%{http_code}' localhost:8000/").stdout == "200"
        assert any(stdout == "tick\n" for stdout, _, _ in take(box.commands.connect(ticks.pid), 3))
    finally:
        box.kill()


def take(events, count):
    """The first events of a stream, which is then let go."""
    found = [event for event, _ in zip(events, range(count))]
    events.disconnect()
    return found
