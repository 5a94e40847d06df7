"""Real runs of other harnesses: 20 sums in two jobs of 10, by models that need no network."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

SIZE = 20

_TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"]}
metric_list: [{metric: exact_match}]
metadata: {version: 1.0}
"""


def write_data(folder: Path) -> Path:
    rows = [{"question": f"{i} + {i} =", "answer": str(2 * i)} for i in range(SIZE)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "data.jsonl"


def answer_of(question: str) -> str:
    """Return the right answer to two sums of three."""
    number = int(question.split()[0])
    return str(2 * number if number % 3 else 1)


def run_lm_eval(folder: Path, part: range = range(SIZE)) -> None:
    """Evaluate some sums by lm_eval, and write its files as its command does."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    class Model(LM):
        def generate_until(self, requests: list[Any]) -> list[str]:
            return [answer_of(each.args[0]) for each in requests]

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            raise NotImplementedError

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            raise NotImplementedError

    folder.mkdir()
    (folder / "sums.yaml").write_text(_TASK.replace("DATA", str(write_data(folder))))
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    found = lm_eval.simple_evaluate(
        model=Model(), model_args="pretrained=suites/sums", tasks=["sums"],
        samples={"sums": [*part]}, evaluation_tracker=tracker,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )  # fmt: skip
    samples = found.pop("samples")
    tracker.save_results_aggregated(found, samples=samples)
    tracker.save_results_samples("sums", samples["sums"])
    (folder / "data.jsonl").unlink()


def convert(folder: Path) -> None:
    """Put files of Every Eval Ever, as its package converts and validates them, for lm_eval's.

    Where lm_eval has no score of a sample, the converter writes one of 0 that is of no metric.
    """
    command = [sys.executable, "-m", "every_eval_ever"]
    old = next(folder.rglob("results_*.json")).parent
    names = [f"--log_path={old.relative_to(folder)}", "--output_dir=data", "--include_samples"]
    subprocess.run([*command, "convert", "lm_eval", *names], cwd=folder, check=True)
    new = [str(path.relative_to(folder)) for path in (folder / "data").rglob("*.json*")]
    subprocess.run([*command, "validate", *new], cwd=folder, check=True)
    shutil.rmtree(old)


def run_lighteval(
    folder: Path, part: range = range(SIZE), splits: Sequence[str] = ("test",)
) -> None:
    """Evaluate some sums by lighteval, and write its files as its command does."""
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.metrics.metrics import Metrics
    from lighteval.models.abstract_model import LightevalModel, ModelConfig
    from lighteval.models.model_output import ModelResponse
    from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
    from lighteval.tasks.lighteval_task import LightevalTaskConfig
    from lighteval.tasks.registry import Registry
    from lighteval.tasks.requests import Doc
    from lighteval.utils.cache_management import SampleCache

    class Model(LightevalModel):
        tokenizer = add_special_tokens = max_length = loglikelihood = loglikelihood_rolling = None

        def __init__(self) -> None:
            self.config = ModelConfig(model_name="sums", cache_dir=str(folder / "cache"))
            self._cache = SampleCache(self.config)

        def greedy_until(self, docs: list[Any]) -> list[Any]:
            return [ModelResponse(input=each.query, text=[answer_of(each.query)]) for each in docs]

    def document(row: dict[str, Any], task: str) -> Any:
        is_wanted = row["__index"] in part
        return Doc(row["question"], [row["answer"]], 0, task_name=task) if is_wanted else None

    data = folder / "data"
    data.mkdir(parents=True)
    for split in splits:
        write_data(data).rename(data / f"{split}.jsonl")
    config = LightevalTaskConfig(
        "sums", document, str(data), "default", [Metrics.exact_match], generation_size=8,
        hf_avail_splits=splits, evaluation_splits=splits,
    )  # fmt: skip
    tracker = EvaluationTracker(output_dir=str(folder / "out"), save_details=True)
    parameters = PipelineParameters(ParallelismManager.NONE, bootstrap_iters=0)
    # Its own tasks, which it imports first, download files.
    with patch.object(Registry, "load_all_task_configs", lambda **_: {"sums": config}):
        pipeline = Pipeline("sums", parameters, tracker, model=Model())
    pipeline.evaluate()
    pipeline.save_and_push_results()
    for other in (data, folder / "cache"):
        shutil.rmtree(other, ignore_errors=True)


def run_inspect(folder: Path, part: range | None = None, failing: Sequence[int] = ()) -> None:
    """Evaluate some sums by inspect_ai and its mock model."""
    from inspect_ai import Task, eval  # noqa: A004 - its name
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import Generate, TaskState, generate, solver

    def answer(messages: list[Any], *_: object) -> ModelOutput:
        output = ModelOutput.from_content("mockllm/model", answer_of(messages[-1].text))
        output.usage = ModelUsage(total_tokens=1)  # which it would count with files of the network
        return output

    @solver
    def fails() -> Any:
        async def solve(state: TaskState, _: Generate) -> TaskState:
            if state.sample_id in failing:
                raise ValueError("the connection is lost")
            return state

        return solve

    samples = [Sample(id=i, input=f"{i} + {i} =", target=str(2 * i)) for i in range(SIZE)]
    task = Task(dataset=MemoryDataset(samples), solver=[fails(), generate()], scorer=match(),
                name="sums")  # fmt: skip
    eval(task, model=get_model("mockllm/model", custom_outputs=answer), log_dir=str(folder),
         display="none", fail_on_error=False, retry_on_error=1,
         limit=part and (part.start, part.stop))  # fmt: skip
