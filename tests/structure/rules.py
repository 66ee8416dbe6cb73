"""Rules that the source tree keeps; each is a function from the files to its violations, one line each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import networkx as nx

from tests.structure.source_tree import SourceFile

FILLERS = frozenset(
    {"found", "own", "told", "kept", "made", "asked", "wanted", "place", "places", "way", "ways", "one", "known"}
    | {"left", "seen", "given", "thing", "things", "answer", "answers", "taken", "rest", "stuff", "whatever"}
)
"""Words that say nothing about what they name."""

PROPER_NAMES = ("OneCcl", "NotFound")
"""What a filler word may stand in: the library oneCCL, and HTTP's name of an error."""

DOORS: Mapping[str, tuple[str, ...]] = {
    "highspy": ("synth/linear_program.py",),
    "scipy.optimize.linprog": (),
    "ray": ("runners/ray/", "job/ray/"),
    "mpi4py": ("runners/mpi/",),
    "torch": (
        "job/torch/",
        "runners/device/",
        "runners/execution/torch_collectives.py",
        "runners/nccl/memory.py",
        "runners/nccl/torch_calls.py",
    ),
    "optuna": ("tuner/search/",),
    "mlflow": ("tuner/tracking/",),
    "matplotlib": ("tuner/plots/", "experiments/"),
    "jinja2": ("tuner/files/home.py",),
    "filelock": (),
    "loky": (),
}
"""Library -> where it may be imported: a file, or a folder that ends with a slash."""

MAX_FILE_LINES = 600
LOOSE = {"runners": {"__init__.py"}, "tuner": {"__init__.py"}, "experiments": {"__init__.py"}}

Rule = Callable[[Sequence[SourceFile]], Iterator[str]]


def fillers(files: Sequence[SourceFile]) -> Iterator[str]:
    """No filler word is the name of a file, a class, a public function or one of its parameters."""
    for file in files:
        stem = file.path.rsplit("/", 1)[-1].removesuffix(".py")
        if set(stem.split("_")) & FILLERS:
            yield f"{file.path}: the file's name has a filler word"
        for class_node in file.classes():
            name = re.sub("|".join(PROPER_NAMES), "", class_node.name)
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
            if {word.lower() for word in words} & FILLERS:
                yield f"{file.path}:{class_node.lineno}: class {class_node.name} has a filler word"
        for function in (one for one in file.functions() if not one.name.startswith("_")):
            if function.name in FILLERS:
                yield f"{file.path}:{function.lineno}: function {function.name} is a filler word"
            arguments = function.args
            for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                if argument.arg in FILLERS:
                    yield f"{file.path}:{function.lineno}: parameter {argument.arg} of {function.name} is a filler word"


def loose_files(files: Sequence[SourceFile]) -> Iterator[str]:
    """The packages whose folders are ports hold no loose files."""
    for file in files:
        folder, _, name = file.path.rpartition("/")
        if folder in LOOSE and name not in LOOSE[folder]:
            yield f"{file.path}: put it into the folder of its topic"


def long_files(files: Sequence[SourceFile]) -> Iterator[str]:
    """A file is one topic."""
    for file in files:
        if file.line_count > MAX_FILE_LINES:
            yield f"{file.path}: {file.line_count} lines, more than {MAX_FILE_LINES}"


def shared_class_names(files: Sequence[SourceFile]) -> Iterator[str]:
    """A class name means one thing in the whole tree; private classes count within their file only."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for class_node in file.classes():
            if not class_node.name.startswith("_"):
                homes[class_node.name].append(f"{file.path}:{class_node.lineno}")
    for name, where in sorted(homes.items()):
        if len(where) > 1:
            yield f"class {name} is defined in {', '.join(where)}"


def import_names(files: Sequence[SourceFile]) -> Iterator[str]:
    """Imports are absolute and go by the one name `chorale`."""
    for file in files:
        for name in file.imports():
            if name.split(".")[0] in ("", "synth", "runners", "job", "tuner", "experiments"):
                yield f"{file.path}: imports {name}; write chorale.{name.lstrip('.')}"


def import_cycles(files: Sequence[SourceFile]) -> Iterator[str]:
    """No module needs itself to be loaded."""
    modules = {file.module for file in files}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for file in files:
        for name in file.imports(only_at_start=True):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != file.module:
                graph.add_edge(file.module, target)
    for cycle in nx.strongly_connected_components(graph):
        if len(cycle) > 1:
            yield f"modules import each other: {', '.join(sorted(cycle))}"


def doors(files: Sequence[SourceFile]) -> Iterator[str]:
    """Each heavy library is imported in one place."""
    entered: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for name in file.imports():
            for library, allowed in DOORS.items():
                if name == library or name.startswith(f"{library}."):
                    entered[library].add(file.path)
                    if allowed and not file.path.startswith(allowed):
                        yield f"{file.path}: imports {library}, whose door is {' or '.join(allowed)}"
    for library, allowed in DOORS.items():
        if not allowed and len(entered[library]) > 1:
            yield f"{library} has {len(entered[library])} doors: {', '.join(sorted(entered[library]))}"


RULES: tuple[Rule, ...] = (fillers, loose_files, long_files, shared_class_names, import_names, import_cycles, doors)
