"""Calls of NumPy and of Python's own functions in kernels."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chorale.synth.kernels.translation.values import (
    Value,
    array,
    as_word,
    common,
    converted,
    scalar,
    truth,
)
from chorale.synth.kernels.types import (
    BOOL,
    CPP_ELEMENTS,
    INTEGER,
    REAL,
    ArrayType,
    TranslationError,
    scalar_of,
)

if TYPE_CHECKING:
    from chorale.synth.kernels.translation.expressions import Expressions


def elementwise(first: Value, second: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """Return an array of `combine` of the elements of two arrays, or of an array and a number."""
    result = combine(_element(first, "a"), _element(second, "b"))
    element = scalar(result).name
    cpp = CPP_ELEMENTS[element]
    body = f"-> {cpp} {{ return {result.text}; }}"
    arrays = [(value, name) for value, name in ((first, "a"), (second, "b")) if isinstance(value.type, ArrayType)]
    views = ", ".join(value.text for value, _ in arrays)
    parameters = ", ".join(f"auto {name}" for _, name in arrays)
    function = "combined" if len(arrays) == 2 else "mapped"
    kind = ArrayType(element, array(arrays[0][0]).axes)
    return Value(f"{function}<{cpp}>({views}, [&]({parameters}) {body})", kind)


def _element(value: Value, name: str) -> Value:
    if not isinstance(value.type, ArrayType):
        return value
    kind = value.type.value
    return Value(name if kind.name == value.type.element else f"static_cast<{kind.cpp}>({name})", kind)


def inverted(operand: Value) -> Value:
    """Return `~operand` of an array."""
    kind = array(operand)
    cpp = CPP_ELEMENTS[kind.element]
    sign = "!" if kind.element == "bool" else "~"
    return Value(
        f"mapped<{cpp}>({operand.text}, [](auto a) -> {cpp} {{ return {sign}a; }})", ArrayType(kind.element, kind.axes)
    )


def call(expressions: Expressions, node: ast.Call) -> Value:
    """Return a call of a function of NumPy."""
    assert isinstance(node.func, ast.Attribute)
    name = node.func.attr
    if name in ("empty", "zeros", "ones", "full"):
        return _new(expressions, node, name)
    values = [expressions.value(one) for one in node.args if not isinstance(one, ast.Tuple | ast.List)]
    if hasattr(np, name) and isinstance(getattr(np, name), type) and issubclass(getattr(np, name), np.generic):
        return _number(values[0], np.dtype(name).name)
    if name == "maximum":
        return elementwise(values[0], values[1], lambda a, b: _extreme("largest_of", [a, b]))
    if name == "concatenate":
        parts = [expressions.value(one) for one in node.args[0].elts]  # type: ignore[attr-defined]
        return Value(f"joined({', '.join(part.text for part in parts)})", parts[0].type)
    if name == "array":
        return _listed(expressions, node)
    return _known(name, values)


def _known(name: str, values: Sequence[Value]) -> Value:
    """Return a call of a function whose arguments are arrays and numbers."""
    if name == "arange":
        return Value(f"arange({converted(values[0], INTEGER)})", ArrayType("int64"))
    kind, text = array(values[0]), values[0].text
    dense = ArrayType(kind.element, kind.axes)
    simple = {
        "sum": lambda: _sum(values[0]),
        "diff": lambda: Value(f"differences({text})", ArrayType("int64")),
        "cumsum": lambda: Value(f"running_sum({text})", dense),
        "sort": lambda: Value(f"sorted({text})", dense),
        "argsort": lambda: Value(f"sorting_order({text})", ArrayType("int64")),
        "searchsorted": lambda: Value(f"first_positions({text}, {values[1].text})", ArrayType("int64")),
        "empty_like": lambda: Value(f"empty_of_shape<{CPP_ELEMENTS[kind.element]}>({text}.shape)", dense),
        "zeros_like": lambda: Value(f"mapped<{CPP_ELEMENTS[kind.element]}>({text}, [](auto) {{ return 0; }})", dense),
    }
    if name not in simple:
        raise TranslationError(f"no function of NumPy that kernels know: np.{name}")
    return simple[name]()


def _sum(value: Value) -> Value:
    kind = array(value).value
    total = INTEGER if kind == BOOL else kind
    return Value(f"sum<{total.cpp}>({value.text})", total)


def _number(value: Value, element: str) -> Value:
    """Return a number as one of NumPy's types holds it."""
    if element == "uint64" and value.literal is not None:
        return as_word(value)
    return Value(
        f"static_cast<{scalar_of(element).cpp}>(static_cast<{CPP_ELEMENTS[element]}>({value.text}))", scalar_of(element)
    )


def _new(expressions: Expressions, node: ast.Call, name: str) -> Value:
    """Return a new array: np.empty, zeros, ones or full."""
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    extents = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
    sizes = [converted(expressions.value(one), INTEGER) for one in extents]
    position = 2 if name == "full" else 1
    dtype = named.get("dtype", node.args[position] if len(node.args) > position else None)
    if dtype is None and name == "full":
        raise TranslationError(f"np.full needs a dtype: {ast.unparse(node)}")
    element = "float64" if dtype is None else np.dtype(getattr(np, dtype.attr)).name  # type: ignore[attr-defined]
    cpp, kind = CPP_ELEMENTS[element], ArrayType(element, len(sizes))
    if name == "empty":
        return Value(f"empty<{cpp}>({', '.join(sizes)})", kind)
    start = {"zeros": "0", "ones": "1"}.get(name) or expressions.value(node.args[1]).text
    return Value(f"full<{cpp}>(static_cast<{cpp}>({start}), {', '.join(sizes)})", kind)


def _listed(expressions: Expressions, node: ast.Call) -> Value:
    """Return np.array([number, ...]), of integers unless a dtype says otherwise."""
    dtypes = [keyword.value.attr for keyword in node.keywords]  # type: ignore[attr-defined]
    element = np.dtype(getattr(np, dtypes[0])).name if dtypes else "int64"
    values = [expressions.value(item) for item in node.args[0].elts]  # type: ignore[attr-defined]
    texts = ", ".join(converted(value, scalar_of(element)) for value in values)
    return Value(f"listed<{CPP_ELEMENTS[element]}>({{{texts}}})", ArrayType(element))


def method(expressions: Expressions, node: ast.Call) -> Value:
    """Return a call of a method of an array."""
    assert isinstance(node.func, ast.Attribute)
    owner, name = expressions.value(node.func.value), node.func.attr
    kind = array(owner)
    if name == "copy":
        return Value(f"copy({owner.text})", ArrayType(kind.element, kind.axes))
    if name == "sum":
        return _sum(owner)
    if name in ("min", "max"):
        function = "least" if name == "min" else "largest"
        return Value(f"static_cast<{kind.value.cpp}>({function}({owner.text}))", kind.value)
    if name == "any":
        return Value(f"any({owner.text})", BOOL)
    raise TranslationError(f"no method of arrays that kernels know: {ast.unparse(node)}")


def builtin(expressions: Expressions, node: ast.Call) -> Value:
    """Return a call of one of Python's own functions."""
    name = ast.unparse(node.func)
    values = [expressions.value(one) for one in node.args]
    if name == "len":
        array(values[0])
        return Value(f"{values[0].text}.shape[0]", INTEGER)
    if name in ("min", "max"):
        return _extreme("least_of" if name == "min" else "largest_of", values)
    if name == "bool":
        return Value(truth(values[0]), BOOL)
    if name in ("int", "float"):
        kind = INTEGER if name == "int" else REAL
        return Value(converted(values[0], kind), kind)
    if name in ("exp", "log"):  # of the module math
        return Value(f"std::{name}({converted(values[0], REAL)})", REAL)
    if name == "abs":
        return Value(f"std::abs({values[0].text})", scalar(values[0]))
    raise TranslationError(f"no function that kernels know: {name}")


def _extreme(name: str, values: Sequence[Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        first, second, kind = common(result, value)
        result = Value(f"{name}<{kind.cpp}>({first}, {second})", kind)
    return result
