#!/bin/sh
# link-programs.sh BUILD - the two programs by their short names, BUILD/cloister and BUILD/cloister-guestd.
#
# Hard links, not symbolic ones: `cloister` looks for guestd in its own directory, with symbolic links resolved.
set -eu

for program in src/daemon/cloister src/guest/cloister-guestd; do
    [ ! -f "$1/$program" ] || ln -f "$1/$program" "$1/${program##*/}"
done
