"""Notes on what is no error, but what a user of a report must know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disteval.audit.answers import Answer
from disteval.audit.case import Settings
from disteval.audit.judge import Judgement, show

_FEW = 9  # calls in which a number may happen to be the same


class Notes:
    """Notes on right calls: which results were held to something, and who read the samples."""

    def __init__(self) -> None:
        self._known = False  # whether the truth of some result was known
        self._compared: dict[str, set[str]] = {}  # the values of other results
        self._calls = 0
        self._everywhere: list[Settings] = []

    def add(self, settings: Settings, judgement: Judgement, answers: Sequence[Answer]) -> None:
        """Note a call whose results are right."""
        self._calls += 1
        self._known |= len(judgement.result or {}) > len(judgement.compared)
        for name, value in judgement.compared.items():
            values = self._compared.setdefault(name, set())
            values.update([] if value is None else [show(value)])
        wanted = set(range(settings.size))
        # With fewer samples a library may have filled the batches of all ranks with them.
        if settings.size >= settings.world_size * settings.batch_size > 1 < settings.world_size:
            self._everywhere += [settings] * all(set(a.fetched) == wanted for a in answers)

    @property
    def nothing_compared(self) -> str:
        """Why nothing is proven, although no call was wrong; an empty text if something is."""
        if self._known or not self._calls:
            return ""
        few = self._calls <= _FEW
        if any(len(values) > 1 or (values and few) for values in self._compared.values()):
            return ""
        what = ", ".join(self._compared)
        found = (
            f"{what} is the same in every case, so nothing is proven"
            if any(self._compared.values())
            else f"there was nothing to compare {what} with"
        )
        return f"{found}; return a result whose truth is known, such as accuracy, mean or ids"

    def of_results(self) -> Iterator[str]:
        """Yield the results about which little is proven."""
        for name, values in self._compared.items():
            if not values:
                yield (
                    f"nothing is proven about {name}: its truth is not known, and there was no "
                    f"number of one rank to compare it with"
                )
            elif len(values) == 1 and self._calls > _FEW:
                yield f"{name} is {min(values)} in every case, so little is proven about it"

    def of_fetches(self) -> Iterator[str]:
        """Yield that ranks did each other's work."""
        if len(self._everywhere) > 1:
            case = self._everywhere[0]
            yield (
                f"every rank evaluates every sample, as in the case {case}: the result is right, "
                f"but {case.world_size} ranks are no faster than one"
            )
