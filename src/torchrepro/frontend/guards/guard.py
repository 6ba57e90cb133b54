"""Guard: a fact that must be so again for a captured region to be right."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

from torchrepro.frontend.codegen.writer import Writer
from torchrepro.frontend.guards.constants import shown_source, token_or_identity
from torchrepro.frontend.guards.tensor_facts import TensorFacts
from torchrepro.frontend.source import Source
from torchrepro.torch_api.ambient_facts import AmbientFacts

IDENTITY, SIZE, CONTENTS, SURROUNDINGS, TENSOR, ALL_TENSORS = range(6)
"""What a check costs. Cheap ones go first, so that a miss is found early."""

Aspect = tuple[str, str, Callable[..., str]]
"""What of a thing is guarded, how it was, and how to see how it is where that is not so."""

_GONE = (KeyError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """Equal if they say the same: values in them are compared as constants are, or by identity."""

    cost: ClassVar[int] = IDENTITY
    source: Source
    others: tuple[Source, ...] = field(default=(), kw_only=True)
    """Of a guard on several objects."""

    @property
    def reads(self) -> tuple[Source, ...]:
        """Where a check looks."""
        return self.source, *self.others

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        """Return conditions in Python, evaluated in order: any of them is a miss.

        `names` are the variables that hold what is at `reads`. No condition runs code of the user's if those
        before it are false and the guards on what a value was read from hold.
        """
        raise NotImplementedError

    def about(self) -> str:
        return ", ".join(map(shown_source, (self.source, *self.others)))

    def aspect(self) -> Aspect:
        raise NotImplementedError

    def expected(self) -> str:
        aspect, before, _ = self.aspect()
        return f"{aspect} is {before}".lstrip()

    def difference(self, values: Sequence[Any]) -> str:
        """Return how what is at `reads` differs from what is expected."""
        aspect, before, look = self.aspect()
        now = look(*values)
        now = now if now != before else f"another {now.removeprefix('a ')}"
        return f"{aspect} is {now}, was {before}".lstrip()

    def sentence(self) -> str:
        """`argument x: length is 2`."""
        return f"{self.about()}: {self.expected()}"

    def miss_sentence(self, values: Sequence[Any], error: Exception | None) -> str:
        """`argument x: length is 3, was 2`, given what is at `reads` or the error that the check met."""
        try:
            if error is None:
                return f"{self.about()}: {self.difference(values)}"
        except Exception as another:  # an object that answers differently each time
            error = another
        fact = "is no longer there" if isinstance(error, _GONE) else "cannot be read"
        return f"{self.about()}: {fact} ({type(error).__name__}); before, {self.expected()}"

    def identity(self) -> Hashable:
        """Return what two guards that say the same have in common."""
        return type(self), *(_identity(getattr(self, each.name)) for each in fields(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.identity())


def _identity(value: Any) -> Hashable:
    # Asks the type: `isinstance` looks at `__class__` too, which may run code of the user's.
    if issubclass(type(value), Source | TensorFacts | AmbientFacts):
        return cast(Hashable, value)
    return tuple(map(_identity, value)) if type(value) is tuple else token_or_identity(value)


class Guards(dict[Guard, None]):
    """What a trace relied on, in the order in which it was noticed."""

    def add(self, guard: Guard) -> None:
        self.setdefault(guard)
