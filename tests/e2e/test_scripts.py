"""The project's own scripts: a check that finds nothing is worth nothing."""
import subprocess
import sys

import pytest

from conftest import ROOT


def run_script(name, *arguments):
    return subprocess.run([sys.executable, ROOT / "scripts" / name, *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


@pytest.fixture
def tree(tmp_path):
    def make(**files):
        for name, text in {"core/a.h": "#include <vector>\n", "ops/b.cpp": '#include "core/a.h"\n', **files}.items():
            path = tmp_path / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_includes_of_a_good_tree(tree):
    run = run_script("check_includes", "--headers", "--root", tree())
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name, text, message", [
    ("core/x.cpp", '\n#include "ops/b.h"\n', 'src/core/x.cpp:2: "ops/b.h": core may include nothing'),
    ("text/x.h", '#include "checkpoint/a.h"\n', "src/text/x.h:1:"),
    ("model/x.cpp", '#  include "engine/a.h"\n', "src/model/x.cpp:1:"),
    ("engine/x.cpp", '#include "server/a.h"\n', "src/engine/x.cpp:1:"),
    ("ops/cpu/deep/x.cpp", '#include "model/a.h"\n', "src/ops/cpu/deep/x.cpp:1:"),
    ("ops/x.cpp", '#include "a.h"\n', "write the path from src/"),
    ("ops/x.cpp", '#include "ops/../model/a.h"\n', "write the path from src/"),
    ("ops/x.h", "#include <boost/json.hpp>\n", "only the standard library in headers"),
    ("utils/x.cpp", "", "folder utils is not in the table"),
])
def test_bad_include_is_found(tree, name, text, message):
    run = run_script("check_includes", "--root", tree(**{name: text}))
    assert run.returncode == 1
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_header_that_needs_another_is_found(tree):
    root = tree(**{"core/x.h": "inline std::vector<int> f() { return {}; }\n"})
    for _ in range(2):  # the second time from what the first one remembered
        run = run_script("check_includes", "--headers", "--root", root)
        assert run.returncode == 1
        assert "src/core/x.h:1: does not compile alone" in run.stderr


def test_empty_tree_is_no_success(tmp_path):
    assert run_script("check_includes", "--root", tmp_path).returncode == 1


def test_no_test_is_no_success(tmp_path):
    run = run_script("test", "--fast", "--build", tmp_path)
    assert run.returncode == 1
    assert run.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
