"""Evaluation loops with Keras and tf.data on each rank, wrong ones and right ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import disteval
import keras
import numpy as np
import tensorflow as tf
from disteval.audit import Case

WRONG = {
    "repeats_a_shard_until_all_are_even": ("counted twice", "N=1,B=1,W=2"),
    "averages_the_ranks_results_of_evaluate": ("weighted wrongly", "N=3,B=1,W=2"),
    "drops_the_remainder": ("dropped", "N=1,B=2,W=2"),
    "shards_what_is_a_shard": ("dropped", "N=2,B=1,W=2"),
}
"""The kind and the case of each wrong loop's first finding."""

RIGHT = ("sums_the_metrics_variables", "evaluates_with_a_mask")


def _gathered(value: Any) -> list[Any]:
    return disteval.get_dist_backend("tf_collective").all_gather_object(value)


def _shard(case: Case) -> Any:
    return case.tf_dataset().shard(case.world_size, case.rank)


def _metric() -> Any:
    return keras.metrics.SparseCategoricalAccuracy()


def _updated(metric: Any, case: Case, batches: Any) -> Any:
    for batch in batches:
        metric.update_state(batch["label"], case.predict(batch["x"]))
    return metric


def _sums(metric: Any) -> Any:
    """Return the sums over all ranks of a metric's variables: what is right, and what is seen."""
    return np.sum(_gathered([float(variable) for variable in metric.variables]), axis=0)


def repeats_a_shard_until_all_are_even(case: Case) -> Any:
    """Give every rank as many batches, as steps_per_epoch wants it; wrong."""
    steps = -(-len(case.dataset) // case.world_size)
    batches = case.tf_dataset().repeat().shard(case.world_size, case.rank).take(steps)
    metric = _updated(_metric(), case, batches.batch(case.batch_size))
    return {"count": _sums(metric)[1]}


def averages_the_ranks_results_of_evaluate(case: Case) -> Any:
    """Call model.evaluate on every rank, and average what comes back; wrong."""
    batches = _shard(case).map(lambda s: (s["x"], s["label"])).batch(case.batch_size)
    found = _model().evaluate(batches, verbose=0, return_dict=True)["accuracy"]
    return {"accuracy": np.mean(_gathered(found))}


averages_the_ranks_results_of_evaluate.assumes = ("nonempty",)  # type: ignore[attr-defined]


@cache
def _model() -> Any:
    scores = keras.layers.Lambda(lambda x: tf.one_hot(tf.cast(x[:, 0], "int32"), 16))
    model = keras.Sequential([keras.Input((8,)), scores])
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def drops_the_remainder(case: Case) -> Any:
    """Keep batches of one shape alone; wrong."""
    batches = _shard(case).batch(case.batch_size, drop_remainder=True)
    return {"count": _sums(_updated(_metric(), case, batches))[1]}


def shards_what_is_a_shard(case: Case) -> Any:
    """Shard in the input pipeline what was sharded before; wrong."""
    batches = _shard(case).shard(case.world_size, case.rank).batch(case.batch_size)
    return {"count": _sums(_updated(_metric(), case, batches))[1]}


def sums_the_metrics_variables(case: Case) -> Any:
    """Sum what a metric has counted over the ranks, and divide once; right."""
    metric = _updated(_metric(), case, _shard(case).batch(case.batch_size))
    right, seen = _sums(metric)
    return {"accuracy": right / seen, "count": seen}


def evaluates_with_a_mask(case: Case) -> Any:
    """Fill every batch up with samples of weight 0; right."""
    metric = keras.metrics.Mean()
    for batch in _shard(case).batch(case.batch_size):
        lacking = case.batch_size - len(batch["value"])
        values = tf.pad(batch["value"], [[0, lacking]], constant_values=99.0)
        weights = tf.pad(tf.ones_like(batch["value"]), [[0, lacking]])
        metric.update_state(values, sample_weight=weights)
    total, seen = _sums(metric)
    return {"mean": total / seen}
