"""How the actors of a group tell one another where they are: through the key-value store of Ray's control service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import ray
from ray.experimental import internal_kv

from chorale.synth.errors import Unavailable

_POLL_S = 0.02


def store_exchange(group_name: str, rank: int, ranks: int, limit_s: float) -> Callable[[list[str]], list[list[str]]]:
    """Return an exchange of texts among the actors of a group, which each of them calls once.

    It raises Unavailable, with those that are missing, where not all have called it within `limit_s`.
    """
    job = ray.get_runtime_context().get_job_id()

    def key(number: int) -> bytes:
        return f"chorale/{job}/{group_name}/{number}".encode()

    def exchange(texts: list[str]) -> list[list[str]]:
        internal_kv._internal_kv_put(key(rank), json.dumps(texts).encode(), overwrite=True)
        deadline_s = time.monotonic() + limit_s
        found: dict[int, list[str]] = {}
        while len(found) < ranks:
            for number in set(range(ranks)) - found.keys():
                value = internal_kv._internal_kv_get(key(number))
                if value is not None:
                    found[number] = json.loads(value)
            if len(found) < ranks and time.monotonic() > deadline_s:
                missing = ", ".join(str(number) for number in range(ranks) if number not in found)
                rule = f"all actors must join the group within {limit_s:g} s"
                raise Unavailable(rule, f"none as rank {missing} of {group_name}", "start all of them at the same time")
            time.sleep(_POLL_S)
        return [found[number] for number in range(ranks)]

    return exchange


def forget(group_name: str, rank: int) -> None:
    """Remove what `rank` said, so that a later group of that name starts anew."""
    job = ray.get_runtime_context().get_job_id()
    internal_kv._internal_kv_del(f"chorale/{job}/{group_name}/{rank}".encode())
