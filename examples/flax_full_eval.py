"""Full evaluation in JAX: the ways that get it wrong, with their numbers, and those that do not.

Needs no accelerator: it runs on eight virtual CPU devices, then on three processes of two::

    python examples/flax_full_eval.py
"""

from __future__ import annotations

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"

from functools import partial

import jax
import numpy as np
from disteval.data import load_embedded
from disteval.models import default_weights
from disteval.models.resnet18_jax import ResNet18, preprocess, variables
from disteval.padding import in_step, pad_shard_unpad, with_infinite_padding
from disteval.worlds import World
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SIZE, BATCH = 203, 64
HOSTS = [(0, 100), (100, 130), (130, SIZE)]  # three hosts with different shares
MODEL, HELD = ResNet18(), variables(default_weights())


def load():
    """The first pictures of the embedded set, and their classes."""
    test = load_embedded("test")
    return test.images[:SIZE], test.labels[:SIZE]


def batches(images, labels):
    """Cut them into batches, the last one shorter."""
    for start in range(0, len(labels), BATCH):
        yield {"x": images[start : start + BATCH], "y": labels[start : start + BATCH]}


def forward(held, images):
    """Scores of uint8 pictures."""
    return MODEL.apply(held, preprocess(images).transpose(0, 2, 3, 1))


def counts(held, batch, mask):
    """Right predictions and samples, of rows that are real."""
    right = forward(held, batch["x"]).argmax(-1) == batch["y"]
    return (right & mask).sum(), mask.sum()


def drops_the_remainder(images, labels):
    """Wrong: what the devices can't share evenly is not evaluated."""
    right = seen = 0
    step = jax.pmap(lambda batch: (forward(HELD, batch["x"]).argmax(-1) == batch["y"]).sum())
    for batch in batches(images, labels):
        rows = len(batch["y"]) // 8 * 8
        if rows:
            cut = jax.tree.map(lambda a, n=rows: a[:n].reshape(8, -1, *a.shape[1:]), batch)
            right, seen = right + int(step(cut).sum()), seen + rows
    return right, seen


def counts_the_padding(images, labels):
    """Wrong: zeros are evaluated too, and count as pictures of class 0."""
    right = seen = 0
    step = pad_shard_unpad(jax.pmap(partial(counts_all, HELD)), (), static_return=True)
    for batch in batches(images, labels):
        some_right, some_seen = step(batch)
        right, seen = right + int(some_right.sum()), seen + int(some_seen.sum())
    return right, seen


def counts_all(held, batch):
    """What `counts` gives without a mask."""
    return counts(held, batch, np.ones(batch["y"].shape, dtype=bool))


def trims_predictions(images, labels):
    """Right: every prediction comes back to the host, without the padding."""
    predict = pad_shard_unpad(jax.pmap(forward, in_axes=(None, 0)))
    right = seen = 0
    for batch in batches(images, labels):
        scores = predict(HELD, batch["x"], min_device_batch=BATCH // 8)
        right, seen = right + int((scores.argmax(-1) == batch["y"]).sum()), seen + len(scores)
    return right, seen


def masks_on_devices(images, labels):
    """Right, and two numbers a batch are all that comes back: pmap and psum."""

    def step(batch, *, mask):
        return jax.lax.psum(counts(HELD, batch, mask), "devices")

    counting = jax.pmap(step, axis_name="devices")
    counting = pad_shard_unpad(counting, (), static_return=True, mask="mask")
    found = [counting(b, min_device_batch=BATCH // 8) for b in batches(images, labels)]
    return tuple(sum(int(out[i][0]) for out in found) for i in (0, 1))


def masks_on_a_mesh(images, labels):
    """Right, the current way: jit over a mesh."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))

    @jax.jit
    def step(held, batch, *, mask):
        return counts(held, batch, mask)

    counting = pad_shard_unpad(step, static_return=True, mask="mask", sharding=sharding)
    found = [counting(HELD, b, min_device_batch=BATCH // 8) for b in batches(images, labels)]
    return tuple(sum(int(out[i]) for out in found) for i in (0, 1))


def count_on_host(backend, share):
    """One of several processes; those that are done first go on with padding until all are."""
    images, labels = (array[slice(*share)] for array in load())
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))
    step = pad_shard_unpad(
        jax.jit(lambda held, batch: counts(held, batch, batch["mask"])),
        static_return=True,
        sharding=sharding,
    )
    held = jax.device_put(HELD, NamedSharding(sharding.mesh, PartitionSpec()))
    endless = with_infinite_padding(batches(images, labels))
    found = [step(held, b, min_device_batch=BATCH // 2) for b in in_step(endless, backend)]
    return tuple(sum(int(out[i]) for out in found) for i in (0, 1))


def on_three_hosts(images, labels):
    """Right, on three processes of two devices whose shares differ."""
    os.environ["JAX_NUM_CPU_DEVICES"] = "2"
    with World("jax", 3, timeout=120) as world:
        answers = world.run(count_on_host, *HOSTS)
    if len(set(answers)) != 1:
        raise RuntimeError(f"the hosts disagree: {answers}")
    return answers[0]


if __name__ == "__main__":
    data = load()
    for way in (
        drops_the_remainder,
        counts_the_padding,
        trims_predictions,
        masks_on_devices,
        masks_on_a_mesh,
        on_three_hosts,
    ):
        right, seen = way(*data)
        print(f"{way.__name__:20} {right:3} of {seen:3} right: {right / seen:.4f}", flush=True)
