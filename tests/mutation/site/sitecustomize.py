"""Measures the lines that processes started by a test run, in the name of that test (see tests/mutation/by_test.py)."""

import os

if "MUTATION_OUT" in os.environ:
    from coverage import Coverage

    Coverage(
        data_file=os.path.join(os.environ["MUTATION_OUT"], "lines"),
        data_suffix=True,
        auto_data=True,
        config_file=False,
        source=os.environ["MUTATION_SOURCES"].split(os.pathsep),
        context=os.environ.get("MUTATION_TEST", ""),
        messages=False,
    ).start()
