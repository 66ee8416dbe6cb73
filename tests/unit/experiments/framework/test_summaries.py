"""The file of questions is what the experiments say, and a list of them imports none."""

from chorale.experiments.framework.catalog import FILE, NAMES, file_text, summaries


def test_the_file_is_what_the_experiments_say_of_themselves():
    assert FILE.read_text(encoding="utf-8") == file_text(), "run: python -m chorale.experiments.framework.catalog"


def test_summaries_are_in_the_order_of_lists_with_their_other_names():
    assert tuple(summary.name for summary in summaries()) == NAMES
    aliases = {summary.name: summary.aliases for summary in summaries()}
    assert aliases["training-experts"] == ("direct-connect-figure-9",)
