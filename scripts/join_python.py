#!/usr/bin/env python3
"""Joins the modules of a Python package into one text: join_python.py OUT.py FILE…

A file may import from files before it, as `from .file import name`, and from the standard library. Imports of the first
kind are left out, because in one text all names are defined already. The result means the same as the package only if
each global name is defined in one file, is imported under that name, and is never assigned again. This is checked.
"""
import ast
import pathlib
import symtable
import sys


class Refused(Exception):
    pass


def check_import(where, node, owners):
    if node.level != 1 or not node.module:
        raise Refused(f"{where}: import a file of the package as `from .file import name`")
    for alias in node.names:
        if alias.asname:
            raise Refused(f"{where}: {alias.name} must keep its name: `as` is not possible here")
        if owners.get(alias.name, (None, None))[0] != node.module:
            raise Refused(f"{where}: no earlier file {node.module}.py defines {alias.name}")


def foreign_imports(module):
    """{name: what it stands for} for imports from outside the package. Two files may import the same."""
    found = {}
    for node in module.body:
        if isinstance(node, ast.Import):
            found.update((alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.update((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    return found


def take(path, owners):
    """The lines of one file that go into the text. `owners` has each name so far: (file, what it stands for)."""
    source = path.read_text(encoding="ascii")
    lines = source.splitlines()
    module = ast.parse(source, str(path))
    for node in ast.walk(module):
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Global):
            raise Refused(f"{where}: `global` is not possible here; keep state in an attribute of an object")
        if isinstance(node, ast.ImportFrom) and node.level:
            if node not in module.body:
                raise Refused(f"{where}: import from a file of the package only at the top of a file")
            check_import(where, node, owners)
            lines[node.lineno - 1 : node.end_lineno] = [None] * (node.end_lineno - node.lineno + 1)
    foreign = foreign_imports(module)
    for symbol in symtable.symtable(source, str(path), "exec").get_symbols():
        name = symbol.get_name()
        if symbol.is_assigned() or name in foreign:
            what = None if symbol.is_assigned() else foreign[name]
            owner, before = owners.setdefault(name, (path.stem, what))
            if owner != path.stem and (what is None or before != what):
                raise Refused(f"{path}: {owner}.py already defines {name}")
    return [line for line in lines if line is not None]


def join(paths):
    owners, text = {}, []
    for path in map(pathlib.Path, paths):
        text += [f"# ---- {path.name} ----", "", *take(path, owners), "", ""]
    return "\n".join(text).rstrip("\n") + "\n"


def main():
    out, *paths = sys.argv[1:]
    try:
        text = join(paths)
    except Refused as refused:
        sys.exit(str(refused))
    pathlib.Path(out).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
