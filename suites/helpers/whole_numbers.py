"""Whole numbers of which nothing but facts is known, so that one run of code stands for all values.

Code that adds, multiplies and compares such numbers runs as it is. Where the facts leave open how
a comparison ends, it runs once for each end. An assertion that holds in all these runs holds for
all whole numbers that have the facts: it is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import total_ordering

Sum = Mapping[str, int]
"""How often each named number is added; the empty name stands for 1."""


def for_all(check: Callable[[Facts], None]) -> None:
    """Run a check once for each way in which its comparisons can end."""
    ahead: list[list[bool]] = [[]]
    while ahead:
        facts = Facts(ahead.pop())
        check(facts)
        ahead += facts.others


class Facts:
    """What is known of some whole numbers: sums that are not below 0.

    Args:
        ends: How the first comparisons that the facts leave open shall end.

    Attributes:
        others: The ends of other runs that are possible as well.
    """

    def __init__(self, ends: Sequence[bool]) -> None:
        self._ends, self._at, self._known = [*ends], 0, list[Sum]()
        self.others: list[list[bool]] = []

    def number(self, name: str, least: Whole | int, most: Whole | int | None = None) -> Whole:
        """Return any number from ``least`` to ``most``."""
        number = Whole({name: 1}, self)
        self.know(number - least)
        if most is not None:
            self.know(-number + most)
        return number

    def know(self, number: Whole) -> None:
        """Take it as a fact that a number is not below 0."""
        self._known.append(number.sum)

    def is_negative(self, total: Sum) -> bool:
        """Return whether a sum is below 0: as the facts say, or else as this run shall have it."""
        negative = _added({"": -1}, total, -1)  # in whole numbers, x < 0 is -1 - x >= 0
        if _contradict([*self._known, total]):
            return True
        if _contradict([*self._known, negative]):
            return False
        if self._at == len(self._ends):
            self.others.append([*self._ends, False])
            self._ends.append(True)
        self._at += 1
        end = self._ends[self._at - 1]
        self._known.append(negative if end else total)
        return end


@total_ordering
class Whole:
    """A whole number: a sum of named ones."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, total: Sum, facts: Facts) -> None:
        self.sum, self.facts = total, facts

    def __add__(self, other: Whole | int) -> Whole:
        return Whole(_added(self.sum, _sum_of(other)), self.facts)

    def __sub__(self, other: Whole | int) -> Whole:
        return Whole(_added(self.sum, _sum_of(other), -1), self.facts)

    def __neg__(self) -> Whole:
        return Whole(_added({}, self.sum, -1), self.facts)

    def __mul__(self, other: Whole) -> Whole:
        """Multiply a sum by one named number: by the distributive law, a sum of products."""
        [(name, times)] = other.sum.items()
        assert name and times == 1
        products = {"*".join(sorted(filter(None, [each, name]))): n for each, n in self.sum.items()}
        return Whole(products, self.facts)

    def __rmul__(self, other: int) -> Whole:
        return Whole({name: other * times for name, times in self.sum.items()}, self.facts)

    def __floordiv__(self, other: Whole) -> Whole:
        """Return the quotient q, of which is known: q * other <= self < q * other + other."""
        quotient = Whole({f"({self.sum} // {other.sum})": 1}, self.facts)
        self.facts.know(self - quotient * other)
        self.facts.know(quotient * other + other - 1 - self)
        return quotient

    def __mod__(self, other: int) -> Whole:
        return self.facts.number(f"({self.sum} % {other})", 0, other - 1)

    def __lt__(self, other: Whole | int) -> bool:
        return self.facts.is_negative((self - other).sum)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Whole | int)
        return not self < other and not -self < -other

    def __bool__(self) -> bool:
        return self != 0


def _sum_of(number: Whole | int) -> Sum:
    return number.sum if isinstance(number, Whole) else {"": number}


def _added(one: Sum, other: Sum, times: int = 1) -> Sum:
    total = {name: one.get(name, 0) + times * other.get(name, 0) for name in {*one, *other}}
    return {name: count for name, count in total.items() if count}


def _contradict(facts: Sequence[Sum]) -> bool:
    """Return whether facts can't hold together: multiples of them add up to a number below 0.

    It takes one name after another out (Fourier and Motzkin): what bounds it from below is added
    to what bounds it from above, so often that the name cancels.
    """
    name = next((name for fact in facts for name in fact if name), None)
    if name is None:
        return any(fact.get("", 0) < 0 for fact in facts)
    left = [fact for fact in facts if name not in fact]
    for low in (fact for fact in facts if fact.get(name, 0) > 0):
        for high in (fact for fact in facts if fact.get(name, 0) < 0):
            scaled = {each: -high[name] * times for each, times in low.items()}
            left.append(_added(scaled, high, low[name]))
    return _contradict(left)
