"""Defines the campaign file: what to tune, on which network, with which search, budget and workers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from chorale.runners.api.base import Workers
from chorale.runners.api.config import FROM_REQUESTS, SERVER_ONLY, ByteCount
from chorale.runners.workers.campaign_worker import LocalWorkers, RunnerFactory
from chorale.synth.methods.auto import AUTO
from chorale.synth.processors import core_count
from chorale.synth.topology.topology import Topology
from chorale.tuner.config import values as campaign_values
from chorale.tuner.config.values import (
    AnyRunnerSection,
    RunnerSection,
    is_program_file_name,
    read_program_file,
    read_section,
)
from chorale.tuner.files.home import CAMPAIGN_NAME

BASELINE_OF_LIBRARY = "library"
"""Name of the baseline that stands for the communication library's own algorithms, such as NCCL's."""
MOST_LAUNCHES = 1000
"""Maximum value of `final.launches`, the number of launches in a final comparison."""


class SearchSection(campaign_values.Strict):
    """The values to try for each parameter of a candidate, as a list or a range."""

    methods: Annotated[list[Annotated[str, BeforeValidator(campaign_values.method_text)]], FROM_REQUESTS] = Field(
        default=[], max_length=campaign_values.MAX_VALUES
    )
    """Synthesis methods; auto (the default if there are no programs): the methods predicted to be the fastest at
    these sizes."""
    programs: Annotated[list[str], SERVER_ONLY] = Field(default=[], max_length=campaign_values.MAX_VALUES)
    """Program files (XML, MSCCL++ plans), each a candidate to be measured unchanged; paths are relative to the
    campaign file."""
    k: campaign_values.OptionalCounts = Field(default=[None])
    """Trees per root, for methods that pack trees; null: the smallest optimal number."""
    chunks: campaign_values.OptionalCounts = Field(default=[None])
    """Chunks per shard; null: the smallest number that reaches the optimum."""
    channels: campaign_values.Counts = Field(default=[1])
    """Number of channels over which transfers are distributed."""
    instances: campaign_values.Counts = Field(default=[1])
    """Number of copies of the schedule that run in parallel."""
    protocol: list[Literal["Simple", "LL", "LL128"]] = Field(default=["Simple"], min_length=1)
    """Wire protocols."""

    depth: campaign_values.Counts = Field(default=[1])
    """Pipeline depth: number of parts into which each transfer of a tree is cut; they are sent one after the other."""
    buffer_bytes: campaign_values.Buffers = Field(default=[None])
    """Size of each connection's buffer, such as 4MiB; null: the runtime's default. For runners with such buffers."""

    reads: list[bool] = Field(default=[False], min_length=1, max_length=2)
    """Whether receivers read data that stays in place, instead of senders writing it to them. MSCCL++ only."""
    block_group: campaign_values.Counts = Field(default=[1])
    """Number of thread blocks that share the chunks of each block in a program. MSCCL++ only."""
    pipeline_bytes: list[Annotated[int, Field(ge=0), ByteCount]] = Field(
        default=[0], min_length=1, max_length=campaign_values.MAX_VALUES
    )
    """Size of the parts in which a block's steps process chunks, such as 64KiB; 0: whole chunks. MSCCL++ only."""
    vector_bytes: list[Literal[8, 16]] = Field(default=[16], min_length=1, max_length=2)
    """Bytes that a thread reads or writes at once, outside packets. For the runner `device`."""

    ctas: campaign_values.OptionalCounts = Field(default=[None])
    """Channels or CTAs of the library's own algorithms (`nccl:ring`); null: the library's choice."""
    chunk_bytes: campaign_values.Buffers = Field(default=[None])
    """Chunk size of the library's own algorithms, such as 128KiB; null: the library's choice."""
    threads: campaign_values.OptionalCounts = Field(default=[None])
    """Threads per block, for the library's algorithms and for plans; null: the default."""
    cta_policy: list[Literal["default", "efficiency", "zero"] | None] = Field(
        default=[None], min_length=1, max_length=4
    )
    """Policy by which the library chooses CTAs."""

    @model_validator(mode="before")
    @classmethod
    def _has_candidates(cls, section: Any) -> Any:
        """If neither methods nor programs are given, use `auto`: the methods that are predicted to be the fastest."""
        if not isinstance(section, dict) or "methods" in section or section.get("programs"):
            return section
        return {"methods": [AUTO], **section}

    @model_validator(mode="after")
    def _is_not_empty(self) -> SearchSection:
        if not (self.methods or self.programs):
            raise ValueError("give `methods`, or `programs`, or both")
        return self

    def dimensions(self) -> dict[str, tuple[campaign_values.Value, ...]]:
        """Return the search space: name of a parameter (a field of `Candidate`) -> values to try."""
        chosen: dict[str, list[campaign_values.Value]] = {
            "method": [*self.methods, *(read_program_file(path).name for path in self.programs)]
        }
        always = ("k", "chunks", "channels", "instances", "protocol", "depth", "buffer_bytes")
        plans = ("reads", "block_group", "pipeline_bytes", "vector_bytes")
        library = ("ctas", "chunk_bytes", "threads", "cta_policy")
        for name in (*always, *plans, *library):
            values = list(getattr(self, name))
            if name in always or values != type(self).model_fields[name].default:
                chosen[name] = values
        return {name: tuple(dict.fromkeys(values)) for name, values in chosen.items()}


class BudgetSection(campaign_values.Strict):
    """Limits of a launch. It stops at the first limit that is reached, or when the search space is exhausted."""

    trials: int = Field(default=25, ge=1, le=10**6)
    """Number of trials in the launch, including those before it was resumed."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes after which no new trial starts."""


class FinalSection(campaign_values.Strict):
    """Limits of the final comparison, which measures the best programs for each size again."""

    launches: int = Field(default=24, ge=1, le=MOST_LAUNCHES)
    """Maximum number of launches at each size; a comparison without proof by then is undecided. Each
    launch starts the ranks once, and all its repetitions count as one sample."""
    contenders: int = Field(default=6, ge=1, le=100)
    """Maximum number of programs that are compared at a size."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes after which no new launch starts; default: as long as the trials took, but at least 20 s per size."""


class TrackingSection(campaign_values.Strict):
    """Settings for MLflow, in which launches are recorded."""

    mlflow_uri: Annotated[campaign_values.Address | None, SERVER_ONLY] = None
    """MLflow server or database; default: MLFLOW_TRACKING_URI, or else SQLite in the data folder."""
    experiment: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")
    """MLflow experiment; default: the campaign's name."""

    def address(self, default: str) -> str:
        """Return the complete address of MLflow's store, or `default` if the campaign does not set one."""
        return default if self.mlflow_uri is None else self.mlflow_uri.reveal()


class RegisterSection(campaign_values.Strict):
    """Settings for registering the best schedules in MLflow's model registry."""

    model: str = Field(default="chorale", pattern=r"^[A-Za-z0-9_-]{1,40}$")
    """First part of model names."""
    alias: str = Field(default="champion", pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    """Alias of the best version."""

    @field_validator("alias")
    @classmethod
    def _not_reserved(cls, alias: str) -> str:
        if alias == "latest" or (alias[0] == "v" and alias[1:].isdigit()):
            raise ValueError("MLflow reserves `latest` and v<number>")
        return alias


class Campaign(campaign_values.Strict):
    """A tuning campaign; `chorale tune --schema` prints this as a JSON schema."""

    name: str = Field(default="campaign", pattern=CAMPAIGN_NAME)
    """Name of the campaign and its data folder; default: a description of what it tunes."""
    topology: Annotated[str, FROM_REQUESTS] = Field(min_length=1, max_length=4096)
    """Topology spec, as on the command line."""
    collective: Annotated[
        Literal["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"],
        BeforeValidator(campaign_values.collective_text),
    ] = "allreduce"
    """Collective to tune; broadcast and reduce have root 0."""
    sizes: campaign_values.Sizes = Field(default=[2**16, 2**18, 2**20])
    """Buffer sizes: 64KiB, 1M, or 4KiB:1MiB:x4."""
    weights: list[campaign_values.Weight] | None = Field(default=None, max_length=campaign_values.MAX_VALUES)
    """Weight of each size in means over sizes, smallest size first; by default all weights are equal."""
    runner: AnyRunnerSection = Field(default=read_section({}))
    """Where programs are measured."""
    search: SearchSection = Field(default=SearchSection(chunks=[None, 1, 2], channels=[1, 2], instances=[1, 2]))
    """The search space."""
    objective: Literal["median_time", "geomean_speedup"] = "median_time"
    """median_time: the shortest median time at each size, so that each size may have a different winner;
    geomean_speedup: one winner, with the highest geometric mean over sizes of the speed-up over the best baseline."""
    deterministic: bool = False
    """Use one program at all sizes, even those at which a baseline is faster. It adds in a fixed order, so all
    ranks get bit-identical results."""
    baselines: Annotated[list[str], FROM_REQUESTS] = Field(default=[BASELINE_OF_LIBRARY], min_length=1, max_length=10)
    """What candidates are compared with: library, which stands for the algorithms of the runner's library or else the
    MPI libraries' algorithm predicted to be the fastest; library:NAME for one of the runner's own algorithms; methods;
    or program files (XML, MSCCL++ plans), with paths relative to the campaign file."""
    controls: Literal["drift", "every-trial"] = "drift"
    """How often the baselines are measured together with a trial. drift: again after 1, 2, 4, … 16 trials, sooner if
    their times changed; every-trial. The final comparison always includes them."""
    budget: BudgetSection = Field(default=BudgetSection())
    """When to stop."""
    final: FinalSection = Field(default=FinalSection())
    """The comparison at the end."""
    sampler: Literal["sizes-gp", "tpe", "random", "gp", "nsga2", "qmc", "grid"] | None = None
    """How the next point is chosen. sizes-gp (the default): a Gaussian process over parameters and sizes; tpe, random,
    gp, nsga2, qmc: Optuna's samplers; grid: in order."""
    pruner: Literal["none", "racing"] = "racing"
    """racing: after `first_repeats` repetitions, a candidate is no longer measured at sizes at which it is clearly
    slower than the best known. The margin depends on how much the baselines' times scatter."""
    first_repeats: int = Field(default=2, ge=1, le=1000)
    """Repetitions before racing decides."""
    prior: Annotated[Literal["auto", "none"] | list[str], FROM_REQUESTS] = Field(
        default="auto", max_length=campaign_values.MAX_VALUES
    )
    """Prior knowledge for the search, weighted by how well it predicts the trials. auto: earlier launches of the
    collective in the data folder, and recorded runs (GPUs only); none; or a list of campaigns and record. Used
    only by the sampler sizes-gp."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed for the search and for the order of measurements."""
    repeats: int = Field(default=5, ge=1, le=1000)
    """Measured repetitions at each size."""
    parallel: int = Field(default=3, ge=1, le=64)
    """Maximum number of trials in progress; one is measured while the others are prepared."""
    tracking: TrackingSection = Field(default=TrackingSection())
    """MLflow."""
    storage: Annotated[campaign_values.Address | None, SERVER_ONLY] = None
    """Optuna storage: a database, Redis, or a journal's path; by default a journal file."""
    register_: RegisterSection = Field(default=RegisterSection(), alias="register")
    """Model registry."""

    @model_validator(mode="after")
    def _weighs_every_size(self) -> Campaign:
        if self.weights is not None and len(self.weights) != len(self.sizes):
            raise ValueError(f"`weights` must have one number for each of the {len(self.sizes)} sizes")
        return self

    @property
    def baseline_names(self) -> tuple[str, ...]:
        """Return the names of the baselines in records. If a baseline is a file, its name contains the file's hash.

        Raises InvalidInput if a file is missing.
        """
        return tuple(read_program_file(name).name if is_program_file_name(name) else name for name in self.baselines)

    @property
    def size_weights(self) -> dict[int, float]:
        """Return a mapping: size in bytes -> weight. It is empty if all sizes have the same weight."""
        return {} if self.weights is None else dict(zip(self.sizes, self.weights, strict=True))

    @model_validator(mode="before")
    @classmethod
    def _has_a_name(cls, document: Any) -> Any:
        """If the campaign has no name, name it after what it tunes, so that each network gets a separate campaign."""
        if not isinstance(document, dict) or "name" in document or "topology" not in document:
            return document
        collective = campaign_values.collective_text(document.get("collective", "allreduce"))
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{collective}-{document['topology']}")
        return {"name": words.strip("-.")[:64], **document}

    @property
    def one_winner(self) -> bool:
        """Return whether one program must be chosen for all sizes."""
        return self.deterministic or self.objective == "geomean_speedup"

    @property
    def resolved_sampler(self) -> str:
        return self.sampler or "sizes-gp"


def without_former_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored campaign without the keys that only earlier versions had."""
    known = {field.alias or name for name, field in Campaign.model_fields.items()}
    return {key: value for key, value in document.items() if key in known}


def make_workers(
    campaign: Campaign, topology: Topology, home: Path, address: str | None = None
) -> Callable[[], Workers]:
    """Return a function that starts the workers of a campaign.

    Workers run on the Ray cluster at `address` or RAY_ADDRESS, or on the cluster that this process has joined. Without
    a cluster, they are local processes, or actors of a small local Ray cluster if the campaign requires node resources.
    """
    section = campaign.runner
    make_runner = runner_factory(section, topology, home)
    needs = section.config.resources(section.measurers, topology)
    measuring: dict[str, Any] = {"measurers": section.at_once, "alone": section.capabilities.is_live}
    has_cluster = (
        address or os.environ.get("RAY_ADDRESS") or ("ray" in sys.modules and bool(sys.modules["ray"].is_initialized()))
    )
    if has_cluster or section.config.uses_cluster or needs.gpus or needs.resources or needs.labels:
        from chorale.runners.ray.workers import RayWorkers  # noqa: PLC0415 - Ray takes a second

        return partial(RayWorkers, make_runner, campaign.parallel, address, needs=needs, **measuring)
    return partial(LocalWorkers, make_runner, min(campaign.parallel, core_count()), **measuring)


def runner_factory(section: RunnerSection, topology: Topology, home: Path) -> RunnerFactory:
    """Return a picklable function that creates the runner, which stores measurements of the machine in `home`."""
    return partial(section.config.for_network(topology).create, home, section.measurers)
