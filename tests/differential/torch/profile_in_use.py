"""The numerics profiles of the torch that is installed, to which tests hold it."""

from qir.backends.torch.versions import profile_name as named

__all__ = ["named"]
