"""An evaluation with the SFTTrainer of trl; audit it with disteval audit my_eval:evaluate.

The eval_loss and eval_mean_token_accuracy that it computes itself are means of the means of
batches, which repeated samples fill up. compute_metrics gets each sample once.
"""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

CLASSES = 16
WORDS = {str(i): i for i in range(CLASSES)}
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(WORDS)), pad_token=next(iter(WORDS))
)


def repeating_model():
    """Return a language model without layers, which follows each token with the same one."""
    config = LlamaConfig(
        vocab_size=CLASSES, hidden_size=CLASSES, num_hidden_layers=0, num_attention_heads=1
    )
    model = LlamaForCausalLM(config)
    torch.nn.init.eye_(model.model.embed_tokens.weight)
    torch.nn.init.eye_(model.lm_head.weight)
    return model


def tokens(case, sample):
    """Return what the model answers, and the label that it should: the one token with a loss."""
    predicted = int(case.predict(sample["x"][None]).argmax())
    return {"input_ids": [predicted, sample["label"]], "labels": [-100, sample["label"]]}


def compute_metrics(prediction):
    answers, labels = prediction.predictions[:, :-1], prediction.label_ids[:, 1:]
    right = (answers == labels)[labels != -100]
    return {"accuracy": float(right.mean()), "count": len(right)}


def evaluate(case):
    samples = Dataset.from_list([tokens(case, sample) for sample in case.samples()])
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            repeating_model(),
            SFTConfig(
                output_dir=folder,
                per_device_eval_batch_size=case.batch_size,
                dataloader_num_workers=case.num_workers,
                use_cpu=True,
                bf16=False,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=samples,
            processing_class=TOKENIZER,
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1),
        )
        found = trainer.evaluate(samples)
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}
