"""The section `search` of a campaign file: the values of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from chorale.runners.api.config import FROM_REQUESTS, SERVER_ONLY, ByteCount
from chorale.tuner.config.adopted import read_program_file
from chorale.tuner.config.names import method_text
from chorale.tuner.config.values import MAX_VALUES, Buffers, CampaignSection, Counts, OptionalCounts, Value

USUAL_METHODS = ("bfb", "forest", "ring", "biring")
"""Those that suit most networks; a trial of one that does not suit is infeasible."""


class SearchSection(CampaignSection):
    """Values of each dimension, as a list or a range."""

    methods: Annotated[list[Annotated[str, BeforeValidator(method_text)]], FROM_REQUESTS] = Field(
        default=[],
        max_length=MAX_VALUES,
        description="Synthesis methods; default, without programs: bfb, forest, ring and biring.",
    )
    programs: Annotated[list[str], SERVER_ONLY] = Field(
        default=[],
        max_length=MAX_VALUES,
        description=(
            "Program files (XML, plans of MSCCL++) that compete as they are, each a candidate; paths are those from "
            "the campaign file."
        ),
    )
    k: OptionalCounts = Field(
        default=[None], description="Trees per root, for methods that pack trees; null: the smallest optimal number."
    )
    chunks: OptionalCounts = Field(
        default=[None], description="Chunks per shard; null: the smallest number that reaches the optimum."
    )
    channels: Counts = Field(default=[1], description="Channels that transfers are spread over.")
    instances: Counts = Field(default=[1], description="Copies of the schedule that run side by side.")
    protocol: list[Literal["Simple", "LL", "LL128"]] = Field(
        default=["Simple"], min_length=1, description="Wire protocols."
    )

    depth: Counts = Field(
        default=[1],
        description="Parts that every transfer of a tree is cut into, one after the other: how deep its pipeline is.",
    )
    buffer_bytes: Buffers = Field(
        default=[None],
        description="Buffers of connections, such as 4MiB; null: what the runtime takes. For runners that have them.",
    )

    reads: list[bool] = Field(
        default=[False],
        min_length=1,
        max_length=2,
        description="Whether receivers read what stays where it is, instead of being written to. MSCCL++ only.",
    )
    block_group: Counts = Field(
        default=[1], description="Thread blocks that share the chunks of each block of a program. MSCCL++ only."
    )
    pipeline_bytes: list[Annotated[int, Field(ge=0), ByteCount]] = Field(
        default=[0],
        min_length=1,
        max_length=MAX_VALUES,
        description="Parts in which chunks go through the steps of a block, such as 64KiB; 0: whole. MSCCL++ only.",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_candidates(cls, section: Any) -> Any:
        """Take the usual methods where neither methods nor programs are given."""
        if not isinstance(section, dict) or "methods" in section or section.get("programs"):
            return section
        return {"methods": list(USUAL_METHODS), **section}

    @model_validator(mode="after")
    def _is_not_empty(self) -> SearchSection:
        if not (self.methods or self.programs):
            raise ValueError("give `methods`, or `programs`, or both")
        return self

    def dimensions(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of every parameter, by the fields of a candidate."""
        return {
            "method": _distinct([*self.methods, *(read_program_file(path).name for path in self.programs)]),
            "k": _distinct(self.k),
            "chunks": _distinct(self.chunks),
            "channels": _distinct(self.channels),
            "instances": _distinct(self.instances),
            "protocol": _distinct(self.protocol),
            "depth": _distinct(self.depth),
            "buffer_bytes": _distinct(self.buffer_bytes),
            **self._of_plans(),
        }

    def _of_plans(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of parameters of plans, where there are others than the default: studies stay the same."""
        named: dict[str, list[Any]] = {
            "reads": self.reads,
            "block_group": self.block_group,
            "pipeline_bytes": self.pipeline_bytes,
        }
        return {
            name: _distinct(values)
            for name, values in named.items()
            if list(values) != type(self).model_fields[name].default
        }


def _distinct(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(values))
