"""Computes content ids (SHA-256 over canonical JSON and arrays), and converts exact rational numbers.

Rational numbers can be read from text and written as text. For a solver's floats, a common denominator is guessed.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput

_RATIONAL = re.compile(r"[+-]?(?:[0-9]+/[0-9]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE](?P<exponent>[+-]?[0-9]+))?)")
_IS_RATIONAL = "be a rational number"
_RATIONAL_WAY_OUT = 'write a number such as 25 or 12.5, or a rational as text such as "25/3"'
_PLAIN = frozenset((str, int, bool))
_LARGEST_DENOMINATOR = 1000
_CLOSE = 1e-9


def canonical_json(value: Any) -> str:
    """Return the canonical JSON text of `value`: sorted keys, no blanks, fractions as "p/q" strings.

    Floats are rejected: machines may round them differently, and content ids would then differ.

    >>> canonical_json({"b": Fraction(1, 3), "a": [1, None]})
    '{"a":[1,null],"b":"1/3"}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_id(value: Any, columns: Iterable[np.ndarray] = ()) -> str:
    """Return the SHA-256 hex digest of the canonical JSON of `value` and the bytes of the arrays `columns`.

    Arrays are hashed little-endian and C-contiguous with their dtype and shape, so equal arrays give equal ids on any
    machine.
    """
    digest = hashlib.sha256(canonical_json(value).encode())
    for column in columns:
        little = np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<"), copy=False)
        digest.update(f"\x00{little.dtype.str}{little.shape}\x00".encode())
        digest.update(little.data.cast("B") if little.size else b"")
    return digest.hexdigest()


def sources_id(folder: Path) -> str:
    """Return the content id of the C++ sources and headers in `folder`."""
    return content_id([[path.name, path.read_text(encoding="utf-8")] for path in sorted(folder.glob("*.?pp"))])


def rational_text(value: Fraction | int) -> str:
    """Return `value` as text in lowest terms.

    >>> rational_text(Fraction(14, 16)), rational_text(3)
    ('7/8', '3')
    """
    return str(Fraction(value))


def parse_rational(value: object, what: str) -> Fraction:
    """Read an exact rational number from an int, a float or text such as "3", "0.25", "7/8".

    A float stands for its shortest decimal text, so 0.1 means one tenth. `what` is the number's name in error messages.

    >>> parse_rational("12.5", "the rate"), parse_rational(0.1, "the rate")
    (Fraction(25, 2), Fraction(1, 10))
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction)):
        raise InvalidInput(f"{what} must {_IS_RATIONAL}", repr(value), _RATIONAL_WAY_OUT)
    text = str(value).strip()
    if len(text) > 64:
        raise InvalidInput(f"{what} must be at most 64 characters long", text, _RATIONAL_WAY_OUT)
    read = _read_rational(text)
    if isinstance(read, str):
        raise InvalidInput(f"{what} must {read}", text if read != _IS_RATIONAL else repr(value), _RATIONAL_WAY_OUT)
    return read


@lru_cache(maxsize=1024)
def _read_rational(text: str) -> Fraction | str:
    """Return the number in `text`, or the reason why it is not a number. Cached, because files often repeat numbers."""
    match = _RATIONAL.fullmatch(text)
    if match is None:
        return _IS_RATIONAL
    if abs(int(match["exponent"] or 0)) > 30:
        return "have an exponent between -30 and 30"
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return _IS_RATIONAL


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return rational_text(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(value) if _PLAIN.issuperset(map(type, value)) else [_plain(item) for item in value]
    if isinstance(value, np.integer):
        return int(value)
    if value is None or isinstance(value, (str, int, bool)):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical form: use int, str, bool, Fraction, list or dict")


def common_denominator(values: NDArray[np.float64], largest: int) -> int:
    """Return the smallest n up to `largest` for which all n * `values` are nearly integers, or 1 if there is none.

    The result is a guess: callers use it to choose units that avoid rounding, and their bounds hold for any n.
    O(values).
    """
    denominator = 1
    for value in np.unique(np.round(values, 10)).tolist():
        guess = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
        if abs(float(guess) - value) > _CLOSE * max(1.0, abs(value)):
            return 1
        denominator = lcm(denominator, guess.denominator)
        if denominator > largest:
            return 1
    return denominator
