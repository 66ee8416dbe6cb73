"""Improves the hints in errors: for names of the wrong kind (a method instead of a file), and for Python callers."""

import re
from collections.abc import Mapping
from pathlib import Path

from chorale.runners.api.registry import RUNNERS
from chorale.synth.collective import COLLECTIVE_ALIASES, STANDARD
from chorale.synth.errors import ChoraleError, UnknownName, plain
from chorale.synth.methods.catalog import METHOD_ALIASES, METHODS
from chorale.synth.targets.registry import TARGETS
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS

_BEST = frozenset({"fastest", "best", "optimal", "optimum", "any", "default", "automatic"})
_FILE_SUFFIXES = (".json", ".xml", ".graphml", ".txt", ".csv", ".log", ".parquet", ".yaml", ".gz")
_WANTED: Mapping[str, str] = {
    "unknown method": "method",
    "unknown collective": "collective",
    "unknown topology family": "topology",
    "unknown topology function": "topology",
    "unknown runner": "runner",
    "unknown target": "target",
    "is not the name of a family or function": "topology",
    "begins neither with a family nor": "topology",
    "the name of a schedule file must end": "schedule",
    "cannot read {}": "schedule",
    "takes fewer arguments": "nothing more",
}
"""Part of an error's message (`rule`) -> the kind of name that was expected."""
_FOUND: Mapping[tuple[str, str], str] = {
    ("collective", ""): "{0} is a collective: write --collective {0}",
    ("runner", ""): "{0} is a runner, for `chorale run --runner {0}`",
    ("target", ""): "{0} is a dialect of programs, for `chorale lower --target {0}`",
    ("method", "topology"): "{0} is a method: a topology is expected, such as torus:4x4; by default auto is used",
    ("method", "schedule"): "{0} is a method: `chorale synth {0} SPEC -o schedule.parquet` makes such a file",
    ("method", ""): "{0} is a method: write it before the topology, as in `chorale synth {0} torus:4x4`",
    ("topology", "method"): "{0} is a topology: write it after the method, or alone",
    ("topology", "schedule"): "{0} is a topology: `chorale synth {0} -o schedule.parquet` makes such a file",
    ("topology", ""): "{0} is a topology: it is a separate argument",
    ("schedule", "topology"): "{0} is a schedule: `chorale verify {0}` says which topology it is for",
    ("file", "topology"): "write file:{0} if it is JSON, GraphML or a dump of NCCL; `chorale topology import {0} -o "
    "network.json` reads outputs of nvidia-smi, rocm-smi, ibnetdiscover and others",
}  # fmt: skip
"""(kind of the given name, expected kind or "" for any) -> fix, in which {0} stands for the given name."""
_CODE = re.compile(r"(`chorale [^`]*`|run: chorale [^;]*)")
_DESIGN = re.compile(r"`chorale synth (\w+ )?(\S+) -o schedule.parquet` makes such a file")
_FLAG_WITH_VALUE = re.compile(
    r"--([a-z][a-z0-9-]*)[ =]([0-9][\w.,/:%]*|[A-Z]{3,}\b|(?<=--collective )(?:all\w+|reduce\w*|broadcast))"
)
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")
_ARGUMENTS = {"in-network": 'method="in-network"', "output": ".save(path)"}


def explained(error: ChoraleError) -> ChoraleError:
    """Return `error` with a better hint if the user named something of the wrong kind.

    For example, a method was given instead of a topology, or a topology instead of a file.
    """
    wanted = next((kind for rule, kind in _WANTED.items() if rule in error.rule), None)
    if wanted is None:
        return error
    word = str(error.value).partition(": ")[0]
    found = kind_of(word)
    if wanted == "topology" and word in FUNCTIONS:
        error.way_out = f"{word} is a function: write {FUNCTIONS[word].syntax}, such as '{FUNCTIONS[word].example}'"
    elif wanted == "topology" and word in FAMILIES:
        error.way_out = f"{word} is a family: write {FAMILIES[word].syntax}, such as {FAMILIES[word].example}"
    elif wanted == "method" and word.lower() in _BEST:
        error.way_out = "did you mean 'auto'? It chooses the best of all methods"
    elif found not in (None, wanted):
        text = _FOUND.get((str(found), wanted)) or _FOUND.get((str(found), ""))
        error.way_out = error.way_out if text is None else text.format(word)
    return error


def kind_of(word: str) -> str | None:
    """Return what `word` names (collective, method, topology, schedule, file, runner or target), or None if unknown."""
    if plain(word) in {plain(name) for name in (*STANDARD, *COLLECTIVE_ALIASES)} and word not in METHODS:
        return "collective"
    if word in METHODS or plain(word) in METHOD_ALIASES or word.lower() in _BEST:
        return "method"
    if word.endswith(".parquet"):
        return "schedule"
    if word.startswith("file:") or re.split("[:(]", word, maxsplit=1)[0] in {*FAMILIES, *FUNCTIONS}:
        return "topology"
    if word.lower().endswith(_FILE_SUFFIXES) or Path(word).is_file():
        return "file"
    return next((kind for kind, names in (("runner", RUNNERS), ("target", TARGETS)) if word in names), None)


def for_python(error: ChoraleError) -> ChoraleError:
    """Replace flags in the text of `error` for Python callers: `--link-gbps 400` becomes `link_gbps=400`.

    Complete commands such as `chorale synth …` are not changed.
    """
    error.rule, error.way_out = (_with_arguments(text) for text in (error.rule, error.way_out))
    if not isinstance(error, UnknownName):
        error.value = _with_arguments(error.value) if isinstance(error.value, str) else error.value
    return error


def _with_arguments(text: str) -> str:
    text = re.sub(r"write it before .* `chorale synth (\S+) torus:4x4`", r'write method="\1"', text)
    pieces = _CODE.split(_DESIGN.sub(r'chorale.synthesize("\2") returns one', text))
    for index in range(0, len(pieces), 2):  # pieces at odd indices are commands
        assigned = _FLAG_WITH_VALUE.sub(lambda match: f"{_argument(match[1])}={_literal(match[2])}", pieces[index])
        pieces[index] = _FLAG.sub(lambda match: _argument(match[1]), assigned)
    return "".join(pieces)


def _argument(flag: str) -> str:
    return _ARGUMENTS.get(flag, flag.replace("-", "_"))


def _literal(value: str) -> str:
    return value if value.replace(".", "", 1).isdecimal() or value.isupper() else f'"{value}"'
