"""Runs the main loop of `chorale watch`, which detects changes in a fabric and publishes new tables.

`chorale watch` replaces the file `state.json` (format `chorale-watch/1`) every second. The file contains the links with
their states and rates, the current table, and past events. While a file `hold` exists in the same folder, no table is
published. If a file `roll-back` appears, the command publishes the previous table, then removes the file.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from chorale.runners.api.link_reports import Link, LinkReport, LinkSource, NoReports, steady_unix_s
from chorale.runners.api.registry import create_runner
from chorale.runners.fabric.fabric import find_fabric, reroute
from chorale.runners.fabric.link_states import KernelLinks
from chorale.runners.measurement.machine import acquire_lock
from chorale.synth.collective import parse_collective
from chorale.synth.errors import ChoraleError, InvalidInput, Unavailable
from chorale.synth.simulation.simulate import NetworkModel
from chorale.tuner.config.campaign_file import read_document
from chorale.tuner.config.values import Sizes, Strict, validated
from chorale.tuner.files.home import Home, write_file
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.watch.canary import Canary, Event, Publisher, Renewal, read_jobs
from chorale.tuner.watch.links import FabricState, LinkTracker, ListedLinks, single_losses
from chorale.tuner.watch.replanning import Planner, PlanRequest

FORMAT = "chorale-watch/1"
STATE, HOLD, ROLL_BACK = "state.json", "hold", "roll-back"
_SETTLE_S = 0.6
"""Seconds to wait after a link has changed, because the other direction of the cable or other links of the node may
change next."""
_WAIT_S, _JUDGE_S, _RECORD_S, _WARN_S = 0.1, 2.0, 1.0, 300.0
"""Seconds to wait for reports about links, and seconds between evaluations of jobs' reports, between writes of the
state file, and between warnings."""
_PATIENCE_S = 10.0
"""Seconds to wait for the previous watcher to exit, because a killed process may take a moment to end."""


class WatchRecords:
    """Reads and writes a watcher's files in its folder, which must exist. Not thread-safe."""

    def __init__(self, folder: Path, name: str, unix_s: Callable[[], float] = time.time) -> None:
        self._folder, self._name, self._unix_s = folder, name, unix_s
        self._events: deque[Event] = deque(maxlen=200)
        self._reports: dict[Link, LinkReport] = {}
        self._carried_bits_per_s: dict[Link, float] = {}

    def resume(self) -> None:
        """Load the events of the previous watcher. A file that is missing, damaged or in another format is ignored."""
        try:
            document = json.loads((self._folder / STATE).read_bytes())
            self._events.extend(document["events"] if document["format"] == FORMAT else ())
        except (OSError, ValueError, KeyError, TypeError):
            return

    def note(self, event: Event) -> None:
        """Store an event for the state file, which the next `write` writes."""
        self._events.append(event)

    def note_carried(self, report: LinkReport) -> None:
        """Update the rate of a link's traffic, computed from byte counts that were reported at least a second apart."""
        before = self._reports.setdefault(report.link, report)
        passed_s = report.time_s - before.time_s
        if passed_s >= 1.0:
            if report.carried_bytes is not None and before.carried_bytes is not None:
                carried_bits = 8 * max(report.carried_bytes - before.carried_bytes, 0)
                self._carried_bits_per_s[report.link] = carried_bits / passed_s
            self._reports[report.link] = report

    def write(self, state: FabricState | None, renewal: Renewal, trackers: Mapping[Link, LinkTracker]) -> None:
        """Replace the state file. Errors such as a full disk are ignored; the next call tries again."""
        present = renewal.publisher.present
        table = None
        if present is not None:
            table = {"digest": present.plan.digest, "time_s": present.time_s, **present.facts}
        document = {
            "format": FORMAT,
            "name": self._name,
            "topology": renewal.healthy.spec,
            "time_s": self._unix_s(),
            "state": None if state is None else str(state),
            "is_held": renewal.is_held,
            "table": table,
            "links": [self._row(link, tracker) for link, tracker in trackers.items()],
            "events": list(self._events),
        }
        try:
            write_file(self._folder / STATE, json.dumps(document).encode())
        except (Unavailable, InvalidInput):
            return

    def is_held(self) -> bool:
        return (self._folder / HOLD).exists()

    def take_roll_back(self) -> bool:
        try:
            (self._folder / ROLL_BACK).unlink()
        except OSError:
            return False
        return True

    def _row(self, link: Link, tracker: LinkTracker) -> dict[str, Any]:
        return {
            "link": f"{link[0]}>{link[1]}",
            "state": tracker.state.value,
            "since_s": tracker.since_s,
            "declared_bits_per_s": tracker.declared_bits_per_s,
            "in_force_bits_per_s": tracker.in_force_bits_per_s,
            "carried_bits_per_s": self._carried_bits_per_s.get(link),
        }


@dataclass(slots=True)
class Watch:
    """Watches one fabric and keeps its tuning table up to date; call it from one thread.

    source:   source of reports about the links
    renewal:  plans and publishes the tables
    records:  the watcher's files, with its state for other programs and with what it needs after a restart
    reroute:  function that reroutes packets around dead links and lost ranks; None if this is not needed
    trackers: state of each link
    plans_failures: whether tables for single failures are planned in advance
    waits:    whether to warn and go on waiting while the source has no reports, instead of raising NoReports
    pool:     threads that renew the table and plan ahead
    close:    function that `run` calls before it ends
    """

    source: LinkSource
    renewal: Renewal
    records: WatchRecords
    reroute: Callable[[FabricState], None] | None = None
    plans_failures: bool = True
    waits: bool = True
    clock: Callable[[], float] = steady_unix_s
    close: Callable[[], None] = lambda: None
    pool: Executor = field(default_factory=lambda: ThreadPoolExecutor(3, thread_name_prefix="watch"))
    trackers: dict[Link, LinkTracker] = field(init=False)
    _has_reports: bool = False  # no table is planned before the first report
    _state: FabricState | None = None
    _changed_s: float | None = None  # time of the last change for which there is no plan yet
    _since_s: float | None = None  # time of the first such change
    _pending: tuple[FabricState, float] | None = None
    _under_way: dict[str, Future[list[Event]]] = field(default_factory=dict)
    _ahead: Iterator[FabricState] = field(default_factory=lambda: iter(()))
    _last_s: dict[str, float] = field(default_factory=dict)  # name of a periodic task -> time at which it was last done

    def __post_init__(self) -> None:
        now_s = self.clock()
        self.trackers = {
            link: LinkTracker(rate, now_s) for link, rate in sorted(self.source.declared_bits_per_s.items())
        }

    def run(self, is_over: Callable[[], bool]) -> Iterator[Event]:
        """Watch until `is_over` returns true, and yield events. Raises Unavailable if the source of reports ends."""
        if self.plans_failures:
            self._ahead = single_losses(self.trackers)
        # Continue from the previous watcher's files if there are any, otherwise start from the beginning
        self.renewal.publisher.resume()
        self._since_s = self._changed_s = self.clock()  # so the first reports determine the state to plan for
        if (present := self.renewal.present) is not None:
            self.records.resume()
            why = "the watch was started again"
            yield self._recorded(self._event("resume", table=present.digest, spec=present.spec, why=why))
        try:
            while not is_over():
                yield from map(self._recorded, self.step())
        finally:
            self.pool.shutdown(wait=True, cancel_futures=True)
            self._write()
            self.source.close()
            self.close()

    @property
    def is_current(self) -> bool:
        """Return whether a table is published and all known changes of the fabric have been handled."""
        is_busy = self._changed_s is not None or self._pending is not None or "renew" in self._under_way
        return self._state is not None and not is_busy and self.renewal.present is not None

    def step(self) -> Iterator[Event]:
        """Do the work that is due, then wait briefly for reports."""
        try:
            for report in self.source.reports(_WAIT_S):
                self._has_reports = True
                yield from self._on_report(report)
        except NoReports as error:  # keep the known states
            if not self.waits:
                raise
            if self._is_due("warning", _WARN_S, self.clock()):
                yield self._event("warning", why=str(error))
        for name, future in list(self._under_way.items()):
            if future.done():
                del self._under_way[name]
                yield from future.result()
        now_s = self.clock()
        if self._has_reports and self._changed_s is not None and now_s >= self._changed_s + _SETTLE_S:
            yield from self._on_settled(FabricState.of(self.trackers), self._since_s or now_s)
        self._begin(now_s)
        if self._is_due("record", _RECORD_S, now_s):
            self._write()
            # Carry out requests of users to hold or release publications or to roll back
            was_held, self.renewal.is_held = self.renewal.is_held, self.records.is_held()
            if was_held != self.renewal.is_held:
                yield self._event("hold" if self.renewal.is_held else "release", why="by request")
                if not self.renewal.is_held and self._state is not None:  # plan again for the current state
                    self._pending = self._pending or (self._state, self.clock())
            if "renew" not in self._under_way and self.records.take_roll_back():
                yield from self.renewal.roll_back("by request")

    def _on_report(self, report: LinkReport) -> Iterator[Event]:
        tracker = self.trackers.get(report.link)
        if tracker is None:
            return
        self.records.note_carried(report)
        change = tracker.report(report.time_s, report.rate_bits_per_s)
        if change is not None:
            self._changed_s = self.clock()
            self._since_s = min(self._since_s or report.time_s, report.time_s)
            states = {"from": change[0].value, "to": change[1].value, "rate": report.rate_bits_per_s or None}
            yield {"time_s": report.time_s, "event": "state", "link": f"{report.link[0]}>{report.link[1]}", **states}

    def _on_settled(self, state: FabricState, since_s: float) -> Iterator[Event]:
        """Handle a new state: reroute around dead links immediately, and plan as soon as earlier work is done."""
        self._changed_s = self._since_s = None
        if state == self._state:
            return
        self._state = state
        self.renewal.note_change()
        if self.reroute is not None:
            try:
                self.reroute(state)
            except ChoraleError as error:
                yield self._event("undelivered", why=f"no routes around {state}: {error}")
        self._pending = state, since_s if self._pending is None else min(since_s, self._pending[1])

    def _begin(self, now_s: float) -> None:
        """Start the background tasks that are due: renewing the table or, if that is not needed, judging it.

        Only one of the two runs at a time. While neither of them runs, the next single failure is planned for.
        """
        renewal = self.renewal
        if "renew" not in self._under_way and self._pending is not None:
            (state, since_s), self._pending = self._pending, None
            work = self.pool.submit(renewal.renew, state, since_s, lambda: self._pending is not None)
            self._under_way["renew"] = work
        elif "renew" not in self._under_way and self._is_due("judge", _JUDGE_S, now_s):
            self._under_way["renew"] = self.pool.submit(renewal.judge)
        if not self._under_way.keys() & {"renew", "plan"} and (ahead := next(self._ahead, None)) is not None:
            self._under_way["plan"] = self.pool.submit(renewal.plan_ahead, ahead)

    def _is_due(self, name: str, period_s: float, now_s: float) -> bool:
        """Return whether `period_s` seconds have passed since task `name` was last due; if so, mark it as done now."""
        if now_s <= self._last_s.get(name, 0.0) + period_s:
            return False
        self._last_s[name] = now_s
        return True

    def _write(self) -> None:
        self.records.write(self._state, self.renewal, self.trackers)

    def _recorded(self, event: Event) -> Event:
        self.records.note(event)
        self._write()
        return event

    def _event(self, name: str, **facts: Any) -> Event:
        return {"time_s": self.clock(), "event": name, **facts}


class CanarySection(Strict):
    """Settings for comparing a new table with the current one before it is published."""

    seconds: float = Field(default=10.0, ge=0, le=600)
    """Time limit for all comparisons together, in seconds; 0: no comparisons."""
    repeats: int = Field(default=6, ge=6, le=100)
    """Number of measured repetitions for each program and size."""


class WatchConfig(Strict):
    """The configuration file of `chorale watch`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Name of the watched fabric."""
    topology: str
    """Topology spec of the healthy fabric."""
    fabric: str | None = None
    """Name of the emulated fabric; default: the fabric that is up."""
    links: Path | None = None
    """Real clusters: file in which monitoring lists faulty links, one per line: 0-1 (down) or 0-1 40 (Gbit/s)."""
    link_gbps: float = Field(default=100.0, gt=0)
    """With `links`: rate of links of capacity 1, in Gbit/s."""
    table: Path
    """File of the published tuning table, which jobs name in CHORALE_TABLE."""
    collectives: list[str] = Field(default=["allreduce"], min_length=1)
    """Collectives for which the table has programs."""
    sizes: Sizes = Field(default=[65536, 1048576])
    """Sizes at which methods are chosen and tables compared."""
    methods: list[str] = Field(default=["bfb", "forest"], min_length=1)
    """Methods that compete at each size."""
    alpha_us: float = Field(default=100.0, ge=0)
    """Latency per step in predictions, in microseconds."""
    reroute: bool = True
    """Whether an emulated fabric reroutes data around dead links."""
    plan_failures: bool = True
    """Whether tables for single failures are planned in advance."""
    look_s: float = Field(default=0.25, ge=0.01, le=60)
    """Seconds between two checks of the links."""
    canary: CanarySection = CanarySection()
    jobs: list[Path] = Field(default=[])
    """Status files of jobs, as named in CHORALE_STATUS."""

    @field_validator("collectives")
    @classmethod
    def _are_collectives(cls, names: list[str]) -> list[str]:
        return [parse_collective(name).name.value for name in names]


def read_watch_config(path: Path) -> WatchConfig:
    """Read the file at `path`. Raises InvalidInput with the first wrong key, its value and a remedy."""
    rule = f"{path} must match `chorale watch --schema`"
    return validated(WatchConfig, read_document(str(path), "a file for `chorale watch`"), rule, "repair this key")


def watch_folder(home: Home, name: str) -> Path:
    """Return the path of the folder for the watcher `name`: its state, and the files that it needs after a restart."""
    return home.root / "watch" / name


def open_watch(config: WatchConfig, waits: bool = True) -> Watch:
    """Create the watcher for `config`, with `waits` as in `Watch`. Raises Unavailable if the fabric is not up."""
    topology = load_topology(config.topology)
    fabric = None if config.links is not None else find_fabric(topology.id, config.fabric)
    if fabric is None and config.links is None:
        way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50"
        way_out += "; on a cluster, name a file with its faulty links: `links: faulty.txt`"
        raise Unavailable("the fabric to watch is not up: {}", config.topology, way_out)
    table = config.table.absolute()
    if not table.parent.is_dir():
        raise InvalidInput("the folder of the table does not exist: {}", table.parent, "create it")
    home = Home.from_environment()
    folder = home.create(watch_folder(home, config.name))
    publisher = Publisher(table, folder)
    sizes, collectives = tuple(sorted(config.sizes)), tuple(config.collectives)
    model = NetworkModel.of(config.alpha_us, 0, 0, config.link_gbps if fabric is None else fabric.link_mbps / 1000)
    planner = Planner(PlanRequest(collectives, sizes, tuple(config.methods), model))
    jobs = partial(read_jobs, [path.absolute() for path in config.jobs])
    rule, way_out = "only one watch can run under a name", "end the other watch first, or choose another name"
    with ExitStack() as opened:
        lock = acquire_lock(folder / "lock", _PATIENCE_S, Unavailable(rule, f"{config.name} is running", way_out))
        opened.callback(lock.release)
        canary = None
        if config.canary.seconds and fabric is not None:
            runner = create_runner("local", {"fabric": fabric.name, "where": "fabric"}, home.root)
            opened.callback(runner.close)
            canary = Canary(topology, runner.submit, sizes, config.canary.repeats, config.canary.seconds)
        source: LinkSource
        if fabric is not None:
            source = KernelLinks(topology, fabric, config.look_s)
        else:
            assert config.links is not None
            source = ListedLinks(topology, config.links.absolute(), 8 * model.unit_bytes_per_s(topology))
        close = opened.pop_all().close

    def around(state: FabricState) -> None:
        remaining = load_topology(state.spec(topology))
        numbers = {name: node for node, name in enumerate(topology.node_ids)}
        switches = [numbers[name] for name in remaining.node_ids[remaining.compute_count :]]
        assert fabric is not None
        reroute(fabric, topology, remaining, (*state.ranks(topology), *switches))

    renewal = Renewal(topology, collectives, planner, canary, publisher, jobs)
    records, reroutes = WatchRecords(folder, config.name), config.reroute and fabric is not None
    return Watch(source, renewal, records, around if reroutes else None, config.plan_failures, waits, close=close)
