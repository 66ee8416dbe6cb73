"""Traffic matrices and sizes of shards in files: JSON, CSV or NumPy's .npy, and skews such as `zipf:1.2`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.matrix import TrafficMatrix, require_ranks, traffic_matrix, zipf_matrix
from chorale.tuner.files.read_write import read_file

MAX_BYTES = 64 * 2**20
SUFFIXES = (".json", ".csv", ".npy")
_SKEW = "zipf:"


def load_traffic(text: str, ranks: int, spec: str, seed: int = 0) -> TrafficMatrix:
    """Return the matrix in the file that `text` names, or the skew that it describes, for the ranks of `spec`."""
    if text.startswith(_SKEW):
        return zipf_matrix(ranks, _exponent(text), seed)
    matrix = traffic_matrix(text, _rows(text))
    require_ranks(matrix, ranks, spec)
    return matrix


def load_sizes(text: str, ranks: int, spec: str, seed: int = 0) -> tuple[int, ...]:
    """Return the size of the shard of every rank, from a file of one row, or a skew as `load_traffic` takes it."""
    if text.startswith(_SKEW):
        return tuple(zipf_matrix(ranks, _exponent(text), seed).amounts[0].tolist())
    try:
        numbers = np.asarray(_rows(text)).ravel()
    except ValueError:
        numbers = np.zeros(0)
    if len(numbers) != ranks or numbers.dtype.kind not in "iu" or int(numbers.min()) < 0 or not numbers.any():
        rule = f"sizes of shards must be a whole number for each of the {ranks} ranks of {spec}, not all 0"
        raise InvalidInput(rule, f"{len(numbers)} of type {numbers.dtype.name} in {text}", "write one number a rank")
    return tuple(int(number) for number in numbers)


def _exponent(text: str) -> float:
    try:
        exponent = float(text.removeprefix(_SKEW))
    except ValueError:
        exponent = math.nan
    if not math.isfinite(exponent):
        raise InvalidInput("a skew must be zipf:EXPONENT", text, "write zipf:1.2")
    return exponent


def _rows(path: str) -> Sequence[Any] | NDArray[Any]:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        rule = "traffic and sizes of shards come from a file .json, .csv or .npy, or are zipf:EXPONENT"
        raise InvalidInput(rule, path, "give such a file, or zipf:1.2")
    content = read_file(path, MAX_BYTES)
    try:
        return _parsed(content, suffix)
    except (ValueError, RecursionError, EOFError) as error:
        rule = f"{path} must hold rows of whole numbers as {suffix[1:].upper()}"
        raise InvalidInput(rule, " ".join(str(error).split()), "write it again") from None


def _parsed(content: bytes, suffix: str) -> Sequence[Any] | NDArray[Any]:
    if suffix == ".npy":
        array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
        return array
    if suffix == ".csv":
        lines = csv.reader(io.StringIO(content.decode()))
        return [[int(cell) for cell in line] for line in lines if line]
    rows = json.loads(content)
    rows = rows.get("traffic", rows.get("sizes")) if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise ValueError('no list of rows, alone or under "traffic" or "sizes"')
    return rows
