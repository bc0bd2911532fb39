from __future__ import annotations

from itertools import chain

import pytest

from rlhf_core.data.ptx_stream import documents, draw_documents
from rlhf_core.errors import ConfigError, DataError


def test_documents_are_cut_into_parts_and_the_first_ones_are_held_out(tokenizer, make_config, tmp_path):
    words = [f"w{n}" for n in range(20)]
    texts = ["w1 w2 w3", " ".join(words), "w4", "W1  w2 w3", " ".join(words[:17])]
    (tmp_path / "ptx.txt").write_text("\n\n".join(texts))
    config = make_config(
        {"ptx": [{"path": "ptx.txt"}], "ptx_held_out_documents": 1}, ppo={"ptx": {"enabled": True, "max_tokens": 8}}
    )
    frame = documents(config, tokenizer)
    ids = [tokenizer.convert_tokens_to_ids(word) for word in words]
    assert frame[frame["is_held_out"]]["token_ids"].tolist() == [ids[1:4]]
    # The second document in parts of 8; of the last (17 tokens) the part of one token is dropped, as "w4" is.
    assert frame[~frame["is_held_out"]]["token_ids"].tolist() == [ids[:8], ids[8:16], ids[16:20], ids[:8], ids[8:16]]
    assert frame["part"].tolist() == [0, 0, 1, 2, 0, 1]


def test_too_few_documents_are_refused_with_what_to_do(tokenizer, make_config, tmp_path):
    (tmp_path / "ptx.txt").write_text("w1 w2\n\nw3 w4")
    config = make_config({"ptx": [{"path": "ptx.txt"}], "ptx_held_out_documents": 2})
    with pytest.raises(DataError, match=r"has 2 usable documents.*ptx_held_out_documents=2.*separator"):
        documents(config, tokenizer)


def test_a_hub_text_set_needs_a_limit(tokenizer, make_config):
    with pytest.raises(ConfigError, match="Set its `limit`"):
        documents(make_config({"ptx": [{"path": "hub:allenai/c4"}]}), tokenizer)


def test_a_run_without_text_has_no_documents(tokenizer, make_config):
    assert documents(make_config({}), tokenizer).empty
    with pytest.raises(DataError, match="no general text"):
        draw_documents([], count=1, iteration=1, seed=0)


def test_drawing_uses_every_document_before_any_comes_again_and_repeats_for_the_same_seed():
    docs = [[n, n] for n in range(12)]
    drawn = [draw_documents(docs, count=4, iteration=iteration, seed=3) for iteration in (1, 2, 3)]
    assert sorted(chain.from_iterable(drawn)) == docs
    assert draw_documents(docs, count=4, iteration=2, seed=3) == drawn[1]
    assert draw_documents(docs, count=4, iteration=4, seed=3) != drawn[0]
