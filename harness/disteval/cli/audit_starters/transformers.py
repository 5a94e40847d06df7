"""An evaluation with the Trainer of transformers; audit it with disteval audit my_eval:evaluate.

The eval_loss that the Trainer computes itself is a mean of the means of batches, which repeated
samples fill up. compute_metrics gets each sample once, and its "loss" is logged in place of that.
"""

import tempfile

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Samples(torch.utils.data.Dataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        sample = self.dataset[index]
        return {name: torch.as_tensor(sample[name]) for name in ("x", "label", "value")}


class Log(TrainerCallback):
    def __init__(self, case):
        self.case = case

    def on_log(self, args, state, control, logs=None, **others):
        self.case.logged("loss", logs["eval_loss"])


def compute_metrics(prediction):
    labels, losses = prediction.label_ids  # the loss of a sample is its value here
    right = prediction.predictions.argmax(axis=1) == labels
    return {"accuracy": float(right.mean()), "count": len(right), "loss": float(losses.mean())}


def evaluate(case):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_eval_batch_size=case.batch_size,
            dataloader_num_workers=case.num_workers,
            use_cpu=True,
            label_names=["labels", "value"],
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=case.module(),
            args=arguments,
            compute_metrics=compute_metrics,
            callbacks=[Log(case)],
        )
        found = trainer.evaluate(Samples(case.dataset))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}
