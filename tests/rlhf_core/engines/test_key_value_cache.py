import torch
from transformers import DynamicCache

from rlhf_core.engines.key_value_cache import WIDTH_STEP, RoomyCache, rounded_width


def states(rows: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 2, tokens, 4, generator=generator), torch.randn(rows, 2, tokens, 4, generator=generator)


def test_each_row_holds_what_transformers_own_cache_holds_of_it_alone():
    """Prompts of 3 and 2 tokens, then two tokens more of each."""
    ours, theirs = RoomyCache(1), [DynamicCache(), DynamicCache()]
    prompts = states(1, 5, 0)
    for got, sent in zip(ours.update(*prompts, 0), prompts, strict=True):
        assert torch.equal(got, sent)
    for cache, part in zip(theirs, (slice(0, 3), slice(3, 5)), strict=True):
        cache.update(prompts[0][:, :, part], prompts[1][:, :, part], 0)
    ours.spread(torch.tensor([[0, 1, 2], [3, 4, 4]]), room=rounded_width(5))
    for seed, positions in enumerate(([3, 2], [4, 3]), start=1):
        ours.aim(torch.tensor(positions), max(positions))
        new = states(2, 1, seed)
        got = ours.update(*new, 0)
        for row, cache in enumerate(theirs):
            want = cache.update(new[0][row : row + 1], new[1][row : row + 1], 0)
            for mine, other in zip(got, want, strict=True):
                assert mine.shape[2] == WIDTH_STEP
                assert torch.equal(mine[row : row + 1, :, : positions[row] + 1], other)
                assert torch.isfinite(mine).all()


def test_repeated_and_moved_rows_hold_their_sources():
    cache = RoomyCache(1)
    keys, _ = cache.update(*states(1, 6, 0), 0)
    tokens = torch.tensor([[4, 5], [0, 1], [0, 1], [2, 3]])
    cache.spread(tokens, room=WIDTH_STEP)
    cache.move_rows(torch.tensor([3]), torch.tensor([1]), 2)
    cache.aim(torch.tensor([2, 2, 2]), 2)
    new = states(3, 1, 1)
    got, _ = cache.update(*new, 0)
    for row, source in enumerate((0, 3, 2)):
        assert torch.equal(got[row, :, :2], keys[0][:, tokens[source]])
    assert torch.equal(got[:, :, 2:3], new[0])


def test_an_autocast_cache_is_held_in_the_dtype_that_attention_computes_in():
    cache = RoomyCache(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sent, _ = cache.update(*states(1, 2, 0), 0)
        cache.spread(torch.tensor([[0, 1]]), room=WIDTH_STEP)
        cache.aim(torch.tensor([2]), 2)
        got, _ = cache.update(*states(1, 1, 1), 0)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got[:, :, :2], sent.bfloat16())
