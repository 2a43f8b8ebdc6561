"""A result of a cell, from the value's MIME bundle to the line that the client gets.

Known types go under the API's short names, all others into `extra`. A value that JSON cannot carry is converted or left out; a
value that is too large is left out with a note on stderr.
"""
import os
from json import dumps  # by name: user code may replace json.dumps

TEXT_MAX = 4 << 20  # characters of a result's text, which every client keeps in memory
ERROR_MAX = 1 << 19  # characters of each of an error's three texts: at twelve bytes a character they fit into a frame
BUNDLE_MAX = 30 << 20  # the whole result, encoded

FIELDS = (
    ("text", "text/plain"), ("html", "text/html"), ("markdown", "text/markdown"), ("svg", "image/svg+xml"),
    ("png", "image/png"), ("jpeg", "image/jpeg"), ("pdf", "application/pdf"), ("latex", "text/latex"),
    ("json", "application/json"), ("javascript", "application/javascript"), ("data", "e2b/data"), ("chart", "e2b/chart"),
)


def plain(value, depth=0):
    """The value converted to JSON's types: numbers of other libraries as numbers, not-a-number as null."""
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
        dumps(value, allow_nan=False)
        return value
    except (ValueError, TypeError, RecursionError):
        return json_or_none(value)


def json_or_none(value):
    try:
        return plain(value)
    except Exception:  # the methods of a user's object may raise anything
        return None


def frame_data(frame):
    """A table as columns."""
    return plain({str(name): column for name, column in frame.to_dict(orient="list").items()})


def base64_text(value):
    if isinstance(value, (bytes, bytearray, memoryview)):
        import binascii
        return binascii.b2a_base64(bytes(value), newline=False).decode()
    return value


def capped(text, most=TEXT_MAX):
    if len(text) <= most:
        return text
    return text[:most] + f"\n[{len(text) - most} more characters were left out]"


def result_line(bundle, is_main):
    """A MIME bundle as the client's `result`: known types under short names, all others in `extra`.

    A text may be cut. Anything else is sent whole or left out. Returns the line and what was left out: (field, bytes), largest
    first.
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
        sizes = sorted(((len(dumps(value)), name, home) for home in (fields, extra) for name, value in home.items()),
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
    """Removes empty values, and values that are certainly too large before they are encoded as JSON."""
    for name, value in list(home.items()):
        if isinstance(value, str) and len(value) > BUNDLE_MAX:
            del home[name]
            yield name, len(value)
        elif not isinstance(value, str):
            home[name] = sendable(value)
            if home[name] is None:
                del home[name]


def encode_result(fields, extra, is_main):
    return dumps({"type": "result", **fields, "extra": extra, "is_main_result": is_main})


def note_left_out(left_out):
    """Written to descriptor 2: sys.stderr may be anything by now, and the client has to know."""
    for name, size in left_out:
        note = f"[the result's {name}, {size} bytes, was left out: a result may have {BUNDLE_MAX} in all]\n"
        try:
            os.write(2, note.encode("ascii", "backslashreplace"))
        except OSError:
            return  # user code has closed it
