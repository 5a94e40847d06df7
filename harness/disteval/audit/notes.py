"""Notes on what is no error, but what a user of a report must know."""

from __future__ import annotations

from collections.abc import Iterator

from disteval.audit.case import Settings
from disteval.audit.judge import Judgement, show

_FEW = 9  # calls in which a number may happen to be the same


class Notes:
    """Notes on right calls: which results were held to something, and who read the samples."""

    def __init__(self) -> None:
        self._known = False  # whether the truth of some result was known
        self._compared: dict[str, dict[Settings, set[str]]] = {}  # the values of other results
        self._calls = 0
        self._may_be_shared = 0  # calls in which each rank may have a batch of its own
        self._everywhere: list[Settings] = []  # of these, where all ranks read everything
        self._in_training: list[Settings] = []

    def add(self, settings: Settings, judgement: Judgement) -> None:
        """Note a call whose results are right."""
        self._calls += 1
        self._known |= len(judgement.result) > len(judgement.compared)
        for name, value in judgement.compared.items():
            values = self._compared.setdefault(name, {}).setdefault(settings, set())
            values.update([] if value is None else [show(value)])
        self._in_training += [settings] * any(a.in_training for a in judgement.answers)
        wanted = set(range(settings.size))
        # With fewer samples a library may have filled the batches of all ranks with them.
        if settings.size >= settings.world_size * settings.batch_size > 1 < settings.world_size:
            self._may_be_shared += 1
            read = [{sample for sample, _ in answer.fetched} for answer in judgement.answers]
            self._everywhere += [settings] * all(each == wanted for each in read)

    @property
    def nothing_compared(self) -> str:
        """Why nothing is proven, although no call was wrong; an empty text if something is."""
        if self._known or not self._calls or any(map(self._is_proven, self._compared)):
            return ""
        what = ", ".join(self._compared)
        found = (
            f"{what} is the same whatever the samples hold, so nothing is proven"
            if any(map(self._values, self._compared))
            else f"there was nothing to compare {what} with"
        )
        return f"{found}; return a result whose truth is known, such as accuracy, mean or ids"

    def of_results(self) -> Iterator[str]:
        """Yield the results about which little is proven."""
        for name in self._compared:
            values = self._values(name)
            if not values:
                yield (
                    f"nothing is proven about {name}: its truth is not known, and there was no "
                    f"number of one rank to compare it with"
                )
            elif len(values) == 1 and not self._is_proven(name):
                yield f"{name} is {min(values)} in every case, so little is proven about it"
            elif not self._is_proven(name):
                yield (
                    f"{name} is the same for other samples of the same number, so little is proven "
                    f"about it"
                )
        if not self._known and any(map(self._is_proven, self._compared)):
            yield (
                f"the truth of no result is known, so {', '.join(self._compared)} of several ranks "
                f"was compared with that of one rank, and a mistake that one rank makes, too, is "
                f"not seen; return accuracy, mean, loss, count or ids where the function has them"
            )

    def _values(self, name: str) -> set[str]:
        return set().union(*self._compared[name].values())

    def _is_proven(self, name: str) -> bool:
        """Return whether a number depends on the samples, as far as so few calls show it."""
        few = self._calls <= _FEW and bool(self._values(name))
        return few or any(len(values) > 1 for values in self._compared[name].values())

    def of_calls(self) -> Iterator[str]:
        """Yield that ranks did each other's work, and that dropout would have been on."""
        # A trainer may read some batches on every rank first, which are all of a small case.
        if 1 < len(self._everywhere) == self._may_be_shared:
            case = self._everywhere[0]
            yield (
                f"every rank evaluates every sample, as in the case {case}: the result is right, "
                f"but {case.world_size} ranks are no faster than one"
            )
        if self._in_training:
            yield (
                f"case.module() was called in training mode, as in the case "
                f"{self._in_training[0]}: dropout and batch normalisation of a real model would "
                f"change the result; call its eval() first"
            )
