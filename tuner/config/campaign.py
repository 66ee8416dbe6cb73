"""The campaign file: what to tune, on what, by which search, with which budget."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from chorale.runners.api.config import FROM_REQUESTS, PATH_OR_CONTENT, SERVER_ONLY
from chorale.runners.api.registry import RUNNERS
from chorale.tuner.config.address import Address
from chorale.tuner.config.adopted import is_program_file_name, read_program_file
from chorale.tuner.config.names import collective_text
from chorale.tuner.config.runner import AnyRunnerSection, read_section
from chorale.tuner.config.search_section import SearchSection
from chorale.tuner.config.values import (
    MAX_VALUES,
    CampaignSection,
    Duration,
    Share,
    Sizes,
    Weight,
)


class ScreeningSection(CampaignSection):
    """Predicted times before anything is measured, which say where the search begins."""

    candidates: int = Field(
        default=0, ge=0, le=10**5, description="Points that are made and get their exact cost; 0: no screening."
    )
    simulated: int = Field(default=16, ge=0, le=10**4, description="How many of the best are simulated as well.")
    alpha_us: float = Field(default=10.0, ge=0, le=10**6, description="Cost of a message in both models.")
    calibration: Annotated[str | dict[str, Any] | None, PATH_OR_CONTENT] = Field(
        default=None,
        description=(
            "File of `chorale run --calibrate --json`, or what is in it, in place of alpha and the link rate."
        ),
    )


class OverlapSection(CampaignSection):
    """Work of the ranks beside the collective."""

    products: int = Field(
        default=0,
        ge=0,
        le=10**6,
        description=(
            "Products of 128 x 128 matrices that every rank computes beside each repetition. All times are then those "
            "of both together, end to end, and a program is used only at sizes where that is less than with the "
            "baseline. Local runner only."
        ),
    )


class BudgetSection(CampaignSection):
    """When to stop; whatever comes first. A search space that is used up ends the campaign too."""

    trials: int = Field(default=25, ge=1, le=10**6, description="Trials of the launch, resumed ones included.")
    minutes: float | None = Field(default=None, gt=0, description="Minutes after which no new trial starts.")


class StopSection(CampaignSection):
    """When going on is not worth it."""

    gain: Share = Field(description="Least gain of the mean speed-up over sizes that is worth `per`: 1% or 0.01.")
    per: Duration = Field(default=60.0, description="Time that may be spent for it: 30s, 1min, 2h, or seconds.")


class FinalSection(CampaignSection):
    """The comparison of the best programs of each size at the end."""

    launches: int = Field(
        default=24,
        ge=1,
        le=1000,
        description=(
            "Launches of each size at most, after which it is undecided what is not proved; a launch is what one start "
            "of the ranks measures, and counts once."
        ),
    )
    contenders: int = Field(default=6, ge=1, le=100, description="Programs that are compared at a size at most.")
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="Minutes after which no new launch starts; as many as the trials took, 20 s a size at least.",
    )


class TrackingSection(CampaignSection):
    """Where runs are recorded."""

    mlflow_uri: Annotated[Address | None, SERVER_ONLY] = Field(
        default=None, description="MLflow server or database; MLFLOW_TRACKING_URI, or SQLite in the data folder."
    )
    experiment: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$",
        description="MLflow experiment; the name of the campaign.",
    )

    def address(self, default: str) -> str:
        """Return the whole address of the store, which is `default` where the campaign names none."""
        return default if self.mlflow_uri is None else self.mlflow_uri.reveal()


class RegisterSection(CampaignSection):
    """How the best schedules are registered."""

    model: str = Field(default="chorale", pattern=r"^[A-Za-z0-9_-]{1,40}$", description="First part of model names.")
    alias: str = Field(default="champion", pattern=r"^[a-z][a-z0-9_-]{0,40}$", description="Alias of the best version.")

    @field_validator("alias")
    @classmethod
    def _not_reserved(cls, alias: str) -> str:
        if alias == "latest" or (alias[0] == "v" and alias[1:].isdigit()):
            raise ValueError("MLflow reserves `latest` and v<number>")
        return alias


class Campaign(CampaignSection):
    """A tuning campaign; `chorale tune --schema` prints this as a JSON schema."""

    name: str = Field(
        default="campaign",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Its name, also of its data folder; default: what it tunes.",
    )
    topology: Annotated[str, FROM_REQUESTS] = Field(
        min_length=1, max_length=4096, description="Topology spec, as on the command line."
    )
    collective: Annotated[Literal["allgather", "reduce_scatter", "allreduce"], BeforeValidator(collective_text)] = (
        Field(default="allreduce", description="Collective to tune.")
    )
    sizes: Sizes = Field(default=[2**16, 2**18, 2**20], description="Buffer sizes: 64KiB, 1M, or 4KiB:1MiB:x4.")
    weights: list[Weight] | None = Field(
        default=None,
        max_length=MAX_VALUES,
        description="How much each size counts in means over sizes, smallest size first; by default all the same.",
    )
    runner: AnyRunnerSection = Field(default=read_section({}), description="Where programs are measured.")
    search: SearchSection = Field(
        default=SearchSection(chunks=[None, 1, 2], channels=[1, 2], instances=[1, 2]), description="The search space."
    )
    objective: Literal["median_time", "geomean_speedup"] = Field(
        default="median_time",
        description=(
            "median_time: the least median time at each size, so that sizes may have winners of their own; "
            "geomean_speedup: one winner, by the geometric mean over sizes of the speed-up over the best baseline."
        ),
    )
    deterministic: bool = Field(
        default=False,
        description=(
            "One program at all sizes, also where a baseline is faster, and one whose order of additions is fixed and "
            "gives all ranks the same bits."
        ),
    )
    second_objective: Literal["none", "channels", "blocks"] = Field(
        default="none",
        description=(
            "What is to be small besides: channels, or thread blocks of the busiest rank. The answer then comes with "
            "the trials that nothing beats in both; samplers tpe, nsga2 and random can do it."
        ),
    )
    baselines: Annotated[list[str], FROM_REQUESTS] = Field(
        default=["ring"],
        min_length=1,
        max_length=10,
        description=(
            "What candidates are compared with: methods, library:NAME for the runner's own algorithms, or program "
            "files (XML, plans of MSCCL++), whose paths are those from the campaign file."
        ),
    )
    controls: Literal["drift", "every-trial"] = Field(
        default="drift",
        description=(
            "How often trials have the baselines beside them. drift: again after 1, 2, 4, … 16 trials, sooner when "
            "they moved; every-trial. The final comparison always has them."
        ),
    )
    budget: BudgetSection = Field(default=BudgetSection(), description="When to stop.")
    stop: StopSection | None = Field(
        default=None,
        description=(
            "Ends the search where its model expects less than `gain` from `per` more time: {gain: 1%, per: 1min}. For "
            "the sampler sizes-gp."
        ),
    )
    final: FinalSection = Field(default=FinalSection(), description="The comparison at the end.")
    sampler: Literal["sizes-gp", "tpe", "random", "gp", "nsga2", "qmc", "grid"] | None = Field(
        default=None,
        description=(
            "Who chooses the next point. sizes-gp (the default): a Gaussian process over parameters and sizes; tpe, "
            "random, gp, nsga2, qmc: Optuna's samplers (tpe is the default with a second objective); grid: in order."
        ),
    )
    pruner: Literal["none", "racing"] = Field(
        default="racing",
        description=(
            "racing: a candidate is not measured on at sizes at which it is clearly slower than the best known after "
            "`first_repeats` repetitions; how clearly depends on how much the baselines scatter."
        ),
    )
    first_repeats: int = Field(default=2, ge=1, le=1000, description="Repetitions before racing decides.")
    overlap: OverlapSection = Field(default=OverlapSection(), description="Work of the ranks beside the collective.")
    screening: ScreeningSection = Field(default=ScreeningSection(), description="Cheap guesses to begin with.")
    warm_start: bool = Field(
        default=True,
        description=(
            "Begin with what the registry has for the collective on similar networks: of the same family and degree, "
            "at sizes at most a factor of two away."
        ),
    )
    prior: Annotated[Literal["auto", "none"] | list[str], FROM_REQUESTS] = Field(
        default="auto",
        max_length=MAX_VALUES,
        description=(
            "What the search knows beforehand, believed as far as it predicts the trials. auto: earlier launches of "
            "the collective in the data folder, runs on record (GPUs only), and what screening predicts; none; or a "
            "list of campaigns, record and screening. For the sampler sizes-gp."
        ),
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of the search and of the order of measurements.")
    repeats: int = Field(default=5, ge=1, le=1000, description="Measured repetitions of each size.")
    parallel: int = Field(
        default=3, ge=1, le=64, description="Trials running at once; one is measured, the others are prepared."
    )
    tracking: TrackingSection = Field(default=TrackingSection(), description="MLflow.")
    storage: Annotated[Address | None, SERVER_ONLY] = Field(
        default=None, description="Optuna storage URL; by default a journal file."
    )
    register_: RegisterSection = Field(default=RegisterSection(), alias="register", description="Model registry.")

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
        """Name a campaign that has none by what it tunes, so that another network's is another campaign."""
        if not isinstance(document, dict) or "name" in document or "topology" not in document:
            return document
        collective = collective_text(document.get("collective", "allreduce"))
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{collective}-{document['topology']}")
        return {"name": words.strip("-.")[:64], **document}

    @property
    def one_winner(self) -> bool:
        """Whether one candidate is to serve all sizes."""
        return self.deterministic or self.objective == "geomean_speedup"

    @property
    def resolved_sampler(self) -> str:
        """The sampler of the file, or the default."""
        return self.sampler or ("sizes-gp" if self.second_objective == "none" else "tpe")
