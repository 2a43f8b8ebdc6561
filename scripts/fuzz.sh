#!/bin/sh
# fuzz.sh BUILD SECONDS - build every fuzz target of BUILD and run each for SECONDS, starting from its corpus.
#
# Runs as many at once as there are processors. Builds only the targets: guestd is static and cannot be linked with this build's coverage instrumentation.
# New inputs stay in BUILD/corpus for the next run. An input that crashes is kept in BUILD/crashes; once the bug is
# understood, add it to tests/fuzz/corpus/ under a name that says what it is.
# The last line is the tally: 'N passed, N failed'.
set -u
build=$1 seconds=$2

fuzz_one() { # TARGET
    name=$(basename "$1" _fuzz)
    log=$build/fuzz-$name.log
    program=$build/$1
    mkdir -p "$build/corpus/$name" "$build/crashes"
    # libFuzzer writes to the first directory and only reads the second.
    set -- "$build/corpus/$name"
    [ ! -d "tests/fuzz/corpus/$name" ] || set -- "$@" "tests/fuzz/corpus/$name"
    echo "fuzz: $name for $seconds s"
    if timeout -k 10 $((seconds + 120)) "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$build/crashes/$name-" -print_final_stats=1 "$@" >"$log" 2>&1; then
        echo "fuzz: $name: ok, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
        : >"$log.passed"
    else
        tail -n 40 "$log"
        why=$(sed -n '/ERROR: \|runtime error: /{s/^==[0-9]*== *//;p;q}' "$log")
        echo "fuzz: $name: FAILED, ${why:-$(tail -n 1 "$log")}, input in $build/crashes, log in $log"
    fi
}

if [ $# = 3 ]; then # from below
    fuzz_one "$3"
    exit
fi
targets=$(ninja -C "$build" -t targets all | sed -n 's/^\(tests\/fuzz\/[a-z0-9_]*_fuzz\): .*/\1/p')
# shellcheck disable=SC2086 # a list of names without spaces
if [ -z "$targets" ] || ! ninja --quiet -C "$build" $targets; then
    echo "0 passed, 1 failed"
    exit 1
fi
rm -f "$build"/fuzz-*.log.passed
echo "$targets" | xargs -P "$(nproc)" -n 1 "$0" "$build" "$seconds"
total=$(echo "$targets" | wc -l)
passed=$(find "$build" -maxdepth 1 -name 'fuzz-*.log.passed' | wc -l)
echo "$passed passed, $((total - passed)) failed"
[ "$passed" = "$total" ]
