#!/bin/sh
# fuzz.sh BUILD SECONDS - build every fuzz target of BUILD and run each for SECONDS, starting from its corpus.
#
# Builds only the targets: guestd is static and cannot be linked with this build's coverage instrumentation.
# New inputs stay in BUILD/corpus for the next run. An input that crashes is kept in BUILD/crashes; once the bug is
# understood, add it to tests/fuzz/corpus/ under a name that says what it is.
# The last line is the tally: 'N passed, N failed'.
set -u
build=$1 seconds=$2
passed=0 failed=0

targets=$(ninja -C "$build" -t targets all | sed -n 's/^\(tests\/fuzz\/[a-z0-9_]*_fuzz\): .*/\1/p')
# shellcheck disable=SC2086 # a list of names without spaces
if [ -z "$targets" ] || ! ninja --quiet -C "$build" $targets; then
    echo "0 passed, 1 failed"
    exit 1
fi

for target in $targets; do
    name=$(basename "$target" _fuzz)
    mkdir -p "$build/corpus/$name" "$build/crashes"
    # libFuzzer writes to the first directory and only reads the second.
    set -- "$build/corpus/$name"
    [ ! -d "tests/fuzz/corpus/$name" ] || set -- "$@" "tests/fuzz/corpus/$name"
    log=$build/fuzz-$name.log
    echo "fuzz: $name for $seconds s"
    if timeout -k 10 $((seconds + 120)) "$build/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$build/crashes/$name-" -print_final_stats=1 "$@" >"$log" 2>&1; then
        echo "fuzz: $name: ok, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
        passed=$((passed + 1))
    else
        tail -n 40 "$log"
        echo "fuzz: $name: FAILED, input in $build/crashes, log in $log"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
