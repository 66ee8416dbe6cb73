"""Reads and writes files that define custom collectives: YAML or JSON in the format chorale-collective/1."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chorale.job.files import read_file
from chorale.synth.collective import MAX_CHUNKS, MAX_CONTRIBUTIONS, MAX_RANKS, CustomCollective, RequiredChunk
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.yaml_text import load_yaml

FORMAT = "chorale-collective/1"
MAX_BYTES = 4 * 2**20
_KEYS = ("format", "name", "ranks", "input_chunks", "output_chunks", "outputs")
_OUTPUT_KEYS = ("rank", "chunk", "count", "from", "source", "sum")
_ALL = "all"


def load_collective(path: str | None) -> CustomCollective | None:
    """Return the collective that a file defines, or None if `path` is None. Raises InvalidInput for an invalid file."""
    if path is None:
        return None
    content = read_file(path, MAX_BYTES)
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"a collective file must be at most {MAX_BYTES} bytes", f"{len(content)} bytes", "check it")
    try:
        return parse_collective_file(content.decode())
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.rule}", error.value, error.way_out) from None
    except ValueError as error:
        raise InvalidInput(f"{path} is not text in UTF-8: {{}}", error, "write it again") from None


def parse_collective_file(text: str) -> CustomCollective:
    document = load_yaml(text, "a collective file must be YAML or JSON", "repair it")
    fields = _mapping(document, "a collective file", _KEYS)
    if fields.get("format") != FORMAT:
        raise InvalidInput("unknown format of a collective file: {}", fields.get("format"), f"write format: {FORMAT}")
    ranks = _integer(fields, "ranks", 1, MAX_RANKS)
    inputs, outputs = (_integer(fields, f"{side}_chunks", 1, MAX_CHUNKS) for side in ("input", "output"))
    listed = fields.get("outputs")
    if not isinstance(listed, list):
        raise InvalidInput("`outputs` must be a list", listed, "write one output per line")
    required: list[RequiredChunk] = []
    contributions = 0
    for number, item in enumerate(listed):
        for each in _required(_mapping(item, f"outputs[{number}]", _OUTPUT_KEYS), ranks):
            required.append(each)
            contributions += len(each.sources)
            if contributions > MAX_CONTRIBUTIONS:
                rule = f"outputs must have at most {MAX_CONTRIBUTIONS} sources together"
                raise InvalidInput(rule, "more", "use fewer chunks")
    required.sort(key=lambda each: (each.rank, each.chunk))
    return CustomCollective(_name(fields), ranks, inputs, outputs, tuple(required))


def collective_file_text(collective: CustomCollective) -> str:
    """Return the text of a JSON file that defines `collective`, for `parse_collective_file`.

    Consecutive chunks with consecutive sources become one entry of `outputs`.
    """
    outputs = [_output(first, count) for first, count in _runs(collective.required)]
    head = {"format": FORMAT, "name": collective.name, "ranks": collective.ranks}
    head |= {"input_chunks": collective.input_chunks, "output_chunks": collective.output_chunks}
    lines = ",\n".join("  " + json.dumps(output) for output in outputs)
    return f'{json.dumps(head)[:-1]}, "outputs": [\n{lines}\n]}}\n'


def _runs(required: Sequence[RequiredChunk]) -> Iterator[tuple[RequiredChunk, int]]:
    """Yield the first chunk and the length of each run of consecutive chunks with consecutive sources."""
    first, count = required[0], 1
    for each in required[1:]:
        moved = tuple((rank, chunk + count) for rank, chunk in first.sources)
        if (each.rank, each.chunk, each.sources) == (first.rank, first.chunk + count, moved):
            count += 1
            continue
        yield first, count
        first, count = each, 1
    yield first, count


def _output(first: RequiredChunk, count: int) -> dict[str, Any]:
    output: dict[str, Any] = {"rank": first.rank, "chunk": first.chunk, "count": count}
    if len(first.sources) == 1:
        return output | {"from": first.sources[0][0], "source": first.sources[0][1]}
    return output | {"sum": [{"rank": rank, "chunk": chunk} for rank, chunk in first.sources]}


def _required(fields: Mapping[str, Any], ranks: int) -> Iterator[RequiredChunk]:
    chunk, count = _integer(fields, "chunk", 0, MAX_CHUNKS), _integer(fields, "count", 1, MAX_CHUNKS, 1)
    first = _sources(fields, ranks, chunk)
    for rank in _ranks(fields.get("rank"), "rank", ranks):
        for step in range(count):
            yield RequiredChunk(rank, chunk + step, tuple(sorted((peer, source + step) for peer, source in first)))


def _sources(fields: Mapping[str, Any], ranks: int, chunk: int) -> list[tuple[int, int]]:
    if ("from" in fields) == ("sum" in fields):
        rule = "an output needs either `from` or `sum`, not {}"
        raise InvalidInput(rule, "both" if "sum" in fields else "neither", "write one of them")
    if "from" in fields:
        source = _integer(fields, "source", 0, MAX_CHUNKS, chunk)
        return [(rank, source) for rank in _ranks(fields["from"], "from", ranks)]
    if "source" in fields or not isinstance(fields["sum"], list):
        raise InvalidInput(
            "`sum` must be a list of {rank, chunk}, without source", fields["sum"], "write sum: [{rank: 0, chunk: 0}]"
        )
    items = [_mapping(item, "an item of sum", ("rank", "chunk")) for item in fields["sum"]]
    return [(_integer(item, "rank", 0, MAX_RANKS), _integer(item, "chunk", 0, MAX_CHUNKS)) for item in items]


def _ranks(value: Any, name: str, ranks: int) -> Sequence[int]:
    if value == _ALL:
        return range(ranks)
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(type(rank) is int and 0 <= rank < ranks for rank in listed):
        rule = f"{name} must be a rank below {ranks}, a list of ranks, or {_ALL}"
        raise InvalidInput(rule, value, f"write {name}: 0, {name}: [0, 1] or {name}: {_ALL}")
    return listed


def _name(fields: Mapping[str, Any]) -> str:
    name = fields.get("name", "custom")
    if not isinstance(name, str) or not name or len(name) > 64 or not name.isprintable():
        raise InvalidInput("the name of a collective must be 1 to 64 printable characters", name, "choose another")
    return name


def _mapping(value: Any, what: str, keys: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} must map keys to values", value, f"its keys are {', '.join(keys)}")
    unknown = next((key for key in value if key not in keys), None)
    if unknown is not None:
        raise InvalidInput(f"{what} has no key {{}}", unknown, f"they are {', '.join(keys)}")
    return value


def _integer(fields: Mapping[str, Any], name: str, least: int, largest: int, default: int | None = None) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not least <= value <= largest:
        raise InvalidInput(f"{name} must be a whole number from {least} to {largest}", value, f"write {name}: {least}")
    return value
