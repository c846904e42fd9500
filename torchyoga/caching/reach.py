"""A function -> digests of the functions, classes and constants that it reaches, and the packages it uses.

What is reached is read from the source, never from values.
A name is looked up where its module binds it: as a function or class, whose code is followed in turn, as the
expression that is assigned to it, or as an import. So a list that fills up while the program runs, or a path
that another machine has, is no change; a helper that is edited, three modules away, is one. Modules count as
the user's own if they are of the function's package, or lie outside the folders that packages are installed
in; others count by their version. Nothing is imported for it. What is looked up by text, or chosen while the
program runs, is not seen.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ..process.digests import hexdigest
from ..versions.lineage import MOST_SOURCE
from .code import definition_of, inside_of, lambdas_at, undisturbed, words_of

__all__ = ["Reached", "reached_by", "version_of"]

_MOST_PARTS, _MOST_NAMES = 500, 5000  # noted, and looked up
_NO_SOURCE = (OSError, TypeError, ValueError, IndexError, SyntaxError, RecursionError)
_Chain = tuple[str, ...]  # a name and attributes, as in helpers.scale
_Imports = Mapping[str, Sequence[ast.stmt]]  # statements that bind a name
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Reached:
    """Everything that a function's code reaches.

    Attributes:
        parts: a digest of each function, class and constant, by name; the names of those of other modules
            than the function's begin with the module and a colon.
        packages: versions of the packages of others, by name.
        source: the source of the function and of its parts, 64 KiB at most.
        is_known: False if the function itself has no source, or its file has changed since it was imported.
    """

    parts: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    source: str = ""
    is_known: bool = True


def reached_by(function: Callable[..., object]) -> Reached:
    """Everything that the code of a function or class reaches; nothing if it has no source.

    Example:
        >>> from torchyoga.caching.code import digest_of
        >>> found = reached_by(digest_of)
        >>> found.source.startswith("def digest_of"), "inside_of" in found.parts, "torch" in found.packages
        (True, True, False)
    """
    known = _known.get(id(function))
    if (
        known is not None
        and known[0] is function
        and all(_stamp(file) == at for file, at in known[1].items())
    ):
        return known[2]
    walk = _Walk(inside_of(function))
    try:
        found = walk.run()
    except RecursionError:  # code nested deeper than Python can follow
        found = Reached(is_known=False)
    if walk.files is not None:
        if len(_known) >= _MOST_PARTS:
            _known.clear()
        _known[id(function)] = function, walk.files, found
    return found


_known: dict[
    int, tuple[object, dict[str, object], Reached]
] = {}  # by id of the function, which it keeps alive


class _Walk:
    """One walk over everything that is reached, nearest first."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._home = _module_of(function)
        self._parts: dict[str, str] = {}
        self._packages: dict[str, str] = {}
        self._waiting: deque[tuple[str, _Chain]] = deque()
        self._seen: set[tuple[str, _Chain]] = set()
        self._sources: list[str] = []
        self._left = MOST_SOURCE
        self._is_known = False
        # The files that the result depends on; None if it depends on values, too.
        self.files: dict[str, object] | None = {}

    def run(self) -> Reached:
        """Everything, from the function on."""
        self._add_object(self._function, None)
        outer = getattr(self._function, "__qualname__", "").partition(".")[0]
        text = self._text(self._home)
        bound = text.bound.get(outer, ()) if text is not None else ()
        if any(isinstance(one, ast.ClassDef) for one in bound) and not isinstance(self._function, type):
            self._wait(self._home, (outer,))  # a method may call others of its class
        while self._waiting and len(self._parts) < _MOST_PARTS and len(self._seen) < _MOST_NAMES:
            self._look_up(*self._waiting.popleft())
        return Reached(self._parts, self._packages, "\n\n\n".join(self._sources), self._is_known)

    def _text(self, module: str) -> _Text | None:
        """The text of a module; None if it has no file."""
        file = _file_of(module)
        if file is None:
            return None
        stamp = _stamp(file)
        if self.files is not None:
            self.files[file] = stamp
        return _parsed(file, stamp, module, _is_package(module))

    def _is_own(self, module: str) -> bool:
        top = module.partition(".")[0]
        return top == self._home.partition(".")[0] or _is_users(top)

    # -- what is found

    def _add_object(self, value: object, name: str | None) -> None:
        """A function or class that is not looked up by a name of its module; None for the first one."""
        module = _module_of(value)
        try:
            if isinstance(value, types.FunctionType) and value.__name__ == "<lambda>":
                trees: list[ast.AST] = [*lambdas_at(value.__code__)]
            else:
                trees = [definition_of(value)]  # type: ignore[arg-type]
        except _NO_SOURCE:
            return
        self._is_known = True
        self._keep("\n".join(map(ast.unparse, trees)))
        if name is not None:
            self._parts[self._named(module, name)] = _digest(trees)
        for tree in trees:
            self._follow(module, tree)
        if isinstance(value, types.FunctionType):
            for captured, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                try:
                    inner = inside_of(cell.cell_contents)
                except (ValueError, AttributeError):  # nothing has been assigned yet
                    continue
                place = _module_of(inner), ("captured", captured)
                is_code = isinstance(inner, (types.FunctionType, type)) and self._is_own(place[0])
                if is_code and place not in self._seen:
                    self._seen.add(place)
                    self.files = None  # another one may be captured later
                    self._add_object(inner, f"captured {captured}")

    def _define(self, module: str, name: str, statements: Sequence[ast.stmt], lines: Sequence[str]) -> None:
        """A name that a module binds to code or to the value of an expression."""
        part = self._named(module, name)
        if part in self._parts:
            return
        self._parts[part] = _digest(statements, self._decorators(module))
        for statement in statements:
            self._keep("\n".join(lines[statement.lineno - 1 : statement.end_lineno]))
            self._follow(module, statement)

    def _named(self, module: str, name: str) -> str:
        return name if module == self._home else f"{module}:{name}"

    def _keep(self, source: str) -> None:
        source = textwrap.dedent(source).rstrip()
        nbytes = len(source.encode(errors="replace")) + 3
        if nbytes <= self._left:
            self._left -= nbytes
            self._sources.append(source)

    def _add_package(self, module: str) -> None:
        name = module.partition(".")[0]
        if name not in self._packages and (version := version_of(name)) is not None:
            self._packages[name] = version

    # -- where it is found

    def _wait(self, module: str, chain: _Chain) -> None:
        if not self._is_own(module):
            self._add_package(module)
        elif (module, chain) not in self._seen:
            self._seen.add((module, chain))
            self._waiting.append((module, chain))

    def _follow(self, module: str, tree: ast.AST) -> None:
        """Adds everything that the code of a tree reaches."""
        names = _Names(tree, self._decorators(module))
        for chain in sorted(names.chains):
            self._step(module, chain, names.imports)
        for statement in (one for many in names.imports.values() for one in many):
            if isinstance(statement, ast.ImportFrom):
                base = _absolute(statement, module, _is_package(module))
                for alias in statement.names:
                    if not _is_module(f"{base}.{alias.name}"):
                        self._wait(base, (alias.name,))
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    if not self._is_own(alias.name):
                        self._add_package(alias.name)

    def _decorators(self, module: str) -> frozenset[str]:
        """Names by which decorators count: of functions, classes and modules, unlike that of a storage."""
        text = self._text(module)
        bound = text.bound if text is not None else {}
        values = (ast.Assign, ast.AnnAssign, ast.AugAssign)
        return frozenset(name for name, many in bound.items() if not any(isinstance(s, values) for s in many))

    def _look_up(self, module: str, chain: _Chain) -> None:
        text = self._text(module)
        if text is None:
            self._look_at(module, chain)
            return
        if chain[0] in text.bound:
            self._step(module, chain, {})
            return
        if _is_module(f"{module}.{chain[0]}"):
            self._enter(f"{module}.{chain[0]}", chain[1:])
            return
        for star in text.stars:
            self._wait(_absolute(star, module, _is_package(module)), chain)

    def _step(self, module: str, chain: _Chain, imports: _Imports) -> None:
        """One name, as a statement binds it."""
        text = self._text(module)
        name, statements = chain[0], imports.get(chain[0], ())
        if not statements and text is None:
            self._look_at(module, chain)
            return
        if not statements and text is not None:
            statements = text.bound.get(name, ())
            if not statements and text.stars:
                self._wait(module, chain)
                return
        definitions = []
        for statement in statements:
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        self._enter(alias.name if alias.asname else name, chain[1:])
            elif isinstance(statement, ast.ImportFrom):
                base = _absolute(statement, module, _is_package(module))
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        if self._is_own(base) and _is_module(f"{base}.{alias.name}"):
                            self._enter(f"{base}.{alias.name}", chain[1:])
                        else:
                            self._wait(base, (alias.name, *chain[1:]))
            else:
                definitions.append(statement)
        if definitions and text is not None:
            self._define(module, name, definitions, text.lines)

    def _enter(self, module: str, rest: _Chain) -> None:
        """An attribute of a module, which may be a module itself."""
        if not self._is_own(module):
            self._add_package(module)
            return
        while rest and _is_module(f"{module}.{rest[0]}"):
            module, rest = f"{module}.{rest[0]}", rest[1:]
        if rest:
            self._wait(module, rest)

    def _look_at(self, module: str, chain: _Chain) -> None:
        """A name of a module without a file, as of a notebook: by what it is bound to now."""
        self.files = None
        value = getattr(sys.modules.get(module), chain[0], None)
        if isinstance(value, types.ModuleType):
            self._enter(value.__name__, chain[1:])
        elif isinstance(value, (types.FunctionType, type)):
            inside = inside_of(value)
            other = _module_of(inside)
            part = self._named(module, chain[0])
            if not self._is_own(other):
                self._add_package(other)
            elif _file_of(other) is not None:
                self._wait(other, (getattr(inside, "__qualname__", chain[0]).partition(".")[0],))
            elif part not in self._parts:
                self._parts[part] = ""  # until its code is known, which may reach itself
                self._add_object(inside, chain[0])
                if not self._parts[part]:
                    del self._parts[part]
        elif _is_plain(value):
            text = f"{type(value).__name__} {value!r}"
            self._parts[self._named(module, chain[0])] = hexdigest(text.encode(errors="backslashreplace"))


class _Names:
    """The names that a tree takes from its module, and the imports inside it."""

    def __init__(self, tree: ast.AST, decorators: frozenset[str]) -> None:
        self.chains: set[_Chain] = set()
        self.imports: dict[str, list[ast.stmt]] = {}
        self._decorators = decorators
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self.imports.setdefault(name, []).append(node)
        self._visit(tree, frozenset())

    def _visit(self, node: ast.AST, scope: frozenset[str]) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id not in scope:
                self.chains.add((node.id,))
        elif isinstance(node, ast.Attribute):
            chain = _chain_of(node)
            if not chain:
                self._visit(node.value, scope)
            elif chain[0] not in scope:
                self.chains.add(chain)
        elif isinstance(node, _DEFINITIONS):
            for decorator in node.decorator_list:
                root = _root_of(decorator)
                if root in self._decorators or root in self.imports:
                    self._visit(decorator, scope)
            inner = scope if isinstance(node, ast.ClassDef) else scope | self._local(node)
            for name, value in ast.iter_fields(node):
                if name != "decorator_list":
                    for child in value if isinstance(value, list) else [value]:
                        if isinstance(child, ast.AST):
                            self._visit(child, inner if name == "body" else scope)
        elif isinstance(node, ast.Lambda):
            self._visit(node.args, scope)
            self._visit(node.body, scope | self._local(node))
        else:
            if isinstance(node, _COMPREHENSIONS):
                scope = scope | {n for g in node.generators for n in _stored([g.target])}
            for child in ast.iter_child_nodes(node):
                self._visit(child, scope)

    def _local(self, function: _Function) -> frozenset[str]:
        """The names that a function binds itself, but for those that it imports."""
        args = function.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        found = {one.arg for one in every if one is not None}
        body = function.body if isinstance(function.body, list) else [function.body]
        found |= {*_stored(body)}
        globals_ = {n for node in ast.walk(function) if isinstance(node, ast.Global) for n in node.names}
        return frozenset(found - globals_ - self.imports.keys())


def _chain_of(node: ast.Attribute) -> _Chain:
    """A name and its attributes; nothing if they are of another expression."""
    names, at = [node.attr], node.value
    while isinstance(at, ast.Attribute):
        names.append(at.attr)
        at = at.value
    return (at.id, *names[::-1]) if isinstance(at, ast.Name) else ()


def _stored(trees: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements bind, without those of functions and classes within."""
    for tree in trees:
        if isinstance(tree, _DEFINITIONS):
            yield tree.name
        elif isinstance(tree, ast.Lambda):
            continue
        elif isinstance(tree, ast.Name):
            if not isinstance(tree.ctx, ast.Load):
                yield tree.id
        else:
            if isinstance(tree, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and tree.name:
                yield tree.name
            yield from _stored(ast.iter_child_nodes(tree))


# -- modules


@dataclass(frozen=True)
class _Text:
    """A module as its file has it.

    Attributes:
        lines: of the file.
        bound: the statements that bind a name, by name.
        stars: statements that import all names of a module.
    """

    lines: list[str]
    bound: dict[str, list[ast.stmt]]
    stars: list[ast.ImportFrom]


@functools.lru_cache(maxsize=256)
def _parsed(file: str, stamp: object, module: str, is_package: bool) -> _Text | None:
    """The text of a module; the same until its file changes."""
    try:
        source = importlib.util.decode_source(Path(file).read_bytes())
        tree = undisturbed(lambda: ast.parse(source))
    except (*_NO_SOURCE, MemoryError):
        return None
    text = _Text(source.splitlines(), {}, [])
    waiting: deque[ast.AST] = deque(tree.body)
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            text.stars.append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                text.bound.setdefault(alias.asname or alias.name.partition(".")[0], []).append(node)
        elif isinstance(node, ast.stmt):
            inner = [n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.stmt, ast.ExceptHandler))]
            if inner and not isinstance(node, _DEFINITIONS):  # if, try, with, for: what they bind inside
                waiting.extend(inner)
            else:
                for name in _stored([node]):
                    text.bound.setdefault(name, []).append(node)
        elif isinstance(node, ast.ExceptHandler):
            waiting.extend(node.body)
    return text


def _stamp(file: str) -> object:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _module_of(value: object) -> str:
    found = getattr(value, "__module__", None)
    return found if isinstance(found, str) and found else "__main__"


@functools.lru_cache(maxsize=4096)
def _spec(module: str) -> ModuleSpec | None:
    """Where a module would be imported from; imports nothing."""
    parent, _, _ = module.rpartition(".")
    try:
        if not parent:
            return PathFinder.find_spec(module)
        loaded = sys.modules.get(parent)
        above = None if loaded is not None else _spec(parent)
        places = getattr(loaded, "__path__", None) if loaded is not None else None
        if above is not None:
            places = above.submodule_search_locations
        return None if places is None else PathFinder.find_spec(module, list(places))
    except (ImportError, ValueError, AttributeError, TypeError, OSError):
        return None


def _file_of(module: str) -> str | None:
    """The file of a module's source."""
    loaded = sys.modules.get(module)
    found = getattr(loaded, "__file__", None)
    if loaded is None:
        spec = _spec(module)
        found = spec.origin if spec is not None else None
    return found if isinstance(found, str) and found.endswith(".py") and os.path.isfile(found) else None


def _is_module(module: str) -> bool:
    return module in sys.modules or _spec(module) is not None


def _is_package(module: str) -> bool:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return hasattr(loaded, "__path__")
    spec = _spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def _absolute(statement: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module that a statement imports from."""
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - statement.level + is_package]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


@functools.lru_cache(maxsize=1024)
def _is_users(top: str) -> bool:
    """True for a module that the user has written: not installed as a package, nor of Python."""
    if top == "__main__":
        return True
    if top in sys.stdlib_module_names or top in ("torchyoga", ""):
        return False
    loaded, spec = sys.modules.get(top), _spec(top)
    places = [getattr(loaded, "__file__", None), spec.origin if spec is not None else None]
    if spec is not None:
        places += list(spec.submodule_search_locations or [])
    found = next((place for place in places if isinstance(place, str)), None)
    if found is None or {"site-packages", "dist-packages"} & set(Path(found).parts):
        return False
    roots = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return not any(Path(root) in Path(found).parents for root in roots if root)


@functools.lru_cache(maxsize=1024)
def version_of(package: str) -> str | None:
    """The version of a package of others, without its local part such as `+cu126`; None if it has none.

    Example:
        >>> version_of("numpy") is None, version_of("json")
        (False, None)
    """
    if package in sys.stdlib_module_names or package in ("__main__", "torchyoga", ""):
        return None
    found = getattr(sys.modules.get(package), "__version__", None)
    if not isinstance(found, str):
        try:
            found = importlib.metadata.version(package)
        except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
            return None
    return found.partition("+")[0][:100] if isinstance(found, str) else None


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return type(value) is tuple and all(map(_is_plain, value))
    return type(value) in (bool, int, float, complex, str, bytes)


def _digest(trees: Iterable[ast.AST], decorators: frozenset[str] = frozenset()) -> str:
    words = (word for tree in trees for word in words_of(_bare(tree, decorators)))
    return hexdigest(*(word.encode(errors="backslashreplace") + b"\n" for word in words))


def _bare(tree: ast.AST, decorators: frozenset[str]) -> ast.AST:
    """A definition with those of its decorators that count."""
    if not isinstance(tree, _DEFINITIONS) or not tree.decorator_list:
        return tree
    kept = [one for one in tree.decorator_list if _root_of(one) in decorators]
    return ast.copy_location(type(tree)(**dict(ast.iter_fields(tree)) | {"decorator_list": kept}), tree)


def _root_of(decorator: ast.expr) -> str | None:
    """The first name in a decorator."""
    return next((node.id for node in ast.walk(decorator) if isinstance(node, ast.Name)), None)
