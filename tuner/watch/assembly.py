"""Makes a watch of its file: the fabric that is up, its prober, planner, canary and publisher."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from chorale.runners.api.probes import Link
from chorale.runners.api.registry import create_runner
from chorale.runners.fabric.detours import reroute
from chorale.runners.fabric.fabric import EmulatedFabric, find_fabric
from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.probing import FabricProber, ProbeOptions
from chorale.runners.measurement.file_lock import acquire_lock
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign_file import read_document
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.watch.canary import Canary
from chorale.tuner.watch.config import WatchConfig
from chorale.tuner.watch.evidence import threshold_for
from chorale.tuner.watch.fabric_state import FabricState
from chorale.tuner.watch.history import LinkHistory
from chorale.tuner.watch.job_times import read_jobs
from chorale.tuner.watch.link_monitor import TESTS_PER_PING, TESTS_PER_RATE, LinkMonitor, MonitorOptions
from chorale.tuner.watch.metrics import serve_metrics
from chorale.tuner.watch.probe_schedule import ProbeSchedule
from chorale.tuner.watch.publishing import PublicationFiles, Publisher
from chorale.tuner.watch.receivers import Receiver, WatchTracking, webhook
from chorale.tuner.watch.records import WatchRecords
from chorale.tuner.watch.renewal import Renewal, RenewalParts
from chorale.tuner.watch.replanning import Planner, PlanRequest
from chorale.tuner.watch.retune_campaigns import WatchCampaigns
from chorale.tuner.watch.retuning import RetuneOptions, Retuner
from chorale.tuner.watch.watcher import Watch, WatchParts
from chorale.tuner.watch.windows import busy_share

_PATIENCE_S = 10.0
"""A watch that was killed may take a moment to be gone."""


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


def open_watch(config: WatchConfig, home: Home | None = None) -> Watch:
    """Return the watch of `config`, whose fabric must be up. Unavailable where it is not, or cannot be probed.

    home: the data folder; by default that of the environment
    """
    topology = load_topology(config.topology)
    fabric = find_fabric(topology.id, config.fabric)
    if fabric is None:
        way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50"
        raise Unavailable("a watch needs its fabric", f"none is up for {config.topology}", way_out)
    if not config.table.absolute().parent.is_dir():
        raise InvalidInput("the folder of the table must exist", config.table.absolute().parent, "create it")
    home = home or Home.from_environment()
    folder = home.create(watch_folder(home, config.name))
    tracking = (
        WatchTracking(config.publish.mlflow_uri or home.mlflow_uri, home.artifacts, config.name)
        if config.publish.mlflow
        else None
    )
    records = WatchRecords(
        folder, config.name, LinkHistory(tracking.log, config.publish.history_s) if tracking else None
    )
    publisher = Publisher(config.table.absolute(), _receivers(config, tracking), PublicationFiles(folder))
    retuner = _retuner(config, fabric, home, folder)
    rule, way_out = "a fabric must have one watch of a name", "end it first, or choose another name"
    with ExitStack() as opened:
        lock = acquire_lock(folder / "lock", _PATIENCE_S, Unavailable(rule, f"{config.name} is running", way_out))
        opened.callback(lock.release)
        if config.metrics_port:
            opened.callback(serve_metrics(records, config.name, config.metrics_port))
        canary = None
        if config.canary.seconds:
            runner = create_runner("local", {"fabric": fabric.name, "where": "fabric"}, home.root)
            opened.callback(runner.close)
            sizes = tuple(sorted(config.sizes))
            canary = Canary(topology, runner.submit, sizes, config.canary.repeats, config.canary.seconds)
        parts = _watch_parts(config, topology, fabric)
        close = opened.pop_all().close
    planner = _planner(config, fabric)
    jobs = partial(read_jobs, [path.absolute() for path in config.jobs])
    renewal = Renewal(RenewalParts(topology, tuple(config.collectives), planner, canary, publisher, jobs))
    return Watch(replace(parts, records=records, retuner=retuner, close=close), renewal)


def watch_folder(home: Home, name: str) -> Path:
    """Return the folder of the watch called `name`: its state, and what it goes on with."""
    return home.root / "watch" / name


def _retuner(config: WatchConfig, fabric: EmulatedFabric, home: Home, folder: Path) -> Retuner | None:
    """Return what launches campaigns, None where the file names no hours for them."""
    section = config.retune
    if not section.hours:
        return None
    campaigns = WatchCampaigns(config, fabric.name, home, folder)
    campaigns.check()
    jobs = [path.absolute() for path in config.jobs]
    options = RetuneOptions(section.window, section.tolerance, section.again, partial(busy_share, jobs, fabric.ranks))
    return Retuner(options, campaigns, folder / "retune.json")


def _planner(config: WatchConfig, fabric: EmulatedFabric) -> Planner:
    model = NetworkModel.of(config.alpha_us, 0, 0, fabric.link_mbps / 1000)
    return Planner(PlanRequest(tuple(config.collectives), tuple(sorted(config.sizes)), tuple(config.methods), model))


def _watch_parts(config: WatchConfig, topology: Topology, fabric: EmulatedFabric) -> WatchParts:
    prober = FabricProber(topology, fabric, ProbeOptions(config.probe.lost_s))
    monitors = _monitors(config, prober, _declared_rates(topology, fabric))
    train_bytes = config.probe.packets * prober.packet_bytes
    schedule = ProbeSchedule(monitors, config.probe.ping_s, config.probe.share, train_bytes, time.time())
    around = partial(_reroute, fabric, topology) if config.reroute else None
    return WatchParts(prober, monitors, schedule, config.probe.packets, around, config.plan_failures)


def _reroute(fabric: EmulatedFabric, whole: Topology, state: FabricState) -> None:
    remaining = parse_topology(state.spec(whole))
    numbers = {name: node for node, name in enumerate(whole.node_ids)}
    switches = [numbers[name] for name in remaining.node_ids[remaining.compute_count :]]
    reroute(fabric, whole, remaining, (*state.ranks(whole), *switches))


def _declared_rates(topology: Topology, fabric: EmulatedFabric) -> Mapping[Link, float]:
    """Return the bits per second of each link, parallel ones together."""
    plan = plan_fabric(topology, fabric.link_mbps, fabric.name)
    return {
        arc: float(rate)
        for cable in plan.cables
        for arc, rate in zip(cable.arcs, cable.bits_per_s, strict=True)
        if rate and max(arc) < topology.compute_count
    }


def _monitors(config: WatchConfig, prober: FabricProber, declared: Mapping[Link, float]) -> dict[Link, LinkMonitor]:
    pings_per_s = len(declared) / config.probe.ping_s
    train_bits = config.probe.packets * prober.packet_bytes * 8
    trains_per_s = sum(config.probe.share * rate / (2 * train_bits) for rate in declared.values())
    tests_per_s = pings_per_s * TESTS_PER_PING + trains_per_s * TESTS_PER_RATE
    options = MonitorOptions(threshold_for(tests_per_s, config.false_alarms_per_day))
    return {link: LinkMonitor(declared[link], options, time.time()) for link in prober.links}


def _receivers(config: WatchConfig, tracking: WatchTracking | None) -> dict[str, Receiver]:
    receivers: dict[str, Receiver] = {}
    if config.publish.webhook is not None:
        name = config.publish.secret_variable
        secret = os.environ.get(name)
        if not secret:
            raise InvalidInput("a webhook needs the key of its signatures", f"no {name}", f"set {name}")
        receivers["webhook"] = webhook(config.publish.webhook, secret.encode())
    if tracking is not None:
        receivers["mlflow"] = tracking.register
    return receivers
