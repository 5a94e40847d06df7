"""Hooks, which act at the stages of a run; their base is `hook.Hook`."""

from disteval.estimator.hooks.checkpoint import BestWeightsHook, CheckpointHook
from disteval.estimator.hooks.hook import PRIORITIES, Hook
from disteval.estimator.hooks.logger import TextLoggerHook
from disteval.estimator.hooks.lr import CosineLrHook, LrHook, StepLrHook
from disteval.estimator.hooks.optimizer import OptimizerHook

__all__ = [
    "PRIORITIES",
    "BestWeightsHook",
    "CheckpointHook",
    "CosineLrHook",
    "Hook",
    "LrHook",
    "OptimizerHook",
    "StepLrHook",
    "TextLoggerHook",
]
