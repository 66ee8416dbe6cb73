"""The functions that are translated: their texts, types, and the names that they see."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chorale.synth.kernels.compiled import Kernel, python_text
from chorale.synth.kernels.types import (
    RecordType,
    Scalar,
    TranslationError,
    Type,
    is_record,
    symbol_of,
    type_of,
    variants,
)


@dataclass(frozen=True, slots=True)
class KernelText:
    """One function with one set of types.

    parameters: name -> type;  names: what its module calls by which name;  number: 0, or which variant of its types
    """

    function: Callable[..., Any]
    tree: ast.FunctionDef
    first_line: int
    parameters: Mapping[str, Type]
    result: Type
    names: Mapping[str, Any]
    number: int

    @property
    def cpp_name(self) -> str:
        return symbol_of(self.function, self.number)

    def place_of(self, node: ast.AST) -> str:
        """Return file and line of a node of the tree."""
        return f"{inspect.getsourcefile(python_text(self.function))}:{self.first_line + getattr(node, 'lineno', 1) - 1}"


def texts_of(function: Callable[..., Any]) -> list[KernelText]:
    """Return `function` with each set of types that its annotations allow."""
    text = python_text(function)
    lines, first_line = inspect.getsourcelines(text)
    [tree] = ast.parse(textwrap.dedent("".join(lines))).body
    if not isinstance(tree, ast.FunctionDef):
        raise TranslationError(f"no function: {text.__qualname__}")
    hints = typing.get_type_hints(text)
    names = [argument.arg for argument in tree.args.args]
    result = []
    for number, kinds in enumerate(variants([hints[name] for name in [*names, "return"]])):
        parameters = dict(zip(names, kinds, strict=False))
        result.append(KernelText(function, tree, first_line, parameters, kinds[-1], text.__globals__, number))
    return result


@dataclass(slots=True)
class Catalog:
    """All functions and records of a program; what a function calls is added when it is met."""

    texts: dict[Callable[..., Any], list[KernelText]] = field(default_factory=dict)
    records: dict[str, RecordType] = field(default_factory=dict)
    waiting: list[KernelText] = field(default_factory=list)

    def add(self, function: Callable[..., Any]) -> list[KernelText]:
        """Return the variants of `function`, which are translated once."""
        if function not in self.texts:
            self.texts[function] = texts_of(function)
            self.waiting += self.texts[function]
            for annotation in typing.get_type_hints(python_text(function)).values():
                self.note_record(annotation)
        return self.texts[function]

    def note_record(self, annotation: Any) -> None:
        """Declare a record, after those that are its fields."""
        if not is_record(annotation) or annotation.__name__ in self.records:
            return
        for hint in typing.get_type_hints(annotation).values():
            self.note_record(hint)
        kind = type_of(annotation)
        assert isinstance(kind, RecordType)
        self.records[kind.name] = kind

    def callee(self, function: Any, kinds: Callable[[], Sequence[Type]]) -> KernelText | None:
        """Return the variant of a kernel or helper that takes arguments of such types; None for other functions."""
        if not isinstance(function, Kernel) and not getattr(function, "is_kernel_helper", False):
            return None
        texts = self.add(function)
        if len(texts) == 1:
            return texts[0]
        given = kinds()
        for text in texts:
            if all(_takes(kind, one) for kind, one in zip(text.parameters.values(), given, strict=True)):
                return text
        raise TranslationError(f"no variant of {function.__name__} takes {[kind.cpp for kind in given]}")


def _takes(parameter: Type, given: Type) -> bool:
    return parameter == given or (isinstance(parameter, Scalar) and isinstance(given, Scalar))
