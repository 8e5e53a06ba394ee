"""What configuring says of a CUDA toolkit that is too old, or missing (C99). nvcc is a script here that tells its version."""
import subprocess

import pytest

from conftest import ROOT

PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(probe NONE)
include({ROOT}/cmake/mimo_cuda.cmake)
message(STATUS "MIMO_CUDA is ${{MIMO_CUDA}}")
if(MIMO_CUDA)
  mimo_enable_cuda()
endif()
"""


@pytest.fixture
def configure(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)

    def run(version, *options, variable=True):
        nvcc = tmp_path / "nvcc"
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.99'\n" if version else
                        "#!/bin/sh\nexit 1\n")
        nvcc.chmod(0o755)
        done = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", *options], capture_output=True, text=True,
                              env={"PATH": "/usr/bin:/bin", "CUDACXX": str(nvcc)} if variable else
                              {"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


@pytest.mark.parametrize("version", ["11.8", "12.4"])
def test_c99_an_old_toolkit_is_left_out_with_the_version_it_needs(configure, version):
    status, text = configure(version)
    assert status == 0
    assert f"CUDA {version} is too old" in text and "needs 12.8" in text
    assert "MIMO_CUDA is OFF" in text


def test_c99_an_old_toolkit_that_is_asked_for_is_refused(configure):
    status, text = configure("11.8", "-DMIMO_CUDA=ON")
    assert status != 0
    assert "nvcc is of CUDA 11.8, expected 12.8 or later" in text


def test_c99_a_missing_toolkit(configure):
    status, text = configure(None)
    assert status == 0 and "MIMO_CUDA is OFF" in text
    status, text = configure(None, "-DMIMO_CUDA=ON")
    assert status != 0 and "nvcc was not found" in text


def test_a_toolkit_in_the_path_is_found(configure):
    status, text = configure("13.0", "-DMIMO_CUDA_ARCHITECTURES=777", variable=False)
    assert status != 0 and "MIMO_CUDA_ARCHITECTURES: got 777" in text, "MIMO_CUDA should have been ON"


def test_c99_an_unknown_target_is_refused(configure):
    status, text = configure("13.0", "-DMIMO_CUDA=ON", "-DMIMO_CUDA_ARCHITECTURES=90a;777")
    assert status != 0
    assert "MIMO_CUDA_ARCHITECTURES: got 777, expected any of" in text
