"""docs/cases.md names every acceptance case, and only tests that exist."""
import re

from conftest import ROOT

TABLE = (ROOT / "docs" / "cases.md").read_text()


def test_every_case_has_a_row():
    ids = set()
    for first in re.findall(r"^\| (C\d.*?) \|", TABLE, re.M):
        numbers = [int(n) for n in re.findall(r"C(\d+)", first)]
        ids |= set(range(numbers[0], numbers[-1] + 1)) if " to " in first else set(numbers)
    assert ids == set(range(1, 103))


def test_the_tests_exist():
    missing = []
    for path, name in re.findall(r"([a-z0-9]+/\w+\.(?:cpp|py))(?:::(\w+))?", TABLE):
        file = ROOT / "tests" / path
        text = file.read_text() if file.exists() else ""
        found = re.search(rf"\bdef {name}\(" if path.endswith(".py") else rf", {name}\)", text) if name else text
        if not found:
            missing.append(f"{path}::{name}")
    assert not missing
