"""TensorFlow's collectives with its own timeout, which our adapter does without."""

from __future__ import annotations

import functools
from unittest import mock

import tensorflow as tf
from disteval.contract import Rendezvous
from disteval_backends.tf_collective_dist import TFCollectiveDist


class Timed(TFCollectiveDist):
    """Joins as `tf_collective` does, with a timeout of a day for each collective."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        experimental = tf.distribute.experimental
        timed = functools.partial(experimental.CommunicationOptions, timeout_seconds=86400)
        with mock.patch.object(experimental, "CommunicationOptions", timed):
            super().init_process(rank, world_size, rendezvous)
