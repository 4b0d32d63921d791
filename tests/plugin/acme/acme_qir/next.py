"""A plugin for a plugin API that is yet to come."""

from qir.what_is_to_come import Anything

qir_api = 2

Later = Anything
