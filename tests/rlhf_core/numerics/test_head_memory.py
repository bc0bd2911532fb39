"""How much memory the head needs: by the chunk, not by the number of tokens.

Counted by torch's own allocator events, so to the byte; benchmarks/head_memory.py measures the real size.
"""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from rlhf_core.numerics.kl import compare_with_reference
from rlhf_core.numerics.logprobs import logprobs_from_hidden

VOCAB, HIDDEN, CHUNK = 4096, 8, 64
CHUNK_BYTES = CHUNK * VOCAB * 4


def peak_bytes(work):
    """The most that was allocated above what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def inputs(tokens, *, requires_grad=False):
    generator = torch.Generator().manual_seed(0)
    hidden, ref_hidden = (torch.randn(tokens, HIDDEN, generator=generator) for _ in range(2))
    heads = [torch.randn(VOCAB, HIDDEN, generator=generator) for _ in range(2)]
    hidden.requires_grad_(requires_grad)
    return hidden, ref_hidden, heads, torch.randint(0, VOCAB, (tokens,), generator=generator)


def comparison(tokens):
    hidden, ref_hidden, heads, ids = inputs(tokens)
    return peak_bytes(lambda: compare_with_reference(hidden, ref_hidden, tuple(heads), ids, chunk_tokens=CHUNK))


def plain(tokens):
    hidden, ref_hidden, heads, ids = inputs(tokens)

    def work():
        policy, reference = (
            torch.log_softmax(h @ head.T, dim=1) for h, head in zip((hidden, ref_hidden), heads, strict=True)
        )
        policy.gather(1, ids[:, None])
        (policy.exp() * (policy - reference)).sum(dim=1)

    return peak_bytes(work)


def test_the_meter_sees_the_plain_way_hold_all_logits_several_times():
    assert plain(1024) > 3 * 1024 * VOCAB * 4


def test_comparing_more_tokens_needs_no_more_memory_but_for_the_results():
    small, large = comparison(256), comparison(1024)
    results = 4 * 4 * (1024 - 256)
    assert 0 <= large - small <= 2 * results
    assert large < 8 * CHUNK_BYTES


def test_logprobs_and_entropy_without_a_gradient_hold_a_chunk():
    def measured(tokens):
        hidden, _, heads, ids = inputs(tokens)
        return peak_bytes(lambda: logprobs_from_hidden(hidden, heads[0], ids, chunk_tokens=CHUNK))

    small, large = measured(256), measured(1024)
    assert large - small <= 4 * 4 * (1024 - 256)
    assert large < 5 * CHUNK_BYTES


def test_training_holds_the_logits_gradient_once():
    tokens = 1024
    hidden, _, heads, ids = inputs(tokens, requires_grad=True)

    def work():
        logprobs, _ = logprobs_from_hidden(hidden, heads[0], ids, chunk_tokens=CHUNK)
        logprobs.sum().backward()

    assert peak_bytes(work) < tokens * VOCAB * 4 + 5 * CHUNK_BYTES
