"""How the source tree is built, measured and checked: `python -m tests.structure`."""
