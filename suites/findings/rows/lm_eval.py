"""What lm-evaluation-harness does."""

from __future__ import annotations

from suites.findings.table import of_loop

_REPOSITORY = "https://github.com/EleutherAI/lm-evaluation-harness"

FINDINGS = [
    of_loop(
        "lm-eval-rank-without-documents",
        "lm_eval_loops:evaluate",
        subject="`evaluate` where a rank has no document",
        what='rank 1 raises "task.build_requests() did not find any docs!", and rank 0 waits',
        promise=f"[the `accelerate` launcher performs data-parallel evaluation]({_REPOSITORY}"
        "#multi-gpu-evaluation-with-hugging-face-accelerate); nothing is said of the number of "
        "documents",
    ),
    of_loop(
        "lm-eval-metric-of-some-documents",
        "lm_eval_loops:metric_of_some_documents",
        subject="a metric that `process_results` returns for some documents only",
        what="the metric is missing, without an error: only metrics of rank 0 are gathered. Where "
        "another rank lacks one of these, rank 0 raises `KeyError`",
        promise="a warning in the source says that each metric is aggregated over the documents "
        "that produced it",
    ),
    of_loop(
        "lm-eval-few-shot-examples",
        "lm_eval_loops:one_example",
        subject="a task with examples before each question (`num_fewshot`)",
        what="the examples of a question, and so the result, depend on the number of ranks, "
        "because each rank draws with the same seed for its own documents",
        promise='a comment in the source says "need to offset doc_id by rank now!"',
    ),
]
