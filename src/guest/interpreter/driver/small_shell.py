"""The shell for templates without IPython."""
import sys
import types

from .figures import figure_chart, figure_png, is_figure
from .here import here
from .link import text_of
from .result import frame_data, json_or_none

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
        if here.link:
            here.link.result(bundle_of(value), False)

    def display_call(self, *values, raw=False, **kwargs):
        for value in values:
            if raw:
                here.link.result(value, False)
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
        here.link.count(number)
        name = f"<cell {number}>"
        code = self.dedent(code)
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        sys.modules["__main__"] = self.module
        try:
            self.execute(code, name)
        except BaseException as exception:
            self.show(exception)

    def dedent(self, code):
        """By the indentation of the first line, as IPython does."""
        lines = code.split("\n")
        first = next((line for line in lines if line.strip()), "")
        indent = first[: len(first) - len(first.lstrip())]
        return "\n".join(line[len(indent):] if line.startswith(indent) else line for line in lines)

    def parse(self, code, name):
        """
        The syntax tree and the code, with !command and %pip lines as calls of system(). Only lines that Python reports as an
        error are replaced: inside a string they are text.
        """
        import ast
        lines = code.split("\n")
        while True:
            try:
                code = "\n".join(lines)
                return ast.parse(code, name), code
            except SyntaxError as failure:
                at = (failure.lineno or 0) - 1
                word = lines[at].lstrip() if 0 <= at < len(lines) else ""
                if not word.startswith(("!", "%pip ")):
                    raise
                command = word[1:] if word.startswith("!") else "python3 -m " + word[1:]
                lines[at] = f"{lines[at][:len(lines[at]) - len(word)]}__import__('os').system({command!r});"

    def execute(self, code, name):
        import ast
        tree, code = self.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        for part, mode in ((tree, "exec"), (last, "eval")):
            if part is None or (mode == "exec" and not part.body):
                continue
            value = self.evaluate(compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if mode == "eval" and value is not None:
                self.user_ns["_"] = value
                here.link.result(bundle_of(value), True)

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
        here.link.error(type(exception).__name__, text_of(exception), "".join(lines).rstrip("\n"))
