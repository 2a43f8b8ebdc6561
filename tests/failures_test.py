#!/usr/bin/env python3
"""Checks of the runners: each failed test is counted and named, and what a runner started ends with it."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "scripts"), str(HERE / "e2e")]

import failures  # noqa: E402
import run as e2e  # noqa: E402
import test as runner  # noqa: E402

ALL_SUITES = list(runner.SUITES)

PYTEST = """## http
============================= test session starts ==============================
test_http.py .FF.E                                                       [100%]

==================================== ERRORS ====================================
______________________ ERROR at setup of test_needs_a_disk _____________________

E   RuntimeError: no space left
E   on this disk

conftest.py:3: RuntimeError
=================================== FAILURES ===================================
____________________________ test_eq[a - b] ____________________________

>       assert answer.status == 200, "a sentence"
E       AssertionError: a sentence that the summary below cuts off at the width of the terminal
E       assert 404 == 200

test_http.py:6: AssertionError
----------------------------- Captured stdout call -----------------------------
FAILED test_http.py::test_this_line_is_printed_by_a_test - not by pytest
________________________________ TestIt.test_in ________________________________

E       KeyError: 'x'

test_http.py:10: KeyError
_ test_with_a_name_that_is_longer_than_the_lines_that_pytest_prints_for_a_section[1] _

    run("x")
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _

E       OSError: nowhere
=========================== short test summary info ============================
SKIPPED [1] test_http.py:9: no Docker here
FAILED test_http.py::test_eq[a - b] - AssertionError: a sentence that the summ...
FAILED test_http.py::TestIt::test_in - KeyError: 'x'
FAILED test_http.py::test_with_a_name_that_is_longer_than_the_lines_that_pytest_prints_for_a_section[1]
ERROR test_http.py::test_needs_a_disk - RuntimeError: no space left
============= 2 failed, 2 passed, 1 skipped, 1 error in 0.07s ==================
## http: 2 passed, 4 failed, 1 skipped (9 s)

## js
TAP version 13
# Subtest: outer
    # Subtest: inner fails
    not ok 1 - inner fails
      ---
      failureType: 'testCodeFailure'
      error: '1 == 2'
      ...
    1..1
not ok 1 - outer
  ---
  failureType: 'subtestsFailed'
  error: '1 subtest failed'
  ...
ok 2 - fine
  ---
  duration_ms: 1
  ...
not ok 3 - throws
  ---
  failureType: 'testCodeFailure'
  error: |-
    first line
    second line
  ...
not ok 4 - is not here yet # TODO later
1..4
# pass 1
# fail 3
## js: 1 passed, 3 failed, 0 skipped (2 s)

## cuts
test_cuts.py ..
+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
~~~~~~~~~~~~~~~~~~~~~ Stack of MainThread (139) ~~~~~~~~~~~~~~~~~~~~~
  File "/x/site-packages/_pytest/python.py", line 166, in pytest_pyfunc_call
  File "/x/tests/e2e/test_cuts.py", line 80, in test_a_cut_is_seen
+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
## cuts: 0 passed, 1 failed, 0 skipped (130 s)

## faults
test_faults.py::test_one PASSED                                          [ 33%]
test_faults.py::test_two[a b] +++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
~~~~~~~~~~~~~~ Stack of ThreadPoolExecutor-0_0 (140) ~~~~~~~~~~~~~~~
  File "/x/tests/e2e/server.py", line 7, in call
    connection.request(method, path)
~~~~~~~~~~~~~~~~~~~~~ Stack of MainThread (139) ~~~~~~~~~~~~~~~~~~~~~
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/x/site-packages/_pytest/python.py", line 166, in pytest_pyfunc_call
    result = testfunction(**testargs)
  File "/x/tests/e2e/test_faults.py", line 80, in test_two
    assert again(lambda: 1)
  File "/x/tests/e2e/test_faults.py", line 12, in again
    pool.shutdown()
  File "/usr/lib/python3.11/threading.py", line 1112, in join
    lock.acquire()
+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
pytest ended with code 1: it ended before its last test
## faults: 0 passed, 1 failed, 0 skipped (130 s)

## mail
test_mail.py::test_one PASSED                                            [ 50%]+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
~~~~~~~~~~~~~~~~~~~~~ Stack of MainThread (139) ~~~~~~~~~~~~~~~~~~~~~
  File "/x/tests/e2e/conftest.py", line 45, in own_server
    mine.stop()
+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
pytest ended with code 1: it ended before its last test
## mail: 0 passed, 1 failed, 0 skipped (130 s)

## http2
test_http2.py ..+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
## http2: 0 passed, 1 failed, 0 skipped (130 s)

## disk
test_full_disk.py ..
!!!!!!!!!!!!!!!!!! _pytest.outcomes.Exit: no space left !!!!!!!!!!!!!!!!!!!
============================== 2 passed in 0.01s ===============================
pytest ended with code 2: it was interrupted, and the tests after that did not run
## disk: 2 passed, 1 failed, 0 skipped (1 s)

## cli
cli: could not install e2b from PyPI
## cli: 0 passed, 1 failed, 0 skipped (1 s)

## tls
test_tls.py ....
## tls: 4 passed, 0 failed, 0 skipped (1 s)

## misuse
test_misuse.py ..

took longer than 1800 s
"""
PYTEST_FAILED = [
    "e2e: http test_http.py::test_eq[a - b]: AssertionError: a sentence that the summary below cuts off at the width of the terminal",
    "e2e: http test_http.py::TestIt::test_in: KeyError: 'x'",
    "e2e: http test_http.py::test_with_a_name_that_is_longer_than_the_lines_that_pytest_prints_for_a_section[1]: OSError: nowhere",
    "e2e: http test_http.py::test_needs_a_disk: RuntimeError: no space left",
    "e2e: js inner fails: 1 == 2",
    "e2e: js throws: first line",
    "e2e: cuts test_cuts.py::test_a_cut_is_seen: it took too long at test_cuts.py:80 in test_a_cut_is_seen, and the tests after it did not run",
    "e2e: faults test_faults.py::test_two[a b]: it took too long at test_faults.py:12 in again, and the tests after it did not run",
    "e2e: mail test_mail.py::test_one: it took too long at conftest.py:45 in own_server, and the tests after it did not run",
    "e2e: http2: it took too long, and the tests after it did not run",
    "e2e: disk: pytest ended with code 2: it was interrupted, and the tests after that did not run",
    "e2e: cli: cli: could not install e2b from PyPI",
    "e2e: misuse: took longer than 1800 s",
]
TWICE = """## http
FAILED test_http.py::test_once - KeyError: 'x'
FAILED test_http.py::test_always - KeyError: 'y'
# a second try: test_http.py::test_once test_http.py::test_always
FAILED test_http.py::test_always - KeyError: 'z'
passed only at the second try: test_http.py::test_once
## http: 1 passed, 1 failed, 0 skipped (9 s)
"""
# The frames of pytest are left out, so that those of the test are among the few lines that are shown.
TIMEOUT_DETAIL = """test_faults.py::test_two[a b] +++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
~~~~~~~~~~~~~~ Stack of ThreadPoolExecutor-0_0 (140) ~~~~~~~~~~~~~~~
  File "/x/tests/e2e/server.py", line 7, in call
    connection.request(method, path)
~~~~~~~~~~~~~~~~~~~~~ Stack of MainThread (139) ~~~~~~~~~~~~~~~~~~~~~
  File "/x/tests/e2e/test_faults.py", line 80, in test_two
    assert again(lambda: 1)
  File "/x/tests/e2e/test_faults.py", line 12, in again
    pool.shutdown()
  File "/usr/lib/python3.11/threading.py", line 1112, in join
    lock.acquire()
+++++++++++++++++++++++++++++++++++ Timeout ++++++++++++++++++++++++++++++++++++
pytest ended with code 1: it ended before its last test""".splitlines()

CASES = """[==========] Running 4 test(s).
[ RUN      ] fine
[       OK ] fine
[ RUN      ] one_is_two
[  FAILED  ] one_is_two
[ RUN      ] text_is_the_same
[  FAILED  ] text_is_the_same
[ RUN      ] has_a_setup
[==========] 4 test(s) run.
"""
CASES_ERRORS = """[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] --- t.c:7: error: Failure!
[  ERROR   ] --- "a" != "b"
[   LINE   ] --- t.c:9: error: Failure!
[  ERROR   ] has_a_setup
[  PASSED  ] 1 test(s).
[  FAILED  ] 2 test(s), listed below:
[  FAILED  ] one_is_two
[  FAILED  ] text_is_the_same
"""
MESON = "\n".join(
    json.dumps({"name": f"cloister:unit / {name}", "result": result, "stdout": out, "stderr": errors})
    for name, result, out, errors in (
        ("base/str", "OK", CASES, ""),
        ("wire/dns", "FAIL", CASES, CASES_ERRORS),
        ("io/loop", "FAIL", "[ RUN      ] it_crashes\n", "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x1\n    #0 0x2\n"),
        ("io/timer", "FAIL", "[ RUN      ] it_adds\n", "../src/io/timer.c:3:5: runtime error: signed integer overflow\n"),
        ("io/dial", "TIMEOUT", "[ RUN      ] it_hangs\n", ""),
        ("io/child", "FAIL", "[ RUN      ] it_exits\n[       OK ] it_exits\n", ""),
        ("docs name what exists", "FAIL", "docs/a.md:1: there is no x.c\ndocs: 2 names, 1 of them wrong\n", ""),
        ("layering", "FAIL", "", "Traceback (most recent call last):\n  File x\nKeyError: 'mail'\n"),
    )
)
MESON_FAILED = [
    "unit: wire/dns one_is_two: 0x1 != 0x2 (t.c:7)",
    'unit: wire/dns text_is_the_same: "a" != "b" (t.c:9)',
    "unit: wire/dns has_a_setup: its setup failed",
    "unit: io/loop it_crashes: AddressSanitizer: heap-use-after-free on address 0x1",
    "unit: io/timer it_adds: runtime error: signed integer overflow",
    "unit: io/dial it_hangs: it took too long",
    "unit: io/child: it ended before its last test (FAIL)",
    "unit: docs name what exists: docs/a.md:1: there is no x.c",
    "unit: layering: KeyError: 'mail'",
]

BUILD = """$ ninja --quiet -C build-clang -k 0
FAILED: src/libbase.a.p/base_str.c.o
../src/base/str.c:10:5: error: unused variable 'x' [-Werror,-Wunused-variable]
    int x;
1 error generated.
ninja: build stopped: cannot make progress due to previous errors.
"""
LINT = """$ scripts/lint.sh quick
src/a.c:3: not as .clang-format has it; make format
src/b.c:1: not as .clang-format has it; make format
lint: formatting: see above
Traceback (most recent call last):
  File "<string>", line 4, in <module>
  File "tests/x.py", line 3
    def x(:
          ^
SyntaxError: invalid syntax
lint: python: see above
lint: shell: skipped, no shellcheck here
"""
FUZZ = """$ scripts/fuzz.sh build-fuzz 10
fuzz: dns for 10 s
fuzz: api: ok, 12 inputs
fuzz: dns: FAILED, ERROR: libFuzzer: timeout after 11 seconds, input in build-fuzz/crashes, log in build-fuzz/fuzz-dns.log
1 passed, 1 failed
"""


MODEL = """$ tests/model/run.py
model: CBMC 6.6.0
model: step: FAILED, an edit voids an approval (6.1 s)
message and record agree
model: mutant sends-twice: FAILED, step does not notice it (6.0 s)
model: rules: proved (0.2 s)
1 passed, 2 failed
"""


def lines(suite, found):
    return failures.report([(suite, failure) for failure in found])


def check(name, got, wanted):
    assert got == wanted, f"{name}:\n" + "\n".join(got) + "\nwanted:\n" + "\n".join(wanted)


def check_second_try():
    """Of two failed tests one passes when it is tried again. Many, or a second run that breaks, change nothing."""
    check("twice", lines("e2e", failures.of_parts(TWICE)), ["e2e: http test_http.py::test_always: KeyError: 'y'"])
    case = e2e.xml.fromstring('<testcase classname="test_x.TestIt" name="test_a[b c]"/>')
    assert e2e.test_id(case) == "test_x.py::TestIt::test_a[b c]", e2e.test_id(case)
    tried = ["test_x.py::a", "test_x.py::b"]
    for first, second, wanted in (
        ((e2e.Count(5, 2, 1), tried), (e2e.Count(1, 1), tried[1:]), "6 passed, 1 failed, 1 skipped"),
        ((e2e.Count(5, 2), tried), (e2e.Count(0, 1), []), "5 passed, 2 failed, 0 skipped"),
        ((e2e.Count(0, 1), []), None, "0 passed, 1 failed, 0 skipped"),
        ((e2e.Count(0, 9), tried * 4), None, "0 passed, 9 failed, 0 skipped"),
    ):
        said = io.StringIO()
        with unittest.mock.patch.object(e2e, "pytest_once", side_effect=[first, second]) as once, contextlib.redirect_stdout(said):
            count = e2e.run_pytest("python", "x", ["test_x.py"], ["-k", "a"])
        check("second try", [str(count)], [wanted])
        assert once.call_count == (2 if second else 1), once.call_args_list
        assert failures.AGAIN.findall(said.getvalue()) == (tried[:1] if count.failed == 1 and second else []), said.getvalue()


def check_limits():
    got = lines("unit", [failures.Failure(f"test_{nth}", "x" * 500) for nth in range(34)])
    assert len(got) == 21 and max(map(len, got)) == 160, got
    assert got[-1] == "and 14 more in build/test-logs", got[-1]


def check_detail():
    """What a failed test printed, not the end of the log; neither that of tests that passed."""
    detail = failures.of_parts(PYTEST)[0].detail
    assert any("assert 404 == 200" in line for line in detail) and not any("KeyError" in line for line in detail), detail


def said_by_runner(suites, *arguments):
    """The lines of a run of these functions."""
    with tempfile.TemporaryDirectory() as scratch:
        runner.ROOT = pathlib.Path(scratch)
        runner.LOGS = runner.ROOT / "logs"
        runner.SUITES = {name: (function, "a suite", failures.of_lint) for name, function in suites.items()}
        runner.Preparation = NoPreparation
        said = io.StringIO()
        sys.argv = ["test.py", *arguments]
        with contextlib.redirect_stdout(said):
            runner.main()
    return said.getvalue().splitlines()


def check_cut_off():
    """A suite whose command failed has failed, whatever its log says; its last line says how."""
    lint = runner.run_lint
    said = {
        "echo lint: formatting: ok; echo lint: python: ok; kill -9 $$": "lint: ended by signal 9",
        "echo lint: formatting: ok; echo lint: python: ok; exit 3": "lint: lint: python: ok",
    }
    for script, wanted in said.items():
        got = said_by_runner({"lint": with_command(lint, script)})[-2:]
        check("cut off", got, [wanted, "2 passed, 1 failed"])
    got = said_by_runner({"fuzz": with_command(runner.run_fuzz, "echo 3 passed, 0 failed; exit 1")})[-1:]
    check("fuzz", got, ["3 passed, 1 failed"])
    got = said_by_runner({"lint": with_command(lint, "echo lint: formatting: ok")})[-1:]
    check("not cut off", got, ["1 passed, 0 failed"])


def with_command(function, script):
    """The function of a suite, with this script in place of its command."""

    def run(suite):
        run_command = suite.run
        suite.run = lambda *command, seconds, **options: run_command("sh", "-c", script, seconds=seconds)
        (runner.ROOT / "tests" / "fuzz").mkdir(parents=True)
        (runner.ROOT / "tests" / "fuzz" / "meson.build").touch()
        (runner.ROOT / "build-fuzz").mkdir()
        (runner.ROOT / "build-fuzz" / "build.ninja").touch()
        with unittest.mock.patch.object(runner.shutil, "which", lambda name: name):
            return function(suite)

    return run


class NoPreparation:
    def __init__(self):
        self.suite = runner.Suite("prepare")

    def wait(self):
        pass


def check_runner():
    """The lines come after the table of times and before the tally, which is last."""

    def run(suite):
        suite.log.write(LINT)
        return runner.Count(1, 2, 1)

    got = said_by_runner({"lint": run})[-4:]
    assert got[0].startswith("all "), got
    check("runner", got[1:], LINT_FAILED + ["1 passed, 2 failed, 1 skipped"])


def check_end():
    """A page that shows only the end has the failed tests, however many suites there are and whatever they print."""

    def passes(suite):
        return runner.Count(3)

    def fails(tests):
        def run(suite):
            suite.failures = [failures.Failure(f"test_x.py::test_{nth}", "wrong", ["detail"] * 500) for nth in range(tests)]
            return runner.Count(1, tests)

        return run

    suites = dict.fromkeys(ALL_SUITES, passes)
    got = said_by_runner({**suites, "root": fails(1)})
    check("end", got[-2:], ["root: test_x.py::test_0: wrong", "25 passed, 1 failed"])
    got = said_by_runner({**suites, "root": fails(50), "network": fails(2)})[-23:]
    check("end of many", [got[1], *got[-2:]], ["root: test_x.py::test_0: wrong", "and 32 more in build/test-logs", "23 passed, 52 failed"])


def check_at_once():
    """The suites with servers meet; one of them breaks, and the others are counted."""
    meet = threading.Barrier(3)

    def run(suite):
        meet.wait(30)
        return runner.Count(2)

    def breaks(suite):
        meet.wait(30)
        raise KeyError("x")

    got = said_by_runner({"sdk": run, "e2e": breaks, "network": run})[-2:]
    check("at once", got, ["e2e: KeyError: 'x'", "4 passed, 1 failed"])


LINT_FAILED = [
    "lint: formatting: src/a.c:3: not as .clang-format has it; make format",
    "lint: python: SyntaxError: invalid syntax (tests/x.py, line 3)",
]


PYTHON = """#!/bin/sh
for option; do case $option in --junitxml=*) report=${option#*=};; esac; done
[ %(code)d = 139 ] ||
    echo '<testsuites><testsuite tests="%(tests)d" failures="%(failures)d" errors="0" skipped="%(skipped)d"/></testsuites>' >"$report"
exit %(code)d
"""


def check_pytest():
    """pytest's exit code counts: it ends well, or at least one test has failed."""
    for code, tests, failed, skipped, options, wanted in (
        (0, 3, 0, 0, [], "3 passed, 0 failed, 0 skipped"),
        (1, 3, 2, 0, [], "1 passed, 2 failed, 0 skipped"),
        (1, 3, 0, 0, [], "3 passed, 1 failed, 0 skipped"),
        (2, 1, 0, 0, [], "1 passed, 1 failed, 0 skipped"),
        (2, 1, 0, 0, ["-k", "x"], "1 passed, 1 failed, 0 skipped"),
        (2, 2, 1, 0, [], "1 passed, 1 failed, 0 skipped"),
        (139, 0, 0, 0, [], "0 passed, 1 failed, 0 skipped"),
        (5, 0, 0, 0, [], "0 passed, 1 failed, 0 skipped"),
        (5, 0, 0, 0, ["-k", "x"], "0 passed, 0 failed, 0 skipped"),
        (5, 1, 0, 1, [], "0 passed, 0 failed, 1 skipped"),
    ):
        with tempfile.TemporaryDirectory() as scratch, unittest.mock.patch.object(e2e, "WORK", pathlib.Path(scratch)):
            python = e2e.WORK / "python"
            python.write_text(PYTHON % {"code": code, "tests": tests, "failures": failed, "skipped": skipped}, encoding="utf-8")
            python.chmod(0o755)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                count = e2e.run_pytest(python, "x", ["test_x.py"], options)
        check(f"code {code}", [str(count)], [wanted])
        named = lines("network", failures.of_parts(said.getvalue() + f"{count}\n"))
        assert count.failed == failed or named[0].startswith(f"network: pytest ended with code {code}: "), named


def check_lookup():
    """An hour later PyPI and npm are asked again for whatever has no fixed version, and for nothing else."""
    asked = []

    def install(command, **options):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    for age, python, npm in (
        (e2e.LOOKUP_SECONDS - 60, [], []),
        (e2e.LOOKUP_SECONDS + 60, ["newest", "interpreter", "multimail", "mcp"], ["newest"]),
    ):
        for names, make, wanted in ((e2e.PYTHON_SDKS, e2e.update_venv, python), (e2e.NPM_PACKAGES, e2e.update_npm, npm)):
            with tempfile.TemporaryDirectory() as scratch, unittest.mock.patch.object(subprocess, "run", install):
                done = pathlib.Path(scratch) / ".done"
                found = []
                for name in names:
                    done.touch()
                    os.utime(done, times=(time.time() - age,) * 2)
                    asked.clear()
                    make(name, done.parent)
                    found += [name] if asked else []
            check(f"asked after {age} s", found, wanted)


def check_once():
    """A suite that is named twice, or by its name and its group's, runs once."""
    server = [name for name in e2e.SUITES if e2e.group_of(name) == "server"]
    got = e2e_runs("http", "server", "http")
    check("server", got, ["http"] + [name for name in server if name != "http"])
    check("code", e2e_runs("code"), [name for name in e2e.SUITES if e2e.group_of(name) == "code"])
    check("all", e2e_runs(), list(e2e.SUITES))

    ran = []

    def run(suite):
        ran.append(suite.name)
        return runner.Count(1)

    said_by_runner({"lint": run, "clang": run}, "lint", "lint")
    check("make test", ran, ["lint"])


def e2e_runs(*arguments):
    """The suites that tests/e2e/run.py runs."""
    ran = []
    functions = {name: lambda options, name=name: ran.append(name) or e2e.Count(1) for name in e2e.SUITES}
    with (
        tempfile.TemporaryDirectory() as scratch,
        unittest.mock.patch.multiple(e2e, WORK=pathlib.Path(scratch), SUITES=functions, make_base=lambda: None),
        unittest.mock.patch.object(sys, "argv", ["run.py", *arguments]),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        assert e2e.main() == 0
    return ran


def check_fixed():
    for package, fixed in (
        *(("e2b==2.2.0", True), ("e2b", False), ("e2b>=2.2.0", False), ("e2b==2.*", False)),
        *(("e2b@2.2.1", True), ("@e2b/cli@1.0.0", True), ("@e2b/cli", False), ("e2b@latest", False), ("e2b@^2.2.1", False)),
    ):
        assert bool(e2e.FIXED.search(package)) == fixed, package


SLEEPS = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import failures_test, test
test_run = lambda suite: suite.run("sh", "-c", "echo $$ >%(pids)s/$$; exec sleep 100", seconds=200)
failures_test.said_by_runner({"sdk": test_run, "e2e": test_run})
"""


def check_signal(number):
    """Of a run that is ended nothing goes on."""
    with tempfile.TemporaryDirectory() as pids:
        command = [sys.executable, "-B", "-c", SLEEPS % {"pids": pids}, __file__]
        # Not as nohup has it: this test may run under it.
        default = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=default) as process:
            wait_for(lambda: len(os.listdir(pids)) == 2)
            process.send_signal(number)
            assert process.wait(30) == 1
        wait_for(lambda: not any(is_sleep(pid) for pid in os.listdir(pids)))


def check_nohup():
    """A run that ignores SIGHUP from its start goes on."""
    with tempfile.TemporaryDirectory() as pids:
        command = ["nohup", sys.executable, "-B", "-c", SLEEPS % {"pids": pids}, __file__]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            wait_for(lambda: len(os.listdir(pids)) == 2)
            process.send_signal(signal.SIGHUP)
            process.terminate()
            said = process.communicate(timeout=30)[1]
        assert f"ended by signal {signal.SIGTERM:d}" in said, said


SUDO = """#!/bin/sh
[ "$1" = -n ] && shift && echo "$*" >%(said)s && exec "$@"
"""


@contextlib.contextmanager
def processes_of_root(sudo):
    """A suite whose processes only this script in place of sudo can kill; and the file with what it was told."""

    def not_permitted(pid, number):
        raise PermissionError

    with tempfile.TemporaryDirectory() as scratch:
        runner.ROOT = runner.LOGS = pathlib.Path(scratch)
        said = runner.LOGS / "said"
        (runner.LOGS / "sudo").write_text(sudo % {"said": said}, encoding="utf-8")
        (runner.LOGS / "sudo").chmod(0o755)
        with (
            unittest.mock.patch.object(os, "killpg", not_permitted),
            unittest.mock.patch.dict(os.environ, PATH=f"{scratch}:{os.environ['PATH']}"),
        ):
            yield runner.Suite("root"), said


def check_root():
    """The time limit is one for root's processes too."""
    with processes_of_root(SUDO) as (suite, said):
        began = time.monotonic()
        assert not suite.run("sh", "-c", "echo $$; sleep 100", seconds=0.5)
        assert time.monotonic() - began < 8
        _, pid, *rest = suite.text().split("\n", 2)
        check("sudo", said.read_text(encoding="utf-8").splitlines(), [f"kill -KILL -- -{pid}"])
        check("log", [line for line in rest[0].splitlines() if line], ["took longer than 0.5 s"])


def check_not_killed():
    """What sudo does not kill is said and not waited for. The process here ends by itself."""
    with processes_of_root("#!/bin/sh\necho no password >&2; exit 1\n") as (suite, _):
        with unittest.mock.patch.object(runner, "END_SECONDS", 0.5):
            began = time.monotonic()
            assert not suite.run("sleep", "6", seconds=0.2)
            assert time.monotonic() - began < 4
        text = suite.text()
        assert "no password\n" in text and "could not be killed and still runs\n" in text, text


def check_pipe():
    """A process that has left the session does not stop the run because it holds the pipe."""
    with processes_of_root(SUDO) as (suite, _), unittest.mock.patch.object(runner, "END_SECONDS", 0.5):
        began = time.monotonic()
        assert suite.run(sys.executable, "-c", LEAVES, seconds=30)
        assert time.monotonic() - began < 4


LEAVES = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(writer, b"x")
    time.sleep(6)
else:
    os.read(reader, 1)
"""


def is_sleep(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\0" b"100\0"
    except OSError:
        return False


def wait_for(what):
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def main():
    check("e2e", lines("e2e", failures.of_parts(PYTEST)), PYTEST_FAILED)
    hung = next(failure for failure in failures.of_parts(PYTEST) if failure.test.startswith("faults "))
    check("stacks", hung.detail, TIMEOUT_DETAIL)
    check("unit", lines("unit", failures.of_meson(MESON)), MESON_FAILED)
    check("clang", lines("clang", failures.of_build(BUILD)),
          ["clang: ../src/base/str.c:10:5: error: unused variable 'x' [-Werror,-Wunused-variable]"])  # fmt: skip
    check("lint", lines("lint", failures.of_lint(LINT)), LINT_FAILED)
    check("fuzz", lines("fuzz", failures.of_fuzz(FUZZ)),
          ["fuzz: dns: ERROR: libFuzzer: timeout after 11 seconds, input in build-fuzz/crashes, log in build-fuzz/fuzz-dns.log"])  # fmt: skip
    check("model", lines("model", failures.of_model(MODEL)),
          ["model: step: an edit voids an approval (6.1 s)", "model: mutant sends-twice: step does not notice it (6.0 s)"])  # fmt: skip
    check("model", lines("model", failures.of_model("Traceback\nKeyError: 'x'\n")), ["model: KeyError: 'x'"])
    check("network", lines("network", failures.of_parts(PYTEST[PYTEST.index("====") : PYTEST.index("## http:")]))[1:2],
          ["network: test_http.py::TestIt::test_in: KeyError: 'x'"])  # fmt: skip
    check("nothing", lines("unit", failures.of_build("")), ["unit: it said nothing"])
    check_second_try()
    check_limits()
    check_detail()
    check_end()
    check_runner()
    check_at_once()
    check_cut_off()
    check_pytest()
    check_lookup()
    check_fixed()
    check_once()
    check_signal(signal.SIGTERM)
    check_signal(signal.SIGHUP)
    check_nohup()
    check_root()
    check_not_killed()
    check_pipe()


if __name__ == "__main__":
    main()
