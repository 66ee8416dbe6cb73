"""The command `chorale`, also as `python -m chorale`."""

import gc
import os
import sys


def main() -> None:
    """Run the command; its version and what shells complete need nothing else of it."""
    if sys.argv[1:] == ["--version"]:
        from chorale.version import __version__  # noqa: PLC0415 - and nothing more

        sys.stdout.write(f"chorale {__version__}\n")
        return
    if os.environ.get("_CHORALE_COMPLETE", "").startswith("complete_"):
        from chorale.tuner.cli.completion import completion_output  # noqa: PLC0415 - as above

        text, code = completion_output(os.environ)
        sys.stdout.write(text + "\n" if text else "")
        sys.exit(code)
    gc.disable()  # until the command is imported
    from chorale.tuner.cli.main import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
