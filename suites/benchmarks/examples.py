"""Print how many drawn examples ``disteval check`` tries in a second of CPU time.

``python -m suites.benchmarks.examples`` checks the backend ``threads``, whose collectives cost next
to nothing, with the rules that draw. The time of drawing alone stands beside it, and how many of
the drawn examples are different.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from disteval.conformance import drawing
from disteval.conformance.fingerprint import digest
from disteval.conformance.runner import check_backend, select_rules

T = TypeVar("T")
_EXAMPLES, _TIMES = 200, 5
_RULES = ("2.1", "3.1", "5.1", "8.1")


def main() -> None:
    """Measure each part several times, and print the medians."""
    rules = select_rules(_RULES)
    for sizes in [(3,), (1, 2, 3, 5)]:
        rates = []
        for seed in range(_TIMES):
            seconds, report = _timed(
                lambda sizes=sizes, seed=seed: check_backend(  # type: ignore[misc]
                    "threads", sizes, rules=rules, examples=_EXAMPLES, seed=seed
                )
            )
            assert report.verdict != "broken"
            rates.append(sum(result.examples for result in report.rules) / seconds)
        print(f"{statistics.median(rates):6.0f} examples a CPU second at world sizes {sizes}")
    seconds, drawn = _timed(lambda: drawing.draw(drawing.ONE_EACH, _EXAMPLES, _TIMES))
    different = len({digest(example) for example in drawn})
    print(f"{len(drawn) / seconds:6.0f} drawn a CPU second, {different} of {len(drawn)} different")


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    begin = time.process_time()
    result = function()
    return time.process_time() - begin, result


if __name__ == "__main__":
    main()
