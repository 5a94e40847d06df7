"""The parts of a case that are torch's: streams for its loader, and the planted model."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset

from disteval.audit.case import SizedStream, Stream
from disteval.audit.planted import CLASSES


class TorchStream(Stream, IterableDataset):  # type: ignore[misc]
    """A stream that torch's ``DataLoader`` knows for one."""


class SizedTorchStream(SizedStream, IterableDataset):  # type: ignore[misc]
    """A stream with a length that torch's ``DataLoader`` knows for one."""


class PlantedModule(torch.nn.Module):  # type: ignore[misc]
    """The planted model; see `disteval.audit.case.Case.module`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.was_in_training = False

    def forward(self, x: Any = None, **fields: Any) -> Any:
        """Return scores of shape (B, 16); or a dict with ``loss`` and ``logits``."""
        self.was_in_training |= self.training
        logits = None
        if x is not None:
            logits = torch.nn.functional.one_hot(x[:, 0].long(), CLASSES) * self.scale
        if not fields:
            return logits
        if "tokens" in fields:
            mask = fields.get("mask", torch.ones_like(fields["tokens"])).float()
            loss = (fields["tokens"].float() * mask).sum() / mask.sum()
        elif "value" in fields:
            loss = fields["value"].float().mean()
        else:
            loss = torch.zeros(())
        return {"loss": loss.to(self.scale.dtype) * self.scale, "logits": logits}
