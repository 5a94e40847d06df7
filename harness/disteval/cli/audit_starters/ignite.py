"""An evaluation with ignite; audit it with disteval audit my_eval:evaluate.

auto_dataloader sets up a DistributedSampler, which repeats samples until all ranks have as many.
ignite's own Accuracy would count the repeated ones again; this metric counts each id once.
"""

import ignite.distributed as idist
from disteval.metrics import Accuracy
from ignite.engine import Engine


def evaluate(case):
    loader = idist.auto_dataloader(
        case.dataset,
        batch_size=case.batch_size * case.world_size,
        num_workers=case.num_workers * case.world_size,
        shuffle=False,
    )
    accuracy = Accuracy(dist_backend="torch_cpu")

    def step(engine, batch):
        accuracy.add(case.predict(batch["x"]), batch["label"], ids=batch["id"])

    Engine(step).run(loader)
    return {"accuracy": accuracy.compute()["top1"]}
