"""Makes a watch of its file: the fabric that is up, its prober, planner, canary and publisher."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from chorale.runners.api.probes import Link
from chorale.runners.api.registry import create_runner
from chorale.runners.fabric.detours import reroute
from chorale.runners.fabric.fabric import EmulatedFabric, find_fabric
from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.probing import FabricProber, ProbeOptions
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign_file import read_document
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.watch.canary import Canary
from chorale.tuner.watch.config import WatchConfig
from chorale.tuner.watch.evidence import threshold_for
from chorale.tuner.watch.job_times import read_jobs
from chorale.tuner.watch.link_monitor import TESTS_PER_PING, TESTS_PER_RATE, LinkMonitor, MonitorOptions
from chorale.tuner.watch.probe_schedule import ProbeSchedule
from chorale.tuner.watch.publishing import Publisher, Receiver, mlflow_registry, webhook
from chorale.tuner.watch.replanning import Planner, PlanRequest
from chorale.tuner.watch.watcher import Watch, WatchParts


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


def open_watch(config: WatchConfig) -> Watch:
    """Return the watch of `config`, whose fabric must be up. Unavailable where it is not, or cannot be probed."""
    topology = load_topology(config.topology)
    fabric = find_fabric(topology.id, config.fabric)
    if fabric is None:
        way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50"
        raise Unavailable("a watch needs its fabric", f"none is up for {config.topology}", way_out)
    if not config.table.absolute().parent.is_dir():
        raise InvalidInput("the folder of the table must exist", config.table.absolute().parent, "create it")
    prober = FabricProber(topology, fabric, ProbeOptions(config.probe.lost_s))
    declared = _declared_rates(topology, fabric)
    monitors = _monitors(config, prober, declared)
    train_bytes = config.probe.packets * prober.packet_bytes
    schedule = ProbeSchedule(monitors, config.probe.ping_s, config.probe.share, train_bytes, time.time())
    home = Home.from_environment()
    model = NetworkModel.of(config.alpha_us, 0, 0, fabric.link_mbps / 1000)
    sizes, compares = tuple(sorted(config.sizes)), bool(config.canary.seconds)
    request = PlanRequest(tuple(config.collectives), sizes, tuple(config.methods), model)
    runner = create_runner("local", {"fabric": fabric.name, "where": "fabric"}, home.root)
    around = (lambda remaining: reroute(fabric, topology, remaining)) if config.reroute else None
    return Watch(
        WatchParts(
            topology,
            tuple(config.collectives),
            prober,
            monitors,
            schedule,
            config.probe.packets,
            Planner(request),
            Canary(topology, runner.submit, sizes, config.canary.repeats, config.canary.seconds) if compares else None,
            Publisher(config.table.absolute(), _receivers(config, home)),
            around,
            config.plan_failures,
            jobs=partial(read_jobs, [path.absolute() for path in config.jobs]),
            close=runner.close,
        )
    )


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
    return {link: LinkMonitor(declared[link], options) for link in prober.links}


def _receivers(config: WatchConfig, home: Home) -> dict[str, Receiver]:
    receivers: dict[str, Receiver] = {}
    if config.publish.webhook is not None:
        name = config.publish.secret_variable
        secret = os.environ.get(name)
        if not secret:
            raise InvalidInput("a webhook needs the key of its signatures", f"no {name}", f"set {name}")
        receivers["webhook"] = webhook(config.publish.webhook, secret.encode())
    if config.publish.mlflow:
        receivers["mlflow"] = mlflow_registry(home.mlflow_uri, home.artifacts, config.name)
    return receivers
