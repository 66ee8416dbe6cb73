"""The service for Ray Serve config files: `import_path: chorale.tuner.service.deployed:application`."""

from typing import Any

from pydantic import Field

from chorale.runners.ray.serve import application_of
from chorale.tuner.config.values import Strict
from chorale.tuner.files.home import Home
from chorale.tuner.service.http.application import build_service
from chorale.tuner.service.jobs.job_specs import JobLimits


class Arguments(Strict):
    """The application's `args` in the config file. They mean the same as the options of `chorale serve`."""

    tokens: str = Field(description="Path of the token file on the head of the cluster.")
    settings: str | None = Field(
        default=None, description="Path of the server's own settings, with runners by profile."
    )
    max_nodes: int = Field(default=16_384, ge=2)
    max_links: int = Field(default=2**21, ge=2)
    max_memory_gib: int = Field(default=8, ge=1)


def application(arguments: dict[str, Any]) -> Any:
    """Return the application for Serve with the arguments from the config file, see `Arguments`.

    The application listens on the address in the file's `http_options`. It runs on the cluster's head, which must have
    the data folder and the token file.
    """
    checked = Arguments.model_validate(arguments)  # Serve ignores type annotations that are strings

    def build() -> Any:
        home = Home.from_environment()
        home.create(home.service)
        limits = JobLimits(checked.max_nodes, checked.max_links, checked.max_memory_gib)
        return build_service(home.root, "0.0.0.0", checked.tokens, checked.settings, limits)  # noqa: S104

    return application_of(build)
