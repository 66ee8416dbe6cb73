"""The step element that the MSCCL runtimes share."""

from __future__ import annotations

from synth.lowering.program import Wait
from synth.lowering.xml_raw import Attributes, RawStep


def read_msccl_step(attributes: Attributes) -> RawStep:
    """Return the step that `attributes` describe; all ten are required on every step."""
    block, step = attributes.integer("depid", least=-1), attributes.integer("deps", least=-1)
    return RawStep(
        number=attributes.integer("s", least=0),
        type=attributes.text("type"),
        src=attributes.place("srcbuf", "srcoff"),
        dst=attributes.place("dstbuf", "dstoff"),
        count=attributes.integer("cnt", least=0),
        waits=(Wait(block, step),) if block >= 0 else (),
        published=attributes.flag("hasdep"),
    )
