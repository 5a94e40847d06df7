"""Calls of ``predict`` that are not counted: they show another model, and random outputs.

Every rank evaluates the same few samples before the first batch, and ranks compare the outputs; so
a rank with another model is noticed, wherever its weights are. And some samples of each rank's
first batch are evaluated twice; other outputs the second time show that ``predict`` draws random
numbers. The global generators of torch, NumPy and Python are left as they were. Set the environment
variable `SWITCH` to ``off``, on every rank, where such calls cost too much or have side effects.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from disteval.arguments import is_switched_on
from disteval.by_sample import drawn
from disteval.data.collate import first_rows
from disteval.data.digests import digest_of
from disteval.data.plan import Picked, filled_rows
from disteval.metrics.arrays import to_numpy
from disteval.outputs import SWITCH, Outputs, gap, largest_gap

if TYPE_CHECKING:
    from disteval.evaluation.work import Work

_COMMON, _TWICE = 8, 4  # samples
_PLACES = 4096  # evenly spread numbers of an array that are compared
_COMPILERS = {
    "habana_frameworks", "jax", "mlx.core", "tensorflow", "tensorrt", "torch._inductor.compile_fx",
    "torch_xla",
}  # fmt: skip
"""Libraries that may compile a function again for a batch of another shape: torch's when
`torch.compile` was called."""

Inputs = tuple[Any, dict[str, Any]]
"""The positional and the named arguments of ``predict``."""

_log = logging.getLogger("disteval")


class Canary:
    """The calls of one rank.

    Attributes:
        text: The outputs of the common samples, see `disteval.outputs`; nothing if unknown.
        difference: The largest difference between ranks' outputs of these; None if unknown.
        repeatable: Whether the first samples had the same outputs twice; None if unknown.
    """

    def __init__(self) -> None:
        self.text = ""
        self.difference: float | None = None
        self.repeatable: bool | None = None
        self._is_due = is_switched_on(SWITCH)

    def compare(self, work: Work) -> None:
        """Compare the outputs of common samples; every rank must call it, once ranks agree.

        Args:
            work: What is evaluated.

        Raises:
            UsageError: On every rank, when outputs differ by more than `disteval.outputs` allows.
        """
        if work.look is None:  # the elements of a stream can be read only once
            return
        backend = work.backend
        with drawn(kept=True):  # at the end: a second look is to find other random numbers
            if work.is_kept:
                work.look.settle()  # random ones are not compared with those of an earlier run
            common = _common(work)
            if not work.is_kept or gap(common, _common(work)).is_near:  # else they are random
                self.text = common.text
            if backend.world_size == 1:
                return
            digests = backend.all_gather_object(
                self.text and blake2b(self.text.encode(), digest_size=8).digest()
            )
            if not all(digests):
                return
            if len(set(digests)) == 1:
                self.difference = 0.0
                return
            is_random = not gap(common, _common(work)).is_near
            found = backend.all_gather_object((self.text, is_random))
            if any(random_ for _, random_ in found):
                self.text = ""  # the second check tells of it
                return
            self.difference = largest_gap([(rank, text) for rank, (text, _) in enumerate(found)])

    def first(self, predict: Callable[..., Any], inputs: Inputs, rows: int) -> Any:
        """Return the outputs of a batch; of the first one, some samples are evaluated twice.

        Args:
            predict: The model.
            inputs: What it gets.
            rows: The number of samples in the batch.
        """
        if not self._is_due:
            return predict(inputs[0], **inputs[1])
        self._is_due = False
        pair: list[Outputs] = []
        copied = None
        if _is_small():
            with drawn(kept=True) as moved, suppress(Exception):  # it may take whole batches alone
                some = first_rows(inputs, rows, min(rows, _TWICE))
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
        return outputs


def _is_small() -> bool:
    """Return whether a batch of another shape costs no more than its rows."""
    return sys.modules.keys().isdisjoint(_COMPILERS)


def _common(work: Work) -> Outputs:
    """Return the outputs of the common samples, as far as there are any."""
    look, form = work.look, work.form
    if not is_switched_on(SWITCH) or look is None or not look.count:
        return Outputs()
    has_budget = form.by_length is not None and form.by_length.max_tokens is not None
    ids = look.numbers[: 1 if has_budget else min(_COMMON, form.batch_size)]
    for step in (1, form.step) if _is_small() else (form.step,):
        with suppress(Exception):  # the rank that counts such a sample tells of it
            if work.opened is not None:
                rows = filled_rows(len(ids), form.batch_size, step)
                batch = work.opened.reader(reuse=False)(Picked(ids, len(ids), rows))
            else:
                assert work.stream is not None and work.stream.sharded is not None
                sharded = work.stream.sharded
                elements = islice(sharded.open(sharded.shards[0]), len(ids))
                taken = [(i, each, b"") for i, each in zip(ids.tolist(), elements, strict=False)]
                batch = form._replace(step=step).assembled(taken, 0)
            inputs, named = work.inputs_of(batch)
            outputs = work.task.predict(inputs, **named)
            outputs = first_rows(outputs, batch.rows, len(batch.ids))
            return _taken_apart(outputs, batch.ids.tolist())
    return Outputs()


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
