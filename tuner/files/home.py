"""The data folder, named by CHORALE_HOME: campaigns, results, artifacts."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chorale.runners.measurement.private_files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    read_secret,
    why_foreign,
    write_private,
)
from chorale.synth.errors import InvalidInput, Unavailable

DEFAULT_FOLDER = "chorale-data"
CAMPAIGN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Valid names for campaigns and their folders."""
_OTHERS = 0o077
_PARTS = ("campaigns", "artifacts", "best", "experiments", "service", "detached", "slurm", "watch", "mlflow.db")


@dataclass(frozen=True, slots=True)
class Home:
    """The data folder and the folders inside it. All paths are absolute; nothing is created before it is needed."""

    root: Path

    @staticmethod
    def from_environment() -> Home:
        """Return $CHORALE_HOME, or `chorale-data` in the current folder.

        Raises InvalidInput if databases do not support the path, or if another user owns the folder or may write to it.
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
        """Folder with one folder per campaign, each with one folder per launch."""
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
        """MLFLOW_TRACKING_URI if it is set, else a SQLite database in the data folder."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.database}"

    @property
    def artifacts(self) -> Path:
        """Artifacts of runs that are tracked in the local database."""
        return self.root / "artifacts"

    @property
    def best(self) -> Path:
        """Schedules and programs fetched by `chorale best`."""
        return self.root / "best"

    @property
    def experiments(self) -> Path:
        """Partial results of experiments, saved by `chorale experiment`."""
        return self.root / "experiments"

    @property
    def service(self) -> Path:
        """Jobs, results and audit log of `chorale serve`."""
        return self.root / "service"

    @property
    def database(self) -> Path:
        """MLflow's database file, used unless a server or another database is named."""
        return self.root / "mlflow.db"

    def create(self, folder: Path) -> Path:
        """Create `folder` and missing parents, accessible only to this user, and return it.

        Parts of the data folder that earlier versions left readable for others become private. An existing data folder
        keeps its mode. Raises InvalidInput if others could replace a new folder.
        """
        if not self.root.exists():
            _require_ours(self.root)
        try:
            for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
                missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        except OSError as error:
            way_out = "point CHORALE_HOME at a folder that can be written"
            raise Unavailable(
                "the data folder cannot be written: {}", f"{folder}: {error.strerror}", way_out
            ) from error
        for path in (*(self.root / name for name in _PARTS), *self.root.glob(f"{self.database.name}-*")):
            with suppress(OSError):  # missing, or owned by a user who shares it on purpose
                status = path.lstat()
                if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                    path.chmod(PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)
        return folder

    def secret(self, path: Path, make: Callable[[], str]) -> str:
        """Return the secret in the file at `path` inside this folder; create it with `make` if there is none.

        Raises Unavailable if it cannot be written, and InvalidInput if others can read the file or if it is empty.
        """
        self.create(path.parent)
        try:
            if not os.path.lexists(path):
                with suppress(FileExistsError):  # another process was faster
                    write_private(path, f"{make()}\n".encode(), replace=False)
            return read_secret(path)
        except OSError as error:
            way_out = "point CHORALE_HOME at a folder that can be written"
            raise Unavailable("a secret could not be written: {}", f"{path}: {error.strerror}", way_out) from error


def _require_ours(path: Path) -> None:
    way_out = "set CHORALE_HOME to your own folder, or make this one yours with chown and chmod go-w"
    try:
        reason = why_foreign(path)
    except OSError as error:
        raise InvalidInput("the data folder cannot be read: {}", f"{path}: {error.strerror}", way_out) from error
    if reason is not None:
        raise InvalidInput("the data folder does not belong to you alone: {}", f"{path}: {reason}", f"{way_out} {path}")
