"""Evaluation of a data set by several ranks, each of which evaluates its shard."""

from disteval.evaluation.coverage import Coverage, Covered
from disteval.evaluation.leasing import Leases
from disteval.evaluation.loop import evaluate
from disteval.evaluation.predict_all import predict_all
from disteval.evaluation.result import Evaluation
from disteval.evaluation.task import Task

__all__ = ["Coverage", "Covered", "Evaluation", "Leases", "Task", "evaluate", "predict_all"]
