#!/usr/bin/env python3
"""test.py - every suite, then how long each took, a line for each test that failed, and one tally: 'N passed, N failed[,
N skipped]'.

Says what it does before it does it. A suite that cannot run here says why and counts as skipped. One that breaks or
takes too long counts as a failure. A test that fails is tried once more by itself, unless several fail; one that passes
then counts as passed, and is named at the end: it is a fault of the test or of the program all the same. What the failed tests printed is shown after their suite (failures.py finds it); the
whole logs are in build/test-logs. `test.py NAME…` runs only those.

Suites that use all processors run in turn. Those with real servers mostly wait, so they run at the same time, each with
a data directory of its own. What they need is downloaded while clang and the fuzz targets run.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback

import failures

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test-logs"
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "10"))
TEST_DATA = os.environ.get("CLOISTER_TEST_DATA", "/var/lib/cloister-test")  # as in tests/e2e/server.py
TALLY = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)
DETAIL_LINES = 120  # of all failures of a suite
AGAIN_MAX = 3  # failed programs of one suite that get a second try; more of them are no accident
AGAIN_SECONDS = 600
TIMES_SLOWER = "4"  # than a machine that does nothing else: the limits in meson.build are for that
END_SECONDS = 10  # for what was killed to be gone
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed


class Skip(Exception):
    """This suite cannot run here; the text says why."""


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        tail = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{tail}"


class Suite:
    """Runs commands with their output in one log."""

    def __init__(self, name):
        self.name = name
        self.log_path = LOGS / f"{name}.log"
        self.log = open(self.log_path, "w", encoding="utf-8")
        self.failures = []  # if something better than the log says them
        self.fine = True  # until a command is not
        self.process, self.ended = None, False
        self.lock = threading.Lock()  # of these two

    def run(self, *command, seconds, env=None, show=None):
        """True if it ended well and in time. What it left running is killed. Lines that begin with `show` are shown."""
        self.log.write(f"$ {' '.join(command)}\n")
        self.log.flush()
        with self.lock:
            if self.ended:
                self.fine = False
                return False
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                            errors="replace", stderr=subprocess.STDOUT, start_new_session=True,
                                            env={**os.environ, **(env or {})})
            process = self.process
        copier = threading.Thread(target=self.copy, args=(process.stdout, show), daemon=True)
        copier.start()
        try:
            code = process.wait(seconds)
            wrong = f"ended by signal {-code}" if code < 0 else None
        except subprocess.TimeoutExpired:
            code, wrong = None, f"took longer than {seconds} s"
        finally:
            with self.lock:
                self.kill()
                self.process = None  # its number may soon be that of another
            self.wait_for_end(process, copier)
        if wrong:
            self.log.write(f"\n{wrong}\n")
        self.fine = self.fine and code == 0
        return code == 0

    def wait_for_end(self, process, copier):
        """Not without a limit: what could not be killed, or has left the session with the pipe, must not stop the run."""
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.log.write(f"process {process.pid} could not be killed and still runs\n")
        copier.join(END_SECONDS)

    def end(self):
        """From another thread: what runs is killed, and nothing is started any more."""
        with self.lock:
            self.ended = True
            if self.process:
                self.kill()

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the usual case: nothing was left
        except PermissionError:  # it is root's
            self.kill_as_root()

    def kill_as_root(self):
        command = ["sudo", "-n", "kill", "-KILL", "--", f"-{self.process.pid}"]
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=END_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            self.log.write(f"{error}: {getattr(error, 'stderr', None) or 'it said nothing'}\n")

    def copy(self, lines, show):
        with lines:
            for line in lines:
                self.log.write(line)
                self.log.flush()
                if show and line.startswith(show):
                    say(f"{self.name}: {line.removeprefix('## ').rstrip()}" if show == "## " else line.rstrip())

    def text(self):
        self.log.flush()
        return self.log_path.read_text(encoding="utf-8", errors="replace")


def say(text, indent="       "):
    """In one piece: several suites can say something at the same time."""
    sys.stdout.write(f"{indent}{text}\n")
    sys.stdout.flush()


def wait_for_thread(thread):
    """With pauses: Python would not notice a signal that comes just before an endless wait."""
    while thread.is_alive():
        thread.join(1)


def as_root(why):
    """What to put in front of a command that needs root."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-v"], check=False).returncode == 0:
        return ["sudo", "--preserve-env"]
    raise Skip(f"needs root: {why}")


def configure(suite, build, *options, cc=None):
    if (ROOT / build / "build.ninja").exists():
        return True
    say(f"configuring {build}")
    return suite.run("meson", "setup", build, *options, seconds=120, env={"CC": cc} if cc else None)


def compile_all(suite, build):
    say(f"compiling {build}")
    return suite.run("ninja", "--quiet", "-C", build, "-k", "0", seconds=900) and suite.run("scripts/link-programs.sh", build, seconds=10)


def meson_count(testlog):
    """Cases, not programs: cmocka names each one in its output."""
    total = Count()
    for line in testlog.splitlines():
        test = json.loads(line)
        cases = failures.CASE.findall(test.get("stdout", "") + "\n" + test.get("stderr", ""))
        failed = {name for word, name in cases if word == "FAILED"}
        skipped = {name for word, name in cases if word == "SKIPPED"}
        passed = {name for word, name in cases if word == "OK"}
        if test["result"] == "SKIP":
            total.add(Count(skipped=max(1, len(skipped))))
        elif test["result"] == "OK":
            total.add(Count(max(1, len(passed)) if not skipped else len(passed), 0, len(skipped)))
        else:  # a crash has no FAILED line
            total.add(Count(len(passed), max(1, len(failed)), len(skipped)))
    return total


def meson_suite(suite, name, seconds, prefix=()):
    if not configure(suite, "build-asan", "-Db_sanitize=address,undefined", "-Dtest_holes=true") or not compile_all(suite, "build-asan"):
        return Count(failed=1)
    say(f"running the {name} tests")
    testlog = meson_test(suite, name, prefix, seconds)
    if testlog is None:
        if "No suitable tests" in suite.text() or "No tests defined" in suite.text():
            raise Skip(f"there are no tests in suite {name}")
        return Count(failed=1)
    failed = failures.programs_of_meson(testlog)
    if 0 < len(failed) <= AGAIN_MAX:
        testlog = meson_again(suite, name, prefix, testlog, failed)
    suite.failures = failures.of_meson(testlog)
    return meson_count(testlog)


def meson_test(suite, name, prefix, seconds, programs=()):
    """What it wrote of each program, or None."""
    log = ROOT / "build-asan" / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    suite.run(*prefix, "meson", "test", "-C", "build-asan", "--suite", name, "--no-rebuild", "--print-errorlogs",
              "--timeout-multiplier", TIMES_SLOWER, "--num-processes", "1" if name == "root" else str(os.cpu_count() or 2),
              *programs, seconds=seconds)
    return log.read_text(encoding="utf-8") if log.exists() else None


def meson_again(suite, name, prefix, testlog, failed):
    """The failed programs once more, each with all of its cases. Those that pass take the place of the first try."""
    second = meson_test(suite, name, prefix, AGAIN_SECONDS, failed)
    if second is None or len(second.splitlines()) != len(failed):
        return testlog
    still = failures.programs_of_meson(second)
    for program in failed:
        if program not in still:
            suite.log.write(f"passed only at the second try: {program}\n")
    suite.fine = suite.fine or not still
    lines = {json.loads(line)["name"]: line for line in [*testlog.splitlines(), *second.splitlines()]}
    return "\n".join(lines.values())


def run_unit(suite):
    return meson_suite(suite, "unit", 600)


def run_root(suite):
    return meson_suite(suite, "root", 1200, as_root("namespaces, mounts and cgroups"))


def run_clang(suite):
    if not shutil.which("clang"):
        raise Skip("no clang here")
    fine = configure(suite, "build-clang", cc="clang") and compile_all(suite, "build-clang")
    return Count(1) if fine else Count(failed=1)


def run_lint(suite):
    suite.run("scripts/lint.sh", "quick", seconds=120)
    lines = re.findall(r"^lint: \S+: (.*)$", suite.text(), re.MULTILINE)
    skipped = sum(line.startswith("skipped") for line in lines)
    passed = lines.count("ok")
    return Count(passed, max(len(lines) - passed - skipped, 0 if lines else 1), skipped)


def run_fuzz(suite):
    if not (ROOT / "tests" / "fuzz" / "meson.build").exists():
        raise Skip("there are no fuzz targets yet")
    if not shutil.which("clang"):
        raise Skip("libFuzzer comes with clang")
    if not configure(suite, "build-fuzz", "-Dfuzz=true", "-Dtests=false", "-Db_sanitize=address,undefined",
                     "-Db_lundef=false", cc="clang"):
        return Count(failed=1)
    suite.run("scripts/fuzz.sh", "build-fuzz", str(FUZZ_SECONDS), seconds=600 + 40 * FUZZ_SECONDS, show="fuzz: ")
    return closing_tally(suite)


def run_model(suite):
    """run.py looks for CBMC and says if there is none."""
    suite.run(sys.executable, "tests/model/run.py", seconds=1500, show="model: skipped")
    return closing_tally(suite)


def run_servers(suite, why, *command):
    """A runner of tests/, which starts servers of its own with data of their own."""
    env = {"CLOISTER_TEST_DATA": f"{TEST_DATA}-{suite.name}"}
    suite.run(*as_root(why), sys.executable, *command, seconds=1800, env=env, show="## ")
    return closing_tally(suite)


def run_sdk(suite):
    return run_servers(suite, "it starts a real server", "tests/e2e/run.py", "sdk", "code")


def run_e2e(suite):
    return run_servers(suite, "it starts a real server", "tests/e2e/run.py", "server")


def run_network(suite):
    """Namespaces of its own: nothing outside of this machine is needed or reached."""
    return run_servers(suite, "network namespaces and a real server", "tests/network/run.py")


class Preparation:
    """The downloads of the suites with servers, in the background; also the base template, if there is none yet."""

    def __init__(self):
        self.suite = Suite("prepare")
        try:
            command = [*as_root("it makes the base template"), "nice", sys.executable, "tests/e2e/run.py", "prepare"]
        except Skip:
            command = ["true"]  # the suites are skipped too, and say why
        self.thread = threading.Thread(target=self.suite.run, args=command, kwargs={"seconds": 1200}, daemon=True)
        self.thread.start()

    def wait(self):
        if self.thread.is_alive():
            say("waiting for what they need: build/test-logs/prepare.log")
        wait_for_thread(self.thread)


def closing_tally(suite):
    tallies = TALLY.findall(suite.text())
    if not tallies:
        return Count(failed=1)
    return Count(*(int(number or 0) for number in tallies[-1]))


# What to run, what it is for, and what reads the failures from its log.
SUITES = {
    "unit": (run_unit, "unit tests under ASan and UBSan, and the layering", failures.of_build),
    "root": (run_root, "what needs root: isolation, images, roles", failures.of_build),
    "clang": (run_clang, "the same source by clang, warnings are errors", failures.of_build),
    "lint": (run_lint, "formatting, Python, shell", failures.of_lint),
    "fuzz": (run_fuzz, f"each decoder for {FUZZ_SECONDS} s", failures.of_fuzz),
    "model": (run_model, "a proof by CBMC that the mail gate keeps its promises", failures.of_model),
    "sdk": (run_sdk, "a real server: the public SDKs of all ages, run_code", failures.of_parts),
    "e2e": (run_e2e, "a real server: faults, misuse, isolation, HTTP, TLS", failures.of_parts),
    "network": (run_network, "sandboxes and an Internet in namespaces", failures.of_parts),
}


FIRST = ("unit", "root")  # with nothing beside them: some of their tests measure time
AT_ONCE = ("sdk", "e2e", "network")


class Run:
    """What has been run so far."""

    def __init__(self):
        self.total, self.rows, self.failed, self.suites = Count(), [], [], []
        self.again = []  # what passed only at the second try
        self.lock = threading.Lock()

    def one(self, name):
        function, about, failures_of = SUITES[name]
        say(f"{name:7} {about} …", indent="")
        suite, began = Suite(name), time.monotonic()
        self.suites.append(suite)
        try:
            count = function(suite)
            if not suite.fine and not count.failed:  # it was cut off, or does not count all that fails
                count.failed = 1
        except Skip as why:
            count = Count(skipped=1)
            say(f"{name}: skipped: {why}")
        except Exception:  # of ours: the other suites go on, and this one counts as failed
            suite.log.write(traceback.format_exc())
            count = Count(failed=1)
        with self.lock:
            self.note(suite, count, time.monotonic() - began, failures_of)

    def note(self, suite, count, seconds, failures_of):
        if count.failed:
            found = suite.failures or failures_of(suite.text())
            self.failed += [(suite.name, failure) for failure in found]
            detail = [line for failure in found for line in (f"{failure.test}:" if failure.test else "", *failure.detail)]
            print("".join(f"       | {line}\n" for line in detail[:DETAIL_LINES]), end="")
        self.again += [f"{suite.name}: {test}: passed only at the second try" for test in failures.AGAIN.findall(suite.text())]
        self.rows.append((suite.name, seconds, count))
        self.total.add(count)
        say(f"{suite.name}: {count} ({seconds:.0f} s, {suite.log_path.relative_to(ROOT)})")

    def all(self, names):
        servers = [name for name in names if name in AT_ONCE]
        preparation = None
        threads = [threading.Thread(target=self.one, args=(name,), daemon=True) for name in servers]
        try:
            for name in [name for name in names if name in FIRST]:
                self.one(name)
            preparation = Preparation() if servers else None
            for name in [name for name in names if name not in FIRST and name not in AT_ONCE]:
                self.one(name)
            if preparation:
                preparation.wait()
            for thread in threads:
                thread.start()
            for thread in threads:
                wait_for_thread(thread)
        finally:  # also by a signal, which those in sessions of their own do not get
            for suite in [*self.suites, *([preparation.suite] if preparation else [])]:
                suite.end()


def end_by_signal(number, _frame):
    """By way of `finally`, which a second signal must not cut off: a closed terminal sends two."""
    for other in END_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(f"ended by signal {number}")


def main():
    names = list(dict.fromkeys(sys.argv[1:])) or list(SUITES)
    for name in names:
        if name not in SUITES:
            sys.exit(f"there is no suite '{name}': {', '.join(SUITES)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "tally").unlink(missing_ok=True)
    for number in END_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, end_by_signal)
    began, run = time.monotonic(), Run()
    run.all(names)
    (LOGS / "tally").write_text(f"{run.total}\n", encoding="utf-8")
    for name, seconds, count in run.rows:
        print(f"{name:7} {seconds:6.0f} s  {count}")
    print(f"{'all':7} {time.monotonic() - began:6.0f} s")
    for line in [*run.again, *failures.report(run.failed)]:
        print(line)
    print(run.total)
    return 1 if run.total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
