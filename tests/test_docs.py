"""Every fenced block of README, CONTRIBUTING and docs runs as it stands, page by page, in order.

The blocks of one page share a namespace and a working folder, empty but for a copy of examples/:

- `python` is executed; with `>>>` prompts it is a doctest, and what it shows is compared.
- `console`: each line after `$ ` is run by bash and must exit with 0, or with the status that a
  comment at its end gives, `# exit 3`; a backslash or lines after `> ` continue it. With the word
  `same` after `console` the output shown is compared, where `...` stands for anything.
  `make` is asked with `-n` whether it knows the target: the tests do not run themselves.
  What `pip` installs goes to a folder of the page, on the path of its other commands.
- `sh` is a whole script, `toml` and `json` are parsed, `text` is left alone; nothing else is known.
"""

import doctest
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.sampling import sample

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
STATUS = re.compile(r"\s+# exit (\d+)$")
SECONDS = 600
SITE = ".site"


@dataclass(frozen=True)
class Block:
    """One fenced block: the words after the fence, its text, and the line it starts on."""

    words: tuple[str, ...]
    text: str
    line: int


@dataclass
class Command:
    """One command of a console block, with what the page shows below it."""

    text: str
    status: int = 0
    shown: str = ""


def blocks(page: str) -> Iterator[Block]:
    for fence in FENCE.finditer(page):
        indent, words, text = fence.groups()
        lines = (line.removeprefix(indent) for line in text.splitlines(keepends=True))
        yield Block(tuple(words.split()), "".join(lines), page.count("\n", 0, fence.start()) + 1)


def commands(text: str) -> list[Command]:
    found: list[Command] = []
    open_line = False
    for line in text.splitlines():
        if line.startswith("$ "):
            status = STATUS.search(line)
            found.append(Command(STATUS.sub("", line[2:]), int(status[1]) if status else 0))
        else:
            assert found, f"a console block starts with `$ `, not {line!r}"
            if open_line:
                found[-1].text += f"\n{line}"
            elif line.startswith("> ") and not found[-1].shown:
                found[-1].text += f"\n{line[2:]}"
            else:
                found[-1].shown += f"{line}\n"
                continue
        open_line = found[-1].text.endswith("\\")
    assert found, "a console block without a command"
    return found


def shell(script: str, folder: Path) -> tuple[int, str]:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "PIP_TARGET": str(folder / SITE),
        "PIP_NO_BUILD_ISOLATION": "0",  # it says whether there is isolation
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_UPGRADE": "1",
        "PIP_QUIET": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(folder / SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-ec", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return run.returncode, run.stdout


def run_console(block: Block, folder: Path, where: str) -> None:
    for command in commands(block.text):
        if command.text.startswith("make"):
            status, output = shell(command.text.replace("make", "make -n", 1), ROOT)
        else:
            status, output = shell(command.text, folder)
        assert status == command.status, f"{where}: {command.text}\nexit {status}\n{output}"
        if "same" in block.words:
            trimmed = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
            same = doctest.OutputChecker().check_output(command.shown, trimmed, doctest.ELLIPSIS)
            assert same, f"{where}: {command.text}\nprints\n{trimmed}\nnot\n{command.shown}"


def run_python(block: Block, module: ModuleType, where: str) -> None:
    if not re.search(r"^>>> ", block.text, re.MULTILINE):
        page, _, line = where.rpartition(":")
        # The page's own line numbers, so that a traceback points into it.
        exec(compile("\n" * int(line) + block.text, page, "exec"), module.__dict__)
        return
    test = doctest.DocTestParser().get_doctest(block.text, module.__dict__, where, where, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    module.__dict__.update(test.globs)
    assert runner.summarize(verbose=False).failed == 0, f"{where}:\n{''.join(report)}"


def run_block(block: Block, module: ModuleType, folder: Path, where: str) -> None:
    match block.words[:1]:
        case ("python",):
            run_python(block, module, where)
        case ("console",):
            run_console(block, folder, where)
        case ("sh",):
            status, output = shell(block.text, folder)
            assert status == 0, f"{where}: exit {status}\n{output}"
        case ("toml",):
            tomllib.loads(block.text)
        case ("json",):
            json.loads(block.text)
        case ("text",):
            pass
        case _:
            pytest.fail(f"{where}: a block of {' '.join(block.words) or 'no language'}")


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(folder)
    for block in blocks(page.read_text(encoding="utf-8")):
        run_block(block, module, folder, f"{page}:{block.line}")


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (ROOT / "examples").is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=ignore)
    run_page(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(text) if "://" not in link]
    broken = [link for link in links if not (page.parent / link).exists()]
    assert not broken, f"{page.name} links to {broken}"


def test_an_entry_of_the_changelog_is_one_short_line() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 150 or line.startswith(" ")]


def test_every_path_that_where_names_is_there() -> None:
    text = (ROOT / "docs" / "where.md").read_text(encoding="utf-8")
    paths = [word for word in re.findall(r"`([^`]+)`", text) if "/" in word]
    assert len(paths) > 30
    gone = [path for path in paths if not (ROOT / path).exists()]
    assert not gone, f"docs/where.md names {gone}"


RIGHT = """\
```python
x = 2
```
```console same
$ echo "one  two" && echo three
one ... two
three
$ ls no-such-file 2> /dev/null  # exit 2
$ echo a \\
  b > kept
$ cat <<END
> c
> END
c
```
```python
>>> x, open("kept").read()
(2, 'a b\\n')
```
```sh
test -f kept
cd /
```
```text
not run: rm -rf everything
```
"""

WRONG = {
    "python that raises": ("```python\nassert False\n```", AssertionError),
    "a doctest that shows something else": ("```python\n>>> 1 + 1\n3\n```", AssertionError),
    "a name of nowhere": ("```python\nx = y\n```", NameError),
    "a command that exits with another status": ("```console\n$ false\n```", AssertionError),
    "a command that does not fail as said": ("```console\n$ true  # exit 3\n```", AssertionError),
    "a pipe broken at its start": ("```console\n$ false | cat\n```", AssertionError),
    "output that differs": ("```console same\n$ echo a\nb\n```", AssertionError),
    "output that is not there": ("```console same\n$ true\nb\n```", AssertionError),
    "a make target that is not there": ("```console\n$ make bogus\n```", AssertionError),
    "a script that fails in its middle": ("```sh\nfalse\ntrue\n```", AssertionError),
    "broken toml": ("```toml\na = \n```", tomllib.TOMLDecodeError),
    "broken json": ("```json\n{\n```", json.JSONDecodeError),
    "a language nobody runs": ("```ruby\nputs 1\n```", pytest.fail.Exception),
    "no language": ("```\nx\n```", pytest.fail.Exception),
}


def test_a_page_in_order_shares_names_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(RIGHT.replace("one ... two", "one  two"), encoding="utf-8")
    run_page(page, tmp_path, monkeypatch)
    page.write_text(RIGHT, encoding="utf-8")
    run_page(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_block_is_found(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, error = WRONG[fault]
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    with pytest.raises(error):
        run_page(page, tmp_path, monkeypatch)


def modules() -> list[str]:
    """Every module by its installed name; plugin folders are mapped, so each root is walked."""
    names = ["qir", "qir.frontends", "qir.backends"]
    for root in tuple(names):
        package = importlib.import_module(root)
        names += [found.name for found in pkgutil.walk_packages(package.__path__, f"{root}.")]
    return sorted({name for name in names if not name.endswith("__main__")})


ELSEWHERE = "qir.backends.ipex.child"
"""A program for a Python that has the extension, which this one need not have."""


@pytest.mark.slow
def test_every_example_in_a_docstring_is_true() -> None:
    failed = {}
    for name in sample("docstrings", list(modules()), 120):
        if name == ELSEWHERE:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            assert ">>>" not in Path(spec.origin).read_text(encoding="utf-8"), f"{name}: not run"
            continue
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        if result.failed:
            failed[name] = result
    assert not failed
