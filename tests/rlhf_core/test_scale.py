"""The arithmetic of scale against published figures and sums by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.scale import (
    GIB,
    Shape,
    activation_bytes,
    decode_step_seconds,
    frozen_bytes,
    key_value_bytes,
    scoring_seconds,
    trained_bytes,
    training_seconds,
    transfer_seconds,
)

LLAMA_70B = Shape(70.6e9, layers=80, hidden=8192, key_value_heads=8, head_dim=128, vocabulary=128_256)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_zero_papers_figure_of_7_5_billion_parameters_on_64_gpus(stage, gigabytes):
    """Rajbhandari et al. 2020, figure 1: 120, 31.4, 16.6 and 1.9 GB."""
    assert trained_bytes(7.5e9, 64, stage) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_offloading_takes_twelve_bytes_a_parameter_from_the_gpus():
    assert trained_bytes(1e9, 8, 0) - trained_bytes(1e9, 8, 0, is_optimizer_offloaded=True) == pytest.approx(12e9)
    assert trained_bytes(1e9, 8, 3, is_optimizer_offloaded=True) == pytest.approx(4e9 / 8)


@pytest.mark.parametrize(("ranks", "stage"), [(0, 3), (8, 4)])
def test_impossible_layouts_are_refused(ranks, stage):
    with pytest.raises(ValueError, match="zero_stage"):
        trained_bytes(1e9, ranks, stage)


def test_a_token_of_llama_3_70b_takes_320_kib_of_cache():
    """By hand: 2 (K, V) × 2 bytes × 80 layers × 8 heads × 128 = 327,680."""
    assert key_value_bytes(LLAMA_70B, 1) == 327_680


def test_activations_by_hand():
    """2 layers, hidden 3, 5 tokens: 5·3·(4 + 34) = 570; logits of 2 tokens over 7 words, 8 bytes: 112."""
    small = Shape(1.0, layers=2, hidden=3, key_value_heads=1, head_dim=1, vocabulary=7)
    assert activation_bytes(small, 5, logit_chunk_tokens=2) == 570 + 112


def test_gpt_3_takes_34_days_as_published():
    """Narayanan et al. 2021, section 5: 175e9 parameters, 300e9 tokens, 1024 A100 at 140 TFLOP/s: 34 days."""
    seconds = training_seconds(175e9, 300e9, 1024, flops_per_gpu=140e12, utilisation=1.0)
    assert seconds / 86_400 == pytest.approx(34, abs=0.5)


def test_scoring_is_a_quarter_of_training():
    given = {"flops_per_gpu": 1e15, "utilisation": 0.4}
    assert 4 * scoring_seconds(7e9, 1e6, 8, **given) == pytest.approx(training_seconds(7e9, 1e6, 8, **given))


def test_a_decode_step_by_hand():
    """140 GB of weights over 4 × 1 TB/s at one half: 0.07 s; with one sequence of a million tokens 327.68 GB more."""
    shape = Shape(70e9, layers=80, hidden=8192, key_value_heads=8, head_dim=128, vocabulary=1)
    assert decode_step_seconds(shape, 0, 0, 4, bytes_per_second=1e12, utilisation=0.5) == pytest.approx(0.07)
    more = decode_step_seconds(shape, 1, 1e6, 4, bytes_per_second=1e12, utilisation=0.5)
    assert more == pytest.approx(0.07 + 0.32768 / 2)


def test_frozen_weights_and_transfers():
    assert frozen_bytes(GIB, 4) == GIB / 2
    assert transfer_seconds(10.0, bytes_per_second=4.0) == 2.5


PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SHAPES = {
    "70B": LLAMA_70B,
    "7.6B": Shape(7.6e9, layers=28, hidden=3584, key_value_heads=4, head_dim=128, vocabulary=152_064),
    "1.3B": Shape(1.3e9, layers=24, hidden=2048, key_value_heads=16, head_dim=128, vocabulary=50_304),
}


@pytest.mark.parametrize("label", SHAPES)
def test_the_page_of_scale_shows_what_the_formulas_give(label):
    """The memory table, to its last digit."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {label}, "))
    name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
    ranks, shape = int(name.split(", ")[1]), SHAPES[label]
    expected = [
        *(trained_bytes(shape.parameters, ranks, stage) for stage in range(4)),
        trained_bytes(shape.parameters, ranks, 3, is_optimizer_offloaded=True),
        frozen_bytes(shape.parameters, ranks),
        activation_bytes(shape, 4096, logit_chunk_tokens=1024),
    ]
    for shown, wanted in zip(cells, expected, strict=True):
        digits = len(shown.partition(".")[2])
        assert float(shown.replace(",", "")) == pytest.approx(wanted / GIB, abs=0.51 * 10**-digits), label
