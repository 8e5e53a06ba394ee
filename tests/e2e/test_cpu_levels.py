"""Instruction sets: every level gives the same tokens, and a CPU without AVX2 gets a message, never SIGILL."""
import json
import os
import shutil
import subprocess

import pytest

from conftest import BINARY, TINY

QEMU = shutil.which("qemu-x86_64")
PROMPT = ["generate", str(TINY), "--prompt", "The fox", "--max-tokens", "6", "--ignore-eos", "--json", "-t", "1"]


def generate(command, **environment):
    return subprocess.run([*command, str(BINARY), *PROMPT], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300, env={**os.environ, **environment})


def tokens(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["token_ids"]


@pytest.fixture(scope="module")
def expected(mimo_built):
    return tokens(generate([], MIMO_CPU_LEVEL="avx2"))


@pytest.fixture(scope="module")
def mimo_built():
    if not os.access(BINARY, os.X_OK):
        pytest.skip(f"{BINARY} is not built")


@pytest.mark.parametrize("level", ["avx512", "avx512fp16"])
def test_c96_levels_agree(expected, level):
    done = generate([], MIMO_CPU_LEVEL=level)
    if done.returncode != 0 and "the best this CPU has" in done.stderr:
        pytest.skip(f"this CPU has no {level}")
    assert tokens(done) == expected


def test_unknown_level_is_refused(mimo_built):
    done = generate([], MIMO_CPU_LEVEL="sse9")
    assert done.returncode > 0
    assert "MIMO_CPU_LEVEL=sse9" in done.stderr


@pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not installed (scripts/setup)")
def test_c96_avx2_cpu_runs_and_older_ones_are_told(expected):
    assert tokens(generate([QEMU, "-cpu", "Haswell"])) == expected
    old = generate([QEMU, "-cpu", "Nehalem"])
    assert old.returncode == 1, old.stderr
    assert "lacks AVX2" in old.stderr
