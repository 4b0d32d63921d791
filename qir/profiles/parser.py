"""Profile files read: TOML, checked field by field, each error with its line."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from qir import registry
from qir.errors import ParseError, PluginError, ProfileError
from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.ops import OPS, spec
from qir.ir.scheme import RESULT
from qir.numerics.consistency import clashes as clashing
from qir.numerics.consistency import propagates_fault, repeated, requantize_after_method
from qir.numerics.fields import (
    BLOCKS,
    TEXTS,
    Levels,
    MethodField,
    Rule,
    allowed_text,
    field_types,
    fits,
    fixed_zero_fault,
)
from qir.numerics.scale_rules import stated_fields
from qir.profiles import old_heads
from qir.profiles.claim_sources import (
    computed_differently,
    has_measured_origin,
    has_numbers,
    is_supported_by_rule,
)
from qir.profiles.conditions import conditions
from qir.profiles.evidence import parse_counts, why_insufficient
from qir.profiles.kernel_forms import forms, why_never
from qir.profiles.methods import computes, fault, method_names, moving, reads
from qir.profiles.preparation import DEFAULT_STEPS, preparation_steps
from qir.profiles.profile import (
    FLOAT_STORAGE,
    Field,
    GroupEntry,
    Profile,
    ProfileHead,
    Query,
    RuleEntry,
    When,
    clashes,
    example_query,
)
from qir.profiles.toml_positions import Path as Path_
from qir.profiles.toml_positions import head_lines, item_at, misplaced_header, value_positions

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json]"
Find: TypeAlias = Callable[[str], Profile]

INSTRUCTION_SETS = ("any", "avx2", "avx512", "vnni", "amx")
"""The processors of which rules speak."""
_HEAD_WORDS = {
    "isa": INSTRUCTION_SETS,
    "groups": ("own", "inherited"),
    **old_heads.WORDS,
}
_HEAD_TEXTS = ("name", "extends", "backend", "versions", "isa", "groups", "evidence")
HEAD = (*_HEAD_TEXTS, "settings", "prepare", "notes")
"""The keys of a head, in the order in which they are written."""
_LONGEST = 239
_RULE = ("op", "when", *BLOCKS, *TEXTS, "method", "evidence")
GROUP = ("chain", "when", "needs", "result", "propagates", "claim", "evidence")
WHEN = ("storage", "grain", "attrs", "isa", "bounds", "form")
_AFTER_TABLES = frozenset({("stage", "ends")})
"""Fields that speak of what follows an op, by whatever method it is computed."""
_GRAINS, _BOUNDS = ("tensor", "channel"), ("full", "narrow")
_ELEMENTS = tuple("i8 u8 i16 u16 i32 u32 i64 u64 i4 u4 f32 f16 bf16 f64 f8e4m3fn f8e5m2".split())
"""The element types that an error offers; others that there are may be named too."""
_VERSIONS = re.compile(r"(?:(?:[=!~]=|[<>]=?)\s*\d+(?:\.\d+)*(?:\.\*)?\s*(?:,\s*(?=\S)|$))*")


def load(path: str | Path, find: Find | None = None, *, extending: Sequence[str] = ()) -> Profile:
    """Reads a profile file; `find` gives what it extends, by name; else its neighbours are asked.

    `extending` names the profiles that extend it. Raises ProfileError with file, line and remedy.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    chain = (*extending, path.stem)

    def found(name: str) -> Profile:
        if name in chain:
            raise ProfileError(f"{' extends '.join((*chain, name))}, in a circle")
        return find(name) if find else load(path.parent / f"{name}.toml", extending=chain)

    return parse(text, path.name, found)


def parse(text: str, name: str, find: Find | None = None) -> Profile:
    """Reads a profile from text; `name` is in errors. ProfileError as `load`."""
    text = text.removeprefix("\ufeff")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if misplaced := misplaced_header(text, ("rule", "group"), BLOCKS):
            raise ProfileError(f"{name}, line {misplaced[0]}: {misplaced[1]}") from error
        message, _, place = str(error).partition(" (at ")
        line_match = re.match(r"line (\d+)", place)
        line = int(line_match[1]) if line_match else max(len(text.splitlines()), 1)
        raise ProfileError(f"{name}, line {line}: {message}") from error
    except (ValueError, RecursionError) as error:  # Python reads integers of 4,300 digits at most
        limits = "a whole number has too many digits", "its tables are nested too deep"
        raise ProfileError(f"{name}: {limits[isinstance(error, RecursionError)]}") from error
    # `[[requant]]` for `[requant]`: TOML takes it for a list of tables.
    if any(isinstance(data.get(block), list) for block in BLOCKS):
        if misplaced := misplaced_header(text, (), BLOCKS):
            raise ProfileError(f"{name}, line {misplaced[0]}: {misplaced[1]}")
    return _ProfileReader(name, text, find).profile(data)


@dataclass
class _Place:
    """Where in the file one is: a table, and which one of its kind."""

    table: str = ""
    index: int = 0

    @property
    def path(self) -> Path_:
        """Its keys in the file."""
        if not self.table:
            return ()
        return (self.table, self.index) if self.table in ("rule", "group") else (self.table,)


@dataclass
class _ProfileReader:
    """The state of reading one profile."""

    name: str
    text: str
    find: Find | None
    place: _Place = field(default_factory=_Place)
    data: dict[str, Json] = field(default_factory=dict)

    # -- errors ---------------------------------------------------------------------------------

    def error(self, key: str, message: str, item: str = "") -> ProfileError:
        located = f"{self.name}, line {self.line(key, item)}: {message}"
        return ProfileError(
            located if len(located) <= _LONGEST else f"{located[: _LONGEST - 3]}..."
        )

    def line(self, key: str = "", item: str = "") -> int:
        """Returns the line of a key in the present table, such as `zero` or `requant.zero`, or of
        an item within it; else the line of the table itself."""
        table, key_path = self.place.path, tuple(key.split(".") if key else ())
        if not key_path:
            return self._head_lines.get(table) or self._places.get(table, 1)
        in_table = [p for p in self._places if p[: len(table)] == table]
        matching = [p for p in in_table if p[-len(key_path) :] == key_path]
        if not matching:
            return self._places.get(table, 1)
        # The outermost place of that name in the table.
        path = min(matching, key=len)
        in_value = [p for p in self._places if p[: len(path)] == path and item]
        exact = [p for p in in_value if item in (p[-1], item_at(self.data, p))]
        return self._places[exact[0] if exact else path]

    @cached_property
    def _head_lines(self) -> Mapping[Path_, int]:
        return head_lines(self.text, self.data, ("rule", "group"))

    @cached_property
    def _places(self) -> dict[Path_, int]:
        return value_positions(self.text)

    def known(
        self, keys: Iterable[str], allowed: Collection[str], what: str, *, at: str = ""
    ) -> None:
        """Raises ProfileError for a name that is not allowed; `at` is the key it is in, if it
        does."""
        for key in keys:
            if key not in allowed:
                hint = _hint(key, list(allowed))
                why = registry.refusal(what, key) or f"no {what} {key!r}; {hint}"
                raise self.error(at or key, why, key)

    def element(self, name: str, at: str) -> None:
        try:
            dtype(name)
        except ParseError:
            hint = _hint(name, _ELEMENTS)
            raise self.error(at, f"{at}: no element type {name!r}; {hint}", name) from None

    # -- parts ----------------------------------------------------------------------------------

    def profile(self, data: dict[str, Json]) -> Profile:
        self.data = data
        self.known(data, (*HEAD, *old_heads.WORDS, *BLOCKS, *TEXTS, "rule", "group"), "key")
        head = self.head(data)
        base = None
        if head.extends:
            base = self.base(head)
        # The steps depend on the profile below, for old keys speak of changes to it.
        head = replace(head, prepare=self.steps(data, base))
        defaults = self.blocks({k: v for k, v in data.items() if k in (*BLOCKS, *TEXTS)}, top=True)
        rules = tuple(self.rule(row, i) for i, row in enumerate(self.rows(data, "rule")))
        groups = tuple(self.group(row, i) for i, row in enumerate(self.rows(data, "group")))
        for a, b in clashes(rules):
            raise ProfileError(
                f"{self.name}: the rules of lines {a.line} and {b.line} both apply to some "
                f"{', '.join(sorted(set(a.ops) & set(b.ops)) or a.ops)}, neither more specific"
            )
        for i, group in enumerate(groups):
            for same in groups[:i]:
                if (same.chain, same.result, same.when) == (
                    group.chain,
                    group.result,
                    group.when,
                ):
                    raise ProfileError(
                        f"{self.name}: the groups of lines {same.line} and {group.line} have one "
                        f"chain, {', '.join(group.chain)}, one result and the same conditions"
                    )
        # From here on the file is well formed; what follows compares its parts with each other.
        self.check_methods(rules, base)
        self.check_claims(head, rules, base)
        result = Profile(head, defaults, rules, groups, base, self.text)
        self.check_groups(result)
        self.check_sense(result)
        for index, why in computed_differently(result, self.find):
            self.place = _Place("rule", index)
            raise self.error("evidence", why)
        return result

    def base(self, head: ProfileHead) -> Profile:
        """Returns what a profile extends; ProfileError of this line where that cannot be had."""
        if head.extends == head.name:
            raise self.error("extends", f"{head.name} extends itself")
        if self.find is None:
            raise self.error("extends", f"{head.extends!r} is not at hand")
        try:
            return self.find(head.extends)
        except ProfileError as error:
            if re.match(r".+, line \d+: ", str(error)):  # what is wrong is within that file
                raise
            raise self.error("extends", f"extends: {error}") from error

    def check_sense(self, checked: Profile) -> None:
        """Raises ProfileError for fields of this file that say nothing with those they are next
        to."""
        # Without defaults of its own, only its own rules can change what others say.
        if checked.defaults:
            self.check_fields(checked, checked.resolve(Query("")), None)
        for layer in checked.layers if checked.defaults else (checked,):
            for index, entry in enumerate(layer.rules):
                for op in entry.ops:
                    rule = checked.resolve(example_query(op, entry.when))
                    self.check_fields(checked, rule, index if layer is checked else None)

    def check_fields(self, checked: Profile, rule: Rule, index: int | None) -> None:
        for clash in clashing(rule) if rule.method is None else ():
            names = [tuple(name.split(".")) for name in clash.fields]
            own_fields = (
                [] if index is None else [n for n in names if n in checked.rules[index].fields]
            )
            if own_fields:
                self.place = _Place("rule", index or 0)
                raise self.error(".".join(filter(None, own_fields[0])), clash.message(rule))
            for block, name in (n for n in names if n in checked.defaults):
                self.place = _Place(block) if self._has_table(block) else _Place()
                raise self.error(f"{block}.{name}", clash.message(rule))

    def check_claims(
        self, head: ProfileHead, rules: tuple[RuleEntry, ...], base: Profile | None
    ) -> None:
        """Raises ProfileError for a claim that the evidence next to it does not bear."""

        for index, entry in enumerate(rules):
            self.place = _Place("rule", index)

            def known(op: str, name: str, entry: RuleEntry = entry) -> bool:
                if name in ("", head.name):
                    return has_measured_origin(op, entry, rules, base)
                try:
                    return self.find is not None and has_numbers(
                        op, self.find(name), _text(entry, "claim")
                    )
                except ProfileError:
                    return False

            evidence, method = _text(entry, "evidence"), entry.fields.get(("", "method"))
            moves = isinstance(method, MethodField) and method.name in ("move", "reals")
            moves = moves and set(entry.ops) <= {*moving(), "clip"}
            if why := why_insufficient(_text(entry, "claim"), evidence, moves, known):
                raise self.error("evidence" if evidence else "claim", why)

    def check_groups(self, checked: Profile) -> None:
        """Raises ProfileError for a group's claim that neither its evidence nor its first op's
        bears."""
        for index, group in enumerate(checked.own_groups):
            self.place = _Place("group", index)
            key, op = "evidence" if group.evidence else "claim", group.chain[0]
            if not group.claim.startswith(("exact", "within:")):
                continue
            if not group.evidence:
                raise self.error(key, f"claim = {group.claim!r} of a group needs evidence")
            if parse_counts(group.evidence) is not None:
                if why := why_insufficient(group.claim, group.evidence, False, lambda *_: False):
                    raise self.error(key, why)
                continue
            if not is_supported_by_rule(group, checked):
                raise self.error(
                    key,
                    f"claim = {group.claim!r} needs evidence with how many results were compared "
                    f"and differed: no rule of {op} has a claim as strong on which it could rest",
                )

    def check_methods(self, rules: tuple[RuleEntry, ...], base: Profile | None) -> None:
        """Raises ProfileError for a rule that sets what the method of its op does not look at."""
        for index, entry in enumerate(rules):
            self.place = _Place("rule", index)
            own_method = entry.fields.get(("", "method"))
            if isinstance(own_method, MethodField) and (computed_ops := computes(own_method.name)):
                if wrong_ops := [op for op in entry.ops if op not in computed_ops]:
                    subject = (
                        ", ".join(computed_ops)
                        if own_method.name != "move"
                        else "what moves or compares quantized values"
                    )
                    why = f"method {own_method.name} computes {subject}, not {wrong_ops[0]}"
                    raise self.error("method", why)
            for op in (op for op in entry.ops if op != "*"):
                inherited = base.resolve(example_query(op, entry.when)).method if base else None
                method = entry.fields.get(("", "method"), inherited)
                if isinstance(method, MethodField):
                    self.check_method(op, method.name, entry)

    def check_method(self, op: str, method: str, entry: RuleEntry) -> None:
        set_fields = [key for key in entry.fields if key[0] and key not in _AFTER_TABLES]
        for block in dict.fromkeys(block for block, _ in set_fields):
            if block not in reads(method):
                why = f"{op} is computed by method {method}, which does not read {block}"
                raise self.error(block, why)

    def rows(self, data: Mapping[str, Json], key: str) -> list[dict[str, Json]]:
        value = data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise self.error(key, f"{key} is written [[{key}]]")
        return [row for row in value if isinstance(row, dict)]

    def head(self, data: Mapping[str, Json]) -> ProfileHead:
        texts = {k: self.word(k, data[k]) for k in _HEAD_TEXTS if k in data}
        if not texts.get("name"):
            raise self.error("name", "a profile has a name")
        for key, words in _HEAD_WORDS.items():
            if self.word(key, data.get(key, words[0])) not in words:
                raise self.error(key, f"{key} is one of {', '.join(words)}")
        if not _VERSIONS.fullmatch(texts.get("versions", "")):
            message = (
                f"versions = {texts['versions']!r}; it is such as '>=1.20', '==1.31.*', '>=1, <2'"
            )
            raise self.error("versions", message)
        settings = data.get("settings", {})
        if not isinstance(settings, dict):
            raise self.error("settings", 'settings is a table, such as {optimizer = "all"}')
        parsed_settings = {k: self.word(k, v) for k, v in settings.items()}
        if (form := parsed_settings.get("form")) and form in forms():
            raise self.error("settings", f"{form!r} is a form of layers: a condition of rules")
        notes = self.words("notes", data.get("notes", []))
        # The steps follow once the profile below is known.
        return ProfileHead(**texts, settings=parsed_settings, prepare=None, notes=notes)

    def steps(self, data: Mapping[str, Json], base: Profile | None) -> tuple[str, ...] | None:
        """Returns the preparation steps that a head names, by the keys of older profiles too."""
        old_words = {key: self.word(key, data[key]) for key in old_heads.WORDS if key in data}
        if old_words and "prepare" in data:
            key = next(iter(old_words))
            raise self.error(key, f"{key} is an old word for steps of prepare: name one or other")
        if old_words:
            names = old_heads.steps_of(old_words, base.prepare if base else DEFAULT_STEPS)
        elif "prepare" in data:
            names = self.words("prepare", data["prepare"])
        else:
            return None
        known = preparation_steps()
        self.known(names, known, "preparation step", at=next(iter(old_words), "prepare"))
        return names

    def blocks(
        self, data: Mapping[str, Json], *, top: bool = False
    ) -> dict[tuple[str, str], Field]:
        out: dict[tuple[str, str], Field] = {}
        for block, value in data.items():
            if top and isinstance(value, dict):
                self.place = _Place(block) if self._has_table(block) else _Place()
            if block in TEXTS:
                out["", block] = self.value(block, TEXTS[block], value)
                continue
            if not isinstance(value, dict):
                raise self.error(block, f"{block} is a table of fields")
            kinds = field_types(block)
            self.known(value, kinds, f"field of {block}:", at=block)
            stated = {n: self.value(n, kinds[n], item, block) for n, item in value.items()}
            if block == "choose" and (by := stated.get("by", "fields")) != "fields":
                stated = stated_fields(str(by)) | {n: v for n, v in stated.items() if n != "by"}
            out |= {(block, name): item for name, item in stated.items()}
        if top:
            self.place = _Place()
        return out

    def _has_table(self, block: str) -> bool:
        return re.search(rf"^\s*\[{block}\]", self.text, re.MULTILINE) is not None

    def value(self, name: str, kind: object, value: Json, block: str = "") -> Field:
        full = f"{block}.{name}" if block else name
        if name == "levels":
            return self.levels(full, value)
        try:
            is_known = fits(kind, value)
        except PluginError as error:
            raise self.error(full, f"{full}: {error}") from error
        if not is_known:
            raise self.error(full, f"{full} = {value!r}; it is one of: {allowed_text(kind)}")
        if full == "choose.zero" and isinstance(value, str) and (why := fixed_zero_fault(value)):
            raise self.error(full, f"{full} = {value!r}: {why}")
        assert isinstance(value, str | bool)
        return value

    def levels(self, full: str, value: Json) -> Levels:
        table = value if isinstance(value, dict) else {"*": value}
        out: list[tuple[str, float]] = []
        for key, level in table.items():
            kind, slash, grain = key.partition("/")
            if kind != "*":
                self.element(kind, "levels")
            self.known([grain] if slash else [], _GRAINS, "granularity", at=full)
            if (
                isinstance(level, bool)
                or not isinstance(level, int | float)
                or not (level > 0 and math.isfinite(level))
            ):
                raise self.error(full, f"{full} holds numbers above zero, not {level!r}", key)
            out.append((key, float(level)))
        return tuple(out)

    def rule(self, row: dict[str, Json], index: int) -> RuleEntry:
        self.place = _Place("rule", index)
        self.known(row, _RULE, "key of a rule:")
        ops = self.words("op", row.get("op", []))
        if not ops:
            raise self.error("", 'a rule has an op, or "*"')
        self.known([op for op in ops if op not in OPS], (*OPS, "*"), "op", at="op")
        stated_fields = self.blocks({k: v for k, v in row.items() if k in (*BLOCKS, *TEXTS)})
        if "method" in row:
            stated_fields["", "method"] = self.method(row["method"])
        if "evidence" in row:
            stated_fields["", "evidence"] = self.word("evidence", row["evidence"])
        return RuleEntry(ops, self.when(row.get("when", {}), ops), stated_fields, self.line())

    def method(self, value: Json) -> MethodField | None:
        if value == "none":
            return None
        if isinstance(value, str):
            self.known([value], method_names(), "method", at="method")
            return self.complete(MethodField(value))
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise self.error("method", "method is a name, or a table with a name and parameters")
        parameters: dict[str, str | int | float | bool] = {}
        for key, item in value.items():
            if isinstance(item, list | dict):
                raise self.error("method", f"method parameter {key} is a word or a number")
            if key != "name":
                parameters[key] = item
        self.known([str(value["name"])], method_names(), "method", at="method")
        return self.complete(MethodField(str(value["name"]), parameters))

    def complete(self, method: MethodField) -> MethodField:
        """Returns a method with the parameters that it needs and no others; else ProfileError."""
        if problem := fault(method):
            raise self.error("method", problem)
        return method

    def group(self, row: dict[str, Json], index: int) -> GroupEntry:
        self.place = _Place("group", index)
        self.known(row, GROUP, "key of a group:")
        chain = self.words("chain", row.get("chain", []))
        needs = self.words("needs", row.get("needs", []))
        if not chain:
            raise self.error("", "a group has a chain of ops")
        self.known([op for op in chain if op not in OPS], OPS, "op", at="chain")
        for i, op in enumerate(chain):
            if i and not requantize_after_method(op):
                raise self.error("chain", f"{op} takes more than what flows: it heads a kernel", op)
            if spec(op).results != 1:
                raise self.error("chain", f"{op} gives more than one result: no kernel of a group")
        self.known(needs, conditions() if needs else (), "condition")
        result = self.word("result", row.get("result", "codes"))
        if result not in ("codes", "real"):
            raise self.error("result", f"result = {result!r}; it is one of: codes, real")
        claim = self.value("claim", TEXTS["claim"], row.get("claim", "unknown"))
        propagates = row.get("propagates", False)
        if why := propagates_fault(propagates, chain):
            raise self.error("propagates", why)
        return GroupEntry(
            chain,
            self.when(row.get("when", {}), chain[:1]),
            needs,
            result,
            propagates is True,
            str(claim),
            self.word("evidence", row.get("evidence", "")),
            self.line(),
        )

    def when(self, value: Json, ops: tuple[str, ...]) -> When:
        """Conditions on one of some ops; a group's are on the first of its chain."""
        if not isinstance(value, dict):
            raise self.error("when", "when is a table of conditions")
        self.known(value, WHEN, "condition")
        storage = value.get("storage", {})
        attrs = value.get("attrs", {})
        if not isinstance(attrs, dict):
            raise self.error("attrs", "attrs is a table of attributes and values")
        when = When(
            self.slots(storage if isinstance(storage, dict) else {"data": storage}, ops),
            self.words("grain", value.get("grain", [])),
            {name: self.attr(name, item) for name, item in attrs.items()},
            self.words("isa", value.get("isa", [])),
            self.words("bounds", value.get("bounds", [])),
            self.words("form", value.get("form", [])),
        )
        self.known(when.grain, _GRAINS, "granularity", at="grain")
        self.known(when.isa, _HEAD_WORDS["isa"], "instruction set", at="isa")
        self.known(when.bounds, _BOUNDS, "bounds", at="bounds")
        self.known(when.form, forms() if when.form else (), "form", at="form")
        if why := why_never(when.form, ops):
            raise self.error("form", why)
        self.attributes(when.attrs, ops)
        return when

    def slots(self, table: Mapping[str, Json], ops: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Returns which storage types each slot may have."""
        specs = OPS.values() if "*" in ops else [OPS[op] for op in ops]
        names = [
            f"{s.name}.0" if s.variadic else s.name for op_spec in specs for s in op_spec.operands
        ]
        strangers = [s for s in table if not any(op_spec.slot(s) for op_spec in specs)]
        self.known(strangers, dict.fromkeys(("data", RESULT, *names)), "slot", at="storage")
        storages = {slot: self.words("storage", kinds) for slot, kinds in table.items()}
        for kind in (k for kinds in storages.values() for k in kinds if k != FLOAT_STORAGE):
            self.element(kind, "storage")
        return storages

    def attributes(self, attrs: Mapping[str, Attr], ops: tuple[str, ...]) -> None:
        """Raises ProfileError for attributes that no op has, or for a value that none can hold."""
        op_specs = OPS.values() if "*" in ops else [OPS[op] for op in ops]
        specs = [spec for op_spec in op_specs for spec in op_spec.attrs]
        noun = "attribute of these ops" if len(ops) > 1 else f"attribute of {ops[0]}"
        self.known(attrs, dict.fromkeys(spec.name for spec in specs), noun)
        for name, value in attrs.items():
            named = [spec for spec in specs if spec.name == name]
            if not any(spec.accepts(value) for spec in named):
                raise self.error(name, f"{name} = {value!r} is not {named[0].kind}")

    def attr(self, name: str, value: Json) -> Attr:
        if isinstance(value, dict):
            raise self.error(name, f"attribute {name} is a word, a number or a list")
        return tuple(self.attr(name, v) for v in value) if isinstance(value, list) else value

    def word(self, key: str, value: Json) -> str:
        if not isinstance(value, str):
            raise self.error(key, f"{key} is a text, not {value!r}")
        return value

    def words(self, key: str, value: Json) -> tuple[str, ...]:
        items = value if isinstance(value, list) else [value]
        words = tuple(self.word(key, item) for item in items)
        # A chain may hold one op twice, such as two clips.
        if key != "chain" and (duplicate := repeated(words)):
            raise self.error(key, f"{key} names {duplicate!r} twice", duplicate)
        return words


def _hint(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, tuple(names), 1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def _text(entry: RuleEntry, key: str) -> str:
    return str(entry.fields.get(("", key), ""))
