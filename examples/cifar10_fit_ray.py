"""Train ResNet-18 on CIFAR-10 on two ranks of a Ray cluster: creators, hooks by config, a workflow.

python examples/cifar10_fit_ray.py                     # a Ray of this machine, started here
python examples/cifar10_fit_ray.py --address auto      # the cluster that this machine is in
python examples/cifar10_fit_ray.py --launcher local    # without Ray
"""

import argparse
import os
import tempfile

import torch
from disteval.data import load_cifar10, load_embedded
from disteval.estimator import EpochBasedRunner, Estimator
from disteval.models.resnet18_torch import ResNet18, preprocess
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Model(ResNet18):
    """The network, with the steps that a runner takes."""

    def train_step(self, data, optimizer):
        """Return the loss of a batch; a hook goes backward."""
        images, labels = data
        loss = cross_entropy(self(preprocess(images)), labels)
        return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": len(labels)}

    def val_step(self, data, optimizer):
        """Return the scores of a batch, which accuracy is computed from."""
        images, labels = data
        scores = self(preprocess(images))
        return {"log_vars": {}, "num_samples": len(labels), "scores": scores, "labels": labels}


def runner_creator(config):
    """Create the runner, on each rank."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9, nesterov=True)
    runner = EpochBasedRunner(model, optimizer=optimizer, work_dir=config["work_dir"])
    runner.register_training_hooks(
        lr_config={"policy": "cosine", "by_epoch": False},
        optimizer_config={"grad_clip": {"max_norm": 5.0}},
        checkpoint_config={"interval": 1, "max_keep_ckpts": 1},
        log_config={"interval": 10},
    )
    return runner


def load(split, config):
    """Load a split: real CIFAR-10 where there is some, or the data set that ships."""
    root = config["data"]
    found = load_cifar10(root, split) if root else load_embedded(split)
    size = config["samples"] or len(found)
    return TensorDataset(
        torch.from_numpy(found.images[:size]), torch.from_numpy(found.labels[:size])
    )


def train_loader_creator(config):
    """Create the loader of the training data; each rank gets its share, shuffled anew."""
    return DataLoader(load("train", config), batch_size=config["batch_size"], shuffle=True)


def val_loader_creator(config):
    """Create the loader of the test data; over all ranks each sample is evaluated once."""
    return DataLoader(load("test", config), batch_size=256)


def main():
    """Train, and print the last validation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launcher", choices=["local", "ray"], default="ray")
    parser.add_argument("--address")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, help="of each split; all of them by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work_dir:
        config = {
            "lr": 0.05,
            "batch_size": 64,  # of each rank
            "data": os.environ.get("CIFAR10_ROOT"),
            "samples": options.samples,
            "work_dir": work_dir,
        }
        with Estimator(
            runner_creator, config, options.launcher, options.world_size, address=options.address
        ) as estimator:
            records = estimator.fit(
                [train_loader_creator, val_loader_creator],
                [("train", 1), ("val", 1)],
                max_epochs=options.epochs,
            )
    print({name: records[-1][name] for name in ("epoch", "accuracy", "correct", "evaluated")})


if __name__ == "__main__":
    main()
