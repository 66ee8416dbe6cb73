"""Contains the entry point of the command `chorale` and of `python -m chorale`."""

import sys

from chorale.synth.shadowing import leave_working_folder, shadow_of


def main() -> None:
    """Run the command. If it fails because a user's file shadows a library, print an error that names the file."""
    leave_working_folder()
    try:
        from chorale.tuner.cli.main import main as run  # noqa: PLC0415 - a library that it imports may be shadowed

        run()
    except Exception as error:
        shadow = shadow_of(error)
        if shadow is None:
            raise
        from chorale.synth.errors import cause_in  # noqa: PLC0415 - needed only after a failure

        sys.stderr.write(f"chorale: {type(error).__name__}: {' '.join(cause_in(str(error)).split())}; {shadow}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
