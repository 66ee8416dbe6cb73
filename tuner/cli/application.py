"""Commands as all of them are: plain help, rates of links in Gbit/s or Mbit/s, all missing arguments named at once."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import typer
from typer.core import TyperCommand

from chorale.synth.errors import InvalidInput

_RATES = {"--link-gbps": ("--link-mbps", Fraction(1, 1000)), "--link-mbps": ("--link-gbps", Fraction(1000))}
"""Option of a rate -> the option that means the same in another unit, and what turns that into this one."""


class ChoraleCommand(TyperCommand):
    """A command that takes a rate in either unit, and says at once everything that is missing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `args` as the command does."""
        given = self._with_own_rate_option(args)
        if not ctx.resilient_parsing and not {"-h", "--help"} & set(given):
            self._require_all(ctx, given)
        return super().parse_args(ctx, given)

    def _with_own_rate_option(self, args: list[str]) -> list[str]:
        """Return `args` with a rate in the other unit as one in the unit of this command."""
        names = {name for parameter in self.params for name in parameter.opts}
        for own, (other, factor) in _RATES.items():
            if own in names and other not in names:
                return _converted(args, own, other, factor)
        return args

    def _require_all(self, ctx: Any, args: list[str]) -> None:
        """Raise InvalidInput that names every argument and option that must be given and is not."""
        required = [parameter for parameter in self.params if parameter.required]
        if not required:
            return
        values, _, _ = self.make_parser(ctx).parse_args(list(args))  # says which option is unknown
        with type(ctx)(self, info_name=ctx.info_name, parent=ctx.parent, resilient_parsing=True) as probe:
            missing = [item for item in required if item.value_is_missing(item.consume_value(probe, values)[0])]
        if missing:
            names = _listed([_name(item) for item in missing])
            way_out = "; ".join(f"{_name(item)}: {_help(item)}" for item in missing)
            raise InvalidInput(f"`{ctx.command_path}` needs {names}", _given(args), f"{way_out} (see --help)")


class CommandLine(typer.Typer):
    """A group of commands with plain help, each a `ChoraleCommand` unless it says otherwise."""

    def __init__(self, **options: Any) -> None:
        super().__init__(rich_markup_mode=None, **options)

    def command(self, name: str | None = None, *, cls: Any = ChoraleCommand, **options: Any) -> Callable[[Any], Any]:
        """Return what registers a function as the command `name`."""
        return super().command(name, cls=cls, **options)


def _converted(args: list[str], own: str, other: str, factor: Fraction) -> list[str]:
    converted: list[str] = []
    is_rate = False
    for word in args:
        option, equals, value = word.partition("=")
        if is_rate:
            converted.append(_times(word, factor, other))
        elif option == other:
            if any(item.partition("=")[0] == own for item in args):
                raise InvalidInput("a rate of links is given once", f"{own} and {other}", "leave one out")
            converted.append(f"{own}={_times(value, factor, other)}" if equals else own)
        else:
            converted.append(word)
        is_rate = not is_rate and option == other and not equals
    return converted


def _times(text: str, factor: Fraction, option: str) -> str:
    try:
        value = Fraction(text) * factor
    except (ValueError, ZeroDivisionError):
        raise InvalidInput(f"{option} must be a number", text, "write a rate such as 100 or 2.5") from None
    return str(value) if value.denominator == 1 else _exact(value)


def _exact(value: Fraction) -> str:
    """Return decimals where they are exact, else the fraction."""
    text = f"{float(value):.12f}".rstrip("0")
    return text if Fraction(text) == value else str(value)


def _name(parameter: Any) -> str:
    return (
        str(parameter.opts[0]) if parameter.param_type_name == "option" else str(parameter.human_readable_name).upper()
    )


def _help(parameter: Any) -> str:
    return str(getattr(parameter, "help", None) or "see --help").rstrip(".")


def _given(args: list[str]) -> str:
    return " ".join(args) or "nothing"


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
