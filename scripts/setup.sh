#!/bin/sh
# setup.sh GROUP… - install what the Makefile needs on this machine.
#
#   build   compile Cloister and run it: a compiler, the libraries, mmdebstrap for the base template
#   test    what `make test`, `make lint` and `make fuzz` need on top: clang and its tools, cmocka, Python venv, node
#   clients Python venv and node for `make clients`, which fetches the rest from PyPI and npm
#   bench   the programs that `make bench` measures beside us: runc, crun, bubblewrap, pasta, slirp4netns, nginx;
#           Python venv for the SDK; CRIU, in a directory of its own
#   user    the system users that the unprivileged roles run as
#   names   makes *.cloister.localhost lead to this machine, for programs that look names up
#
# Asks dpkg first and uses apt (and sudo) only when something is missing, so that a second run takes milliseconds.
set -eu

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

build_packages="build-essential meson ninja-build pkg-config libjansson-dev libsqlite3-dev libsodium-dev
    libseccomp-dev libssl-dev libnghttp2-dev zlib1g-dev libzstd-dev libgmime-3.0-dev libcmark-gfm-dev
    libcmark-gfm-extensions-dev libgumbo-dev libidn2-dev libcurl4-openssl-dev mmdebstrap debian-archive-keyring
    ca-certificates passwd python3"
test_packages="clang clang-format clang-tidy libcmocka-dev python3-venv curl shellcheck iproute2 nftables openssl git dpkg-dev
    umoci skopeo apache2-utils libcap2-bin"
browser_packages="chromium libnss3-tools" # of the network tests
client_packages="python3 python3-venv"
bench_packages="runc crun bubblewrap passt slirp4netns nftables iproute2 openssl umoci skopeo buildah python3
    python3-venv"
service_users="cloister cloister-egress cloister-signer cloister-composer cloister-webhooks cloister-puller" # one for each role; front's is the first

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        die "this step needs root and there is no sudo here: run make as root"
    fi
}

# Runs a command that takes long, and shows a line that counts the seconds.
with_progress() { # TEXT COMMAND…
    text=$1
    shift
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null &
    job=$!
    trap 'kill "$job" 2>/dev/null; rm -f "$log"; exit 130' INT TERM
    seconds=0
    if [ -t 2 ]; then
        while kill -0 "$job" 2>/dev/null; do
            printf '\rsetup: %s (%d s) ' "$text" "$seconds" >&2
            sleep 1
            seconds=$((seconds + 1))
        done
        printf '\r' >&2
    else
        say "$text"
    fi
    status=0
    wait "$job" || status=$?
    trap - INT TERM
    if [ "$status" != 0 ]; then
        say "$text: failed"
        tail -n 20 "$log" >&2
        rm -f "$log"
        return "$status"
    fi
    [ ! -t 2 ] || say "$text: done    "
    rm -f "$log"
}

missing_packages() { # PACKAGE…
    for package in "$@"; do
        state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
        [ "$state" = "install ok installed" ] || printf '%s ' "$package"
    done
}

# Another apt may be running on a machine that has just booted: wait for its lock instead of failing.
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 "$@"; }

install_packages() { # PACKAGE…
    # shellcheck disable=SC2046 # split into words on purpose
    set -- $(missing_packages "$@")
    [ $# -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || as_root true # asks for the password here, not behind the progress line
    # The lists may be missing (containers) or name files that the mirror has replaced since: try, refresh, try again.
    if ! apt-cache show "$@" >/dev/null 2>&1 || [ -z "$(find /var/lib/apt/lists -name '*Packages*' -mtime -7 2>/dev/null)" ]; then
        with_progress "fetching Debian's package lists" apt update
    fi
    with_progress "installing $# packages" apt install -y --no-install-recommends "$@" && return 0
    with_progress "fetching Debian's package lists again" apt update
    with_progress "installing $# packages" apt install -y --no-install-recommends "$@"
}

# Keep an installed node: it may be newer than Debian's.
missing_node() {
    command -v node >/dev/null 2>&1 || echo nodejs
    command -v npm >/dev/null 2>&1 || echo npm
}

# The sanitizer and fuzzer runtimes are in a package of clang's own version.
clang_runtime() {
    version=$(clang -dumpversion | cut -d. -f1)
    install_packages "libclang-rt-$version-dev"
}

# Unpacked below build/, not installed: Debian's packages of these start a server, on port 80 and on port 5000.
unpack_server() { # PACKAGE PROGRAM DIRECTORY WITHOUT
    if command -v "${2##*/}" >/dev/null 2>&1 || [ -x "$3/$1/$2" ]; then
        return 0
    fi
    mkdir -p "$3/$1.deb"
    if (cd "$3/$1.deb" && apt-get download -qq "$1" 2>/dev/null); then
        dpkg-deb --extract "$3/$1.deb/$1"_*.deb "$3/$1"
    else
        say "$1 could not be fetched; $4"
    fi
    rm -rf "$3/$1.deb"
}

# Not Debian: list what is missing instead of installing it.
check_by_hand() {
    absent=""
    for program in cc meson ninja pkg-config python3 mmdebstrap; do
        command -v "$program" >/dev/null 2>&1 || absent="$absent
    the program $program"
    done
    if command -v pkg-config >/dev/null 2>&1; then
        for library in jansson sqlite3 libsodium libseccomp openssl zlib libzstd libcurl gmime-3.0 libcmark-gfm gumbo libidn2 "$@"; do
            pkg-config --exists "$library" || absent="$absent
    the library $library, with its headers"
        done
    fi
    [ -z "$absent" ] || die "no apt-get on this system, so please install:$absent
Debian 12 and 13 and Ubuntu 24.04 are what Cloister is tested on."
}

add_users() {
    for user in $service_users; do
        getent passwd "$user" >/dev/null && continue
        say "adding the system user $user (no login, no home)"
        as_root useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$user"
    done
}

# Browsers and curl know *.localhost by themselves; other programs ask the C library. systemd-resolved answers it, and so
# does a small module. Not fatal: everything that needs no names works without.
resolve_names() {
    name=setup.cloister.localhost
    getent hosts $name >/dev/null && return 0
    [ "$1" = yes ] && install_packages libnss-myhostname
    getent hosts $name >/dev/null && return 0
    say "*.cloister.localhost does not lead to this machine: SDKs that need E2B_DOMAIN will not find it."
    say "Install libnss-myhostname and put myhostname into the hosts line of /etc/nsswitch.conf, or use systemd-resolved."
}

[ $# -gt 0 ] || die "no group named; there are build, test, clients, bench, user, names"
debian=yes
command -v apt-get >/dev/null 2>&1 || debian=no
for group in "$@"; do
    # shellcheck disable=SC2046,SC2086 # the lists are words
    case "$debian $group" in
    "yes build") install_packages $build_packages ;;
    "yes test")
        install_packages $test_packages $(missing_node)
        # Ubuntu's chromium is not a Debian package.
        install_packages $browser_packages || say "no chromium here; the test with a browser is skipped"
        # Debian 12 has no cbmc; scripts/cbmc.sh fetches one then.
        ! apt-cache show cbmc >/dev/null 2>&1 || install_packages cbmc || say "no cbmc here; scripts/cbmc.sh fetches one"
        clang_runtime
        unpack_server docker-registry usr/bin/docker-registry build/test "the tests with a registry of its own are skipped"
        ;;
    "yes clients") install_packages $client_packages $(missing_node) ;;
    "yes bench")
        install_packages $bench_packages
        unpack_server nginx usr/sbin/nginx build/bench "the benchmark leaves it out"
        as_root scripts/criu.sh >/dev/null || say "no CRIU here; the benchmark leaves it out"
        ;;
    "no build") check_by_hand ;;
    "no test") check_by_hand cmocka ;;
    "no clients") ;; # run.py reports a client that cannot be installed
    "no bench") ;; # the benchmark leaves out what is not installed
    *" user") add_users ;;
    *" names") resolve_names "$debian" ;;
    *) die "there is no group '$group': build, test, clients, bench, user, names" ;;
    esac
done
