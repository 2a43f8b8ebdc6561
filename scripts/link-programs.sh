#!/bin/sh
# link-programs.sh BUILD - the two programs by their short names, BUILD/cloister and BUILD/cloister-guestd.
#
# Hard links, because `cloister` finds guestd beside the path it was started by, and a symbolic link would lead it away.
set -eu

for program in src/daemon/cloister src/guest/cloister-guestd; do
    [ ! -f "$1/$program" ] || ln -f "$1/$program" "$1/${program##*/}"
done
