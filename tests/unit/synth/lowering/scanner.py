"""A second reading of MSCCL's text rules, written as the runtime scans: character by character, without a parser."""

from __future__ import annotations

from dataclasses import dataclass, field

ATTRIBUTES_KEPT = 16
VALUE_CHARACTERS = 255
NODES = 4096
CHILDREN = 1024
STEP_ATTRIBUTES = ["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"]


class ScanError(ValueError):
    """The runtime would refuse the text, crash, or drop a part of it."""


@dataclass
class Node:
    name: str
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list)

    def number(self, name: str) -> int:
        text = self.attributes[name]
        if str(int(text)) != text:
            raise ScanError(f"{name}={text} is not plain decimal")
        return int(text)


class Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def document(self) -> Node:
        """Return the first <algo> of those that the text holds one after the other."""
        roots = []
        self.blanks()
        while self.at != len(self.text):
            roots.append(self.node())
            self.blanks()
        return next(root for root in roots if root.name == "algo")

    def node(self) -> Node:
        self.expect("<")
        node = Node(self.word(), {})
        slots = 0
        while self.text[self.at] == " ":
            self.expect(" ")
            slots += 1
            if self.text[self.at] in " />":
                continue
            key = self.word()
            self.expect('="')
            end = self.text.index('"', self.at)
            value = self.text[self.at : end]
            if len(value) > VALUE_CHARACTERS or set(value) & set("\r\n\t&<>'"):
                raise ScanError(f"value {value!r}")
            node.attributes[key] = value
            self.at = end + 1
        if slots > ATTRIBUTES_KEPT:
            raise ScanError("too many attributes")
        if self.text.startswith("/>", self.at):
            self.at += 2
            return node
        self.expect(">")
        self.blanks()
        while not self.text.startswith("</", self.at):
            node.children.append(self.node())
            self.blanks()
        self.expect(f"</{node.name}>")
        if len(node.children) > CHILDREN:
            raise ScanError("too many children")
        return node

    def word(self) -> str:
        start = self.at
        while self.text[self.at].isalnum() or self.text[self.at] == "_":
            self.at += 1
        if start == self.at:
            raise ScanError(f"no word at {start}: {self.text[start : start + 20]!r}")
        return self.text[start : self.at]

    def blanks(self) -> None:
        """Go past blanks, line ends and comments."""
        while self.at < len(self.text) and (self.text[self.at] in " \r\n" or self.text.startswith("<!--", self.at)):
            if self.text[self.at] != "<":
                self.at += 1
                continue
            self.at += len("<!--")
            start = self.at
            while self.text[self.at] not in " >/\r\n":
                if self.text[self.at] == "=" or self.at - start > 249:
                    raise ScanError(f"first word of a comment at {start}")
                self.at += 1
            self.at = self.text.index("-->", start) + len("-->")

    def expect(self, wanted: str) -> None:
        if not self.text.startswith(wanted, self.at):
            raise ScanError(f"expected {wanted!r} at {self.at}: {self.text[self.at : self.at + 20]!r}")
        self.at += len(wanted)


def accept(text: str, steps: int = 256) -> Node:
    """Return the document as the runtime loads it, on every rank; ScanError where a rank would refuse it.

    `steps` is the largest number in a block: 256 for MSCCL, 64 for its executor.
    """
    root = Scanner(text).document()
    gpus = root.number("ngpus")
    root.children = [child for child in root.children if child.name == "gpu"]
    for gpu in root.children:
        gpu.children = [child for child in gpu.children if child.name == "tb"]
        for block in gpu.children:
            block.children = [child for child in block.children if child.name == "step"]
    if [gpu.number("id") for gpu in root.children] != list(range(gpus)):
        raise ScanError("ranks")
    channels = {block.number("chan") for gpu in root.children for block in gpu.children}
    if root.number("nchannels") != max(channels) + 1 or max(channels) > 31:
        raise ScanError("channels")
    for gpu in root.children:
        _accept_rank(root, gpu, steps)
    return root


def _accept_rank(root: Node, gpu: Node, most_steps: int) -> None:
    chunks, gpus = root.number("nchunksperloop"), root.number("ngpus")
    factors = {"allgather": (gpus, 1), "reduce_scatter": (1, gpus), "reducescatter": (1, gpus)}.get(
        root.attributes["coll"], (1, 1)
    )
    for name, factor in zip(("i_chunks", "o_chunks"), factors, strict=True):
        if gpu.number(name) not in (0, chunks // factor):
            raise ScanError(name)
    blocks = gpu.children
    if 1 + gpus + len(blocks) + sum(len(block.children) for block in blocks) > NODES:
        raise ScanError("nodes")
    if not blocks or [block.number("id") for block in blocks] != list(range(len(blocks))) or len(blocks) > 108:
        raise ScanError("blocks")
    for side in ("send", "recv"):
        ends = [(block.number("chan"), block.number(side)) for block in blocks if block.number(side) >= 0]
        if len(set(ends)) != len(ends):
            raise ScanError("two blocks on one connection")
    waited = {
        (step.number("depid"), step.number("deps"))
        for block in blocks
        for step in block.children
        if step.number("depid") >= 0
    }
    for block in blocks:
        _accept_block(gpu, block, waited, most_steps)


def _accept_block(gpu: Node, block: Node, waited: set[tuple[int, int]], most_steps: int) -> None:
    steps = block.children
    if [step.number("s") for step in steps] != list(range(len(steps))) or len(steps) > most_steps:
        raise ScanError("steps")
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if list(step.attributes) != STEP_ATTRIBUTES or step.children:
            raise ScanError("step")
        flag = step.number("hasdep")
        if flag != ((block.number("id"), step.number("s")) in waited):
            raise ScanError("hasdep")
        waits = step.number("depid") >= 0
        if step.attributes["type"] == "nop":
            if not waits or following is None or following.number("depid") < 0 or flag:
                raise ScanError("nop")
            continue
        if not 1 <= step.number("cnt") <= 71 or step.number("depid") > 127:
            raise ScanError("cnt or depid")
        for side in ("src", "dst"):
            size = gpu.number(f"{step.attributes[side + 'buf']}_chunks")
            offset = step.number(side + "off")
            if not 0 <= offset <= min(size - step.number("cnt"), 32767):
                raise ScanError(f"{side}off")
