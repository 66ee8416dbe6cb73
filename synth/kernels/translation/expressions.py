"""Expressions of kernels: from Python's syntax tree to C++."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from chorale.synth.kernels.translation import numpy_calls
from chorale.synth.kernels.translation.functions import Catalog, KernelText
from chorale.synth.kernels.translation.values import (
    Value,
    array,
    as_word,
    common,
    constant,
    converted,
    integer,
    scalar,
    truth,
)
from chorale.synth.kernels.types import (
    BOOL,
    INTEGER,
    REAL,
    WORD,
    ArrayType,
    RecordType,
    Scalar,
    TranslationError,
    TupleType,
    Type,
    is_record,
    type_of,
    union_of,
)

_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_FUNCTIONS: dict[type[ast.AST], str] = {ast.FloorDiv: "floor_div", ast.Mod: "floor_mod", ast.Pow: "power"}
_SHIFTS: dict[type[ast.AST], str] = {ast.LShift: "<<", ast.RShift: ">>"}
_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor)


class Expressions:
    """Translates the expressions of one function; `variables` are the types of its parameters and locals so far."""

    def __init__(self, function: KernelText, catalog: Catalog) -> None:
        self.function = function
        self.catalog = catalog
        self.variables: dict[str, Type] = dict(function.parameters)
        self._translate: dict[type[ast.AST], Callable[[Any], Value]] = {
            ast.Constant: lambda node: constant(node.value),
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.BinOp: lambda node: self.binary(self.value(node.left), node.op, self.value(node.right)),
            ast.UnaryOp: self._unary,
            ast.Compare: self._compare,
            ast.BoolOp: self._all_or_any,
            ast.IfExp: self._choice,
            ast.Tuple: self._tuple,
            ast.Call: self._call,
        }

    def value(self, node: ast.expr) -> Value:
        """Return what `node` stands for. TranslationError with the line if that is not known."""
        translate = self._translate.get(type(node))
        if translate is None:
            raise TranslationError(f"{type(node).__name__} is not known in kernels: {ast.unparse(node)}")
        return translate(node)

    def condition(self, node: ast.expr) -> str:
        """Return the text of a condition, for whose value only its truth counts."""
        if isinstance(node, ast.BoolOp):
            sign = " && " if isinstance(node.op, ast.And) else " || "
            return f"({sign.join(self.condition(part) for part in node.values)})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"!{self.condition(node.operand)}"
        return truth(self.value(node))

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.variables:
            return Value(variable(node.id), self.variables[node.id])
        if node.id in self.function.names:
            return constant(self.function.names[node.id])
        raise TranslationError(f"no value yet: {node.id}")

    def _attribute(self, node: ast.Attribute) -> Value:
        if isinstance(node.value, ast.Name) and node.value.id not in self.variables:
            return constant(getattr(self.function.names[node.value.id], node.attr))
        owner = self.value(node.value)
        if isinstance(owner.type, RecordType):
            return Value(f"{owner.text}.{node.attr}", dict(owner.type.fields)[node.attr])
        if node.attr == "size" and isinstance(owner.type, ArrayType):
            return Value(f"{owner.text}.size()", INTEGER)
        if node.attr == "shape" and isinstance(owner.type, ArrayType):
            extents = ", ".join(f"{owner.text}.shape[{axis}]" for axis in range(owner.type.axes))
            return Value(f"std::make_tuple({extents})", TupleType((INTEGER,) * owner.type.axes))
        raise TranslationError(f"no attribute of {owner.type.cpp}: {ast.unparse(node)}")

    def _unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(f"!{self.condition(node.operand)}", BOOL)
        operand = self.value(node.operand)
        if isinstance(node.op, ast.USub):
            if operand.literal is not None:
                return integer(-operand.literal)
            kind = INTEGER if scalar(operand) == BOOL else scalar(operand)
            return Value(f"(-{converted(operand, kind)})", kind)
        if isinstance(node.op, ast.Invert) and isinstance(operand.type, ArrayType):
            return numpy_calls.inverted(operand)
        if isinstance(node.op, ast.Invert):
            return Value(f"(!{operand.text})" if scalar(operand) == BOOL else f"(~{operand.text})", operand.type)
        raise TranslationError(f"no operator of kernels: {ast.unparse(node)}")

    def binary(self, first: Value, sign: ast.operator, second: Value) -> Value:
        """Return `first sign second` of two numbers, or of arrays element by element."""
        if isinstance(first.type, ArrayType) or isinstance(second.type, ArrayType):
            return numpy_calls.elementwise(first, second, lambda a, b: self.binary(a, sign, b))
        if type(sign) in _SHIFTS:
            kind = WORD if scalar(first) == WORD else INTEGER
            return Value(f"({converted(first, kind)} {_SHIFTS[type(sign)]} {second.text})", kind)
        if isinstance(sign, _BITS) and first.type == second.type == BOOL:
            return Value(f"static_cast<bool>({first.text} {_SYMBOLS[type(sign)]} {second.text})", BOOL)
        if isinstance(sign, ast.Div):
            return Value(f"({converted(first, REAL)} / {converted(second, REAL)})", REAL)
        left, right, kind = common(first, second)
        if type(sign) in _FUNCTIONS:
            return Value(f"{_FUNCTIONS[type(sign)]}({left}, {right})", kind)
        return Value(f"({left} {_SYMBOLS[type(sign)]} {right})", kind)

    def _compare(self, node: ast.Compare) -> Value:
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        parts = [self._comparison(first, sign, second) for first, sign, second in pairs]
        return parts[0] if len(parts) == 1 else Value(f"({' && '.join(part.text for part in parts)})", BOOL)

    def _comparison(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Value:
        if isinstance(sign, ast.In) and isinstance(right, ast.Tuple):
            equal = [self._comparison(left, ast.Eq(), item).text for item in right.elts]
            return Value(f"({' || '.join(equal)})", BOOL)
        return self.compared(self.value(left), sign, self.value(right))

    def compared(self, first: Value, sign: ast.cmpop, second: Value) -> Value:
        if isinstance(first.type, ArrayType) or isinstance(second.type, ArrayType):
            return numpy_calls.elementwise(first, second, lambda a, b: self.compared(a, sign, b))
        if first.type == second.type == BOOL:
            return Value(f"({first.text} {_SYMBOLS[type(sign)]} {second.text})", BOOL)
        texts = common(first, second)
        return Value(f"({texts[0]} {_SYMBOLS[type(sign)]} {texts[1]})", BOOL)

    def _all_or_any(self, node: ast.BoolOp) -> Value:
        values = [self.value(part) for part in node.values]
        if any(value.type != BOOL for value in values):
            raise TranslationError(f"a value other than true and false is chosen by its truth: {ast.unparse(node)}")
        return Value(self.condition(node), BOOL)

    def _choice(self, node: ast.IfExp) -> Value:
        first, second = self.value(node.body), self.value(node.orelse)
        if WORD in (first.type, second.type):
            first, second = (as_word(one) if one.literal is not None else one for one in (first, second))
        kind = union_of(first.type, second.type)
        return Value(f"({self.condition(node.test)} ? {converted(first, kind)} : {converted(second, kind)})", kind)

    def _tuple(self, node: ast.Tuple) -> Value:
        values = [self.value(item) for item in node.elts]
        return Value(
            f"std::make_tuple({', '.join(value.text for value in values)})", TupleType(tuple(v.type for v in values))
        )

    def _subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return Value(f"{self.value(node.value.value).text}.shape[{ast.unparse(node.slice)}]", INTEGER)
        owner = self.value(node.value)
        if isinstance(owner.type, TupleType):
            number = ast.literal_eval(node.slice)
            return Value(f"std::get<{number}>({owner.text})", owner.type.items[number])
        if isinstance(node.slice, ast.Compare):
            flags = self.value(node.slice)
            return Value(f"chosen({owner.text}, {flags.text})", ArrayType(array(owner).element))
        element = self.element(owner, node.slice)
        if element.type == array(owner).value and element.type != Scalar(array(owner).element):
            return Value(f"static_cast<{element.type.cpp}>({element.text})", element.type)
        return element

    def element(self, owner: Value, index: ast.expr) -> Value:
        """Return one element, row or part of an array, as what can be assigned to: an element as it is stored."""
        kind = array(owner)
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if any(isinstance(part, ast.Slice) for part in parts):
            return self._part(owner, parts)
        if len(parts) == kind.axes:
            indices = [self._index(part) for part in parts]
            return Value(f"{owner.text}({', '.join(indices)})", kind.value)
        if len(parts) < kind.axes:
            rows = "".join(f".row({self._index(part)})" for part in parts)
            return Value(f"{owner.text}{rows}", ArrayType(kind.element, kind.axes - len(parts)))
        raise TranslationError(f"{len(parts)} indices for {kind.axes} axes: {owner.text}[{ast.unparse(index)}]")

    def _index(self, node: ast.expr) -> str:
        value = self.value(node)
        if scalar(value) in (REAL, BOOL):
            raise TranslationError(f"no index: {value.text}")
        return converted(value, INTEGER)

    def _part(self, owner: Value, parts: list[ast.expr]) -> Value:
        kind = array(owner)
        match parts:
            case [ast.Slice(lower=None, upper=None, step=ast.UnaryOp())]:
                return Value(f"reversed({owner.text})", ArrayType(kind.element, strided=True))
            case [ast.Slice() as rows, column] if not isinstance(column, ast.Slice) and kind.axes == 2:
                bounds = ", ".join(self._bounds(rows))
                text = f"column({owner.text}, {bounds}, {self._index(column)})"
                return Value(text, ArrayType(kind.element, strided=True))
            case [first, *others] if not isinstance(first, ast.Slice) and kind.axes > 1:
                row = Value(f"{owner.text}.row({self._index(first)})", ArrayType(kind.element, kind.axes - 1))
                return self._part(row, others)
        text = owner.text
        for axis, part in enumerate(parts):
            if not isinstance(part, ast.Slice) or part.step is not None or kind.strided:
                raise TranslationError(f"no part of an array that kernels know: {ast.unparse(part)}")
            if part.lower is not None or part.upper is not None:
                text = f"{text}.slice({axis}, {', '.join(self._bounds(part))})"
        return Value(text, kind)

    def _bounds(self, part: ast.Slice) -> tuple[str, str]:
        first = "0" if part.lower is None else converted(self.value(part.lower), INTEGER)
        return first, "END" if part.upper is None else converted(self.value(part.upper), INTEGER)

    def _call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "np":
                return numpy_calls.call(self, node)
            return numpy_calls.method(self, node)
        assert isinstance(node.func, ast.Name)
        callee = self.function.names.get(node.func.id)
        if is_record(callee):
            return self._record(node, callee)
        known = self.catalog.callee(callee, lambda: [self.value(one).type for one in node.args])
        if known is not None:
            return Value(f"{known.cpp_name}({self._arguments(node, known)})", known.result)
        return numpy_calls.builtin(self, node)

    def _record(self, node: ast.Call, record: Any) -> Value:
        kind = type_of(record)
        assert isinstance(kind, RecordType)
        self.catalog.note_record(record)
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        nodes = [*node.args, *(named[name] for name, _ in kind.fields[len(node.args) :])]
        texts = [converted(self.value(one), field) for one, (_, field) in zip(nodes, kind.fields, strict=True)]
        return Value(f"{kind.name}{{{', '.join(texts)}}}", kind)

    def _arguments(self, node: ast.Call, callee: KernelText) -> str:
        if node.keywords:
            raise TranslationError(f"arguments of kernels have no names: {ast.unparse(node)}")
        pairs = zip(node.args, callee.parameters.values(), strict=True)
        return ", ".join(self._argument(self.value(one), kind) for one, kind in pairs)

    def _argument(self, value: Value, kind: Type) -> str:
        if kind == WORD and value.literal is not None:
            return as_word(value).text
        if isinstance(kind, Scalar) and value.type == WORD and kind == INTEGER:
            raise TranslationError(f"an unsigned number for a signed one: {value.text}")
        return converted(value, kind)


def variable(name: str) -> str:
    """Return the name of a variable in C++: another than its words and what the header declares."""
    return f"{name}_"
