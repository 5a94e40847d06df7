"""Evaluation loops with ignite, as its users write them."""

from __future__ import annotations

import logging
from typing import Any

from disteval.audit import Case

from suites.audit.sound import sound
from suites.audit.sound.parts import own_loader


def run_engine(metric: Any, name: str, loader: Any, output: Any) -> Any:
    """Return a metric that is attached to an engine and run over a loader."""
    from ignite.engine import Engine

    logging.getLogger("ignite").setLevel(logging.ERROR)
    engine = Engine(lambda _engine, batch: output(batch))
    metric.attach(engine, name)
    return engine.run(loader).metrics[name]


@sound("pytorch-ignite", "nonempty")
def own_share_with_enough_samples(case: Case) -> Any:
    """The metric ``Average`` over shares that repeat nothing."""
    from ignite.metrics import Average

    return {
        "mean": run_engine(
            Average(), "mean", own_loader(case), lambda batch: batch["value"][:, None]
        )
    }


@sound("pytorch-ignite", "even")
def computed_before_the_end(case: Case) -> Any:
    """``Average`` that is computed after the first batch of each rank, and at the end."""
    from ignite.metrics import Average

    metric = Average()
    for number, batch in enumerate(own_loader(case)):
        metric.update(batch["value"][:, None])
        if number == 0:
            metric.compute()
    return {"mean": metric.compute()}
