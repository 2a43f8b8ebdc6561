"""The Python side of run_code: a zygote that has its imports done, and the interpreters that she forks.

Where it stands: inside the sandbox, as the sandbox's user, or outside all of them in the zygotes, as a user who is nobody
else. guestd or keeper hand it to `python3` over a socket, as one text that the build has joined from the files here, so
nothing of it lies in the template, and any template with a python3 will do.

  zygote_inside.py        one process, one thread. Every message from guestd is one byte and three descriptors: a socket, a pipe
                   for stdout, a pipe for stderr. She forks; the child owns the three. When a child ends she says so ("pid
                   status"), because only a parent can know how. The first child is forked as soon as there is a shell;
                   while nobody asks, she warms up (warmth.py). Then she keeps one child more than was asked for, ready to
                   be given away.
  zygote_outside.py       the same one outside, for all sandboxes of a template: her children enter the sandbox first.
  interpreter.py   a child. Looks whether it is too old (stamps.py), then runs cells in IPython (ipython_shell.py) or,
                   where that is not installed, a smaller shell of our own (small_shell.py). Speaks frames over its socket
                   (link.py): length (u32, big-endian), a letter, text.
                     from guestd   {"op": "rehearse"} to one that is nobody's yet, {"op": "start", ...} once, then
                                   {"op": "run", ...} for every cell
                     to guestd     B first of all: who sends it, guestd knows from the kernel
                                   S instead of hello: what I was spawned with is not what the sandbox has
                                   H hello    R ready    C the cell was taken, its number
                                   L a line of the answer, as the client gets it
                                   X the same, an error           D the cell of that number has ended

guestd empties stdout and stderr (streams.py) before it looks at a frame, so what was printed before a result (result.py) is
told before it. What packages show by themselves becomes a result as well (packages.py, figures.py).

User code can reach all of this, as it can in every Python: whatever it breaks here is its own context and no other.
"""
import sys

from .here import here
from .zygote_inside import zygote_inside
from .zygote_outside import zygote_outside

here.charts_source = CHARTS_SOURCE  # it and DOOR are there before this text runs: ZYGOTE_BOOT
if "outside" in sys.argv:
    zygote_outside(DOOR)
else:
    zygote_inside(DOOR, is_alone="cold" in sys.argv)
