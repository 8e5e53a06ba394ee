"""What the end-to-end tests share: the binary, running it, reading golden data, and copies of checkpoints to damage."""
import array
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "models" / "tiny"
GOLDEN = ROOT / "tests" / "golden"
BINARY = Path(os.environ.get("MIMO_BINARY", ROOT / "build" / "mimo"))


def pytest_collection_modifyitems(items):
    if os.access(BINARY, os.X_OK):
        return
    for item in items:
        if "mimo" in item.fixturenames:
            item.add_marker(pytest.mark.skip(reason=f"{BINARY} is not built (make build, or set MIMO_BINARY)"))


class Run:
    def __init__(self, done):
        self.status = done.returncode
        self.out = done.stdout.decode(errors="replace")
        self.err = done.stderr.decode(errors="replace")

    def json(self):
        """The JSON object on the last line of a successful run's output."""
        assert self.status == 0, f"exit status {self.status}: {self.err}"
        return json.loads(self.out.splitlines()[-1])

    def refusal(self, *named):
        """The message of a run that was refused: no crash, nothing on stdout, one line that names all of `named`."""
        assert self.status > 0, f"exit status {self.status} (negative: a signal): {self.err}"
        assert self.out == ""
        lines = [line for line in self.err.splitlines() if line.strip()]
        # The argument parser adds where to find help.
        if len(lines) == 2 and "--help" in lines[1]:
            lines.pop()
        assert len(lines) == 1, self.err
        for name in named:
            assert str(name) in lines[0], f"'{name}' is not named in: {lines[0]}"
        return lines[0]


@pytest.fixture(scope="session")
def mimo():
    """mimo("generate", "DIR", ...) runs the binary to its end."""

    def run(*arguments, timeout=120):
        command = [BINARY, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
        return Run(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout))

    return run


class Golden:
    """Tensors of golden.safetensors as flat arrays of numbers, by name."""

    def __init__(self, name):
        self.directory = GOLDEN / name
        data = (self.directory / "golden.safetensors").read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        self.shapes = {key: entry["shape"] for key, entry in header.items()}
        self.values = {}
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            self.values[key] = array.array({"F32": "f", "I32": "i"}[entry["dtype"]], data[8 + length:][begin:end])

    def __getitem__(self, key):
        return self.values[key]

    @property
    def prompt(self):
        return list(self["greedy_ids"][:self["greedy_prompt_len"][0]])

    @property
    def continuation(self):
        return list(self["greedy_ids"][self["greedy_prompt_len"][0]:])


@pytest.fixture(scope="session", params=["v26_tiny", "v2flash_tiny"])
def golden(request):
    return Golden(request.param)


@pytest.fixture
def tiny_copy(tmp_path):
    """A copy of models/tiny that a test may damage."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


@pytest.fixture
def write_json(tmp_path):
    def write(value, name="input.json"):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write
