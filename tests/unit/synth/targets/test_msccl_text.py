"""What is written for MSCCL passes a second, independent reading of the runtime's rules; damage is reported."""

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.targets.lift import lift_with_findings
from chorale.synth.targets.xml_targets import MscclExecutorXml, MscclXml
from tests.unit.synth.lowering.programs import lowered
from tests.unit.synth.lowering.scanner import ScanError, accept


def text_of(spec: str = "ring:3", collective: str = "allgather", **options: object) -> str:
    return MscclXml().emit(lowered(spec, collective, "msccl-xml", **options))


@pytest.mark.parametrize(
    ("spec", "collective", "in_place", "channels", "instances"),
    [
        ("ring:3", "allgather", False, 1, 1),
        ("biring:4,3", "reduce_scatter", False, 1, 1),
        ("torus:2x3", "allreduce", True, 2, 1),
        ("complete:2", "allreduce", True, 2, 2),
        ("hypercube:3", "allgather", True, 2, 2),
    ],
)
def test_the_runtime_accepts_what_is_written(spec, collective, in_place, channels, instances):
    root = accept(text_of(spec, collective, in_place=in_place, channels=channels, instances=instances))
    assert root.attributes["coll"] == collective
    assert (root.attributes["inplace"], root.attributes["outofplace"]) == (("1", "0") if in_place else ("0", "1"))


@pytest.mark.parametrize("spec", ["ring:3", "torus:2x3", "complete:2"])
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
@pytest.mark.parametrize("in_place", [True, False])
def test_the_executor_accepts_what_is_written(spec, collective, in_place):
    made = lowered(spec, collective, "msccl-executor-xml", in_place=in_place, max_bytes=2**20)
    attributes = accept(MscclExecutorXml().emit(made), steps=64).attributes
    assert attributes["coll"] == collective.replace("_", "")
    assert (attributes["inplace"], attributes["outofplace"]) == (("1", "0") if in_place else ("0", "1"))
    assert (attributes["minBytes"], attributes["maxBytes"]) == ("0", str(2**20))


def test_some_steps_need_nops():
    root = accept(text_of("bipartite:3", "allreduce"))
    types = {step.attributes["type"] for gpu in root.children for block in gpu.children for step in block.children}
    assert types == {"s", "r", "rrc", "nop"}


@pytest.mark.parametrize(
    ("max_bytes", "written"),
    [(0, "2147483648"), (2**20, str(2**20 + 1)), (2**31 - 1, "2147483648")],
)
def test_the_upper_bound_is_written_as_exclusive(max_bytes, written):
    assert accept(text_of(max_bytes=max_bytes)).attributes["maxBytes"] == written


def test_a_missing_upper_bound_is_the_one_of_the_runtime():
    text = text_of().replace(' maxBytes="2147483648"', "")
    assert lift_with_findings(text.encode()).program.max_bytes == 2**27 - 1


DAMAGE = {
    "declaration": lambda text: '<?xml version="1.0"?>\n' + text,
    "tab": lambda text: text.replace("  <gpu", "\t<gpu", 1),
    "seven spaces too many": lambda text: text.replace(" srcbuf=", 8 * " " + "srcbuf=", 1),
    "blank after the end": lambda text: text.replace("/>", "/ >", 1),
    "blank in a closing tag": lambda text: text.replace("</gpu>", "</gpu >", 1),
    "text": lambda text: text.replace("  <gpu", ";\n  <gpu", 1),
    "long first word of a comment": lambda text: f"<!--{251 * 'x'} -->{text}",
    "line end in a tag": lambda text: text.replace(" send=", "\nsend=", 1),
    "single quotes": lambda text: text.replace('chan="0"', "chan='0'", 1),
    "blanks around =": lambda text: text.replace('chan="0"', 'chan = "0"', 1),
    "entity": lambda text: text.replace('name="', 'name="&lt;', 1),
    "comment": lambda text: text.replace("  <gpu", "<!--k=1 -->\n  <gpu", 1),
    "long value": lambda text: text.replace('name="', 'name="' + "x" * 256, 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_text_that_only_an_xml_parser_would_take_is_reported(kind):
    damaged = DAMAGE[kind](text_of())
    with pytest.raises(ScanError):
        accept(damaged)
    refused = kind in ("blank after the end", "text")
    assert refusal_of(damaged) == ("refused" if refused else "text")


def refusal_of(text: str) -> str:
    """Return the rule of the text that is broken, or that it cannot be read at all."""
    try:
        rules = {finding.rule for finding in lift_with_findings(text.encode()).findings}
    except InvalidInput:
        return "refused"
    return rules.pop() if len(rules) == 1 else str(rules)


def test_the_longest_first_word_of_a_comment():
    text = f"<!--{250 * 'x'} -->{text_of()}"
    assert accept(text).attributes["coll"] == "allgather"
    assert lift_with_findings(text.encode()).findings == ()


def test_harmless_comments_and_line_ends_are_no_findings():
    text = text_of().replace("  <gpu", "<!-- a rank -->\n  <gpu").replace("\n", "\r\n")
    assert lift_with_findings(text.encode()).findings == ()
