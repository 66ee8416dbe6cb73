"""Files of a user that stand before libraries: where a folder has a `numpy.py`, `import numpy` finds that.

Python looks into the folder of a script or the working folder first, then into those of PYTHONPATH; workers of Ray look
into the working folder of who started them, too.
"""

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

_PACKAGES = Path(__file__).absolute().parents[2]
"""From where Python imports this package."""


def leave_working_folder() -> None:
    """Let this process import nothing from the working folder, which `python -m` puts first, unless we lie there."""
    is_first = bool(sys.path) and sys.path[0] in ("", os.getcwd())
    if is_first and not sys.flags.safe_path and not Path.cwd().samefile(_PACKAGES):
        del sys.path[0]


def shadow_of(error: BaseException | str) -> str | None:
    """Return, as the end of a message, which file hides the library that `error` is about; None where none does."""
    text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
    for path, name in _shadows():
        quoted = re.escape(name)
        said = rf"(?:module|from) '?{quoted}(?![\w])|'{quoted}(?:\.[\w.]+)?' is not a package|{re.escape(str(path))}\b"
        if (name in text) and re.search(said, text):
            return f"{path} hides the library {name}: rename it, or start in another folder"
    return None


def _shadows() -> Iterator[tuple[Path, str]]:
    """Yield modules and packages in folders of the user whose names are also those of libraries."""
    libraries = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    theirs = [*libraries, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))]
    named = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    folders = dict.fromkeys(Path(folder).absolute() for folder in (os.getcwd(), *sys.path[:1], *named))
    for folder in folders:
        if str(folder) in theirs or folder == _PACKAGES:
            continue
        entries: list[Path] = []
        with suppress(OSError):
            entries = sorted(folder.iterdir())
        for entry in entries:
            name = entry.stem if entry.suffix == ".py" else entry.name
            if not name.isidentifier() or (entry.suffix != ".py" and not (entry / "__init__.py").exists()):
                continue
            if name == "chorale" or name in sys.stdlib_module_names or PathFinder.find_spec(name, libraries):
                yield entry, name
