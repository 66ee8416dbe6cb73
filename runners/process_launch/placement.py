"""Compare the hosts that ranks report with the hosts that were requested."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.process_launch.slurm import node_name


@dataclass(frozen=True, slots=True)
class RankHost:
    """The host that a rank reports: its main name, and all names and addresses except loopback addresses."""

    name: str
    aliases: frozenset[str]

    @staticmethod
    def of_words(words: Sequence[str]) -> RankHost:
        """Return the host with the names `words`; the first is its main name."""
        return RankHost(words[0], frozenset(words))

    def is_called(self, host: str) -> bool:
        """Return whether `host`, as a user wrote it, is this host; domains are ignored."""
        short = {name.partition(".")[0] for name in self.aliases if not name[:1].isdigit()} | self.aliases
        if host in self.aliases or host.partition(".")[0] in short or _is_loopback(host):
            return True
        try:
            return socket.gethostbyname(host) in self.aliases
        except OSError:
            return False


def this_host() -> RankHost:
    """Return this process's host: Slurm's name within a job, else its own."""
    name, addresses = socket.gethostname(), []
    with contextlib.suppress(OSError):
        addresses = socket.gethostbyname_ex(name)[2]
    return RankHost.of_words([node_name(), name, *addresses])


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def placement_fault(hosts: Sequence[str], per_host: int, ranks: Mapping[int, RankHost]) -> str | None:
    """Return in one line which rank is on the wrong host; None if no rank is.

    hosts:    the ranks' hosts as the user named them, `per_host` ranks on each; empty if only
              the number per host matters
    ranks:    the ranks' reports, as far as available
    """
    for rank, actual in sorted(ranks.items()):
        if hosts and not actual.is_called(hosts[rank // per_host]):
            asked = f"instead of {hosts[rank // per_host]}"
            return f"rank {rank} ran on {actual.name} {asked}: the launcher chose other hosts or another order"
        first = ranks.get(rank // per_host * per_host, actual)
        if first.name != actual.name:
            begun = f"{per_host} ranks were to share a host, but ranks {rank // per_host * per_host} and {rank} ran on"
            return f"{begun} {first.name} and {actual.name}"
    return None


def host_names(ranks: Mapping[int, RankHost]) -> str | None:
    """Return the names of the ranks' hosts in rank order, without consecutive duplicates; None if no host is known."""
    names = [ranks[rank].name for rank in sorted(ranks)]
    return ",".join(name for index, name in enumerate(names) if names[index - 1 : index] != [name]) or None
