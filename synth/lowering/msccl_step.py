"""The step element that the MSCCL runtimes share."""

from __future__ import annotations

from chorale.synth.lowering.program import Wait
from chorale.synth.lowering.xml_raw import RawStep, XmlAttributes


def read_msccl_step(attributes: XmlAttributes) -> RawStep:
    """Return the step that `attributes` describe; all ten are required on every step."""
    block, step = attributes.integer("depid", least=-1), attributes.integer("deps", least=-1)
    return RawStep(
        number=attributes.integer("s", least=0),
        type=attributes.text("type"),
        src=attributes.buffer_ref("srcbuf", "srcoff"),
        dst=attributes.buffer_ref("dstbuf", "dstoff"),
        count=attributes.integer("cnt", least=0),
        waits=(Wait(block, step),) if block >= 0 else (),
        published=attributes.flag("hasdep"),
    )
