"""A task is refused where it is made, and is evaluated as evaluate does it."""

import re
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


BAD: list[tuple[str, Any, str]] = [
    ("samples", None, "NoneType"),
    ("samples", "data.txt", r"\bstr\b"),
    ("samples", (DATA.images, [1]), "{0: 50, 1: 1}"),
    ("samples", {"x": np.zeros(3), "y": [1]}, "{'x': 3, 'y': 1}"),
    ("samples", {"x": 3}, r"'x'.*\bint\b"),
    ("samples", np.array(3), "ndarray"),
    ("samples", (), "empty tuple"),
    ("samples", ({"x": 1.0}, {"x": 2.0}), "list of samples"),
    ("samples", list, "class list"),
    ("predict", None, "None"),
    ("record", "ids", "'ids'"),
    ("name", 7, "7"),
    ("metrics", None, "NoneType"),
    ("metrics", Accuracy(), r"\bAccuracy\b"),
    ("metrics", [Accuracy()], r"dict.*\blist\b"),
    ("metrics", {"a": Accuracy}, r"'a'.*Accuracy\(\)"),
    ("metrics", {"a": len}, "'a'.*built-in function len"),
    *(("batch_size", wrong, re.escape(repr(wrong))) for wrong in (0, -1, 2.0, True, None, "256")),
    ("collate", "list", "'list'"),
    ("update", ["x"], r"\['x'\]"),
    ("update", {"acuracy": len}, "'acuracy'.*'accuracy'"),
    ("update", {"accuracy": 3}, "3"),
    ("workers", -1, "-1"),
    ("limit", -1, "-1"),
    ("fixed_shape", "no", "'no'"),
    ("even_calls", 1, "1"),
    ("by_length", 0.5, r"ByLength\(\).*0\.5"),
]


@pytest.mark.parametrize(("name", "value", "found"), BAD)
def test_a_wrong_argument_is_refused_with_its_value_and_a_remedy(
    name: str, value: Any, found: str
) -> None:
    """Each evaluation is one of a task."""
    with pytest.raises(UsageError, match=rf"(?=.*{name.rstrip('s')}).*{found}"):
        made(**{name: value})


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
    assert (mine.pop("record"), mine.pop("name")) == (None, "")  # its own
    assert mine == {
        name: defaults.get(parameter.default, parameter.default)
        for name, parameter in theirs.items()
    }
