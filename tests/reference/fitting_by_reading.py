"""Which targets take a text, found the slow way: each reads all of it anew, element by element, into objects."""

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_structure import structure_violations
from chorale.synth.programs.program import Program
from chorale.synth.targets.base import Lifted, XmlTarget
from chorale.synth.targets.msccl_document import text_findings
from chorale.synth.targets.registry import XML_TARGETS
from chorale.synth.targets.xml_reading import read_document


def fitting_by_reading(text: bytes) -> list[str]:
    """Return the targets whose rules `text` keeps."""
    return [target.name for target in XML_TARGETS if _fits(text, target)]


def read_by_parser(text: bytes, target: XmlTarget) -> Lifted[Program]:
    """Return the program that `text` means in `target`; InvalidInput for none."""
    root, body = read_document(text, lambda _: target.limits)
    faults = text_findings(text.decode(errors="replace")) if target.limits.single_wait else ()
    return target.assemble(root, body._replace(text_findings=faults))


def _fits(text: bytes, target: XmlTarget) -> bool:
    try:
        lifted = read_by_parser(text, target)
    except InvalidInput:
        return False
    return not lifted.findings and not structure_violations(lifted.program, target.limits)
