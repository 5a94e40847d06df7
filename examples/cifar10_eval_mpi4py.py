"""Evaluate ResNet-18 over CIFAR-10 under MPI.

mpirun -np 3 python examples/cifar10_eval_mpi4py.py
"""

import os

import torch
from disteval import evaluate, get_dist_backend
from disteval.data import load_cifar10, load_embedded
from disteval.metrics import Accuracy
from disteval.models import default_weights
from disteval.models.resnet18_torch import make_predict


def main() -> None:
    """Evaluate the shard of this rank, and print the accuracy over all ranks."""
    backend = get_dist_backend("mpi4py")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // backend.world_size))
    root = os.environ.get("CIFAR10_ROOT")
    dataset = load_cifar10(root) if root else load_embedded()
    predict = make_predict(default_weights())
    result = evaluate(predict, dataset, {"accuracy": Accuracy(topk=(1, 3))}, backend)
    if backend.rank == 0:
        print(result.metrics["accuracy"])


if __name__ == "__main__":
    main()
