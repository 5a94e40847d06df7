"""Evaluate a whole data set in JAX in two wrong ways and four right ways, and print the numbers.

It needs no accelerator: it runs on eight virtual CPU devices, and then on three processes with two
devices each::

    python examples/flax_full_eval.py
"""

from __future__ import annotations

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"

from functools import partial

import flax.linen as nn
import jax
import numpy as np
from disteval.data import load_embedded
from disteval.padding import in_step, pad_shard_unpad, with_infinite_padding
from disteval.world import World
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SIZE, BATCH = 35, 16
HOSTS = [(0, 17), (17, 22), (22, SIZE)]  # the shares of three hosts differ
MODEL = nn.Dense(10)


def train():
    """Fit a linear model that chooses the class whose mean is nearest to a picture."""
    known = load_embedded("train")
    pixels = known.images.reshape(len(known.labels), -1) / np.float32(255)
    means = np.stack([pixels[known.labels == each].mean(0) for each in range(10)])
    return {"params": {"kernel": means.T, "bias": -(means**2).sum(1) / 2}}


HELD = train()


def load():
    """Load the first pictures of the embedded test set and their classes."""
    test = load_embedded("test")
    return test.images[:SIZE], test.labels[:SIZE]


def batches(images, labels):
    """Cut pictures and classes into batches, of which the last one is shorter."""
    for start in range(0, len(labels), BATCH):
        yield {"x": images[start : start + BATCH], "y": labels[start : start + BATCH]}


def forward(held, images):
    """Compute the scores of uint8 pictures."""
    return MODEL.apply(held, images.reshape(len(images), -1) / 255)


def counts(held, batch, mask):
    """Count the right predictions and the samples, without padding."""
    right = forward(held, batch["x"]).argmax(-1) == batch["y"]
    return (right & mask).sum(), mask.sum()


@partial(jax.pmap, in_axes=(None, 0))
def count_all(held, batch):
    """Count the right predictions and the samples, padding included."""
    return counts(held, batch, np.ones(batch["y"].shape, dtype=bool))


def drops_the_remainder(images, labels):
    """Wrong: pictures that are left over after an even division are not evaluated."""
    right = seen = 0
    for batch in batches(images, labels):
        rows = len(batch["y"]) // 8 * 8
        if rows:
            cut = jax.tree.map(lambda a, n=rows: a[:n].reshape(8, -1, *a.shape[1:]), batch)
            some_right, some_seen = count_all(HELD, cut)
            right, seen = right + int(some_right.sum()), seen + int(some_seen.sum())
    return right, seen


def counts_the_padding(images, labels):
    """Wrong: the zeros of the padding are evaluated and counted as pictures of class 0."""
    right = seen = 0
    step = pad_shard_unpad(count_all, static_return=True)
    for batch in batches(images, labels):
        some_right, some_seen = step(HELD, batch, min_device_batch=BATCH // 8)
        right, seen = right + int(some_right.sum()), seen + int(some_seen.sum())
    return right, seen


def trims_predictions(images, labels):
    """Right: all predictions are copied to the host and the padding is removed there."""
    predict = pad_shard_unpad(jax.pmap(forward, in_axes=(None, 0)))
    right = seen = 0
    for batch in batches(images, labels):
        scores = predict(HELD, batch["x"], min_device_batch=BATCH // 8)
        right, seen = right + int((scores.argmax(-1) == batch["y"]).sum()), seen + len(scores)
    return right, seen


def masks_on_devices(images, labels):
    """Right: pmap and psum count on the devices, and the host gets two numbers for each batch."""

    def step(held, batch, *, mask):
        return jax.lax.psum(counts(held, batch, mask), "devices")

    counting = jax.pmap(step, axis_name="devices", in_axes=(None, 0))
    counting = pad_shard_unpad(counting, static_return=True, mask="mask")
    found = [counting(HELD, b, min_device_batch=BATCH // 8) for b in batches(images, labels)]
    return tuple(sum(int(out[i][0]) for out in found) for i in (0, 1))


def masks_on_a_mesh(images, labels):
    """Right: jit over a mesh counts on the devices, which is the current way in JAX."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))

    @jax.jit
    def step(held, batch, *, mask):
        return counts(held, batch, mask)

    counting = pad_shard_unpad(step, static_return=True, mask="mask", sharding=sharding)
    found = [counting(HELD, b, min_device_batch=BATCH // 8) for b in batches(images, labels)]
    return tuple(sum(int(out[i]) for out in found) for i in (0, 1))


def count_on_host(backend, share):
    """Count on one of several processes; a process that is done first continues with padding."""
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
    """Right: three processes with two devices each count shares of different sizes."""
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
        print(f"{way.__name__:20} {right} of {seen} right: {right / seen:.4f}", flush=True)
