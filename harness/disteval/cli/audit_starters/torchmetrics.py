"""An evaluation loop with torchmetrics; audit it with disteval audit my_eval:evaluate."""

from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy


def evaluate(case):
    own = list(range(case.rank, len(case.dataset), case.world_size))
    loader = DataLoader(
        case.dataset, batch_size=case.batch_size, sampler=own, num_workers=case.num_workers
    )
    accuracy = MulticlassAccuracy(num_classes=16, average="micro")
    for batch in loader:
        accuracy.update(case.predict(batch["x"]), batch["label"])
    return {"accuracy": accuracy.compute()}
