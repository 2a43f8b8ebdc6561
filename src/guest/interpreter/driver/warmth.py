"""What a zygote does before anybody asks and while nobody does: a shell, the usual imports, the first traceback and figure.

Inside the sandbox and in the zygotes alike. All of it is shared with her children, until they write to it.
"""
import gc
import os
import signal
import sys
import time

from .figures import figure_chart, figure_png
from .here import here
from .ipython_shell import make_ipython_shell
from .link import Silent
from .packages import AFTER_IMPORT, AfterImport, FiguresBackend
from .small_shell import SmallShell
from .streams import no_input, standard_streams

QUIET_MS = 100  # without a request before she goes on warming up
USUAL = ("numpy", "pandas", "matplotlib", "matplotlib.pyplot", "PIL.Image")  # what cells import, cheapest first
FOR_EVER = 0xFFFFFFFF  # the count of references of what is never freed: PEP 683, as Python 3.12 and 3.13 have it


def make_shell():
    """The shell that cells run in, and what it needs around it. The first thing that every process of ours does."""
    import builtins
    gc.disable()
    sys.meta_path[:0] = [AfterImport(AFTER_IMPORT), FiguresBackend()]
    # closefd=False: after the fork this number is closed, and may then be a file of the user's, which no old object may close.
    sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8", closefd=False)
    sys.argv = [""]
    standard_streams()
    try:
        here.shell = make_ipython_shell()
    except ImportError:
        here.shell = SmallShell()
    builtins.input = no_input
    import getpass
    getpass.getpass = no_input
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def steps_to_warmth():
    """What the zygote does while nobody asks, a step at a time: who asks meanwhile waits for one step at most."""
    yield warm_up
    missing = set()
    for name in USUAL:
        def step(name=name):
            try:
                __import__(name)
            except BaseException:  # not installed, or broken: it is not missed
                missing.add(name)
        if not any(name.startswith(other + ".") for other in missing):
            yield step
    if "matplotlib.pyplot" in sys.modules:
        yield draw_once
    if "numpy" in sys.modules:
        yield stop_counting


def take_step(steps):
    """False when there is none left."""
    step = next(steps, None)
    if not step:
        return False
    begun_ns = time.time_ns()
    try:
        step()
    except BaseException:  # of somebody's package: whoever imports it will see it for themselves
        pass
    here.stamps.take(begun_ns)
    gc.collect()
    gc.freeze()
    return True


def warm_up():
    """What the first cell of every interpreter would otherwise pay for: a value, an exception, a traceback."""
    here.link = Silent()
    try:
        for code in ("1+1", "'a'", "1/0", "def _(", "[1]"):
            here.shell.run(code)
    except Exception:
        pass
    here.link = None
    here.shell.user_ns.pop("_", None)
    here.shell.forget_warmup()


def draw_once():
    """The first figure of a process costs ten times the second."""
    pyplot = sys.modules["matplotlib.pyplot"]
    try:
        figure = pyplot.figure()
        figure.add_subplot().plot([1, 2])
        figure_png(figure)
        figure_chart(figure)
    finally:
        pyplot.close("all")
        forget_fonts()


def forget_fonts():
    """matplotlib does so in every child, and closes files by then that a child from the zygotes no longer has."""
    fonts = getattr(sys.modules.get("matplotlib.font_manager"), "_get_font", None)
    if hasattr(fonts, "cache_clear"):
        fonts.cache_clear()


def stop_counting():
    """
    What the zygote has by now stays as long as she does, so nobody needs to count its users: a count is a write, and a write
    makes the page a child's own. Python knows such objects, None is one, but has no call to make more of them. So their
    counts are set by hand, and only where None's is what we expect: with any other layout nothing is touched.
    """
    import ctypes
    numpy = sys.modules["numpy"]
    if sys.implementation.name != "cpython" or ctypes.c_uint64.from_address(id(None)).value != FOR_EVER:
        return
    gc.unfreeze()  # what is frozen is not listed
    objects = gc.get_objects()
    found = set(map(id, objects))
    found.update(map(id, gc.get_referents(*objects)))  # text and numbers, which the collector does not know
    where = numpy.fromiter(found, dtype=numpy.uint64, count=len(found))
    low, high = int(where.min()), int(where.max())
    # All of memory between the two as one array; nothing is read or written but the places of objects.
    words = numpy.frombuffer((ctypes.c_char * (high - low + 8)).from_address(low), dtype=numpy.uint64)
    places = (where - numpy.uint64(low)) // numpy.uint64(8)
    words[places[words[places] < FOR_EVER]] = FOR_EVER
