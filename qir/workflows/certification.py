"""Proves what is certain of a quantized model's sums, for any input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qir.arguments import checked, require_counts
from qir.inspect.certificates import MAX_NUDGE_ULPS, Certificate, certify
from qir.inspect.releases import Disagreement, disagreements, siblings
from qir.ir.graph import Graph
from qir.profiles import read_profile_for


@dataclass(frozen=True, slots=True)
class CertifiedModel:
    """What is certain of a model's sums."""

    profiles: tuple[str, ...]
    """The names of the profiles that were compared."""
    layers: tuple[Certificate, ...]
    releases: tuple[Disagreement, ...]
    """Ops that other versions of the model's runtime compute otherwise."""

    @property
    def has_findings(self) -> bool:
        """Whether some sum can overflow, or profiles differ on one."""
        return any(
            layer.sums.wraps or (layer.ties is not None and layer.ties.differ)
            for layer in self.layers
        )


@checked
def certify_model(
    graph: Graph,
    profiles: str | Iterable[str] = (),
    *,
    layer: str | None = None,
    most: int = MAX_NUDGE_ULPS,
    isa: str | None = None,
) -> CertifiedModel:
    """Proves bounds of the sums of a model's layers, and where profiles agree on every sum.

    Profiles are named, or given as `.toml` files, in a list or one text with commas; `layer`
    certifies one alone. Raises as `qir.certify`.
    """
    require_counts({"most": most})
    if isinstance(profiles, str):
        profiles = [name.strip() for name in profiles.split(",") if name.strip()]
    # A profile that is named twice, or once by its name and once by its file, is compared once.
    compared = {each.name: each for each in (read_profile_for(graph, text) for text in profiles)}
    certificates = certify(graph, tuple(compared.values()), layer=layer, most=most, isa=isa)
    releases = disagreements(graph, graph.profile, siblings(graph.profile))
    shown = tuple(each for each in releases if layer in (None, each.node))
    return CertifiedModel(tuple(compared), certificates, shown)
