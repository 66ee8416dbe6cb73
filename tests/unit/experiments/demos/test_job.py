"""The figures of the demo job are those that its two trainings measured."""

from chorale.experiments.demos.job import comparison


def test_the_first_step_does_not_count_and_losses_are_compared() -> None:
    gloo = {"step_s": [9.0, 2.0, 2.0, 3.0], "losses": [[1.0], [2.0]], "report": {}}
    report = {"programs": [{"digest": "a"}], "fallbacks": []}
    ours = {"step_s": [9.0, 1.0, 1.0, 0.5], "losses": [[1.0], [2.5]], "report": report}
    figures = comparison(gloo, ours)
    assert figures == {"step_s": {"gloo": 2.0, "chorale": 1.0}, "losses_equal": False, **report}
    assert comparison(gloo, {**ours, "losses": gloo["losses"]})["losses_equal"]
