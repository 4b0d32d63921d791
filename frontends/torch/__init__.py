"""Reads PyTorch: exported programs, `.pt2` files, and modules together with example inputs."""

from .frontend import TorchFrontend

__all__ = ["TorchFrontend"]
