"""What nobody can mean is refused when a profile is read, and each fault has its line."""

from __future__ import annotations

import pytest

from qir.errors import ProfileError
from qir.numerics.consistency import repeated, requantize_after_method
from qir.profiles import parse, profile

HEAD = 'name = "a"\nextends = "native"\n'
RULE = '[[rule]]\nop = "linear"\nrequant = {round = "away"}\n'
KNOWN = 'evidence = "7,000 results, 0 differ"\n'
CLAIM = "exact, within:N:RATE, close:R, unknown, of numbers above zero"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'{RULE}claim = "close:-1"\n', f"line 6: claim = 'close:-1'; it is one of: {CLAIM}"),
        (f'{RULE}claim = "close:0.0"\n', "line 6: claim = 'close:0.0'"),
        (f'{RULE}claim = "within:0:0.5"\n{KNOWN}', "line 6: claim = 'within:0:0.5'"),
        (f'{RULE}claim = "within:1:0"\n{KNOWN}', "line 6: claim = 'within:1:0'"),
        ('[[group]]\nchain = "add"\nclaim = "close:-1"\n', "line 5: claim = 'close:-1'"),
        (
            '[[group]]\nchain = ["conv2d", "conv2d"]\n',
            "line 4: conv2d takes more than what flows: it heads a kernel",
        ),
        ('settings = {form = "depthwise"}\n', "line 3: 'depthwise' is a form of layers"),
        (f'{RULE}when = {{isa = ["avx2", "avx2"]}}\n', "line 6: isa names 'avx2' twice"),
        ('[[rule]]\nop = ["add", "add"]\n', "line 4: op names 'add' twice"),
        (
            f'{RULE}claim = "exact"\nevidence = "0 of 1 differ"\n',
            "line 7: claim = 'exact' needs evidence of 100 results at least, not 1",
        ),
    ],
)
def test_nonsense_is_refused(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as raised:
        parse(HEAD + text, "a.toml", profile)
    assert f"a.toml, {said}" in str(raised.value)


@pytest.mark.parametrize("more", [0, 30])
@pytest.mark.parametrize(
    ("head", "right"),
    [
        ("[group]", "group is written [[group]]"),
        ("[[group.x]]", "group is written [[group]]"),
        ("[rule]", "rule is written [[rule]]"),
    ],
)
def test_a_head_of_other_brackets_is_told_where_it_stands(head: str, right: str, more: int) -> None:
    """Not where the next one, which is right, stands."""
    key = "op" if head == "[rule]" else "chain"
    text = f"{HEAD}notes = ['''\n[group]\n''']\n\n{head}\n{key} = \"add\"\n" + "# ...\n" * more
    text += f'[[{head.strip("[]").partition(".")[0]}]]\n{key} = "mul"\n'
    with pytest.raises(ProfileError) as raised:
        parse(text, "a.toml", profile)
    assert str(raised.value) == f"a.toml, line 7: {right}"


@pytest.mark.parametrize("before", ["", '[quantize]\nround = "away"\n'])
def test_a_block_is_no_table_of_many(before: str) -> None:
    text = f'{HEAD}{before}[[rule]]\nop = "add"\n\n[[quantize]]\nround = "even"\n'
    line = text.splitlines().index("[[quantize]]") + 1
    with pytest.raises(ProfileError, match=rf"line {line}: quantize is written \[quantize\]"):
        parse(text, "a.toml", profile)


def test_what_stands_behind_an_op_takes_what_flows() -> None:
    assert all(map(requantize_after_method, ("relu", "clip", "add", "gelu")))
    assert not any(map(requantize_after_method, ("conv2d", "matmul", "concat")))
    assert repeated(("a", "b", "a")) == "a"
    assert not repeated(("a", "b"))
