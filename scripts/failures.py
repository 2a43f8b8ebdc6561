"""failures.py - which tests failed, read from what the test programs printed.

Each function takes a log and returns a list of Failure. A part of a log that has failed and does not say where is a
failure too, with its last line, so that none goes unseen.
"""

import json
import re

LINE_CHARACTERS = 160  # a line that a terminal and a CI page show whole, or nearly so
LINES_MAX = 20  # with the tally and make's own line fewer than 24: a CI page may show no more of the end
DETAIL_LINES = 40  # of one failure
SANITIZER = re.compile(r"(?:ERROR: (?=\w+Sanitizer|libFuzzer)|(?<= )runtime error: ).*")
CASE = re.compile(r"^\[\s*(RUN|OK|FAILED|SKIPPED)\s*\] (\S+?)(?:: Test failed\.?)?$", re.MULTILINE)
BROKEN_SETUP = re.compile(r"^\[\s*ERROR\s*\] (\w+)$", re.MULTILINE)
ASSERTION = re.compile(r"^\[\s*ERROR\s*\] --- (.*)\n\[\s*LINE\s*\] --- (\S+?): error", re.MULTILINE)
PART = re.compile(r"^## (\S+)$")
PART_END = re.compile(r"^## (\S+): \d+ passed, (\d+) failed")
PYTEST_SUMMARY = re.compile(r"^(FAILED|ERROR) (\S+\.py(?:::[\w:]+(?:\[.*?\])?)?)(?: - (.*))?$")
PYTEST_HEADING = re.compile(r"^_+ (?:ERROR (?:at \w+ of|collecting) )?([A-Za-z].*?) _+$")  # a long name has one underscore
AGAIN = re.compile(r"^passed only at the second try: (.*)$", re.MULTILINE)  # by the runners: see tests/e2e/run.py
PYTEST_ENDED = re.compile(r"^pytest ended with code -?\d+: .*$")  # by tests/e2e/run.py
# What pytest-timeout prints before the stacks, right behind what pytest has printed so far of this line.
TIMEOUT = re.compile(r"^(.*?)\s*\+{5,} Timeout \+{5,}$")
TIMEOUT_TEST = re.compile(r"^(\S+\.py::.+?)(?:\s+[A-Z]{4,}(?:\s.*)?)?$")  # its outcome is there if what follows it took too long
TIMEOUT_FRAME = re.compile(r'^  File "(.*?)", line (\d+), in (.+)$')
NOT_OK = re.compile(r"^(\s*)not ok \d+ - (.*?)(?: # (SKIP|TODO)\b.*)?$")


class Failure:
    def __init__(self, test, wrong, detail=()):
        self.test, self.wrong, self.detail = test, first_line(wrong), list(detail)[-DETAIL_LINES:]

    def line(self, suite):
        text = f"{suite}: {self.test}: {self.wrong}" if self.test else f"{suite}: {self.wrong}"
        return text if len(text) <= LINE_CHARACTERS else text[: LINE_CHARACTERS - 1] + "…"


def first_line(text):
    return next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")


def last_line(text):
    return first_line("\n".join(reversed(text.splitlines())))


def report(failures):
    """The lines to print for (suite, Failure) pairs."""
    lines = [failure.line(suite) for suite, failure in failures]
    if len(lines) > LINES_MAX:
        lines[LINES_MAX:] = [f"and {len(lines) - LINES_MAX} more in build/test-logs"]
    return lines


def of_meson(testlog):
    """testlog.json: the cases of cmocka's programs, and programs that failed without naming one."""
    found = []
    for text in testlog.splitlines():
        test = json.loads(text)
        if test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL"):
            found += of_program(test["name"].split(" / ")[-1], test["result"], test.get("stdout", ""), test.get("stderr", ""))
    return found


def programs_of_meson(testlog):
    """The programs of testlog.json that failed, by the names that `meson test` takes."""
    tests = [json.loads(text) for text in testlog.splitlines()]
    return [test["name"].split(" / ")[-1] for test in tests if test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")]


def of_program(name, result, out, errors):
    """One program. Its stdout has the cases in order, its stderr what was wrong with those that failed, in order too."""
    both = f"{out}\n{errors}"
    detail = both.splitlines()
    failed = list(dict.fromkeys(case for word, case in CASE.findall(both) if word == "FAILED"))
    wrongs = [f"{text} ({where})" for text, where in ASSERTION.findall(errors)]
    found = [
        Failure(f"{name} {case}", wrongs[nth] if len(wrongs) == len(failed) else "; ".join(wrongs), detail)
        for nth, case in enumerate(failed)
    ]
    found += [Failure(f"{name} {case}", "its setup failed", detail) for case in BROKEN_SETUP.findall(errors)]
    if found:
        return found
    cases = [(word, case) for word, case in CASE.findall(out)]
    running = f" {cases[-1][1]}" if cases and cases[-1][0] == "RUN" else ""
    sanitizer = SANITIZER.search(both)
    if sanitizer:
        wrong = sanitizer.group().removeprefix("ERROR: ")
    elif result == "TIMEOUT":
        wrong = "it took too long"
    elif cases:
        wrong = f"it ended before its last test ({result})"
    else:
        wrong = last_line(both) if "Traceback " in both else first_line(both)
    return [Failure(name + running, wrong, detail)]


def of_build(log):
    """A compiler's errors, or those of a tool before it."""
    lines = log.splitlines()
    errors = [nth for nth, line in enumerate(lines) if re.search(r"\berror: |\bERROR: |undefined reference|: fatal error", line)]
    seen = {lines[nth].split(": ")[0]: nth for nth in reversed(errors)}
    return [Failure("", lines[nth], lines[nth : nth + DETAIL_LINES]) for nth in sorted(seen.values())] or unnamed(log)


def of_lint(log):
    found, above = [], []
    for line in log.splitlines():
        report_line = re.match(r"lint: (\S+): (.*)", line)
        if not report_line:
            above.append(line)
            continue
        name, said = report_line.groups()
        if said != "ok" and not said.startswith("skipped"):
            complaints = [text for text in above if text.strip() and not text.startswith("$ ")]
            # Of a Python traceback the last line says what was wrong, and the last file where.
            places = re.findall(r'^  File "(.*?)", (line \d+)', "\n".join(complaints), re.MULTILINE)
            wrong = f"{complaints[-1]} ({', '.join(places[-1])})" if places else "\n".join(complaints)
            found.append(Failure(name, wrong or said, complaints))
        above = []
    return found or unnamed(log)


def of_fuzz(log):
    return of_failed("fuzz", log) or of_build(log)


def of_model(log):
    return of_failed("model", log) or unnamed(log)


def of_failed(program, log):
    """Lines of a script of ours: 'PROGRAM: TEST: FAILED, WHY'."""
    found = []
    for line in log.splitlines():
        failed = re.match(rf"{program}: (.*?): FAILED, (.*)", line)
        if failed:
            found.append(Failure(failed.group(1), failed.group(2), [line]))
    return found


def of_parts(log):
    """The suites of tests/e2e/run.py, which begin with `## NAME` and end with `## NAME: N passed, N failed…`."""
    found, part, lines = [], None, []
    for line in log.splitlines():
        begin, end = PART.match(line), PART_END.match(line)
        if begin:
            part, lines = begin.group(1), []
        elif end and part == end.group(1):
            if int(end.group(2)):
                found += in_part(part, lines)
            part, lines = None, []
        else:
            lines.append(line)
    if part:  # it was cut off
        found += in_part(part, lines)
    return found or in_part("", log.splitlines())


def in_part(part, lines):
    inner = of_pytest(lines) + of_tap(lines)
    passed = AGAIN.findall("\n".join(lines))
    first = {one.test: one for one in reversed(inner) if one.test not in passed}  # one that fails twice is named once
    inner = list(reversed(first.values())) or unnamed("\n".join(lines))
    return [Failure(f"{part} {one.test}".strip(), one.wrong, one.detail) for one in inner]


def of_pytest(lines):
    sections, heading = {}, None
    found = []
    for line in lines:
        named = PYTEST_HEADING.match(line)
        summary = PYTEST_SUMMARY.match(line)
        if named:
            heading = sections.setdefault(named.group(1), [])
        elif re.match(r"^=+ .* =+$", line):
            heading = None
        elif heading is not None:
            heading.append(line)
        if summary and heading is None:
            _, test, message = summary.groups()
            body = sections.get(test.split("::", 1)[-1].replace("::", "."), sections.get(test, []))
            wrongs = [nth for nth, text in enumerate(body) if text.startswith("E  ")]
            # The summary is cut to the width of a terminal; the section has the whole line.
            wrong = body[wrongs[0]][1:] if wrongs else message or "see its log"
            found.append(Failure(test, wrong, body[: wrongs[-1] + 2] if wrongs else body))
    return found or of_pytest_timeout(lines) or of_pytest_end(lines)


def of_pytest_timeout(lines):
    """pytest-timeout ends the whole process, which then has no summary: the line before the stacks names the test."""
    begin = next((nth for nth, line in enumerate(lines) if TIMEOUT.match(line)), None)
    if begin is None:
        return []
    stacks = our_frames(lines[begin:])
    main = next((nth for nth, line in enumerate(stacks) if " Stack of MainThread " in line), 0)
    frames = [frame.groups() for frame in map(TIMEOUT_FRAME.match, stacks[main:]) if frame and "/tests/" in frame.group(1)]
    named = TIMEOUT_TEST.match(TIMEOUT.match(lines[begin]).group(1))
    test = named.group(1) if named else next((f"{name_of(path)}::{function}" for path, _, function in frames), "")
    # The place before the function: a line that is too long loses its end.
    where = "".join(f" at {name_of(path)}:{number} in {function}" for path, number, function in frames[-1:])
    return [Failure(test, f"it took too long{where}, and the tests after it did not run", stacks)]


def name_of(path):
    return path.rsplit("/", 1)[-1]


def our_frames(lines):
    """Stacks without the frames of pytest itself, which are most of them."""
    kept, skip = [], False
    for line in lines:
        frame = TIMEOUT_FRAME.match(line)
        if frame:
            skip = "/site-packages/" in frame.group(1) or frame.group(1).startswith("<frozen ")
        elif not line.startswith("    "):  # the source of a frame is below it
            skip = False
        if not skip:
            kept.append(line)
    return kept


def of_pytest_end(lines):
    return [Failure("", line, lines[:nth]) for nth, line in enumerate(lines) if PYTEST_ENDED.match(line)]


def of_tap(lines):
    found = []
    for nth, line in enumerate(lines):
        failed = NOT_OK.match(line)
        if not failed or failed.group(3):
            continue
        end = next((last for last in range(nth, len(lines)) if lines[last].strip() == "..."), nth)
        block = lines[nth : end + 1]
        text = "\n".join(block)
        if "failureType: 'subtestsFailed'" in text:
            continue  # those have lines of their own
        wrong = re.search(r"^\s*error: (?:\|-?\s*\n\s*)?(.*)$", text, re.MULTILINE)
        found.append(Failure(failed.group(2), wrong.group(1).strip("'\"") if wrong else "it does not say why", block))
    return found


def unnamed(log):
    return [Failure("", last_line(log), log.splitlines())]
