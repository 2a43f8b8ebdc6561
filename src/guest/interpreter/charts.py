"""A matplotlib figure as data: type, labels, axes and values, so that a client can draw it again.

Reads only what the figure holds; never draws. A figure without axes gives {}. Several axes give a `superchart` of charts.
The type of one axes follows from the artists on it, in the order of TYPES below.
"""
import math
import re

UNIT = re.compile(r"\s\(([^()]*)\)|\[([^\[\]]*)\]")


def chart_of(figure):
    found = [chart for chart in (axes_chart(axes) for axes in figure.get_axes()) if chart]
    if not found:
        return {}
    if len(found) == 1:
        return found[0]
    return {"type": "superchart", "title": figure.get_suptitle() if hasattr(figure, "get_suptitle") else "",
            "elements": found}


# ---- one axes ----

def axes_chart(axes):
    from matplotlib import collections, lines, patches
    artists = [a for a in axes.get_children() if is_data(axes, a)]
    if not artists:
        return {}
    curves = [a for a in artists if isinstance(a, lines.Line2D)]
    without_grid = [a for a in artists if not is_grid_line(a)]

    def all_are(some, *kinds):
        return bool(some) and all(isinstance(a, kinds) for a in some)

    title = {"title": axes.get_title() or None}
    if all_are(artists, lines.Line2D):
        return {"type": "line", **title, **labels(axes), **scales(axes), "elements": [curve(axes, a, i) for i, a in enumerate(curves)]}
    if all_are(artists, patches.PathPatch, lines.Line2D):
        return box_chart(axes, title, [a for a in artists if isinstance(a, patches.PathPatch)], curves)
    if all_are(without_grid, collections.PathCollection):
        return {"type": "scatter", **title, **labels(axes), **scales(axes), "elements": [cloud(axes, a) for a in without_grid]}
    if all_are(artists, patches.Wedge):
        return {"type": "pie", **title, "elements": [slice_of(a) for a in artists]}
    if all_are(artists, patches.Rectangle):
        return bar_chart(axes, title)
    return {"type": "unknown", **title, "elements": []}


def is_data(axes, artist):
    """Not the frame, the axis, the title, a text or a legend."""
    from matplotlib import axis, legend, spines, table, text
    return not (artist is axes.patch or isinstance(artist, (axis.Axis, spines.Spine, text.Text, legend.Legend, table.Table)))


def is_grid_line(artist):
    from matplotlib import lines
    if not isinstance(artist, lines.Line2D):
        return False
    x, y = artist.get_xdata(), artist.get_ydata()
    return len(x) == 2 and len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


def unit_of(label):
    found = UNIT.search(label or "")
    return (found.group(1) or found.group(2)) if found else None


def labels(axes):
    x, y = axes.get_xlabel(), axes.get_ylabel()
    return {"x_label": x or None, "y_label": y or None, "x_unit": unit_of(x), "y_unit": unit_of(y)}


def swapped(labels_of_axes):
    other = {"x": "y", "y": "x"}
    return {other[name[0]] + name[1:]: value for name, value in labels_of_axes.items()}


# ---- axis: ticks and scale ----

def has_dates(axis):
    converter = axis.get_converter() if hasattr(axis, "get_converter") else getattr(axis, "converter", None)
    return converter is not None and "Date" in type(converter).__name__


def number(value):
    value = float(value)
    return value if math.isfinite(value) else None


def as_value(axis, value):
    """A coordinate as the client sees it: a date as ISO text, otherwise a number."""
    if not has_dates(axis):
        try:
            return number(value)
        except (TypeError, ValueError):
            return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    import numpy
    from matplotlib import dates
    if isinstance(value, numpy.datetime64):
        return value.astype("datetime64[us]").item().isoformat()
    return dates.num2date(value).isoformat()


def axis_scale(axis, ticks, names):
    if has_dates(axis):
        return "datetime"
    scale = axis.get_scale()
    counts_up = bool(ticks) and all(tick == i for i, tick in enumerate(ticks))
    is_numeric = all(tick_text_is(name, tick) for name, tick in zip(names, ticks))
    return "categorical" if scale == "linear" and counts_up and not is_numeric else scale


def tick_text_is(name, tick):
    try:
        return float(name.replace("\u2212", "-")) == float(tick)
    except ValueError:
        return False


def scales(axes):
    made = {}
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        raw = [float(tick) for tick in axis.get_ticklocs()]
        names = [text.get_text() for text in axis.get_ticklabels()]
        made[f"{letter}_ticks"] = [as_value(axis, tick) for tick in raw]
        made[f"{letter}_tick_labels"] = names
        made[f"{letter}_scale"] = axis_scale(axis, raw, names)
    return made


# ---- elements ----

def points(axes, pairs):
    return [[as_value(axes.xaxis, x), as_value(axes.yaxis, y)] for x, y in pairs]


def curve(axes, line, index):
    label = str(line.get_label())
    if label.startswith("_child"):
        label = f"Line {label[len('_child'):]}"
    return {"label": label, "points": points(axes, zip(line.get_xdata(), line.get_ydata()))}


def cloud(axes, collection):
    return {"label": str(collection.get_label()), "points": points(axes, collection.get_offsets())}


def slice_of(wedge):
    return {"label": str(wedge.get_label()), "angle": abs(number(wedge.theta2 - wedge.theta1)), "radius": number(wedge.r)}


def tick_names(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def bar_chart(axes, title):
    """Bars of one height and several widths are horizontal: their widths are the values."""
    containers = [c for c in axes.containers if getattr(c, "patches", None)]
    heights = {round(float(bar.get_height()), 8) for c in containers for bar in c.patches}
    widths = {round(float(bar.get_width()), 8) for c in containers for bar in c.patches}
    is_horizontal = len(heights) == 1 and len(widths) > 1
    names = tick_names(axes.yaxis if is_horizontal else axes.xaxis)
    elements = []
    for c in containers:
        group = str(c.get_label())
        if group.startswith("_container"):
            group = f"Group {group[len('_container'):]}"
        for i, bar in enumerate(c.patches):
            value = bar.get_width() if is_horizontal else bar.get_height()
            elements.append({"label": names[i] if i < len(names) else str(i), "group": group, "value": number(value)})
    about = labels(axes)
    return {"type": "bar", **title, **(swapped(about) if is_horizontal else about), "elements": elements}


# ---- boxes and whiskers ----

def rounded(value):
    return number(round(float(value), 8))


def box_chart(axes, title, boxes, curves):
    """A line belongs to the box that its middle is in: two whiskers, two caps, a median. All others are outliers."""
    corners = [box.get_path().vertices for box in boxes]
    spans = [(float(c[:, 0].min()), float(c[:, 0].max()), float(c[:, 1].min()), float(c[:, 1].max())) for c in corners]
    heights = {round(top - bottom, 8) for left, right, bottom, top in spans}
    widths = {round(right - left, 8) for left, right, bottom, top in spans}
    is_horizontal = len(heights) == 1 and len(widths) > 1
    names = tick_names(axes.yaxis if is_horizontal else axes.xaxis)
    elements = []
    for i, (left, right, bottom, top) in enumerate(spans):
        across = (bottom, top) if is_horizontal else (left, right)
        first, third = (left, right) if is_horizontal else (bottom, top)
        element = {"label": names[i] if i < len(names) else str(i), "min": rounded(first), "first_quartile": rounded(first),
                   "median": None, "third_quartile": rounded(third), "max": rounded(third), "outliers": []}
        for line in curves:
            take_line(element, line, across, (first, third), is_horizontal)
        if element["median"] is None:
            element["median"] = rounded((first + third) / 2)
        elements.append(element)
    about = labels(axes)
    return {"type": "box_and_whisker", **title, **(swapped(about) if is_horizontal else about), "elements": elements}


def take_line(element, line, across, box, is_horizontal):
    place, value = [float(v) for v in line.get_xdata()], [float(v) for v in line.get_ydata()]
    if is_horizontal:
        place, value = value, place
    if not place or not across[0] <= sum(place) / len(place) <= across[1]:
        return
    if line.get_linestyle() in ("None", "none", "", " "):
        element["outliers"] = [rounded(v) for v in value]
    elif len(value) == 2 and value[0] == value[1] and box[0] <= value[0] <= box[1] and \
            math.isclose(place[1] - place[0], across[1] - across[0], rel_tol=1e-6):
        element["median"] = rounded(value[0])
    else:
        element["min"] = rounded(min(element["min"], *value))
        element["max"] = rounded(max(element["max"], *value))
