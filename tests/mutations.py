"""Small changes to Python source that tests should notice: a piece of the text is replaced, no line moves."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass

OPERATORS = {
    "compare": "one comparison instead of another: < <=, == !=, in, is",
    "boolean": "and for or",
    "arithmetic": "+ for -, * for //, | for &",
    "sign": "a not, - or ~ is gone",
    "constant": "a number one higher, True for False, another string",
    "condition": "a condition turned round, or always so, or never",
    "statement": "a statement is gone",
    "return": "None is returned",
    "with": "a with statement enters nothing",
    "slice": "a bound of a slice is gone",
    "keyword": "an argument given by name is gone",
    "extreme": "min for max, any for all",
    "decorator": "a decorator is gone",
}

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_REVERSED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)  # the other one equals a `not`
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.BitXor: ("^", "&"),
}
_REMOVED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Delete, ast.Break, ast.Continue)
_EXTREMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
}
# Text that only people or type checkers read.
_LOGS = re.compile(r"_?log(ger|ging)?")
_TOLD = re.compile(r"\w*(Error|Warning)|_?warn")
_FOR_TYPES = {"TypeVar", "ParamSpec", "NewType", "cast"}
_FOR_CHECKERS = {"overload", "abstractmethod", "final", "override"}


@dataclass(frozen=True)
class Mutation:
    """One change to one file.

    Attributes:
        key: the file, the function, the line and what becomes of it; it stays the same when other lines
            change.
        operator: which of `OPERATORS`.
        start: where the piece that is replaced begins, in bytes.
        end: where it ends.
        text: what takes its place.
        line: the line of `start`.
        lines: first and last lines of what is changed, then of each function and class around it.
    """

    key: str
    operator: str
    start: int
    end: int
    text: str
    line: int
    lines: tuple[tuple[int, int], ...]

    def applied(self, source: str) -> str:
        """The changed source."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def mutations(source: str, file: str) -> list[Mutation]:
    """All mutations of a file, in the order of its text. Not all of them parse.

    Texts for people (messages of errors and warnings, logs, docstrings) are left alone, and so are type
    hints, imports, assertions and `__all__`.

    Args:
        source: the text of the file.
        file: its name, for the keys.
    """
    finder = _Finder(source, file)
    finder.visit(ast.parse(source))
    seen, names, found = set(), Counter[str](), []
    for mutation in sorted(finder.found, key=lambda mutation: (mutation.start, -mutation.end)):
        change = mutation.start, mutation.end, mutation.text
        if change not in seen:
            seen.add(change)
            names[mutation.key] += 1
            times = names[mutation.key]
            key = mutation.key if times == 1 else f"{mutation.key} ({times})"
            found.append(Mutation(key, mutation.operator, *change, mutation.line, mutation.lines))
    return found


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str, file: str) -> None:
        self.found: list[Mutation] = []
        self._data = source.encode()
        self._file = file
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._around: list[ast.AST] = []  # classes and functions
        self._is_told = False  # strings here are for people

    # -- text

    def _start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def _end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode()

    def _end_of_line(self, at: int) -> int:
        return self._data.index(b"\n", at)

    def _add(self, operator: str, node: ast.AST, text: str, start: int = -1, end: int = -1) -> None:
        start = self._start(node) if start < 0 else start
        end = self._end(node) if end < 0 else end
        lost = "\n" * (self._data[start:end].count(b"\n") - text.count("\n"))
        if lost:
            text = f"({text}{lost})" if operator in ("constant", "condition") else text + lost
        line = self._data[:start].count(b"\n") + 1
        before = self._text(self._starts[line - 1], self._starts[line]).strip()
        rest = self._text(end, self._end_of_line(end))
        after = (self._text(self._starts[line - 1], start) + text + rest).partition("\n")[0].strip()
        scope = ".".join(str(around.name) for around in self._around)  # type: ignore[attr-defined]
        key = f"{self._file} {scope}: {before} -> {after or '(nothing)'}"
        spans = [node, *reversed(self._around)]
        lines = tuple((one.lineno, one.end_lineno) for one in spans)  # type: ignore[attr-defined]
        self.found.append(Mutation(key, operator, start, end, text, line, lines))

    def _replace_between(
        self, operator: str, node: ast.AST, parts: list[ast.expr], old: str, new: str
    ) -> None:
        """Replaces what stands between two expressions, where there may be parentheses and comments."""
        start, end = self._end(parts[0]), self._start(parts[1])
        pattern = r"\s+".join(map(re.escape, old.split()))
        found = re.search(rf"(?:\#.*\n|[^#])*?({pattern})", self._text(start, end))
        if found is not None:
            first = start + len(found.string[: found.start(1)].encode())
            self._add(operator, node, new, first, first + len(found[1].encode()))

    # -- expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for i, op in enumerate(node.ops):
            self._replace_between("compare", node, operands[i : i + 2], *_COMPARISONS[type(op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for i in range(len(node.values) - 1):
            self._replace_between("boolean", node, node.values[i : i + 2], old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC:
            self._replace_between("arithmetic", node, [node.left, node.right], *_ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start, end = self._start(node), self._start(node.operand)
        rest = re.sub(r"^(not\b|-|~|\+)\s*", "", self._text(start, end))
        self._add("sign", node, rest, start, end)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("constant", node, str(not value))
        elif isinstance(value, (int, float)):
            self._add("constant", node, repr(value + 1))
        elif isinstance(value, str) and not self._is_told:
            self._add("constant", node, '""' if value else '"mutant"')
        elif isinstance(value, bytes):
            self._add("constant", node, 'b""' if value else 'b"mutant"')

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # The parts inside have no positions of their own before Python 3.12.
        if not self._is_told:
            self._add("constant", node, '""')

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper, node.step):
            if bound is not None:
                self._add("slice", bound, "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in _FOR_TYPES:
            for argument in node.args[1:]:
                self.visit(argument)
            return
        if name in _EXTREMES:
            self._add(
                "extreme", node, _EXTREMES[name], self._end(node.func) - len(name), self._end(node.func)
            )
        was_told, self._is_told = self._is_told, self._is_told or bool(_TOLD.fullmatch(name))
        for keyword in node.keywords:
            if keyword.arg is not None:
                comma = re.match(
                    r"\s*,", self._text(self._end(keyword), self._end_of_line(self._end(keyword)))
                )
                end = self._end(keyword) + (comma.end() if comma else 0)
                self._add("keyword", keyword, "", end=end)
        self.generic_visit(node)
        self._is_told = was_told

    def _condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.Constant):
            return
        is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        is_reversed = (
            isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _REVERSED)
        )
        if not is_not and not is_reversed:
            self._add("condition", test, f"not ({self._text(self._start(test), self._end(test))})")
        for always in ("True", "False"):
            self._add("condition", test, always)

    # -- statements

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and self._is_left_alone(node):
            return
        if isinstance(node, _REMOVED):
            self._add("statement", node, "pass")
        super().visit(node)

    def _is_left_alone(self, node: ast.stmt) -> bool:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Global() | ast.Nonlocal() | ast.Pass():
                return True
            case ast.Expr(value=ast.Constant()):
                return True  # a docstring, or ...
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if _LOGS.fullmatch(
                name
            ):
                return True
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                makes_type = isinstance(value, ast.Call) and _name(value.func) in _FOR_TYPES - {"cast"}
                return name == "__all__" or makes_type
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return True
            case ast.FunctionDef(decorator_list=decorators):
                return any(_name(decorator) == "overload" for decorator in decorators)
        return False

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _ARITHMETIC:
            old, new = (f"{sign}=" for sign in _ARITHMETIC[type(node.op)])
            self._replace_between("arithmetic", node, [node.target, node.value], old, new)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._add("statement", node, "pass")
            self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        is_none = node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)
        self._add("statement" if is_none else "return", node, "pass" if is_none else "return None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        was_told, self._is_told = self._is_told, True
        self.generic_visit(node)
        self._is_told = was_told

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            entered = item.context_expr
            text = self._text(self._start(entered), self._end(entered))
            self._add("with", entered, f'__import__("contextlib").nullcontext({text})')
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._around.append(node)
        self._decorators(node.decorator_list)
        self._body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._around.append(node)
        self._decorators(node.decorator_list)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._body(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _body(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)
        self._around.pop()

    def _decorators(self, decorators: list[ast.expr]) -> None:
        for decorator in decorators:
            if _name(decorator) not in _FOR_CHECKERS:
                at = self._data.rindex(b"@", 0, self._start(decorator))
                self._add("decorator", decorator, "", start=at)
                self.visit(decorator)


def _name(node: ast.expr) -> str:
    """The last name of the expression that is called; "" if it has none."""
    match node:
        case ast.Call(func=func):
            return _name(func)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
