"""Evaluation of samples by ranks: `evaluate` has the loop, and `schedules` who evaluates what."""

from disteval.evaluation.coverage import Coverage, Covered
from disteval.evaluation.evaluate import evaluate
from disteval.evaluation.predict_all import predict_all
from disteval.evaluation.result import Evaluation
from disteval.evaluation.schedules import Leases
from disteval.evaluation.task import Task

__all__ = ["Coverage", "Covered", "Evaluation", "Leases", "Task", "evaluate", "predict_all"]
