"""A plugin for a plugin API that is yet to come."""

from qir.what_is_to_come import Anything  # type: ignore[import-not-found]

qir_api = 2

Later = Anything
