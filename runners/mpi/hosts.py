"""The hosts of an MPI job: named by the user or the scheduler's job, for the launcher and for the check afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chorale.runners.process_launch.slurm import SlurmAllocation, in_slurm_job
from chorale.synth.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class RankHosts:
    """Hosts as an mpiexec takes them, and the host of each rank where that is determined.

    names:    a comma list, each with `:COUNT` where it has several ranks, or @FILE with one on each line; None for what
              the launcher finds by itself
    expected: the host of each rank; empty where the launcher is free
    """

    names: str | None
    expected: tuple[str, ...] = ()


def rank_hosts(hosts: str | None, ranks: int) -> RankHosts:
    """Return where `ranks` run; `hosts` as `MpiRunner` has it.

    As many hosts as ranks have one each, in this order. In a job of Slurm fewer hosts share the ranks in blocks, and
    without hosts the nodes of the job do. InvalidInput for hosts of such a job that cannot share them evenly.
    """
    if hosts is None:
        return _counted(SlurmAllocation.current().hosts_of(ranks)) if in_slurm_job() else RankHosts(None)
    listed = _listed(hosts)
    expected = tuple(host for host, count in listed for _ in range(count))
    if in_slurm_job() and len(listed) < ranks and len(expected) == len(listed):
        if ranks % len(listed):
            rule = f"hosts of a Slurm job must share the {ranks} ranks evenly, or have counts, as in n1:3,n2:5"
            raise InvalidInput(rule, hosts, "name other hosts, or add counts")
        return _counted(tuple((host, ranks // len(listed)) for host, _ in listed))
    return RankHosts(hosts, expected if len(expected) == ranks else ())


def _counted(listed: tuple[tuple[str, int], ...]) -> RankHosts:
    names = ",".join(f"{host}:{count}" if count > 1 else host for host, count in listed)
    return RankHosts(names, tuple(host for host, count in listed for _ in range(count)))


def _listed(hosts: str) -> list[tuple[str, int]]:
    """Return (host, ranks) of a comma list or of the lines of @FILE; none for a file that cannot be read."""
    if not hosts.startswith("@"):
        return [_entry(word) for word in hosts.split(",") if word]
    path = Path(hosts.removeprefix("@"))
    lines = path.read_text().splitlines() if path.is_file() else []
    return [_entry(words[0]) for line in lines if (words := line.split("#")[0].split())]


def _entry(word: str) -> tuple[str, int]:
    name, _, count = word.partition(":")
    return name, int(count) if count.isdigit() else 1
