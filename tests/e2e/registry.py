"""registry.py - Debian's docker-registry on a loopback port, and small images for it that umoci made and skopeo pushed.

The images have the programs that this machine has: bash, coreutils and a few more, with the libraries they need. Nothing is
downloaded, and a build takes a second.
"""

import contextlib
import gzip
import hashlib
import http.client
import io
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import time

from server import ROOT, die_with_parent, free_port

UNPACKED = ROOT / "build/test/docker-registry/usr/bin"  # by scripts/setup.sh
TOOLS = ("docker-registry", "skopeo", "umoci", "getcap", "find", "htpasswd")
PROGRAMS = """bash sh env ls cat cp ln mv rm rmdir mkdir touch chmod chown id whoami stat sha256sum sort head tail cut tr wc
    date sleep test true false printf echo readlink realpath dirname basename mktemp tee uname sed grep find xargs getcap"""
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
FOREIGN = "arm64" if ARCHITECTURE == "amd64" else "amd64"

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPT = ", ".join([OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST])

# cap_net_raw=ep, as the kernel keeps it: revision 2 with the effective bit, then permitted and inheritable, low and high.
CAPABILITY = "\x01\0\0\x02" + "\0\x20\0\0" + "\0" * 12


def tool(name):
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin:{UNPACKED}")


def missing_tools():
    return [name for name in TOOLS if not tool(name)]


def run(*words, **options):
    command = [tool(words[0]), *map(str, words[1:])]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
    return done.stdout


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    """One server. With a user, it wants that login for everything."""

    def __init__(self, home, user=None, password=None):
        self.home, self.user, self.password = home, user, password
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        self.home.mkdir(parents=True)
        auth = ""
        if self.user:
            (self.home / "htpasswd").write_text(f"{self.user}:{bcrypt(self.password)}\n")
            auth = f"auth: {{htpasswd: {{realm: test, path: {self.home}/htpasswd}}}}\n"
        (self.home / "config.yml").write_text(
            f"version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {self.home}/data}}}}\n"
            f"http: {{addr: '{self.host}'}}\n{auth}"
        )
        with open(self.home / "log", "wb") as log:
            self.process = subprocess.Popen(
                [tool("docker-registry"), "serve", str(self.home / "config.yml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                self.call("GET", "/v2/")
                return self
            assert self.process.poll() is None and time.monotonic() < end, (self.home / "log").read_text()
            time.sleep(0.02)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)

    def call(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def push(self, layout, name, *options):
        """An image of an OCI layout, by skopeo."""
        login = ["--dest-creds", f"{self.user}:{self.password}"] if self.user else []
        policy = self.home / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        target = f"docker://{self.host}/{name}"
        run("skopeo", "--policy", policy, "copy", "--dest-tls-verify=false", *login, *options, layout, target)

    def manifest(self, name):
        repository, tag = name.rsplit(":", 1)
        status, headers, body = self.call("GET", f"/v2/{repository}/manifests/{tag}", headers={"Accept": ACCEPT})
        assert status == 200, (status, body)
        return headers["Content-Type"], body

    def put_manifest(self, name, manifest, media):
        repository, tag = name.rsplit(":", 1)
        answer = self.call("PUT", f"/v2/{repository}/manifests/{tag}", json.dumps(manifest), {"Content-Type": media})
        assert answer[0] == 201, answer

    def put_blob(self, repository, data):
        status, headers, body = self.call("POST", f"/v2/{repository}/blobs/uploads/")
        assert status == 202, (status, body)
        path = re.sub(r"^https?://[^/]+", "", headers["Location"])
        path += f"{'&' if '?' in path else '?'}digest={digest(data)}"
        answer = self.call("PUT", path, data, {"Content-Type": "application/octet-stream"})
        assert answer[0] == 201, answer
        return {"digest": digest(data), "size": len(data)}

    def put_wrong_image(self, name, layer, diff):
        """An image whose only layer is these bytes, whatever they are, with the digest of whatever is said to be in it."""
        repository = name.rsplit(":", 1)[0]
        config = {"architecture": ARCHITECTURE, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff]}}
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": OCI_CONFIG, **self.put_blob(repository, json.dumps(config).encode())},
            "layers": [{"mediaType": OCI_LAYER, **self.put_blob(repository, layer)}],
        }
        self.put_manifest(name, manifest, OCI_MANIFEST)

    def put_list(self, name, sources):
        """A Docker list of images of the same repository: (architecture, tag) of each."""
        repository = name.rsplit(":", 1)[0]
        rows = []
        for architecture, tag in sources:
            media, body = self.manifest(f"{repository}:{tag}")
            assert media == DOCKER_MANIFEST, media
            platform_of = {"architecture": architecture, "os": "linux"}
            rows.append({"mediaType": media, "digest": digest(body), "size": len(body), "platform": platform_of})
        self.put_manifest(name, {"schemaVersion": 2, "mediaType": DOCKER_LIST, "manifests": rows}, DOCKER_LIST)


def bcrypt(password):
    """The only kind of hash that docker-registry takes."""
    return run("htpasswd", "-nbBC", "4", "x", password).strip().split(":", 1)[1]


# ---- what is in the images ----


def make_tree(tree):
    """A small system of this machine's programs. /bin and /lib are links, as distributions have them."""
    for name in ("etc", "tmp", "root", "proc", "sys", "dev", "run", "var", "home", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"):
        (tree / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (tree / name).symlink_to(f"usr/{name}")
    (tree / "tmp").chmod(0o1777)
    copied = set()
    for name in PROGRAMS.split():
        source = pathlib.Path(tool(name)).resolve()
        shutil.copy(source, tree / "usr/bin" / name)
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", source], capture_output=True, text=True, check=True).stdout):
            if library not in copied:
                copied.add(library)
                target = tree / library.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, target)
    (tree / "etc/os-release").write_text('ID=debian\nNAME="a small one"\n')
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tree / "etc/group").write_text("root:x:0:\n")


def tar_of(tree):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(tree)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            with open(path, "rb") if info.isreg() else contextlib.nullcontext() as file:
                tar.addfile(info, file)
    return out.getvalue()


def entry(name, text=None, kind=None, link="", mode=0o644, uid=0, gid=0, headers=None):
    info = tarfile.TarInfo(name)
    data = (text or "").encode()
    info.size, info.mode, info.uid, info.gid, info.mtime = len(data), mode, uid, gid, 1_600_000_000
    info.type = kind or (tarfile.REGTYPE if text is not None else tarfile.DIRTYPE)
    if info.isdir():
        info.mode = mode | 0o111
    info.linkname, info.pax_headers = link, headers or {}
    return info, data


def tar_with(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


LOWER = [
    entry("srv"),
    entry("srv/kept", "kept\n", mode=0o640, uid=33, gid=44),
    entry("srv/gone", "gone\n"),
    entry("srv/changed", "before\n"),
    entry("srv/emptied"),
    entry("srv/emptied/old", "old\n"),
    entry("srv/removed"),
    entry("srv/removed/deep", "deep\n"),
    entry("srv/one", "one file, two names\n"),
    entry("srv/two", kind=tarfile.LNKTYPE, link="srv/one"),
    entry("srv/shared", "linked by the layer above\n"),
    entry("srv/was-file", "a file\n"),
]
UPPER = [
    entry("srv/.wh.gone", ""),
    entry("srv/changed", "after\n", mode=0o600),
    entry("srv/emptied", mode=0o750, uid=7),
    entry("srv/emptied/.wh..wh..opq", ""),
    entry("srv/emptied/new", "new\n"),
    entry("srv/.wh.removed", ""),
    entry("srv/was-file"),
    entry("srv/was-file/inside", "inside\n"),
    entry("srv/setuid", "#!/bin/sh\n", mode=0o4755),
    entry("srv/setgid", "#!/bin/sh\n", mode=0o2755, gid=8),
    entry("srv/capable", "#!/bin/sh\n", mode=0o755, headers={"SCHILY.xattr.security.capability": CAPABILITY}),
    entry("srv/link", kind=tarfile.SYMTYPE, link="emptied/new"),
    entry("srv/nowhere", kind=tarfile.SYMTYPE, link="/no/such/place"),
    entry("srv/pipe", kind=tarfile.FIFOTYPE),
    entry("srv/shared-too", kind=tarfile.LNKTYPE, link="srv/shared"),
    entry("srv/schön und lang " + "x" * 150, "a long name\n"),
    entry("usr/share/implicit/parents", "no entry of their own\n"),
    entry("bin/by-link", "through /bin\n", mode=0o755),
]


class Layout:
    """An OCI layout that umoci fills."""

    def __init__(self, home):
        self.path = home / "layout"
        self.home = home
        run("umoci", "init", "--layout", self.path)

    def make(self, tag, *layers, architecture=ARCHITECTURE, env=()):
        run("umoci", "new", "--image", f"{self.path}:{tag}")
        for layer in layers:
            file = self.home / "layer.tar"
            file.write_bytes(layer)
            run("umoci", "raw", "add-layer", "--image", f"{self.path}:{tag}", file)
        set_env = [f"--config.env={value}" for value in env]
        run("umoci", "config", "--image", f"{self.path}:{tag}", "--architecture", architecture, "--os", "linux", *set_env)
        return f"oci:{self.path}:{tag}"

    def unpack(self, tag):
        """What umoci makes of it: the root directory."""
        bundle = self.home / f"bundle-{tag}"
        run("umoci", "unpack", "--image", f"{self.path}:{tag}", bundle)
        return bundle / "rootfs"


def fill(registry, private, home):
    """All images of the tests. Gives the layout that most of them are from."""
    home.mkdir(parents=True)
    make_tree(home / "tree")
    system = tar_of(home / "tree")
    layout = Layout(home)
    full = layout.make("full", system, tar_with(LOWER), tar_with(UPPER), env=("FROM_IMAGE=yes", "PATH=/usr/bin:/bin:/usr/sbin"))
    registry.push(full, "ubuntu:22.04")
    registry.push(full, "base:latest")
    private.push(full, "team/secret:1")

    # Layers of its own: skopeo would take those that the registry has already, compressed otherwise.
    (home / "tree" / "etc" / "compressed").write_text("by zstd\n")
    python = layout.make("python", tar_of(home / "tree"), tar_with([entry("srv"), entry("srv/zstd", "from zstd\n")]))
    plain = home / "plain"
    run("skopeo", "--policy", registry.home / "policy.json", "copy", "--dest-decompress", python, f"dir:{plain}")
    registry.push(f"dir:{plain}", "zstd/python:3", "--format", "oci", "--dest-compress-format", "zstd")

    ours = layout.make("ours", system, tar_with([entry("srv"), entry("srv/architecture", f"{ARCHITECTURE}\n")]))
    theirs = layout.make("theirs", tar_with([entry("srv"), entry("srv/architecture", f"{FOREIGN}\n")]), architecture=FOREIGN)
    registry.push(theirs, "debian:theirs", "--format", "v2s2")
    registry.push(ours, "debian:ours", "--format", "v2s2")
    registry.put_list("debian:stable", [(FOREIGN, "theirs"), (ARCHITECTURE, "ours")])
    registry.put_list("debian:foreign", [(FOREIGN, "theirs")])

    registry.put_wrong_image("garbage:bytes", b"not an archive\n" * 400, digest(b"not an archive\n" * 400))
    registry.put_wrong_image("garbage:diff", gzip.compress(tar_with([entry("srv")])), digest(b"another archive"))
    return layout
