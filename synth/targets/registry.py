"""The targets that programs can be written for and read from."""

from __future__ import annotations

from chorale.synth.errors import InvalidInput
from chorale.synth.targets.base import Target, XmlTarget
from chorale.synth.targets.msccl_executor_xml import MscclExecutorXml
from chorale.synth.targets.msccl_xml import MscclXml
from chorale.synth.targets.mscclpp_json import MscclppJson
from chorale.synth.targets.oneccl_xml import OneCclXml

XML_TARGETS: tuple[XmlTarget, ...] = (MscclExecutorXml(), MscclXml(), OneCclXml())
"""The first that recognises a document reads it."""
_ALL: tuple[Target, ...] = (*XML_TARGETS, MscclppJson())
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}


def target_named(name: str) -> Target:
    """Return the target called `name`."""
    if name not in TARGETS:
        raise InvalidInput("the target must be one that is known", name, f"choose from {', '.join(TARGETS)}")
    return TARGETS[name]
