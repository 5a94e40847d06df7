"""An evaluation with the Trainer of transformers; audit it with disteval audit my_eval:evaluate."""

import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Samples(torch.utils.data.Dataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        sample = self.dataset[index]
        return {name: torch.as_tensor(sample[name]) for name in ("x", "label", "value")}


def compute_metrics(prediction):
    right = prediction.predictions.argmax(axis=1) == prediction.label_ids
    return {"accuracy": float(right.mean()), "count": len(right)}


def evaluate(case):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_eval_batch_size=case.batch_size,
            dataloader_num_workers=case.num_workers,
            use_cpu=True,
            label_names=["labels"],
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=case.module(), args=arguments, compute_metrics=compute_metrics)
        found = trainer.evaluate(Samples(case.dataset))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}
