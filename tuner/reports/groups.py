"""The report of groups that share a fabric: the plan for all of them, its bound, and plans of each as if alone."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from rich.table import Table

from chorale.synth.executor.base import Progress
from chorale.synth.identity import rational_text
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group
from chorale.synth.methods.groups.packing import (
    GroupPacking,
    GroupSchedule,
    SharedSchedules,
    pack_groups,
    shared_schedules,
    time_together,
)
from chorale.synth.topology.topology import Topology

_SHOWN_GROUPS = 24


def alone_schedules(topology: Topology, groups: Sequence[Group], progress: Progress | None) -> list[GroupSchedule]:
    """Return the schedule of each group that is the best for it on an empty fabric."""
    alone = []
    for number, group in enumerate(groups):
        alone.append(shared_schedules(topology, pack_groups(topology, [group])).members[0])
        if progress is not None:
            progress(number + 1, len(groups))
    return alone


def groups_document(shared: SharedSchedules, packing: GroupPacking, alone: Sequence[GroupSchedule]) -> dict[str, Any]:
    """Return the JSON document. Times are amounts over bandwidth, of links that all groups keep busy together."""
    topology, prices = shared.topology, packing.prices.tolist()
    lower = proven_time(topology, packing.groups, prices)
    run_together = time_together(topology, [member.loads for member in alone])
    one_by_one = sum((time_together(topology, [member.loads]) for member in alone), Fraction(0))
    return {
        "topology": {"spec": topology.spec, "nodes": topology.compute_count, "id": topology.id},
        "time": rational_text(shared.time),
        "time_lower": rational_text(lower),
        "gap": rational_text(shared.time / lower - 1),
        "certificate": {"kind": "group-prices", "time_lower": rational_text(lower), "prices": prices},
        "chunks_per_shard": shared.chunks,
        "compared": {
            "alone_together": {"time": float(run_together), "ratio": float(run_together / shared.time)},
            "one_after_another": {"time": float(one_by_one), "ratio": float(one_by_one / shared.time)},
        },
        "groups": [
            _group_document(topology, member, by_itself)
            for member, by_itself in zip(shared.members, alone, strict=True)
        ],
        "verified": True,
    }


def _group_document(topology: Topology, member: GroupSchedule, alone: GroupSchedule) -> dict[str, Any]:
    group, schedule = member.group, member.verified.schedule
    busiest = max(load / link.bandwidth for load, link in zip(member.loads, topology.links, strict=True))
    return {
        "name": group.name,
        "collective": group.collective.name.value,
        "ranks": list(group.ranks),
        "amount": group.amount,
        "busiest_link_time": rational_text(busiest),
        "alone_time": rational_text(time_together(topology, [alone.loads])),
        "transfers": schedule.transfer_count,
        "steps": schedule.steps,
        "id": schedule.id,
        "output": None,
    }


def groups_table(document: dict[str, Any], unit: str) -> Table:
    """Return the document for people."""
    table = Table(title=f"{len(document['groups'])} groups on {document['topology']['spec']}", show_header=False)
    gap = Fraction(document["gap"])
    behind = "exactly the least" if gap == 0 else f"{float(gap):.3%} more"
    table.add_row("least time", f"{_number(document['time_lower'])} per {unit}, proven by prices of links")
    table.add_row("time of the plan", f"{_number(document['time'])}, {behind}; schedules verified")
    compared = document["compared"]
    alone, apart = compared["alone_together"]["ratio"], compared["one_after_another"]["ratio"]
    table.add_row("planned alone, run together", f"{alone:.3f} x the time")
    table.add_row("planned alone, one after another", f"{apart:.3f} x the time")
    for group in document["groups"][:_SHOWN_GROUPS]:
        share = f"busiest link {_number(group['busiest_link_time'])}, alone {_number(group['alone_time'])}"
        table.add_row(group["name"], f"{group['collective']} of {len(group['ranks'])} ranks, {share}")
    if len(document["groups"]) > _SHOWN_GROUPS:
        table.add_row("…", f"{len(document['groups']) - _SHOWN_GROUPS} more groups")
    table.add_row("seconds", f"{document['seconds']:.3f}")
    return table


def _number(text: str) -> str:
    return f"{float(Fraction(text)):.6g}"
