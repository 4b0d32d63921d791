"""Every error that QIR raises on purpose; the message says what, where, and what would do."""

from __future__ import annotations

_LONGEST = 2_000
"""So many characters of a message are shown; what a user wrote and it quotes may be longer."""


class QirError(Exception):
    """Any error that a user can act on; the command line prints it as one line."""

    status = 2

    def __str__(self) -> str:
        """Returns the message in one line; of a very long one its start and its end."""
        message = " ".join(super().__str__().splitlines())
        if len(message) <= _LONGEST:
            return message
        return f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 + 5 :]}"


class UsageError(QirError):
    """A call or a command line that contradicts itself, or names what there is not."""


class ArgumentError(UsageError, TypeError):
    """A call with an argument of a wrong type; names the function and the argument."""


class InputError(QirError):
    """A file that cannot be read, or is not what it says."""


class ShapesNeeded(InputError):
    """A file that does not state the shapes of its inputs; `inputs=` gives them."""


class DataError(QirError):
    """Calibration or run data that do not fit the model."""


class GraphError(QirError):
    """An edit that would break a graph."""


class TypeRuleError(QirError):
    """Operands or attributes that an op does not take."""


class ParseError(QirError):
    """Text that is not QIR's; names line and column."""


class OpError(QirError):
    """Values that an op cannot compute with."""


class ProfileError(QirError):
    """A numerics profile that is wrong, or asks for what cannot be executed."""


class PluginError(QirError):
    """A plugin that is missing, broken, or clashes with another."""


class ApiError(PluginError):
    """A plugin that is written for another plugin API."""


class ContractError(PluginError, AssertionError):
    """A plugin that fails checks of `qir.testing`; names each check and what it found."""


class PassError(QirError):
    """A pass that broke its contract; names pass and node."""


class MovedError(PassError):
    """A pass that moved a tensor further than it declares; names pass, rewrite and tensor."""

    status = 1


class SchemeError(QirError):
    """User rules or schemes that contradict each other."""


class VerifyError(QirError):
    """A program that is not well formed."""

    status = 1


class Refused(QirError):
    """A conversion that would lose something without `--lossy`."""

    status = 3


class Stopped(BaseException):
    """The system asked the process to end; files half written are cleared away on the way out."""
