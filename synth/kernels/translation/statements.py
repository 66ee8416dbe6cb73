"""Statements of kernels: from Python's syntax tree to C++."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from chorale.synth.kernels.translation.expressions import Expressions, variable
from chorale.synth.kernels.translation.functions import Catalog, KernelText
from chorale.synth.kernels.translation.values import Value, array, as_word, converted, integer, scalar
from chorale.synth.kernels.types import (
    CPP_ELEMENTS,
    INTEGER,
    WORD,
    ArrayType,
    Nothing,
    RecordType,
    Scalar,
    TranslationError,
    TupleType,
    Type,
    union_of,
)

Lines = list[str]


class Body:
    """Translates the statements of one function; the types of its variables follow from what is assigned to them."""

    def __init__(self, function: KernelText, catalog: Catalog) -> None:
        self.function = function
        self.expressions = Expressions(function, catalog)
        self._temporaries = 0
        self._translate: dict[type[ast.AST], Callable[[Any], Iterator[str]]] = {
            ast.Assign: self._assign,
            ast.AnnAssign: lambda node: self._store(node.target, self.expressions.value(node.value)),
            ast.AugAssign: self._update,
            ast.For: self._for,
            ast.While: self._while,
            ast.If: self._if,
            ast.Return: self._return,
            ast.Expr: self._expression,
            ast.Raise: self._raise,
            ast.Break: lambda _: iter(["break;"]),
            ast.Continue: lambda _: iter(["continue;"]),
            ast.Pass: lambda _: iter([]),
        }

    def lines(self) -> Lines:
        """Return the text between the braces of the function: its variables, then its statements."""
        while True:
            before = dict(self.expressions.variables)
            self._temporaries = 0
            statements = self._block(self.function.tree.body)
            if self.expressions.variables == before:
                return [*self._declarations(), *statements, *self._end()]

    def assigned_parameters(self) -> set[str]:
        """Return the parameters to which the function assigns."""
        stored = {
            node.id
            for node in ast.walk(self.function.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return stored & set(self.function.parameters)

    def _declarations(self) -> Iterator[str]:
        for name, kind in self.expressions.variables.items():
            if name not in self.function.parameters:
                yield f"[[maybe_unused]] {kind.cpp} {variable(name)}{{}};"

    def _end(self) -> Lines:
        returns = isinstance(self.function.tree.body[-1], ast.Return) or isinstance(self.function.result, Nothing)
        return [] if returns else ['throw std::logic_error("no result");']

    def _block(self, statements: Sequence[ast.stmt]) -> Lines:
        lines: Lines = []
        for node in statements:
            translate = self._translate.get(type(node))
            try:
                if translate is None:
                    raise TranslationError(f"no statement of kernels: {ast.unparse(node)}")
                lines += translate(node)
            except TranslationError as error:
                if ".py:" in str(error):
                    raise
                raise TranslationError(f"{error} ({self.function.place_of(node)})") from None
        return lines

    def _nested(self, head: str, statements: Sequence[ast.stmt], first: Sequence[str] = ()) -> Iterator[str]:
        yield f"{head} {{"
        yield from (f"    {line}" for line in (*first, *self._block(statements)))
        yield "}"

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    # Assignments

    def _assign(self, node: ast.Assign) -> Iterator[str]:
        if isinstance(node.value, ast.Tuple) and all(isinstance(target, ast.Tuple) for target in node.targets):
            values = [self.expressions.value(item) for item in node.value.elts]
            yield from self._assign_all(node.targets[0].elts, values)  # type: ignore[attr-defined]
            return
        value = self.expressions.value(node.value)
        for target in node.targets:
            yield from self._store(target, value)

    def _assign_all(self, targets: Sequence[ast.expr], values: Sequence[Value]) -> Iterator[str]:
        """Assign to all targets at once: no value is changed before all have been read."""
        simple = all(value.literal is not None for value in values)
        held = values if simple else []
        if not simple:
            yield "{"
            for value in values:
                name = self._temporary()
                yield f"    const {value.type.cpp} {name} = {value.text};"
                held = [*held, Value(name, value.type, value.literal)]
        for target, value in zip(targets, held, strict=True):
            yield from self._store(target, value)
        if not simple:
            yield "}"

    def _store(self, target: ast.expr, value: Value) -> Iterator[str]:
        if isinstance(target, ast.Name):
            yield self._store_name(target.id, value)
        elif isinstance(target, ast.Subscript):
            yield self._store_element(target, value)
        elif isinstance(target, ast.Tuple) and isinstance(value.type, TupleType | RecordType):
            name = self._temporary()
            yield "{"
            yield f"    const auto {name} = {value.text};"
            for item, part in zip(target.elts, _parts(Value(name, value.type)), strict=True):
                yield from self._store(item, part)
            yield "}"
        else:
            raise TranslationError(f"nothing can be assigned to {ast.unparse(target)} from {value.type.cpp}")

    def _store_name(self, name: str, value: Value) -> str:
        variables = self.expressions.variables
        if variables.get(name) == WORD and value.literal is not None:
            value = as_word(value)
        kind = value.type
        if isinstance(kind, ArrayType) and kind.strided:
            raise TranslationError(f"a column has no name: copy it: {name}")
        before = variables.get(name)
        variables[name] = kind if before is None else union_of(before, kind)
        if name in self.function.parameters and variables[name] != self.function.parameters[name]:
            raise TranslationError(f"the parameter {name} is {before.cpp if before else ''}, not {kind.cpp}")
        return f"{variable(name)} = {converted(value, variables[name])};"

    def _store_element(self, target: ast.Subscript, value: Value) -> str:
        element = self.expressions.element(self.expressions.value(target.value), target.slice)
        if isinstance(element.type, ArrayType):
            function = "assign" if isinstance(value.type, ArrayType) else "fill"
            return f"{function}({element.text}, {value.text});"
        return f"{element.text} = {self._as_element(value, target)};"

    def _as_element(self, value: Value, target: ast.Subscript) -> str:
        stored = CPP_ELEMENTS[array(self.expressions.value(target.value)).element]
        scalar(value)
        return f"static_cast<{stored}>({value.text})"

    def _update(self, node: ast.AugAssign) -> Iterator[str]:
        right = self.expressions.value(node.value)
        if isinstance(node.target, ast.Name):
            left = self.expressions.value(node.target)
            if not isinstance(left.type, ArrayType):
                yield self._store_name(node.target.id, self.expressions.binary(left, node.op, right))
                return
            element = left
        else:
            assert isinstance(node.target, ast.Subscript)
            element = self.expressions.element(self.expressions.value(node.target.value), node.target.slice)
        if isinstance(element.type, ArrayType):
            yield self._update_array(element, node.op, right)
            return
        assert isinstance(node.target, ast.Subscript)
        old = Value(f"static_cast<{element.type.cpp}>(element)", element.type)
        new = self._as_element(self.expressions.binary(old, node.op, right), node.target)
        yield f"{{ auto& element = {element.text}; element = {new}; }}"

    def _update_array(self, element: Value, sign: ast.operator, right: Value) -> str:
        kind = array(element)
        old = Value(f"static_cast<{kind.value.cpp}>(a)", kind.value)
        if isinstance(right.type, ArrayType):
            new = self.expressions.binary(old, sign, Value(f"static_cast<{right.type.value.cpp}>(b)", right.type.value))
            return f"update_each({element.text}, {right.text}, [](auto a, auto b) {{ return {new.text}; }});"
        new = self.expressions.binary(old, sign, right)
        return f"update({element.text}, 0, [&](auto a, int) {{ return {new.text}; }});"

    # Loops and conditions

    def _for(self, node: ast.For) -> Iterator[str]:
        if node.orelse:
            raise TranslationError("no else after a loop of kernels")
        call = node.iter
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
            yield from self._for_range(node, call.args)
        elif isinstance(call, ast.Tuple):
            items = ", ".join(converted(self.expressions.value(item), INTEGER) for item in call.elts)
            yield from self._loop(
                node, f"for (const Integer {{0}} : {{{{{items}}}}})", lambda name: Value(name, INTEGER)
            )
        else:
            yield from self._for_array(node, self.expressions.value(call))

    def _for_range(self, node: ast.For, arguments: Sequence[ast.expr]) -> Iterator[str]:
        values = [self.expressions.value(one) for one in arguments]
        first, last = (integer(0), values[0]) if len(values) == 1 else values[:2]
        step = values[2] if len(values) == 3 else integer(1)
        texts = [converted(value, INTEGER) for value in (first, last, step)]
        if step.literal is None:
            raise TranslationError(f"the step of a range is a written number: {step.text}")
        sign = "<" if step.literal > 0 else ">"
        head = f"for (Integer {{0}} = {texts[0]}, {{0}}_end = {texts[1]}; {{0}} {sign} {{0}}_end; {{0}} += {texts[2]})"
        yield from self._loop(node, head, lambda name: Value(name, INTEGER))

    def _for_array(self, node: ast.For, value: Value) -> Iterator[str]:
        kind, name = array(value), self._temporary()
        if kind.axes == 1:
            item = Value(f"static_cast<{kind.value.cpp}>({name}({{0}}))", kind.value)
        else:
            item = Value(f"{name}.row({{0}})", ArrayType(kind.element, kind.axes - 1))
        yield "{"
        yield f"const {kind.cpp} {name} = {value.text};"
        head = f"for (Integer {{0}} = 0; {{0}} < {name}.shape[0]; ++{{0}})"
        yield from self._loop(node, head, lambda index: Value(item.text.replace("{0}", index), item.type))
        yield "}"

    def _loop(self, node: ast.For, head: str, item: Callable[[str], Value]) -> Iterator[str]:
        name = self._temporary()
        yield from self._nested(head.format(name), node.body, [*self._store(node.target, item(name))])

    def _while(self, node: ast.While) -> Iterator[str]:
        yield from self._nested(f"while ({self.expressions.condition(node.test)})", node.body)

    def _if(self, node: ast.If) -> Iterator[str]:
        yield from self._nested(f"if ({self.expressions.condition(node.test)})", node.body)
        if node.orelse:
            yield from self._nested("else", node.orelse)

    # What ends a function, and calls

    def _return(self, node: ast.Return) -> Iterator[str]:
        if node.value is None:
            yield "return;"
        elif isinstance(node.value, ast.Tuple) and isinstance(self.function.result, TupleType):
            pairs = zip(node.value.elts, self.function.result.items, strict=True)
            texts = [converted(self.expressions.value(item), kind) for item, kind in pairs]
            yield f"return {self.function.result.cpp}({', '.join(texts)});"
        else:
            yield f"return {converted(self.expressions.value(node.value), self.function.result)};"

    def _expression(self, node: ast.Expr) -> Iterator[str]:
        if isinstance(node.value, ast.Constant):
            return  # the docstring
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "sort":
            yield f"sort({self.expressions.value(call.func.value).text});"
        else:
            yield f"{self.expressions.value(call).text};"

    def _raise(self, node: ast.Raise) -> Iterator[str]:
        match node.exc:
            case ast.Call(func=ast.Name(id="ValueError"), args=[ast.Constant(value=str(message))]):
                yield f'throw std::invalid_argument("{message}");'
            case _:
                raise TranslationError(f"kernels raise ValueError with a text: {ast.unparse(node)}")


def _parts(value: Value) -> Iterator[Value]:
    """Yield the items of a tuple or record."""
    if isinstance(value.type, RecordType):
        yield from (Value(f"{value.text}.{name}", kind) for name, kind in value.type.fields)
    elif isinstance(value.type, TupleType):
        yield from (Value(f"std::get<{n}>({value.text})", kind) for n, kind in enumerate(value.type.items))


def parameter(name: str, kind: Type, is_assigned: bool) -> str:
    """Return the declaration of a parameter: by reference where that is cheaper and nothing is assigned to it."""
    by_value = is_assigned or isinstance(kind, Scalar)
    return f"{kind.cpp} {variable(name)}" if by_value else f"const {kind.cpp}& {variable(name)}"
