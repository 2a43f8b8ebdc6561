"""packages.py - what the package servers of the world have: one wheel, one npm package, one git repository, one .deb.

Each is called `tiny`, and its content is a number, so that a test can tell which of them it got.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import tarfile
import zipfile

NAME = "tiny"


def wheel():
    """The smallest one that pip installs."""
    files = {
        f"{NAME}.py": "answer = 42\n",
        f"{NAME}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{NAME}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{NAME}-1.0.dist-info/RECORD": "",
    }
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return room.getvalue()


def npm_tarball():
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w:gz") as archive:
        for path, text in (
            ("package/package.json", json.dumps({"name": NAME, "version": "1.0.0", "main": "index.js"})),
            ("package/index.js", "module.exports = 44\n"),
        ):
            info = tarfile.TarInfo(path)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return room.getvalue()


def npm_document(tarball):
    version = {
        "name": NAME,
        "version": "1.0.0",
        "main": "index.js",
        "dist": {
            "tarball": f"https://registry.npmjs.org/{NAME}/-/{NAME}-1.0.0.tgz",
            "shasum": hashlib.sha1(tarball).hexdigest(),
            "integrity": "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode(),
        },
    }
    return {"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}


def make_git(home):
    """A bare repository for the dumb protocol: plain files."""
    work, bare = home / "git-work", home / "web" / "github.com" / "tiny" / "tiny.git"
    work.mkdir(parents=True)
    (work / "answer").write_text("45\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "a"), ("EMAIL", "a@b.test"))},
    }

    def git(*arguments, cwd=work):
        subprocess.run(["git", *arguments], cwd=cwd, check=True, env=environment, stdout=subprocess.DEVNULL)

    git("init", "--quiet", "--initial-branch=main")
    git("add", "answer")
    git("commit", "--quiet", "--message=tiny")
    git("clone", "--quiet", "--bare", str(work), str(bare))
    git("update-server-info", cwd=bare)


def make_deb(home):
    """A repository without a signature: `deb [trusted=yes] http://deb.debian.org/tiny ./`."""
    tree, where = home / "deb-tree", home / "web" / "deb.debian.org" / "tiny"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr" / "share" / NAME).mkdir(parents=True)
    (tree / "usr" / "share" / NAME / "answer").write_text("43\n")
    control = (
        f"Package: {NAME}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.test>\nDescription: a package of the tests\n"
    )
    (tree / "DEBIAN" / "control").write_text(control)
    where.mkdir(parents=True)
    deb = where / f"{NAME}_1_all.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(deb)], check=True, stdout=subprocess.DEVNULL
    )
    data = deb.read_bytes()
    index = control + f"Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    (where / "Packages").write_text(index)
    (where / "Packages.gz").write_bytes(gzip.compress(index.encode()))
    rows = "".join(
        f" {hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_size} {path.name}\n"
        for path in (where / "Packages", where / "Packages.gz")
    )
    (where / "Release").write_text(f"Suite: stable\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{rows}")


def make(home):
    """Below home/web/HOST, as a web server shows it."""
    home = pathlib.Path(home)
    web = home / "web"
    data = wheel()
    simple = web / "pypi.org" / "simple" / NAME
    simple.mkdir(parents=True)
    file = f"{NAME}-1.0-py3-none-any.whl"
    digest = hashlib.sha256(data).hexdigest()
    link = f"https://files.pythonhosted.org/packages/{file}#sha256={digest}"
    (simple / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{link}">{file}</a></body></html>\n')
    (web / "files.pythonhosted.org" / "packages").mkdir(parents=True)
    (web / "files.pythonhosted.org" / "packages" / file).write_bytes(data)
    tarball = npm_tarball()
    registry = web / "registry.npmjs.org" / NAME
    (registry / "-").mkdir(parents=True)
    (registry / "-" / f"{NAME}-1.0.0.tgz").write_bytes(tarball)
    (registry / "index.json").write_text(json.dumps(npm_document(tarball)))
    make_git(home)
    make_deb(home)
