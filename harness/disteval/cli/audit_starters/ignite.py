"""An evaluation with ignite; audit it with disteval audit my_eval:evaluate.

The audit finds it wrong: auto_dataloader sets up a DistributedSampler, which repeats samples until
all ranks have as many, and the metric counts them again.
"""

import ignite.distributed as idist
from ignite.engine import Engine
from ignite.metrics import Accuracy


def evaluate(case):
    loader = idist.auto_dataloader(
        case.dataset,
        batch_size=case.batch_size * case.world_size,
        num_workers=case.num_workers * case.world_size,
        shuffle=False,
    )
    engine = Engine(lambda _, batch: (case.predict(batch["x"]), batch["label"]))
    Accuracy().attach(engine, "accuracy")
    return {"accuracy": engine.run(loader).metrics["accuracy"]}
