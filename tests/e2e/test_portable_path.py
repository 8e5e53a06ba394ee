"""bench/portable_path.py at a size for a CPU, where only the pages differ: its table has both paths and what they differ by."""
import subprocess
import sys

from conftest import BINARY, ROOT

CONFIG = ROOT / "models" / "nano" / "config.json"


def run(*arguments):
    return subprocess.run([sys.executable, ROOT / "bench" / "portable_path.py", "--mimo", BINARY, "--device", "cpu", "--config",
                           CONFIG, "--input-len", "96", "--output-len", "12", "--portable-output-len", "8", "--nano-requests",
                           "3", "--nano-turns", "2", *arguments], capture_output=True, text=True, timeout=300)


def test_both_paths_with_their_ratios():
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]
    head, rows = rows[0], [dict(zip(rows[0], row)) for row in rows[2:]]
    assert len(head) == 11
    assert [(row["run"], row["path"]) for row in rows] == [
        (name, path) for name in ("random config", "nano, 2 turns, NONE", "nano, 2 turns, DFLASH")
        for path in ("fast", "portable, page 1")]
    assert (rows[0]["prompt"], rows[0]["answer"], rows[1]["answer"]) == ("96", "12", "8")
    assert rows[0]["latency"].endswith("(to equal lengths)") and not rows[2]["latency"].endswith("lengths)")
    assert rows[2]["accept length"] == "-" and float(rows[4]["accept length"]) > 1.5
    for row in rows:
        assert float(row["decode tokens/s"].replace(",", "")) > 0
    assert all(float(row["decode x"]) > 0 for row in rows[::2])


def test_the_time_is_kept():
    done = run("--runs", "random", "--limit", "0")
    assert done.returncode == 1
    assert "not begun: the time was over" in done.stdout


def test_an_unknown_run_is_refused():
    done = run("--runs", "random,nani")
    assert done.returncode == 2 and "nani: expected random, nano" in done.stderr
