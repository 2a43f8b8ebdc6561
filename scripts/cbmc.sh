#!/bin/sh
# cbmc.sh - print the path of a CBMC, the model checker that tests/model/ needs.
#
# The system's own, if it has one. Else the one of Debian 13, unpacked into a cache directory: 25 MB are fetched once, as
# packages that apt has verified; nothing is installed, and no root is needed. CBMC_CACHE names another directory,
# CLOISTER_DEBIAN_MIRROR another mirror. Without a CBMC, the last line on stderr says why, and the exit code is 1.
set -eu

suite=trixie
mirror=${CLOISTER_DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
fetch_seconds=150

die() { printf 'cbmc: %s\n' "$*" >&2; exit 1; }

if command -v cbmc; then
    exit 0
fi
cache=${CBMC_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/cloister/cbmc-$suite}
if [ -x "$cache/cbmc" ]; then
    echo "$cache/cbmc"
    exit 0
fi
for program in apt-get dpkg-deb timeout; do
    command -v $program >/dev/null || die "no cbmc here, and no $program to fetch it with: install cbmc"
done
[ -r "$keyring" ] || die "no cbmc here, and no $keyring to verify Debian's: install cbmc or debian-archive-keyring"

mkdir -p "$(dirname "$cache")"
work=$(mktemp -d "$cache.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/root"
: >"$work/status"
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
# The rest of the host's settings stay, such as a proxy.
cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::http::Timeout "20";
Acquire::Retries "2";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
END
# Without gcc, which cbmc depends on: the host has one.
# shellcheck disable=SC2016 # the inner shell expands it
APT_CONFIG=$work/apt.conf timeout $fetch_seconds sh -euc '
    apt-get -qq update
    cd "$1/archives" && apt-get -qq download cbmc minisat libc6 libgcc-s1 libstdc++6' - "$work" >"$work/log" 2>&1 ||
    die "no cbmc here, and Debian's could not be fetched from $mirror: $(tail -n 1 "$work/log")"
for package in "$work"/archives/*.deb; do
    dpkg-deb --extract "$package" "$work/root"
done

# With the libraries of its own release. The loader's path keeps them away from the host's gcc, which cbmc starts.
loader=$(find "$work/root" -name 'ld-linux*.so.*' | head -n 1)
library=$(dirname "$(find "$work/root" -name 'libstdc++.so.6' | head -n 1)")
[ -n "$loader" ] || die "the packages of Debian's cbmc are not as expected: no loader"
cat >"$work/cbmc" <<END
#!/bin/sh
here=\$(dirname "\$0")
exec "\$here${loader#"$work"}" --library-path "\$here${library#"$work"}:\$here/root/usr/lib" "\$here/root/usr/bin/cbmc" "\$@"
END
chmod 755 "$work" "$work/cbmc"
"$work/cbmc" --version >/dev/null || die "Debian's cbmc does not run here"
rm -rf "$work/archives" "$work/lists" "$work"/*.bin "$work/sources.list" "$work/apt.conf" "$work/status" "$work/log"
# Two at a time: the first one wins, both are the same.
mv -T "$work" "$cache" 2>/dev/null || [ -x "$cache/cbmc" ] || die "cannot move it to $cache"
echo "$cache/cbmc"
