import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.seeding import derive_seed, response_seed, seed_everything

names = st.lists(st.one_of(st.integers(0, 1000), st.text(max_size=5)), max_size=3)


@given(st.integers(0, 2**31), names)
def test_a_seed_fits_a_signed_64_bit_column_and_repeats(run_seed, parts):
    seed = derive_seed(run_seed, *parts)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(run_seed, *parts)


def test_a_seed_is_the_same_on_every_machine():
    # The first 8 bytes of sha256 of the text `[7, "prompts", 3]`, by another program, less the lowest bit.
    assert derive_seed(7, "prompts", 3) == 0x3D6C18FFFA487785 >> 1


def test_each_part_of_a_responses_name_changes_its_seed():
    base = (1, "p", 2, 3, 1)
    others = [(9, "p", 2, 3, 1), (1, "q", 2, 3, 1), (1, "p", 9, 3, 1), (1, "p", 2, 9, 1), (1, "p", 2, 3, 2)]
    seeds = {response_seed(*arguments) for arguments in [base, *others]}
    assert len(seeds) == 6


def test_seeding_everything_repeats_all_generators():
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    is_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        seed_everything(5, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        first = draw()
        seed_everything(5, deterministic=False)
        assert draw() == first
    finally:
        torch.use_deterministic_algorithms(is_deterministic)
