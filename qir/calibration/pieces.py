"""Pieces of calibration data: samples that are read together, fitted to the inputs of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qir.calibration.labels import LABEL_NAMES
from qir.calibration.rows import ArrayRows, SampleRows, TypedRows, is_raw_bytes
from qir.errors import DataError

HINT = "calibrate, quantize and run take complete inputs with --feeds (feeds=True)"


@dataclass(frozen=True)
class InputSpec:
    """What a model's input takes; None where any size will do.

    The first axis counts samples; an input without axes is one number for all of a batch.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[np.generic]
    quantized: str = ""
    """How floats x become the quantized values that it takes; empty for plain inputs."""

    def __str__(self) -> str:
        shape = "x".join("?" if size is None else str(size) for size in self.shape)
        return f"{shape or 'one'} {self.dtype}"


@dataclass(frozen=True)
class Piece:
    """Some samples that are together: rows of each input, and where they are from."""

    where: str
    samples: int
    inputs: Mapping[str, ArrayRows]


class Pieces(Protocol):
    """Where samples come from."""

    name: str

    @property
    def identity(self) -> str | None:
        """Identifies data that can be read only once; None where they can be read again."""
        ...

    def __iter__(self) -> Iterator[Piece]: ...

    def samples(self) -> int | None:
        """Returns how many there are, where that can be known before the end."""
        ...


def arrays_for_inputs(
    where: str, arrays: Mapping[str, ArrayRows], inputs: Mapping[str, InputSpec]
) -> dict[str, ArrayRows]:
    """Finds the array of each input; raises DataError for a missing name.

    Arrays that no input is named after are let be. The only one that is not named as labels are is
    the only input's.
    """
    chosen: dict[str, ArrayRows] = {}
    data = [rows for name, rows in arrays.items() if len(arrays) == 1 or name not in LABEL_NAMES]
    for name in inputs:
        if name in arrays:
            chosen[name] = arrays[name]
        elif len(inputs) == 1 and len(data) == 1:
            chosen[name] = data[0]
        else:
            has = ", ".join(repr(other) for other in arrays if other) or "one array without a name"
            raise DataError(f"{where}: no array for input {name!r}; it has {has}")
    return chosen


def make_piece(
    where: str, arrays: Mapping[str, ArrayRows], inputs: Mapping[str, InputSpec]
) -> Piece:
    """Finds the array of each input; raises DataError for a missing name, wrong shape, dtype or
    length.
    """
    chosen = {
        name: as_rows(rows, inputs[name], f"{where}: input {name!r}")
        for name, rows in arrays_for_inputs(where, arrays, inputs).items()
    }
    lengths = {name: rows.shape[0] for name, rows in chosen.items() if inputs[name].shape}
    if len(set(lengths.values())) > 1:
        lengths_text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(f"{where}: the inputs differ in samples: {lengths_text}; {HINT}")
    # Where no input has axes, the numbers together are one sample.
    return Piece(where, next(iter(lengths.values()), min(len(chosen), 1)), chosen)


def rows_of_dtype(rows: ArrayRows, spec: InputSpec, where: str) -> ArrayRows:
    """Converts rows to a type of the input; raises DataError for others.

    NumPy saves bfloat16 and the like as bare bytes: an input of the same width reads them as its
    own.
    """
    if is_raw_bytes(rows.dtype) and (spec.dtype.kind, spec.dtype.itemsize) == (
        "V",
        rows.dtype.itemsize,
    ):
        rows = TypedRows(rows, spec.dtype)
    # NumPy would convert pixels silently, and the calibrated ranges would be 0..255.
    if rows.dtype == np.uint8 and spec.dtype.kind in "fV":
        problem = (
            f"{where} is {spec.dtype}, the data are uint8, which are pixels before preprocessing"
        )
        raise DataError(f"{problem}: scale them as the model wants, and save them as {spec.dtype}")
    if not np.can_cast(rows.dtype, spec.dtype, "same_kind"):
        other = ", bytes of a type that NumPy has not: save them as float32"
        problem = other if is_raw_bytes(rows.dtype) else ""
        if spec.quantized and rows.dtype.kind == "f":
            problem = f"; quantize x: {spec.quantized}, or use pass float-io"
        raise DataError(f"{where} is {spec.dtype}, the data are {rows.dtype}{problem}")
    return rows


def as_rows(rows: ArrayRows, spec: InputSpec, where: str) -> ArrayRows:
    """Returns rows of samples that fit an input; DataError names the shapes found and expected."""
    rows = rows_of_dtype(rows, spec, where)
    sample = spec.shape[1:]
    shape = rows.shape
    # Without an axis for the batch, the array is one sample.
    if len(shape) == len(sample) and fits_shape(shape, sample):
        return SampleRows(rows)
    if len(shape) != len(spec.shape) or not fits_shape(shape[1:], sample):
        raise DataError(f"{where} takes {spec}, the data have shape {list(shape)}")
    return rows


def fits_shape(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Returns whether sizes are those wanted, wherever these are known."""
    return all(want in (None, size) for size, want in zip(shape, wanted, strict=True))
