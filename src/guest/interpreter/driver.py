"""The Python side of run_code: a mother that has its imports done, and the interpreters that she forks.

Where it stands: inside the sandbox, as the sandbox's user, or outside all of them in the nursery, as a user who is nobody
else. guestd or keeper hand this text to `python3` over a socket, so nothing of it lies in the template, and any template
with a python3 will do. IPython is used where it is installed; without it a
smaller shell of our own answers.

  mother        one process, one thread. Every message from guestd is one byte and three descriptors: a socket, a pipe for
                stdout, a pipe for stderr. She forks; the child owns the three. When a child ends she says so ("pid status"),
                because only a parent can know how. The first child is forked as soon as there is a shell; while nobody
                asks, she warms up: a traceback, the packages that cells usually import, a figure. Then she keeps one
                child more than was asked for, ready to be given away.
  outside       the same one in the nursery, for all sandboxes of a template. Keeper gives her doors, guestd asks at them, and
                her children enter the sandbox (midwife.c) before they become interpreters. She reads nothing that a guest
                has sent and waits for nothing that a guest can hold up.
  interpreter   a child. Speaks frames over its socket: length (u32, big-endian), a letter, text.
                  from guestd   {"op": "rehearse"} to one that is nobody's yet, {"op": "start", ...} once, then
                                {"op": "run", ...} for every cell
                  to guestd     B first of all: who sends it, guestd knows from the kernel
                                S instead of hello: what I was born with is not what the sandbox has (Stamps)
                                H hello    R ready    C the cell was taken, its number
                                L a line of the answer, as the client gets it
                                X the same, an error           D the cell of that number has ended

stdout and stderr are real pipes at descriptors 1 and 2: what subprocesses and C code print takes the same way as print(),
in the same order, and nothing that user code prints can be taken for a frame. guestd empties both pipes before it looks
at a frame, so what was printed before a result is told before it.

User code can reach all of this, as it can in every Python: whatever it breaks here is its own context and no other.
"""
import gc
import json
import os
import signal
import socket
import struct
import sys
import time
import types

TEXT_MAX = 4 << 20  # characters of a result's text; more helps nobody and costs everybody memory
BUNDLE_MAX = 30 << 20  # the whole result, encoded
USUAL = ("numpy", "pandas", "matplotlib", "matplotlib.pyplot", "PIL.Image")  # what cells import, cheapest first
SPARE_MS = 5  # without a request before she makes a spare child
QUIET_MS = 100  # without a request before the mother goes on warming up
CLOCK_NS = 20_000_000  # files are stamped with a clock that may be this much behind

FIELDS = (
    ("text", "text/plain"), ("html", "text/html"), ("markdown", "text/markdown"), ("svg", "image/svg+xml"),
    ("png", "image/png"), ("jpeg", "image/jpeg"), ("pdf", "application/pdf"), ("latex", "text/latex"),
    ("json", "application/json"), ("javascript", "application/javascript"), ("data", "e2b/data"), ("chart", "e2b/chart"),
)
SIMPLE = (int, float, str, bool)


# ---- values as JSON ----

def plain(value, depth=0):
    """The same value made of what JSON has: numbers of other libraries as numbers, not-a-number as null."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value == value and value not in (float("inf"), float("-inf")) else None
    if depth > 50:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if type(value).__name__ == "NaTType":
        return "NaT"
    for method in ("isoformat", "tolist", "item"):
        if hasattr(value, method):
            made = getattr(value, method)()
            if made is not value:
                return plain(made, depth + 1)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def sendable(value):
    """The value itself if JSON can carry it, else its plain form; None if it has none."""
    try:
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, TypeError, RecursionError):
        return json_or_none(value)


def json_or_none(value):
    try:
        return plain(value)
    except Exception:  # whatever the conversion of somebody's object may raise
        return None


def base64_text(value):
    if isinstance(value, (bytes, bytearray, memoryview)):
        import binascii
        return binascii.b2a_base64(bytes(value), newline=False).decode()
    return value


def capped(text):
    if len(text) <= TEXT_MAX:
        return text
    return text[:TEXT_MAX] + f"\n[{len(text) - TEXT_MAX} more characters were left out]"


def result_line(bundle, is_main):
    """A MIME bundle as the client's `result`: known types under short names, all others in `extra`.

    Text may end early. Half of anything else is broken, so it goes whole or not at all. Returns the line and what was
    left out of it: (field, bytes), largest first.
    """
    fields, extra, rest = {}, {}, dict(bundle)
    for field, mime in FIELDS:
        value = base64_text(rest.pop(mime, None))
        if field == "text" and isinstance(value, str):
            value = capped(value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value)
        fields[field] = value
    for mime, value in rest.items():
        extra[mime] = base64_text(value)
    left_out = [drop for home in (fields, extra) for drop in make_sendable(home)]
    text = encode_result(fields, extra, is_main)
    if len(text) > BUNDLE_MAX:
        sizes = sorted(((len(json.dumps(value)), name, home) for home in (fields, extra) for name, value in home.items()),
                       key=lambda item: item[0])
        excess = len(text) - BUNDLE_MAX
        while excess > 0 and sizes:
            size, name, home = sizes.pop()
            del home[name]
            left_out.append((name, size))
            excess -= size
        text = encode_result(fields, extra, is_main)
    if left_out and not fields and not extra:
        text = encode_result({"text": "[the result is too large to send]"}, {}, is_main)
    return text, sorted(left_out, key=lambda item: -item[1])


def make_sendable(home):
    """Takes out of it what is nothing, and what is certainly too large, before that takes its size again as JSON."""
    for name, value in list(home.items()):
        if isinstance(value, str) and len(value) > BUNDLE_MAX:
            del home[name]
            yield name, len(value)
        elif not isinstance(value, str):
            home[name] = sendable(value)
            if home[name] is None:
                del home[name]


def encode_result(fields, extra, is_main):
    return json.dumps({"type": "result", **fields, "extra": extra, "is_main_result": is_main})


def tell_left_out(left_out):
    """On standard error itself, whatever sys.stderr is by now: the cell looked fine, and the client has to know."""
    for name, size in left_out:
        note = f"[the result's {name}, {size} bytes, was left out: a result may have {BUNDLE_MAX} in all]\n"
        try:
            os.write(2, note.encode("ascii", "backslashreplace"))
        except OSError:
            return  # user code has closed it


# ---- the link to guestd ----

class Link:
    def __init__(self, fd):
        self.sock = socket.socket(fileno=fd)
        self.owner = os.getpid()
        self.running = False  # user code runs: an interrupt is for it
        self.sending = False  # half a frame is out: an interrupt must wait
        self.interrupted = False

    def send(self, letter, text=""):
        if os.getpid() != self.owner:
            os._exit(0)  # a child that user code has forked came out of its cell: it has no cell of its own
        data = text.encode("ascii", "backslashreplace")
        self.sending = True
        try:
            self.sock.sendall(struct.pack(">IB", len(data) + 1, ord(letter)) + data)
        finally:
            self.sending = False
        if self.interrupted:
            self.interrupted = False
            if self.running:
                raise KeyboardInterrupt

    def receive(self):
        """The next message, or None when guestd has closed."""
        head = self._exactly(4)
        body = head and self._exactly(struct.unpack(">I", head)[0])
        return json.loads(body) if body else None

    def _exactly(self, size):
        pieces = []
        while size:
            piece = self.sock.recv(min(size, 1 << 20))
            if not piece:
                return None
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def on_interrupt(self, number, frame):
        if not self.running:
            return
        if self.sending:
            self.interrupted = True
        else:
            raise KeyboardInterrupt

    # What a cell says.

    def result(self, bundle, is_main):
        if bundle:
            flush_standard()
            line, left_out = result_line(bundle, is_main)
            tell_left_out(left_out)
            self.send("L", line)

    def error(self, name, value, trace):
        flush_standard()
        self.send("X", json.dumps({"type": "error", "name": name, "value": capped(value), "traceback": capped(trace)}))

    def count(self, number):
        self.send("C", json.dumps({"type": "number_of_executions", "execution_count": number}))


link = None  # of this interpreter; None in the mother


def flush_standard():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # user code may have put anything there
            pass


def text_of(exception):
    try:
        return str(exception)
    except Exception:
        return "<the exception cannot be shown as text>"


# ---- what happens when certain packages are imported, now or later ----

class AfterImport:
    """Runs a function once a module has been imported, by whomever."""

    def __init__(self, hooks):
        self.hooks = hooks
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.hooks or name in self.busy:
            return None
        import importlib.util
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        inner = spec.loader.exec_module

        def exec_module(module):
            inner(module)
            try:
                self.hooks[name](module)
            except Exception:  # a package that looks different from what we know still works, without our extras
                pass

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            return None
        return spec


FIGURES = "cloister_figures"


class FiguresBackend:
    """A matplotlib backend that shows figures as results; made when matplotlib asks for it, and needs nothing else."""

    def find_spec(self, name, path=None, target=None):
        if name != FIGURES:
            return None
        import importlib.machinery
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        class FigureCanvas(FigureCanvasAgg):
            manager_class = FigureManagerBase

        module.FigureCanvas = FigureCanvas
        module.FigureManager = FigureManagerBase
        module.show = show_figures


def on_matplotlib(matplotlib):
    if not os.environ.get("MPLBACKEND"):
        matplotlib.rcParams["backend"] = "module://" + FIGURES
    shell.add_inline_config()


def show_figures(*args, **kwargs):
    """plt.show(): every open figure, oldest first; then they are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if not pyplot:
        return
    try:
        for number in pyplot.get_fignums():
            shell.display(pyplot.figure(number))
    finally:
        pyplot.close("all")


def figure_png(figure):
    """
    The picture that Jupyter's inline backend gives, pixel by pixel, in less time. print_figure() draws a figure twice for a
    tight box, first to let everything find its place; where that place is known without, once is enough. And most of the
    rest of its time goes to compressing a little better.
    """
    if not figure.axes and not figure.lines:
        return None
    import io
    out = io.BytesIO()
    how = {"dpi": figure.dpi, "facecolor": figure.get_facecolor(), "edgecolor": figure.get_edgecolor()}
    box = tight_box(figure)
    if not box:
        figure.canvas.print_figure(out, format="png", bbox_inches="tight", **how)
        return out.getvalue()
    figure.canvas.print_figure(out, format="rgba", bbox_inches=box, **how)
    width, height = int(box.width * figure.dpi), int(box.height * figure.dpi)
    if not width or not height or len(out.getbuffer()) != width * height * 4:
        out = io.BytesIO()
        figure.canvas.print_figure(out, format="png", bbox_inches="tight", **how)
        return out.getvalue()
    return png_of(out.getbuffer(), width, height, figure.dpi)


def tight_box(figure):
    """What bbox_inches="tight" means for it, or None when it must have been drawn once before that is known."""
    from matplotlib import axes, axis, collections, image, legend, lines, patches, rcParams, spines, text
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    settled = (axis.Axis, image.AxesImage, legend.Legend, lines.Line2D, patches.PathPatch, patches.Polygon, patches.Rectangle,
               patches.Wedge, collections.PathCollection, spines.Spine)
    if not isinstance(figure.canvas, FigureCanvasAgg) or figure.get_layout_engine() or figure.subfigs:
        return None
    for one in figure.get_children():
        if type(one) is text.Text or one is figure.patch:
            continue
        if type(one) is not axes.Axes or one.get_axes_locator() or one.child_axes:
            return None
        if not all(isinstance(a, settled) or type(a) is text.Text for a in one.get_children()):
            return None
    return figure.get_tightbbox(figure.canvas.get_renderer()).padded(rcParams["savefig.pad_inches"])


def png_of(pixels, width, height, dpi):
    """RGBA as PNG: each row is stored as what differs from the one above, which suits charts."""
    import zlib
    import numpy
    rows = numpy.frombuffer(pixels, dtype=numpy.uint8).reshape(height, width * 4)
    lines = numpy.empty((height, width * 4 + 1), dtype=numpy.uint8)
    lines[:, 0] = 2  # the filter "up"
    lines[0, 1:] = rows[0]
    numpy.subtract(rows[1:], rows[:-1], out=lines[1:, 1:])
    per_metre = int(dpi / 0.0254 + 0.5)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)) + \
        chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)) + chunk(b"IDAT", zlib.compress(lines, 6)) + \
        chunk(b"IEND", b"")


def is_figure(value):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def figure_chart(figure):
    try:
        return charts().chart_of(figure)
    except Exception:  # a chart is an extra: the picture is there anyway
        return {}


def charts():
    module = sys.modules.get("cloister_charts")
    if not module:
        module = sys.modules["cloister_charts"] = types.ModuleType("cloister_charts")
        exec(compile(CHARTS_SOURCE, "<charts>", "exec"), module.__dict__)
    return module


def frame_data(frame):
    """A table as columns."""
    return plain({str(name): column for name, column in frame.to_dict(orient="list").items()})


def on_pil_image(image):
    """An image that is saved or shown in a cell is also a result, because there is no window to look at."""
    save = image.Image.save

    def save_and_display(self, fp, *args, **kwargs):
        save(self, fp, *args, **kwargs)
        asker = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(fp, str) and link and not asker.startswith(("matplotlib", "PIL", "imageio", "skimage")):
            shell.display(self)

    image.Image.save = save_and_display
    image.Image.show = lambda self, *args, **kwargs: shell.display(self)


def on_figure(module):
    shell.add_figure_formatters(module.Figure)


AFTER_IMPORT = {"matplotlib": on_matplotlib, "matplotlib.figure": on_figure, "PIL.Image": on_pil_image}


# ---- input ----

class StdinNotImplementedError(RuntimeError):
    pass


def no_input(*args, **kwargs):
    raise StdinNotImplementedError("input() does not work here: nobody is there to type. Put the value into the code, "
                                   "or pass it with envs.")


# ---- the shell around IPython ----

def make_ipython_shell():
    from IPython.core import formatters
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import Type, Unicode
    from traitlets.config import Config

    class Hook(DisplayHook):
        def compute_format_data(self, result):
            # A dozen formatters would look at it to say no; that is half of what such a cell costs.
            if type(result) in SIMPLE and not self.shell.has_formatters_for(type(result)):
                return {"text/plain": self.shell.display_formatter.formatters["text/plain"](result)}, {}
            return super().compute_format_data(result)

        def start_displayhook(self):
            pass

        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            if link:
                link.result(format_dict, True)

        def log_output(self, format_dict):
            pass

        def finish_displayhook(self):
            pass

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, *args, update=False, **kwargs):
            if link and not update:
                link.result(data, False)

        def clear_output(self, wait=False):
            pass

    class Shell(InteractiveShell):
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)
        wants_exit = False
        system = InteractiveShell.system_raw  # straight to stdout and stderr; through a terminal it costs 100 ms

        def init_history(self):
            super().init_history()
            self.history_manager.enabled = False

        def _showtraceback(self, etype, evalue, stb):
            if link:
                link.error(getattr(etype, "__name__", str(etype)), text_of(evalue), "\n".join(stb))

        def ask_exit(self):
            self.wants_exit = True

        def run(self, code):
            if "InlineBackend" in code:  # %config knows it only once it is there
                self.add_inline_config()
            # Counted only when it is kept in the history, as everywhere in IPython.
            link.count(self.execution_count)
            self.run_cell(code, store_history=True)

        def display(self, value):
            data, metadata = self.display_formatter.format(value)
            self.display_pub.publish(data, metadata)

        def has_formatters_for(self, kind):
            return any(kind in formatter.type_printers for mime, formatter in self.display_formatter.formatters.items()
                       if mime != "text/plain")

        def add_figure_formatters(self, figure):
            self.display_formatter.formatters["image/png"].for_type(figure, figure_png)

        def add_inline_config(self):
            """%config InlineBackend.figure_formats = ..., where the package for it is installed."""
            try:
                from matplotlib_inline.config import InlineBackend
            except ImportError:
                return
            config = InlineBackend.instance(parent=self)
            config.shell = self
            if config not in self.configurables:
                self.configurables.append(config)

        def forget_warmup(self):
            self.execution_count = 1
            self.history_manager.reset()
            self.last_execution_succeeded = True
            self.user_ns.get("Out", {}).clear()
            for name in [n for n in self.user_ns if n.startswith("_") and n.strip("_i").isdigit()]:
                del self.user_ns[name]
            for name in ("_", "__", "___", "_i", "_ii", "_iii"):
                self.user_ns[name] = ""
            self.displayhook._ = self.displayhook.__ = self.displayhook.___ = ""

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor"
    config.PlainTextFormatter.max_seq_length = 0
    config.InteractiveShell.autocall = 0
    made = Shell.instance(config=config)
    made.display_formatter.ipython_display_formatter.enabled = True

    class Data(formatters.BaseFormatter):
        format_type = Unicode("e2b/data")
        print_method = "_repr_e2b_data_"
        _return_type = dict

    class Chart(formatters.BaseFormatter):
        format_type = Unicode("e2b/chart")
        print_method = "_repr_e2b_chart_"
        _return_type = dict

        def __call__(self, value):
            # Not registered for figures: %config InlineBackend.figure_formats takes away all that is.
            return figure_chart(value) if is_figure(value) else super().__call__(value)

    known = made.display_formatter.formatters
    known["e2b/data"] = Data(parent=made.display_formatter)
    known["e2b/chart"] = Chart(parent=made.display_formatter)
    known["e2b/data"].for_type_by_name("pandas.core.frame", "DataFrame", frame_data)
    known["e2b/data"].for_type_by_name("pandas", "DataFrame", frame_data)
    for kind in (list, dict):
        known["application/json"].for_type(kind, json_or_none)
    return made


# ---- the shell of our own, where there is no IPython ----

REPR_METHODS = (
    ("text/html", "_repr_html_"), ("text/markdown", "_repr_markdown_"), ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"), ("application/pdf", "_repr_pdf_"),
    ("text/latex", "_repr_latex_"), ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"), ("e2b/data", "_repr_e2b_data_"), ("e2b/chart", "_repr_e2b_chart_"),
)


def bundle_of(value):
    bundle = {}
    if hasattr(value, "_repr_mimebundle_") and not isinstance(value, type):
        made = value._repr_mimebundle_()
        bundle.update((made[0] if isinstance(made, tuple) else made) or {})
    for mime, method in REPR_METHODS:
        if mime not in bundle and hasattr(value, method) and not isinstance(value, type):
            try:
                made = getattr(value, method)()
                bundle[mime] = made[0] if isinstance(made, tuple) else made
            except Exception:
                pass
    names = {(base.__module__, base.__name__) for base in type(value).__mro__}
    if is_figure(value):
        bundle["image/png"] = figure_png(value)
        bundle["e2b/chart"] = figure_chart(value)
    if ("pandas.core.frame", "DataFrame") in names:
        bundle["e2b/data"] = json_or_none(frame_data(value))
    if type(value) in (list, dict):
        bundle["application/json"] = json_or_none(value)
    bundle.setdefault("text/plain", repr(value))
    return bundle


class SmallShell:
    """Cells without IPython: state, the last expression's value, await at top level, !command, display()."""

    def __init__(self):
        import builtins
        self.execution_count = 1
        self.wants_exit = False
        self.module = types.ModuleType("__main__")
        self.user_ns = self.module.__dict__
        self.user_ns.update(__builtins__=builtins, exit=self.ask_exit, quit=self.ask_exit)
        builtins.display = self.display_call
        self.loop = None

    def ask_exit(self, code=None):
        self.wants_exit = True

    def display(self, value):
        if link:
            link.result(bundle_of(value), False)

    def display_call(self, *values, raw=False, **kwargs):
        for value in values:
            if raw:
                link.result(value, False)
            else:
                self.display(value)

    def add_inline_config(self):
        pass

    def add_figure_formatters(self, figure):
        pass

    def forget_warmup(self):
        self.execution_count = 1

    def run(self, code):
        import linecache
        number = self.execution_count
        self.execution_count += 1
        link.count(number)
        name = f"<cell {number}>"
        code = self.translate(code)
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        sys.modules["__main__"] = self.module
        try:
            self.execute(code, name)
        except BaseException as exception:
            self.show(exception)

    def translate(self, code):
        """Dedents by the first line, as IPython does, and makes !command and %pip calls of system()."""
        lines = code.split("\n")
        first = next((line for line in lines if line.strip()), "")
        indent = first[: len(first) - len(first.lstrip())]
        if indent:
            lines = [line[len(indent):] if line.startswith(indent) else line for line in lines]
        for i, line in enumerate(lines):
            word = line.lstrip()
            if word.startswith(("!", "%pip ")):
                command = word[1:] if word.startswith("!") else "python3 -m " + word[1:]
                lines[i] = f"{line[:len(line) - len(word)]}__import__('os').system({command!r});"
        return "\n".join(lines)

    def execute(self, code, name):
        import ast
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        for part, mode in ((tree, "exec"), (last, "eval")):
            if part is None or (mode == "exec" and not part.body):
                continue
            value = self.evaluate(compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if mode == "eval" and value is not None:
                self.user_ns["_"] = value
                link.result(bundle_of(value), True)

    def evaluate(self, compiled):
        import inspect
        if not compiled.co_flags & inspect.CO_COROUTINE:
            return eval(compiled, self.user_ns)
        import asyncio
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(eval(compiled, self.user_ns))

    def show(self, exception):
        import traceback
        frames = exception.__traceback__
        while frames and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
            frames = frames.tb_next
        lines = traceback.format_exception(type(exception), exception, frames)
        link.error(type(exception).__name__, text_of(exception), "".join(lines).rstrip("\n"))


# ---- whether what was imported is what lies there ----

def stamp_of(path):
    """When it was written and how long it is."""
    try:
        found = os.stat(path)
    except OSError:
        return "missing"
    return found.st_mtime_ns, found.st_size


def changed_since(path, since_ns):
    """By the time that nobody can set."""
    try:
        return os.stat(path).st_ctime_ns >= since_ns
    except OSError:
        return True


class Stamps:
    """
    What the mother has imported, as it was on disk. Somebody may have installed another version since, or one that Python
    would find first; and outside the sandbox she has never seen what the sandbox's user has put there. An interpreter
    that has what it would not get by importing it now is not given away.
    """

    def __init__(self):
        import site
        user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        shared = getattr(site, "getsitepackages", list)()  # some virtual environments bring a site of their own
        self.user = user[0] if user else None
        self.dirs = {path: stamp_of(path) for path in user + shared}  # in the order of looking
        self.files = {path: stamp_of(path) for path in (os.__file__, sys.executable)}
        for path in self.dirs:
            for name in self.pth_files(path):
                self.files[f"{path}/{name}"] = stamp_of(f"{path}/{name}")
        self.place_of = {}  # package -> the place of its directory in that order

    @staticmethod
    def pth_files(path):
        try:
            return [name for name in os.listdir(path) if name.endswith(".pth")]
        except OSError:
            return []

    def take(self, since_ns):
        """After each import, which began then. What was written meanwhile may not be what was imported, and never matches."""
        for name, module in list(sys.modules.items()):
            file = vars(module).get("__file__") if "." not in name and isinstance(module, types.ModuleType) else None
            if not file or name in self.place_of:
                continue
            for place, path in enumerate(self.dirs):
                if file.startswith(path + "/"):
                    self.place_of[name] = place
                    self.files[file] = None if changed_since(file, since_ns - CLOCK_NS) else stamp_of(file)

    def hold(self):
        """In the child. False: it is too old. What has come new is added to where it looks."""
        if any(stamp_of(path) != stamp for path, stamp in self.files.items()):
            return False
        for place, path in enumerate(self.dirs):
            if stamp_of(path) == self.dirs[path]:
                continue
            try:
                names = os.listdir(path)
            except OSError:
                names = []
            if any(self.place_of.get(name.partition(".")[0], -1) > place for name in names):
                return False
            self.add_paths(path, names)
        return True

    def add_paths(self, path, names):
        import site
        known = {os.path.abspath(entry) for entry in sys.path if entry}
        before = len(sys.path)
        if path == self.user and path not in known:
            site.addsitedir(path, known)
        else:
            for name in sorted(names):
                if name.endswith(".pth") and f"{path}/{name}" not in self.files:
                    site.addpackage(path, name, known)
        added = sys.path[before:]
        if added and path == self.user:  # what is the user's own comes before what is everybody's
            others = [sys.path.index(entry) for entry in self.dirs if entry != path and entry in sys.path[:before]]
            if others:
                sys.path[min(others):] = added + sys.path[min(others):before]


class NoStamps:
    """A mother who has one child has it at once."""

    def take(self, since_ns):
        pass

    def hold(self):
        return True


stamps = NoStamps()


# ---- an interpreter ----

shell = None


def standard_streams():
    import io
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        stream = io.TextIOWrapper(io.BufferedWriter(raw, 1 << 16), encoding="utf-8", errors="backslashreplace",
                                  line_buffering=True)
        stream.mode = "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def fresh_entropy():
    """
    Siblings share their mother's memory, but not her luck, nor the secret she was born with. They do share the seed of string
    hashes: a Python that runs cannot change it.
    """
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def set_environment(wanted):
    for name in list(os.environ):
        if name not in wanted:
            del os.environ[name]
    os.environ.update(wanted)


class Environment:
    """Variables for one cell: set before, put back after, unless the cell has changed them itself."""

    def __init__(self, wanted):
        self.wanted = wanted or {}

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.wanted}
        os.environ.update(self.wanted)

    def __exit__(self, *failure):
        for name, value in self.wanted.items():
            if os.environ.get(name) != value:
                continue
            if self.before[name] is None:
                del os.environ[name]
            else:
                os.environ[name] = self.before[name]


def run_cell(message):
    signal.signal(signal.SIGINT, link.on_interrupt)  # a cell before may have set its own
    try:
        with Environment(message.get("env")):
            link.running = True
            try:
                shell.run(message["code"])
                show_figures()
            finally:
                link.running = False
    except KeyboardInterrupt:
        link.error("KeyboardInterrupt", "", "KeyboardInterrupt")
    except SystemExit:
        pass
    except BaseException as failure:  # of the shell's own, not of the cell: that one was told
        link.error(type(failure).__name__, text_of(failure), "")
    flush_standard()
    link.send("D", str(message["cell"]))


def interpret():
    """The life of an interpreter: start, cells, until guestd closes or a cell wants out."""
    link.send("H")
    message = link.receive()
    if message and message["op"] == "rehearse":  # nobody's yet: there is time
        rehearse()
        message = link.receive()
    if not message:
        return
    if message["late"] and not stamps.hold():
        link.send("S")
        return
    set_environment(message["env"])
    time.tzset()
    try:
        os.chdir(message["cwd"])
    except OSError as failure:
        os.chdir(message["env"].get("HOME", "/"))
        print(f"The directory {message['cwd']} cannot be entered ({failure.strerror}): this context works in {os.getcwd()}.",
              file=sys.stderr)
    link.send("R")
    while True:
        message = link.receive()
        if not message:
            return
        run_cell(message)
        if shell.wants_exit:
            return


def settle():
    """
    In the child, on its way from the mother to a cell: what does not depend on whose interpreter it will be.
      shares    her memory, copy on write           holds     her socket, until closed here
      must      lead a session of its own (interrupts go to the group); have its own entropy; be preferred by the
                OOM killer, so that the mother and the other contexts outlive a cell that eats all memory
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with open("/proc/self/oom_score_adj", "w") as knob:
            knob.write("300")
    except OSError:
        pass
    fresh_entropy()
    if sys.path[:1] != [""]:
        sys.path.insert(0, "")


def become_interpreter(fds, is_known=False):
    """The rest: its own descriptors, then its life. Known to guestd is who was born outside: the midwife has said so."""
    global link
    import fcntl
    high = 100  # out of the way of what user code counts on getting
    null = os.open("/dev/null", os.O_RDONLY)
    conn = fcntl.fcntl(fds[0], fcntl.F_DUPFD_CLOEXEC, high)
    os.dup2(null, 0)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)
    os.closerange(3, high)
    standard_streams()
    link = Link(conn)
    signal.signal(signal.SIGINT, link.on_interrupt)
    gc.enable()
    try:
        if not is_known:
            link.send("B")
        if not stamps.hold():
            link.send("S")
            os._exit(0)
        interpret()
        flush_standard()
    except BaseException:
        os._exit(1)
    os._exit(0)


# ---- the mother ----

class Silent:
    """Takes the place of the link while the mother warms up: nobody is there to be told."""

    running = False
    owner = os.getpid()

    def count(self, number):
        pass

    def result(self, bundle, is_main):
        if bundle:
            result_line(bundle, is_main)

    def error(self, name, value, trace):
        pass


def warm_up():
    """What the first cell of every interpreter would otherwise pay for: a value, an exception, a traceback."""
    global link
    link = Silent()
    try:
        for code in ("1+1", "'a'", "1/0", "def _(", "[1]"):
            shell.run(code)
    except Exception:
        pass
    link = None
    shell.user_ns.pop("_", None)
    shell.forget_warmup()


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
    """matplotlib does so in every child, and closes files by then that a child from the nursery no longer has."""
    fonts = getattr(sys.modules.get("matplotlib.font_manager"), "_get_font", None)
    if hasattr(fonts, "cache_clear"):
        fonts.cache_clear()


FOR_EVER = 0xFFFFFFFF  # the count of references of what is never freed: PEP 683, as Python 3.12 and 3.13 have it


def stop_counting():
    """
    What the mother has by now stays as long as she does, so nobody needs to count its users: a count is a write, and a write
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


def steps_to_warmth():
    """What the mother does while nobody asks, a step at a time: who asks meanwhile waits for one step at most."""
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
    stamps.take(begun_ns)
    gc.collect()
    gc.freeze()
    return True


def collect_children(door):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        door.send(f"{pid} {status}".encode())


def fork_interpreter(door, fds):
    if os.fork() == 0:
        door.detach()
        settle()
        become_interpreter(fds)


class Spare:
    """A child that has settled already and waits for its descriptors: most of what a fork costs is paid before it is asked for."""

    def __init__(self):
        self.sock = None

    def make(self, door):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            self.sock = ours
            return
        try:
            ours.close()
            door.detach()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # where the door was
            settle()
            rehearse()
            byte, fds, flags, address = socket.recv_fds(theirs, 16, 3)
            if len(fds) == 3:
                become_interpreter(fds)
        finally:
            os._exit(0)

    def give(self, fds):
        """False when there is none, or it has died while it waited."""
        sock, self.sock = self.sock, None
        if not sock:
            return False
        try:
            socket.send_fds(sock, [b"f"], fds)
            return True
        except OSError:
            return False
        finally:
            sock.close()


def rehearse():
    """Touches the memory that a first cell writes to, so that it is this process's own by then."""
    global link
    guestd, link = link, Silent()
    shell.run("1+1")
    link = guestd
    shell.user_ns.pop("_", None)
    shell.forget_warmup()


def make_shell():
    """What every mother does first. Returns the pipe that tells of children, for a poll()."""
    global shell, stamps
    import builtins
    begun_ns = time.time_ns()
    gc.disable()
    sys.meta_path[:0] = [AfterImport(AFTER_IMPORT), FiguresBackend()]
    # Owned by nobody: in a child the number is soon closed, and then a file of the user's, which no old object may close.
    sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8", closefd=False)
    sys.argv = [""]
    standard_streams()
    try:
        shell = make_ipython_shell()
    except ImportError:
        shell = SmallShell()
    builtins.input = no_input
    import getpass
    getpass.getpass = no_input
    if not COLD:
        stamps = Stamps()
        stamps.take(begun_ns)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    return told


def mother(door):
    import select
    told = make_shell()
    steps = iter(()) if COLD else steps_to_warmth()
    is_warm = COLD
    poll = select.poll()
    poll.register(door, select.POLLIN)
    poll.register(told, select.POLLIN)
    has_children = False
    spare, is_short = Spare(), False
    while True:
        is_done = is_warm and (COLD or is_short or spare.sock)
        ready = dict(poll.poll(None if is_done or not has_children else QUIET_MS if not is_warm else SPARE_MS))
        if told in ready:
            os.read(told, 4096)
            collect_children(door)
        if door.fileno() in ready:
            byte, fds, flags, address = socket.recv_fds(door, 16, 3)
            if not byte:
                os._exit(0)  # guestd has closed
            if len(fds) == 3:
                has_children, is_short = True, False
                try:
                    if not spare.give(fds):
                        fork_interpreter(door, fds)
                except OSError:
                    pass  # no more processes, or no memory: guestd sees the socket close and says so
            for fd in fds:
                os.close(fd)
        elif not ready and not is_warm:
            is_warm = not take_step(steps)
        elif not ready:
            try:
                spare.make(door)
            except OSError:
                is_short = True  # not again before somebody asks


# ---- the mother outside ----

MIDWIFE_FD, FILTER_FD, VOICE_FD = 3, 4, 5  # as mother.h has them
FILTER_INSTRUCTION_BYTES = 8
DELIVER, BURY = b"d", b"b"  # as midwife.h has them
READY, TAKEN, BUSY, IDLE, FAILED = b"r", b"t", b"b", b"i", b"f"  # as mother.h has them
DOOR_FDS = 2
DOORS_MAX = 2048  # each holds up to five descriptors
BIRTHS_MAX = 8  # at once, all doors together; one a door
NEXT_MS = 20  # without a request before she makes the next child: not while the last one is on its way to its first cell
BIRTH_S = 2  # then somebody inside is holding it up


class Midwife:
    """midwife.c: a fork that enters a sandbox. Without ctypes in the template there is none."""

    def __init__(self):
        import ctypes
        libc = ctypes.CDLL(None)

        class Hooks(ctypes.Structure):
            _fields_ = [(name, ctypes.c_void_p) for name in ("before", "parent", "child", "fork", "filter")]
            _fields_ += [("filter_length", ctypes.c_int64), ("rseq_offset", ctypes.c_int64)]

        size = os.fstat(FILTER_FD).st_size
        python = ctypes.pythonapi
        self.filter = ctypes.create_string_buffer(os.pread(FILTER_FD, size, 0), size)
        hooks = Hooks(*(ctypes.cast(f, ctypes.c_void_p).value for f in (
            python.PyOS_BeforeFork, python.PyOS_AfterFork_Parent, python.PyOS_AfterFork_Child, libc.fork, self.filter)))
        hooks.filter_length = size // FILTER_INSTRUCTION_BYTES
        try:
            if ctypes.c_uint.in_dll(libc, "__rseq_size").value:
                hooks.rseq_offset = ctypes.c_ssize_t.in_dll(libc, "__rseq_offset").value
        except ValueError:
            pass  # a C library that does not use it
        self.library = ctypes.PyDLL(f"/proc/self/fd/{MIDWIFE_FD}")
        self.fds = (ctypes.c_int * 3)()
        failed = self.library.midwife_open(ctypes.byref(hooks))
        if failed:
            raise OSError(-failed, "midwife_open")

    def spare(self):
        """(pid, the socket to send its order to); None in the interpreter once it is born, whose descriptors are self.fds."""
        ours, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        pid = self.library.midwife_spare(theirs, self.fds)
        if pid == 0:
            return None
        os.close(theirs)
        if pid < 0:
            os.close(ours)
            raise OSError("fork")
        return pid, ours


def with_socket(fd, function, *arguments):
    """On a descriptor that no object owns: in a child there must be none that would close what is not its own."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
    try:
        return function(sock, *arguments)
    finally:
        sock.detach()


class Door:
    def __init__(self, fds):
        self.fds = fds  # as midwife.h orders them: the door itself, the sandbox's pidfd
        self.birth = None  # the one under way


class Birth:
    """Over when the child that was sent has ended and its own child is out of our hands: then nobody holds `sock`."""

    def __init__(self, door, pid, sock):
        self.door, self.pid, self.sock = door, pid, sock
        self.until = time.monotonic() + BIRTH_S


class Nursery:
    def __init__(self, control):
        import select
        self.control = control
        self.midwife = Midwife()
        self.told = make_shell()
        self.poll = select.poll()
        self.poll.register(control.fileno(), select.POLLIN)
        self.poll.register(self.told, select.POLLIN)
        self.poll_no_doors = select.poll()
        self.poll_no_doors.register(control.fileno(), select.POLLIN)
        self.poll_no_doors.register(self.told, select.POLLIN)
        self.wanted = select.POLLIN
        self.doors = {}  # by descriptor, in the order of their turns
        self.births = {}  # socket of the order -> Birth
        self.ready_child = None  # (pid, socket): waits for its order
        self.steps = steps_to_warmth()
        self.is_warm = self.is_short = False

    def live(self):
        self.say(READY)
        while True:
            is_full = len(self.births) >= BIRTHS_MAX
            ready = dict((self.poll_no_doors if is_full else self.poll).poll(self.patience_ms()))
            if self.told in ready:
                os.read(self.told, 4096)
                self.collect()
            if self.control.fileno() in ready:
                self.take_door()
            for fd in [fd for fd in self.births if fd in ready]:
                self.end_birth(self.births[fd])
            self.end_late_births()
            for fd in [fd for fd in self.doors if fd in ready]:
                self.serve(fd)
            if not ready and not self.is_warm:
                self.say(BUSY)
                self.is_warm = not take_step(self.steps)
                self.say(IDLE)
            elif not ready and not self.ready_child:
                try:
                    self.make_child()
                except OSError:
                    self.is_short = True  # not again before somebody asks

    def say(self, word):
        os.write(VOICE_FD, word)

    def patience_ms(self):
        if not self.is_warm:
            return QUIET_MS
        if not self.ready_child and not self.is_short:
            return NEXT_MS
        return 1000 * BIRTH_S if self.births else None

    def make_child(self):
        self.ready_child = self.midwife.spare()
        if not self.ready_child:
            self.be_born()

    def be_born(self):
        """In the interpreter, confined already, all of its mother's descriptors closed."""
        try:
            self.control.detach()
            settle()
            for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
                del sys.path_importer_cache[path]  # it was not there; here it may be
            become_interpreter(list(self.midwife.fds), is_known=True)
        finally:
            os._exit(1)

    def order(self, letter, fds):
        """To a child that waits, or one made for it. Its pid and the socket, to be closed."""
        if not self.ready_child:
            self.make_child()
        (pid, sock), self.ready_child = self.ready_child, None
        try:
            with_socket(sock, socket.send_fds, [letter], fds)
        except OSError:
            os.close(sock)
            raise
        return pid, sock

    def take_door(self):
        byte, fds, flags, address = socket.recv_fds(self.control, 16, DOOR_FDS)
        if not byte:
            os._exit(0)  # keeper has closed, or died
        if len(fds) == DOOR_FDS and len(self.doors) < DOORS_MAX:
            self.doors[fds[0]] = Door(fds)
            self.poll.register(fds[0], self.wanted)
        else:
            for fd in fds:
                os.close(fd)
        self.say(TAKEN)

    def serve(self, fd):
        door = self.doors[fd]
        if len(self.births) >= BIRTHS_MAX:
            return  # its turn comes: those that were served stand behind it
        try:
            # Only looked at: what is in it is a guest's. Keeper's filter lets no empty message in, so this is the end.
            if not with_socket(fd, socket.socket.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                self.forget(door)
                return
            self.is_short = False
            pid, sock = self.order(DELIVER, door.fds)
        except BlockingIOError:
            return
        except OSError:
            self.bury(door)  # no more processes, or no memory: guestd sees it close, and has a mother of its own
            return
        self.births[sock] = door.birth = Birth(door, pid, sock)
        for poll in (self.poll, self.poll_no_doors):
            poll.register(sock, 0)  # its end, which cannot be left out
        self.poll.unregister(fd)
        self.doors[fd] = self.doors.pop(fd)

    def collect(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self.ready_child and pid == self.ready_child[0]:
                os.close(self.ready_child[1])
                self.ready_child = None
            birth = next((birth for birth in self.births.values() if birth.pid == pid), None)
            if birth:
                birth.pid = None
                if status:
                    self.end_birth(birth, failed=True)

    def end_birth(self, birth, failed=False):
        """A child that is held up on its way is none of ours any more: its sandbox has one at most, for its door is closed."""
        for poll in (self.poll, self.poll_no_doors):
            poll.unregister(birth.sock)
        del self.births[birth.sock]
        os.close(birth.sock)
        if birth.pid:
            os.kill(birth.pid, signal.SIGKILL)  # if it has not just ended; it is collected either way
        birth.door.birth = None
        self.poll.register(birth.door.fds[0], self.wanted)
        if failed:
            self.bury(birth.door)

    def end_late_births(self):
        now = time.monotonic()
        for birth in [birth for birth in self.births.values() if birth.until < now]:
            self.end_birth(birth, failed=True)

    def forget(self, door):
        """One whose other end is closed, with nothing left in it."""
        self.poll.unregister(door.fds[0])
        del self.doors[door.fds[0]]
        for fd in door.fds:
            os.close(fd)

    def bury(self, door):
        """
        What may be in its queue are descriptors of a guest's, and the last one to close a descriptor can be made to wait. So
        a child takes the door with it when it ends, which waits for nothing.
        """
        try:
            os.close(self.order(BURY, [door.fds[0]])[1])
        except OSError:
            pass  # no memory for a child: a risk of waiting, against a door that hangs
        self.forget(door)


def nursery(control):
    try:
        life = Nursery(control)
    except BaseException as failure:
        os.write(VOICE_FD, FAILED + f"{type(failure).__name__}: {failure}".encode("ascii", "replace")[:200])
        os._exit(1)
    life.live()


COLD = "cold" in sys.argv  # an interpreter that shares nothing with any other: one mother, one child
if "nursery" in sys.argv:
    nursery(DOOR)
else:
    mother(DOOR)  # DOOR and CHARTS_SOURCE are there before this text runs
