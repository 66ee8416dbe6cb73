"""The data folder, named by CHORALE_HOME: campaigns, results, artifacts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from chorale.synth.errors import InvalidInput, Unavailable

DEFAULT_FOLDER = "chorale-data"


@dataclass(frozen=True, slots=True)
class Home:
    """The data folder and the folders inside it. All paths are absolute; nothing is created before it is needed."""

    root: Path

    @staticmethod
    def from_environment() -> Home:
        """Return $CHORALE_HOME, or `chorale-data` in the current folder."""
        root = Path(os.environ.get("CHORALE_HOME") or DEFAULT_FOLDER).absolute()
        if any("\ud800" <= letter <= "\udfff" for letter in str(root)):
            way_out = "point CHORALE_HOME at a folder whose name is UTF-8"
            raise InvalidInput("the path of the data folder must be UTF-8", repr(str(root)), way_out)
        return Home(root)

    @property
    def campaigns(self) -> Path:
        """One folder per campaign, in it one per launch."""
        return self.root / "campaigns"

    @property
    def mlflow_uri(self) -> str:
        """MLFLOW_TRACKING_URI if it is set, else a SQLite database in the data folder."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow.db'}"

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

    def create(self, folder: Path) -> Path:
        """Create `folder` and its parents where missing, and return it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            way_out = "point CHORALE_HOME at a folder that can be written"
            raise Unavailable("the data folder must be writable", f"{folder}: {error.strerror}", way_out) from error
        return folder
