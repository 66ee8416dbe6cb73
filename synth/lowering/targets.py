"""The dialects that programs can be written in and read from."""

from __future__ import annotations

from synth.errors import InvalidInput
from synth.lowering.msccl_executor_xml import MscclExecutorXml
from synth.lowering.msccl_xml import MscclXml
from synth.lowering.mscclpp_json import MscclppJson
from synth.lowering.oneccl_xml import OneCclXml
from synth.lowering.target import Target
from synth.lowering.xml_target import XmlTarget

XML_TARGETS: tuple[XmlTarget, ...] = (MscclExecutorXml(), MscclXml(), OneCclXml())
"""The first that recognises a document reads it."""
_ALL: tuple[Target, ...] = (*XML_TARGETS, MscclppJson())
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}


def target_named(name: str) -> Target:
    """Return the target called `name`."""
    if name not in TARGETS:
        raise InvalidInput("the target must be one that is known", name, f"choose from {', '.join(TARGETS)}")
    return TARGETS[name]
