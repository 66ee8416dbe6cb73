"""Defines base classes of all commands. They add help, `--json`, and one error that lists all missing arguments."""

import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from chorale.synth.errors import InvalidInput

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


class ChoraleCommand(TyperCommand):
    """A command that reports all missing arguments in one error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and not {"-h", "--help"} & set(args):
            self._require(ctx, args)
        return super().parse_args(ctx, args)

    def _require(self, ctx: Any, args: list[str]) -> None:
        """Raise InvalidInput if arguments are missing or superfluous. The error lists all of them."""
        values, extra, _ = self.make_parser(ctx).parse_args(list(args))  # raises for an unknown option
        if extra and not ctx.allow_extra_args:
            options = [item for item in self.params if item.param_type_name == "option" and item.required]
            values_of = " ".join(f"{_name(item)} VALUE" for item in options)
            way_out = f"write each value after the name of its option: {values_of}" if options else "leave them out"
            raise InvalidInput(f"`{ctx.command_path}` takes fewer arguments", " ".join(extra), way_out)
        required = [parameter for parameter in self.params if parameter.required]
        with type(ctx)(self, info_name=ctx.info_name, parent=ctx.parent, resilient_parsing=True) as probe:
            missing = [item for item in required if item.value_is_missing(item.consume_value(probe, values)[0])]
        if missing:
            named = []
            for item in missing:  # add the first sentence of the item's help
                text = re.split(r"[.;:](?: |$)", getattr(item, "help", None) or "")[0]
                is_word = text[1:2].islower() or text[1:2] == " "
                lowered = f" ({text[:1].lower() if is_word else text[:1]}{text[1:]})" if text else ""
                named.append(f"{_name(item)}{lowered}")
            *others, last = named
            names = f"{', '.join(others)} and {last}" if others else last
            raise InvalidInput(f"`{ctx.command_path}` needs {names}", "", f"see `{ctx.command_path} --help`")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of arguments and options and, if METHOD is an argument, a list of all methods."""
        super().format_options(ctx, formatter)
        if any("METHOD" in str(parameter.metavar) for parameter in self.params):
            from chorale.synth.methods.catalog import METHODS  # noqa: PLC0415 - only for this help

            with formatter.section("Methods"):
                formatter.write_dl([(method.name, method.summary) for method in METHODS.values()])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line. METHOD is shown as optional, although the parser treats it as a list."""
        return [piece.replace("[METHOD]...", "[METHOD]") for piece in super().collect_usage_pieces(ctx)]


class CommandLine(typer.Typer):
    """A group of `ChoraleCommand`s whose help texts are plain, without markup.

    A command that returns a `Result` gets the option `--json`. The command prints the result as JSON or as text, and
    exits with the result's exit code. A dataclass parameter is replaced by one option for each field.
    Help texts come from the `Args` sections of docstrings.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(rich_markup_mode=None, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, cls=ChoraleCommand, **options)

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            register(_printing(function))
            return function

        return registered


def _printing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command for `function`, with help texts from the `Args` section of its docstring.

    Each field of a dataclass parameter becomes an option, and `--json` is added if `function` returns a result.
    """
    signature = inspect.signature(function, eval_str=True)
    models = {
        name: cast(type[Any], each.annotation)
        for name, each in signature.parameters.items()
        if is_dataclass(each.annotation)
    }
    prints = signature.return_annotation not in (None, signature.empty)

    @wraps(function)
    def command(**values: Any) -> None:
        as_json = values.pop("as_json") if prints else False
        for name, model in models.items():
            values[name] = model(**{each.name: values.pop(each.name) for each in fields(model)})
        result = function(**values)
        if prints and result is not None:
            from chorale.tuner.cli.options import print_result  # noqa: PLC0415 - rich, which `--help` does not need

            print_result(result, as_json)

    summary, helps = _described(function)
    parameters: list[inspect.Parameter] = []
    for name, each in signature.parameters.items():
        if name not in models:
            parameters.append(_parameter(name, each.annotation, each.default, helps))
            continue
        hints, (_, model_helps) = get_type_hints(models[name], include_extras=True), _described(models[name])
        for one in fields(models[name]):
            default = inspect.Parameter.empty if one.default is MISSING else one.default
            parameters.append(_parameter(one.name, hints[one.name], default, model_helps))
    if prints:
        parameters.append(_parameter("as_json", AsJson, False, {}))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = summary
    return command


def _described(documented: Any) -> tuple[str, dict[str, str]]:
    """Return the docstring without `Args`, and a help text for each argument, including those of base classes."""
    helps: dict[str, str] = {}
    paragraphs: list[str] = []
    for each in reversed(getattr(documented, "__mro__", (documented,))):
        paragraphs = inspect.cleandoc(each.__doc__ or "").split("\n\n")
        for paragraph in paragraphs:
            if paragraph.startswith("Args:"):
                for entry in re.split(r"\n {4}(?=\w+: )", paragraph)[1:]:
                    name, _, text = entry.partition(": ")
                    helps[name] = " ".join(text.split())
    return "\n\n".join(each for each in paragraphs if not each.startswith("Args:")), helps


def _parameter(name: str, annotation: Any, default: Any, helps: Mapping[str, str]) -> inspect.Parameter:
    if name in helps:
        annotation, *infos = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        make = typer.Argument if default is inspect.Parameter.empty else typer.Option
        flag = [f"--{name.replace('_', '-')}"] if annotation is bool else []  # without a `--no-…` form
        least = getattr(infos[0], "ge", None) if infos else None  # a lower bound that both pydantic and typer check
        info = copy(infos[0]) if infos and least is None else make(*flag, min=least)
        info.help = helps[name]
        annotation = Annotated[annotation, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _name(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    return str(parameter.opts[0] if is_option else parameter.human_readable_name.upper())
