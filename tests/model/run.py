#!/usr/bin/env python3
"""run.py - prove with CBMC that the mail gate keeps its promises, and that the proof would notice if it did not.

    run.py                 every harness, then every mutant
    run.py NAME…           only these harnesses and mutants
    run.py --list          their names

A harness is a small program beside this file. CBMC compiles it together with src/mail/gate.c and src/policy/mail_rules.c
as they are, treats every input as unknown, and either proves all assertions or finds an input that breaks one.

  step       one step from any situation that the invariant of oracle.h permits; with the base case in `begin` this is a
             proof by induction, for sequences of any length
  begin      a new message meets the invariant
  sequence   eight calls in any order, and the promises said without the invariant
  edges      the table of states has each edge that a step can take, and no other
  rules      scopes, modes and states by themselves
  names      the allowlist and local parts, for all texts of up to five bytes

A mutant is a copy of the source with one mistake in it. A harness must fail on each of them, or the proof is worth nothing.
The last line is the tally: 'N passed, N failed'.
"""

import concurrent.futures
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = ("src/mail/gate.c", "src/policy/mail_rules.c", "src/base/str.c")
HARNESSES = ("rules", "begin", "edges", "step", "names", "sequence")  # the slowest last
SECONDS = 600  # for one run of CBMC; the longest needs half a minute of a processor
UNWIND = 33  # the longest loop is over the bytes of a hash, and one more shows that it has ended; CBMC checks this bound
# Overflows and wild pointers are no promise of the gate, but a proof does not hold in a program that has them. `step` and
# `names` go through all the code, so it is enough to look for wild pointers there.
CHECKS = ("--signed-overflow-check", "--undefined-shift-check")
MEMORY_CHECKS = ("--bounds-check", "--pointer-check")
MEMORY_CHECKED = ("step", "names", "rules", "begin")

GATE, RULES = "src/mail/gate.c", "src/policy/mail_rules.c"
# name: the harness that must fail, then (file, text that is there once, what takes its place)… "step SEND" is `step` with no
# other event than GATE_SEND: what fails there fails in `step`, and CBMC needs less time for it.
MUTANTS = {
    "approves-other-bytes": ("step APPROVE", (GATE, "if (!same_hash(in->hash, m->hash))", "if (false)")),
    "composer-approves": (
        "step APPROVE",
        (GATE, "if (in->is_composer)", "if (false)"),
        (RULES, "return !is_composer && mail_scope_allows(", "return mail_scope_allows("),
    ),
    "rule-lets-composer-decide": ("rules", (RULES, "return !is_composer && mail_scope_allows(", "return mail_scope_allows(")),
    "sender-approves": ("rules", (RULES, "return !(may_send(scopes) && (scopes & MAIL_SCOPE_OVERSIGHT));", "return true;")),
    "admin-approves": ("step APPROVE", (RULES, "return scopes & (MAIL_SCOPE_SEND | MAIL_SCOPE_ADMIN);", "return scopes & MAIL_SCOPE_SEND;")),
    "anybody-approves": ("step APPROVE", (GATE, "if (!mail_may_decide(in->scopes, in->is_composer))\n        return err_set(err, ERR_DENIED, \"this key", "if (false)\n        return err_set(err, ERR_DENIED, \"this key")),
    "approval-never-expires": ("step SEND", (GATE, "           now_us < approval->expires_us;", "           true;")),
    "approval-is-not-spent": ("step SEND", (GATE, "m->approval.is_spent = true;", "m->approval.is_spent = false;")),
    "edit-keeps-approval": ("step EDIT", (GATE, "    case MAIL_SCAN:\n    case MAIL_REJECTED:\n    case MAIL_CANCELLED:\n    case MAIL_EXPIRED:\n        m->approval", "    case MAIL_REJECTED:\n    case MAIL_CANCELLED:\n    case MAIL_EXPIRED:\n        m->approval")),
    "edit-after-queueing": (
        "step EDIT",
        (GATE, "[GATE_EDIT] = BIT(MAIL_SCHEDULED)", "[GATE_EDIT] = BIT(MAIL_SCHEDULED) | BIT(MAIL_QUEUED)"),
        (GATE, "    enter(m, MAIL_SCAN, in); /*", "    if (m->state == MAIL_SCHEDULED)\n        enter(m, MAIL_SCAN, in); /*"),
        (GATE, "    if (approval->is_there && !same_hash(approval->hash, message->hash))\n        return false;\n", ""),
        (GATE, "!approval->is_spent && same_hash(approval->hash, message->hash) &&", "!approval->is_spent &&"),
    ),
    "reschedule-changes-bytes": ("step RESCHEDULE", (GATE, "    m->send_at_us = in->send_at_us;\n    return tick(m, in);", "    memcpy(m->hash, in->hash, GATE_HASH_BYTES);\n    return tick(m, in);")),
    "dispatch-does-not-ask": ("sequence", (GATE, "switch (mail_judge(in->mode, in->all_allowlisted, is_approved)) {", "switch (MAIL_RELEASE) {")),
    "queue-is-not-pulled-back": ("step PULLBACK", (GATE, "(m->state == MAIL_UNDO || m->state == MAIL_QUEUED)", "m->state == MAIL_UNDO")),
    "schedule-is-not-pulled-back": ("step PULLBACK", (GATE, "m->state == MAIL_SCHEDULED && !m->schedule_first)\n        enter(m, MAIL_HELD, in);", "m->state == MAIL_SCHEDULED && !m->schedule_first)\n        return true;")),
    "read-only-sends-approved": ("rules", (RULES, "if (mode == MAIL_READ_ONLY)\n        return MAIL_REFUSE;", "if (mode == MAIL_READ_ONLY && !is_approved)\n        return MAIL_REFUSE;")),
    "read-only-approves": ("step APPROVE", (GATE, "if (in->mode == MAIL_READ_ONLY)", "if (false)")),
    "gated-send-lets-all-go": ("rules", (RULES, "return !all_allowlisted;", "return false;")),
    "gated-all-has-an-allowlist": ("step SEND", (RULES, "    case MAIL_GATED_SEND:\n        return !all_allowlisted;", "    case MAIL_GATED_ALL:\n    case MAIL_GATED_SEND:\n        return !all_allowlisted;")),
    "unknown-mode-is-open": ("rules", (RULES, "return true; /* also for a value that is none of them */", "return mode == MAIL_READ_ONLY || mode == MAIL_GATED_ALL;")),
    "up-without-a-code": ("rules", (RULES, "return to <= from || has_code;", "return true;")),
    "decides-after-expiry": ("step REJECT", (GATE, "if (in->now_us >= m->hold_until_us)", "if (false)")),
    "approver-cancels-anything": ("step CANCEL", (RULES, "return state == MAIL_UNDO && mail_may_decide(", "return mail_may_decide(")),
    "scan-does-not-block": ("step JUDGE", (GATE, "    if (in->scan_blocks)\n        enter(m, MAIL_REJECTED, in);\n    else if", "    if")),
    "dispatcher-settles-uncertain": ("step FAIL", (GATE, "if (m->state == MAIL_UNCERTAIN && !mail_may_decide(in->scopes, in->is_composer))", "if (false)")),
    "sends-twice": (
        "step REPEAT",
        (GATE, "BIT(MAIL_DEFERRED) | BIT(MAIL_UNCERTAIN) | BIT(MAIL_FAILED),\n    [MAIL_DEFERRED]", "BIT(MAIL_DEFERRED) | BIT(MAIL_UNCERTAIN) | BIT(MAIL_FAILED) | BIT(MAIL_QUEUED),\n    [MAIL_DEFERRED]"),
        (GATE, "        return true; /* it stays in MAIL_SENDING, on the release that it has */", "        enter(m, MAIL_QUEUED, in);\n        return true;"),
    ),
    "failed-mail-is-sent-again": (
        "step SEND",
        (GATE, "[MAIL_SENT] = BIT(MAIL_BOUNCED),", "[MAIL_SENT] = BIT(MAIL_BOUNCED),\n    [MAIL_FAILED] = BIT(MAIL_SENDING) | BIT(MAIL_HELD) | BIT(MAIL_REJECTED),"),
        (GATE, "[GATE_SEND] = BIT(MAIL_QUEUED),", "[GATE_SEND] = BIT(MAIL_QUEUED) | BIT(MAIL_FAILED),"),
    ),
    "table-leaves-a-final-state": ("rules", (GATE, "[MAIL_SENT] = BIT(MAIL_BOUNCED),", "[MAIL_SENT] = BIT(MAIL_BOUNCED),\n    [MAIL_EXPIRED] = BIT(MAIL_HELD),")),
    "table-lacks-an-edge": ("step TICK", (GATE, "BIT(MAIL_APPROVED) | BIT(MAIL_REJECTED) | BIT(MAIL_CANCELLED) | BIT(MAIL_EXPIRED),", "BIT(MAIL_APPROVED) | BIT(MAIL_REJECTED) | BIT(MAIL_CANCELLED),")),
    "table-has-an-unused-edge": ("edges", (GATE, "[MAIL_DEFERRED] = BIT(MAIL_SENT) | BIT(MAIL_FAILED),", "[MAIL_DEFERRED] = BIT(MAIL_SENT) | BIT(MAIL_FAILED) | BIT(MAIL_UNCERTAIN),")),
    "an-event-never-happens": ("edges", (GATE, "[GATE_LOST] = BIT(MAIL_SENDING),", "[GATE_LOST] = 0,")),
    "approved-stays": ("step APPROVE", (GATE, "    } else {\n        enter(m, MAIL_QUEUED, in);\n    }\n    return true;\n}\n\nstatic bool reject(", "    }\n    return true;\n}\n\nstatic bool reject(")),
    "time-overflows": ("step APPROVE", (GATE, "return at_us > INT64_MAX - by_us ? INT64_MAX : at_us + by_us;", "return at_us + by_us;")),
    "new-message-is-not-valid": ("begin", (GATE, "    case MAIL_SCAN:\n    case MAIL_HELD:\n    case MAIL_REJECTED:", "    case MAIL_HELD:\n    case MAIL_REJECTED:")),
    "allowlist-covers-other-domains": ("names", (RULES, "    if (!str_eq_nocase(want_domain, domain))", "    if (!str_ends(domain, want_domain))")),
    "allowlist-covers-quotes": ("names", (RULES, "out_local->len <= LOCAL_MOST && is_dotted(*out_local, is_atext, LOCAL_MOST) && is_host_name(rest)", "out_local->len <= LOCAL_MOST && is_host_name(rest)")),
    "zero-byte-hides-a-name": ("names", (RULES, "if (!is_local_char(c))", "if (c != '\\0' && !is_local_char(c))")),
}


def find_cbmc():
    found = subprocess.run([ROOT / "scripts" / "cbmc.sh"], check=False, capture_output=True, text=True)
    if found.returncode:
        print(f"model: skipped: {(found.stderr.strip().splitlines() or ['no cbmc here'])[-1]}")
        print("0 passed, 0 failed, 1 skipped")
        sys.exit(0)
    return found.stdout.strip()


class Model:
    def __init__(self):
        self.cbmc = find_cbmc()
        version = subprocess.run([self.cbmc, "--version"], check=True, capture_output=True, text=True).stdout
        # From 6 on all checks are on unless one says which.
        self.flags = (["--no-standard-checks"] if int(version.split(".")[0]) >= 6 else []) + list(CHECKS)
        print(f"model: CBMC {version.split()[0]}")

    def check(self, harness, tree, stop=False, event=None):
        """(the promises hold, what CBMC said). `tree` has src/ or a mutant of it."""
        memory = MEMORY_CHECKS if harness in MEMORY_CHECKED and not stop else ()
        command = [self.cbmc, *self.flags, *memory, "--unwind", str(UNWIND), "--unwinding-assertions", "-D_GNU_SOURCE",
                   *([f"-DONLY_EVENT=GATE_{event}"] if event else []), "-I", tree / "src",
                   "-I", HERE, *(["--stop-on-fail"] if stop else []), HERE / f"{harness}.c", HERE / "memory.c",
                   *(tree / source for source in SOURCES)]
        try:
            run = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return None, f"CBMC took longer than {SECONDS} s"
        if run.returncode not in (0, 10):  # proved; refuted
            return None, f"CBMC ended with code {run.returncode}: {(run.stdout + run.stderr)[-2000:]}"
        if stop:
            violated = re.search(r"^Violated property:\n.*\n  (.*)$", run.stdout, re.MULTILINE)
            return run.returncode == 0, violated[1] if violated else run.stdout[-2000:]
        refuted = re.findall(r"^\[\S+\] (?:line \d+ )?(.*): FAILURE$", run.stdout, re.MULTILINE)
        if harness == "edges":
            return judge_edges(refuted)
        return run.returncode == 0, "\n".join(refuted) or run.stdout[-2000:]


def judge_edges(refuted):
    """Its claims are that no edge is in the table and that none is taken."""
    table = {text.removeprefix("in the table: ") for text in refuted if text.startswith("in the table: ")}
    taken = {text.removeprefix("taken: ") for text in refuted if text.startswith("taken: ")}
    wrong = [text for text in refuted if not text.startswith(("in the table: ", "taken: "))]
    wrong += [f"in the table and never taken: {edge}" for edge in sorted(table - taken)]
    wrong += [f"taken and not in the table: {edge}" for edge in sorted(taken - table)]
    if not table:
        wrong.append("the table is empty")
    return not wrong, "\n".join(wrong)


def plant(name, tree):
    """A copy of the source with this mistake in it."""
    for source in SOURCES:
        (tree / source).parent.mkdir(parents=True, exist_ok=True)
        (tree / source).write_text((ROOT / source).read_text(encoding="utf-8"), encoding="utf-8")
    for header in (ROOT / "src").glob("*/*.h"):
        copy = tree / header.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.symlink_to(header)
    for file, old, new in MUTANTS[name][1:]:
        text = (tree / file).read_text(encoding="utf-8")
        if text.count(old) != 1:
            return f"the place to change is {'not unique' if old in text else 'gone'} in {file}: {old!r}"
        (tree / file).write_text(text.replace(old, new), encoding="utf-8")
    return None


def run_harness(model, name):
    holds, said = model.check(name, ROOT)
    return holds is True, "proved" if holds else f"FAILED, {said}"


def run_mutant(model, name):
    harness, *event = MUTANTS[name][0].split()
    with tempfile.TemporaryDirectory(prefix="cloister-model-") as directory:
        tree = pathlib.Path(directory)
        wrong = plant(name, tree)
        if wrong:
            return False, f"FAILED, {wrong}"
        holds, said = model.check(harness, tree, stop=harness != "edges", event=event[0] if event else None)
    if holds is None:
        return False, f"FAILED, {said}"
    if holds or "unwinding" in said:
        return False, f"FAILED, {harness} does not notice it: {said}"
    return True, f"caught by {harness}: {said.splitlines()[0]}"


def main():
    everything = [*HARNESSES, *MUTANTS]
    if sys.argv[1:] == ["--list"]:
        print("\n".join(everything))
        return 0
    names = sys.argv[1:] or everything
    for name in names:
        if name not in everything:
            sys.exit(f"there is no harness or mutant '{name}': run.py --list")
    model, failed = Model(), 0

    def one(name):
        began = time.monotonic()
        fine, said = run_harness(model, name) if name in HARNESSES else run_mutant(model, name)
        return fine, f"model: {'' if name in HARNESSES else 'mutant '}{name}: {said}", time.monotonic() - began

    began = time.monotonic()
    # The slowest first. Each is a process of its own that uses one processor.
    order = sorted(names, key=lambda name: -HARNESSES.index(MUTANTS.get(name, [name])[0].split()[0]))
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for fine, line, seconds in pool.map(one, order):
            head, _, rest = line.partition("\n")
            print(f"{head} ({seconds:.1f} s)" + (f"\n{rest}" if rest else ""), flush=True)
            failed += not fine
    processor = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"model: {time.monotonic() - began:.0f} s in all, {processor.ru_utime + processor.ru_stime:.0f} s of processor time")
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
