"""Hooks for packages that cells import: figures and pictures become results."""
import os
import sys

from .here import here

FIGURES = "cloister_figures"  # the name of our backend


class AfterImport:
    """Runs a function when a module has been imported."""

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
            except Exception:  # another version than we know: it works, without our extras
                pass

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            return None
        return spec


class FiguresBackend:
    """A matplotlib backend that shows figures as results. The module is made when matplotlib imports it by name."""

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
    here.shell.add_inline_config()


def on_figure(module):
    here.shell.add_figure_formatters(module.Figure)


def show_figures(*args, **kwargs):
    """plt.show(): displays every open figure, oldest first, and closes them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if not pyplot:
        return
    try:
        for number in pyplot.get_fignums():
            here.shell.display(pyplot.figure(number))
    finally:
        pyplot.close("all")


def on_pil_image(image):
    """An image that a cell saves or shows is also a result, because there is no window."""
    save = image.Image.save

    def save_and_display(self, fp, *args, **kwargs):
        save(self, fp, *args, **kwargs)
        asker = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(fp, str) and here.link and not asker.startswith(("matplotlib", "PIL", "imageio", "skimage")):
            here.shell.display(self)

    image.Image.save = save_and_display
    image.Image.show = lambda self, *args, **kwargs: here.shell.display(self)


AFTER_IMPORT = {"matplotlib": on_matplotlib, "matplotlib.figure": on_figure, "PIL.Image": on_pil_image}
