"""Which trials may serve a campaign that asks for the same bits in every run: by the order in which programs add."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chorale.synth.errors import CheckFailed
from chorale.synth.programs.additions import order_of_additions
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import read_unchecked
from chorale.tuner.trials.records import CompleteTrial, FinalComparison, RankedTrial, ranked_trials


def same_bits_everywhere(text: bytes) -> bool:
    """Return whether the program in `text` gives all ranks the same bits in every run, as far as that is proved here.

    Programs that add nothing do. Those that are too large for `order_of_additions` are not known to.
    """
    program = read_unchecked(text).program
    if not program.collective.reduces:
        return True
    order = order_of_additions(program) if isinstance(program, Program) else None
    return order is not None and order.same_on_all_ranks


def reproducible_trials(
    trials: Sequence[CompleteTrial], final: FinalComparison | None, read: Callable[[str], bytes]
) -> list[RankedTrial]:
    """Return the trials to choose from whose programs have `same_bits_everywhere`: finalists if there are any such.

    read: program id -> the text of the program

    CheckFailed if there are trials, but none of such a program.
    """
    good = {name for name in {trial.program_id for trial in trials} if same_bits_everywhere(read(name))}
    fixed = [trial for trial in trials if trial.program_id in good]
    if trials and not fixed:
        rule = "a deterministic answer needs a program with the same order of additions for all ranks"
        raise CheckFailed(rule, "no trial has one", "add other methods, such as ring or rabenseifner")
    return ranked_trials(fixed, final) or ranked_trials(fixed, None)
