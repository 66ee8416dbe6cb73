"""What the ranks of a group tell one another through torch's store before they are connected."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from chorale.synth.errors import Unavailable


class StoreExchange:
    """An exchange of texts among the ranks of a group, once, through `store`, which is the group's alone."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: timedelta) -> None:
        self._store, self._rank, self._ranks, self._timeout = store, rank, ranks, timeout
        self._has_spoken = False

    def __call__(self, texts: list[str]) -> list[list[str]]:
        """Return the texts of all ranks. Unavailable where one gave up, with its reason."""
        self._set({"texts": texts})
        keys = [self._key(rank) for rank in range(self._ranks)]
        self._wait(keys)
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

    def _wait(self, keys: list[str]) -> None:
        try:
            self._store.wait(keys, self._timeout)
        except RuntimeError as error:
            missing = ", ".join(str(rank) for rank, key in enumerate(keys) if not self._store.check([key]))
            rule = f"all ranks of a group must create it within {self._timeout.total_seconds()} s"
            raise Unavailable(rule, f"no word from ranks {missing} of the group", "see what these do") from error

    def _set(self, value: dict[str, Any]) -> None:
        self._has_spoken = True
        self._store.set(self._key(self._rank), json.dumps(value))

    @staticmethod
    def _key(rank: int) -> str:
        return f"chorale/{rank}"
