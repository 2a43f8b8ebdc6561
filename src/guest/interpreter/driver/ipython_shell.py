"""The shell for templates with IPython: runs cells in it and sends results and errors over the link."""
from .figures import figure_chart, figure_png, is_figure
from .here import here
from .link import text_of
from .result import frame_data, json_or_none

SIMPLE = (int, float, str, bool)


def make_ipython_shell():
    from IPython.core import formatters
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import Type, Unicode
    from traitlets.config import Config

    class Hook(DisplayHook):
        def compute_format_data(self, result):
            # Skips a dozen formatters that would find nothing, which is half the cost of such a cell.
            if type(result) in SIMPLE and not self.shell.has_formatters_for(type(result)):
                return {"text/plain": self.shell.display_formatter.formatters["text/plain"](result)}, {}
            return super().compute_format_data(result)

        def start_displayhook(self):
            pass

        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            if here.link:
                here.link.result(format_dict, True)

        def log_output(self, format_dict):
            pass

        def finish_displayhook(self):
            pass

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, *args, update=False, **kwargs):
            if here.link and not update:
                here.link.result(data, False)

        def clear_output(self, wait=False):
            pass

    class Shell(InteractiveShell):
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)
        wants_exit = False
        system = InteractiveShell.system_raw  # writes straight to stdout and stderr; a terminal costs 100 ms

        def init_history(self):
            super().init_history()
            self.history_manager.enabled = False

        def _showtraceback(self, etype, evalue, stb):
            if here.link:
                here.link.error(getattr(etype, "__name__", str(etype)), text_of(evalue), "\n".join(stb))

        def ask_exit(self):
            self.wants_exit = True

        def run(self, code):
            if "InlineBackend" in code:  # %config must find it registered
                self.add_inline_config()
            # IPython counts a cell only when it stores its history.
            here.link.count(self.execution_count)
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
            # Not registered for the type Figure: %config InlineBackend.figure_formats removes what is registered.
            return figure_chart(value) if is_figure(value) else super().__call__(value)

    known = made.display_formatter.formatters
    known["e2b/data"] = Data(parent=made.display_formatter)
    known["e2b/chart"] = Chart(parent=made.display_formatter)
    known["e2b/data"].for_type_by_name("pandas.core.frame", "DataFrame", frame_data)
    known["e2b/data"].for_type_by_name("pandas", "DataFrame", frame_data)
    for kind in (list, dict):
        known["application/json"].for_type(kind, json_or_none)
    return made
