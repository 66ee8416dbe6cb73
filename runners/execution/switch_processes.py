"""Requests whose programs let switches act, as requests of processes: one for each rank, then one for each switch."""

from __future__ import annotations

from dataclasses import replace

from chorale.runners.api.base import RunRequest
from chorale.runners.measurement.machine import Facts
from chorale.synth.programs.program import Program
from chorale.synth.programs.switch_processes import with_idle_switches
from chorale.synth.topology.relabelling import process_network

SWITCH_PROCESS = "emulated: a process each, which stores what arrives, adds it up and sends copies"


def on_switch_processes(request: RunRequest) -> RunRequest:
    """Return `request` on the network of processes where a program has some of switches, else `request` itself.

    Programs of ranks alone run beside them with idle switches. InvalidInput for one that is not in place.
    """
    switches = next((program.switches for program in request.without_plans.values() if program.switches), ())
    if not switches:
        return request
    programs = {
        name: with_idle_switches(program, switches) if isinstance(program, Program) else program
        for name, program in request.programs.items()
    }
    return replace(request, topology=process_network(request.topology), programs=programs)


def switch_facts(request: RunRequest) -> Facts:
    """Return what stands for switches that act, for the environment of a measurement; nothing where none does."""
    acting = {len(program.switches) for program in request.without_plans.values()}
    return {"switches": SWITCH_PROCESS, "switch_processes": max(acting)} if max(acting, default=0) else {}
