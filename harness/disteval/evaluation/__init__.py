"""Evaluation of a data set by several ranks, each of which evaluates its shard."""

from disteval.evaluation.coverage import Coverage, Covered
from disteval.evaluation.loop import evaluate
from disteval.evaluation.result import Evaluation

__all__ = ["Coverage", "Covered", "Evaluation", "evaluate"]
