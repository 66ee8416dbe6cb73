"""Reads traffic matrices and shard sizes from files (text, JSON or .npy), or draws random skewed ones (`zipf:1.2`).

A text file has a row of numbers per rank, separated by commas, semicolons or spaces, as nccl-tests
(NCCL_TESTS_ALLTOALLV_MATRIX_FILE) and UCC read it. Numbers may have units, such as `5M`, or be fractions. Fractions are
scaled to integers, because only proportions matter.
"""

import io
import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array
from numpy.typing import NDArray

from chorale.job.files import read_file
from chorale.synth.document_limits import require_small_json
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.matrix import (
    MAX_AMOUNT,
    MAX_RANKS,
    TrafficMatrix,
    require_ranks,
    traffic_matrix,
    zipf_matrix,
)
from chorale.synth.methods.traffic.tokens import MAX_TOKENS, TokenBatch

MAX_NUMBERS, MAX_BYTES = MAX_RANKS**2, 16 * MAX_RANKS**2
_SKEW = "zipf:"
_FINEST = 2**30
"""Fractions without a small common denominator are rounded up to multiples of 2**-30 times the largest fraction."""
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,2})?([KMGT]?)(iB|B)?", re.IGNORECASE)


def load_traffic(text: str, ranks: int, spec: str, seed: int = 0) -> TrafficMatrix:
    """Return the traffic matrix in the file at the path `text`, or a random skewed matrix if `text` is zipf:S."""
    if text.startswith(_SKEW):
        return zipf_matrix(ranks, _exponent(text), seed)
    matrix = traffic_matrix(text, _rows(text))
    require_ranks(matrix, ranks, spec)
    return matrix


def load_tokens(path: str, ranks: int, expert_count: int | None = None) -> TokenBatch:
    """Return the tokens in a file: a row of experts for each token, as text, JSON or .npy.

    -1 stands for no expert. Ranks hold equal blocks of tokens and of experts, unless the file is a JSON object that
    says otherwise. Such an object has the rows as `experts` and, optionally, `ranks` (the rank of each token),
    `placement` (for each expert, its rank or the list of ranks that have a replica) and `token_bytes`.

    expert_count: total number of experts if there is no placement; default: the highest expert number + 1

    Raises InvalidInput for any other file.
    """
    content = read_file(path, MAX_BYTES)
    try:
        document = _parsed(path, content, "a routing file")
        given = document if isinstance(document, dict) else {"experts": document}
        experts = _integers(given["experts"])
        tokens, placed = len(experts), expert_count or int(experts.max(initial=0)) + 1
        _require_few(placed, MAX_TOKENS)
        sources = _integers([given.get("ranks", np.arange(tokens) * ranks // tokens)])[0]
        placement = given.get("placement", np.arange(placed) * ranks // placed)
        hosts = _integers([row if isinstance(row, list) else [row] for row in placement])
        token_bytes = _integer(given.get("token_bytes", 1))
    except (ValueError, TypeError, KeyError, RecursionError, EOFError, OverflowError, MemoryError) as error:
        rule = f"{path} must contain a row of experts for each token, as text, JSON or .npy"
        reason = "no `experts`" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise InvalidInput(rule, reason, "write the numbers of a token's experts in each row") from None
    return TokenBatch(path, experts, sources, hosts, token_bytes)


def _parsed(path: str, content: bytes, what: str) -> Any:
    """Return the array of an .npy file, the JSON document (fractions as text), or the words in each line of a text."""
    if Path(path).suffix.lower() == ".npy":
        return read_array(io.BytesIO(content), allow_pickle=False)
    text = content.decode("utf-8-sig")
    if text.lstrip()[:1] == "{" or (text.lstrip()[:1] == "[" and "," in text):
        require_small_json(text, what)
        return json.loads(text, parse_float=str)
    return _text_rows(re.sub(r"[][]", " ", text))  # NumPy prints brackets


def _integers(rows: Any) -> NDArray[np.int64]:
    """Return rows of integers as one table, with shorter rows padded with -1. Raises ValueError for anything else."""
    if not isinstance(rows, np.ndarray):
        width = max((len(row) for row in rows), default=0)
        _require_few(width * len(rows), 8 * MAX_TOKENS)
        rows = np.array([[*map(_integer, row)] + [-1] * (width - len(row)) for row in rows])
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "iu":
        raise ValueError(f"{rows.dtype.name} of shape {rows.shape}")
    return np.asarray(rows, dtype=np.int64)


def _integer(cell: Any) -> int:
    if isinstance(cell, bool | float):
        raise ValueError(f"{cell}, which is not a whole number")
    return int(cell)


def load_sizes(text: str, ranks: int, spec: str, seed: int = 0) -> tuple[int, ...]:
    """Return each rank's shard size from a file with one row of numbers, or skewed sizes if `text` is zipf:S."""
    if text.startswith(_SKEW):
        return tuple(zipf_matrix(ranks, _exponent(text), seed).amounts[0].tolist())
    try:
        numbers = np.asarray(_rows(text)).ravel()
    except ValueError:
        numbers = np.zeros(0)
    if len(numbers) != ranks or numbers.dtype.kind not in "iu" or int(numbers.min()) < 0 or not numbers.any():
        rule = f"sizes of shards must be a whole number for each of the {ranks} ranks of {spec}, not all 0"
        raise InvalidInput(rule, f"{len(numbers)} of type {numbers.dtype.name} in {text}", "write one number per rank")
    return tuple(int(number) for number in numbers)


def _exponent(text: str) -> float:
    try:
        exponent = float(text.removeprefix(_SKEW))
    except ValueError:
        exponent = math.nan
    if not math.isfinite(exponent):
        raise InvalidInput("cannot read the traffic '{}'", text, "write zipf and an exponent, such as zipf:1.2")
    return exponent


def _rows(path: str) -> list[Any]:
    content = read_file(path, MAX_BYTES)
    try:
        rows = _parsed(path, content, "a traffic file")
        if isinstance(rows, np.ndarray):
            _require_few(max(rows.size, *rows.shape, 0))
            rows = rows.tolist()
        elif isinstance(rows, dict):
            rows = rows.get("traffic", rows.get("sizes"))
            if not isinstance(rows, list):
                raise ValueError('no list of rows, alone or under "traffic" or "sizes"')
        return _whole(rows)
    except (ValueError, RecursionError, EOFError, MemoryError) as error:  # MemoryError: shapes that exceed any memory
        rule = f"{path} must contain rows of numbers, as text, JSON or .npy"
        raise InvalidInput(rule, " ".join(str(error).split()), "write a row of amounts for each rank") from None


def _text_rows(text: str) -> list[list[str]]:
    lines = [line for each in text.splitlines() if (line := each.partition("#")[0].strip())]
    if lines and lines[0][0] in ",;":  # pandas writes the indices of columns and rows
        lines = [line.partition(lines[0][0])[2] for line in lines[1:]]
    if any("," in line for line in lines) and (
        all(";" in line for line in lines) or {len(line.split()) for line in lines} == {len(lines)} != {1}
    ):  # these commas are decimal points; other characters separate the numbers
        lines = [re.sub(r"(?<=\d),(?=\d)", ".", line) for line in lines]
    return [[cell for cell in re.split(r"\s*[,;]\s*|\s+", line) if cell] for line in lines]


def _require_few(numbers: int, most: int = MAX_NUMBERS) -> None:
    if numbers > most:
        raise ValueError(f"{numbers} numbers; at most {most} are allowed")


def _whole(rows: Any) -> list[Any]:
    """Return `rows` scaled to integers in the same proportions."""
    if not isinstance(rows, list):
        raise ValueError("a single number")
    flat = rows and not any(isinstance(row, list) for row in rows)
    lists = [rows] if flat else rows
    if not all(isinstance(row, list) for row in lists):
        raise ValueError("a number next to rows")
    _require_few(max(len(lists), sum(map(len, lists))))
    table = [[_number(cell) for cell in row] for row in lists]
    cells = [cell for row in table for cell in row]
    largest, scale = max(cells, default=Fraction(0)), math.lcm(*(cell.denominator for cell in cells))
    if scale > 1 and largest * scale > MAX_AMOUNT:
        result = [[math.ceil(cell * _FINEST / largest) for cell in row] for row in table]
    else:
        result = [[int(cell * scale) for cell in row] for row in table]
    return result[0] if flat else result


def _number(cell: Any) -> Fraction:
    text = str(cell).strip()
    match = _NUMBER.fullmatch(text)
    if match is None or isinstance(cell, bool):
        raise ValueError(f"{text[:40]!r}, which is not an amount")
    unit = (match[3] or "").upper()
    base = 1000 if unit and (match[4] or "").upper() == "B" else 1024
    power: int = base ** " KMGT".index(unit or " ")
    return Fraction(match[1] + (match[2] or "")) * power
