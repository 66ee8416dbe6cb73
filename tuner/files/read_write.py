"""Read and write complete files: whatever fails, a file has either its old or its new content, never a mixture."""

import errno
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chorale.job.record import is_stream
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.files.home import Home

_EXECUTABLE = (".sh", ".sbatch")
_OTHERS = 0o077


def write_file(path: str | Path, content: bytes) -> None:
    """Write `content` to `path` through a temporary file in the same folder, which must exist.

    If that fails (full disk, no permission), an existing file stays unchanged. Devices and pipes, such as /dev/null,
    are written to directly.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InvalidInput("the folder {} does not exist", str(target.parent), "create it first")
    try:
        if is_stream(target):
            target.write_bytes(content)
        else:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.chmod(temporary, 0o666 & ~_mask_of(target))
                os.replace(temporary, target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
    except OSError as error:
        way_out = "free some space or choose another place" if error.errno == errno.ENOSPC else "choose another place"
        raise Unavailable("cannot write {}", f"{target}: {error.strerror}", way_out) from error


def require_new_folder(folder: Path, force: bool = False) -> None:
    """Raise InvalidInput unless `folder` is empty or can be created; with `force` it may contain files."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput("{} is not a folder", str(folder), "choose another name")
    if not folder.absolute().parent.is_dir():
        raise InvalidInput("the folder {} does not exist", str(folder.parent), "create it first")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput("the output folder {} is not empty", str(folder), "choose another, or add --force")


def write_folder(folder: Path, files: Mapping[str, bytes], force: bool = False) -> None:
    """Write `files` (path within the folder -> content) into `folder`, which is created if missing; scripts
    (.sh, .sbatch) become executable.

    Raises InvalidInput, before anything is written, if the folder is not empty (unless `force` is set: then files of
    the same name are replaced and others stay), or if a link in it leads outside.
    """
    require_new_folder(folder, force)
    inside = folder.resolve()
    for path in files:
        if not (inside / path).parent.resolve().is_relative_to(inside):
            raise InvalidInput(
                "{} is a link that leads outside the output folder", str(inside / path), "remove the link"
            )
    for path, content in sorted(files.items()):
        target = inside / path
        try:
            missing = [each for each in (target.parent, *target.parent.parents) if not each.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            for each in missing:  # folders get the permissions of the files in them
                each.chmod(0o777 & ~_mask_of(each))
            write_file(target, content)
            if target.suffix in _EXECUTABLE:
                target.chmod(target.stat().st_mode | 0o111)
        except OSError as error:
            rule = "the output folder cannot be written: {}"
            raise Unavailable(rule, f"{target}: {error.strerror}", "choose another place") from error


_callers_mask: int | None = None


def keep_private() -> None:
    """Make this process and its child processes create files that only this user can access.

    Output files that the user names outside the data folder still get their mode from the user's umask.
    """
    global _callers_mask  # noqa: PLW0603 - the mask is also a setting of the process
    before = os.umask(_OTHERS)
    _callers_mask = before if _callers_mask is None else _callers_mask


def _mask_of(target: Path) -> int:
    mask = os.umask(_OTHERS)
    os.umask(mask)
    inside = target.absolute().is_relative_to(Home.from_environment().root)
    ours = mask == _OTHERS and _callers_mask is not None
    return _callers_mask if ours and not inside and _callers_mask is not None else mask


FORMATS = (".png", ".svg", ".pdf")


def require_plot_format(path: Path | None) -> None:
    """Raise InvalidInput unless `path` is None or has the extension of a picture format; call this before slow work."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise InvalidInput("cannot save a plot as {}", path.name, "use a name that ends in .png, .svg or .pdf")


def set_file_aside(path: Path, label: str = "damaged") -> Path:
    """Rename the file or folder at `path` to the first free PATH.LABEL-N; return the new path."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{label}-{number}")):
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        way_out = f"move {path} away yourself"
        raise Unavailable("a damaged file cannot be moved away: {}", f"{path}: {error.strerror}", way_out) from error
    return aside


def rendered(template: Path, is_html: bool, **values: Any) -> str:
    """Render a Jinja template as HTML or as a shell script, in which the filter `quote` quotes words for the shell.

    A missing value is an error.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - designing and exporting do not need it

    environment = Environment(
        autoescape=is_html,  # noqa: S701 - scripts need no HTML escaping
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
