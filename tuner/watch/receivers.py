"""Who hears of published tables besides the file: a webhook with signed messages, and MLflow's registry and runs."""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale.synth.errors import Unavailable
from chorale.synth.redaction import redacted
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.mlflow_values import MetricPoint, ModelVersion

ALIAS = "published"
SIGNATURE_HEADER = "X-Chorale-Signature"
_NAME_TAG, _ID_TAG, _TABLE_TAG, _WHY_TAG = "chorale.watch", "chorale.publication", "chorale.table", "chorale.why"
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
class WatchTracking:
    """The run of a watch in MLflow, and the model `name`-table. One thread; Unavailable while MLflow is away.

    A watch that starts again goes on with the run that it had.
    """

    uri: str
    artifacts: Path
    name: str
    _store: MlflowStore | None = None
    _run: str = ""
    _versions: dict[str, ModelVersion] = field(default_factory=dict)

    def register(self, publication: Publication) -> None:
        """Make a publication a version with the alias `published`; one that is there already stays the only one."""
        store = self._connected(publication.time_s)
        if publication.id not in self._versions:
            for version in store.versions(self._model):
                self._versions[version.tags.get(_ID_TAG, "")] = version
        version = self._versions.get(publication.id) or self._new_version(store, publication)
        store.set_alias(version, ALIAS)

    def log(self, points: Sequence[MetricPoint]) -> None:
        """Add points to the history of the links."""
        if points:
            self._connected(points[0].when_ms / 1000).log(self._run, points)

    def _connected(self, now_s: float) -> MlflowStore:
        if self._store is None:
            store = MlflowStore(self.uri, self.artifacts)
            experiment = store.experiment(f"{self.name}-watch")
            runs = store.runs(experiment, _NAME_TAG, self.name, _NAME_TAG)
            tags = {_NAME_TAG: self.name}
            run = runs.get(self.name)
            self._run = run.run_id if run else store.start_run(experiment, "watch", tags, int(now_s * 1000))
            self._store = store
        return self._store

    @property
    def _model(self) -> str:
        return f"{self.name}-table"

    def _new_version(self, store: MlflowStore, publication: Publication) -> ModelVersion:
        why = str(publication.facts.get("why", ""))
        tags = {_ID_TAG: publication.id, _TABLE_TAG: publication.digest, _WHY_TAG: why}
        files = {"table": publication.data, "facts.json": json.dumps(publication.document()).encode()}
        version = store.register(self._model, {_NAME_TAG: self.name}, tags, self._run, files)
        self._versions[publication.id] = version
        return version
