"""Detects user files that hide libraries, such as a `numpy.py` in the working folder, which `import numpy` finds first.

Python first searches the folder of the script or the working folder, then the folders in PYTHONPATH. Processes that
this package starts do not search the working folder, because its files may belong to another user.
"""

import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path

_PACKAGES = Path(__file__).absolute().parents[2]
"""The folder from which Python imports this package."""
_SAFE_PATH = "PYTHONSAFEPATH"
_environment = threading.RLock()


def leave_working_folder() -> None:
    """Remove the working folder, which `python -m` searches first, from `sys.path` unless it contains this package."""
    is_first = bool(sys.path) and sys.path[0] in ("", os.getcwd())
    if is_first and not sys.flags.safe_path and not Path.cwd().samefile(_PACKAGES):
        del sys.path[0]


@contextmanager
def outside_working_folder() -> Iterator[None]:
    """While the context is active, new Python processes do not import modules from the working folder."""
    with _environment:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            os.environ.pop(_SAFE_PATH)
            if before is not None:
                os.environ[_SAFE_PATH] = before


def shadow_of(error: BaseException | str) -> str | None:
    """Return a phrase that says which file hides the library named in `error`, or None if no user file hides it."""
    text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
    libraries = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    theirs = [*libraries, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))]
    named = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    for folder in dict.fromkeys(Path(folder).absolute() for folder in (os.getcwd(), *sys.path[:1], *named)):
        entries: list[Path] = []
        if str(folder) not in theirs and folder != _PACKAGES:
            with suppress(OSError):
                entries = sorted(folder.iterdir())
        for path in entries:
            name = path.stem if path.suffix == ".py" else path.name
            is_module = name.isidentifier() and (path.suffix == ".py" or os.path.exists(path / "__init__.py"))
            if not is_module or name not in text:
                continue
            module, file = re.escape(name), re.escape(str(path))
            said = rf"(?:module|from) '?{module}(?![\w])|'{module}(?:\.[\w.]+)?' is not a package|{file}\b"
            is_library = name == "chorale" or name in sys.stdlib_module_names or PathFinder.find_spec(name, libraries)
            if is_library and re.search(said, text):
                return f"{path} hides the library {name}: rename it, or start in another folder"
    return None
