"""The Python side of run_code: the zygote, and the interpreters that it forks.

The build joins the files of this folder into one text. guestd or keeper sends that text to a `python3` of the template over a
socket (ZYGOTE_BOOT in wire/zygote.h), so the template needs no file of ours.

  zygote_outside.py  the zygote: one process for all sandboxes of a template, outside of them, as a user of its own. Imports the
                     usual packages while it is idle (warmth.py). Its forks enter a sandbox and become interpreters there.
  alone.py           the fallback: one process inside the sandbox, as the sandbox's user, that becomes one interpreter.
  interpreter.py     an interpreter. One from the zygote first checks that the sandbox has the packages that the zygote has
                     imported (stamps.py). Runs cells in IPython (ipython_shell.py) or, where that is not installed, in a
                     smaller shell of our own (small_shell.py).

An interpreter and guestd exchange frames over a socket (link.py): length (u32, big-endian), then
  from guestd   a JSON object: {"op": "rehearse", ...} to a spare, {"op": "start", ...} once, {"op": "run", ...} for every cell
  to guestd     a letter and a text:
                H hello                     S stale, instead of hello: the sandbox has other packages than the zygote
                W rehearsed, if "tell"      R ready for cells           C cell accepted; its number
                L a line of the answer, as the client gets it        X the same, an error
                D cell done; the text is the number from "run"

stdout and stderr are real pipes (streams.py). guestd empties them before it handles a frame, so output arrives before a result
(result.py) that was sent after it. Figures and images that packages show become results too (packages.py, figures.py).

User code can reach and break all of this. What it breaks is its own context, never another one.
"""
import sys

from .here import here
from .alone import run_alone
from .zygote_outside import run_zygote

here.charts_source = CHARTS_SOURCE  # ZYGOTE_BOOT sets CHARTS_SOURCE and BOOT_SOCKET
if "outside" in sys.argv:
    run_zygote(BOOT_SOCKET)
else:
    run_alone(BOOT_SOCKET)
