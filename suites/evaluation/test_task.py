"""A task is refused where it is made, and is evaluated as evaluate does it."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from inspect import Parameter, signature
from typing import Any

import numpy as np
import pytest
from disteval import Task, UsageError, evaluate
from disteval.data import ArrayDataset
from disteval.metrics import Accuracy

RNG = np.random.default_rng(0)
DATA = ArrayDataset(
    "made",
    RNG.integers(0, 256, (50, 3, 2, 2), dtype=np.uint8),
    RNG.integers(0, 3, 50),
    tuple("abc"),
)


def predict(images: Any) -> Any:
    return images.reshape(len(images), -1)[:, :3].astype(np.float32)


def made(**changes: Any) -> Task:
    settings = {"samples": DATA, "predict": predict, "metrics": {"accuracy": Accuracy()}}
    return Task(**settings | changes)


BAD: dict[str, tuple[Any, str]] = {
    "samples": (None, "samples has the type NoneType; give arrays, anything with a length"),
    "samples ": ("data.txt", "samples is a str; give the samples, such as an open file whose"),
    "samples  ": ((DATA.images, [1]), "give arrays of one length, or a list if it holds the"),
    "predict": (None, "predict must be a function, not None"),
    "record": ("ids", "record must be a function, not 'ids'"),
    "name": (7, "name must be a text, not 7"),
    "metrics": ([Accuracy()], "metrics must be a dict of names and metrics, such as"),
    "metrics ": ({"a": Accuracy}, "the metric 'a' must be an instance .* make one, Accuracy()"),
    "metrics  ": ({"a": len}, "the metric 'a' must be an instance of a BaseMetric"),
    "batch_size": (0, "batch_size must be a whole number from 1 up, not 0"),
    "batch_size ": (None, "batch_size must be a whole number from 1 up, not None"),
    "collate": ("list", "collate must be a function, not 'list'"),
    "update": (["x"], "update must be a function or a dict of them, not"),
    "update ": ({"acuracy": len}, "update names the metric 'acuracy', .* you mean 'accuracy'?"),
    "workers": (-1, "workers must be a whole number from 0 up, not -1"),
    "limit": (-1, "limit must be a whole number from 0 up, not -1"),
    "by_length": (0.5, "by_length must be a disteval.ByLength, such as ByLength(), not 0.5"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_refused_with_its_value_and_a_remedy(name: str) -> None:
    value, message = BAD[name]
    with pytest.raises(UsageError, match=message.replace("()", r"\(\)").replace("?", r"\?")):
        made(**{name.strip(): value})


def test_every_kind_of_samples_is_accepted() -> None:
    array = np.zeros(3)
    for samples in (DATA, array, [1, 2], (array, array), {"x": array}, iter([1]), lambda: iter([])):
        assert made(samples=samples).samples is samples


def test_a_task_is_evaluated_as_evaluate_does_it() -> None:
    task = made(batch_size=7)
    ours = task.evaluate("non_dist")
    theirs = evaluate(predict, DATA, {"accuracy": Accuracy()}, "non_dist", 7)
    assert replace(ours, seconds=0.0) == replace(theirs, seconds=0.0)


def test_a_task_has_every_argument_that_belongs_to_it_with_its_default() -> None:
    theirs = dict(signature(evaluate).parameters)
    of_one_evaluation = signature(Task.evaluate).parameters
    for name in of_one_evaluation.keys() - {"self"}:
        assert theirs.pop(name).default == of_one_evaluation[name].default
    defaults = {Parameter.empty: MISSING}
    mine = {field.name: field.default for field in fields(Task)}
    assert mine.pop("record") is None  # which Predictions takes
    assert mine == {
        name: defaults.get(parameter.default, parameter.default)
        for name, parameter in theirs.items()
    }
