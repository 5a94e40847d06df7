"""Tasks of lm-evaluation-harness, whose requests ranks evaluate, and whose records are lm-eval's.

``disteval eval disteval.lm_eval:task -- --model hf --model_args … --tasks …`` takes the words of
``lm-eval run``. Each rank has lm-eval build all requests as one process does, and lm-eval's model
answers them, in batches that are the same at any world size. One rank then has lm-eval evaluate
once more, with a model that knows the answers; so filters, groups, aggregation, standard errors and
files are those of lm-eval in one process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from disteval.arguments import check_count, check_output_folder
from disteval.by_sample import drawn, seed_all
from disteval.contract import BaseDistBackend
from disteval.data.length_of import ByLength
from disteval.errors import DataError, UsageError, describe_error
from disteval.evaluation import Task
from disteval.evaluation.sharers import Sharers, meet
from disteval.extras import needs
from disteval.files import sync_folder
from disteval.identity import describe
from disteval.metrics.base import BaseMetric

_KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")
"""The methods by which lm-eval asks a model."""

_OWN = ("max_tokens", "requests_per_call")
"""The options that lm-eval does not have."""

_NOT_COMPARED = {"config", "device", "metadata", "show_config", "tasks", "verbosity", "write_out"}
"""Settings that may differ where an evaluation goes on; each task is compared by itself."""

_NOT_TAKEN = (
    "use_cache", "cache_requests", "check_integrity", "wandb_args", "trackio_args",
    "hf_hub_log_args",
)  # fmt: skip
"""Settings of lm-eval that are refused."""

_LAUNCHED = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip
"""The variables by which models and lm-eval find other ranks, and would divide the documents."""

_VOLATILE = {"date", "start_time", "end_time", "total_evaluation_time_seconds", "pretty_env_info"}
"""What differs in the results of two processes that have evaluated the same answers."""

_generators = threading.Lock()
"""Held while somebody seeds and uses the process's generators, which ranks as threads share."""


def task(arguments: list[str], backend: BaseDistBackend) -> Task:
    """Return a Task whose samples are the requests of tasks of lm-eval.

    Args:
        arguments: The words of ``lm-eval run``, and ``--max_tokens N`` or ``--requests_per_call N``
            for the batches, see docs/lm_eval.md.
        backend: Says which rank this is, by which it takes one of several GPUs.

    Raises:
        UsageError: An argument, a task or a model is unknown or can't be used here.
        DataError: The requests of a task can't be built.
    """
    with needs("disteval.lm_eval", "lm_eval"):
        import lm_eval
    with _generators:
        run = Run(*_parsed(arguments))
        lm = run.model(backend)
        requests = run.requests(lm)
    batches, lengths = _batches(lm, requests, **run.options)
    predict = Model(lm, requests, (run.cfg.seed or [0, 0, 0])[2] or 0)
    metric = Answers(lambda answers: run.records(lm, requests, answers))
    vars(metric).update(run.settings(lm))
    return Task(
        samples=[_sample(each) for each in requests],
        predict=predict,
        metrics={"lm_eval": metric},
        batch_size=max(map(len, batches)),
        collate=list,
        fixed_shape=False,
        even_calls=None if predict.sharers.are_many else False,
        by_length=ByLength(np.array(lengths), batches=batches),
        name=f"lm-eval {lm_eval.__version__}",
    )


class Model:
    """The model of lm-eval as a function of a batch of requests.

    Args:
        lm: The model.
        requests: All requests of lm-eval by their numbers.
        seed: Seeds what the model draws for a batch.

    Attributes:
        sharers: The ranks that share its weights.
    """

    def __init__(self, lm: Any, requests: Sequence[Any], seed: int) -> None:
        self._lm, self._requests, self._seed = lm, requests, seed
        network = getattr(lm, "model", None)
        self.network = network if hasattr(network, "named_parameters") else None  # to be compared
        self.sharers = Sharers(network)

    def __call__(self, batch: Sequence[Any], ids: Any) -> list[Any]:
        """Return an answer for each request."""
        found = {tuple(each): self._answers(each) for each in self.sharers.batches(ids)}
        return found[tuple(ids)]

    def _answers(self, ids: Any) -> list[Any]:
        answers: dict[int, Any] = {}
        requests = {number: self._requests[number] for number in ids}
        for kind in dict.fromkeys(each.request_type for each in requests.values()):
            asked = {n: each for n, each in requests.items() if each.request_type == kind}
            ask = getattr(self._lm, kind)
            quiet = {"disable_tqdm": True} if "disable_tqdm" in signature(ask).parameters else {}
            with _generators, drawn(kept=True):
                seed_all(ids, self._seed)
                found = [*(ask([*asked.values()], **quiet) or ())]
            what, form = ("texts", str) if kind == "generate_until" else ("answers", object)
            count = sum(each is not None and isinstance(each, form) for each in found)
            if not count == len(found) == len(asked):
                raise UsageError(
                    f"{type(self._lm).__name__}.{kind} returned {count} {what} to {len(asked)} "
                    f"requests, of which the first is {_name(_sample(requests[min(asked)]))}"
                )
            answers |= zip(asked, found, strict=True)
        return [answers[number] for number in ids]


class Answers(BaseMetric):
    """The answers to all requests, of which lm-eval computes its results and writes its records.

    Args:
        finish: A function of the answers in the order of the requests to what is reported.
    """

    def __init__(self, finish: Callable[[list[Any]], Any]) -> None:
        self._finish = finish
        super().__init__()

    def add(self, answers: list[Any], *, ids: Any = None) -> None:
        """Add the answers to a batch of requests."""
        self._extend(answers, ids)

    def compute_metric(self, results: list[Any]) -> Any:
        """Have lm-eval compute, and write its records; runs on one rank."""
        return self._finish(results)


class Run:
    """One evaluation, as the words of ``lm-eval run`` say it.

    Args:
        cfg: lm-eval's configuration.
        options: The options that lm-eval does not have.
    """

    def __init__(self, cfg: Any, options: Mapping[str, int | None]) -> None:
        from lm_eval.loggers import EvaluationTracker

        self.cfg, self.options, self._began = cfg, options, time.time()
        self._tracker = EvaluationTracker()
        with _as_usage("--tasks"):
            self._manager = cfg.process_tasks()
        load = self._manager.load

        def kept(names: Any) -> Any:
            self._loaded = load(names)
            return self._loaded

        self._manager.load = kept  # simple_evaluate returns no tasks

    def model(self, backend: BaseDistBackend) -> Any:
        """Return the model, which is whole, or of which each rank of a process group has a part."""
        from lm_eval.api.registry import get_model

        cfg = self.cfg
        with _as_usage("--model"):
            kind = get_model(cfg.model)
        more = {name: getattr(cfg, name) for name in ("batch_size", "max_batch_size", "device")}
        with _changed(*_LAUNCHED), _as_usage(f"--model_args {cfg.model_args}"):
            launched = meet(backend)
            if str(cfg.device).startswith("cuda"):
                more["device"] = f"cuda:{launched['LOCAL_RANK']}"
            if "tp_plan" in cfg.model_args:  # transformers asks for these
                os.environ |= launched
            lm = kind.create_from_arg_obj(dict(cfg.model_args), more)
        if lm.world_size != 1:
            raise UsageError(f"{cfg.model} divides the documents by {lm.world_size} processes")
        return lm

    def requests(self, lm: Any) -> list[Any]:
        """Return all requests in lm-eval's order, each as often as it is repeated.

        Raises:
            DataError: They can't be built, or one has a type that is not known.
        """
        built = InterruptedError()

        def stop(_: object) -> NoReturn:  # when the first is asked, all are there
            raise built

        try:
            self._evaluate(_standing_in(lm, stop))
        except Exception as error:
            if error is not built:
                raise DataError(
                    f"lm-eval can't build the requests of {self.cfg.tasks!s:.200}: "
                    f"{describe_error(error)}. Data that comes from the network has to be fetched "
                    f"before, on every host"
                ) from error
        by_kind: dict[str, list[Any]] = {}
        for name, one in self._loaded["tasks"].items():
            for found in one.instances:
                if found.request_type not in _KINDS or found.doc_id is None:
                    raise DataError(
                        f"the task {name} asks {_name(_sample(found))}; a type must be one of "
                        f"{', '.join(_KINDS)}, and documents must have numbers"
                    )
                by_kind.setdefault(found.request_type, []).extend([found] * (found.repeats or 1))
        return [request for each in by_kind.values() for request in each]

    def settings(self, lm: Any) -> dict[str, str]:
        """Return what has to be the same where the evaluation goes on, by name."""
        cfg = {each.name: getattr(self.cfg, each.name) for each in dataclasses.fields(self.cfg)}
        cfg |= self.options
        found = {name: repr(cfg[name]) for name in sorted(cfg.keys() - _NOT_COMPARED)}
        tasks = {name: _described(one) for name, one in self._loaded["tasks"].items()}
        if len(tasks) > 100:  # a metric has no more settings
            tasks = {"all tasks": _digest(tasks)}
        found |= {f"the configuration of {name}": digest for name, digest in tasks.items()}
        found["the code of the model"] = _digest(describe("", type(lm)))
        return found

    def records(self, lm: Any, requests: Sequence[Any], answers: Sequence[Any]) -> Any:
        """Have lm-eval evaluate by the answers, write its records, and return each task's metrics.

        Raises:
            DataError: A task asks something else than before.
            UsageError: The records can't be written.
        """
        left = iter(zip(map(_sample, requests), answers, strict=True))

        def replay(asked: Sequence[Any]) -> list[Any]:
            found = []
            for again in map(_sample, asked):
                before, answer = next(left, (None, None))
                if again != before:
                    raise DataError(
                        f"there is no answer to {_name(again)}, which lm-eval did not ask when the "
                        f"evaluation began; seed what its task draws"
                    )
                found.append(answer)
            return found

        with _generators, _changed(*_LAUNCHED, DISABLE_MULTIPROC="1"):  # forks hold our connections
            found = self._evaluate(_standing_in(lm, replay))
        if rest := [*left]:
            raise DataError(
                f"lm-eval did not ask {len(rest)} of {len(requests)} requests again that were "
                f"answered, of which the first is {_name(rest[0][0])}; seed what its task draws"
            )
        samples, name = found.pop("samples", None), self.cfg.model
        found["date"] = self._began
        found["config"]["model"] = self._tracker.general_config_tracker.model_source = name
        if self.cfg.output_path:
            self._write(found, samples or {})
        return {
            name: {key.removesuffix(",none"): v for key, v in each.items() if isinstance(v, float)}
            for name, each in [*found["results"].items(), *found.get("groups", {}).items()]
        }

    def _evaluate(self, lm: Any) -> Any:
        """Call lm-eval's simple_evaluate as ``lm-eval run`` does."""
        from lm_eval import simple_evaluate

        cfg, names = self.cfg, signature(simple_evaluate).parameters
        seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
        given = {name: getattr(cfg, name) for name in names if hasattr(cfg, name)}
        given |= dict(zip(seeds, cfg.seed or [None] * 4, strict=True))
        given |= {"model": lm, "task_manager": self._manager, "evaluation_tracker": self._tracker}
        return simple_evaluate(**given | {"cache_requests": False})

    def _write(self, results: Any, samples: Mapping[str, Any]) -> None:
        """Write records to a draft, and move them to their place when all are whole."""
        path = Path(self.cfg.output_path)
        home = path.parent if path.suffix == ".json" else path
        home.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
        try:
            self._tracker.output_path = str(draft / path.relative_to(home))
            self._tracker.save_results_aggregated(results=results, samples=samples)
            for name, every in samples.items():
                self._tracker.save_results_samples(task_name=name, samples=every)
            files = [*draft.rglob("*.jsonl"), *draft.rglob("*.json")]  # the results come last
            lines = sum(1 for file in files[:-1] for _ in file.open("rb"))
            if len(files) != 1 + len(samples) or lines != sum(map(len, samples.values())):
                free = shutil.disk_usage(home).free  # lm-eval has gone on after an error
                raise OSError(f"lm-eval has saved {lines} samples alone; {free:,} bytes are free")
            if not self._is_there(home / files[-1].relative_to(draft), files[-1]):
                for file in files:
                    place = home / file.relative_to(draft)
                    place.parent.mkdir(exist_ok=True)
                    with file.open("rb") as written:
                        os.fsync(written.fileno())
                    file.replace(place)
                sync_folder(place.parent)
        except OSError as error:
            raise UsageError(
                f"the records can't be written to {home}: {error}; make room, or give another "
                f"--output_path. Where there is a --ledger, it has all answers"
            ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _is_there(self, place: Path, written: Path) -> bool:
        """Return whether another rank, which was thought to be lost, has written the same."""

        def lasting(path: Path) -> Any:
            found = json.loads(path.read_bytes())
            return {name: found[name] for name in found.keys() - _VOLATILE}

        others = place.parent.glob("*.json")
        return lasting(written) in [lasting(e) for e in others if e.stat().st_mtime > self._began]


def _parsed(arguments: Sequence[str]) -> tuple[Any, dict[str, int | None]]:
    """Return lm-eval's configuration, and the options that are not lm-eval's.

    Raises:
        UsageError: An option is unknown, or can't be taken.
    """
    from lm_eval._cli.run import Run as Parser
    from lm_eval.config.evaluate_config import EvaluatorConfig

    commands = argparse.ArgumentParser(add_help=False).add_subparsers()
    Parser.create(commands)
    parser = commands.choices["run"]
    for name in _OWN:
        parser.add_argument(f"--{name}", type=int)

    def refuse(*told: Any) -> NoReturn:
        raise ValueError([*told, "lm-eval run --help has them"][0])

    vars(parser).update(error=refuse, exit=refuse)  # which would end the process
    with _as_usage("the words after -- are those of lm-eval run"):
        found = parser.parse_args([*arguments])
        options = {name: vars(found).pop(name) for name in _OWN}
        cfg = EvaluatorConfig.from_cli(found)
    for name in _NOT_TAKEN:
        if getattr(cfg, name):
            raise UsageError(
                f"--{name} of lm-eval can't be used here: --ledger keeps answers, and records may "
                f"be checked, uploaded and logged when they are written; leave it out"
            )
    for name, value in options.items():
        if value is not None:
            check_count(f"--{name}", value)
    if cfg.output_path:
        cfg.output_path = str(Path(cfg.output_path).absolute())
        check_output_folder("--output_path", Path(cfg.output_path).parent)
    return cfg, options


def _batches(
    lm: Any, requests: Sequence[Any], max_tokens: int | None, requests_per_call: int | None
) -> tuple[list[list[int]], list[int]]:
    """Return the requests of each call of the model, and the length of each request.

    Calls have requests of one type by falling length. For lm-eval's class ``hf`` they are lm-eval's
    own batches in one process, in which requests whose tokens differ in the last alone are one row,
    unless ``max_tokens`` cuts them, and but for rolling requests, which lm-eval does not sort.
    """
    module = sys.modules.get("lm_eval.models.huggingface")
    is_hf = module is not None and isinstance(lm, module.HFLM) and not hasattr(lm, "MULTIMODAL")
    if is_hf and not isinstance(lm.batch_size, int):
        raise UsageError("--batch_size auto: ranks need the same batches; give a number")
    if (is_hf and requests_per_call) or (max_tokens and not is_hf):
        raise UsageError(
            f"--max_tokens is for models of the class hf, and --requests_per_call for others, "
            f"which make their own batches; this is {type(lm).__name__}"
        )
    most = lm.batch_size if is_hf else requests_per_call or 64
    shares = is_hf and lm.backend == "causal" and lm.logits_cache
    lengths, keys = list[int](), list[Any]()
    blocks: dict[str, dict[Any, list[int]]] = {}  # of what may be in one batch, and of each row
    tokens = iter(_encoded(lm, requests) if is_hf else ())
    for number, request in enumerate(requests):
        block, key, row = request.request_type, request.args[0], [number]
        if not is_hf:
            length = sum(len(each) for each in request.args if isinstance(each, str))
        elif block == "loglikelihood":
            _, context, continuation = next(tokens)
            key = [*context, *continuation]
            length, row = len(key), key[:-1] if shares else row
        else:
            length, block = len(lm.tok_encode(key)), f"{block} {request.args[1:2]}"
        lengths.append(length)
        keys.append((-length, key))
        blocks.setdefault(block, {}).setdefault(tuple(row), []).append(number)
    batches: list[list[int]] = []
    for rows in blocks.values():
        count, longest = most, 0  # of the last batch
        for same in sorted(rows.values(), key=lambda row: keys[row[0]]):
            if count == most or (max_tokens and (count + 1) * longest > max_tokens):
                batches.append([])
                count, longest = 0, lengths[same[0]]
            batches[-1] += same
            count += 1
    return batches, lengths


def _encoded(lm: Any, requests: Sequence[Any]) -> Any:
    """Return the tokens of loglikelihood requests as lm-eval finds them."""
    from lm_eval.api.model import TemplateLM

    known = {
        "__getattr__": lambda _, name: getattr(lm, name),
        "_loglikelihood_tokens": lambda _, found, **more: found,
    }
    asked = [each for each in requests if each.request_type == "loglikelihood"]
    return TemplateLM.loglikelihood(type("Probe", (), known)(), asked, disable_tqdm=True)


def _standing_in(lm: Any, answer: Callable[[Any], Any]) -> Any:
    """Return a model of lm-eval that answers by a function, and else is as another one."""
    from lm_eval.api.model import LM

    found: dict[str, Any] = dict.fromkeys(_KINDS, lambda _, requests: answer(requests))
    for name in ("apply_chat_template", "chat_template", "tokenizer_name"):  # which LM has, too
        found[name] = property(lambda _, name=name: getattr(lm, name))  # type: ignore[misc]
    found["__getattr__"] = lambda _, name: getattr(lm, name)
    return type("StandIn", (LM,), found)()


def _sample(request: Any) -> dict[str, Any]:
    """Return everything that a request consists of, which ranks and later runs compare."""
    return {
        "task": request.task_name, "document": request.doc_id, "request": request.idx,
        "type": request.request_type, "arguments": request.args, "contents": request.doc,
    }  # fmt: skip


def _name(sample: Mapping[str, Any]) -> str:
    """Return what an error calls a request."""
    return "the {type} request {request} about document {document} of {task}".format(**sample)


def _described(one: Any) -> str:
    """Return a digest of the configuration of a task and of the code that it names."""
    code = [describe(name, value) for name, value in vars(one.config).items() if callable(value)]
    kind = {} if type(one).__module__.startswith("lm_eval.") else describe("", type(one))
    return _digest([one.dump_config(), code, kind])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=lambda one: sorted(describe("", one).items()))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@contextmanager
def _as_usage(what: str) -> Iterator[None]:
    """Turn what lm-eval raises into a UsageError."""
    try:
        yield
    except Exception as error:
        raise UsageError(f"{what}: {describe_error(error)}") from error


@contextmanager
def _changed(*removed: str, **variables: str) -> Iterator[None]:
    """Remove variables of the environment, and set others, inside the block."""
    names = [*removed, *variables]
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        os.environ |= variables
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ |= before
