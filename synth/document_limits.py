"""Checks the size of JSON, XML and Parquet documents before a parser allocates memory for them."""

from __future__ import annotations

import io
from collections.abc import Collection
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from chorale.synth.errors import InvalidInput

if TYPE_CHECKING:
    from pyarrow import parquet

MAX_JSON_BYTES, MAX_JSON_LISTS, MAX_JSON_VALUES = 2**26, 2**21, 2**23
MAX_XML_BYTES, MAX_XML_TAGS, MAX_XML_DEPTH = 2**28, 2**22, 64
MAX_COLUMN_BYTES, MAX_PAGE_BYTES = 2**30, 2**26
"""Limits on the uncompressed size, in bytes, of all columns of a Parquet file together and of each page."""
_WIDTHS = {"INT32": 4, "INT64": 8}
_WAY_OUT = "use a smaller file"
_TRUTHS, _I32, _I64, _BINARY, _STRUCT = (1, 2), 5, 6, 8, 12
"""Type codes of Thrift fields. The value of a boolean field is part of its type code."""


def require_small_json(content: bytes | str, what: str) -> None:
    """Raise InvalidInput if parsing JSON `content` could take over 1 GiB of memory. `what` names it in errors."""
    if len(content) > MAX_JSON_BYTES:
        raise InvalidInput(f"{what} must have at most {MAX_JSON_BYTES} bytes", len(content), _WAY_OUT)
    text = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    if (lists := text.count(b"[") + text.count(b"{")) > MAX_JSON_LISTS:
        raise InvalidInput(f"{what} must have at most {MAX_JSON_LISTS} lists and objects", lists, _WAY_OUT)
    if (values := text.count(b",")) > MAX_JSON_VALUES:
        raise InvalidInput(f"{what} must have at most {MAX_JSON_VALUES} values", values, _WAY_OUT)


def require_small_xml(content: bytes, what: str) -> None:
    """Raise InvalidInput if parsing XML `content` could take over 1 GiB of memory. `what` names it in errors."""
    if len(content) > MAX_XML_BYTES:
        raise InvalidInput(f"{what} must have at most {MAX_XML_BYTES} bytes", len(content), _WAY_OUT)
    if (tags := content.count(b"<")) > MAX_XML_TAGS:
        raise InvalidInput(f"{what} must have at most {MAX_XML_TAGS} tags", tags, _WAY_OUT)


def require_shallow(root: Element, what: str) -> None:
    """Raise InvalidInput if elements are nested more than MAX_XML_DEPTH deep, because callers read them recursively."""
    level = [root]
    for _ in range(MAX_XML_DEPTH):
        level = [child for element in level for child in element]
    if level:
        raise InvalidInput(f"{what} must nest at most {MAX_XML_DEPTH} elements", "more", "flatten it")


def require_small_columns(file: parquet.ParquetFile, content: bytes, names: Collection[str], what: str) -> None:
    """Raise InvalidInput if the columns `names` of a Parquet file exceed the size limits.

    The sizes come from the metadata at the end of the file and from page headers; nothing is decompressed. Raises
    ValueError, IndexError or KeyError if a column or page does not exist or has an unsupported type.
    """
    columns = {column.path: at for at, column in enumerate(file.schema)}
    size_bytes = page_bytes = 0
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        for chunk in (group.column(columns[name]) for name in names):
            size_bytes += max(group.num_rows, chunk.num_values) * _WIDTHS[chunk.physical_type]
            stream = io.BytesIO(content)
            stream.seek(min(at for at in (chunk.data_page_offset, chunk.dictionary_page_offset or 0) if at > 0))
            end = stream.tell() + chunk.total_compressed_size
            while stream.tell() < end:
                # Field 2 of a page header is the uncompressed size, field 3 the compressed size in the file.
                head = _thrift_numbers(stream)
                if min(head[2], head[3]) < 0:
                    raise ValueError("a page of a negative size")
                page_bytes = max(page_bytes, head[2])
                stream.seek(head[3], io.SEEK_CUR)
    if size_bytes > MAX_COLUMN_BYTES or page_bytes > MAX_PAGE_BYTES:
        rule = f"the columns of {what} must take at most {MAX_COLUMN_BYTES} bytes, and a page {MAX_PAGE_BYTES}"
        raise InvalidInput(rule, f"{size_bytes} bytes, and a page of {page_bytes}", _WAY_OUT)


def _thrift_numbers(stream: io.BytesIO) -> dict[int, int]:
    """Read a structure in Thrift's compact protocol; return its 32-bit fields as a mapping from field id to value.

    The first byte of a field contains the field's type and the difference between its id and the id of the previous
    field. Only the types that occur in page headers are supported.
    """
    numbers: dict[int, int] = {}
    field = 0
    while (head := stream.read(1)[0]) != 0:
        field = field + (head >> 4) if head >> 4 else _thrift_number(stream)
        kind = head & 15
        if kind == _I32:
            numbers[field] = _thrift_number(stream)
        elif kind == _I64:
            _thrift_number(stream)
        elif kind == _BINARY:
            stream.seek(_thrift_varint(stream), io.SEEK_CUR)
        elif kind == _STRUCT:
            _thrift_numbers(stream)
        elif kind not in _TRUTHS:
            raise ValueError(f"a field of kind {kind} before a page")
    return numbers


def _thrift_number(stream: io.BytesIO) -> int:
    """Read a signed 32-bit number. If the number is longer, drop its higher bits, as Thrift does."""
    value = _thrift_varint(stream)
    return value >> 1 ^ -(value & 1)


def _thrift_varint(stream: io.BytesIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFF
    raise ValueError("a number of more than ten bytes")
