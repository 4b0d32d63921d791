"""Profiles written as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from qir.numerics.fields import MethodField
from qir.profiles.parser import GROUP, HEAD, WHEN
from qir.profiles.profile import Field, Profile, ProfileHead, When


def dumps(profile: Profile) -> str:
    """Returns the profile (without what it extends) as TOML that reads back equal."""
    head, plain = profile.head, ProfileHead("")
    said_ = {k: v for k in HEAD if (v := getattr(head, k)) != getattr(plain, k)}
    lines = [f"{k} = {_toml(v)}" for k, v in said_.items()]
    lines += _fields(profile.defaults)
    for entry in profile.rules:
        lines += ["", "[[rule]]", f"op = {_toml(entry.ops)}", *_when(entry.when)]
        lines += _fields(entry.fields)
    for group in profile.own_groups:
        lines += ["", "[[group]]", f"chain = {_toml(group.chain)}", *_when(group.when)]
        lines += [f"{k} = {_toml(v)}" for k in GROUP[2:] if (v := getattr(group, k))]
    return "\n".join(lines) + "\n"


def _fields(said_: Mapping[tuple[str, str], Field]) -> list[str]:
    blocks: dict[str, dict[str, Field]] = {}
    out: list[str] = []
    for (block, name), value in said_.items():
        if block:
            blocks.setdefault(block, {})[name] = value
        elif isinstance(value, MethodField):
            out.append(f"method = {_toml({'name': value.name, **value.params})}")
        else:
            out.append(f"{name} = {_toml('none' if value is None else value)}")
    for block, values in blocks.items():
        table = {k: dict(v) if isinstance(v, tuple) else v for k, v in values.items()}
        out.append(f"{block} = {_toml(table)}")
    return out


def _when(when: When) -> list[str]:
    parts: dict[str, object] = {k: v for k in WHEN if (v := getattr(when, k))}
    return [f"when = {_toml(parts)}"] if parts else []


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
