#!/bin/sh
# lint.sh quick|all [BUILD] - static checks of the source.
#
#   quick   formatting, Python syntax, shellcheck; takes a second
#   all     the same and clang-tidy over src/, with the flags of BUILD (a clang build); takes minutes
#
# Prints a line per check. The exit code is 1 if one of them found something.
set -u
cd "$(dirname "$0")/.." || exit 1

failed=0
report() { # NAME STATUS
    if [ "$2" = 0 ]; then
        echo "lint: $1: ok"
    else
        echo "lint: $1: see above"
        failed=1
    fi
}
have() { command -v "$1" >/dev/null 2>&1; }
# Only our own files, not those that npm and pip put below tests/.
files() { find src tests bench scripts \( -name node_modules -o -name '.venv*' \) -prune -o -type f -name "$1" -print 2>/dev/null; }

# Versions of clang-format differ in details; the layout is that of Debian 12's.
format_version=14
if ! have clang-format; then
    echo "lint: formatting: skipped, no clang-format here"
elif ! clang-format --version | grep -q "version $format_version\\."; then
    echo "lint: formatting: skipped, needs clang-format $format_version"
else
    wrong=$(files '*.[ch]' | xargs clang-format --dry-run 2>&1 | sed -n 's/^\([^ :]*:[0-9]*\):.*warning: .*/\1/p' | sort -u -t: -k1,1)
    # shellcheck disable=SC2086 # a list of names without spaces
    [ -z "$wrong" ] || printf '%s: not as .clang-format has it; make format\n' $wrong
    [ -z "$wrong" ]
    report formatting $?
fi

# Parsed, not compiled, so that the check leaves no __pycache__ behind.
files '*.py' | xargs python3 -c '
import ast, sys
for name in sys.argv[1:]:
    ast.parse(open(name, encoding="utf-8").read(), name)'
report python $?

if have shellcheck; then
    # What runs inside sandboxes has no #! line, so name the shell. Recipes are for bash.
    files '*.sh' | grep -v '/recipes/' | xargs shellcheck --shell=sh && shellcheck --shell=bash src/image/recipes/*.sh &&
        shellcheck .ci/run
    report shell $?
else
    echo "lint: shell: skipped, no shellcheck here"
fi

if [ "${1:-quick}" = all ]; then
    build=${2:-build-clang}
    # Four files per process, because each start of clang-tidy costs time.
    find src -name '*.c' -print0 | xargs -0 -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet 2>/dev/null
    report clang-tidy $?
fi
exit $failed
