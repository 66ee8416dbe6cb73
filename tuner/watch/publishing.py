"""Publication of a table: the file that jobs read, then a version in MLflow's registry and a signed message.

The file comes first and alone decides what jobs run. What else fails is tried again with the next publication, and
whenever it is asked for.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale.synth.errors import Unavailable
from chorale.synth.redaction import redacted
from chorale.tuner.files.read_write import write_file
from chorale.tuner.tracking.mlflow_store import MlflowStore

ALIAS = "published"
SIGNATURE_HEADER = "X-Chorale-Signature"
_WEBHOOK_LIMIT_S = 5.0
_MOST_WAITING = 100

_log = logging.getLogger("chorale.watch")


@dataclass(frozen=True, slots=True)
class Publication:
    """A table that is published. facts: why, of which network, and how good it is; plain data"""

    digest: str
    data: bytes
    time_s: float
    facts: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """Return what receivers of messages are told."""
        return {"table": self.digest, "time_s": self.time_s, **self.facts}


Receiver = Callable[[Publication], None]
"""Takes a publication; Unavailable if it cannot do so now."""


@dataclass(slots=True)
class Publisher:
    """Writes the file of the present table, and hands publications to receivers in their order."""

    path: Path
    receivers: Mapping[str, Receiver] = field(default_factory=dict)
    _waiting: dict[str, deque[Publication]] = field(default_factory=dict)

    def publish(self, publication: Publication) -> None:
        """Replace the file. InvalidInput or Unavailable where that cannot be done: nothing is published then."""
        write_file(self.path, publication.data)
        for name in self.receivers:
            self._waiting.setdefault(name, deque(maxlen=_MOST_WAITING)).append(publication)

    def deliver(self) -> list[str]:
        """Hand on what waits; return a line for each receiver that could not take it."""
        failures = []
        for name, waiting in self._waiting.items():
            while waiting:
                try:
                    self.receivers[name](waiting[0])
                except Unavailable as error:
                    failures.append(f"{name}: {error}")
                    break
                waiting.popleft()
        return failures


def webhook(url: str, secret: bytes) -> Receiver:
    """Return what posts each publication to `url` as JSON.

    The header X-Chorale-Signature is `sha256=` and the HMAC-SHA256 of the body with `secret`, in hexadecimal.
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


def mlflow_registry(uri: str, artifacts: Path, name: str) -> Receiver:
    """Return what registers each publication as a version of the model `name`-table, with the alias `published`."""
    run: dict[str, str] = {}

    def register(publication: Publication) -> None:
        store = MlflowStore(uri, artifacts)
        now_ms = int(publication.time_s * 1000)
        if "id" not in run:
            experiment = store.experiment(f"{name}-watch")
            run["id"] = store.start_run(experiment, "watch", {"chorale.watch": name}, now_ms)
        tags = {"chorale.table": publication.digest, "chorale.why": str(publication.facts.get("why", ""))}
        files = {"table": publication.data, "facts.json": json.dumps(publication.document()).encode()}
        version = store.register(f"{name}-table", {"chorale.watch": name}, tags, run["id"], files)
        store.set_alias(version, ALIAS)

    return register
