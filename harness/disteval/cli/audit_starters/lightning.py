"""An evaluation with Lightning's Trainer; audit it with disteval audit my_eval:evaluate.

The Trainer adds a DistributedSampler, which repeats samples until all ranks have as many. What
self.log reduces would count the repeated ones again; these metrics count each id once.
"""

import lightning
from disteval.metrics import Accuracy, Mean
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self, case):
        super().__init__()
        self.model = case.module()
        self.accuracy = Accuracy(dist_backend="torch_cpu")
        self.loss = Mean(dist_backend="torch_cpu")

    def test_step(self, batch, index):
        self.accuracy.add(self.model(batch["x"]), batch["label"], ids=batch["id"])
        self.loss.add(batch["value"], ids=batch["id"])  # the loss of each sample

    def on_test_epoch_end(self):
        self.log("accuracy", self.accuracy.compute()["top1"])
        self.log("loss", self.loss.compute()["mean"])


def evaluate(case):
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=case.world_size,
        strategy="ddp" if case.world_size > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(case.dataset, batch_size=case.batch_size, num_workers=case.num_workers)
    [found] = trainer.test(Module(case), loader, verbose=False)
    return found
