"""bench/step_overhead.py on a small model: the columns are what they say of each other."""
import subprocess
import sys

import pytest

from conftest import BINARY, ROOT


def test_the_line_through_one_and_three_layers_is_continued():
    done = subprocess.run([sys.executable, ROOT / "bench" / "step_overhead.py", "--mimo", BINARY, "--device", "cpu", "--config",
                           ROOT / "models" / "nano" / "config.json", "-b", "1,3", "--steps", "4"], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert [row[0] for row in rows] == ["1", "3"]
    for row in rows:
        first, middle, last, layer, overhead, off = map(float, row[1:])
        assert min(first, middle, last) > 0
        assert layer == pytest.approx((last - first) / 2, abs=0.2)
        assert overhead == pytest.approx(first - layer, abs=0.2)
        assert off == pytest.approx(middle - (first + last) / 2, abs=0.2)
