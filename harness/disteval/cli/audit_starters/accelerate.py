"""An evaluation loop with accelerate; audit it with disteval audit my_eval:evaluate."""

from accelerate import Accelerator
from torch.utils.data import DataLoader


def evaluate(case):
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(case.dataset, batch_size=case.batch_size, num_workers=case.num_workers)
    right = seen = 0
    for batch in accelerator.prepare(loader):
        predicted = case.predict(batch["x"]).argmax(dim=1)
        predicted, labels = accelerator.gather_for_metrics((predicted, batch["label"]))
        right += int((predicted == labels).sum())
        seen += len(labels)
    return {"accuracy": right / seen, "count": seen}
