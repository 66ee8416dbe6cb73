"""The section of a campaign file about where programs are measured: one model per runner."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    TypeAdapter,
    create_model,
)
from pydantic_core import CoreSchema

from chorale.runners.api.base import ResourceRequest
from chorale.runners.api.config import FROM_REQUESTS, SERVER_ONLY, Capabilities, MeasurerRequest, RunnerConfig
from chorale.runners.api.registry import RUNNERS
from chorale.runners.local.config import LocalConfig
from chorale.tuner.config.values import CampaignSection, runner_text

DEFAULT_KIND = LocalConfig.name


class NeedsSection(CampaignSection):
    """Requirements for a node of the Ray cluster that measures; its resources are held as long as the campaign runs."""

    cpus: float = Field(default=1, gt=0)
    """CPUs."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs; by default as many as ranks run on a node (msccl), or none. 0 where Ray knows of no GPUs."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Amounts of the cluster's own resources; one that a fabric has once keeps others off it."""
    labels: dict[str, str] = Field(default={})
    """Labels that the node must carry."""
    patience_s: float = Field(default=30, gt=0, le=86400)
    """How long to wait for such a node; more where nodes come on demand."""


class RunnerSection(CampaignSection):
    """The keys that the sections of all runners share; each section adds the options of its runner.

    `section_model` makes the section of a runner from its declaration.
    """

    runner: ClassVar[type[RunnerConfig]]

    kind: Annotated[str, FROM_REQUESTS]
    """The runner."""
    timeout_s: float = Field(default=60.0, gt=0, le=86400)
    """Watchdog of one measurement, in seconds."""
    needs: Annotated[NeedsSection, SERVER_ONLY] = Field(default=NeedsSection())
    """What a node must have to measure on it."""
    at_once: Annotated[int, SERVER_ONLY] = Field(default=1, ge=1, le=64)
    """Nodes that measure at once; live runners never share a machine."""

    @property
    def config(self) -> RunnerConfig:
        """The runner with its options."""
        if self.runner.is_nested:
            config: RunnerConfig = getattr(self, self.runner.name)
            return config
        return self.runner.model_construct(**{name: getattr(self, name) for name in self.runner.model_fields})

    @property
    def capabilities(self) -> Capabilities:
        """Return the runner's capabilities."""
        return self.runner.capabilities

    @property
    def measurers(self) -> MeasurerRequest:
        """Return the user's requirements for the nodes on which runners measure."""
        node = ResourceRequest(**self.needs.model_dump(exclude={"gpus"}))
        return MeasurerRequest(node, self.needs.gpus, self.at_once)


def section_model(runner: type[RunnerConfig]) -> type[RunnerSection]:
    """Return the model of the section for `runner`: the common keys and its options, no others."""
    bases: tuple[type[Any], ...] = (RunnerSection,) if runner.is_nested else (runner, RunnerSection)
    fields: dict[str, Any] = {"kind": (Literal[runner.name], Field(default=runner.name, description=runner.summary))}
    if runner.is_nested:
        fields[runner.name] = (runner, Field(default=runner(), description="Options of the runner."))
    model = create_model(f"{runner.name.capitalize()}Section", __base__=bases, __doc__=runner.__doc__, **fields)
    model.runner = runner
    return model


def section_union(sections: Iterable[type[RunnerSection]]) -> Any:
    """Return the union of `sections`, discriminated by `kind`; without a kind it is the local runner."""
    models = tuple(sections)
    return Annotated[Union[models], Discriminator("kind"), BeforeValidator(_with_kind)]  # noqa: UP007 - built from a tuple


def _with_kind(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {**section, "kind": runner_text(section.get("kind", DEFAULT_KIND))}


SECTIONS: Mapping[str, type[RunnerSection]] = {name: section_model(runner) for name, runner in RUNNERS.items()}
"""The section of each runner that is registered, by `kind`."""


def _schema(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    return handler.generate_schema(section_union(SECTIONS.values()))


AnyRunnerSection: TypeAlias = Annotated[RunnerSection, GetPydanticSchema(_schema)]
"""The section of any runner that is registered."""

_section: TypeAdapter[RunnerSection] = TypeAdapter(AnyRunnerSection)


def read_section(document: Mapping[str, Any]) -> RunnerSection:
    """Return the section that `document` describes; pydantic's ValidationError for anything that does not fit."""
    return _section.validate_python(dict(document))
