"""Buffers that are alive together never share a byte, and the arena is not much too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qir.backends.cpu.arena import Lifetime, plan_arena

lives = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, first + length),
        st.integers(1, 5000),
        st.integers(0, 20),
        st.integers(0, 10),
    ),
    max_size=30,
)


@given(lives)
def test_buffers_alive_together_lie_apart_on_cache_lines(given: list[Lifetime]) -> None:
    arena, offsets = plan_arena(given)
    for i, (life, offset) in enumerate(zip(given, offsets, strict=True)):
        assert offset % 64 == 0
        assert offset + life.size <= arena
        for other, start in list(zip(given, offsets, strict=True))[:i]:
            together = other.first <= life.last and life.first <= other.last
            assert not together or start + other.size <= offset or offset + life.size <= start


@given(lives)
def test_the_arena_holds_no_more_than_all_buffers_side_by_side(given: list[Lifetime]) -> None:
    arena, _ = plan_arena(given)
    assert arena <= sum(-(-life.size // 64) * 64 for life in given)


def test_a_chain_of_equal_buffers_takes_two() -> None:
    arena, _ = plan_arena([Lifetime(640, i, i + 1) for i in range(50)])
    assert arena == 2 * 640


def test_a_small_buffer_goes_into_the_tightest_gap() -> None:
    # Three large ones side by side, the first and the last of them free again at step 2.
    held = [
        Lifetime(1024, 0, 1),
        Lifetime(960, 0, 3),
        Lifetime(512, 0, 1),
        Lifetime(448, 0, 3),
        Lifetime(448, 2, 3),
    ]
    arena, offsets = plan_arena(held)
    assert offsets[4] == offsets[2]
    assert arena == 1024 + 960 + 512 + 448
