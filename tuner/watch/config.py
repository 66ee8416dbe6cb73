"""The file of `chorale watch`: which fabric, what is published for it, how changes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from chorale.synth.collective import parse_collective
from chorale.tuner.config.values import CampaignSection, Duration, Share, Sizes
from chorale.tuner.watch.windows import Hours, IdleWindow


class ProbeSection(CampaignSection):
    """How links are probed."""

    ping_s: float = Field(default=0.25, ge=0.01, le=60, description="Seconds between two small packets on a link.")
    share: float = Field(
        default=0.001, gt=0, le=0.1, description="Of a link's time that probes of its rate may take; 0.001 is 0.1 %."
    )
    packets: int = Field(default=4, ge=3, le=64, description="Packets that are sent together to measure a rate.")
    lost_s: float = Field(
        default=1.0, gt=0, le=60, description="Seconds without any arrival after which a packet is lost."
    )


class CanarySection(CampaignSection):
    """How a new table is compared with the present one before it is published."""

    seconds: float = Field(default=10.0, ge=0, le=600, description="Limit of all comparisons; 0 compares nothing.")
    repeats: int = Field(default=6, ge=6, le=100, description="Measured repetitions of each program and size.")


class PublishSection(CampaignSection):
    """Where tables go besides the file."""

    mlflow: bool = Field(
        default=False, description="Register each table as a version of the model NAME-table, and log links to a run."
    )
    mlflow_uri: str | None = Field(
        default=None,
        description="Address of MLflow; by default MLFLOW_TRACKING_URI, else a database in the data folder.",
    )
    history_s: float = Field(
        default=60.0, ge=1, le=86400, description="Seconds between two points of a link in MLflow."
    )
    webhook: str | None = Field(
        default=None, pattern=r"^https?://", description="Gets a signed POST for each table that is published."
    )
    secret_variable: str = Field(
        default="CHORALE_WEBHOOK_SECRET", description="Variable of the environment with the key of signatures."
    )


class RetuneSection(CampaignSection):
    """When the watch may launch a campaign of its own, where jobs take another time than predicted."""

    hours: list[str] = Field(
        default=[], description="Hours in which it may, such as 22:00-06:00, by this machine's clock; none: never."
    )
    exclusive: bool = Field(default=True, description="Whether only while no job of `jobs` runs.")
    idle_nodes: float = Field(
        default=0.0, ge=0, le=1, description="Share of the ranks on which no job may run, where it is not exclusive."
    )
    tolerance: Share = Field(default=0.25, description="Part of the prediction by which times of jobs may be off.")
    again: Duration = Field(default=7 * 86400.0, description="Time until a size may be tuned once more.")
    trials: int = Field(default=16, ge=1, le=10**5, description="Trials of a campaign.")
    minutes: float = Field(default=20.0, gt=0, description="Minutes after which a campaign starts no new trial.")
    campaign: dict[str, Any] = Field(
        default={}, description="Other keys of its campaign file, such as `search`; see `chorale tune --schema`."
    )

    @field_validator("hours")
    @classmethod
    def _are_hours(cls, texts: list[str]) -> list[str]:
        for text in texts:
            Hours.of(text)
        return texts

    @property
    def window(self) -> IdleWindow:
        """What the section allows."""
        return IdleWindow(tuple(map(Hours.of, self.hours)), self.exclusive, self.idle_nodes)


class WatchConfig(CampaignSection):
    """All of the file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="Name of what is watched.")
    topology: str = Field(description="Topology spec of the healthy fabric.")
    fabric: str | None = Field(default=None, description="Name of the emulated fabric; by default the one that is up.")
    table: Path = Field(description="File of the published tuning table, which jobs name in CHORALE_TABLE.")
    collectives: list[str] = Field(default=["allreduce"], min_length=1, description="What the table has programs for.")
    sizes: Sizes = Field(default=[65536, 1048576], description="Sizes at which methods are chosen and tables compared.")
    methods: list[str] = Field(
        default=["bfb", "forest"], min_length=1, description="Methods that compete at each size."
    )
    alpha_us: float = Field(default=100.0, ge=0, description="Predicted microseconds of a step besides its bytes.")
    reroute: bool = Field(
        default=True, description="Whether an emulated fabric sends what would cross a dead link over others."
    )
    plan_failures: bool = Field(default=True, description="Whether tables for single failures are made ahead.")
    false_alarms_per_day: float = Field(default=1 / 30, gt=0, le=1000, description="Bound on their mean number.")
    probe: ProbeSection = ProbeSection()
    canary: CanarySection = CanarySection()
    publish: PublishSection = PublishSection()
    retune: RetuneSection = RetuneSection()
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="Port of 127.0.0.1 for Prometheus metrics; 0 serves none."
    )
    jobs: list[Path] = Field(default=[], description="Files that jobs keep in CHORALE_STATUS.")

    @field_validator("collectives")
    @classmethod
    def _are_collectives(cls, names: list[str]) -> list[str]:
        return [parse_collective(name).name.value for name in names]
