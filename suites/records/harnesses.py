"""Real runs of other harnesses: 20 sums in two jobs of 10, by models that need no network."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
        model=Model(), tasks=["sums"], samples={"sums": [*part]}, evaluation_tracker=tracker,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )  # fmt: skip
    samples = found.pop("samples")
    tracker.save_results_aggregated(found, samples=samples)
    tracker.save_results_samples("sums", samples["sums"])
    (folder / "data.jsonl").unlink()


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
