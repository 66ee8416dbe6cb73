"""Finds the data folder (CHORALE_HOME) with campaigns, results and artifacts, and writes files.

Even after a failure, a file has either its old or its new content, never a mixture.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.job.record import is_stream
from chorale.runners.measurement import private_files
from chorale.synth.errors import InvalidInput, Unavailable

DEFAULT_FOLDER = "chorale-data"
CAMPAIGN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Pattern of valid names for campaigns and their folders."""
_OTHERS = 0o077
_PARTS = ("campaigns", "artifacts", "best", "experiments", "service", "detached", "slurm", "watch", "mlflow.db")
_EXECUTABLE = (".sh", ".sbatch")
_callers_mask: int | None = None
FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Home:
    """Gives paths in the data folder. All paths are absolute; nothing is created before it is needed."""

    root: Path

    @staticmethod
    def from_environment() -> Home:
        """Return $CHORALE_HOME, or `chorale-data` in the current folder.

        Raises InvalidInput if the path contains characters that databases do not support, or if another user owns the
        folder or may write to it.
        """
        root = Path(os.environ.get("CHORALE_HOME") or DEFAULT_FOLDER).absolute()
        if any("\ud800" <= letter <= "\udfff" for letter in str(root)):
            way_out = "point CHORALE_HOME at a folder whose name is UTF-8"
            raise InvalidInput("the path of the data folder is not UTF-8: {}", repr(str(root)), way_out)
        if "?" in str(root):
            rule = "the path of the data folder contains `?`: {}"
            raise InvalidInput(rule, root, "set CHORALE_HOME to another folder")
        if os.path.lexists(root):
            for path in (root, *(root / name for name in _PARTS), *root.glob("service/*")):
                _require_ours(path)
            if not root.is_dir():
                raise InvalidInput("the data folder is not a folder: {}", root, "set CHORALE_HOME to a folder")
        return Home(root)

    @property
    def campaigns(self) -> Path:
        """Return the folder of all campaigns. Each campaign has a subfolder, which has a folder for each launch."""
        return self.root / "campaigns"

    def campaign(self, name: str) -> Path:
        """Return the folder of the campaign `name`. Raises InvalidInput for an invalid name, such as a path."""
        if re.fullmatch(CAMPAIGN_NAME.rstrip("$"), name) is None:
            way_out = "use up to 64 letters, digits, dots, dashes and underscores"
            raise InvalidInput("{} cannot be the name of a campaign", repr(name[:80]), way_out)
        return self.campaigns / name

    def detached_cluster(self, name: str) -> Path:
        """Return the path of the file that names the Ray cluster in which the detached campaign `name` runs."""
        return self.root / "detached" / self.campaign(name).name

    @property
    def mlflow_uri(self) -> str:
        """Return MLFLOW_TRACKING_URI if it is set, else the address of a SQLite database in the data folder."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.database}"

    @property
    def artifacts(self) -> Path:
        """Return the folder for artifacts of runs that are tracked in the local database."""
        return self.root / "artifacts"

    @property
    def best(self) -> Path:
        """Return the folder for schedules and programs fetched by `chorale best`."""
        return self.root / "best"

    @property
    def experiments(self) -> Path:
        """Return the folder in which `chorale experiment` saves partial results."""
        return self.root / "experiments"

    @property
    def service(self) -> Path:
        """Return the folder for jobs, results and audit log of `chorale serve`."""
        return self.root / "service"

    @property
    def database(self) -> Path:
        """Return the path of the database file that MLflow uses unless a server or another database is named."""
        return self.root / "mlflow.db"

    def create(self, folder: Path) -> Path:
        """Create `folder` and missing parents, accessible only to this user, and return it.

        An existing data folder keeps its mode, but files and folders in it that earlier versions of Chorale left
        readable for others become private. Raises InvalidInput if other users could replace a new data folder.
        """
        if not self.root.exists():
            _require_ours(self.root)
        try:
            for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
                missing.mkdir(mode=private_files.PRIVATE_FOLDER, exist_ok=True)
        except OSError as error:
            way_out = "point CHORALE_HOME at a folder that can be written"
            raise Unavailable(
                "the data folder cannot be written: {}", f"{folder}: {error.strerror}", way_out
            ) from error
        for path in (*(self.root / name for name in _PARTS), *self.root.glob(f"{self.database.name}-*")):
            with suppress(OSError):  # the folder is missing, or its owner is a user who shares it on purpose
                status = path.lstat()
                if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                    path.chmod(private_files.PRIVATE_FOLDER if path.is_dir() else private_files.PRIVATE_FILE)
        return folder

    def secret(self, path: Path, make: Callable[[], str]) -> str:
        """Return the secret in the file at `path` inside this folder; create it with `make` if there is none.

        Raises Unavailable if the file cannot be written, and InvalidInput if others can read it or if it is empty.
        """
        self.create(path.parent)
        try:
            if not os.path.lexists(path):
                with suppress(FileExistsError):  # another process was faster
                    private_files.write_private(path, f"{make()}\n".encode(), replace=False)
            return private_files.read_secret(path)
        except OSError as error:
            way_out = "point CHORALE_HOME at a folder that can be written"
            raise Unavailable("a secret could not be written: {}", f"{path}: {error.strerror}", way_out) from error


def _require_ours(path: Path) -> None:
    way_out = "set CHORALE_HOME to your own folder, or make this one yours with chown and chmod go-w"
    try:
        reason = private_files.why_foreign(path)
    except OSError as error:
        raise InvalidInput("the data folder cannot be read: {}", f"{path}: {error.strerror}", way_out) from error
    if reason is not None:
        raise InvalidInput("the data folder does not belong to you alone: {}", f"{path}: {reason}", f"{way_out} {path}")


def write_file(path: str | Path, content: bytes) -> None:
    """Write `content` to `path` through a temporary file in the same folder, which must exist.

    If writing fails, for example because the disk is full, an existing file stays unchanged. Devices and pipes, such as
    /dev/null, are written to directly.
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
    """Write `files` (path within the folder -> content) into `folder`, which is created if missing.

    Scripts (.sh, .sbatch) become executable. With `force`, the folder may contain files: those with the same names are
    replaced. Raises InvalidInput, before anything is written, if the folder is not empty and `force` is not set, or if
    a link in it leads outside.
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
            for each in missing:  # new folders follow the user's umask, like the files in them
                each.chmod(0o777 & ~_mask_of(each))
            write_file(target, content)
            if target.suffix in _EXECUTABLE:
                target.chmod(target.stat().st_mode | 0o111)
        except OSError as error:
            rule = "the output folder cannot be written: {}"
            raise Unavailable(rule, f"{target}: {error.strerror}", "choose another place") from error


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

    Raises an error if the template uses a value that is not given.
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
