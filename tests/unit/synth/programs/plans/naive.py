"""A plain executor of execution plans, straight from their JSON, on numbers: the reference for the check.

It shares nothing with the reader, the clocks or the contributions of the check. Blocks go on in random order.
"""

import json
import random
from typing import Any

Memory = dict[tuple[int, str, int], int]


def run(text: str, seed: int) -> Memory | None:
    """Return what all buffers hold at the end, None where blocks hang or something undefined is read."""
    plan = json.loads(text)
    gpus = plan["gpus"]
    chance = random.Random(seed)
    memory = _inputs(plan)
    signals: dict[tuple[int, int], int] = {}
    locks = {(r, n): s["init_value"] for r, gpu in enumerate(gpus) for n, s in enumerate(gpu["semaphores"])}
    at = {(r, b): 0 for r, gpu in enumerate(gpus) for b in range(len(gpu["threadblocks"]))}
    while True:
        order = [key for key in at if at[key] < len(gpus[key[0]]["threadblocks"][key[1]]["ops"])]
        chance.shuffle(order)
        moved = False
        for rank, block in order:
            body = gpus[rank]["threadblocks"][block]
            try:
                done = _step(plan, rank, body, body["ops"][at[rank, block]], memory, signals, locks)
            except KeyError:
                return None
            at[rank, block] += done
            moved |= done
        if not moved:
            return memory if not order else None


def _step(
    plan: Any, rank: int, body: Any, op: Any, memory: Memory, signals: dict[Any, int], locks: dict[Any, int]
) -> bool:
    name = op["name"]
    if name in ("signal", "wait"):
        channels = [body["channels"][0]["channel_ids"][local] for local in op["channel_ids"]]
        if name == "wait" and not all(signals.get((rank, number), 0) for number in channels):
            return False
        for number in channels:
            end = _other_end(plan, rank, number) if name == "signal" else (rank, number)
            signals[end] = signals.get(end, 0) + (1 if name == "signal" else -1)
    elif name in ("sem_acquire", "sem_release"):
        keys = [(rank, number) for number in op["semaphore_ids"]]
        if name == "sem_acquire" and not all(locks[key] > 0 for key in keys):
            return False
        for key in keys:
            locks[key] += 1 if name == "sem_release" else -1
    elif name != "nop":
        _move(plan, rank, body, op, memory)
    return True


def _move(plan: Any, rank: int, body: Any, op: Any, memory: Memory) -> None:
    sources = [_cells(plan, rank, body, each) for each in op["src_buff"]]
    targets = [_cells(plan, rank, body, each) for each in op["dst_buff"]]
    if op["name"] == "re":
        sums = [sum(memory[cell] for cell in cells) for cells in zip(*sources, strict=True)]
        memory.update(zip(targets[0], sums, strict=True))
        return
    for source, target in zip(sources, targets, strict=True):
        memory.update(zip(target, [memory[cell] for cell in source], strict=True))


def _cells(plan: Any, rank: int, body: Any, operand: Any) -> list[tuple[int, str, int]]:
    owner, buffer = rank, operand.get("type")
    if "buffer_id" in operand:
        number = body["remote_buffer_refs"][0]["remote_buffer_ids"][operand["buffer_id"]]
        remote = plan["gpus"][rank]["remote_buffers"][number]
        owner, buffer = remote["rank"], remote["type"]
    chunks = range(operand["index"], operand["index"] + operand["size"])
    return [_home(plan, owner, buffer, chunk) for chunk in chunks]


def _home(plan: Any, rank: int, buffer: str, chunk: int) -> tuple[int, str, int]:
    """In place, the shared memory goes by the name of the larger buffer."""
    gpu = plan["gpus"][rank]
    if not plan["inplace"] or buffer == "s":
        return rank, buffer, chunk
    if plan["collective"] == "reducescatter":
        return rank, "i", chunk + (rank * gpu["output_chunks"] if buffer == "o" else 0)
    shift = rank * gpu["input_chunks"] if plan["collective"] == "allgather" and buffer == "i" else 0
    return rank, "o", chunk + shift


def _other_end(plan: Any, rank: int, number: int) -> tuple[int, int]:
    peers = plan["gpus"][rank]["channels"][0]["connected_to"]
    peer = peers[number]
    theirs = plan["gpus"][peer]["channels"][0]["connected_to"]
    return peer, [n for n, other in enumerate(theirs) if other == rank][peers[:number].count(peer)]


def value(rank: int, chunk: int) -> int:
    """Return what `rank` puts into `chunk` of its input: no two sums of such are alike."""
    return 3 ** (rank * 37 % 41) * 1009 + chunk * 7**rank


def _inputs(plan: Any) -> Memory:
    memory: Memory = {}
    for rank, gpu in enumerate(plan["gpus"]):
        for chunk in range(gpu["input_chunks"]):
            memory[_home(plan, rank, "i", chunk)] = value(rank, chunk)
    return memory


def outputs(text: str, memory: Memory) -> dict[tuple[int, int], int | None]:
    """Return what each chunk of each output holds."""
    plan = json.loads(text)
    return {
        (rank, chunk): memory.get(_home(plan, rank, "o", chunk))
        for rank, gpu in enumerate(plan["gpus"])
        for chunk in range(gpu["output_chunks"])
    }


def wanted(text: str) -> dict[tuple[int, int], int]:
    """Return what each chunk of each output must hold after an allgather, a reduce-scatter or an allreduce."""
    plan = json.loads(text)
    gpus = plan["gpus"]
    found = {}
    for rank, gpu in enumerate(gpus):
        for chunk in range(gpu["output_chunks"]):
            if plan["collective"] == "allgather":
                found[rank, chunk] = value(*divmod(chunk, gpu["input_chunks"]))
            else:
                own = rank * gpu["output_chunks"] if plan["collective"] == "reducescatter" else 0
                found[rank, chunk] = sum(value(peer, own + chunk) for peer in range(len(gpus)))
    return found
