"""The mutants of a source file: mutmut decides what can be changed, this module names each change and finds its lines."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import libcst as cst  # pyright: ignore[reportMissingImports]
from libcst.metadata import MetadataWrapper, PositionProvider  # pyright: ignore[reportMissingImports]
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace  # pyright: ignore[reportMissingImports]
from mutmut.mutation.mutators import mutation_operators  # pyright: ignore[reportMissingImports]
from mutmut.mutation.pragma_handling import IgnoredCode  # pyright: ignore[reportMissingImports]

Span = tuple[int, int]
"""The first and the last line of a piece of code."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one place. `place` and `id` stay the same for as long as the function around it does."""

    path: str
    function: str
    line: int
    source: str
    before: str
    after: str
    place: str
    id: str
    statement: Span
    body: Span

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Source:
    """A source file, its mutants, and how to write each of them."""

    mutants: Sequence[Mutant]
    _module: Any
    _changes: Mapping[str, tuple[Any, Any]]

    def mutated(self, mutant: Mutant) -> str:
        """Return the whole file with this one change."""
        original, changed = self._changes[mutant.id]
        code: str = deep_replace(self._module, original, changed).code
        return code


def read_source(root: Path, path: str) -> Source:
    """Find the mutants of all functions in a file. Code outside of functions, and decorated functions, are left as they are."""
    text = (root / path).read_text()
    lines = text.splitlines()
    wrapper = MetadataWrapper(cst.parse_module(text))
    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    module = wrapper.visit(visitor)
    positions = wrapper.resolve(PositionProvider)

    def span(node: Any) -> Span:
        return positions[node].start.line, positions[node].end.line

    statements = dict(_statements(module, (1, 1), positions))
    places: dict[int, str] = {}
    functions: dict[int, str] = {}
    seen: dict[str, int] = {}
    mutants: list[Mutant] = []
    changes: dict[str, tuple[Any, Any]] = {}
    for mutation in visitor.mutations:
        function = mutation.contained_by_top_level_function
        node = mutation.original_node
        if not isinstance(function, cst.FunctionDef) or node not in positions:
            continue
        before, after = _code(module, node), _code(module, mutation.mutated_node)
        name = function.name.value
        if id(node) not in places:
            # Equal pieces of code in one function are counted, so that each has a name of its own.
            if id(function) not in functions:
                functions[id(function)] = _code(module, function)
            what = _hash(path, name, functions[id(function)], type(node).__name__, before)
            seen[what] = seen.get(what, 0) + 1
            places[id(node)] = _hash(what, str(seen[what]))
        place = places[id(node)]
        start, end = span(node)
        source = "\n".join(line.strip() for line in lines[start - 1 : end])
        mutant = Mutant(
            path,
            name,
            start,
            source,
            before,
            after,
            place,
            _hash(place, after),
            statements[id(node)],
            span(function.body),
        )
        if mutant.id not in changes:
            changes[mutant.id] = (node, mutation.mutated_node)
            mutants.append(mutant)
    return Source(mutants, module, changes)


def read_mutants(root: Path, path: str, folder: Path) -> Sequence[Mutant]:
    """Return the mutants of a file. They are found once for each content, because that takes a second for every 300 mutants."""
    file = folder / f"{_hash(path, (root / path).read_text())}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(mutant) for mutant in read_source(root, path).mutants]))
    return [Mutant(**fields) for fields in json.loads(file.read_text())]


def sample(mutants: Sequence[Mutant], number: int, seed: int) -> Sequence[Mutant]:
    """Choose places by chance, and one mutant of each.

    Places count and not mutants, because one call with five arguments has eleven mutants. A place is chosen by the hash of its name
    and the seed: code that does not change keeps its mutants in the sample.
    """

    def chance(*names: str) -> str:
        return _hash(str(seed), *names)

    by_place: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_place.setdefault(mutant.place, []).append(mutant)
    chosen = sorted(by_place, key=chance)[:number]
    return [min(by_place[place], key=lambda mutant: chance(mutant.id)) for place in chosen]


def _statements(
    node: Any, inherited: Span, positions: Mapping[Any, Any]
) -> Iterator[tuple[int, Span]]:
    """Yield the lines of the statement that each node belongs to; of a compound statement, those of its clause."""
    yield id(node), inherited
    is_compound = isinstance(node, cst.BaseCompoundStatement)
    for child in node.children:
        own = (
            is_compound or isinstance(child, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        ) and child in positions
        lines = (positions[child].start.line, positions[child].end.line) if own else inherited
        yield from _statements(child, lines, positions)


def _code(module: Any, node: Any) -> str:
    code: str = module.code_for_node(node)
    return code.strip()


def _hash(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]
