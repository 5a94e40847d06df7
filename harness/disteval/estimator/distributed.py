"""Models whose gradients are averaged over the ranks, and whose buffers are shared by them."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError


class Distributed(nn.Module):  # type: ignore[misc]
    """A model whose `train_step` averages gradients over the process group; see `distribute`.

    The names of its weights begin with ``module.``, as those of DistributedDataParallel do.
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.module = model
        # A tuple hides it from torch; as a submodule it would give every weight a second name.
        self._parallel = (DistributedDataParallel(_TrainStep(model), **options),)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model itself, but not for training: gradients would not be averaged here."""
        if self.training and torch.is_grad_enabled():
            raise UsageError(
                f"the gradients of {type(self.module).__name__} would not be averaged when it is "
                f"called; call its train_step, or wrap it with DistributedDataParallel instead"
            )
        return self.module(*args, **kwargs)

    def train_step(self, data: Any, optimizer: Any, **kwargs: Any) -> Any:
        """Run the model's ``train_step``; the backward pass of its loss averages the gradients."""
        return self._parallel[0](data, optimizer, **kwargs)

    def val_step(self, data: Any, optimizer: Any, **kwargs: Any) -> Any:
        """Run the model's ``val_step``, without communicating with other ranks."""
        return self.module.val_step(data, optimizer, **kwargs)

    def no_sync(self) -> Any:
        """Return a context in which gradients add up on each rank, as DistributedDataParallel's."""
        return self._parallel[0].no_sync()


class _TrainStep(nn.Module):  # type: ignore[misc]
    """A training step as the forward pass of a module, for DistributedDataParallel."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.train_step(*args, **kwargs)


def distribute(model: nn.Module, **options: Any) -> nn.Module:
    """Wrap a model that has ``train_step`` so that training averages gradients over the ranks.

    DistributedDataParallel averages the gradients of its own ``forward`` alone, which a
    ``train_step`` goes past; so here the step itself is wrapped as a forward pass.

    Args:
        model: It has ``train_step(data, optimizer)`` and, to be validated, ``val_step``. It gets
            rank 0's weights.
        **options: Options of DistributedDataParallel, such as ``device_ids``.

    Returns:
        A module with ``train_step``, ``val_step`` and ``module``. Where torch.distributed is not
        initialised, and there is nothing to average, the model itself.

    Raises:
        UsageError: The model has no ``train_step``.
    """
    if not callable(getattr(model, "train_step", None)):
        raise UsageError(
            f"{type(model).__name__} has no train_step(data, optimizer), whose gradients "
            f"distribute() averages; add one"
        )
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return model
    return Distributed(model, **options)


def inner(model: Any) -> Any:
    """Return the model itself, without the wrapper that runs it on several ranks or devices."""
    wrappers = (Distributed, DistributedDataParallel, DataParallel)
    return model.module if isinstance(model, wrappers) else model


def averages_gradients(model: Any) -> bool:
    """Return whether a model or a part of it is wrapped so that gradients are averaged."""
    wrappers = (Distributed, DistributedDataParallel)
    return isinstance(model, nn.Module) and any(isinstance(m, wrappers) for m in model.modules())


def fingerprints(model: Any) -> list[tuple[int, Any]]:
    """Return numbers that differ once a parameter was changed; an empty list if there is none."""
    if not isinstance(model, nn.Module):
        return []
    known = [each.detach() for each in model.parameters() if not is_lazy(each)]
    # A fused optimizer counts no new version, and a rate of 0 changes no sum.
    return [(each._version, each.sum().item()) for each in known]


def warn_if_not_averaged(model: Any, backend: BaseDistBackend, logger: logging.Logger) -> None:
    """Warn on rank 0 if each rank would train a model of its own."""
    if backend.rank == 0 and backend.world_size > 1 and not averages_gradients(model):
        logger.warning(
            "nothing in %s averages gradients over the %d ranks, so each rank trains a model of "
            "its own, unless a hook or the optimizer averages them; once torch.distributed is "
            "initialised, wrap it with disteval.estimator.distribute",
            type(model).__name__,
            backend.world_size,
        )


def share_buffers(model: Any, backend: BaseDistBackend) -> None:
    """Give every rank rank 0's buffers, such as the statistics of batch normalisations."""
    buffers: dict[str, torch.Tensor] = dict(inner(model).named_buffers())
    if backend.world_size == 1 or not buffers:
        return
    sent = {name: each.detach().cpu() for name, each in buffers.items()}
    received = backend.broadcast_object(sent if backend.rank == 0 else None, src=0)
    with torch.no_grad():
        for name, buffer in buffers.items():
            buffer.copy_(received[name])
