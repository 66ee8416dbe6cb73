"""The programs that a campaign takes from files: read and judged before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chorale.runners.api.config import TimeSource
from chorale.runners.api.units import format_size
from chorale.synth.build.request import BuildResult
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.identity import content_id, rational_text
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.lift import read_unchecked
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.values import ProgramFile, is_program_file_name, read_program_file
from chorale.tuner.costs.pricing import program_time_per_byte
from chorale.tuner.search.space import can_execute, lowering_target

_judged: dict[tuple[str, str], BuildResult] = {}
"""Verdicts by everything that decides them, so that a process judges a file once."""


def adopted_programs(campaign: Campaign, topology: Topology) -> Mapping[str, BuildResult]:
    """Return the programs of the files of `campaign`, by the names that candidates and records give them.

    InvalidInput, which names the key and the file, for what the campaign cannot measure; CheckFailed for a program that
    does not do what its collective says on `topology`.
    """
    results = {}
    for key, file in _files(campaign):
        facts = [topology.id, campaign.collective, list(campaign.sizes), campaign.runner.model_dump(mode="json"), key]
        identity = file.name, content_id({"file": file.digest, "facts": repr(facts)})
        if identity not in _judged:
            _judged[identity] = _adopted(campaign, topology, f"campaign key `{key}`: {file.path}", file)
        results[file.name] = _judged[identity]
    return results


def _files(campaign: Campaign) -> Iterator[tuple[str, ProgramFile]]:
    for path in campaign.search.programs:
        yield "search.programs", _read("search.programs", path)
    for name in campaign.baselines:
        if is_program_file_name(name):
            yield "baselines", _read("baselines", name)


def _read(key: str, path: str) -> ProgramFile:
    try:
        return read_program_file(path)
    except InvalidInput as error:
        raise InvalidInput(f"campaign key `{key}`: {error.rule}", error.value, error.way_out) from None


def _adopted(campaign: Campaign, topology: Topology, place: str, file: ProgramFile) -> BuildResult:
    try:
        lifted = read_unchecked(file.text)
    except InvalidInput as error:
        raise InvalidInput(f"{place}: {error.rule}", error.value, error.way_out) from None
    program = lifted.program
    if program.collective.name.value != campaign.collective:
        rule = f"{place}: a program must be for the collective of the campaign, {campaign.collective}"
        raise InvalidInput(rule, program.collective, "leave it out, or change `collective`")
    verdict = judge(lifted, topology)
    for violation in verdict.violations:
        rule = f"{place}: a program must do what its collective says on {topology.spec} ({violation.rule})"
        raise CheckFailed(rule, violation.message, f"see all of it with `chorale lift {file.path}`")
    program = bounded(program, verdict.max_bytes)
    _require_measurable(campaign, place, program)
    return BuildResult(
        schedule_id="",
        schedule=b"",
        program_id=content_id({"adopted": file.digest}),
        program=program,
        program_text=file.text.decode(),
        time_per_byte=rational_text(program_time_per_byte(program, topology)),
        steps=0,
        chunks_per_shard=max(1, program.chunks // len(program.ranks)),
    )


def _require_measurable(campaign: Campaign, place: str, program: AnyProgram) -> None:
    """Raise InvalidInput unless the runner executes `program` at every size of the campaign."""
    if campaign.runner.capabilities.times is TimeSource.RECORD:
        rule, way_out = f"{place}: this runner cannot measure programs", "choose a runner that executes programs"
        raise InvalidInput(rule, f"the {campaign.runner.kind} runner", way_out)
    if not can_execute(campaign.runner, program):
        rule, value, way_out = _misfit(campaign, program)
        raise InvalidInput(f"{place}: {rule}", value, way_out)
    if program.one_sided and campaign.overlap.products:
        rule, way_out = f"{place}: plans of MSCCL++ are measured with nothing beside", "leave `overlap` out"
        raise InvalidInput(rule, f"{campaign.overlap.products} products of matrices", way_out)
    for size_bytes in campaign.sizes:
        if size_bytes < program.min_bytes or (program.max_bytes and size_bytes > program.max_bytes):
            most = format_size(program.max_bytes) if program.max_bytes else "any size"
            rule = f"{place}: a program must serve all sizes of the campaign"
            value = f"{format_size(size_bytes)}, and it is for {format_size(program.min_bytes)} to {most}"
            raise InvalidInput(rule, value, "leave the size out, or the program")


def _misfit(campaign: Campaign, program: AnyProgram) -> tuple[str, str, str]:
    """Return rule, value and remedy for a program that the runner does not execute."""
    kind, target = campaign.runner.kind, lowering_target(campaign.runner)
    if program.one_sided:
        rule = f"plans of MSCCL++ must be measured by shared memory or a model, not by the {kind} runner as it is set"
        return rule, program.target, "use the runner {kind: local, where: loopback}, or simulated"
    placement = "in place" if target.in_place else "out of place"
    found = f"{program.target}, {'in place' if program.in_place else 'out of place'}"
    rule = f"programs for the {kind} runner must be {target.name}, {placement}"
    return rule, found, "choose the runner local, or write the program so"
