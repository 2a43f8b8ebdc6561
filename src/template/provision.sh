# Makes an image fit for sandboxes: what E2B's templates promise, as far as the image and the network allow. Runs as root, by
# the image's own /bin/sh. Everything is done only if it is missing, so images that have it gain an almost empty layer.
set -u
have() { command -v "$1" >/dev/null 2>&1; }

if [ ! -r /etc/os-release ]; then
  echo 'warning: the image does not say which distribution it is: nothing is installed'
fi

# Programs that SDKs and recipes count on. What cannot be installed is left out.
missing=
have bash || missing="$missing bash"
have curl || missing="$missing curl"
have sudo || missing="$missing sudo"
have ss || missing="$missing iproute2"
have pgrep || missing="$missing procps"
[ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || missing="$missing ca-certificates"
if [ -n "$missing" ]; then
  echo "installing:$missing"
  if have apt-get; then
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list
    apt-get -o Acquire::Retries=2 update && apt-get install -y --no-install-recommends $missing
    rm -rf /var/lib/apt/lists/*
  elif have apk; then
    # shellcheck disable=SC2086
    apk add --no-cache $missing shadow
  elif have dnf || have microdnf || have yum; then
    list=$(echo "$missing" | sed 's/procps/procps-ng/; s/iproute2/iproute/')
    # shellcheck disable=SC2086
    if have dnf; then dnf install -y $list; elif have microdnf; then microdnf install -y $list; else yum install -y $list; fi
  elif have pacman; then
    list=$(echo "$missing" | sed 's/procps/procps-ng/')
    # shellcheck disable=SC2086
    pacman -Sy --noconfirm --needed $list
  else
    echo 'warning: the image has no package manager that is known'
  fi || echo 'warning: not everything could be installed: is the network closed?'
fi
if [ ! -x /bin/bash ] && have bash; then
  mkdir -p /bin && ln -s "$(command -v bash)" /bin/bash
fi
if [ ! -x /bin/bash ]; then
  echo 'the image has no /bin/bash, and it could not be installed' >&2
  exit 1
fi

# The user, by the files themselves: an image need not have useradd. An id that is taken belongs to another user.
touch /etc/passwd /etc/group
uid=1000
while cut -d: -f3 /etc/passwd /etc/group | grep -qx "$uid"; do uid=$((uid + 1)); done
if ! grep -q '^user:' /etc/passwd; then
  gid=$(sed -n 's/^user:[^:]*:\([0-9]*\):.*/\1/p' /etc/group | head -n 1)
  if [ -z "$gid" ]; then
    gid=$uid
    echo "user:x:$gid:" >>/etc/group
    [ ! -e /etc/gshadow ] || echo 'user:!::' >>/etc/gshadow
  fi
  echo "user:x:$uid:$gid::/home/user:/bin/bash" >>/etc/passwd
  [ ! -e /etc/shadow ] || echo 'user::19000:0:99999:7:::' >>/etc/shadow
fi
home=$(sed -n 's/^user:[^:]*:[^:]*:[^:]*:[^:]*:\([^:]*\):.*/\1/p' /etc/passwd | head -n 1)
if [ ! -d "$home" ]; then
  mkdir -p "$home"
  [ ! -d /etc/skel ] || cp -R /etc/skel/. "$home/"
  [ -e "$home/.profile" ] || printf '[ -f ~/.bashrc ] && . ~/.bashrc\n' >"$home/.profile"
  [ -e "$home/.bashrc" ] || : >"$home/.bashrc"
  chown -R user:user "$home"
fi
if have sudo; then
  mkdir -p /etc/sudoers.d
  if [ ! -e /etc/sudoers.d/user ]; then
    printf 'Defaults !fqdn, !lecture, !syslog\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n' >/etc/sudoers.d/user
    chmod 0440 /etc/sudoers.d/user
  fi
  grep -qs 'includedir /etc/sudoers.d' /etc/sudoers || echo '@includedir /etc/sudoers.d' >>/etc/sudoers
fi
mkdir -p /code /usr/local && chmod 0777 /code
exit 0
