"""Profile files: read, resolved, written back; and every mistake told with its line."""

import itertools
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_origin

import pytest

from qir.errors import ProfileError
from qir.ir.text import parse as parse_graph
from qir.numerics.fields import BLOCKS, field_types, fits, levels_of, said
from qir.profiles import (
    Profile,
    Query,
    dumps,
    load,
    parse,
    profile,
    profile_names,
    read_profile,
    resolve,
)
from qir.profiles.methods import tabled
from qir.profiles.profile import differences

ROOT = Path(__file__).parents[2]
NAMES = ("native", "ort-1.31", "ort-1.31.noopt")
BASE = """name = "base"
[quantize]
by = "divide"
[requant]
multiplier = "f32"

[[rule]]
op = "conv2d"
requant = {round = "away"}
claim = "exact"
evidence = "7,000 results, 0 differ"

[[rule]]
op = ["conv2d", "linear"]
when = {storage = {w = "i8"}, grain = "channel"}
requant = {round = "half_up", zero = "before"}
claim = "within:1:0.01"
evidence = "70 of 7,000 differ"

[[rule]]
op = "softmax"
when = {attrs = {axis = -1}}
method = {name = "vectors", lanes = 8}

[[group]]
chain = ["conv2d", "relu"]
when = {storage = ["u8", "i8"]}
needs = "redundant_tail"
claim = "exact"
evidence = "300 outputs, 0 differ"
"""


def base(name: str) -> Profile:
    assert name == "base"
    return parse(BASE, "base.toml")


# -- the profiles there are -----------------------------------------------------------------------


def test_the_profiles_are_found_by_name() -> None:
    assert set(NAMES) <= set(profile_names())
    for name in NAMES:
        assert profile(name).name == name
    with pytest.raises(ProfileError, match=r"no profile 'ort-1.3'; did you mean 'ort-1.3\d'\?"):
        profile("ort-1.3")


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_reads_back_equal_from_what_it_writes(name: str) -> None:
    found = profile(name)
    again = parse(dumps(found), name, profile)
    assert again == found
    assert dumps(again) == dumps(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_that_a_profile_names_exists(name: str) -> None:
    known = {*tabled(), "reals", "move"}
    for layer in profile(name).layers:
        for entry in layer.rules:
            method = profile(name).resolve(Query(entry.ops[0])).method
            assert method is None or method.name in known


@pytest.mark.parametrize("name", NAMES)
def test_an_exact_claim_rests_on_evidence(name: str) -> None:
    for layer in profile(name).layers:
        for entry in layer.rules:
            claim = entry.fields.get(("", "claim"), "unknown")
            assert claim == "unknown" or entry.fields.get(("", "evidence")), f"line {entry.line}"


def test_onnxruntime_computes_as_native_does_and_groups_only_with_its_optimizer() -> None:
    for op in ("conv2d", "gemm", "add", "softmax", "quantize"):
        assert not differences(*(profile(n).resolve(Query(op)) for n in ("native", "ort-1.31")))
    assert not profile("ort-1.31.noopt").groups
    query = Query("conv2d", {"x": "u8", "w": "i8", "result": "u8"})
    assert profile("ort-1.31").group(("conv2d", "relu"), query)
    assert profile("ort-1.31").group(("conv2d", "sigmoid"), query) is None
    assert profile("ort-1.31").group(("conv2d",), query, result="real") is None


def test_before_vnni_the_claim_is_unknown_and_the_sums_are_not_exact() -> None:
    rule = profile("ort-1.31").resolve(Query("conv2d", isa="avx2"))
    assert (rule.claim, rule.acc.pairs) == ("unknown", "saturate_i16")


def test_a_profile_speaks_of_its_own_instruction_set_unless_another_is_asked_for() -> None:
    query = Query("conv2d")
    older = profile("ort-1.31").on("avx2")
    assert (profile("ort-1.31").isa, older.isa) == ("any", "avx2")
    assert older.resolve(query).acc.pairs == "saturate_i16"
    assert older.resolve(Query("conv2d", isa="vnni")).acc.pairs == "exact"
    assert profile("ort-1.31").resolve(query).acc.pairs == "exact"
    text = 'name = "p"\nextends = "ort-1.31"\nisa = "avx2"\n'
    assert parse(text, "p", profile).resolve(query).acc.pairs == "saturate_i16"
    above = parse('name = "q"\nextends = "p"\n', "q", lambda _: parse(text, "p", profile))
    assert above.resolve(query).acc.pairs == "saturate_i16"
    node = next(n for n in parse_graph(GRAPH, {}) if n.op == "conv2d")
    assert resolve(profile("ort-1.31"), node, "avx2").acc.pairs == "saturate_i16"
    assert resolve(profile("ort-1.31"), node).acc.pairs == "exact"


GRAPH = """graph g {
%x = input() : 1x2x4x4x!quant.uniform<u8:f32, 0.5>
%w = input() : 3x2x1x1x!quant.uniform<i8:f32, 0.5>
%y = conv2d(%x, %w) : 1x3x4x4x!quant.uniform<u8:f32, 0.5>
output(y=%y)
}"""

# -- resolving ------------------------------------------------------------------------------------


def test_the_most_specific_rule_is_the_one() -> None:
    found = base("base")
    assert found.resolve(Query("add")).requant.round == "even"
    assert found.resolve(Query("conv2d", {"w": "u8"}, "channel")).requant.round == "away"
    best = found.resolve(Query("conv2d", {"w": "i8"}, "channel"))
    assert (best.requant.round, best.requant.zero, best.claim) == (
        "half_up",
        "before",
        "within:1:0.01",
    )
    assert found.resolve(Query("conv2d", {"w": "i8"})).requant.zero == "after"


def test_attributes_are_compared_with_their_types() -> None:
    found = base("base")
    assert found.resolve(Query("softmax", attrs={"axis": -1})).method is not None
    assert found.resolve(Query("softmax", attrs={"axis": -1.0})).method is None
    assert found.resolve(Query("softmax")).method is None


def test_a_profile_changes_only_what_it_says_of_the_one_it_extends() -> None:
    text = """name = "more"
extends = "base"
quantize = {round = "away"}
[[rule]]
op = "conv2d"
requant = {zero = "before"}
"""
    found = parse(text, "more.toml", base)
    rule = found.resolve(Query("conv2d"))
    assert (rule.quantize.round, rule.requant.round, rule.requant.zero) == (
        "away",
        "away",
        "before",
    )
    assert rule.claim == "unknown", "a changed number keeps no claim"
    assert rule.profile == "more"
    assert differences(rule, base("base").resolve(Query("conv2d"))) == {
        "quantize.round": ("away", "even"),
        "requant.zero": ("before", "after"),
    }


def test_the_digest_tells_every_change_of_a_profile_and_of_those_below() -> None:
    text = 'name = "more"\nextends = "base"\n'
    digests = {
        parse(text, "a", base).digest,
        parse(text + "# more\n", "a", base).digest,
        parse(text, "a", lambda _: parse(BASE.replace("away", "even"), "b")).digest,
    }
    assert len(digests) == 3
    assert parse(text, "elsewhere", base).digest in digests


def test_levels_are_looked_up_from_the_most_exact_key() -> None:
    levels = (("i8", 127.0), ("i8/channel", 127.5), ("*", 255.0))
    assert levels_of(levels, "i8") == 127.0
    assert levels_of(levels, "i8", "channel") == 127.5
    assert levels_of(levels, "u8", "channel") == 255.0
    assert levels_of((), "u8") is None


def test_every_field_has_a_default_among_its_values() -> None:
    for block, kind in BLOCKS.items():
        for item in fields(kind):
            if item.name != "levels":
                assert fits(field_types(block)[item.name], item.default), f"{block}.{item.name}"


def test_every_value_of_every_field_is_read() -> None:
    refused: list[tuple[str, str]] = []
    for block in BLOCKS:
        for name, kind in field_types(block).items():
            for value in get_args(kind) if get_origin(kind) is not None else ():
                if isinstance(value, str) and fits(kind, value):
                    text = f'name = "p"\n{block} = {{{name} = "{value}"}}\n'
                    try:
                        rule = parse(text, "p").resolve(Query("add"))
                    except ProfileError as error:  # it cannot stand beside the defaults
                        refused.append((f"{block}.{name} = '", str(error)))
                    else:
                        assert getattr(getattr(rule, block), name) == value
    assert all(field in error and " with " in error for field, error in refused)


NONSENSE = [
    ('quantize = {compute = "f64_reciprocal"}', 3, "quantize.compute = 'f64_reciprocal' with"),
    ('[quantize]\nby = "divide"\ncompute = "f64_reciprocal"', 5, "a division has no reciprocal"),
    ('requant = {round = "double"}', 3, "only a 31-bit multiplier rounds twice"),
    ('requant = {multiplier = "q31", round = "double", zero = "before"}', 3, "zero = 'after'"),
    ('requant = {multiplier = "exact", order = "gy/gx/gw"}', 3, "gains are rounded"),
    ('requant = {multiplier = "divide", order = "x*(w/y)"}', 3, "sums become floats first"),
    ('requant = {multiplier = "q15", input = "acc_then_bias"}', 3, "it multiplies whole sums"),
    ('requant = {multiplier = "exact"}\nbias = {domain = "real_after"}', 3, "given_acc"),
    ('acc = {type = "i64"}\nrequant = {multiplier = "q31"}', 4, "a product of 95 bits"),
    ('acc = {type = "f32"}\nrequant = {multiplier = "q15"}', 4, "it multiplies whole sums"),
    ('acc = {type = "f32", overflow = "saturate"}', 3, "does not reach its ends"),
    ('acc = {type = "f32", pairs = "saturate_i16"}', 3, "added to integers"),
    ('bias = {domain = "real_after", overflow = "shrink_weights"}', 3, "does not overflow"),
    ('bias = {by = "fma"}\nrequant = {compute = "f64"}', 3, "fma is that of float32"),
    ('stage = {sum = "ratio"}\nrequant = {multiplier = "divide"}', 3, "in units of the result"),
    ('\n[[rule]]\nop = "gemm"\n\nrequant = {round = "double"}', 7, "rounds twice"),
]


@pytest.mark.parametrize(("text", "line", "told"), NONSENSE)
def test_fields_that_say_nothing_together_are_refused_when_read(
    text: str, line: int, told: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(f'name = "p"\nextends = "native"\n{text}\n', "p.toml", profile)
    assert str(caught.value).startswith(f"p.toml, line {line}: ")
    assert told in str(caught.value)


def test_a_file_may_begin_with_a_mark_of_its_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('name = "p"\nextends = "native"\n', encoding="utf-8-sig")
    assert load(path, profile).name == load(str(path), profile).name == "p"
    path.write_text('name = "p"\nextend = "native"\n', encoding="utf-8-sig")
    with pytest.raises(ProfileError, match=r"p\.toml, line 2: no key 'extend'"):
        load(path, profile)


def test_a_default_that_a_rule_from_below_cannot_stand_beside_is_refused() -> None:
    below = 'name = "b"\n[[rule]]\nop = "gemm"\nrequant = {multiplier = "divide"}\n'
    with pytest.raises(ProfileError, match=r"line 3: stage\.sum = 'ratio' with requant\.mult"):
        parse(
            'name = "p"\nextends = "b"\nstage = {sum = "ratio"}\n',
            "p.toml",
            lambda _: parse(below, "b"),
        )


# -- mistakes -------------------------------------------------------------------------------------

MISTAKES = [
    ('nme = "p"\n', "p.toml, line 1: no key 'nme'; did you mean 'name'?"),
    ('versions = "1"\n', "p.toml, line 1: a profile has a name"),
    ('name = "p"\nisa = "sse"\n', "line 2: isa is one of any, avx2"),
    ('name = "p"\n[quantise]\nby = "divide"\n', "no key 'quantise'; did you mean 'quantize'?"),
    (
        'name = "p"\n[quantize]\nby = "dived"\n',
        "line 3: quantize.by = 'dived'; it is one of: divide",
    ),
    (
        'name = "p"\n[quantize]\n\nroundd = "even"\n',
        "line 4: no field of quantize: 'roundd'; did you",
    ),
    ('name = "p"\n[quantize]\nlevels = -1\n', "line 3: quantize.levels holds numbers above zero"),
    ('name = "p"\n[choose]\nzero_clamp = 1\n', "line 3: choose.zero_clamp = 1; it is one of: true"),
    (
        'name = "p"\n[choose]\nsmall = "floor"\n',
        "line 3: choose.small = 'floor'; it is one of: none",
    ),
    ('name = "p"\n[choose]\nsmall = "floor:-1"\n', "line 3: choose.small = 'floor:-1'; it is"),
    ('name = "p"\n[bias]\noverflow = "clip:0"\n', "line 3: bias.overflow = 'clip:0'; it is one"),
    ('name = "p"\n[bias]\noverflow = "clip:99"\n', "line 3: bias.overflow = 'clip:99'; it is"),
    ('name = "p"\n[[rule]]\nop = "add"\nclaim = "within:1:7"\n', "line 4: claim = 'within:1:7'"),
    ('name = "p"\n[[rule]]\nclaim = "exact"\n', "line 2: a rule has an op"),
    ('name = "p"\n[[rule]]\nop = "add"\n[[rule]]\nop = 3\n', "line 5: op is a text, not 3"),
    ('name = "p"\n[[rule]]\nop = "add"\nclaim = "sure"\n', "line 4: claim = 'sure'; it is one of"),
    ('name = "p"\n[[rule]]\nop = "add"\nwhen = {isaa = "x"}\n', "line 4: no condition 'isaa'"),
    ('name = "p"\n[[rule]]\nop = "add"\nmethod = 3\n', "line 4: method is a name, or a table"),
    (
        'name = "p"\n[[rule]]\nop = "add"\n\nmethod = {name = "move"}\n',
        "line 5: method move computes what moves or compares quantized values, not add",
    ),
    (
        'name = "p"\n[[rule]]\nop = "linear"\n\nwhen = {form = "depthwise"}\n',
        "line 5: no linear is depthwise: conv2d, conv3d are",
    ),
    ('name = "p"\n[[group]]\nneeds = "x"\n', "line 2: a group has a chain of ops"),
    ('name = "p"\n[[group]]\nchain = "add"\nneeds = "x"\n', "no condition 'x'; known: same_map"),
    ('name = "p"\n[[group]]\nchain = "add"\nresult = "x"\n', "line 4: result = 'x'; it is one of"),
    ('name = "p"\n[rule]\nop = "add"\n', "rule is written [[rule]]"),
    ('name = "p"\nversions = "abc"\n', "line 2: versions = 'abc'; it is such as '>=1.20'"),
    ('name = "p"\nversions = ">=1,"\n', "line 2: versions = '>=1,'; it is such as"),
    ('name = "p"\n[quantize]\nlevels = nan\n', "line 3: quantize.levels holds numbers above zero"),
    ('name = "p"\n[quantize]\nlevels = inf\n', "line 3: quantize.levels holds numbers above zero"),
    ('name = "p"\n[quantize]\nlevels = 0\n', "line 3: quantize.levels holds numbers above zero"),
    ('name = "p"\n[choose]\nlevels = {zz = 3}\n', "line 3: levels: no element type 'zz'; known"),
    (
        'name = "p"\n[choose]\nlevels = {"i8/chanel" = 3}\n',
        "line 3: no granularity 'chanel'; did you mean 'channel'?",
    ),
    ('name = "p"\n[[rule]]\nop = "conv2dd"\n', "line 3: no op 'conv2dd'; did you mean 'conv2d'?"),
    (
        'name = "p"\n[[rule]]\nop = "add"\nmethod = "fma_summ"\n',
        "line 4: no method 'fma_summ'; did you mean 'fma_sum'?",
    ),
    ('name = "p"\n[[group]]\nchain = ["add", "reluu"]\n', "line 3: no op 'reluu'; did you mean"),
    (
        'name = "p"\n[[rule]]\nop = "add"\n\nwhen = {grain = "foo"}\n',
        "line 5: no granularity 'foo'; known: tensor, channel",
    ),
    (
        'name = "p"\n[[rule]]\nop = "add"\nwhen = {isa = "avx22"}\n',
        "line 4: no instruction set 'avx22'; did you mean 'avx2'?",
    ),
    (
        'name = "p"\n[[rule]]\nop = "add"\nwhen = {storage = ["u8", "zz"]}\n',
        "line 4: storage: no element type 'zz'; known: i8, u8",
    ),
    (
        'name = "p"\n[[rule]]\nop = ["conv2d", "add"]\nwhen = {storage = {q = "u8"}}\n',
        "line 4: no slot 'q'; known: data, result, x, w, bias, a, b",
    ),
    (
        'name = "p"\n[[rule]]\nop = "softmax"\nwhen = {attrs = {axes = 1}}\n',
        "line 4: no attribute of softmax 'axes'; did you mean 'axis'?",
    ),
    (
        'name = "p"\n[[group]]\nchain = "gemm"\nwhen = {attrs = {alpha = 1}}\n',
        "line 4: alpha = 1 is not float",
    ),
    (
        'name = "p"\n[[rule]]\nop = "add"\nmethod = "fma_sum"\n[[rule]]\nop = "mul"\n'
        'method = "scaled_product"\nrequant = {round = "away"}\n',
        "line 8: mul is computed by method scaled_product, which does not read requant",
    ),
    (
        'name = "p"\n[[rule]]\nop = ["add", "mul"]\nmethod = "fma_sum"\n',
        "line 4: method fma_sum computes add, not mul",
    ),
    (
        'name = "p"\n[[rule]]\nop = "*"\nmethod = "exponent_table"\n',
        "line 4: method exponent_table computes softmax, not *",
    ),
    (
        'name = "p"\n[[group]]\nchain = "add"\nclaim = "exact"\n',
        "line 4: claim = 'exact' of a group needs evidence",
    ),
    (
        'name = "p"\n[[group]]\nchain = "add"\nclaim = "exact"\nevidence = "their sum"\n',
        "line 5: claim = 'exact' needs evidence with how many results were compared and differed",
    ),
    (
        'name = "p"\n[[group]]\nchain = "add"\nclaim = "exact"\n'
        'evidence = "9,000 results, 2 differ"\n',
        "line 5: claim = 'exact', and 2 of 9,000 differ by its evidence",
    ),
    ('name = "p"\nname = "p"\n', "p.toml, line 2: Cannot overwrite a value"),
    ('name = "p"\n[[rule]\n', "p.toml, line 2: "),
    ('name = "p"\nisa = [', "p.toml, line 2: "),
    ('name = "p"\nextends = "p"\n', "p.toml, line 2: p extends itself"),
    ('name = "p"\nextends = "q"\n', "line 2: 'q' is not at hand"),
    ('name = "p"\n[[rule]]\nop = [\n    "add",\n    "mull",\n]\n', "p.toml, line 5: no op 'mull'"),
    ('name = "p"\n[[group]]\nchain = ["add",\n"reluu"]\n', "p.toml, line 4: no op 'reluu'"),
    ('name = "p"\n[[rule]]\nop = "add"\nrequant.zero = "befor"\n', "line 4: requant.zero = 'bef"),
    ('name = "p"\n[[rule]]\n"op" = "add"\n"requant".zero = "x"\n', "line 4: requant.zero = 'x'"),
    ('name = "p"\n[[rule]]\nop = "add"\n[rule.requant]\nzero = "x"\n', "line 5: requant.zero ="),
    ('name = "p"\n[[ "rule" ]]\nop = "ad"\n', "p.toml, line 3: no op 'ad'; did you mean 'pad'"),
    (
        'name = "p"\n[[rule]]\nop = "add"\nquantize.zero = "after"\nrequant.zero = "x"\n',
        "line 5: requant.zero = 'x'",
    ),
    (
        'name = "p"\n[[rule]]\nop = "add"\nwhen.storage = [\n"i8",\n"zz"]\n',
        "line 6: storage: no element type 'zz'",
    ),
    ('name = "p"\nquantize.by = "dived"\n', "p.toml, line 2: quantize.by = 'dived'"),
    (
        'name = "p"\nchoose.zero = "fixed:99999"\n',
        "line 2: choose.zero = 'fixed:99999': chosen values",
    ),
    ('name = "p"\n[choose]\nzero = "fixed:1.5"\n', "line 3: choose.zero = 'fixed:1.5': it is no"),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES, ids=[t for _, t in MISTAKES])
def test_a_mistake_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(text, "p.toml")
    message = str(caught.value)
    assert told in message
    assert "\n" not in message
    assert len(message) < 240


def test_two_rules_of_which_neither_is_more_specific_are_an_error() -> None:
    first = '[[rule]]\nop = ["add", "mul"]\nwhen = {storage = "u8"}\n'
    second = '[[rule]]\nop = ["mul", "sub"]\nwhen = {grain = "channel"}\n'
    with pytest.raises(ProfileError) as caught:
        parse(f'name = "p"\n{first}{second}', "p.toml")
    told = "p.toml: the rules of lines 2 and 5 both apply to some mul, neither more specific"
    assert str(caught.value) == told
    apart = second.replace('grain = "channel"', 'storage = "i8"')
    parse(f'name = "p"\n{first}{apart}', "p.toml")
    more = second.replace('grain = "channel"', 'grain = "channel", isa = "avx2"')
    parse(f'name = "p"\n{first}{more}', "p.toml")


def test_a_field_that_the_method_from_below_does_not_read_is_refused() -> None:
    head = 'name = "p"\nextends = "native"\n[[rule]]\n'
    with pytest.raises(ProfileError) as caught:
        parse(f'{head}op = ["conv2d", "add"]\nrequant = {{round = "away"}}\n', "p", profile)
    told = "p, line 5: add is computed by method fma_sum, which does not read requant"
    assert str(caught.value) == told
    for text in (
        'op = "add"\nmethod = "none"\nrequant = {round = "away"}\n',
        'op = "conv2d"\nrequant = {round = "away"}\n',
        'op = "sigmoid"\nquantize = {round = "away"}\n',
        'op = "*"\nwhen = {storage = "i8"}\nrequant = {round = "away"}\n',
    ):
        parse(head + text, "p", profile)


def test_conditions_name_any_slot_and_attribute_that_one_of_the_ops_has() -> None:
    text = """name = "p"
versions = ">=1.20, !=1.22, <2"
[[rule]]
op = ["concat", "softmax"]
when = {storage = {data = "u8", result = ["u8", "i3"], "xs.7" = "u8"}, attrs = {axis = 1}}
[[rule]]
op = "*"
when = {attrs = {perm = [1, 0], to = "f32"}, isa = ["avx2", "amx"]}
"""
    with pytest.raises(ProfileError, match=r"line 8: to = 'f32' is not dtype"):
        parse(text, "p.toml")
    assert len(parse(text.replace(', to = "f32"', ""), "p.toml").rules) == 2


def test_two_groups_that_hold_for_the_same_are_an_error() -> None:
    group = '[[group]]\nchain = ["add", "relu"]\nwhen = {storage = "u8"}\n'
    with pytest.raises(ProfileError) as caught:
        parse(f'name = "p"\n{group}{group}needs = "same_map"\n', "p.toml")
    told = (
        "p.toml: the groups of lines 2 and 5 have one chain, add, relu, one result and the same "
        "conditions"
    )
    assert str(caught.value) == told
    parse(f'name = "p"\n{group}{group}result = "real"\n', "p.toml")
    parse(f'name = "p"\n{group}{group.replace("u8", "i8")}', "p.toml")


@pytest.mark.parametrize("chain", ['"gemm"', '"concat"', '["reshape", "relu"]'])
def test_pairs_change_places_with_moves_alone(chain: str) -> None:
    row = f'name = "p"\n[[group]]\nchain = {chain}\npropagates = true\n'
    with pytest.raises(ProfileError, match=r"p\.toml, line 4: .* does more than move elements"):
        parse(row, "p.toml")
    parse(row.replace(chain, '"reshape"'), "p.toml")
    parse(row.replace("true", "false"), "p.toml")


def test_a_profile_that_extends_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('name = "a"\nextends = "b"\n')
    (tmp_path / "b.toml").write_text('name = "b"\nextends = "a"\n')
    with pytest.raises(ProfileError, match=r"b\.toml, line 2: extends: a extends b extends a, in"):
        load(tmp_path / "a.toml")
    with pytest.raises(ProfileError, match="cannot be read"):
        load(tmp_path / "c.toml")


def test_what_is_extended_and_is_not_there_is_told_with_its_line() -> None:
    with pytest.raises(ProfileError) as caught:
        parse('name = "p"\n\nextends = "zzz"\n', "p.toml", profile)
    assert str(caught.value).startswith("p.toml, line 3: extends: no profile 'zzz'; known: ")


def test_a_profile_is_given_by_its_name_or_by_its_file(tmp_path: Path) -> None:
    assert read_profile("ort-1.31") is profile("ort-1.31")
    path = tmp_path / "next.toml"
    text = 'name = "given"\nextends = "native"\nrequant = {round = "away"}\n'
    for rounding in ("away", "half_up"):  # a file that changed is read anew
        path.write_text(text.replace("away", rounding))
        given = read_profile(str(path))
        assert given.name == "given"
        assert given.resolve(Query("conv2d")).requant.round == rounding
    with pytest.raises(ProfileError, match="no profile 'given'"):
        profile("given")
    path.write_text('name = "native"\n')
    with pytest.raises(ProfileError, match=r"next\.toml: an installed profile is named native"):
        read_profile(str(path))
    path.write_text('name = "no name"\n')
    with pytest.raises(ProfileError, match=r"next\.toml, line 1: 'no name' is no name of"):
        read_profile(str(path))
    with pytest.raises(ProfileError, match=r"gone\.toml: cannot be read"):
        read_profile(str(tmp_path / "gone.toml"))


def test_what_an_error_offers_is_what_is_accepted() -> None:
    for block, name in itertools.chain.from_iterable(
        ((b, n) for n in field_types(b)) for b in BLOCKS
    ):
        kind = field_types(block)[name]
        if get_origin(kind) is not None and name != "levels":
            words = [w for w in said(kind).split(", ") if ":" not in w and " " not in w]
            assert words, f"{block}.{name}"
            assert all(fits(kind, word) for word in words), f"{block}.{name}"


def test_a_whole_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ProfileError, match="p: a whole number has too many digits"):
        parse("x = " + "9" * 5000, "p")
