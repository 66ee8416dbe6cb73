"""What a dialect of program XML adds to the Target port."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from chorale.synth.lowering.program import Program, RankProgram
from chorale.synth.lowering.target import Lifted, Target
from chorale.synth.lowering.xml_raw import RawProgram, RawStep, XmlAttributes


class XmlTarget(Target, Protocol):
    """A dialect whose documents nest algo > gpu > tb > step."""

    def recognises(self, root: str, attributes: Mapping[str, str]) -> bool:
        """Return whether a document whose outermost element is `root` with `attributes` is of this dialect."""
        ...

    def parts(self, head: Program, ranks: Iterable[RankProgram]) -> Iterator[str]:
        """Return the text of a program rank by rank, unchecked; `head` has as many ranks, and all else."""
        ...

    def read_step(self, attributes: XmlAttributes) -> RawStep:
        """Return the step that `attributes` describe."""
        ...

    def assemble(self, raw: RawProgram, text: str) -> Lifted[Program]:
        """Return the program that the elements of `text` mean in this dialect."""
        ...
