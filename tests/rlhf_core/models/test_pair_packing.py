import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.models.pair_packing import PairTokens, pack_pairs

ids = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)
some_pairs = st.lists(st.builds(PairTokens, ids, ids, ids), min_size=1, max_size=4)


@given(some_pairs)
def test_a_response_sees_the_prompt_and_itself_and_the_past_alone(pairs):
    packed = pack_pairs(pairs, torch.device("cpu"))
    for row, pair in enumerate(pairs):
        names = ["p"] * len(pair.prompt) + ["c"] * len(pair.chosen) + ["r"] * len(pair.rejected)
        for query, who in enumerate(names):
            seen = packed.attention[row, 0, query].tolist()
            want = [j <= query and (other == "p" or other == who) for j, other in enumerate(names)]
            assert seen == want + [False] * (len(seen) - len(want))


@given(some_pairs)
def test_tokens_positions_and_last_tokens_are_those_of_each_dialogue(pairs):
    packed = pack_pairs(pairs, torch.device("cpu"))
    assert packed.padded_tokens == packed.ids.numel() - sum(pair.length for pair in pairs)
    for row, pair in enumerate(pairs):
        for side, response in enumerate((pair.chosen, pair.rejected)):
            last = int(packed.last_tokens[row, side])
            seen = packed.attention[row, 0, last]
            assert packed.ids[row, seen].tolist() == [*pair.prompt, *response]
            assert packed.positions[row, seen].tolist() == list(range(len(pair.prompt) + len(response)))


@given(st.builds(PairTokens, ids, ids, ids), st.integers(1, 14))
def test_a_cut_pair_keeps_the_last_tokens_and_one_prompt(pair, limit):
    cut = pair.cut(limit)
    longest = max(cut.chosen, cut.rejected, key=len)
    assert len(cut.prompt) + len(longest) <= limit
    assert pair.chosen[len(pair.chosen) - len(cut.chosen) :] == cut.chosen
    assert pair.prompt[len(pair.prompt) - len(cut.prompt) :] == cut.prompt
    for response, kept in ((pair.chosen, cut.chosen), (pair.rejected, cut.rejected)):
        if len(response) == max(len(pair.chosen), len(pair.rejected)):
            assert (*cut.prompt, *kept) == (*pair.prompt, *response)[-limit:]
