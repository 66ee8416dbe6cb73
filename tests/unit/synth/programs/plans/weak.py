"""A weakly ordered executor of plans, straight from their JSON: what one thread writes, others see later, in any order.

It shares nothing with the reader and the clocks of the check. Blocks have two threads, chunks four elements; threads go
on in random order, and each write becomes visible to others at a random time, unless a release makes it. Ports have a
proxy that does what it was told at some time, in order.
"""

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

THREADS, ELEMENTS, PARTS, MOST_STEPS = 2, 4, 2, 200_000
Cell = tuple[int, str, int]
Value = tuple[Any, ...]
NOTHING: Value = ("nothing",)
LOCAL_PACKETS = ("respkt", "repkt", "recpkt", "recspkt")


class WeakRun:
    """Some calls of a plan."""

    def __init__(self, plan: Any, calls: int, seed: int) -> None:
        self.plan, self.calls, self.chance = plan, calls, random.Random(seed)
        self.ranks = len(plan["gpus"])
        self.memory: dict[Cell, Value] = {}
        self.packets: dict[tuple[int, int, int], tuple[int, Value]] = {}
        self.flying: list[tuple[tuple[int, int, int], tuple[int, Value]]] = []
        self.own: dict[Any, list[Any]] = defaultdict(list)
        self.pending: dict[tuple[int, int, int], list[tuple[Cell, Value]]] = defaultdict(list)
        self.signals: dict[tuple[int, str, int], int] = defaultdict(int)
        self.locks = {
            (r, n): s["init_value"] for r, g in enumerate(plan["gpus"]) for n, s in enumerate(g["semaphores"])
        }
        self.proxies: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.met: dict[Any, set[Any]] = defaultdict(set)
        self.rounds: dict[Any, int] = defaultdict(int)
        self.call = [0] * self.ranks
        self.threads: dict[tuple[int, int, int], Iterator[bool]] = {}
        self.wrong = False

    def is_right(self) -> bool:
        """Run to the end; return whether all calls of all ranks had the right results."""
        for rank in range(self.ranks):
            self._begin(rank)
        for _ in range(MOST_STEPS):
            if self.wrong:
                return False
            if all(call > self.calls for call in self.call):
                return True
            if not self._something():
                return False
        return False

    def _something(self) -> bool:
        """Do one thing, in random order of what could be done; return whether anything could."""
        things: list[Any] = [("thread", key) for key in self.threads]
        things += [("flush", key) for key, writes in self.pending.items() if writes]
        things += [("proxy", key) for key, queue in self.proxies.items() if queue]
        things += [("fly", None)] * bool(self.flying)
        self.chance.shuffle(things)
        return any(self._do(kind, key) for kind, key in things)

    def _do(self, kind: str, key: Any) -> bool:
        if kind == "thread":
            return self._step(key)
        if kind == "flush":
            cell, value = self.pending[key].pop(self._oldest_of_a_cell(self.pending[key]))
            self.memory[cell] = value
        elif kind == "proxy":
            self.proxies[key].popleft()()
        else:
            slot, packet = self.flying.pop(self._oldest_of_a_cell(self.flying))
            self.packets[slot] = packet
        return True

    def _oldest_of_a_cell(self, writes: list[tuple[Any, Any]]) -> int:
        """Return one of the writes, before which there is none to the same place."""
        chosen = self.chance.randrange(len(writes))
        return next(n for n, (cell, _) in enumerate(writes) if cell == writes[chosen][0])

    def _step(self, key: tuple[int, int, int]) -> bool:
        try:
            return next(self.threads[key])
        except StopIteration:
            del self.threads[key]
        rank = key[0]
        if not any(other[0] == rank for other in self.threads):
            self._end(rank)
        return True

    def _begin(self, rank: int) -> None:
        self.call[rank] += 1
        if self.call[rank] > self.calls:
            return
        gpu = self.plan["gpus"][rank]
        for index in range(gpu["output_chunks"] * ELEMENTS):
            self.memory[self._cell(rank, "o", index)] = NOTHING
        for index in range(gpu["input_chunks"] * ELEMENTS):
            self.memory[self._cell(rank, "i", index)] = ((self.call[rank], rank, index),)
        for block in range(len(gpu["threadblocks"])):
            for thread in range(THREADS):
                self.threads[rank, block, thread] = self._thread(rank, block, thread)

    def _end(self, rank: int) -> None:
        """End a call: all that its blocks wrote can be seen, and its ports have done what they were told."""
        for key in [key for key in self.pending if key[0] == rank]:
            self._flush(key)
        for (owner, _), queue in self.proxies.items():
            while queue and owner == rank:
                queue.popleft()()
        self.wrong |= not self._result_is_right(rank)
        self._begin(rank)

    def _result_is_right(self, rank: int) -> bool:
        name, gpu, call = self.plan["collective"], self.plan["gpus"][rank], self.call[rank]
        everyone = range(self.ranks)
        for index in range(gpu["output_chunks"] * ELEMENTS):
            share = gpu["input_chunks"] * ELEMENTS
            if name == "allgather":
                wanted: Value = ((call, index // share, index % share),)
            else:
                first = rank * gpu["output_chunks"] * ELEMENTS if name == "reducescatter" else 0
                wanted = tuple(sorted((call, each, first + index) for each in everyone))
            if self.memory.get(self._cell(rank, "o", index), NOTHING) != wanted:
                return False
        return True

    def _cell(self, rank: int, buffer: str, index: int) -> Cell:
        """Return the cell of an element; in place, input and output share theirs."""
        gpu = self.plan["gpus"][rank]
        if self.plan["inplace"] and buffer in "io":
            name = self.plan["collective"]
            if buffer == "i" and name == "allgather":
                index += rank * gpu["input_chunks"] * ELEMENTS
            if buffer == "o" and name == "reducescatter":
                index += rank * gpu["output_chunks"] * ELEMENTS
            buffer = "o"
        return rank, buffer, index

    def _flush(self, key: tuple[int, int, int]) -> None:
        for cell, value in self.pending.pop(key, []):
            self.memory[cell] = value

    def _release(self, key: tuple[int, int, int]) -> None:
        """Make visible what the thread has written, and what all of its block had when they last met."""
        self._flush((*key[:2], -1))
        self._flush(key)

    def _thread(self, rank: int, block: int, thread: int) -> Iterator[bool]:
        body = self.plan["gpus"][rank]["threadblocks"][block]
        for number, op in enumerate(body["ops"]):
            for part in range(PARTS if op["name"] == "pipeline" else 1):
                for inner, each in enumerate(op.get("ops", [op])):
                    parts = PARTS if op["name"] == "pipeline" else 1
                    yield from self._operation((rank, block, thread), body, each, (number, part, inner), (part, parts))

    def _operation(self, key: Any, body: Any, op: Any, at: Any, repeat: Any) -> Iterator[bool]:
        name, rank, block, thread = op["name"], *key
        if name == "nop":
            yield from self._meet((rank, block, self.call[rank], at), {(rank, block)}, key)
        elif name == "barrier":
            gpu = self.plan["gpus"][rank]
            users = {
                (rank, b)
                for b, tb in enumerate(gpu["threadblocks"])
                if any(o.get("barrier_id") == op["barrier_id"] for o in tb["ops"])
            }
            self.rounds[key, op["barrier_id"]] += 1
            yield from self._meet((rank, "barrier", op["barrier_id"], self.rounds[key, op["barrier_id"]]), users, key)
        elif name in ("signal", "rlxsignal", "wait", "rlxwait", "sem_acquire", "sem_release"):
            named = op.get("channel_ids", op.get("semaphore_ids"))
            for local in named[thread::THREADS]:
                yield from self._tell(key, body, op, local)
        elif name != "flush":
            yield from self._move(key, body, op, at, repeat)
        yield True

    def _meet(self, where: Any, blocks: set[Any], key: Any) -> Iterator[bool]:
        self.met[where].add(key)
        yield True
        while len(self.met[where]) < len(blocks) * THREADS:
            yield False
        for each in blocks:
            for thread in range(THREADS):
                self.pending[(*each, -1)] += self.pending.pop((*each, thread), [])
            if len(blocks) > 1:
                self._flush((*each, -1))
            self._deliver(each)

    def _deliver(self, block: Any) -> None:
        """Let the packets be there that `block` wrote into the scratch of its own rank."""
        for packet in self.own.pop(block, []):
            if packet in self.flying:
                self.flying.remove(packet)
                self.packets[packet[0]] = packet[1]

    def _tell(self, key: Any, body: Any, op: Any, local: int) -> Iterator[bool]:
        name, rank = op["name"], key[0]
        if name.startswith("sem"):
            if name == "sem_release":
                self._release(key)
                self.locks[rank, local] += 1
                return
            while self.locks[rank, local] < 1:
                yield False
            self.locks[rank, local] -= 1
            return
        kind = op.get("channel_type", "memory")
        number = self._channel(body, kind, local)
        if name.endswith("wait"):
            while self.signals[rank, kind, number] < 1:
                yield False
            self.signals[rank, kind, number] -= 1
        else:
            self._signal(key, kind, number, relaxed=name == "rlxsignal")

    def _signal(self, key: Any, kind: str, number: int, relaxed: bool) -> None:
        end = self._other_end(key[0], kind, number)

        def tell() -> None:
            self.signals[end] += 1

        if kind == "port" or not relaxed:
            self._release(key)
        if kind == "port":
            self.proxies[key[0], number].append(tell)
        else:
            tell()

    def _other_end(self, rank: int, kind: str, number: int) -> tuple[int, str, int]:
        """Return the other end of a channel: the n-th with a peer is its n-th with this rank."""
        peers = self._peers(rank, kind)
        peer, before = peers[number], peers[:number].count(peers[number])
        return peer, kind, [n for n, each in enumerate(self._peers(peer, kind)) if each == rank][before]

    def _peers(self, rank: int, kind: str) -> list[int]:
        channels = [each for each in self.plan["gpus"][rank]["channels"] if each["channel_type"] == kind]
        return [peer for each in channels for peer in each["connected_to"]]

    def _remote(self, key: Any, op: Any, number: int) -> tuple[int, str]:
        """Return rank and type of a remote buffer of a block."""
        gpu, kind = self.plan["gpus"][key[0]], op.get("channel_type", "memory")
        references = gpu["threadblocks"][key[1]]["remote_buffer_refs"]
        numbers = next(each["remote_buffer_ids"] for each in references if each["access_channel_type"] == kind)
        remote = gpu["remote_buffers"][numbers[number]]
        return remote["rank"], remote["type"]

    def _channel(self, body: Any, kind: str, local: int) -> int:
        return next(c["channel_ids"] for c in body["channels"] if c["channel_type"] == kind)[local]

    def _places(self, key: Any, op: Any, operand: Any, repeat: Any) -> list[list[Any]]:
        """Return rank, buffer and element of each element of an operand, at each rank that it is of."""
        rank = key[0]
        whole = operand["size"] * ELEMENTS
        group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        share = whole // group["tbg_size"]
        span = share // repeat[1]
        first = operand["index"] * ELEMENTS + group["tb_id"] * share + repeat[0] * span
        if "switch_channel_id" in operand:
            buffer = next(c for c in self.plan["gpus"][rank]["channels"] if c["channel_type"] == "switch")[
                "buffer_type"
            ]
            owners = [(each, buffer) for each in range(self.ranks)]
        elif "buffer_id" in operand:
            owners = [self._remote(key, op, operand["buffer_id"])]
        else:
            owners = [(rank, operand["type"])]
        return [[(owner, buffer, first + n) for n in range(span)] for owner, buffer in owners]

    def _read(self, key: Any, place: Any) -> Value:
        cell = self._cell(*place)
        for owner in (key, (*key[:2], -1)):
            for written, value in reversed(self.pending.get(owner, [])):
                if written == cell:
                    return value
        return self.memory.get(cell, NOTHING)

    def _slot(self, rank: int, place: Any) -> tuple[int, int, int]:
        halves = 2 if self.plan.get("use_double_scratch_buffer") else 1
        return place[0], self.call[rank] % halves, place[2]

    def _packet(self, key: Any, place: Any) -> Iterator[bool]:
        slot = self._slot(key[0], place)
        while self.packets.get(slot, (0,))[0] != self.call[key[0]]:
            yield False

    def _move(self, key: Any, body: Any, op: Any, at: Any, repeat: Any) -> Iterator[bool]:
        sources = [self._places(key, op, operand, repeat) for operand in op["src_buff"]]
        targets = [self._places(key, op, operand, repeat) for operand in op["dst_buff"]]
        name, thread = op["name"], key[2]
        if op.get("channel_type", "memory") == "port":
            yield from self._through_port(key, body, op, sources, targets, at)
            return
        pairs = [(sources, targets)]
        if name in ("put", "get", "ppkt", "rppkt"):
            pairs = [([source], [target]) for source, target in zip(sources, targets, strict=True)]
        for some, others in pairs:
            for n in range(thread, len(some[0][0]), THREADS):
                yield from self._element(key, op, some, others, n)
                yield True

    def _element(self, key: Any, op: Any, sources: Any, targets: Any, n: int) -> Iterator[bool]:
        name = op["name"]
        total: Value = ()
        for number, source in enumerate(sources):
            for places in source:
                if name in ("upkt", "rppkt") or (name in LOCAL_PACKETS and number > 0):
                    yield from self._packet(key, places[n])
                    total += self.packets[self._slot(key[0], places[n])][1]
                elif name in ("glres", "glre"):
                    total += self.memory.get(self._cell(*places[n]), NOTHING)
                else:
                    total += self._read(key, places[n])
        total = tuple(sorted(total, key=str))
        for number, target in enumerate(targets):
            for places in target:
                as_packet = name in ("ppkt", "rppkt", "cpkt", "gstorepkt") or (name in LOCAL_PACKETS and number > 0)
                if as_packet:
                    self.flying.append((self._slot(key[0], places[n]), (self.call[key[0]], total)))
                    if places[n][0] == key[0]:
                        self.own[key[:2]].append(self.flying[-1])
                elif name in ("glres", "gstore"):
                    self.memory[self._cell(*places[n])] = total
                else:
                    self.pending[key].append((self._cell(*places[n]), total))

    def _through_port(self, key: Any, body: Any, op: Any, sources: Any, targets: Any, at: Any) -> Iterator[bool]:
        rank, block, thread = key
        if op["name"] == "rppkt":
            for n in range(thread, len(sources[0][0]), THREADS):
                yield from self._packet(key, sources[0][0][n])
            yield from self._meet((rank, block, self.call[rank], at, "packets"), {(rank, block)}, key)
        for number in range(thread, len(targets), THREADS):
            channel = self._channel(body, "port", op["channel_ids"][number])
            self._release(key)
            done: list[bool] = []
            self._tell_proxy(key, op, channel, (sources[number][0], targets[number][0]), done)
            if op["name"] in ("pws", "pwsf"):
                self._signal(key, "port", channel, relaxed=False)
            yield True
            while op["name"] == "pwsf" and not done:
                yield False

    def _tell_proxy(self, key: Any, op: Any, channel: int, places: Any, done: list[bool]) -> None:
        rank, call = key[0], self.call[key[0]]
        slots = [(self._slot(rank, a), self._slot(rank, b)) for a, b in zip(*places, strict=True)]

        def copy() -> None:
            for (a, b), (source, target) in zip(zip(*places, strict=True), slots, strict=True):
                if op["name"].endswith("pkt"):
                    self.flying.append((target, self.packets.get(source, (call, NOTHING))))
                else:
                    self.memory[self._cell(*b)] = self.memory.get(self._cell(*a), NOTHING)
            done.append(True)

        self.proxies[rank, channel].append(copy)
