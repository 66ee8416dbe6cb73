"""Finds the ranks to which each token of a mixture-of-experts layer must be sent."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.matrix import MAX_AMOUNT, TrafficMatrix, traffic_matrix

Numbers = NDArray[np.int64]

MAX_TOKENS = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class TokenRouting:
    """Shards of tokens: `amount[i]` goes from rank `source[i]` to each of `targets[offsets[i]:offsets[i + 1]]`.

    source, targets: int64, ranks. If a source is one of its targets, that copy stays on the rank and uses no link.
    amount:          int64, size of each shard in bytes or any other unit
    """

    name: str
    ranks: int
    source: Numbers
    offsets: Numbers
    targets: Numbers
    amount: Numbers

    @property
    def shard(self) -> Numbers:
        """int64 per entry of `targets`: the shard to which the entry belongs."""
        return np.repeat(np.arange(len(self.source)), np.diff(self.offsets))

    def members(self) -> list[list[int]]:
        """Return the source of each shard, followed by its targets."""
        parts = np.split(self.targets, self.offsets[1:-1])
        return [[source, *part.tolist()] for source, part in zip(self.source.tolist(), parts, strict=True)]

    def without_copies(self) -> TrafficMatrix:
        """Return the amounts between all ranks if sources send each target a separate copy, as in an all-to-all."""
        amounts = np.zeros((self.ranks, self.ranks), dtype=np.int64)
        np.add.at(amounts, (self.source[self.shard], self.targets), self.amount[self.shard])
        return traffic_matrix(self.name, amounts)


class TokenBatch(NamedTuple):
    """Tokens of a mixture-of-experts layer, and the placement of their experts.

    experts:   int[tokens, k], the experts of each token; -1 for none
    sources:   int[tokens], the rank on which each token starts
    placement: int[experts, replicas], the ranks with a replica of each expert; -1 for none. A token goes to the replica
               on its own rank or, if there is none, to a replica on a rank that it visits for another expert. If both
               are missing, tokens are assigned to all replicas in turn.
    token_bytes: size of a token, in bytes or any other unit
    """

    name: str
    experts: Numbers
    sources: Numbers
    placement: Numbers
    token_bytes: int = 1


def route_tokens(batch: TokenBatch, ranks: int) -> TokenRouting:
    """Return the routing of all tokens. Tokens with the same source and targets form one shard. O(tokens * ranks / 64).

    Raises:
        InvalidInput: if a rank or an expert does not exist.
    """
    name, experts, sources, placement, token_bytes = batch
    _require_between("the expert of a token", experts, -1, len(placement) - 1)
    _require_between("the rank of a token", sources, 0, ranks - 1)
    _require_between("the rank of an expert", placement, -1, ranks - 1)
    if (placement < 0).all(axis=1).any():
        raise InvalidInput("an expert is on no rank", "", "add its rank to the placement")
    if not len(experts) <= MAX_TOKENS or len(sources) != len(experts):
        rule = f"a routing must have at most {MAX_TOKENS} tokens, each with its rank"
        raise InvalidInput(rule, f"{len(experts)} tokens and {len(sources)} ranks", "route fewer tokens at a time")
    if not 1 <= token_bytes <= MAX_AMOUNT // max(len(experts), 1):
        raise InvalidInput("the bytes of all tokens must be 1 to 2^40", token_bytes, "use a larger unit")
    goes = np.zeros((len(experts), ranks), dtype=np.bool_)
    for column in experts.T:
        used = np.flatnonzero(column >= 0)
        goes[used, _nearest(placement[column[used]], sources[used], goes[used])] = True
    goes[np.arange(len(goes)), sources] &= goes.sum(axis=1) > 1  # a token that stays at its rank needs no link
    key = np.column_stack([sources.astype(">u4").view(np.uint8).reshape(-1, 4), np.packbits(goes, axis=1)])
    away = np.flatnonzero(goes.any(axis=1))
    _, first, count = np.unique(key[away], axis=0, return_index=True, return_counts=True)
    chosen = away[first]
    offsets = np.concatenate([[0], np.cumsum(goes[chosen].sum(axis=1))])
    return TokenRouting(name, ranks, sources[chosen], offsets, np.nonzero(goes[chosen])[1], count * token_bytes)


def _require_between(what: str, numbers: NDArray[np.integer], least: int, most: int) -> None:
    wrong = numbers[(numbers < least) | (numbers > most)]
    if len(wrong):
        raise InvalidInput(f"{what} must be {least} to {most}", int(wrong[0]), "check the routing and the placement")


def _nearest(hosts: Numbers, sources: Numbers, goes: NDArray[np.bool_]) -> Numbers:
    """Choose one of `hosts` for each row: the source if possible, else a rank marked in `goes`, else hosts in turn."""
    row = np.arange(len(hosts))
    some = (hosts >= 0).sum(axis=1)
    score = np.where(hosts < 0, 9, np.where(hosts == sources[:, None], 0, np.where(goes[row[:, None], hosts], 1, 2)))
    turn = (np.arange(hosts.shape[1]) - row[:, None]) % np.maximum(some, 1)[:, None]
    return np.asarray(hosts[row, np.lexsort((turn, score), axis=1)[:, 0]])
