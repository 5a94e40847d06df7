"""Evaluation loops with ignite, as its users write them."""

from __future__ import annotations

import logging
from typing import Any

from disteval.audit import Case

from suites.evalbugs.parts import own_loader
from suites.evalbugs.table import older, sound, sound_where, wrong


def _ignite(metric: Any, name: str, loader: Any, output: Any) -> Any:
    from ignite.engine import Engine

    logging.getLogger("ignite").setLevel(logging.ERROR)
    engine = Engine(lambda _engine, batch: output(batch))
    metric.attach(engine, name)
    return engine.run(loader).metrics[name]


@wrong("pytorch-ignite", "counted twice", "N=2,B=1,W=3")
def average(case: Case) -> Any:
    """``auto_dataloader`` and the metric ``Average``."""
    import ignite.distributed as idist
    from ignite.metrics import Average

    size = case.batch_size * case.world_size
    workers = case.num_workers * case.world_size
    loader = idist.auto_dataloader(
        case.dataset, batch_size=size, num_workers=workers, shuffle=False
    )
    return {"mean": _ignite(Average(), "mean", loader, lambda batch: batch["value"][:, None])}


@wrong("pytorch-ignite", "crashes", "N=1,B=1,W=2")
def own_share(case: Case) -> Any:
    """The metric ``Average`` over shares that repeat nothing, of which some may be empty."""
    from ignite.metrics import Average

    return {
        "mean": _ignite(Average(), "mean", own_loader(case), lambda batch: batch["value"][:, None])
    }


own_share_with_enough_samples = sound_where("nonempty", "pytorch-ignite", own_share)


@older("0.4.10", "weighted wrongly", "N=4,B=1,W=2")
@sound("pytorch-ignite", assumes=("even",))
def computed_before_the_end(case: Case) -> Any:
    """``Average`` that is computed after the first batch of each rank, and at the end."""
    from ignite.metrics import Average

    metric = Average()
    for number, batch in enumerate(own_loader(case)):
        metric.update(batch["value"][:, None])
        if number == 0:
            metric.compute()
    return {"mean": metric.compute()}


@wrong("pytorch-ignite", "crashes", "N=3,B=1,W=2", assumes=("nonempty",))
def epoch_metric(case: Case) -> Any:
    """``EpochMetric``, which gathers every prediction, over shares of unequal length."""
    from ignite.metrics import EpochMetric

    metric = EpochMetric(lambda found, wanted: float((found.argmax(1) == wanted).float().mean()))
    output = lambda batch: (case.predict(batch["x"]), batch["label"])  # noqa: E731
    return {"accuracy": _ignite(metric, "accuracy", own_loader(case), output)}


@wrong("pytorch-ignite", "hangs", "N=2,B=1,W=2", assumes=("nonempty", "numbered"))
def parity_of_groups(case: Case) -> Any:
    """``DemographicParityDifference`` where a rank has no sample of a group."""
    from ignite.metrics.fairness import DemographicParityDifference

    def output(batch: Any) -> Any:
        wanted = batch["label"] % 2
        return case.predict(batch["x"]).argmax(dim=1) % 2, wanted, batch["id"] % 2

    if len(case.dataset) < 2:
        return {"difference": 0.0}  # it needs two groups
    metric = DemographicParityDifference(groups=[0, 1])
    return {"difference": _ignite(metric, "difference", own_loader(case), output)}
