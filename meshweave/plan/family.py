"""Find the sizes of a symbolic mesh for which propagation gives the same layouts.

Propagation asks one op after the other (`refine`, `decide`), and only the answers decide what it asks next. So when
every question asked at one choice of sizes has the same answer at another, both choices give the same layouts
throughout. A layer that occurs again asks nothing new, so the check costs little.

Windows have as many elements as their sizes say, so layouts for symbols have none. With numbers ops may read through
them: those are asked by their rules with windows, and where one would choose a window the answer is another.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from meshweave.layout.factors import Rule
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.propagation.defer import deferred
from meshweave.plan.propagation.propagate import Decision, Graph, Spec, decide, refine

PROBE = 2
"""Ranks along a symbolic axis while layouts are chosen: the smallest number that cuts anything."""

FAMILY = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of a symbol that are looked at; for two symbols the first four of each, for more the second and third."""

_Specs = tuple[Spec | None, ...]
_Question = tuple[Rule, _Specs, str, int]


def symbols(mesh: Mesh) -> tuple[str, ...]:
    """Return the symbols of a mesh, in the order of its axes."""
    return tuple(dict.fromkeys(axis.size for axis in mesh.axes if isinstance(axis.size, str)))


def probe(mesh: Mesh) -> Mesh:
    """Return the mesh of numbers at which layouts are chosen."""
    return mesh.specialize(**dict.fromkeys(symbols(mesh), PROBE))


def family(mesh: Mesh) -> list[dict[str, int]]:
    """Return the choices of numbers for the symbols that are looked at."""
    names = symbols(mesh)
    sizes = {1: FAMILY, 2: FAMILY[:4]}.get(len(names), FAMILY[1:3])
    if len(names) > 4:
        return [dict.fromkeys(names, PROBE)]
    return [dict(zip(names, each, strict=True)) for each in product(sizes, repeat=len(names))]


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Write sizes as `N=4, M=2`."""
    return ", ".join(f"{name}={n}" for name, n in sizes.items())


class Asked:
    """Record the questions that a propagation on `probe(mesh)` asked, each once, with their answers."""

    def __init__(self, mesh: Mesh, slices: bool = False) -> None:
        """Start with no questions. slices: as passed to `decide`."""
        self.mesh, self.slices = mesh, slices
        self.refinements: dict[tuple[int, _Specs, str, int], tuple[_Question, _Specs]] = {}
        self.decisions: dict[tuple[int, _Specs], tuple[_Question, Decision]] = {}

    def refined(self, rule: Rule, specs: _Specs, mode: str, priority: int, answer: _Specs) -> None:
        """Record a question, as `propagate.Trace` describes."""
        # Rules are shared objects of the graph: by identity, since hashing one takes long.
        key = (id(rule), specs, mode, priority)
        self.refinements.setdefault(key, ((rule, specs, mode, priority), answer))

    def decided(self, rule: Rule, specs: _Specs, answer: Decision) -> None:
        """Record a question, as `propagate.Trace` describes."""
        self.decisions.setdefault((id(rule), specs), ((rule, specs, "", 0), answer))

    def same_for(
        self,
        graph: Graph,
        layouts: Sequence[Layout | None],
        decisions: Sequence[Decision],
        rules: Sequence[Rule],
    ) -> list[dict[str, int]]:
        """Return the sizes, out of `family`, that give the same layouts and decisions as the probe.

        layouts, decisions: what `propagate` and `defer` gave on the probe. graph: as `propagate` left it. rules: what a
        mesh of numbers has in the place of those of `graph`.
        """
        instead = {id(old): new for old, new in zip(graph.rules, rules, strict=True)}
        asked = [
            (number, question, answer, self._seen(question))
            for number, (question, answer) in enumerate(
                [*self.refinements.values(), *self.decisions.values()]
            )
        ]
        known: dict[tuple[int, tuple[int, ...]], bool] = {}

        def same(sizes: Mapping[str, int], mesh: Mesh) -> bool:
            for number, question, answer, seen in asked:
                key = (number, tuple(sizes[name] for name in seen))
                if key not in known:
                    known[key] = self._answer(question, instead, mesh) == answer
                if not known[key]:
                    return False
            return True

        every = [(sizes, self.mesh.specialize(**sizes)) for sizes in family(self.mesh)]
        alike = [(sizes, mesh) for sizes, mesh in every if same(sizes, mesh)]
        meshes = [probe(self.mesh), *(mesh for _, mesh in alike)]
        first, *others = deferred(graph, layouts, decisions, meshes)
        return [sizes for (sizes, _), sums in zip(alike, others, strict=True) if sums == first]

    def _seen(self, question: _Question) -> tuple[str, ...]:
        """Return the symbols that the answer may depend on: sizes of the axes in its specs."""
        axes = {a for spec in question[1] if spec for part in spec.dims for a in part}
        sizes = {self.mesh.axis(axis).size for axis in axes}
        return tuple(name for name in symbols(self.mesh) if name in sizes)

    def _answer(self, question: _Question, instead: Mapping[int, Rule], mesh: Mesh) -> object:
        rule, specs, mode, priority = question
        rule = instead[id(rule)]
        if mode:
            return refine(rule, specs, mesh, mode, priority)
        return decide(rule, specs, mesh, self.slices)
