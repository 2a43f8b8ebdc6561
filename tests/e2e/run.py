#!/usr/bin/env python3
"""run.py - the end-to-end tests: a real server, driven by the public SDKs, their command line, and raw HTTP.

Makes what it needs below build/e2e (virtual environments, npm packages), runs every suite, and ends with one line,
'N passed, N failed, N skipped'. server.py says which server is tested and where its data is.

    run.py [SUITE…] [-- PYTEST OPTION…]      for instance   run.py http -- -k traversal
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "e2e"
sys.path.insert(0, str(HERE))

PYTHON_TOOLS = ["pytest", "pytest-timeout"]
# The oldest Python SDK that we promise, and whatever is the newest today.
PYTHON_SDKS = {"newest": "e2b", "2.20.3": "e2b==2.20.3", "interpreter": "e2b-code-interpreter"}
NPM_PACKAGES = ["e2b@latest", "@e2b/cli@latest", "@e2b/code-interpreter@latest"]


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def make_venv(name):
    """A virtual environment with that SDK. `newest` is looked up each time, and an older one does when that fails."""
    home = WORK / f"venv-{name}"
    python = home / "bin" / "python"
    done = home / ".done"
    if done.exists() and name != "newest":
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
        PYTHON_SDKS[name],
        *PYTHON_TOOLS,
    ]
    if subprocess.run(install, check=False).returncode and not done.exists():
        raise RuntimeError(f"could not install {PYTHON_SDKS[name]} from PyPI")
    done.touch()
    return python


def make_npm():
    home = WORK / "npm"
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "package.json").exists():
        (home / "package.json").write_text('{"private": true}\n')
    install = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--no-progress", *NPM_PACKAGES]
    if subprocess.run(install, cwd=home, check=False).returncode and not (home / "node_modules" / "e2b").exists():
        raise RuntimeError(f"could not install {', '.join(NPM_PACKAGES)} from npm")
    return home


def version_of(python):
    code = "import importlib.metadata as m; print(m.version('e2b'))"
    return subprocess.run([str(python), "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def run_pytest(python, name, files, options, env=None):
    report = WORK / f"{name}.xml"
    report.unlink(missing_ok=True)
    subprocess.run(
        [
            str(python),
            "-m",
            "pytest",
            f"--junitxml={report}",
            "-o",
            f"junit_suite_name={name}",
            *options,
            *(str(HERE / file) for file in files),
        ],
        cwd=HERE,
        check=False,
        env={**os.environ, **(env or {})},
    )
    if not report.exists():
        return Count(failed=1)  # it broke before the first test
    total = Count()
    for suite in xml.parse(report).getroot().iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        total.add(Count(int(suite.get("tests", 0)) - failed - skipped, failed, skipped))
    return total


def run_python_sdk(name):
    def run(options):
        python = make_venv(name)
        print(f"# Python SDK {version_of(python)}", flush=True)
        return run_pytest(python, f"sdk-python-{name}", ["test_sdk_python.py"], options)

    return run


def run_js(file):
    return lambda options: run_js_file(file)


def run_js_file(file):
    home = make_npm()
    from server import TEST_DATA, Server, share_template

    share_template(TEST_DATA)
    server = Server()
    server.start()
    try:
        server.kill_all()
        test = home / file  # where node looks for packages: beside node_modules
        shutil.copy(HERE / file, test)
        result = subprocess.run(
            ["node", "--test", "--test-reporter=tap", str(test)],
            cwd=home,
            check=False,
            env=server.environment(),
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
    home = make_npm()
    return run_pytest(
        make_venv("newest"),
        "cli",
        ["test_cli.py"],
        options,
        {"CLOISTER_E2B_CLI": str(home / "node_modules" / ".bin" / "e2b")},
    )


def run_files(*files, sdk="newest"):
    def run(options):
        return run_pytest(make_venv(sdk), files[0].removesuffix(".py"), files, options)

    return run


SUITES = {
    "python-newest": run_python_sdk("newest"),
    "python-2.20.3": run_python_sdk("2.20.3"),
    "js": run_js("test_sdk_js.mjs"),
    "cli": run_cli,
    "http": run_files("test_http.py", "test_edge.py"),
    "isolation": run_files("test_isolation.py"),
    "faults": run_files("test_faults.py"),
    "interpreter": run_files("test_interpreter.py", sdk="interpreter"),
    "interpreter-js": run_js("test_interpreter.mjs"),
}


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        options = arguments[arguments.index("--") + 1 :]
        arguments = arguments[: arguments.index("--")]
    unknown = [name for name in arguments if name not in SUITES]
    if unknown:
        sys.exit(f"there is no suite {unknown[0]}: {', '.join(SUITES)}")
    WORK.mkdir(parents=True, exist_ok=True)
    total = Count()
    for name in arguments or SUITES:
        print(f"## {name}", flush=True)
        try:
            count = SUITES[name](options)
        except Exception as error:  # one suite that cannot even start must not hide the others
            print(f"{name}: {error}", flush=True)
            count = Count(failed=1)
        print(f"## {name}: {count}\n", flush=True)
        total.add(count)
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
