#!/bin/sh
# criu.sh - print the directory of a CRIU that Cloister can use, the program that writes processes to disk.
#
# CRIU 4.2 or newer, from Debian's newest suite, with the libraries and the tar that it needs, in a root of its own: 12 MB
# are fetched once, as packages that apt has verified. Nothing is installed. Needs root, because keeper runs it as root and
# takes it only from a directory that nobody else can write to. CLOISTER_CRIU names another directory,
# CLOISTER_DEBIAN_MIRROR another mirror. Without a CRIU, the last line on stderr says why, and the exit code is 1: sandboxes
# can then be paused in memory, and to disk without their processes.
set -eu

suite=sid
least=4.2
mirror=${CLOISTER_DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
fetch_seconds=300
root=${CLOISTER_CRIU:-/var/cache/cloister/criu}

die() { printf 'criu: %s\n' "$*" >&2; exit 1; }

if [ -x "$root/usr/sbin/criu" ]; then
    echo "$root"
    exit 0
fi
[ "$(id -u)" = 0 ] || die "CRIU is not in $root, and only root can put it there: run scripts/criu.sh as root"
for program in apt-get dpkg-deb timeout; do
    command -v $program >/dev/null || die "there is no $program here to fetch CRIU with"
done
[ -r "$keyring" ] || die "there is no $keyring to verify Debian's packages: install debian-archive-keyring"

umask 022
mkdir -p "$(dirname "$root")"
work=$(mktemp -d "$root.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/root"
: >"$work/status"
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
# The rest of the host's settings stay, such as a proxy. A mirror may be a copy from some day, with an index past its date;
# its signature is still checked.
cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Check-Valid-Until "false";
Acquire::http::Timeout "20";
Acquire::Retries "2";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
DPkg::Post-Invoke "";
END
# With an empty list of installed packages, apt names everything that CRIU needs. tar, gzip and sh pack the files of a tmpfs.
APT_CONFIG=$work/apt.conf timeout $fetch_seconds sh -euc '
    apt-get -qq update
    apt-get -qq --yes --no-install-recommends --download-only install criu tar gzip dash' >"$work/log" 2>&1 ||
    die "CRIU could not be fetched from $mirror: $(tail -n 1 "$work/log")"
for package in "$work"/archives/*.deb; do
    dpkg-deb --extract "$package" "$work/root"
done
[ -e "$work/root/lib64" ] || [ ! -e "$work/root/usr/lib64" ] || ln -s usr/lib64 "$work/root/lib64"
for name in bin sbin lib; do
    [ -e "$work/root/$name" ] || ln -s "usr/$name" "$work/root/$name"
done
version=$(chroot "$work/root" /usr/sbin/criu --version | sed -n 's/^Version: *//p') || die "Debian's CRIU does not run here"
printf '%s\n%s\n' "$least" "$version" | sort --check=quiet --version-sort ||
    die "$mirror has CRIU $version in $suite, and $least is the least that works"
for unused in usr/share usr/include usr/games var etc home media mnt opt srv root tmp run boot dev proc sys; do
    rm -rf "${work:?}/root/$unused"
done
# What keeper mounts there.
mkdir -p "$work/root/proc" "$work/root/dev" "$work/root/run" "$work/root/sys" "$work/root/etc" "$work/root/tmp" "$work/root/image" "$work/root/box"
echo "$version" >"$work/root/etc/criu-version" # keeper reads it there
chmod 755 "$work/root"
# Two at a time: the first one wins, both are the same.
mv -T "$work/root" "$root" 2>/dev/null || [ -x "$root/usr/sbin/criu" ] || die "cannot move it to $root"
echo "$root"
