"""The same numbers on one rank and on two."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.laws.two_ranks import one_rank, run_rank
from tests.tiny_model import make_tiny_model

LOCAL = ("update/ratio_first_deviation", "update/padded_fraction")
"""Rounding noise, and what the rank itself computed."""


@pytest.mark.parametrize("algorithm", [{"kind": "ppo"}, {"kind": "grpo", "loss_aggregation": "sequence"}])
def test_statistics_losses_and_parameters_are_those_of_one_rank_after_three_updates(tmp_path, algorithm):
    model = make_tiny_model(tmp_path / "model")
    expected, expected_metrics = one_rank(model, algorithm)
    context = torch.multiprocessing.spawn(run_rank, args=(model, algorithm, tmp_path), nprocs=2, join=False)
    while not context.join(timeout=200):
        pass
    for rank in range(2):
        for name, tensor in load_file(tmp_path / f"rank{rank}.safetensors").items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-6, msg=name)
        for got, want in zip(json.loads((tmp_path / f"rank{rank}.json").read_text()), expected_metrics, strict=True):
            for name in want.keys() - set(LOCAL):
                assert got[name] == pytest.approx(want[name], rel=1e-4, abs=1e-6), name
