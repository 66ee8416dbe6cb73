"""What the ranks of a group tell one another through torch's store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any

from chorale.synth.errors import Unavailable

_POLL_S = 0.02


def wait_for_keys(
    store: Any, keys: Sequence[str], limit_s: float, is_stopped: Callable[[], bool] = lambda: False
) -> list[str]:
    """Return the keys that `store` still lacks after `limit_s` or when `is_stopped`, none as soon as all are there.

    It asks again and again: a client of torch's store that waits lets no other thread of its process ask.
    """
    deadline_s = monotonic() + limit_s
    while missing := [key for key in keys if not store.check([key])]:
        if monotonic() > deadline_s or is_stopped():
            return missing
        sleep(_POLL_S)
    return []


class StoreExchange:
    """An exchange of texts among the ranks of a group, once, through `store`, which is the group's alone."""

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: int,
        limit_s: float,
        name: str = "chorale",
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """name: of this exchange, where the store serves several; is_stopped: whether to wait no longer"""
        self._store, self._rank, self._ranks, self._limit_s = store, rank, ranks, limit_s
        self._name, self._is_stopped = name, is_stopped
        self._has_spoken = False

    def __call__(self, texts: list[str]) -> list[list[str]]:
        """Return the texts of all ranks. Unavailable where one gave up, with its reason."""
        self._set({"texts": texts})
        keys = [self._key(rank) for rank in range(self._ranks)]
        if missing := wait_for_keys(self._store, keys, self._limit_s, self._is_stopped):
            ranks = ", ".join(key.rsplit("/", 1)[1] for key in missing)
            rule = f"all ranks of a group must take part within {self._limit_s} s"
            raise Unavailable(rule, f"no word from ranks {ranks} of the group", "see what these do")
        values = [json.loads(self._store.get(key)) for key in keys]
        errors = [
            f"rank {rank} of the group: {value['error']}" for rank, value in enumerate(values) if "error" in value
        ]
        if errors:
            raise Unavailable("all ranks must be able to run programs", "; ".join(errors), "see what these ranks say")
        return [value["texts"] for value in values]

    def give_up(self, reason: str) -> None:
        """Tell the others, who wait for this rank or will do so, that it takes no part; too late after the exchange."""
        if not self._has_spoken:
            self._set({"error": reason})

    def _set(self, value: dict[str, Any]) -> None:
        self._has_spoken = True
        self._store.set(self._key(self._rank), json.dumps(value))

    def _key(self, rank: int) -> str:
        return f"{self._name}/{rank}"
