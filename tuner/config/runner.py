"""Pydantic models of the campaign file's section `runner`, which says where programs are measured; one per runner."""

from collections.abc import Mapping
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
from chorale.runners.api.registry import RUNNERS, LocalConfig
from chorale.tuner.config.values import Strict, runner_text

DEFAULT_KIND = LocalConfig.name


class NeedsSection(Strict):
    """Requirements for a Ray node that measures; its resources are reserved while the campaign runs."""

    cpus: float = Field(default=1, gt=0)
    """CPUs."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs; by default one per rank on the node (msccl), or none. Use 0 if Ray knows of no GPUs."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Amounts of the cluster's custom resources; a resource that exists once per fabric gives exclusive use of it."""
    labels: dict[str, str] = Field(default={})
    """Labels that the node must carry."""
    patience_s: float = Field(default=30, gt=0, le=86400)
    """Seconds to wait for such a node; use more if nodes are started on demand."""


class RunnerSection(Strict):
    """The keys that all runner sections share; each section adds its runner's options.

    `section_model` creates a runner's section from its declaration.
    """

    runner: ClassVar[type[RunnerConfig]]

    kind: Annotated[str, FROM_REQUESTS]
    """The runner."""
    timeout_s: float = Field(default=60.0, gt=0, le=86400)
    """Time limit for one measurement, in seconds."""
    needs: Annotated[NeedsSection, SERVER_ONLY] = Field(default=NeedsSection())
    """Requirements for a node that measures."""
    at_once: Annotated[int, SERVER_ONLY] = Field(default=1, ge=1, le=64)
    """Number of nodes that measure at the same time; live runners never share a machine."""

    @property
    def config(self) -> RunnerConfig:
        if self.runner.is_nested:
            config: RunnerConfig = getattr(self, self.runner.name)
            return config
        return self.runner.model_construct(**{name: getattr(self, name) for name in self.runner.model_fields})

    @property
    def capabilities(self) -> Capabilities:
        return self.runner.capabilities

    @property
    def measurers(self) -> MeasurerRequest:
        node = ResourceRequest(**self.needs.model_dump(exclude={"gpus"}))
        return MeasurerRequest(node, self.needs.gpus, self.at_once)


def section_model(runner: type[RunnerConfig]) -> type[RunnerSection]:
    """Return the pydantic model of the campaign section for `runner`: the common keys and the runner's options."""
    bases: tuple[type[Any], ...] = (RunnerSection,) if runner.is_nested else (runner, RunnerSection)
    fields: dict[str, Any] = {"kind": (Literal[runner.name], Field(default=runner.name, description=runner.summary))}
    if runner.is_nested:
        fields[runner.name] = (runner, Field(default=runner(), description="Options of the runner."))
    model = create_model(f"{runner.name.capitalize()}Section", __base__=bases, __doc__=runner.__doc__, **fields)
    model.runner = runner
    return model


def _with_kind(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {**section, "kind": runner_text(section.get("kind", DEFAULT_KIND))}


SECTIONS: Mapping[str, type[RunnerSection]] = {name: section_model(runner) for name, runner in RUNNERS.items()}
"""The section of each registered runner, by `kind`."""


def _schema(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    sections = tuple(SECTIONS.values())
    section: Any = Annotated[Union[sections], Discriminator("kind"), BeforeValidator(_with_kind)]  # noqa: UP007
    return handler.generate_schema(section)


AnyRunnerSection: TypeAlias = Annotated[RunnerSection, GetPydanticSchema(_schema)]
"""The section of any registered runner, discriminated by the key `kind` (default: local)."""


def read_section(document: Mapping[str, Any]) -> RunnerSection:
    """Return the section that `document` describes; raises pydantic's ValidationError if it is not valid."""
    section: RunnerSection = TypeAdapter(AnyRunnerSection).validate_python(dict(document))
    return section
