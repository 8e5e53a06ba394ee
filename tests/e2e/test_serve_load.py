"""A small run of bench/serve_load.py: many clients, some of which leave, on pools that are too small. The large one is for people:
docs/operations.md."""
import subprocess
import sys

from conftest import BINARY, ROOT


def test_c36_c37_c38_c80_answers_under_load_are_the_cold_ones(mimo):
    done = subprocess.run([sys.executable, ROOT / "bench" / "serve_load.py", "--mimo", BINARY, "--threads", "1", "--requests", "160",
                           "--clients", "32", "--cases", "32", "--runs", "bf16-page16-host", "fp8-page1", "--no-memory-check"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
