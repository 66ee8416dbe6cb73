"""Print the measures of the source tree, then what breaks its rules; exit code 1 if anything does."""

import argparse
import sys
from pathlib import Path

from tests.structure.measures import product_table, table
from tests.structure.rules import RULES
from tests.structure.source_tree import source_files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path.cwd(), help="another checkout; its rules may differ")
    root = parser.parse_args().root
    files = source_files(root)
    print(table(files), product_table(root), sep="\n\n")
    violations = [(rule.__name__, line) for rule in RULES for line in rule(files)]
    for name, line in violations:
        print(f"{name}: {line}")
    print(f"{len(RULES)} rules, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
