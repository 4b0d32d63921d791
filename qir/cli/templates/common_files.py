"""The files that every new package has."""

from __future__ import annotations

from collections.abc import Mapping

SHARED: Mapping[str, str] = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "qir-$name"
version = "0.1.0"
description = "$a_kind for QIR"
requires-python = ">=3.11"
dependencies = ["qir>=0.1", "numpy>=1.26"]

[project.optional-dependencies]
test = ["pytest>=8"]

# QIR finds the plugin by this; nothing is imported before it is asked for.
$points
[tool.setuptools]
packages = ["$module"]

[tool.setuptools.package-data]
"*" = ["py.typed", "**/*.toml"]

[tool.pytest.ini_options]
testpaths = ["tests"]

[tool.ruff]
line-length = 100

[tool.mypy]
files = ["$module", "tests"]
strict = true
""",
    "README.md": """\
# qir-$name

$about

```text
pip install -e '.[test]'
qir plugins check $entry
pytest
```

$use

`qir_api = 1` in `$module/__init__.py` says which plugin interface of QIR this is written for.
""",
    "$module/py.typed": "",
}
