"""Reads MXNet models, `NAME-symbol.json` with `NAME-0000.params`, without MXNet."""

from .frontend import MxnetFrontend

__all__ = ["MxnetFrontend"]
