#!/usr/bin/env python3
"""run.py - the end-to-end tests: a real server, driven by the public SDKs, their command line, and raw HTTP.

Makes what it needs below build/e2e (virtual environments, npm packages), runs every suite, and ends with a table of the
clients it tried and one line, 'N passed, N failed, N skipped'. The table in README.md is what a run printed; after a
change, `run.py sdk` prints it again. server.py says which server is tested and where its data is.

    run.py [SUITE…] [-- PYTEST OPTION…]      for instance   run.py http -- -k traversal
    run.py prepare                           only makes what the suites need

A group's name stands for its suites: `sdk` (every release of a client), `code` (run_code), `server` (all others). Runs
at the same time need data directories of their own; `make test` has two.
"""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "e2e"
sys.path.insert(0, str(HERE))

PYTHON_TOOLS = ["pytest", "pytest-timeout"]
# From the oldest that we promise to whatever is the newest today; JavaScript releases of about the same ages.
PYTHON_SDKS = {
    "newest": "e2b",
    "2.45.1": "e2b==2.45.1",
    "2.20.3": "e2b==2.20.3",
    "2.10.0": "e2b==2.10.0",
    "2.2.0": "e2b==2.2.0",
    "interpreter": "e2b-code-interpreter e2b",  # named, because pip brings only what is named up to date
    "interpreter-2.6.2": "e2b-code-interpreter==2.6.2 e2b==2.20.3",
    "interpreter-1.5.2": "e2b-code-interpreter==1.5.2",
    "multimail": "multimail==0.1.1 requests",
    "mcp": "mcp",
    "mcp-1.30.0": "mcp==1.30.0",
}
NPM_PACKAGES = {
    "newest": ["e2b@latest", "@e2b/cli@latest", "@e2b/code-interpreter@latest", "tsx@latest"],  # tsx: what `template init` runs
    "2.45.0": ["e2b@2.45.0"],
    "2.20.1": ["e2b@2.20.1"],
    "2.10.2": ["e2b@2.10.2"],
    "2.2.1": ["e2b@2.2.1", "@e2b/code-interpreter@2.0.0"],
    "1.5.1": ["e2b@1.13.2", "@e2b/code-interpreter@1.5.1"],
    "lobstermail": ["@lobsterkit/lobstermail@1.7.0", "ws@8"],
}


FIXED = re.compile(r"\w(==|@)\d[\w.]*$")  # pip's name==1.2.3, npm's @scope/name@1.2.3
LOOKUP_SECONDS = 3600  # how long the newest release stays the newest: PyPI and npm are not asked for each suite

TABLE = {}  # (client, version) of each SDK that was tried: its counts by "url" and by "domain"


def note(client, version, by_domain, count):
    TABLE.setdefault((client, version), {})["domain" if by_domain else "url"] = count


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@contextlib.contextmanager
def alone(home):
    """One process at a time makes or updates what is in `home`. Two runs can want the same at the same time."""
    WORK.mkdir(parents=True, exist_ok=True)
    with open(home.with_name(f"{home.name}.lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_made(done, packages):
    """Whether nothing is to be installed. Where a package has no fixed version, that is true only for a while."""
    if not done.exists():
        return False
    return all(map(FIXED.search, packages)) or time.time() - done.stat().st_mtime < LOOKUP_SECONDS


def make_venv(name):
    """A virtual environment with that SDK. If the newest release cannot be looked up, the installed one is used."""
    home = WORK / f"venv-{name}"
    with alone(home):
        return update_venv(name, home)


def update_venv(name, home):
    python = home / "bin" / "python"
    done = home / ".done"
    packages = PYTHON_SDKS[name].split()
    if is_made(done, packages):
        return python
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
        *packages,
        *PYTHON_TOOLS,
    ]
    if subprocess.run(install, check=False).returncode and not done.exists():
        raise RuntimeError(f"could not install {PYTHON_SDKS[name]} from PyPI")
    done.touch()
    return python


def make_npm(name):
    home = WORK / ("npm" if name == "newest" else f"npm-{name}")
    with alone(home):
        return update_npm(name, home)


def update_npm(name, home):
    done = home / ".done"
    if is_made(done, NPM_PACKAGES[name]):
        return home
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "package.json").exists():
        (home / "package.json").write_text('{"private": true}\n')
    install = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--no-progress", *NPM_PACKAGES[name]]
    if subprocess.run(install, cwd=home, check=False).returncode and not done.exists():
        raise RuntimeError(f"could not install {', '.join(NPM_PACKAGES[name])} from npm")
    done.touch()
    return home


def prepare():
    """Everything that the suites need. What fails is tried again, and said, by the suite that needs it."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # one of them waits for a network most of the time
        jobs = [pool.submit(make_npm, name) for name in NPM_PACKAGES] + [pool.submit(make_venv, name) for name in PYTHON_SDKS]
        make_base()
    for job in jobs:
        if job.exception():
            print(f"{job.exception()}", flush=True)


def npm_version(home, package):
    return json.loads((home / "node_modules" / package / "package.json").read_text())["version"]


def version_of(python, package="e2b"):
    code = f"import importlib.metadata as m; print(m.version('{package}'))"
    return subprocess.run([str(python), "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


NO_TESTS = 5  # not a failure if options, such as -k, choose the tests, or if whole files are skipped
PYTEST_CODES = {
    2: "it was interrupted, and the tests after that did not run",
    3: "it broke",
    4: "an option or a file is wrong",
    NO_TESTS: "there are no tests",
}


AGAIN_MAX = 3  # failed tests of one suite that get a second try; more of them are no accident
AGAIN = "passed only at the second try: "  # scripts/failures.py knows this line


def run_pytest(python, name, files, options, env=None, cwd=HERE):
    """A test that fails is tried once more by itself. If it passes then, it counts, and a line says which it was."""
    total, failed = pytest_once(python, name, [str(HERE / file) for file in files], options, env, cwd)
    if not 0 < len(failed) <= AGAIN_MAX or len(failed) != total.failed:
        return total
    print(f"# a second try: {' '.join(failed)}", flush=True)
    chosen = [str(cwd / test) for test in failed]
    # Without the options: they choose among the tests, which is done.
    second, still = pytest_once(python, f"{name}-again", chosen, [], env, cwd)
    if second.passed + second.failed < len(failed):  # it did not get to all of them
        return total
    for test in failed:
        if test not in still:
            print(f"{AGAIN}{test}", flush=True)
            total.add(Count(1, -1))
    return total


def pytest_once(python, name, tests, options, env, cwd):
    """The counts, and which tests failed: their ids, as pytest takes them from `cwd`."""
    report = WORK / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", f"--junitxml={report}", "-o", f"junit_suite_name={name}", *options, *tests]
    code = subprocess.run(command, cwd=cwd, check=False, env={**os.environ, **(env or {})}).returncode
    total, failed = Count(), []
    for suite in xml.parse(report).getroot().iter("testsuite") if report.exists() else ():
        wrong = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        total.add(Count(int(suite.get("tests", 0)) - wrong - skipped, wrong, skipped))
        failed += [test_id(case) for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None]
    fine = report.exists() and (code == 0 or code == NO_TESTS and (options or total.skipped))
    if not fine and not total.failed:
        print(f"pytest ended with code {code}: {PYTEST_CODES.get(code, 'it ended before its last test')}", flush=True)
        total.failed = 1
    return total, failed


def test_id(case):
    """A test's id from its row in the report, which has `test_file.Class` and the name with its parameters."""
    file, *classes = case.get("classname", "").split(".")
    return "::".join([f"{file}.py", *classes, case.get("name", "")])


DOMAIN_MODE = {"CLOISTER_E2E_DOMAIN": "yes"}  # see server.py


def run_python_sdk(name, by_domain=False):
    def run(options):
        python = make_venv(name)
        version = version_of(python)
        print(f"# Python SDK {version}", flush=True)
        suite = f"{'domain' if by_domain else 'sdk'}-python-{name}"
        count = run_pytest(python, suite, ["test_sdk_python.py"], options, DOMAIN_MODE if by_domain else None)
        note("Python `e2b`", version, by_domain, count)
        return count

    return run


def run_python_code(name):
    """The code interpreter in domain mode."""

    def run(options):
        python = make_venv(name)
        env = {**DOMAIN_MODE, "CLOISTER_E2E_SDK": name}
        count = run_pytest(python, f"domain-{name}", ["test_domain.py"], options, env)
        version = f"{version_of(python, 'e2b-code-interpreter')} with `e2b` {version_of(python)}"
        note("Python `e2b-code-interpreter`", version, True, count)
        return count

    return run


def run_js(file, name="newest"):
    return lambda options: run_js_file(file, make_npm(name))


def run_js_sdk(name, by_domain=False):
    def run(options):
        home = make_npm(name)
        count = run_js_file("test_sdk_js.mjs", home, by_domain)
        note("JavaScript `e2b`", npm_version(home, "e2b"), by_domain, count)
        return count

    return run


def run_js_code(name):
    def run(options):
        home = make_npm(name)
        count = run_js_file("test_domain.mjs", home, by_domain=True)
        version = f"{npm_version(home, '@e2b/code-interpreter')} with `e2b` {npm_version(home, 'e2b')}"
        note("JavaScript `@e2b/code-interpreter`", version, True, count)
        return count

    return run


def run_lobstermail(options):
    """Sign-ups of all runs in an hour come from one address, and one inbox sends most of the messages."""
    serve = ["--mail-signups-per-hour", "1000", "--mail-sends-per-minute", "30"]
    return run_js_file("test_mail_lobstermail.mjs", make_npm("lobstermail"), serve=serve)


def force_exit():
    """Old SDKs leave timers of a minute behind, for which node would wait. Releases of node before 20.14 do."""
    known = subprocess.run(["node", "--test-force-exit", "--version"], check=False, capture_output=True).returncode == 0
    return ["--test-force-exit"] if known else []


def run_js_file(file, home, by_domain=False, serve=()):
    """Node's runner cannot choose one test by its whole name, so a second try is one of the file."""
    count = js_once(file, home, by_domain, serve)
    if 0 < count.failed <= AGAIN_MAX:
        print(f"# a second try: {file}", flush=True)
        second = js_once(file, home, by_domain, serve)
        if not second.failed:
            print(f"{AGAIN}{file}", flush=True)
            return second
    return count


def js_once(file, home, by_domain, serve):
    import server as servers

    servers.prepare(servers.TEST_DATA)
    server = servers.Server(options=serve)
    server.start_when_free()
    try:
        server.kill_all()
        test = home / file  # where node looks for packages: beside node_modules
        shutil.copy(HERE / file, test)
        result = subprocess.run(
            ["node", "--test", *force_exit(), "--test-reporter=tap", str(test)],
            cwd=home,
            check=False,
            env={**server.environment(by_domain), "CLOISTER_E2E_ADMIN_TOKEN": str(server.data / "admin-token")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
    finally:
        try:
            server.kill_all()
        finally:
            server.stop()
    print(result.stdout)
    numbers = {
        word: int(number)
        for word, number in re.findall(r"^# (pass|fail|cancelled|skipped) (\d+)", result.stdout, re.MULTILINE)
    }
    count = Count(
        numbers.get("pass", 0), numbers.get("fail", 0) + numbers.get("cancelled", 0), numbers.get("skipped", 0)
    )
    if result.returncode and not count.failed:
        count.failed = 1
    return count


def run_cli(options):
    home = make_npm("newest")
    count = run_pytest(
        make_venv("newest"),
        "cli",
        ["test_cli.py"],
        options,
        {"CLOISTER_E2B_CLI": str(home / "node_modules" / ".bin" / "e2b")},
    )
    note("`@e2b/cli`", npm_version(home, "@e2b/cli"), False, count)
    return count


def run_images(options):
    """Templates that begin with an image, by both SDKs: the JavaScript one is started by the Python tests."""
    node = {"CLOISTER_E2E_NPM": str(make_npm("newest"))}
    return run_pytest(make_venv("newest"), "images", ["test_template_images.py"], options, node)


def run_files(*files, sdk="newest"):
    def run(options):
        return run_pytest(make_venv(sdk), files[0].removesuffix(".py"), files, options, {"CLOISTER_E2E_SDK": sdk})

    return run


SUITES = {
    "python-newest": run_python_sdk("newest"),
    "python-2.45.1": run_python_sdk("2.45.1"),
    "python-2.20.3": run_python_sdk("2.20.3"),
    "python-2.10.0": run_python_sdk("2.10.0"),
    "js": run_js_sdk("newest"),
    "js-2.45.0": run_js_sdk("2.45.0"),
    "js-2.20.1": run_js_sdk("2.20.1"),
    "js-2.10.2": run_js_sdk("2.10.2"),
    "domain-python-newest": run_python_sdk("newest", by_domain=True),
    "domain-python-2.20.3": run_python_sdk("2.20.3", by_domain=True),
    "domain-python-2.2.0": run_python_sdk("2.2.0", by_domain=True),
    "domain-js": run_js_sdk("newest", by_domain=True),
    "domain-js-2.20.1": run_js_sdk("2.20.1", by_domain=True),
    "domain-js-2.2.1": run_js_sdk("2.2.1", by_domain=True),
    "domain-code-newest": run_python_code("interpreter"),
    "domain-code-2.6.2": run_python_code("interpreter-2.6.2"),
    "domain-code-1.5.2": run_python_code("interpreter-1.5.2"),
    "domain-code-js": run_js_code("newest"),
    "domain-code-js-2.0.0": run_js_code("2.2.1"),
    "domain-code-js-1.5.1": run_js_code("1.5.1"),
    "cli": run_cli,
    "tls": run_files("test_tls.py"),
    "http": run_files("test_http.py", "test_http2.py", "test_edge.py", "test_teams.py"),
    "templates": run_files(
        "test_templates.py", "test_template_builds.py", "test_template_engine.py", "test_template_manage.py"
    ),
    "templates-js": run_js("test_templates.mjs"),
    "images": run_images,
    "import": run_files("test_template_import.py"),
    "debian": run_files("test_template_debian.py"),
    "pulls": run_files("test_template_pulls.py"),
    "isolation": run_files("test_isolation.py"),
    "command": run_files("test_command.py", "test_template_command.py"),
    "network": run_files("test_network.py"),
    "pause": run_files("test_pause.py"),
    "persistence": run_files("test_persistence.py", sdk="interpreter"),
    "faults": run_files("test_faults.py"),
    "pool": run_files("test_pool.py"),
    "disk": run_files("test_full_disk.py"),
    "cuts": run_files("test_cuts.py"),
    "misuse": run_files("test_misuse.py"),
    "mail": run_files("test_mail.py", sdk="interpreter"),
    "mail-mcp": run_files("test_mail_mcp.py", sdk="mcp"),
    "mail-mcp-1.30.0": run_files("test_mail_mcp.py", sdk="mcp-1.30.0"),
    "mail-matrix": run_files("test_mail_matrix.py"),
    "mail-faults": run_files("test_mail_faults.py"),
    "mail-processes": run_files("test_mail_processes.py"),
    "mail-signup": run_files("test_mail_signup.py"),
    "mail-webhooks": run_files("test_mail_webhooks.py"),
    "mail-multimail": run_files("test_mail_multimail.py", sdk="multimail"),
    "mail-lobstermail": run_lobstermail,
    "interpreter": run_files("test_interpreter.py", "test_tutorials.py", "test_packages.py", sdk="interpreter"),
    "zygotes": run_files("test_zygote.py", sdk="interpreter"),
    "interpreter-js": run_js("test_interpreter.mjs"),
}

# By how the name of a suite begins.
GROUPS = {"python": "sdk", "js": "sdk", "cli": "sdk", "domain": "sdk", "interpreter": "code", "zygotes": "code"}


def group_of(name):
    return GROUPS.get(name.split("-")[0], "server")


def make_base():
    """The tests are for the base template of today. Done at once unless another version of Cloister has built it."""
    from server import SHARED_DATA, cloister

    if os.geteuid() != 0:
        return
    try:
        cloister("template", "build", "base", data=SHARED_DATA, stdout=subprocess.DEVNULL)
    except subprocess.CalledProcessError:  # no mirror, or somebody else makes one there right now
        print("base could not be brought up to date; the tests take the one that is there", flush=True)


def print_table():
    print("| client | version | by URL | by domain, with TLS |\n|---|---|---|---|")
    clients = [client for client, _ in TABLE]
    for (client, version), counts in sorted(TABLE.items(), key=lambda row: clients.index(row[0][0])):
        print(f"| {client} | {version} | {counts.get('url', '')} | {counts.get('domain', '')} |")
    print()


def suites_of(arguments):
    """The suites to run, each once."""
    if not arguments:
        return list(SUITES)
    groups = set(arguments) & {*GROUPS.values(), "server"}
    named = [name for name in arguments if name not in groups]
    unknown = [name for name in named if name not in SUITES]
    if unknown:
        sys.exit(f"there is no suite {unknown[0]}: {', '.join(SUITES)}")
    return list(dict.fromkeys(named + [name for name in SUITES if group_of(name) in groups]))


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        options = arguments[arguments.index("--") + 1 :]
        arguments = arguments[: arguments.index("--")]
    if arguments == ["prepare"]:
        prepare()
        return 0
    names = suites_of(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    make_base()
    total = Count()
    for name in names:
        print(f"## {name}", flush=True)
        began = time.monotonic()
        try:
            count = SUITES[name](options)
        except Exception as error:  # one suite that cannot even start must not hide the others
            print(f"{name}: {error}", flush=True)
            count = Count(failed=1)
        print(f"## {name}: {count} ({time.monotonic() - began:.0f} s)\n", flush=True)
        total.add(count)
    if TABLE:
        print_table()
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
