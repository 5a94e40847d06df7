"""Hooks; what they attach to is `hook.Hook`."""

from harness.estimator.hooks.checkpoint import CheckpointHook
from harness.estimator.hooks.evaluation import EvalHook
from harness.estimator.hooks.hook import PRIORITIES, Hook
from harness.estimator.hooks.logger import LoggerHook, TensorboardLoggerHook, TextLoggerHook
from harness.estimator.hooks.lr import CosineLrHook, FixedLrHook, LrHook, PolyLrHook, StepLrHook
from harness.estimator.hooks.optimizer import OptimizerHook
from harness.estimator.hooks.sampler_seed import DistSamplerSeedHook
from harness.estimator.hooks.timer import IterTimerHook

__all__ = [
    "PRIORITIES",
    "CheckpointHook",
    "CosineLrHook",
    "DistSamplerSeedHook",
    "EvalHook",
    "FixedLrHook",
    "Hook",
    "IterTimerHook",
    "LoggerHook",
    "LrHook",
    "OptimizerHook",
    "PolyLrHook",
    "StepLrHook",
    "TensorboardLoggerHook",
    "TextLoggerHook",
]
