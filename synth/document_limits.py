"""Limits of documents in JSON and XML, looked at before a parser takes memory for them."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from chorale.synth.errors import InvalidInput

MAX_JSON_BYTES, MAX_JSON_LISTS, MAX_JSON_VALUES = 2**26, 2**21, 2**23
MAX_XML_BYTES, MAX_XML_TAGS, MAX_XML_DEPTH = 2**28, 2**22, 64
_WAY_OUT = "use a smaller file"


def require_small_json(content: bytes | str, what: str) -> None:
    """Raise InvalidInput for a text whose values would take about a GiB or more; `what` names it in the error."""
    if len(content) > MAX_JSON_BYTES:
        raise InvalidInput(f"{what} must have at most {MAX_JSON_BYTES} bytes", len(content), _WAY_OUT)
    text = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    if (lists := text.count(b"[") + text.count(b"{")) > MAX_JSON_LISTS:
        raise InvalidInput(f"{what} must have at most {MAX_JSON_LISTS} lists and objects", lists, _WAY_OUT)
    if (values := text.count(b",")) > MAX_JSON_VALUES:
        raise InvalidInput(f"{what} must have at most {MAX_JSON_VALUES} values", values, _WAY_OUT)


def require_small_xml(content: bytes, what: str) -> None:
    """Raise InvalidInput for a text whose elements would take about a GiB or more."""
    if len(content) > MAX_XML_BYTES:
        raise InvalidInput(f"{what} must have at most {MAX_XML_BYTES} bytes", len(content), _WAY_OUT)
    if (tags := content.count(b"<")) > MAX_XML_TAGS:
        raise InvalidInput(f"{what} must have at most {MAX_XML_TAGS} tags", tags, _WAY_OUT)


def require_shallow(root: Element, what: str) -> None:
    """Raise InvalidInput for elements that lie deeper in one another than functions can call themselves."""
    level = [root]
    for _ in range(MAX_XML_DEPTH):
        level = [child for element in level for child in element]
    if level:
        raise InvalidInput(f"{what} must nest at most {MAX_XML_DEPTH} elements", "more", "flatten it")
