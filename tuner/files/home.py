"""The data folder, named by CHORALE_HOME: campaigns, results, artifacts."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chorale.runners.measurement.machine import PRIVATE_FILE, PRIVATE_FOLDER
from chorale.runners.measurement.private_files import read_secret, why_foreign, write_private
from chorale.synth.errors import InvalidInput, Unavailable

DEFAULT_FOLDER = "chorale-data"
CAMPAIGN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Valid names of campaigns and their folders."""
_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Home:
    """The data folder and the folders inside it. All paths are absolute; nothing is created before it is needed."""

    root: Path

    @staticmethod
    def from_environment() -> Home:
        """Return $CHORALE_HOME, or `chorale-data` in the current folder.

        InvalidInput for a folder of another user, one that others may write to, and a path that databases cannot have.
        """
        root = Path(os.environ.get("CHORALE_HOME") or DEFAULT_FOLDER).absolute()
        if any("\ud800" <= letter <= "\udfff" for letter in str(root)):
            way_out = "point CHORALE_HOME at a folder whose name is UTF-8"
            raise InvalidInput("the path of the data folder is not UTF-8: {}", repr(str(root)), way_out)
        if "?" in str(root):
            rule = "the path of the data folder contains `?`: {}"
            raise InvalidInput(rule, root, "set CHORALE_HOME to another folder")
        if root.exists() and (reason := why_foreign(root)) is not None:
            rule = "the data folder does not belong to you alone: {}"
            way_out = f"set CHORALE_HOME to a folder of yours, or take this one: chown it, and chmod go-w {root}"
            raise InvalidInput(rule, f"{root}: {reason}", way_out)
        return Home(root)

    @property
    def campaigns(self) -> Path:
        """Folder with one folder per campaign, each with one folder per launch."""
        return self.root / "campaigns"

    def campaign(self, name: str) -> Path:
        """Return the folder of the campaign `name`. Raises InvalidInput for an invalid name, such as a path."""
        if re.fullmatch(CAMPAIGN_NAME.rstrip("$"), name) is None:
            way_out = "take up to 64 letters, digits, dots, dashes and underscores"
            raise InvalidInput("{} cannot be the name of a campaign", repr(name[:80]), way_out)
        return self.campaigns / name

    def detached_cluster(self, name: str) -> Path:
        """Return the file with the address of the Ray cluster where the campaign `name` was launched, detached."""
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
        """Parts of results of experiments, saved by `chorale experiment`."""
        return self.root / "experiments"

    @property
    def service(self) -> Path:
        """Jobs, results and audit log of `chorale serve`."""
        return self.root / "service"

    @property
    def database(self) -> Path:
        """The file of MLflow's tables if no server or other database is named."""
        return self.root / "mlflow.db"

    def create(self, folder: Path) -> Path:
        """Create `folder` and missing parents, for this user alone, and return it.

        If earlier versions left parts of the data folder readable for others, that is corrected. An existing data
        folder keeps its own mode.
        """
        try:
            for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
                missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        except OSError as error:
            way_out = "point CHORALE_HOME at a folder that can be written"
            raise Unavailable(
                "the data folder cannot be written: {}", f"{folder}: {error.strerror}", way_out
            ) from error
        self._tighten()
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

    def _tighten(self) -> None:
        ours = (self.campaigns, self.artifacts, self.best, self.experiments, self.service)
        databases = [self.database.with_name(self.database.name + end) for end in ("", "-wal", "-shm")]
        for path, mode in [*((path, PRIVATE_FOLDER) for path in ours), *((path, PRIVATE_FILE) for path in databases)]:
            with suppress(OSError):  # not there, or of a user who shares it on purpose
                status = path.lstat()
                if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                    path.chmod(mode)
