"""Expressions of C++ with their types, and what can be done with numbers."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.kernels.types import (
    BOOL,
    INTEGER,
    REAL,
    WORD,
    ArrayType,
    RecordType,
    Scalar,
    TranslationError,
    TupleType,
    Type,
    wider,
)


@dataclass(frozen=True, slots=True)
class Value:
    """An expression. literal: its number, where it is written out: that may become signed, unsigned or real."""

    text: str
    type: Type
    literal: int | None = None


def integer(number: int) -> Value:
    return Value(f"Integer({number})", INTEGER, number)


def constant(number: object) -> Value:
    """Return what stands for a constant of Python or NumPy. TranslationError if it is no number."""
    name = type(number).__name__
    if isinstance(number, bool) or name in ("bool", "bool_"):
        return Value("true" if number else "false", BOOL)
    if name == "uint64":
        return Value(f"Word({int(number)}ULL)", WORD)  # type: ignore[call-overload]
    if isinstance(number, float):
        return Value(_real(float(number)), REAL)
    if isinstance(number, int) or name.startswith(("int", "uint")):
        return integer(int(number))  # type: ignore[call-overload]
    raise TranslationError(f"no number: {number!r}")


def _real(number: float) -> str:
    if number in (float("inf"), float("-inf")):
        return f"({'-' if number < 0 else ''}std::numeric_limits<double>::infinity())"
    return f"double({number!r})"


def scalar(value: Value) -> Scalar:
    """Return the type of a number. TranslationError for other values."""
    if not isinstance(value.type, Scalar):
        raise TranslationError(f"a number is needed, not {value.type.cpp}: {value.text}")
    return value.type


def array(value: Value) -> ArrayType:
    """Return the type of an array. TranslationError for other values."""
    if not isinstance(value.type, ArrayType):
        raise TranslationError(f"an array is needed, not {value.type.cpp}: {value.text}")
    return value.type


def converted(value: Value, to: Type) -> str:
    """Return the text of `value` as `to`: numbers are converted as by assignment, other types have to be equal."""
    if isinstance(to, Scalar) and isinstance(value.type, Scalar):
        return value.text if value.type == to else f"static_cast<{to.cpp}>({value.text})"
    if isinstance(to, ArrayType) and value.type == ArrayType(to.element, to.axes, strided=True) and not to.strided:
        return f"copy({value.text})"
    if isinstance(to, TupleType) and isinstance(value.type, TupleType) and len(to.items) == len(value.type.items):
        return value.text if to == value.type else f"{to.cpp}({value.text})"
    same_record = isinstance(to, RecordType) and isinstance(value.type, RecordType) and to.name == value.type.name
    if value.type == to or same_record:
        return value.text
    raise TranslationError(f"{value.text} is {value.type.cpp}, not {to.cpp}")


def common(first: Value, second: Value) -> tuple[str, str, Scalar]:
    """Return the texts of two numbers in the type that holds both, and that type, never narrower than an integer."""
    if second.literal is not None and first.type == WORD:
        second = as_word(second)
    if first.literal is not None and second.type == WORD:
        first = as_word(first)
    result = wider(scalar(first), scalar(second))
    if result == BOOL:
        result = INTEGER
    return converted(first, result), converted(second, result), result


def as_word(value: Value) -> Value:
    """Return a literal as an unsigned number."""
    if value.literal is None or value.literal < 0:
        raise TranslationError(f"no unsigned number: {value.text}")
    return Value(f"Word({value.literal}ULL)", WORD)


def truth(value: Value) -> str:
    """Return the text of a condition."""
    return value.text if scalar(value) == BOOL else f"({value.text} != 0)"
