"""An evaluation with Lightning's Trainer; audit it with disteval audit my_eval:evaluate.

The audit finds it wrong: the Trainer adds a DistributedSampler, which repeats samples until all
ranks have as many, and warns that it does. Ids with a metric of disteval count each sample once.
"""

import lightning
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self, case):
        super().__init__()
        self.model = case.module()

    def test_step(self, batch, index):
        mean = batch["value"].mean()
        self.log("mean", mean, on_epoch=True, sync_dist=True, batch_size=len(batch["value"]))


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
    return {"mean": found["mean"]}
