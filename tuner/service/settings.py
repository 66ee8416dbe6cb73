"""The service's settings, and the function that removes private information from its documents."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from chorale.synth.errors import InvalidInput
from chorale.tuner.config.runner import AnyRunnerSection, RunnerSection
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import read_private

_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*)://[^\s'\"<>]+", re.IGNORECASE)
_PATH = re.compile(
    r"(?<![\w./])/(?!v1/)(?:[\w.@+~-]+/)+[\w.@+~-]*|(?<![\w./])/(?:etc|home|root|tmp|var|usr|opt|srv|mnt)\b"
)


def redacted(text: str) -> str:
    """Return `text` with addresses and absolute paths removed."""
    return _PATH.sub("(path)", _ADDRESS.sub(r"\1://(address)", text))


ProfileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


Link = Annotated[str, Field(pattern=r"^https?://[^\s@]+$", max_length=1000, description="Address without a password.")]


class Dashboards(BaseModel):
    """Addresses of other programs' pages that the service's page links to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mlflow: Link | None = None
    ray: Link | None = None
    optuna: Link | None = None


class ServerSettings(BaseModel):
    """The settings file. Each profile is written like the section `runner` in a campaign file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runners: dict[ProfileName, AnyRunnerSection] = Field(
        default={}, description="Runners by the name of their profile."
    )
    dashboards: Dashboards = Field(default=Dashboards(), description="Pages to which the service's page links.")

    def profile(self, name: object) -> RunnerSection:
        """Return the runner of the profile `name`. Raises InvalidInput if the administrator has not defined it."""
        section = self.runners.get(name) if isinstance(name, str) else None
        if section is None:
            known = ", ".join(self.runners) or "none yet"
            rule = "`runner.profile` is not in the settings of the service"
            raise InvalidInput(rule, str(name)[:80], f"choose from {known}; the administrator of the service adds some")
        return section


def load_settings(path: str | None, home: Home) -> ServerSettings:
    """Return the settings in the file at `path`, by default in the settings file of `home`, which may be missing.

    Raises InvalidInput if the file is invalid, or if other users may write it, because it defines what is executed.
    """
    file = (home.service / "settings.yaml") if path is None else Path(path)
    if path is None and not file.exists():
        return ServerSettings()
    rule = "the settings of the service must be runners by name, each as in a campaign file"
    return read_private(file, ServerSettings, rule, "repair this key")
