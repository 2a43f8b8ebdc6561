#!/usr/bin/env python3
"""run.py - the network tests: a real server, and an Internet of our own in namespaces (world.py). Needs root.

    run.py [FILE…] [-- PYTEST OPTION…]      for instance   run.py test_rules.py -- -k mail

Ends with one line, 'N passed, N failed, N skipped'. server.py of tests/e2e says which server is tested and where its
data is; the tests use the virtual environment that tests/e2e/run.py makes.
"""

import importlib.util
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
sys.dont_write_bytecode = True


def e2e_runner():
    """tests/e2e/run.py, which has this file's name."""
    spec = importlib.util.spec_from_file_location("e2e_run", HERE.parent / "e2e" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        options = arguments[arguments.index("--") + 1 :]
        arguments = arguments[: arguments.index("--")]
    files = arguments or sorted(path.name for path in HERE.glob("test_*.py"))
    missing = [name for name in files if not (HERE / name).exists()]
    if missing:
        sys.exit(f"there is no {missing[0]} in {HERE}")
    runner = e2e_runner()
    runner.WORK.mkdir(parents=True, exist_ok=True)
    runner.make_base()
    count = runner.run_pytest(runner.make_venv("newest"), "network", [HERE / name for name in files], options, cwd=HERE)
    print(count)
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
