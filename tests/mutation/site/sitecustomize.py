"""Measures the lines that processes run which a test starts, in its name (see tests/mutation/line_recorder.py)."""

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
