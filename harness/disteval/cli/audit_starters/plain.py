"""An evaluation loop in plain torch; audit it with disteval audit my_eval:evaluate."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def evaluate(case):
    own = list(range(case.rank, len(case.dataset), case.world_size))
    loader = DataLoader(
        case.dataset, batch_size=case.batch_size, sampler=own, num_workers=case.num_workers
    )
    right = seen = 0
    for batch in loader:
        scores = case.predict(batch["x"])
        right += int((scores.argmax(dim=1) == batch["label"]).sum())
        seen += len(batch["label"])
    total = torch.tensor([right, seen], dtype=torch.float64)
    dist.all_reduce(total)
    return {"accuracy": float(total[0] / total[1]), "count": int(total[1])}
