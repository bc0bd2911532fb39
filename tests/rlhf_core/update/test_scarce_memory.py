"""Memory that really runs out: a process whose address space is limited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.tiny_model import make_tiny_model

ROOT = Path(__file__).parents[3]
EXTRA_MIB = 60


@pytest.mark.faults("out of memory in an update")
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc are Linux's")
def test_case_C05_an_update_whose_address_space_is_too_small_goes_on_with_smaller_micro_batches(tmp_path):
    make_tiny_model(tmp_path / "model")
    script = Path(__file__).with_name("scarce_memory.py")
    for extra in (0, EXTRA_MIB):
        command = [sys.executable, str(script), str(tmp_path), str(extra)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    calm, scarce = (json.loads((tmp_path / f"metrics-{extra}.json").read_text()) for extra in (0, EXTRA_MIB))
    assert (calm["update/out_of_memory_count"], calm["update/micro_batch_rollouts"]) == (0, 256)
    assert scarce["update/out_of_memory_count"] >= 1
    assert scarce["update/micro_batch_rollouts"] < 256
    expected, found = (load_file(tmp_path / f"policy-{extra}.safetensors") for extra in (0, EXTRA_MIB))
    for name, parameter in expected.items():
        torch.testing.assert_close(found[name], parameter, rtol=0, atol=1e-6, msg=name)
