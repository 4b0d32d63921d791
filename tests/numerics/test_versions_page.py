"""The page of changes from version to version is the one that the profiles make."""

from qir.profiles import profile_names
from tests.versions_page import CHANGES, PAGE, text


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "`python -m tests.versions_page` writes it"


def test_the_page_has_every_version_of_torch_and_onnxruntime() -> None:
    named = {name for pair in CHANGES for name in pair}
    own = {n for n in profile_names() if n.startswith(("torch-", "ort-"))}
    assert named == {name for name in own if not name.endswith(".noopt")}
