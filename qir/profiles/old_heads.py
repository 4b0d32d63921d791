"""Head keys that profiles had before `prepare`, read as the steps that they stand for."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, tuple[str, ...]] = {
    "signed": ("kept", "private_unsigned"),
    "doubled": ("kept", "merged"),
    "nbits": ("kept", "rounded", "rounded_wide"),
    "gemms": ("kept", "joined"),
    "memory": ("kept", "channels_last"),
    "clips": ("kept", "misplaced"),
}
"""The old keys and their words. `kept` means that the runtime does nothing of the kind."""
_STEPS: Mapping[str, Mapping[str, str]] = {
    "fold_constants": {},
    "remove_no_ops": {"doubled": "merged"},
    "join_activations": {},
    "join_pads": {},
    "join_scales": {},
    "quantize_constants": {},
    "merge_equal_quantizes": {"doubled": "merged"},
    "join_gemms": {"gemms": "joined"},
    "move_pairs": {},
    "merge_pairs": {"doubled": "merged"},
    "quantize_parameters": {},
    "unsigned_values": {"signed": "private_unsigned"},
    "flattened_softmax": {"doubled": "merged"},
    "round_data": {"nbits": "rounded"},
    "round_wide_data": {"nbits": "rounded_wide"},
    "linear_layers": {},
    "channels_last": {"memory": "channels_last", "clips": "kept"},
    "channels_last_moved_clips": {"memory": "channels_last", "clips": "misplaced"},
}
"""The steps in the order in which old profiles took them, and the words that ask for each; those
without words were taken by every profile."""


def steps_of(stated: Mapping[str, str], inherited: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the steps of a head with old keys, which extends a profile with `inherited` steps.

    A key that the head lacks counts as what it extends says.
    """
    words = dict.fromkeys(WORDS, "kept")
    for step in inherited:
        # What the profile below does is said in the old words, then overwritten by what this one
        # states.
        words.update(_STEPS.get(step, {}))
    words.update(stated)
    asked_steps = [s for s, asks in _STEPS.items() if all(words[k] == v for k, v in asks.items())]
    steps = [step for step in inherited if step in asked_steps or step not in _STEPS]
    order = list(_STEPS)
    for step in asked_steps:
        if step not in steps:
            later = order[order.index(step) :]
            steps.insert(next((i for i, s in enumerate(steps) if s in later), len(steps)), step)
    return tuple(steps)
