"""An evaluation with mmengine's evaluator; audit it with disteval audit my_eval:evaluate."""

from mmengine.evaluator import BaseMetric, Evaluator
from torch.utils.data import DataLoader, DistributedSampler


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.extend(int(sample["right"]) for sample in data_samples)

    def compute_metrics(self, results):
        return {"accuracy": sum(results) / len(results), "count": len(results)}


def evaluate(case):
    sampler = DistributedSampler(case.dataset, case.world_size, case.rank, shuffle=False)
    loader = DataLoader(
        case.dataset, batch_size=case.batch_size, sampler=sampler, num_workers=case.num_workers
    )
    evaluator = Evaluator(Accuracy())
    for batch in loader:
        right = case.predict(batch["x"]).argmax(dim=1) == batch["label"]
        evaluator.process([{"right": each} for each in right], batch)
    return evaluator.evaluate(len(case.dataset))
