"""The whole program: all kernels with what they call, and the entries by which Python calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from chorale.synth.kernels.native_call import entry_of
from chorale.synth.kernels.translation.functions import Catalog, KernelText
from chorale.synth.kernels.translation.statements import Body, parameter
from chorale.synth.kernels.types import Nothing, RecordType

_HEAD = """// Made from the Python text of the kernels: see chorale/synth/kernels.
#include "call.hpp"

namespace chorale {
"""
_TAIL = """
CHORALE_EXPORT void chorale_release(chorale::Storage* storage) { chorale::Owner::release(storage); }
CHORALE_EXPORT const char* chorale_message() { return chorale::message(); }
CHORALE_EXPORT const char* chorale_sources() { return "%s"; }
"""


def program_text(kernels: Sequence[Callable[..., Any]], sources: str) -> str:
    """Return C++ for `kernels` and what they call; the library that is made of it says `sources` when it is asked.

    TranslationError, with file and line, where a kernel uses what the translation does not know.
    """
    catalog = Catalog()
    for kernel in kernels:
        catalog.add(kernel)
    functions = list(_functions(catalog))
    entries = [entry for kernel in kernels for text in catalog.texts[kernel] for entry in _entry(text)]
    records = [line for record in catalog.records.values() for line in _record(record)]
    heads = [f"{head};" for head, _ in functions]
    bodies = [line for head, body in functions for line in (f"{head} {{", *(f"    {one}" for one in body), "}", "")]
    inside = "\n".join([*records, "", *heads, "", *bodies])
    return "\n".join([_HEAD, inside, "}  // namespace chorale", "", *entries, _TAIL % sources.replace("\n", "\\n")])


def _functions(catalog: Catalog) -> Iterator[tuple[str, list[str]]]:
    """Yield head and lines of every function; those that it calls join the catalog as it is translated."""
    while catalog.waiting:
        text = catalog.waiting.pop()
        body = Body(text, catalog)
        lines = body.lines()
        assigned = body.assigned_parameters()
        parameters = ", ".join(parameter(name, kind, name in assigned) for name, kind in text.parameters.items())
        yield f"static {text.result.cpp} {text.cpp_name}({parameters})", lines


def _record(record: RecordType) -> Iterator[str]:
    """Yield the struct of a record, and how it is read from the slots of a call and written to those of a result."""
    yield f"struct {record.name} {{"
    yield from (f"    {kind.cpp} {name}{{}};" for name, kind in record.fields)
    yield "};"
    for verb, argument in (
        ("take", f"Slots& slots, {record.name}& record"),
        ("give", f"Results& slots, const {record.name}& record"),
    ):
        calls = " ".join(f"{verb}(slots, record.{name});" for name, _ in record.fields)
        yield f"[[maybe_unused]] static void {verb}({argument}) {{ {calls} }}"


def _entry(text: KernelText) -> Iterator[str]:
    """Yield the function that the library exports for a kernel."""
    arguments = "[[maybe_unused]] chorale::Slots in, [[maybe_unused]] chorale::Results out"
    yield f"CHORALE_EXPORT int {entry_of(text.cpp_name)}({arguments}) {{"
    yield "    using namespace chorale;"
    yield "    return guarded([&] {"
    for name, kind in text.parameters.items():
        yield f"        {kind.cpp} {name}_{{}};"
        yield f"        take(in, {name}_);"
    call = f"{text.cpp_name}({', '.join(f'{name}_' for name in text.parameters)})"
    yield f"        {call};" if isinstance(text.result, Nothing) else f"        give(out, {call});"
    yield "    });"
    yield "}"
