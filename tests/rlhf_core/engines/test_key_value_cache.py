import torch
from transformers import DynamicCache

from rlhf_core.engines.key_value_cache import RoomyCache


def states(rows: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 2, tokens, 4, generator=generator), torch.randn(rows, 2, tokens, 4, generator=generator)


def test_it_holds_what_transformers_own_cache_holds():
    ours, theirs = RoomyCache(1, room=6), DynamicCache()
    for seed, tokens in enumerate((3, 1, 2)):
        for got, want in zip(
            ours.update(*states(2, tokens, seed), 0), theirs.update(*states(2, tokens, seed), 0), strict=True
        ):
            assert torch.equal(got, want)
    assert ours.get_seq_length() == theirs.get_seq_length() == 6


def test_repeated_and_moved_rows_hold_their_sources():
    cache = RoomyCache(1, room=5)
    keys, _ = cache.update(*states(3, 2, 0), 0)
    keys = keys.clone()
    cache.repeat_rows(torch.tensor([2, 0, 0, 1]))
    cache.move_rows(torch.tensor([3]), torch.tensor([1]), rows=3)
    new = states(3, 1, 1)
    got, _ = cache.update(*new, 0)
    assert torch.equal(got[:, :, :2], keys[torch.tensor([2, 1, 0])])
    assert torch.equal(got[:, :, 2:], new[0])
