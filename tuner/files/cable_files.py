"""Lists of cables as CSV: the two hosts of each cable, with ports and patch panel if known."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chorale.job.files import read_file
from chorale.synth.errors import InvalidInput
from chorale.synth.finder.cabling import Cable, Cabling

MAX_BYTES = 16 * 2**20
_COLUMNS = ("from", "from_port", "to", "to_port", "panel", "change")


@dataclass(frozen=True, slots=True)
class CableList:
    """Existing cables: pairs of hosts, and the two ports and the panel of each, "" if a file names none."""

    cables: tuple[Cable, ...]
    places: tuple[tuple[str, str, str], ...]

    @property
    def hosts(self) -> list[str]:
        """All hosts that have a cable, by name."""
        return sorted({host for cable in self.cables for host in cable})


def read_cables(path: Path, two_way: bool) -> CableList:
    """Read a list with one column for each end, `from` and `to`, or the first two columns if no line names them.

    Rows whose `change` is `remove` are left out, so that the output of `write_cables` is read as the existing cables.
    """
    rows = list(csv.reader(io.StringIO(read_file(str(path), MAX_BYTES).decode(errors="replace"))))
    head = [cell.strip().lower() for cell in rows[0]] if rows else []
    if not {"from", "to"} <= set(head):
        head, rows = ["from", "to"], [[], *rows]
    cables: list[Cable] = []
    places: list[tuple[str, str, str]] = []
    for number, row in enumerate(rows[1:], 1 + bool(rows[0])):
        if not any(cell.strip() for cell in row):
            continue
        cell = {name: text.strip() for name, text in zip(head, row, strict=False)}
        one, other = cell.get("from", ""), cell.get("to", "")
        if not one or not other or one == other or not (one + other).isprintable():
            rule = "a row of a list of cables must name two different hosts"
            raise InvalidInput(rule, f"line {number} of {path}: {','.join(row)[:80]}", "write from,to")
        if cell.get("change") == "remove":
            continue
        place = cell.get("from_port", ""), cell.get("to_port", ""), cell.get("panel", "")
        if two_way and other < one:
            one, other, place = other, one, (place[1], place[0], place[2])
        cables.append((one, other))
        places.append(place)
    if not cables:
        raise InvalidInput("a list of cables must have a row for each", f"none in {path}", "write from,to and rows")
    return CableList(tuple(cables), tuple(places))


def write_cables(cabling: Cabling, present: CableList | None, panel_ports: int | None) -> bytes:
    """Return the list of `cabling` as CSV, with what to do: keep, add or remove.

    Cables that stay keep the ports and panel that `present` gives them; new ones take the lowest free port of each
    host. With `panel_ports` all go through patch panels of so many ports, two for a cable.
    """
    known: dict[Cable, list[tuple[str, str, str]]] = defaultdict(list)
    if present is not None:
        for cable, place in zip(present.cables, present.places, strict=True):
            known[cable].append(place)
    kept = [(cable, known[cable].pop(0) if known[cable] else ("", "", "")) for cable in cabling.kept]
    ports: dict[str, set[str]] = defaultdict(set)
    panels: dict[str, int] = defaultdict(int)
    for (one, other), (port, other_port, panel) in kept:
        ports[one].add(port)
        ports[other].add(other_port)
        panels[panel] += 2
    free_panel = _free_panels(panels, panel_ports)

    def filled(cable: Cable, known_place: tuple[str, str, str]) -> list[str]:
        ends = [text or _free_port(ports[host]) for host, text in zip(cable, known_place, strict=False)]
        panel = known_place[2] or (next(free_panel) if panel_ports is not None else "")
        return [cable[0], ends[0], cable[1], ends[1], panel]

    rows = [[*filled(cable, place), "keep"] for cable, place in kept]
    rows += [[*filled(cable, ("", "", "")), "add"] for cable in cabling.added]
    for one, other in cabling.removed:
        port, other_port, panel = known[one, other].pop(0) if known[one, other] else ("", "", "")
        rows.append([one, port, other, other_port, panel, "remove"])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *rows])
    return text.getvalue().encode()


def _free_port(taken: set[str]) -> str:
    port = next(str(number) for number in range(1, len(taken) + 2) if str(number) not in taken)
    taken.add(port)
    return port


def _free_panels(taken: dict[str, int], panel_ports: int | None) -> Iterator[str]:
    """Yield the panel of each new cable: the first with two free ports."""
    number = 1
    while panel_ports is not None:
        if taken[str(number)] + 2 <= panel_ports:
            taken[str(number)] += 2
            yield str(number)
        else:
            number += 1
