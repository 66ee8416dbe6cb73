"""Pictures of a campaign are SVG, the same for the same trials."""

from chorale.tuner.plots.charts import bandwidth_svg, history_svg
from chorale.tuner.trials.records import Candidate
from tests.campaigns import complete


def test_the_same_trials_give_the_same_pictures():
    trials = [complete(Candidate("bfb"), 0.5, 1), complete(Candidate("ring"), 1.0, 2)]
    for draw in (lambda some: bandwidth_svg(some, None), lambda some: history_svg(some, 0.0)):
        picture = draw(trials)
        assert picture.startswith("<svg")
        assert picture == draw(trials)
        assert picture != draw(trials[:1])
