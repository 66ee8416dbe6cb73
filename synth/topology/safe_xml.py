"""XML from outside, parsed so that nothing in it is expanded or fetched."""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
from defusedxml.common import DefusedXmlException

from chorale.synth.errors import InvalidInput


def parse_xml(content: bytes, what: str) -> Element:
    """Return the root of `content`; `what` names the kind of file in errors, such as "a GraphML file".

    Document types, entities and external references are refused. Raises InvalidInput.
    """
    try:
        root: Element = defusedxml.ElementTree.fromstring(content, forbid_dtd=True)
    except DefusedXmlException as error:
        value = type(error).__name__
        raise InvalidInput("an XML file must not define or refer to entities", value, "remove the DOCTYPE") from None
    except (ParseError, ValueError, LookupError) as error:
        raise InvalidInput(f"{what} must be well-formed XML", error, "correct the file") from None
    return root


def tag_of(element: Element) -> str:
    """Return the tag of `element` without its namespace."""
    return element.tag.rpartition("}")[2]
