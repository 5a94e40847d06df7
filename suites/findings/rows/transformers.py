"""What transformers does."""

from __future__ import annotations

from suites.findings.table import of_loop

_FACTOR = "https://github.com/huggingface/transformers/issues/35078"

FINDINGS = [
    of_loop(
        "transformers-eval-loss",
        "transformers_loops:eval_loss",
        "transformers_loops:eval_loss_by_items",
        subject="`eval_loss` of `Trainer.evaluate`",
        what="sample 0 counts 0.667 instead of 0.5. The mean of a padded batch is counted for each "
        "of its samples; on one process it is right",
        promise="`evaluate` returns the evaluation loss; nothing is said of the number of "
        "processes",
    ),
    of_loop(
        "transformers-eval-loss-any-arguments",
        "transformers_loops:eval_loss_of_any_arguments",
        "transformers_loops:eval_loss_of_full_batches_and_any_arguments",
        subject="`eval_loss` of a model whose `forward` takes and ignores `**kwargs`",
        what="sample 0 counts 2 instead of 1, for the loss is multiplied by W, also where every "
        "batch is full; that case is right in 4.45.2, of which "
        f"[#35078]({_FACTOR}) first reported the factor, which later became the default",
        promise="such a model must set `accepts_loss_kwargs = False`",
    ),
    of_loop(
        "transformers-predict-grouped-by-length",
        "transformers_loops:predict_grouped_by_length",
        subject='`Trainer.predict` with `train_sampling_strategy="group_by_length"`',
        what="predictions come in the order of the sampler of lengths, on one rank, too",
        promise="[the predictions on `test_dataset`](https://huggingface.co/docs/transformers/"
        "main_classes/trainer#transformers.Trainer.predict); the argument is about training",
    ),
    of_loop(
        "transformers-inputs-of-batches",
        "transformers_loops:inputs_of_batches",
        subject='`batch_eval_metrics=True` with `include_for_metrics=["inputs"]`',
        what="`compute_metrics` gets the inputs of its own rank, and the predictions of all",
        promise="[for metrics that need inputs, predictions and references for scoring]"
        "(https://huggingface.co/docs/transformers/main_classes/trainer#"
        "transformers.TrainingArguments.include_for_metrics)",
    ),
]
