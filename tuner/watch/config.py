"""The file of `chorale watch`, and the watch that is made of it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from chorale.runners.api.registry import create_runner
from chorale.runners.fabric.detours import reroute
from chorale.runners.fabric.fabric import EmulatedFabric, find_fabric
from chorale.runners.fabric.link_states import KernelLinks
from chorale.runners.measurement.machine import acquire_lock
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign_file import read_document
from chorale.tuner.config.values import CampaignSection, Sizes
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.watch.canary import Canary
from chorale.tuner.watch.job_times import read_jobs
from chorale.tuner.watch.links import FabricState
from chorale.tuner.watch.publishing import MlflowTables, PublicationFiles, Publisher, Receiver, webhook
from chorale.tuner.watch.records import WatchRecords
from chorale.tuner.watch.renewal import Renewal
from chorale.tuner.watch.replanning import Planner, PlanRequest
from chorale.tuner.watch.watcher import Watch

_PATIENCE_S = 10.0
"""A watch that was killed may take a moment to be gone."""


class CanarySection(CampaignSection):
    """How a new table is compared with the present one before it is published."""

    seconds: float = Field(default=10.0, ge=0, le=600, description="Limit of all comparisons; 0 compares nothing.")
    repeats: int = Field(default=6, ge=6, le=100, description="Measured repetitions of each program and size.")


class PublishSection(CampaignSection):
    """Where tables go besides the file."""

    mlflow: bool = Field(default=False, description="Register each table as a version of the model NAME-table.")
    mlflow_uri: str | None = Field(
        default=None,
        description="Address of MLflow; by default MLFLOW_TRACKING_URI, else a database in the data folder.",
    )
    webhook: str | None = Field(
        default=None, pattern=r"^https?://", description="Gets a signed POST for each table that is published."
    )
    secret_variable: str = Field(
        default="CHORALE_WEBHOOK_SECRET", description="Variable of the environment with the key of signatures."
    )


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
    look_s: float = Field(default=0.25, ge=0.01, le=60, description="Seconds between two looks at the links.")
    canary: CanarySection = CanarySection()
    publish: PublishSection = PublishSection()
    jobs: list[Path] = Field(default=[], description="Files that jobs keep in CHORALE_STATUS.")

    @field_validator("collectives")
    @classmethod
    def _are_collectives(cls, names: list[str]) -> list[str]:
        return [parse_collective(name).name.value for name in names]


def read_watch_config(path: Path) -> WatchConfig:
    """Return the file at `path`. InvalidInput that names the first wrong key, its value and the way out."""
    document = read_document(str(path))
    try:
        return WatchConfig.model_validate(document)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "the file"
        rule = f"key `{key}` of {path}: {fault['msg'].replace('Input should', 'the value should', 1)}"
        raise InvalidInput(rule, repr(fault["input"]), "see `chorale watch --schema`") from None


def watch_folder(home: Home, name: str) -> Path:
    """Return the folder of the watch called `name`: its state, and what it goes on with."""
    return home.root / "watch" / name


def open_watch(config: WatchConfig) -> Watch:
    """Return the watch of `config`, whose fabric must be up. Unavailable where it is not."""
    topology = load_topology(config.topology)
    fabric = find_fabric(topology.id, config.fabric)
    if fabric is None:
        way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50"
        raise Unavailable("a watch needs its fabric", f"none is up for {config.topology}", way_out)
    table = config.table.absolute()
    if not table.parent.is_dir():
        raise InvalidInput("the folder of the table must exist", table.parent, "create it")
    home = Home.from_environment()
    folder = home.create(watch_folder(home, config.name))
    publisher = Publisher(table, _receivers(config, home), PublicationFiles(folder))
    sizes, collectives = tuple(sorted(config.sizes)), tuple(config.collectives)
    model = NetworkModel.of(config.alpha_us, 0, 0, fabric.link_mbps / 1000)
    planner = Planner(PlanRequest(collectives, sizes, tuple(config.methods), model))
    jobs = partial(read_jobs, [path.absolute() for path in config.jobs])
    rule, way_out = "a fabric must have one watch of a name", "end it first, or choose another name"
    with ExitStack() as opened:
        lock = acquire_lock(folder / "lock", _PATIENCE_S, Unavailable(rule, f"{config.name} is running", way_out))
        opened.callback(lock.release)
        canary = None
        if config.canary.seconds:
            runner = create_runner("local", {"fabric": fabric.name, "where": "fabric"}, home.root)
            opened.callback(runner.close)
            canary = Canary(topology, runner.submit, sizes, config.canary.repeats, config.canary.seconds)
        source = KernelLinks(topology, fabric, config.look_s)
        close = opened.pop_all().close
    around = partial(_reroute, fabric, topology) if config.reroute else None
    renewal = Renewal(topology, collectives, planner, canary, publisher, jobs)
    return Watch(source, renewal, WatchRecords(folder, config.name), around, config.plan_failures, close=close)


def _reroute(fabric: EmulatedFabric, whole: Topology, state: FabricState) -> None:
    remaining = parse_topology(state.spec(whole))
    numbers = {name: node for node, name in enumerate(whole.node_ids)}
    switches = [numbers[name] for name in remaining.node_ids[remaining.compute_count :]]
    reroute(fabric, whole, remaining, (*state.ranks(whole), *switches))


def _receivers(config: WatchConfig, home: Home) -> dict[str, Receiver]:
    receivers: dict[str, Receiver] = {}
    if config.publish.webhook is not None:
        name = config.publish.secret_variable
        secret = os.environ.get(name)
        if not secret:
            rule = f"set {name}: messages to a webhook are signed with it"
            raise InvalidInput(rule, f"no {name}", "set it to the key that the receiver knows")
        receivers["webhook"] = webhook(config.publish.webhook, secret.encode())
    if config.publish.mlflow:
        uri = config.publish.mlflow_uri or home.mlflow_uri
        receivers["mlflow"] = MlflowTables(uri, home.artifacts, config.name).register
    return receivers
