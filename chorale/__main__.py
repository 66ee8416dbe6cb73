"""The command `chorale`, also as `python -m chorale`."""

import sys


def main() -> None:
    """Run the command; its version alone needs nothing else of it."""
    if sys.argv[1:] == ["--version"]:
        from chorale.version import __version__  # noqa: PLC0415 - and nothing more

        sys.stdout.write(f"chorale {__version__}\n")
        return
    from chorale.tuner.cli.main import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
