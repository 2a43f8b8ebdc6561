#!/bin/sh
# link-programs.sh BUILD - the programs by their short names, BUILD/cloister, BUILD/cloister-guestd and BUILD/cloister-mail.
#
# Hard links, not symbolic ones: `cloister` looks for the others in its own directory, with symbolic links resolved.
set -eu

for program in src/daemon/cloister src/daemon/cloister-mail src/guest/cloister-guestd; do
    [ ! -f "$1/$program" ] || ln -f "$1/$program" "$1/${program##*/}"
done
