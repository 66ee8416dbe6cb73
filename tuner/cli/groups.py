"""`chorale groups`: plan groups (tensor-, data-, expert-parallel) that share a fabric, together and each alone."""

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.synth import InvalidInput, Topology, parse_collective
from chorale.synth.identity import rational_text
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group
from chorale.synth.methods.groups.packing import (
    CHUNK_COUNTS,
    GroupSchedule,
    pack_groups,
    shared_schedules,
    time_together,
)
from chorale.tuner.cli.options import Spec
from chorale.tuner.cli.output import progress_bar
from chorale.tuner.files.read_write import require_new_folder
from chorale.tuner.files.schedule_files import save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.bound import network_facts
from chorale.tuner.reports.tables import Result, Stopwatch, facts_table

_SHOWN_GROUPS = 24
MAX_CHUNKS = max(CHUNK_COUNTS)


def groups(
    spec: Spec,
    group: Annotated[list[str], typer.Option(metavar="NAME=COLLECTIVE:RANKS:AMOUNT")],
    chunks: Annotated[int | None, typer.Option(min=1, max=MAX_CHUNKS)] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="DIR")] = None,
) -> Result:
    """Plan collectives of several groups of ranks that share a fabric and run at the same time.

    All groups begin together; the plan lets the last one end as early as possible, proves how early that can be, and
    compares it with planning each group as if it were alone.

    Args:
        group: A kind of groups; may be repeated. RANKS: 0-7, 0,8,16, all, or a split into equal groups: by8 for
            neighbours (0-7, 8-15, …), every8 for one of each (0,8,16,…; 1,9,17,…). AMOUNT: bytes, or any unit.
        chunks: Chunks per shard; default: few that come close.
        output: Write a schedule for each group to a new folder.

    Example: chorale groups a100:2 --group tp=allreduce:by8:100 --group dp=reduce_scatter:every8:40
    """
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
        chosen = [each for text in group for each in parse_groups(topology, text)]
    if output is not None:
        require_new_folder(Path(output))
    with stages.stage("plan"):
        packing = pack_groups(topology, chosen)
    with stages.stage("schedules"):
        shared = shared_schedules(topology, packing, chunks)
    alone: list[GroupSchedule] = []  # the best schedule of each group on an empty fabric
    with stages.stage("alone"), progress_bar("each group alone") as progress:
        for each in chosen:
            alone.append(shared_schedules(topology, pack_groups(topology, [each])).members[0])
            if progress is not None:
                progress(len(alone), len(chosen))
    # Times are amounts over bandwidth, of links that all groups keep busy together
    prices = packing.prices.tolist()
    lower = proven_time(topology, packing.groups, prices)
    together = time_together(topology, [member.loads for member in alone])
    apart = sum((time_together(topology, [member.loads]) for member in alone), Fraction(0))
    document: dict[str, Any] = {
        **network_facts(topology),
        "time": rational_text(shared.time),
        "time_lower": rational_text(lower),
        "gap": rational_text(shared.time / lower - 1),
        "certificate": {"kind": "group-prices", "time_lower": rational_text(lower), "prices": prices},
        "chunks_per_shard": shared.chunks,
        "compared": {
            "alone_together": {"time": float(together), "ratio": float(together / shared.time)},
            "one_after_another": {"time": float(apart), "ratio": float(apart / shared.time)},
        },
        "groups": [_group_document(topology, *pair) for pair in zip(shared.members, alone, strict=True)],
        "verified": True,
    }
    if output is not None:
        Path(output).mkdir(exist_ok=True)
        for member, entry in zip(shared.members, document["groups"], strict=True):
            entry["output"] = str(Path(output) / f"{member.group.name}.parquet")
            save_schedule(member.verified, entry["output"])
    document |= stages.closing("topology", "alone")
    gap = shared.time / lower - 1
    behind = "exactly the least" if gap == 0 else f"{float(gap):.3%} more"
    rows = [
        ("least time", f"{_decimal(lower)} per {topology.bandwidth_unit}, proven by prices of links"),
        ("time of the plan", f"{_decimal(shared.time)}, {behind}; schedules verified"),
        ("planned alone, run together", f"{float(together / shared.time):.3f} x the time"),
        ("planned alone, one after another", f"{float(apart / shared.time):.3f} x the time"),
    ]
    for entry in document["groups"][:_SHOWN_GROUPS]:
        share = f"busiest link {_decimal(entry['busiest_link_time'])}, alone {_decimal(entry['alone_time'])}"
        rows.append((entry["name"], f"{entry['collective']} of {len(entry['ranks'])} ranks, {share}"))
    if len(chosen) > _SHOWN_GROUPS:
        rows.append(("…", f"{len(chosen) - _SHOWN_GROUPS} more groups"))
    rows.append(("seconds", f"{document['seconds']:.3f}"))
    return Result(document, facts_table(f"{len(chosen)} groups on {topology.spec}", rows))


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


def _decimal(value: Fraction | str) -> str:
    return f"{float(Fraction(value)):.6g}"


def parse_groups(topology: Topology, text: str) -> list[Group]:
    """Return the groups that `text`, NAME=COLLECTIVE:RANKS:AMOUNT, describes; groups of a split are numbered."""
    name, equals, rest = text.partition("=")
    parts = rest.split(":")
    if not equals or not name.isidentifier() or len(parts) != 3:
        rule = "--group must be NAME=COLLECTIVE:RANKS:AMOUNT, with a name of letters, digits and _"
        raise InvalidInput(rule, text, "write tp=allreduce:by8:100")
    collective, ranks = parse_collective(parts[0]), _ranks(topology.compute_count, parts[1])
    if not parts[2].isdecimal():
        raise InvalidInput("the amount of a group must be a whole number", parts[2], "write tp=allreduce:by8:100")
    if len(ranks) == 1:
        return [Group(name, collective, ranks[0], int(parts[2]))]
    return [Group(f"{name}{number}", collective, members, int(parts[2])) for number, members in enumerate(ranks)]


def _ranks(count: int, text: str) -> list[tuple[int, ...]]:
    for word in ("every", "by"):
        if text.startswith(word):
            size = _number(text.removeprefix(word), text)
            if not 1 <= size <= count or count % size:
                raise InvalidInput(f"a split must divide the {count} ranks", text, "choose a divisor")
            if word == "by":
                return [tuple(range(first, first + size)) for first in range(0, count, size)]
            return [tuple(range(first, count, size)) for first in range(size)]
    if text == "all":
        return [tuple(range(count))]
    members: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = _number(first, text)
        high = _number(last, text) if dash else low
        if not low <= high < count:
            raise InvalidInput(f"ranks must be 0 to {count - 1}, ranges upwards", part, "write 0-7 or 0,8,16")
        members += range(low, high + 1)
    return [tuple(members)]


def _number(text: str, whole: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InvalidInput("cannot read the ranks '{}'", whole, "write them like 0-7, 0,8,16, all, by8 or every8")
    return int(text)
