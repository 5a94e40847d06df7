"""ResNet-18's weights; the network is in one module for each framework, which imports it."""

from disteval.models.weights import default_weights, load_weights, random_trunk, save_weights

__all__ = ["default_weights", "load_weights", "random_trunk", "save_weights"]
