"""From a state of the fabric to the table that jobs run: compared, published, taken back; and what others are told.

The file that jobs read comes first and alone decides what they run. What is published, and who has not heard of it,
also stands in a file of the watch, so that a watch that was killed at any moment goes on without publishing or telling
anything twice.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from chorale.job.table.layout import file_digest, parse_table
from chorale.synth.errors import ChoraleError, Unavailable
from chorale.synth.redaction import redacted
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.read_write import write_file
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.watch.canary import Canary, Snapshot, slowdowns
from chorale.tuner.watch.links import FabricState
from chorale.tuner.watch.replanning import Planner, TablePlan

FORMAT = "chorale-publications/1"
ALIAS = "published"
SIGNATURE_HEADER = "X-Chorale-Signature"
_NAME_TAG, _ID_TAG, _TABLE_TAG, _WHY_TAG = "chorale.watch", "chorale.publication", "chorale.table", "chorale.why"
_MOST_WAITING = 100
_WEBHOOK_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Publication:
    """A table that is published. facts: why, of which network, and how good it is; plain data"""

    digest: str
    data: bytes
    time_s: float
    facts: Mapping[str, Any]

    @property
    def id(self) -> str:
        """What tells it from every other publication, of the same table too."""
        return f"{self.time_s:.6f}-{self.digest[:16]}"

    def document(self) -> dict[str, Any]:
        """Return what receivers of messages are told."""
        return {"id": self.id, "table": self.digest, "time_s": self.time_s, **self.facts}

    def entry(self) -> dict[str, Any]:
        """Return what the record has of it."""
        return {"table": self.digest, "time_s": self.time_s, "facts": dict(self.facts)}


Receiver = Callable[[Publication], None]
"""Takes a publication; Unavailable if it cannot do so now. It may be given one again that it has taken."""


def webhook(url: str, secret: bytes) -> Receiver:
    """Return what posts each publication to `url` as JSON.

    The header X-Chorale-Signature is `sha256=` and the HMAC-SHA256 of the body with `secret`, in hexadecimal. A message
    whose answer was lost comes again, with the same `id`.
    """

    def post(publication: Publication) -> None:
        body = json.dumps(publication.document(), sort_keys=True).encode()
        headers = {"Content-Type": "application/json", SIGNATURE_HEADER: signature(body, secret)}
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - http and https only
        try:
            with urllib.request.urlopen(request, timeout=_WEBHOOK_LIMIT_S):  # noqa: S310
                return
        except (urllib.error.URLError, OSError) as error:
            raise Unavailable("the webhook must take what is published", redacted(str(error)), "see its log") from error

    return post


def signature(body: bytes, secret: bytes) -> str:
    """Return the value of the header that shows that `body` comes from who knows `secret`."""
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


@dataclass(slots=True)
class MlflowTables:
    """The model `name`-table in MLflow, and the run of a watch in which its files are. One thread.

    A watch that starts again goes on with the run that it had.
    """

    uri: str
    artifacts: Path
    name: str
    _store: MlflowStore | None = None
    _run: str = ""
    _versions: dict[str, ModelVersion] = field(default_factory=dict)

    def register(self, publication: Publication) -> None:
        """Make a publication a version with the alias `published`; one that is there already stays the only one.

        Unavailable while MLflow is away.
        """
        store = self._store or self._connected(publication.time_s)
        model = f"{self.name}-table"
        if publication.id not in self._versions:
            self._versions |= {version.tags.get(_ID_TAG, ""): version for version in store.versions(model)}
        if publication.id not in self._versions:
            why = str(publication.facts.get("why", ""))
            tags = {_ID_TAG: publication.id, _TABLE_TAG: publication.digest, _WHY_TAG: why}
            files = {"table": publication.data, "facts.json": json.dumps(publication.document()).encode()}
            version = store.register(model, {_NAME_TAG: self.name}, tags, self._run, files)
            self._versions[publication.id] = version
        store.set_alias(self._versions[publication.id], ALIAS)

    def _connected(self, now_s: float) -> MlflowStore:
        store = MlflowStore(self.uri, self.artifacts)
        experiment = store.experiment(f"{self.name}-watch")
        run = store.runs(experiment, _NAME_TAG, self.name, _NAME_TAG).get(self.name)
        tags = {_NAME_TAG: self.name}
        self._run = run.run_id if run else store.start_run(experiment, "watch", tags, int(now_s * 1000))
        self._store = store
        return store


class PublicationFiles:
    """The record of publications in a folder: which is present, which was before, who waits for which; and tables."""

    def __init__(self, folder: Path) -> None:
        """folder: of this watch alone; it must exist"""
        self._folder = folder
        self._record = folder / "publications.json"

    def write(self, document: Mapping[str, Any], tables: Mapping[str, bytes]) -> None:
        """Replace the record; keep the tables of these digests and no others."""
        for digest, data in tables.items():
            if not (self._folder / digest).exists():
                write_file(self._folder / digest, data)
        write_file(self._record, json.dumps({"format": FORMAT, **document}, indent=1).encode())
        for path in self._folder.iterdir():
            if len(path.name) == 64 and path.name not in tables:
                path.unlink()

    def read(self) -> dict[str, Any]:
        """Return the record, empty where there is none of this format."""
        try:
            document: dict[str, Any] = json.loads(self._record.read_bytes())
        except (OSError, ValueError):
            return {}
        return document if document.get("format") == FORMAT else {}

    def publication(self, entry: Mapping[str, Any] | None) -> Publication | None:
        """Return the publication of an entry of the record, None where its table is gone."""
        if entry is None:
            return None
        try:
            data = (self._folder / str(entry["table"])).read_bytes()
        except OSError:
            return None
        return Publication(str(entry["table"]), data, float(entry["time_s"]), dict(entry["facts"]))


@dataclass(slots=True)
class Publisher:
    """Writes the file of the present table, and hands publications to receivers in their order.

    One thread publishes, another one may deliver.
    """

    path: Path
    receivers: Mapping[str, Receiver]
    files: PublicationFiles
    present: Publication | None = None
    former: Publication | None = None
    _waiting: dict[str, deque[Publication]] = field(init=False)
    _failing: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._waiting = {name: deque(maxlen=_MOST_WAITING) for name in self.receivers}

    def resume(self) -> None:
        """Go on where a former watch ended, as far as the file still holds what it published last."""
        record, digest = self.files.read(), file_digest(self.path)
        begun, present = record.get("next"), record.get("present")
        if begun is not None and begun["table"] == digest:
            self.present, self.former = self.files.publication(begun), self.files.publication(present)
        elif present is not None and present["table"] == digest:
            self.present, self.former = self.files.publication(present), self.files.publication(record["former"])
        for entry in record.get("waiting", []):
            was_begun = begun is not None and (entry["table"], entry["time_s"]) == (begun["table"], begun["time_s"])
            publication = self.files.publication(entry)
            if was_begun and digest != entry["table"]:
                continue  # it was not published any more
            if publication is not None and entry["receiver"] in self.receivers:
                self._waiting[entry["receiver"]].append(publication)

    def publish(self, publication: Publication) -> None:
        """Replace the file. InvalidInput or Unavailable where that cannot be done: nothing is published then."""
        with self._lock:
            for queue in self._waiting.values():
                queue.append(publication)
            try:
                self._write(publication)
                write_file(self.path, publication.data)
            except Exception:
                for queue in self._waiting.values():
                    queue.pop()
                raise
            self.former, self.present = self.present, publication
            self._write(None)

    def deliver(self) -> list[tuple[str, str | None]]:
        """Hand on what waits; return the receivers that have begun to fail with why, and those that have ceased to."""
        changes = []
        for name in self.receivers:
            failure = self._deliver_to(name)
            if (failure is not None) != (name in self._failing):
                changes.append((name, failure))
                self._failing ^= {name}
        return changes

    def waiting(self) -> Mapping[str, int]:
        """Return how many publications each receiver has not heard of."""
        return {name: len(queue) for name, queue in self._waiting.items()}

    def _deliver_to(self, name: str) -> str | None:
        waiting = self._waiting[name]
        while waiting:
            publication = waiting[0]
            try:
                self.receivers[name](publication)
            except Unavailable as error:
                return str(error)
            with self._lock:
                if waiting and waiting[0] is publication:
                    waiting.popleft()
                self._write(None)
        return None

    def _write(self, begun: Publication | None) -> None:
        """Write the record; `begun` is about to replace the file."""
        waiting = [(name, each) for name, queue in self._waiting.items() for each in queue]
        named = {"next": begun, "present": self.present, "former": self.former}
        document = {name: None if each is None else each.entry() for name, each in named.items()}
        entries = [{"receiver": name, **each.entry()} for name, each in waiting]
        tables = {each.digest: each.data for each in (*named.values(), *(each for _, each in waiting)) if each}
        self.files.write({**document, "waiting": entries}, tables)


Event = dict[str, Any]


@dataclass(slots=True)
class Renewal:
    """The present table of a fabric, and how it is replaced. One thread at a time, but for `plan_ahead`.

    healthy: the fabric as declared; canary: None compares nothing; jobs: what they say of their calls
    is_held: nothing is published as long as it is true
    """

    healthy: Topology
    collectives: tuple[str, ...]
    planner: Planner
    canary: Canary | None
    publisher: Publisher
    jobs: Callable[[], Snapshot] = dict
    clock: Callable[[], float] = time.time
    present: TablePlan | None = None
    is_held: bool = False
    _former: TablePlan | None = None
    _said: tuple[Snapshot, Snapshot] = ({}, {})

    def resume(self) -> None:
        """Go on with what a former watch has published, if the file still holds it."""
        self.publisher.resume()
        self.present, self._former = _plan_of(self.publisher.present), _plan_of(self.publisher.former)

    def note_change(self) -> None:
        """Remember what jobs say now, as the fabric has just changed."""
        self._said = self.jobs(), {}

    def renew(self, state: FabricState, since_s: float, is_outdated: Callable[[], bool]) -> list[Event]:
        """Plan for a state, compare and publish. Never raises a ChoraleError.

        since_s: when the first sign of the state was seen; is_outdated: whether the fabric is another by now
        """
        events: list[Event] = []
        spec = state.spec(self.healthy)
        began_s = self.clock()
        try:
            was_ahead = self.planner.has(spec)
            plan = self.planner.plan(spec)
            facts = {"spec": spec, "state": str(state), "ahead": was_ahead, "seconds": plan.seconds}
            events.append(self._event("replan", **facts, costs=plan.costs))
            planned_s = self.clock()
            if not is_outdated():
                plan = self._compared(plan, events)
                stages = {"told": began_s - since_s, "planned": planned_s - began_s}
                self._publish(plan, state, since_s, stages | {"compared": self.clock() - planned_s}, events)
        except ChoraleError as error:
            events.append(self._event("replan", spec=spec, state=str(state), error=str(error)))
        return events

    def warm_up(self) -> None:
        """Have the processes for comparisons started, so that they are there when one is urgent."""
        if self.canary is not None and self.present is not None and self._is_whole(self.present):
            self.canary.warm_up(self.present.table, self.collectives)

    def plan_ahead(self, state: FabricState) -> list[Event]:
        """Plan for a state that may come; say if there is no plan for it."""
        try:
            self.planner.plan(state.spec(self.healthy))
        except ChoraleError as error:  # known now instead of then
            return [self._event("replan", state=str(state), ahead=True, error=str(error))]
        return []

    def judge(self) -> list[Event]:
        """Go back to the former table where jobs take longer with the present one."""
        worse = slowdowns(*self._said, self.jobs()) if self._former is not None and not self.is_held else []
        if not worse:
            return []
        size = max(worse, key=lambda each: each.ratio)
        return self.roll_back(
            f"jobs take {size.ratio:.2f} times as long for {size.collective} of {size.size_bytes} bytes"
        )

    def roll_back(self, why: str) -> list[Event]:
        """Publish the former table again; it has none itself then."""
        former, present = self._former, self.present
        if former is None or present is None:
            return [self._event("undelivered", why="there is no former table to go back to")]
        facts = {"why": why, "spec": former.spec, "costs": former.costs, "seconds": 0.0}
        try:
            self.publisher.publish(Publication(former.digest, former.data, self.clock(), facts))
        except ChoraleError as error:
            return [self._event("undelivered", why=f"the former table could not be published: {error}")]
        self._former, self.present = None, former
        self.planner.adopt(former)
        return [self._event("rollback", table=former.digest, instead_of=present.digest, why=why)]

    def _is_whole(self, plan: TablePlan) -> bool:
        return plan.table.ranks == self.healthy.compute_count

    def _compared(self, plan: TablePlan, events: list[Event]) -> TablePlan:
        """Return `plan`, with the present table's programs at the sizes at which it is slower.

        No job can run both if one is for fewer ranks than the other: these are not compared.
        """
        present = self.present
        if self.canary is None or present is None or present.digest == plan.digest:
            return plan
        if not (self._is_whole(present) and self._is_whole(plan)):
            return plan
        report = self.canary.compare(present.table, plan.table, self.collectives)
        rows = [
            {
                "collective": row.collective,
                "size_bytes": row.size_bytes,
                "ratio": row.ratio.median,
                "interval": [row.ratio.low, row.ratio.high],
                "slower": row.is_slower,
            }
            for row in report.rows
        ]
        events.append(self._event("canary", rows=rows, failures=list(report.failures)))
        sizes = [(row.collective, row.size_bytes) for row in report.slower]
        return self.planner.with_present(plan, present.table, sizes) if sizes else plan

    def _publish(
        self, plan: TablePlan, state: FabricState, since_s: float, stages: Mapping[str, float], events: list[Event]
    ) -> None:
        why = str(state)
        if self.present is not None and self.present.digest == plan.digest:
            self._said = self._said[0], self.jobs()
            return
        if self.is_held:
            events.append(self._event("held", table=plan.digest, why=why, spec=plan.spec))
            return
        now_s = self.clock()
        facts = {"why": why, "spec": plan.spec, "seconds": now_s - since_s, "ranks": state.ranks(self.healthy)}
        self.publisher.publish(Publication(plan.digest, plan.data, now_s, {**facts, "costs": plan.costs}))
        self._former, self.present = self.present, plan
        self._said = self._said[0], self.jobs()
        events.append(self._event("publish", table=plan.digest, **facts, stages=dict(stages)))

    def _event(self, name: str, **facts: Any) -> Event:
        return {"time_s": self.clock(), "event": name, **facts}


def _plan_of(publication: Publication | None) -> TablePlan | None:
    if publication is None:
        return None
    table, digest = parse_table(publication.data)
    spec, costs = str(publication.facts["spec"]), publication.facts["costs"]
    return TablePlan(spec, table, publication.data, digest, costs, 0.0)
