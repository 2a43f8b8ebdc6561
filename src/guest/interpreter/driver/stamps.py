"""Stale interpreters: does the sandbox have the packages that the zygote has imported?"""
import os
import sys
import types

CLOCK_NS = 20_000_000  # the clock of file times may be this much behind


def stamp_of(path):
    """Modification time and size."""
    try:
        found = os.stat(path)
    except OSError:
        return "missing"
    return found.st_mtime_ns, found.st_size


def changed_since(path, since_ns):
    """By the change time, which programs cannot set."""
    try:
        return os.stat(path).st_ctime_ns >= since_ns
    except OSError:
        return True


class Stamps:
    """
    The files that the zygote has imported, as they were on its disk. A sandbox may have another version of a package, or another
    package that Python would find first. An interpreter is stale if importing a package now would give another one than it has.
    """

    def __init__(self):
        import site
        user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        shared = getattr(site, "getsitepackages", list)()  # some virtual environments have a site module without it
        self.user = user[0] if user else None
        self.dirs = {path: stamp_of(path) for path in user + shared}  # in the order of Python's search
        self.files = {path: stamp_of(path) for path in (os.__file__, sys.executable)}
        for path in self.dirs:
            for name in self.pth_files(path):
                self.files[f"{path}/{name}"] = stamp_of(f"{path}/{name}")
        self.place_of = {}  # package -> the place of its directory in self.dirs

    @staticmethod
    def pth_files(path):
        try:
            return [name for name in os.listdir(path) if name.endswith(".pth")]
        except OSError:
            return []

    def take(self, since_ns):
        """After imports that began at `since_ns`. A file that changed meanwhile gets a stamp that never matches."""
        for name, module in list(sys.modules.items()):
            file = vars(module).get("__file__") if "." not in name and isinstance(module, types.ModuleType) else None
            if not file or name in self.place_of:
                continue
            for place, path in enumerate(self.dirs):
                if file.startswith(path + "/"):
                    self.place_of[name] = place
                    self.files[file] = None if changed_since(file, since_ns - CLOCK_NS) else stamp_of(file)

    def still_hold(self):
        """In the fork. False: stale. Directories with packages that the zygote did not have are added to sys.path."""
        if any(stamp_of(path) != stamp for path, stamp in self.files.items()):
            return False
        for place, path in enumerate(self.dirs):
            if stamp_of(path) == self.dirs[path]:
                continue
            try:
                names = os.listdir(path)
            except OSError:
                names = []
            if any(self.place_of.get(name.partition(".")[0], -1) > place for name in names):
                return False
            self.add_paths(path, names)
        return True

    def add_paths(self, path, names):
        import site
        known = {os.path.abspath(entry) for entry in sys.path if entry}
        before = len(sys.path)
        if path == self.user and path not in known:
            site.addsitedir(path, known)
        else:
            for name in sorted(names):
                if name.endswith(".pth") and f"{path}/{name}" not in self.files:
                    site.addpackage(path, name, known)
        added = sys.path[before:]
        if added and path == self.user:  # the user's packages come before the template's
            others = [sys.path.index(entry) for entry in self.dirs if entry != path and entry in sys.path[:before]]
            if others:
                sys.path[min(others):] = added + sys.path[min(others):before]
