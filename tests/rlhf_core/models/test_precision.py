"""bfloat16 is used where the processor has units for it, and said to be left out where it has not."""

from __future__ import annotations

import pytest
import torch

from rlhf_core.config.lint import lint
from rlhf_core.config.models import ComputeConfig, ModelConfig
from rlhf_core.models.precision import autocast_context, effective_autocast, precision_warnings
from rlhf_core.numerics import head_matmul
from tests.rlhf_core.engines.trainer_case import run_config

HALF = {"policy": "m", "autocast": "bfloat16"}


def product(wanted):
    with autocast_context("cpu", wanted):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize(("has_units", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_products_are_in_bfloat16_only_where_the_cpu_has_units_for_it(monkeypatch, has_units, dtype):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_units)
    assert product("bfloat16") == dtype
    assert product("off") == torch.float32
    assert effective_autocast("cpu", "bfloat16") == ("bfloat16" if has_units else "off")


def test_a_gpu_is_taken_at_its_word(monkeypatch):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: False)
    assert effective_autocast(torch.device("cuda", 0), "bfloat16") == "bfloat16"


@pytest.mark.parametrize(
    ("has_units", "device", "has_gpu", "fields"),
    [
        (False, "auto", False, ["model.autocast", "model.reference_dtype"]),
        (False, "cpu", True, ["model.autocast", "model.reference_dtype"]),
        (False, "auto", True, []),
        (True, "cpu", False, []),
    ],
)
def test_a_warning_says_what_becomes_of_bfloat16_here(monkeypatch, has_units, device, has_gpu, fields):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_units)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    model, compute = ModelConfig(**HALF, reference_dtype="bfloat16"), ComputeConfig(device=device)
    assert list(precision_warnings(model, compute)) == fields
    assert precision_warnings(ModelConfig(policy="m"), compute) == {}


def test_lint_has_the_warning_among_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: False)
    found = lint(run_config(tmp_path, model=HALF, compute={"device": "cpu"}))
    assert [w.message for w in found if w.field == "model.autocast"] == [
        "bfloat16: this CPU has no bf16 units, so float32 is used here."
    ]
