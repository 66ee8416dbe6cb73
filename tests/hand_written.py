"""An allreduce as somebody writes it by hand for MSCCL: every rank adds its chunk of all others, and sends the sum."""


def direct_allreduce(ranks: int, max_bytes: int = 2**30) -> str:
    """Return the program: a block for each peer, which exchanges chunks to add, and then sums."""
    head = f'proto="Simple" nchannels="1" nchunksperloop="{ranks}" ngpus="{ranks}" coll="allreduce"'
    lines = [f'<algo name="by hand" {head} inplace="1" outofplace="0" minBytes="0" maxBytes="{max_bytes + 1}">']
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        lines.append(f'<gpu id="{rank}" i_chunks="{ranks}" o_chunks="{ranks}" s_chunks="0">')
        for block, peer in enumerate(peers):
            last = len(peers) - 1
            lines.append(f'<tb id="{block}" send="{peer}" recv="{peer}" chan="0">')
            lines.append(_step(0, "s", peer))
            lines.append(_step(1, "rrc", rank, waits_for=block - 1 if block else None, is_waited_for=True))
            lines.append(_step(2, "s", rank, waits_for=None if block == last else last))
            lines.append(_step(3, "r", peer))
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _step(number: int, name: str, chunk: int, waits_for: int | None = None, is_waited_for: bool = False) -> str:
    """Return a step on one chunk of the vector; it waits for step 1 of another block."""
    operands = f'srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}" cnt="1"'
    wait = 'depid="-1" deps="-1"' if waits_for is None else f'depid="{waits_for}" deps="1"'
    return f'<step s="{number}" type="{name}" {operands} {wait} hasdep="{int(is_waited_for)}"/>'
