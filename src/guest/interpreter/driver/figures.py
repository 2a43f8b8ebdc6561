"""A matplotlib figure as a picture, and as data that a client can draw again (charts.py, compiled when first needed)."""
import struct
import sys
import types

from .here import here


def is_figure(value):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


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


def figure_chart(figure):
    try:
        return charts().chart_of(figure)
    except Exception:  # a chart is an extra: the picture is there anyway
        return {}


def charts():
    module = sys.modules.get("cloister_charts")
    if not module:
        module = sys.modules["cloister_charts"] = types.ModuleType("cloister_charts")
        exec(compile(here.charts_source, "<charts>", "exec"), module.__dict__)
    return module
