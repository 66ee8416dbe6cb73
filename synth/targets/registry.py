"""The targets that programs can be written for and read from."""

from __future__ import annotations

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.names import name_among
from chorale.synth.targets.base import Target, XmlTarget
from chorale.synth.targets.mscclpp_json import MscclppJson
from chorale.synth.targets.xml_targets import MscclExecutorXml, MscclXml, OneCclXml

XML_TARGETS: tuple[XmlTarget, ...] = (MscclExecutorXml(), MscclXml(), OneCclXml())
"""The first that recognises a document reads it."""
_ALL: tuple[Target, ...] = (*XML_TARGETS, MscclppJson())
TARGET_ALIASES = {
    "msccl": "msccl-xml",
    "mscclexecutor": "msccl-executor-xml",
    "msccl++": "mscclpp-json",
    "mscclpp": "mscclpp-json",
    "oneccl": "oneccl-xml",
}
"""The runtimes that read them, as `plain` spells them."""
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}


def target_named(name: str) -> Target:
    """Return the target called `name`."""
    return TARGETS[name_among("target", name, TARGETS, TARGET_ALIASES)]


def is_in_place_by_default(collective: Collective, target: str) -> bool:
    """Whether programs of `collective` for `target` share memory between input and output where nobody says."""
    return collective.name != CollectiveName.ALLTOALL or target_named(target).limits.alltoall_in_place
