"""Resolves names that users type. Common spellings are accepted; unknown names are refused with suggestions."""

from collections.abc import Iterable, Mapping

from chorale.synth.errors import UnknownName


def plain(name: str) -> str:
    """Return `name` in lower case without hyphens, underscores or blanks, for example `allreduce` for `All-Reduce`."""
    return "".join(character for character in name.lower() if character not in "-_ ")


def name_among(kind: str, text: str, names: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return the element of `names` that `text` means. Raises UnknownName, with suggestions, if there is none.

    aliases: maps alternative names, in the form that `plain` returns, to elements of `names`

    >>> name_among("collective", "AllReduce", ["allgather", "allreduce"])
    'allreduce'
    """
    choices = tuple(map(str, names))
    if text in choices:
        return text
    known = {**(aliases or {}), **{plain(name): name for name in choices}}
    name = known.get(plain(text))
    if name is None:
        raise unknown_name(kind, text, choices)
    return name


def unknown_name(kind: str, text: str, names: Iterable[str], all_names: str | None = None) -> UnknownName:
    """Return the error for a name that is not in `names`, with suggestions.

    all_names: says where to find all names; None lists them
    """
    import difflib  # noqa: PLC0415 - only needed for errors

    choices = tuple(map(str, names))
    by_plain = {plain(name): name for name in reversed(choices)}
    close = [by_plain[name] for name in difflib.get_close_matches(plain(text), by_plain, n=2)]
    meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return UnknownName(kind, text, meant + (all_names or f"choose from {', '.join(choices)}"))
