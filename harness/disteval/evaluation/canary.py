"""Calls of ``predict`` that are not counted: they show another model, and random outputs.

Every rank evaluates the same few samples before the first batch, and ranks compare the outputs; so
a rank with another model is noticed, wherever its weights are. And some samples of each rank's
first batch are read, collated and evaluated twice; other ones the second time show that random
numbers are drawn. The global generators of torch, NumPy and Python are left as they were. Set the
environment variable `SWITCH` to ``off``, on every rank, where such calls cost too much or have side
effects.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from disteval.arguments import is_switched_on
from disteval.by_sample import drawn, seed_all
from disteval.data.collate import first_rows
from disteval.data.contents import RANDOM
from disteval.data.digests import digest_of
from disteval.data.length_of import ByLength
from disteval.data.plan import Batch, Indices, Picked, filled_rows
from disteval.data.samples import Items
from disteval.data.sources import FIRST, Taken, WholeStream
from disteval.identity import short
from disteval.metrics.arrays import to_numpy
from disteval.outputs import SWITCH, Outputs, gap, largest_gap

if TYPE_CHECKING:
    from disteval.evaluation.work import Work

_TWICE = 4  # samples
_PLACES = 4096  # evenly spread numbers of an array that are compared
_COMPILERS = {
    "habana_frameworks", "jax", "mlx.core", "tensorflow", "tensorrt", "torch._inductor.compile_fx",
    "torch_xla",
}  # fmt: skip
"""Libraries that may compile a function again for a batch of another shape, which then costs more
than its rows: torch's when `torch.compile` was called."""

Inputs = tuple[Any, dict[str, Any]]
"""The positional and the named arguments of ``predict``."""

_log = logging.getLogger("disteval")


@dataclass
class Canary:
    """The calls of one rank.

    Attributes:
        text: The outputs of the common samples, see `disteval.outputs`; nothing if unknown.
        difference: The largest difference between ranks' outputs of these; None if unknown.
        repeatable: Whether the first samples were the same when they were read again, and had the
            same outputs twice; None if unknown.
    """

    text: str = ""
    difference: float | None = None
    repeatable: bool | None = None
    _is_due: bool = field(default_factory=partial(is_switched_on, SWITCH))

    def compare(self, work: Work, step: int = 1) -> None:
        """Compare the outputs of samples that all ranks look at; every rank must call it.

        Args:
            work: What is evaluated.
            step: The number of consecutive ranks of which the outputs of the first alone count.

        Raises:
            UsageError: On every rank, when outputs differ by more than `disteval.outputs` allows.
        """
        look, backend = work.look, work.backend
        assert look is not None
        with drawn(kept=True):  # at the end: a second look is to find other random numbers
            before = look.why_not
            if work.is_kept:
                look.settle()  # random ones are not compared with those of an earlier run
            common = _common(work)
            if not work.is_kept or gap(common, _common(work)).is_near:  # else they are random
                self.text = common.text
            mine = short(self.text) if look.why_not == before else None
            digests = backend.all_gather_object(mine)
            if None in digests:
                look.refuse(look.why_not or RANDOM, backend.rank)
                self.text = ""
            else:
                self.settle(work, digests, step)
        if step > 1:  # other ranks have their own
            self.text = ""

    def settle(self, work: Work, digests: Sequence[str], step: int = 1) -> None:
        """Compare the outputs of common samples where these differ; every rank must call it.

        Args:
            work: What is evaluated.
            digests: The ``text`` of each rank, as `disteval.identity.short` has it.
            step: See `compare`.

        Raises:
            UsageError: As `compare` raises it.
        """
        counted = digests[::step]
        if len(counted) < 2 or not all(counted):
            return
        if len(set(counted)) == 1:
            self.difference = 0.0
            return
        with drawn(kept=True):
            is_random = not gap(Outputs.of(self.text), _common(work)).is_near
        found = work.backend.all_gather_object((self.text, is_random))
        if any(random_ for _, random_ in found[::step]):
            self.text = ""  # the second check tells of it
            return
        self.difference = largest_gap([(r, text) for r, (text, _) in enumerate(found)][::step])

    def first(self, work: Work, predict: Callable[..., Any], batch: Batch) -> Any:
        """Return the outputs of a batch; of the first one, some samples are evaluated twice.

        Args:
            work: What is evaluated.
            predict: The model.
            batch: What it gets.
        """
        inputs, rows = work.inputs_of(batch), batch.rows
        if not self._is_due:
            return predict(inputs[0], **inputs[1])
        if isinstance(work.stream, WholeStream):
            with drawn(kept=True):
                self.text = _common(work).text
        self._is_due = False
        pair: list[Outputs] = []
        copied = None
        if _COMPILERS.isdisjoint(sys.modules):
            with drawn(kept=True) as moved, suppress(Exception):  # it may take whole batches alone
                # A batch by length may begin with the longest samples, of which one has to do.
                most = 1 if work.form.by_length else _TWICE
                some = first_rows(inputs, rows, min(rows, most))
                copies = [deepcopy(some), deepcopy(some)]
                pair = [_taken_apart(predict(first, **named)) for first, named in copies]
        if not pair:
            with suppress(Exception):  # the objects decide what may fail
                copied = deepcopy(inputs)
        outputs = predict(inputs[0], **inputs[1])
        if copied is not None:
            with drawn(kept=True) as moved, suppress(Exception):
                pair = [_taken_apart(outputs), _taken_apart(predict(copied[0], **copied[1]))]
        if pair:
            self.repeatable = gap(*pair).is_near
        if self.repeatable is False:
            where = f" from the global generator of {' and '.join(moved)}" if moved else ""
            _log.warning(
                "predict returned other outputs for the same samples the second time: it draws "
                "random numbers%s, so the result depends on ranks and batches; call eval() of a "
                "model with dropout, or draw by disteval.seeds(ids)", where,
            )  # fmt: skip
        is_alike = True
        with drawn(kept=True) as moved, suppress(Exception):  # the batch itself could be read
            is_alike = _is_read_alike(work, batch)
        if not is_alike:
            self.repeatable = False
            if not moved and (work.look is None or work.look.why_not != RANDOM):  # else it is told
                _log.warning(
                    "the first samples were other ones when they were read and collated again: "
                    "they draw random numbers, so the result depends on ranks and batches; give "
                    "collate a parameter ids, and draw by disteval.seeds(ids)"
                )
        return outputs


def _is_read_alike(work: Work, batch: Batch) -> bool:
    """Return whether the first samples of a batch are the same each time that they are read."""
    if not isinstance(read := work.opened, Items):
        return True  # elements come once, and nothing is drawn where rows of arrays are taken
    numbers = batch.numbers[: min(batch.samples, _TWICE)]
    digests = set()
    for _ in range(2):
        if work.form.workers:  # as they do
            seed_all(numbers)
        digests.add(digest_of(read(Picked(numbers, len(numbers), len(numbers))).filled))
    return len(digests) == 1


def _common(work: Work) -> Outputs:
    """Return the outputs of the common samples, as far as there are any."""
    look, form, stream = work.look, work.form, work.stream
    if not is_switched_on(SWITCH):
        return Outputs()
    has_budget = form.by_length is not None and form.by_length.max_tokens is not None
    most = 1 if has_budget else min(FIRST, form.batch_size)
    ids, taken = np.zeros(0, np.int64), list[Taken]()
    if isinstance(stream, WholeStream):
        taken = stream.first()[:most]
    elif look is not None and look.count:
        ids = _shortest(look.numbers, form.by_length)[:most]
    if not taken and not len(ids):
        return Outputs()
    for step in (1, form.step) if _COMPILERS.isdisjoint(sys.modules) else (form.step,):
        with suppress(Exception):  # the rank that counts such a sample tells of it
            if work.opened is not None:
                assert look is not None
                rows = filled_rows(len(ids), form.batch_size, step)
                batch = work.opened(Picked(ids, len(ids), rows))
                if not look.has(ids, batch.contents):
                    look.why_not = RANDOM
                    return Outputs()
            else:
                if stream is not None and stream.sharded is not None and not taken:
                    elements = islice(stream.sharded.open(stream.sharded.shards[0]), len(ids))
                    found = zip(ids.tolist(), elements, strict=False)
                    taken = [(number, each, b"") for number, each in found]
                batch = deepcopy(form._replace(step=step).assembled(taken, 0))
            inputs, named = work.inputs_of(batch)
            outputs = work.task.predict(inputs, **named)
            outputs = first_rows(outputs, batch.rows, len(batch.ids))
            return _taken_apart(outputs, batch.ids.tolist())
    return Outputs()


def _shortest(numbers: Indices, by_length: ByLength | None) -> Indices:
    """Return the numbers of samples, that of the shortest first where lengths were given."""
    length = None if by_length is None else by_length.length
    if length is None or isinstance(length, str) or callable(length):  # it takes reading them
        return numbers
    return numbers[np.argsort(np.asarray(length)[numbers], kind="stable")]


def _taken_apart(outputs: Any, ids: Sequence[int] = (0,)) -> Outputs:
    """Return outputs taken apart.

    Raises:
        IncomparableError: They hold an object that can't be.
    """
    arrays: list[Any] = []
    form = digest_of(_without_floats(outputs, arrays)).hex()
    return Outputs(",".join(map(str, ids)), form, arrays)


def _without_floats(value: Any, arrays: list[Any]) -> Any:
    """Return outputs with shapes in the place of floats, which are appended to ``arrays``."""
    if isinstance(value, Mapping):
        return {repr(key): _without_floats(value[key], arrays) for key in value}
    if isinstance(value, list) and {*map(type, value)} == {float}:
        value = np.array(value)
    elif isinstance(value, list | tuple):
        return [_without_floats(each, arrays) for each in value]
    if "float" not in str(getattr(value, "dtype", type(value).__name__)):
        return value
    shape = tuple(getattr(value, "shape", ()))
    if (size := math.prod(shape)) > _PLACES and hasattr(value, "reshape"):
        value = value.reshape(-1)[:: -(-size // _PLACES) | 1]
    arrays.append(to_numpy(value).astype(np.float64).ravel())
    return "floats", shape
