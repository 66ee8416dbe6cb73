"""The campaign file: what to tune, on what, by which search, with which budget; and the workers that it asks for."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from chorale.runners.api.config import FROM_REQUESTS, PATH_OR_CONTENT, SERVER_ONLY, ByteCount
from chorale.runners.api.registry import RUNNERS
from chorale.runners.api.workers import Workers
from chorale.runners.workers.campaign_worker import LocalWorkers, RunnerFactory
from chorale.synth.methods.auto import AUTO
from chorale.synth.processors import core_count
from chorale.synth.topology.topology import Topology
from chorale.tuner.config import values as campaign_values
from chorale.tuner.config.building import shared_builder
from chorale.tuner.config.runner import AnyRunnerSection, RunnerSection, read_section
from chorale.tuner.config.values import is_program_file_name, read_program_file
from chorale.tuner.files.home import CAMPAIGN_NAME

BASELINE_OF_LIBRARY = "library"
"""The baseline that stands for what the library does on the network."""


class SearchSection(campaign_values.CampaignSection):
    """Values of each dimension, as a list or a range."""

    methods: Annotated[list[Annotated[str, BeforeValidator(campaign_values.method_text)]], FROM_REQUESTS] = Field(
        default=[], max_length=campaign_values.MAX_VALUES
    )
    """Synthesis methods; auto, the default without programs: those that are predicted to be the fastest at the sizes,
    of all methods."""
    programs: Annotated[list[str], SERVER_ONLY] = Field(default=[], max_length=campaign_values.MAX_VALUES)
    """Program files (XML, plans of MSCCL++) that compete as they are, each a candidate; paths are those from the
    campaign file."""
    k: campaign_values.OptionalCounts = Field(default=[None])
    """Trees per root, for methods that pack trees; null: the smallest optimal number."""
    chunks: campaign_values.OptionalCounts = Field(default=[None])
    """Chunks per shard; null: the smallest number that reaches the optimum."""
    channels: campaign_values.Counts = Field(default=[1])
    """Channels that transfers are spread over."""
    instances: campaign_values.Counts = Field(default=[1])
    """Copies of the schedule that run side by side."""
    protocol: list[Literal["Simple", "LL", "LL128"]] = Field(default=["Simple"], min_length=1)
    """Wire protocols."""

    depth: campaign_values.Counts = Field(default=[1])
    """Parts that every transfer of a tree is cut into, one after the other: how deep its pipeline is."""
    buffer_bytes: campaign_values.Buffers = Field(default=[None])
    """Buffers of connections, such as 4MiB; null: what the runtime takes. For runners that have them."""

    reads: list[bool] = Field(default=[False], min_length=1, max_length=2)
    """Whether receivers read what stays where it is, instead of being written to. MSCCL++ only."""
    block_group: campaign_values.Counts = Field(default=[1])
    """Thread blocks that share the chunks of each block of a program. MSCCL++ only."""
    pipeline_bytes: list[Annotated[int, Field(ge=0), ByteCount]] = Field(
        default=[0], min_length=1, max_length=campaign_values.MAX_VALUES
    )
    """Parts in which chunks go through the steps of a block, such as 64KiB; 0: whole. MSCCL++ only."""

    ctas: campaign_values.OptionalCounts = Field(default=[None])
    """Channels or CTAs of the library's own algorithms (`nccl:ring`); null: its choice."""
    chunk_bytes: campaign_values.Buffers = Field(default=[None])
    """Chunks of the library's own algorithms, such as 128KiB; null: its choice."""
    threads: campaign_values.OptionalCounts = Field(default=[None])
    """Threads of a block, of the library or of plans; null: its choice."""
    cta_policy: list[Literal["default", "efficiency", "zero"] | None] = Field(
        default=[None], min_length=1, max_length=4
    )
    """Policy by which the library chooses CTAs."""

    @model_validator(mode="before")
    @classmethod
    def _has_candidates(cls, section: Any) -> Any:
        """Fill in the methods predicted to be the fastest if neither methods nor programs are given."""
        if not isinstance(section, dict) or "methods" in section or section.get("programs"):
            return section
        return {"methods": [AUTO], **section}

    @model_validator(mode="after")
    def _is_not_empty(self) -> SearchSection:
        if not (self.methods or self.programs):
            raise ValueError("give `methods`, or `programs`, or both")
        return self

    def dimensions(self) -> dict[str, tuple[campaign_values.Value, ...]]:
        """Return the values of every parameter, by the fields of a candidate."""
        chosen: dict[str, list[campaign_values.Value]] = {
            "method": [*self.methods, *(read_program_file(path).name for path in self.programs)]
        }
        always = ("k", "chunks", "channels", "instances", "protocol", "depth", "buffer_bytes")
        special = ("reads", "block_group", "pipeline_bytes", "ctas", "chunk_bytes", "threads", "cta_policy")
        for name in (*always, *special):
            values = list(getattr(self, name))
            if name in always or values != type(self).model_fields[name].default:
                chosen[name] = values
        return {name: tuple(dict.fromkeys(values)) for name, values in chosen.items()}


class ScreeningSection(campaign_values.CampaignSection):
    """Predict times before anything is measured, to decide where the search begins."""

    candidates: int = Field(default=0, ge=0, le=10**5)
    """Points that are made and get their exact cost; 0: no screening."""
    simulated: int = Field(default=16, ge=0, le=10**4)
    """How many of the best are simulated as well."""
    alpha_us: float = Field(default=10.0, ge=0, le=10**6)
    """Cost of a message in both models."""
    calibration: Annotated[str | dict[str, Any] | None, PATH_OR_CONTENT] = None
    """File of `chorale run --calibrate --json`, or what is in it, in place of alpha and the link rate."""


class OverlapSection(campaign_values.CampaignSection):
    """Computation of the ranks during the collective."""

    products: int = Field(default=0, ge=0, le=10**6)
    """Products of 128 x 128 matrices that every rank computes beside each repetition. All times are then those of both
    together, end to end, and a program is used only at sizes where that is less than with the baseline. Local runner
    only."""


class BudgetSection(campaign_values.CampaignSection):
    """When to stop; whatever comes first. A search space that is used up ends the campaign too."""

    trials: int = Field(default=25, ge=1, le=10**6)
    """Trials of the launch, resumed ones included."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes after which no new trial starts."""


class StopSection(campaign_values.CampaignSection):
    """When going on is not worth it."""

    gain: campaign_values.Share
    """Least gain of the mean speed-up over sizes that is worth `per`: 1% or 0.01."""
    per: campaign_values.Duration = 60.0
    """Time that may be spent for it: 30s, 1min, 2h, or seconds."""


class FinalSection(campaign_values.CampaignSection):
    """The comparison of the best programs of each size at the end."""

    launches: int = Field(default=24, ge=1, le=1000)
    """Launches of each size at most, after which it is undecided what is not proved; a launch is what one start of the
    ranks measures, and counts once."""
    contenders: int = Field(default=6, ge=1, le=100)
    """Programs that are compared at a size at most."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes after which no new launch starts; as many as the trials took, 20 s a size at least."""


class TrackingSection(campaign_values.CampaignSection):
    """Where runs are recorded."""

    mlflow_uri: Annotated[campaign_values.Address | None, SERVER_ONLY] = None
    """MLflow server or database; MLFLOW_TRACKING_URI, or SQLite in the data folder."""
    experiment: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")
    """MLflow experiment; the name of the campaign."""

    def address(self, default: str) -> str:
        """Return the complete address of the store; `default` if the campaign names none."""
        return default if self.mlflow_uri is None else self.mlflow_uri.reveal()


class RegisterSection(campaign_values.CampaignSection):
    """How the best schedules are registered."""

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


class Campaign(campaign_values.CampaignSection):
    """A tuning campaign; `chorale tune --schema` prints this as a JSON schema."""

    name: str = Field(default="campaign", pattern=CAMPAIGN_NAME)
    """Its name, also of its data folder; default: what it tunes."""
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
    """How much each size counts in means over sizes, smallest size first; by default all the same."""
    runner: AnyRunnerSection = Field(default=read_section({}))
    """Where programs are measured."""
    search: SearchSection = Field(default=SearchSection(chunks=[None, 1, 2], channels=[1, 2], instances=[1, 2]))
    """The search space."""
    objective: Literal["median_time", "geomean_speedup"] = "median_time"
    """median_time: the least median time at each size, so that sizes may have winners of their own; geomean_speedup:
    one winner, by the geometric mean over sizes of the speed-up over the best baseline."""
    deterministic: bool = False
    """One program at all sizes, also where a baseline is faster, and one whose order of additions is fixed and gives
    all ranks the same bits."""
    second_objective: Literal["none", "channels", "blocks"] = "none"
    """What is to be small besides: channels, or thread blocks of the busiest rank. The answer then comes with the
    trials that nothing beats in both; samplers tpe, nsga2 and random can do it."""
    baselines: Annotated[list[str], FROM_REQUESTS] = Field(default=[BASELINE_OF_LIBRARY], min_length=1, max_length=10)
    """What candidates are compared with: library, which is what the library below the runner does or the algorithm of
    MPI libraries that is predicted to be the fastest; library:NAME for one of the runner's own algorithms; methods; or
    program files (XML, plans of MSCCL++), whose paths are those from the campaign file."""
    controls: Literal["drift", "every-trial"] = "drift"
    """How often trials have the baselines beside them. drift: again after 1, 2, 4, … 16 trials, sooner when they
    moved; every-trial. The final comparison always has them."""
    budget: BudgetSection = Field(default=BudgetSection())
    """When to stop."""
    stop: StopSection | None = None
    """Ends the search where its model expects less than `gain` from `per` more time: {gain: 1%, per: 1min}. For the
    sampler sizes-gp."""
    final: FinalSection = Field(default=FinalSection())
    """The comparison at the end."""
    sampler: Literal["sizes-gp", "tpe", "random", "gp", "nsga2", "qmc", "grid"] | None = None
    """Who chooses the next point. sizes-gp (the default): a Gaussian process over parameters and sizes; tpe, random,
    gp, nsga2, qmc: Optuna's samplers (tpe is the default with a second objective); grid: in order."""
    pruner: Literal["none", "racing"] = "racing"
    """racing: a candidate is not measured on at sizes at which it is clearly slower than the best known after
    `first_repeats` repetitions; how clearly depends on how much the baselines scatter."""
    first_repeats: int = Field(default=2, ge=1, le=1000)
    """Repetitions before racing decides."""
    overlap: OverlapSection = Field(default=OverlapSection())
    """Work of the ranks beside the collective."""
    screening: ScreeningSection = Field(default=ScreeningSection())
    """Cheap guesses to begin with."""
    warm_start: bool = True
    """Begin with what the registry has for the collective on similar networks: of the same family and degree, at sizes
    at most a factor of two away."""
    prior: Annotated[Literal["auto", "none"] | list[str], FROM_REQUESTS] = Field(
        default="auto", max_length=campaign_values.MAX_VALUES
    )
    """What the search knows beforehand, believed as far as it predicts the trials. auto: earlier launches of the
    collective in the data folder, runs on record (GPUs only), and what screening predicts; none; or a list of
    campaigns, record and screening. For the sampler sizes-gp."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the search and of the order of measurements."""
    repeats: int = Field(default=5, ge=1, le=1000)
    """Measured repetitions of each size."""
    parallel: int = Field(default=3, ge=1, le=64)
    """Trials running at once; one is measured, the others are prepared."""
    tracking: TrackingSection = Field(default=TrackingSection())
    """MLflow."""
    storage: Annotated[campaign_values.Address | None, SERVER_ONLY] = None
    """Optuna storage: a database, Redis, or the path of a journal; by default a journal file."""
    register_: RegisterSection = Field(default=RegisterSection(), alias="register")
    """Model registry."""

    @model_validator(mode="after")
    def _can_have_two_objectives(self) -> Campaign:
        if self.second_objective != "none" and self.sampler not in (None, "tpe", "nsga2", "random"):
            raise ValueError("with a `second_objective` the sampler must be tpe, nsga2 or random")
        return self

    @model_validator(mode="after")
    def _can_stop(self) -> Campaign:
        if self.stop is not None and self.resolved_sampler != "sizes-gp":
            raise ValueError("`stop` needs the sampler sizes-gp, whose model says what to expect")
        return self

    @model_validator(mode="after")
    def _can_overlap(self) -> Campaign:
        if self.overlap.products and not self.runner.capabilities.overlap:
            able = " or ".join(name for name, runner in RUNNERS.items() if runner.capabilities.overlap)
            raise ValueError(f"`overlap.products` needs the {able} runner")
        return self

    @model_validator(mode="after")
    def _weighs_every_size(self) -> Campaign:
        if self.weights is not None and len(self.weights) != len(self.sizes):
            raise ValueError(f"`weights` must have one number for each of the {len(self.sizes)} sizes")
        return self

    @property
    def baseline_names(self) -> tuple[str, ...]:
        """The baselines as records name them: files by name and content. InvalidInput for one that is not there."""
        return tuple(read_program_file(name).name if is_program_file_name(name) else name for name in self.baselines)

    @property
    def size_weights(self) -> dict[int, float]:
        """The weight of each size in bytes; empty if all weigh the same."""
        return {} if self.weights is None else dict(zip(self.sizes, self.weights, strict=True))

    @model_validator(mode="before")
    @classmethod
    def _has_a_name(cls, document: Any) -> Any:
        """Give a campaign without a name one that describes what it tunes, so that other networks are other
        campaigns.
        """
        if not isinstance(document, dict) or "name" in document or "topology" not in document:
            return document
        collective = campaign_values.collective_text(document.get("collective", "allreduce"))
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{collective}-{document['topology']}")
        return {"name": words.strip("-.")[:64], **document}

    @property
    def one_winner(self) -> bool:
        """Return whether one candidate has to serve all sizes."""
        return self.deterministic or self.objective == "geomean_speedup"

    @property
    def resolved_sampler(self) -> str:
        """The sampler of the file, or the default."""
        return self.sampler or ("sizes-gp" if self.second_objective == "none" else "tpe")


def make_workers(
    campaign: Campaign, topology: Topology, home: Path, address: str | None = None
) -> Callable[[], Workers]:
    """Return a function that starts the workers of a campaign.

    They are on the Ray cluster at `address` or at RAY_ADDRESS, or that this process has joined. Without one they are
    processes of this machine, except for campaigns that need resources of nodes: these start a small cluster here.
    """
    section = campaign.runner
    make_runner = runner_factory(section, topology, home)
    needs = section.config.resources(section.measurers, topology)
    measuring: dict[str, Any] = {
        "measurers": section.at_once,
        "alone": section.capabilities.is_live,
        "make_builder": partial(shared_builder, home),
    }
    has_cluster = (
        address or os.environ.get("RAY_ADDRESS") or ("ray" in sys.modules and bool(sys.modules["ray"].is_initialized()))
    )
    if has_cluster or section.config.uses_cluster or needs.gpus or needs.resources or needs.labels:
        from chorale.runners.ray.workers import RayWorkers  # noqa: PLC0415 - Ray takes a second

        return partial(RayWorkers, make_runner, campaign.parallel, address, needs=needs, **measuring)
    return partial(LocalWorkers, make_runner, min(campaign.parallel, core_count()), **measuring)


def runner_factory(section: RunnerSection, topology: Topology, home: Path) -> RunnerFactory:
    """Return a picklable function that creates the runner; runners store what they measure of the machine in `home`."""
    return partial(section.config.for_network(topology).create, home, section.measurers)
