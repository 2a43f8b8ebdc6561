"""The shell, and how the zygote warms up while it is idle: the usual imports, a first traceback, a first figure.

Forks share all of that memory until they write to it.
"""
import gc
import os
import signal
import sys
import time

from .figures import figure_chart, figure_png
from .here import here
from .ipython_shell import make_ipython_shell
from .link import SilentLink
from .packages import AFTER_IMPORT, AfterImport, FiguresBackend
from .small_shell import SmallShell
from .streams import no_input, standard_streams

QUIET_MS = 100  # without a request before the next step
USUAL = ("numpy", "pandas", "matplotlib", "matplotlib.pyplot", "PIL.Image")  # what cells import, cheapest first
IMMORTAL = 0xFFFFFFFF  # the refcount of an object that is never freed: PEP 683, in Python 3.12 and 3.13


def make_shell():
    """The shell that cells run in, and what it needs around it. The first thing that every process of ours does."""
    import builtins
    gc.disable()
    sys.meta_path[:0] = [AfterImport(AFTER_IMPORT), FiguresBackend()]
    # closefd=False: an interpreter closes this number, which may then be a file of the user's. This object must not close it.
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


def warmup_steps():
    """Functions to be called one at a time: a request that comes meanwhile waits for one step at most."""
    yield run_first_cells
    missing = set()
    for name in USUAL:
        def step(name=name):
            try:
                __import__(name)
            except BaseException:  # not installed, or broken
                missing.add(name)
        if not any(name.startswith(other + ".") for other in missing):
            yield step
    if "matplotlib.pyplot" in sys.modules:
        yield draw_first_figure
    if "numpy" in sys.modules:
        yield make_objects_immortal
    yield trim_heap


def take_step(steps):
    """False when there is none left."""
    step = next(steps, None)
    if not step:
        return False
    begun_ns = time.time_ns()
    try:
        step()
    except BaseException:  # of a package; a cell that imports it gets the same error
        pass
    here.stamps.take(begun_ns)
    gc.collect()
    gc.freeze()
    return True


def run_first_cells():
    """The first value, exception and traceback of a process are slow."""
    here.link = SilentLink()
    try:
        for code in ("1+1", "'a'", "1/0", "def _(", "[1]"):
            here.shell.run(code)
    except Exception:
        pass
    here.link = None
    here.shell.user_ns.pop("_", None)
    here.shell.forget_warmup()


def draw_first_figure():
    """The first figure of a process takes ten times as long as the second."""
    pyplot = sys.modules["matplotlib.pyplot"]
    try:
        figure = pyplot.figure()
        figure.add_subplot().plot([1, 2])
        figure_png(figure)
        figure_chart(figure)
    finally:
        pyplot.close("all")
        close_fonts()


def close_fonts():
    """matplotlib closes its font files in every forked child. In a fork that entered a sandbox those numbers are other files."""
    fonts = getattr(sys.modules.get("matplotlib.font_manager"), "_get_font", None)
    if hasattr(fonts, "cache_clear"):
        fonts.cache_clear()


def make_objects_immortal():
    """
    Sets the refcount of every object to that of an immortal one, such as None. Counting references writes to an object, and a
    write gives the fork a page of its own: without this a fresh interpreter has 6 MB of its own, with it 3 (gc.freeze() alone
    keeps only the garbage collector from writing). Python has no call for it. Nothing is touched unless None's refcount shows
    the layout that we know. No object of the zygote is ever freed, so none needs a count.
    """
    import ctypes
    numpy = sys.modules["numpy"]
    if sys.implementation.name != "cpython" or ctypes.c_uint64.from_address(id(None)).value != IMMORTAL:
        return
    gc.unfreeze()  # frozen objects are not listed
    objects = gc.get_objects()
    found = set(map(id, objects))
    found.update(map(id, gc.get_referents(*objects)))  # strings and numbers, which the collector does not track
    where = numpy.fromiter(found, dtype=numpy.uint64, count=len(found))
    low, high = int(where.min()), int(where.max())
    # All memory between the two as one array; only the places of objects are read or written.
    words = numpy.frombuffer((ctypes.c_char * (high - low + 8)).from_address(low), dtype=numpy.uint64)
    places = (where - numpy.uint64(low)) // numpy.uint64(8)
    words[places[words[places] < IMMORTAL]] = IMMORTAL


def trim_heap():
    """
    Gives freed memory back to the kernel, of which imports and the search for objects leave 10 MB. Every fork copies the page
    tables of it, and it would be in every image of an interpreter.
    """
    import ctypes
    ctypes.CDLL(None).malloc_trim(0)  # glibc's; take_step() ignores that another library lacks it
