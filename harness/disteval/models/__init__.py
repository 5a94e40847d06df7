"""ResNet-18 and its weights; each framework's network is a module that imports it."""

from disteval.models.weights import default_weights, load_weights, random_trunk, save_weights

__all__ = ["default_weights", "load_weights", "random_trunk", "save_weights"]
