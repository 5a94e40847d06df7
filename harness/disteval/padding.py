"""Batches of one shape on many devices for JAX programs, without counting their padding.

The functions follow Flax's guide to full evaluation, https://flax.readthedocs.io/en/latest/guides/
data_preprocessing/full_eval.html. They take and return NumPy arrays, and import JAX when called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.contract import BaseDistBackend
from disteval.default_backend import joining_backend
from disteval.errors import UsageError
from disteval.extras import needs

Array = Any
Tree = Any


def pad_shard_unpad(
    fn: Callable[..., Tree],
    static_argnums: int | Sequence[int] = (0,),
    static_argnames: str | Sequence[str] = (),
    static_return: bool = False,
    *,
    mask: str | None = None,
    devices: Sequence[Any] | None = None,
    sharding: Any = None,
) -> Callable[..., Tree]:
    """Return a function that takes batches of any size, from a function of sharded batches.

    It works like `flax.jax_utils.pad_shard_unpad` and begins with the same arguments. Rows of zeros
    are added to every array until each of d devices has equally many rows; they are removed from
    the results. The returned function takes one more argument, ``min_device_batch``: the fewest
    rows on each device. If no batch has more, all have one shape, and ``fn`` is traced once.

    Args:
        fn: A function such as ``jax.pmap(…)``, whose arrays have the shape (d, rows on a device,
            …). With ``sharding``, one such as ``jax.jit(…)``: (d x rows on a device, …).
        static_argnums: Positions of arguments that are passed on unchanged; by default the first.
        static_argnames: Names of keyword arguments that are passed on unchanged.
        static_return: Whether the results of ``fn`` have no batch axis and are returned unchanged.
        mask: The name of a keyword argument with which ``fn`` gets a bool array, true for rows that
            are not padding, with the leading one or two axes of the others. Functions that count
            need it.
        devices: The devices to use; None stands for all devices of this process.
        sharding: A `jax.sharding.NamedSharding` over the leading axis, for ``jax.jit`` over a mesh.
            The mesh may span several processes, each of which passes its own batch.

    Raises:
        UsageError: ``fn`` is not a function. On a call: an array has no leading axis or one of
            another length, there is no array, or an argument has the mask's name.
        LibraryMissingError: On a call: JAX is not installed.
    """
    if not callable(fn):
        raise UsageError(f"fn must be a function of sharded batches, not {fn!r}")
    if isinstance(static_argnums, int):
        static_argnums = (static_argnums,)
    if isinstance(static_argnames, str):
        static_argnames = (static_argnames,)

    @wraps(fn)
    def call(*args: Tree, min_device_batch: int | None = None, **kwargs: Tree) -> Tree:
        with needs("pad_shard_unpad", "jax"):
            import jax

        if min_device_batch is not None:
            check_count("min_device_batch", min_device_batch)
        if mask in kwargs:
            raise UsageError(
                f"the call has an argument {mask!r}, which the mask of real rows would replace; "
                f"give one of them another name"
            )
        moved = {f"argument {i}": a for i, a in enumerate(args) if i not in static_argnums}
        moved |= {f"argument {k}": v for k, v in kwargs.items() if k not in static_argnames}
        size = _batch_size(moved)
        layout = _Layout(size, min_device_batch or 1, devices, sharding)
        sharded = jax.tree_util.tree_map(layout.put, moved)
        given = [sharded.get(f"argument {i}", arg) for i, arg in enumerate(args)]
        named = {key: sharded.get(f"argument {key}", value) for key, value in kwargs.items()}
        if mask is not None:
            named[mask] = layout.put(np.ones(size, dtype=bool))
        out = fn(*given, **named)
        return out if static_return else jax.tree_util.tree_map(layout.take, out)

    return call


def with_infinite_padding(
    batches: Iterable[Mapping[str, Array]],
    *,
    mask: str = "mask",
    like: Mapping[str, Array] | None = None,
) -> Iterator[Mapping[str, Array]]:
    """Append endless batches of zeros, for hosts that have different numbers of batches.

    Args:
        batches: Dicts of arrays with leading axes of one length; those without rows are left out,
            which `in_step` would take for padding. Of a `tf.data.Dataset`, give its
            ``as_numpy_iterator()``.
        mask: The key of the bool array that is added, which is true for rows that are not padding.
        like: A batch with the shapes and dtypes of the padding; None stands for the last batch. It
            is needed if a host may have no batch.

    Returns:
        An iterator of dicts.

    Raises:
        UsageError: There is neither a batch nor ``like``, or a batch has the key ``mask`` already.
    """
    if like is not None:
        _rows(like, "like")
    if not isinstance(batches, Iterable):
        raise UsageError(f"batches must be an iterable of dicts of arrays, not {batches!r}")
    return _infinite(batches, mask, like)


def in_step(
    batches: Iterable[Mapping[str, Array]],
    dist_backend: str | BaseDistBackend | None,
    *,
    mask: str = "mask",
) -> Iterator[Mapping[str, Array]]:
    """Yield equally many batches on every rank, until all ranks have only padding left.

    Each batch takes one small collective.

    Args:
        batches: The endless batches of `with_infinite_padding`.
        dist_backend: The backend that joins the ranks, or its name; None stands for the default,
            see `disteval.get_dist_backend`.
        mask: The key of the mask.

    Raises:
        UsageError: A batch has no mask.
    """
    backend = joining_backend(dist_backend)
    for batch in batches:
        if not isinstance(batch, Mapping) or mask not in batch:
            raise UsageError(
                f"a batch has no mask {mask!r}; give in_step the batches of with_infinite_padding, "
                f"with the same name for the mask"
            )
        if not any(backend.all_gather_object(bool(np.any(batch[mask])))):
            return
        yield batch


class _Layout:
    """The distribution of one batch over devices.

    Args:
        size: The number of rows.
        least: The fewest rows on a device.
        devices: The devices; None stands for the sharding's, or all devices of this process.
        sharding: The sharding of flat arrays over a mesh; None for arrays with an axis of devices.
    """

    def __init__(self, size: int, least: int, devices: Sequence[Any] | None, sharding: Any) -> None:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self._flat = sharding is not None
        if sharding is None:
            mesh = Mesh(np.array(devices or jax.local_devices()), ("devices",))
            sharding = NamedSharding(mesh, PartitionSpec("devices"))
        self._size, self._sharding = size, sharding
        self._devices = len(sharding.mesh.local_devices)
        self._rows = max(-(-size // self._devices), least)

    def put(self, array: Array) -> Array:
        """Pad an array and copy its parts to the devices of this process."""
        import jax

        array = np.asarray(array)
        if missing := self._devices * self._rows - self._size:
            padding = np.zeros((missing, *array.shape[1:]), array.dtype)
            array = np.concatenate([array, padding])
        if not self._flat:
            array = array.reshape(self._devices, self._rows, *array.shape[1:])
        return jax.make_array_from_process_local_data(self._sharding, array)

    def take(self, array: Array) -> Array:
        """Copy a result to the host's memory, and remove the padding."""
        if self._flat and not array.is_fully_addressable:
            shards = sorted(array.addressable_shards, key=lambda s: [p.start or 0 for p in s.index])
            rows = np.concatenate([np.asarray(shard.data) for shard in shards])
        else:
            rows = np.asarray(array)
        if not self._flat:
            rows = rows.reshape(-1, *rows.shape[2:])
        return rows[: self._size]


def _batch_size(arguments: dict[str, Tree]) -> int:
    """Return the length of the leading axis that all arrays share."""
    import jax

    sizes: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        name = f"{path[0].key}{jax.tree_util.keystr(path[1:])}"
        if np.ndim(leaf) == 0:
            raise UsageError(
                f"{name} is {leaf!r}, which has no leading axis to shard; name arguments that "
                f"are not batches in static_argnums or static_argnames"
            )
        sizes[name] = np.shape(leaf)[0]
    if not sizes:
        raise UsageError(
            "there is no array to shard; all arguments are static, as the first is by default: "
            "pass static_argnums=() if it is a batch"
        )
    first = next(iter(sizes))
    for name, size in sizes.items():
        if size == 0:
            raise UsageError(f"{name} has no rows; an empty batch has nothing to evaluate")
        if size != sizes[first]:
            raise UsageError(
                f"{name} has {size} rows and {first} has {sizes[first]}; all arrays of a "
                f"batch must have equally many"
            )
    return sizes[first]


def _infinite(
    batches: Iterable[Mapping[str, Array]], mask: str, like: Mapping[str, Array] | None
) -> Iterator[Mapping[str, Array]]:
    batch = like
    for batch in batches:
        rows = _rows(batch, "a batch")
        if mask in batch or len(rows) != 1:
            raise UsageError(
                f"a batch with the keys {', '.join(batch)} and leading axes {sorted(rows)} can't "
                f"get a mask {mask!r}"
            )
        if rows != {0}:
            yield {**batch, mask: np.ones(rows.pop(), dtype=bool)}
    example = batch if like is None else like
    if example is None:
        raise UsageError(
            "there is no batch to take the shapes of the padding from; pass one as like=…"
        )
    padding = {key: np.zeros_like(array) for key, array in example.items()}
    padding[mask] = np.zeros(len(next(iter(example.values()))), dtype=bool)
    while True:
        yield padding


def _rows(batch: Mapping[str, Array], name: str) -> set[int]:
    """Return the lengths of the leading axes of a batch's arrays."""
    if not isinstance(batch, Mapping) or not batch or not all(map(np.ndim, batch.values())):
        raise UsageError(
            f"{name} must be a dict of arrays whose leading axis is that of the batch, such as "
            f"{{'image': …, 'label': …}}, not {type(batch).__name__}: {batch!r:.200}"
        )
    return {len(array) for array in batch.values()}
