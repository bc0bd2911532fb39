"""Replaced replies come back in later updates: in order, bounded, and the same after a resume."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.config.rejection import ReplacementConfig
from rlhf_core.data.records import REPLACED_SCHEMA
from rlhf_core.data.replay import REPLACED, mix_replay, replay_documents
from rlhf_core.data.store import RunFolder, stage_folder, write_table


@pytest.fixture
def folder(tmp_path):
    """Iteration n replaced n responses, with token ids that name it."""
    found = RunFolder(tmp_path)
    for number in (1, 2, 4):
        rows = [
            dict.fromkeys(REPLACED_SCHEMA.names, "x")
            | {"iteration": number, "sample_index": 0, "token_ids": [7] * 5 + [10 * number + i]}
            for i in range(number)
        ]
        with stage_folder(found.iteration(number) / "rollouts") as partial:
            write_table(partial / REPLACED, pd.DataFrame(rows), REPLACED_SCHEMA)
    return found


def test_the_replies_of_the_last_iterations_before_this_one_are_read_and_keep_their_end(folder):
    def last(iteration: int, **settings):
        found = replay_documents(folder, iteration, ReplacementConfig(**settings), 3)
        assert all(len(ids) == 3 for ids in found)
        return [ids[-1] for ids in found]

    assert last(1) == []
    assert last(3) == [10, 20, 21]
    assert last(4) == [10, 20, 21]
    assert last(5, replay_iterations=2) == [40, 41, 42, 43]
    assert last(6, replay_iterations=4) == [20, 21, 40, 41, 42, 43]


@given(documents=st.integers(0, 20), replay=st.integers(0, 20), share=st.floats(0, 1), iteration=st.integers(1, 9))
def test_replay_takes_at_most_its_share_each_once_and_leaves_the_rest_in_place(documents, replay, share, iteration):
    general = [[i] for i in range(documents)]
    replies = [[100 + i] for i in range(replay)]
    mixed = mix_replay(general, replies, share=share, iteration=iteration, seed=3)
    taken = [ids[0] for ids in mixed if ids[0] >= 100]
    assert len(mixed) == documents
    assert len(taken) == len(set(taken)) == min(int(share * documents), replay)
    assert all(ids == general[i] for i, ids in enumerate(mixed) if ids[0] < 100)
    assert mixed == mix_replay(general, replies, share=share, iteration=iteration, seed=3)


def test_another_iteration_takes_others():
    general, replies = [[i] for i in range(20)], [[100 + i] for i in range(50)]
    assert len({str(mix_replay(general, replies, share=0.5, iteration=n, seed=3)) for n in range(1, 6)}) == 5
