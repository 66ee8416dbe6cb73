"""The `chorale` command: the group of all commands, exit codes, and options that work everywhere."""

import os
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup

from chorale.runners.ray.trust import INSECURE_VARIABLE
from chorale.synth.errors import ChoraleError, InvalidInput, Unavailable
from chorale.synth.extras import missing_extra
from chorale.synth.shadowing import shadow_of
from chorale.tuner.cli.commands import CommandGroup, load_all
from chorale.tuner.cli.process import hide_passwords, stopping_in_order

app = typer.Typer(
    rich_markup_mode=None,
    name="chorale",
    cls=CommandGroup,
    help="Design, verify and tune collective communication for a given network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"chorale {version('chorale-collectives')}")
        raise typer.Exit


@app.callback()
def _global_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and results only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print debug messages, too.")] = False,
    insecure_cluster: Annotated[
        bool, typer.Option("--insecure-cluster", help="Also connect to Ray clusters without authentication.")
    ] = False,
) -> None:
    from chorale.tuner.cli.output import set_verbosity  # noqa: PLC0415 - rich, which `--help` does not need
    from chorale.tuner.files.read_write import keep_private  # noqa: PLC0415 - NumPy, as above

    keep_private()
    set_verbosity(quiet, verbose)
    if insecure_cluster:
        os.environ[INSECURE_VARIABLE] = "1"


GLOBAL_FLAGS = ("--version", "--quiet", "-q", "--verbose", "-v", "--insecure-cluster")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with code 0, 1, 2, 3 or 130."""
    command = sys.argv[1:] if arguments is None else arguments
    hide_passwords()
    try:
        with stopping_in_order():
            # Move global flags to the front, so that `chorale synth … --quiet` works like `chorale --quiet synth …`
            end = command.index("--") if "--" in command else len(command)
            head, tail = command[:end], command[end:]
            app(
                args=[a for a in head if a in GLOBAL_FLAGS] + [a for a in head if a not in GLOBAL_FLAGS] + tail,
                prog_name="chorale",
            )
    except KeyboardInterrupt:
        _fail("interrupted; what was finished is kept", 130)
    except MemoryError as error:
        _fail(f"this does not fit into memory: {error or 'none is left'}; ask for fewer trees, chunks or ranks", 2)
    except (ChoraleError, ModuleNotFoundError, OSError) as error:
        known = missing_extra(error) if isinstance(error, ModuleNotFoundError) else error
        if isinstance(known, OSError) and known.filename is not None:
            way_out = "give it to this user, free space or mount it again, or point CHORALE_HOME at another folder"
            known = Unavailable("cannot use {}", f"{known.filename}: {known.strerror}", way_out)
        if not isinstance(known, ChoraleError):
            raise
        if isinstance(known, InvalidInput):
            from chorale.tuner.reports.hints import explained  # noqa: PLC0415 - imports methods and families; only for errors

            known = explained(known)
        shadow = shadow_of(error) or shadow_of(str(known))
        _fail(f"{known}; {shadow}" if shadow else str(known), known.exit_code)


def _fail(message: str, code: int) -> NoReturn:
    from chorale.tuner.cli.output import print_error  # noqa: PLC0415 - rich, which `--help` does not need

    print_error(message)
    sys.exit(code)


def command_line() -> TyperGroup:
    """Return the complete command line with every command imported, for the reference and for tests of the docs."""
    return load_all(typer.main.get_group(app))
