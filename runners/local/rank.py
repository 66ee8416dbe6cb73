"""The process of one rank: keeps its data and checks them, executes programs with the engine, computes beside them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from chorale.runners.engine.library import Engine, EngineError, Execution, Status, Work
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.execution.rank_part import LoadedPart, load_parts
from chorale.runners.execution.rank_trace import rank_trace
from chorale.runners.local.compute_load import ComputeLoad
from chorale.runners.local.framing import FramedSocket, Message
from chorale.runners.plans.library import PlanError
from chorale.runners.plans.rank_plans import RankPlans
from chorale.synth.collective import Collective

Run = Callable[[float], float]
"""Takes part in a collective within so many seconds; returns the end on this rank, in seconds of time.monotonic()."""

_SILENT = (Status.TIMEOUT, Status.PEER_LOST)
"""How an execution ends where another is to blame, or nobody: the runner notices by itself."""


class LocalRank:
    """One rank. Commands arrive on `control`, each with its answer:

    listen   where other ranks reach this one, if they do directly        -> listening, at which address
    ports    a name at which to listen for the ports of plans             -> listening
    gloo     where the ranks meet for Gloo's collectives                  -> joined
    load     the rank's part of every program, and where the others are   -> loaded
    prepare  a program, a size, fresh data and what to compute            -> ready
    go       the time at which to start, and the limit                    -> done with the time of the end of both
    check    whether every element is right                               -> checked
    trace    what each step of the last run took, if it was to be traced    -> traced
    status   what the blocks of a run that came to the limit waited for   -> blocked

    End of file on `control` ends the process. Where a run fails for what others did, there is no answer: they answer.
    """

    def __init__(self, control: FramedSocket, engine: Engine, plans: RankPlans, rank: int, ranks: int) -> None:
        self._control = control
        self._engine = engine
        self._plans = plans
        self._rank = rank
        self._ranks = ranks
        self._load_beside = ComputeLoad()
        self._programs: list[LoadedPart] = []
        self._memory: RankMemory | None = None
        self._run: Run | None = None
        self._status: Message = {"answer": "blocked", "program": 0, "blocks": []}
        self._products = 0
        self._at_s = 0.0
        self._execution: Execution | None = None  # of the last run

    def serve(self) -> None:
        """Work until the runner is gone."""
        gc.disable()  # no pauses while links are timed; a run leaves no cycles behind
        gc.freeze()  # what the launcher imported need not be looked at again for each run
        commands: dict[str, Callable[[Message], Message | None]] = {
            "listen": self._listen,
            "ports": self._listen_for_ports,
            "gloo": self._join_gloo,
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
            "check": self._check,
            "trace": self._trace,
            "status": lambda _: self._status,
        }
        while (command := self._control.receive()) is not None:
            try:
                answer = commands[command["do"]](command)
            except EngineError as error:
                if error.status not in _SILENT:
                    raise
                self._status["blocks"] = [_blocked(line) for line in error.blocked.splitlines()]
            except PlanError as error:
                if not error.is_late:
                    raise
                self._status["blocks"] = [_blocked(line) for line in error.blocked.splitlines()]
            else:
                self._control.send(answer or {})

    def _listen(self, command: Message) -> Message:
        return {"answer": "listening", "address": self._engine.listen(command["address"])}

    def _listen_for_ports(self, command: Message) -> Message:
        self._plans.listen(command["names"][self._rank])
        return {"answer": "listening"}

    def _join_gloo(self, command: Message) -> Message:
        from chorale.runners.local import gloo  # noqa: PLC0415 - only where somebody asks for it

        gloo.join_group(self._rank, self._ranks, command["store"], command["interface"])
        return {"answer": "joined"}

    def _load(self, command: Message) -> Message:
        self._programs = load_parts(self._engine, self._programs, command["programs"])
        plans = [(each.part.words, each.part.plan) for each in self._programs if each.part.plan is not None]
        self._plans.close()
        if plans:
            self._plans.load(Path(command["plans"]), plans)
        if command["ports"]:
            self._plans.connect(command["ports"], command["deadline"])
        limit_s = max(0.0, command["deadline"] - time.monotonic())
        self._engine.connect(command["addresses"], bytes.fromhex(command["token"]), limit_s)
        return {"answer": "loaded"}

    def _prepare(self, command: Message) -> Message:
        program = self._programs[command["program"]]
        self._products = command["products"]
        self._status = {"answer": "blocked", "program": command["program"], "blocks": []}
        self._memory = self._run = None
        gc.collect()
        self._execution = None
        memory = self._memory = program.memory(self._rank, command, self._plans)
        if program.number is None:
            self._run = self._library_run(program.collective, memory)
        elif program.is_plan:
            self._run = self._plan_run(program.number)
        else:
            self._run = self._program_run(program.work(memory, command))
        return {"answer": "ready"}

    def _program_run(self, work: Work) -> Run:
        def run(limit_s: float) -> float:
            at_ns = round(self._at_s * 1e9)
            self._execution = self._engine.execute(replace(work, limit_s=limit_s, not_before_ns=at_ns))
            return self._execution.end_ns / 1e9

        return run

    def _plan_run(self, plan: int) -> Run:
        return lambda limit_s: self._plans.execute(plan, limit_s, round(self._at_s * 1e9)) / 1e9

    def _library_run(self, collective: Collective, memory: RankMemory) -> Run:
        from chorale.runners.local import gloo  # noqa: PLC0415 - only where somebody asks for it

        def run(_: float) -> float:
            _wait_until(self._at_s)
            gloo.run_collective(collective, memory.input, memory.output)
            return time.monotonic()

        return run

    def _go(self, command: Message) -> Message | None:
        if self._run is None:
            return None
        self._at_s = command["at"]
        limit_s = max(0.0, command["deadline"] - max(self._at_s, time.monotonic()))
        if self._products > 0:
            _wait_until(self._at_s)
            self._load_beside.start(self._products)
        end_s = self._run(limit_s)
        return {"answer": "done", "end": max(end_s, self._load_beside.wait())}

    def _trace(self, command: Message) -> Message:
        trace = None if self._execution is None else rank_trace(self._execution, round(self._at_s * 1e9)).to_json()
        return {"answer": "traced", "trace": trace}

    def _check(self, command: Message) -> Message:
        return {"answer": "checked", "complaint": None if self._memory is None else self._memory.mismatch()}


def _blocked(line: str) -> list[Any]:
    block, step, reason = line.split(" ", 2)
    return [int(block), int(step), reason]


def _wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))
