"""The inputs of a model as data give them, those that have defaults among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qir.analysis.index_inputs import index_limit, is_mask
from qir.arguments import require_counts
from qir.calibration import Preprocess, open_data, open_feeds
from qir.calibration.data import DataSource, first_batch
from qir.calibration.rows import open_npy, open_npz
from qir.calibration.runner import input_specs
from qir.errors import DataError, QirError, UsageError
from qir.evaluating import labels_of
from qir.ir import dims
from qir.ir.dtype import STRING
from qir.ir.graph import Graph
from qir.ir.origin import default_input_names
from qir.workflows.engines import Tensor, Tensors

FIRST = 4
"""The most names that are listed."""
NO_INPUTS = "the model has no inputs"


@dataclass(frozen=True, slots=True)
class SampleData:
    """Sample data in a file or a folder, and how they are read."""

    path: Path
    labels: str | Path | None = None
    limit: int | None = None
    """Only so many samples are read."""
    batch: int | None = None
    feeds: bool = False
    """Whether each file holds the complete inputs of one run."""
    preprocess: Preprocess | str | Path | None = None

    if TYPE_CHECKING:  # no annotation of a field says that it takes a text too

        def __init__(
            self,
            path: str | Path,
            labels: str | Path | None = None,
            limit: int | None = None,
            batch: int | None = None,
            feeds: bool = False,
            preprocess: Preprocess | str | Path | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        require_counts({"limit": self.limit, "batch": self.batch})
        require_whole(self.feeds, self.batch)

    def first(self, graph: Graph, most: int) -> Tensors | None:
        """Returns the first samples as inputs of one run; None where they fill no batch."""
        inputs = input_specs(graph)
        if self.feeds:
            return next(iter(open_feeds(self.path, inputs, limit=1)), None)
        return first_batch(
            self.path, inputs, most, batch=self.batch, limit=self.limit, preprocess=self.preprocess
        )

    def require_labels(self, graph: Graph) -> None:
        """Raises DataError for labels that do not fit the data, before any work."""
        if self.labels is not None:
            source = open_data(
                self.path, input_specs(graph), limit=self.limit, preprocess=self.preprocess
            )
            labels_of(self.labels, self.path, source.samples, self.limit)

    def source(self, graph: Graph) -> Iterable[Tensors]:
        """Returns the batches for the inputs of a graph; with feeds, each file's."""
        inputs = input_specs(graph)
        if self.feeds:
            return open_feeds(self.path, inputs, limit=self.limit)
        return open_data(
            self.path, inputs, batch=self.batch, limit=self.limit, preprocess=self.preprocess
        )

    @classmethod
    def from_argument(cls, data: SampleData | str | Path | None) -> SampleData | None:
        """Returns the data that a caller gave, a path alone as all samples in it; None stays."""
        return cls(data) if isinstance(data, str | Path) else data


def default_overrides(graph: Graph, data: Path) -> dict[str, Tensor]:
    """Returns the arrays of an .npz file that replace defaults of a model.

    A default has no axis of samples, so its array is taken whole.
    """
    names = {value.name for value in graph.defaults}
    # Only an .npz file names its arrays and is read whole: in a folder each file is a sample.
    if not names or data.suffix != ".npz" or not data.is_file():
        return {}
    return {
        name: rows.read(0, rows.shape[0] if rows.shape else 1)
        for name, rows in open_npz(data).items()
        if name in names
    }


def require_whole(feeds: bool, batch: int | None) -> None:
    """Raises UsageError where complete feeds should be put into batches."""
    if feeds and batch is not None:
        raise UsageError("`feeds` takes each file as one run: leave `batch` out")


def batches(graph: Graph, samples: SampleData | None) -> Iterable[Tensors]:
    """Returns what a model is run on, defaults that data give among it; feeds file by file.

    One empty batch where there are no data, which a model without inputs needs none of. UsageError
    where it needs some, DataError for data that do not fit it.
    """
    if samples is None:
        if graph.inputs:
            first_inputs = ", ".join(f"{v.name} {v.type}" for v in graph.inputs[:FIRST])
            raise UsageError(f"`data` is missing: the model takes {first_inputs}")
        return [{}]
    require_inputs(samples.path, graph)
    default_arrays = default_overrides(graph, samples.path)
    if not graph.inputs:
        return with_defaults(default_only_batch(graph, samples.path), default_arrays)
    return with_defaults(samples.source(graph), default_arrays)


def samples_left_out(graph: Graph, samples: SampleData | None) -> str:
    """Returns how many samples fill no batch of a model that takes one size of them alone; empty
    where all do."""
    if samples is None or samples.feeds or not graph.inputs:
        return ""
    # Only the model's own batch size leaves samples out: one that is asked for ends with a short
    # batch.
    source = replace(samples, batch=None).source(graph)
    return source.what_is_left_out if isinstance(source, DataSource) else ""


def require_inputs(data: Path, graph: Graph) -> None:
    """Raises DataError where the only array of a file is a default's: it is not the input's."""
    with_default = stated_defaults(graph)
    # The only array stands for the only input whatever its name, a default's array too.
    for file, names in names_by_file(data).items() if len(graph.inputs) == 1 else ():
        if len(names) == 1 and names[0] in with_default and names[0] != graph.inputs[0].name:
            message = f"no array for input {graph.inputs[0].name!r}; {names[0]} has a default"
            raise DataError(f"{file}: {message}")


def default_only_batch(graph: Graph, data: Path) -> Sequence[Tensors]:
    """Returns the one batch of a model all of whose inputs have defaults; raises DataError for
    other data."""
    if not graph.defaults:
        raise DataError(f"{data}: {NO_INPUTS}: leave `data` out")
    if not data.exists():
        raise DataError(f"{data}: there is no such file or folder")
    if data.suffix != ".npz" or data.is_dir():
        first_names = ", ".join(value.name for value in graph.defaults[:FIRST])
        raise DataError(
            f"{data}: all inputs have defaults ({first_names}): give them by name, in an .npz"
        )
    return [{}]


def with_defaults(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterable[Tensors]:
    """Batches, each with what is given for defaults."""
    return _with_arrays(batches, held) if held else batches


def _with_arrays(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterator[Tensors]:
    for batch in batches:
        yield {**batch, **held}


def defaults_of_one_model(graphs: tuple[Graph, Graph]) -> list[str]:
    """Returns the defaults that one of two models alone takes: data give them to neither."""
    a, b = ([value.name for value in graph.defaults] for graph in graphs)
    return [*(name for name in a if name not in b), *(name for name in b if name not in a)]


def stated_defaults(graph: Graph) -> list[str]:
    """Returns the inputs with defaults, those too that are constants here."""
    spare = [value.name for value in graph.defaults]
    # Inputs that reading made constants are not in the graph: the output's origins keep their
    # names.
    return list(dict.fromkeys((*default_input_names(graph.output.origins), *spare)))


def names_by_file(data: Path) -> dict[Path, list[str]]:
    """Returns the names that arrays have in an .npz file, or in each of those of a folder."""
    files = sorted(data.iterdir()) if data.is_dir() else [data]
    return {f: list(open_npz(f)) for f in files if f.suffix == ".npz" and f.exists()}


def array_names(data: Path) -> list[str]:
    return list(dict.fromkeys(name for names in names_by_file(data).values() for name in names))


def input_batches(graph: Graph, samples: SampleData) -> Iterable[Tensors]:
    """Returns batches of the inputs alone; raises DataError for a model without inputs."""
    require_inputs(samples.path, graph)
    if not graph.inputs:
        every = ", or all have defaults" if graph.defaults else ""
        raise DataError(f"{samples.path}: {NO_INPUTS}{every}: leave `data` out")
    return samples.source(graph)


def random_inputs(
    graph: Graph, seed: int, batch: int, sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Inputs drawn by a seed: normal floats, indices of entries that there are, 0 or 1 in masks,
    and other integers over all their range.

    Raises UsageError where a size is neither known nor given.
    """
    random = np.random.default_rng(seed)
    # The first axis is that of samples by convention; `sizes` may say otherwise.
    first = {n: batch for v in graph.inputs for n in dims.names(v.type.shape[:1])}
    values = {**first, **sizes}
    out: dict[str, Tensor] = {}
    for value in graph.inputs:
        # Nothing is given for what may be left out: an optional has no one type to draw.
        if value.type.dtype.is_optional:
            continue
        bound = [dims.bind(dim, values) for dim in value.type.shape]
        # A first size that nobody names is taken for the batch.
        if bound and bound[0] is None:
            bound[0] = batch
        shape = dims.known_shape(tuple(bound))
        if shape is None:
            raise UsageError(
                f"input {value.name} is {value.type}: give `sizes`, such as H=224, or `data`"
            )
        kind = value.type.dtype
        if kind.is_float:
            out[value.name] = random.standard_normal(shape, np.float32).astype(kind.carrier)
        elif kind.is_integer:
            low, high = kind.bounds
            # An index past the end of a table ends the run.
            limit = index_limit(value)
            if limit is not None:
                low, high = 0, min(high, max(limit, 1) - 1)
            # Masks are of 32 or 64 bits in exported transformers; narrower integers that are cast
            # are pixels.
            elif kind.bits >= 32 and is_mask(value):
                low, high = 0, 1
            # NumPy draws int64 unless told otherwise, which the bounds of u64 exceed.
            integers = random.integers(
                max(low, -(1 << 31)), min(high, 1 << 31), shape, endpoint=True
            )
            out[value.name] = integers.astype(kind.carrier)
        else:
            bits = random.integers(0, 2, shape)
            out[value.name] = (bits.astype(str) if kind == STRING else bits).astype(kind.carrier)
    return out


def array_shapes(data: Path) -> list[tuple[int, ...]]:
    """Returns the shapes of arrays in a file, or in a folder's first one."""
    files = sorted(data.iterdir()) if data.is_dir() else [data]
    file = next((file for file in files if file.suffix in (".npy", ".npz")), None)
    if file is None:
        raise DataError(f"{data}: holds no .npy or .npz file")
    arrays = open_npz(file).values() if file.suffix == ".npz" else [open_npy(file)]
    return [tuple(array.shape) for array in arrays]


def sizes_in(data: Path | None, graph: Graph) -> dict[str, int]:
    """Returns the sizes that arrays have, by the names of a graph's open sizes.

    There are none where data are of another kind, such as images.
    """
    sizes: dict[str, int] = {}
    # Sizes only refine the count of work: data that cannot be read are refused where they are used.
    with suppress(QirError, OSError):
        for value, array_shape in zip(
            graph.inputs, array_shapes(data) if data else (), strict=False
        ):
            for size, length in zip(value.type.shape, array_shape, strict=False):
                # A size such as 2*N does not say what N is without solving for it.
                if isinstance(size, dims.Sym) and dims.names((size,)) == {str(size)}:
                    sizes.setdefault(str(size), length)
    return sizes
