from __future__ import annotations

import pandas as pd
import pytest

from rlhf_core.data.prompt_pool import build_prompt_pool, domain_shares, draw_prompts, without_prompts
from rlhf_core.errors import ConfigError, DataError


def pool_of(**sizes: int) -> pd.DataFrame:
    """Prompts of the given domains; those of `sft` are general."""
    rows = [
        (f"{domain}{n}", domain, f"{domain} {n}", [1], domain == "sft")
        for domain, size in sizes.items()
        for n in range(size)
    ]
    return pd.DataFrame(rows, columns=["prompt_id", "domain", "prompt", "prompt_ids", "is_general"])


def draw(pool: pd.DataFrame, iteration: int, count: int = 8, **rest) -> pd.DataFrame:
    settings = {"seed": 5, "domain_weights": {}, "general_fraction": 0.0, **rest}
    return draw_prompts(pool, count=count, iteration=iteration, **settings)


def test_case_E04_a_prompt_one_token_over_the_limit_is_left_out_and_reported_and_never_cut(
    tokenizer, make_config, write_lines
):
    write_lines("prompts.jsonl", [{"prompt": "w1 w2 w3"}, {"prompt": "w1 w2 w3 w4"}])
    config = make_config({}, rollout={"max_prompt_tokens": 5})
    pool = build_prompt_pool(config, tokenizer, config.data.prompts)
    assert pool.prompts["prompt"].tolist() == ["w1 w2 w3"]
    assert [len(ids) for ids in pool.prompts["prompt_ids"]] == [5]
    assert pool.left_out.to_dict("records") == [
        {
            "origin": "prompts.jsonl, line 2",
            "reason": "too_long",
            "detail": "6 tokens; rollout.max_prompt_tokens=5",
            "text": "w1 w2 w3 w4",
        }
    ]


def test_empty_repeated_and_malformed_prompts_are_left_out_with_their_reason(tokenizer, make_config, write_lines):
    write_lines("prompts.jsonl", [{"prompt": "w1  w2"}, {"prompt": " "}, {"prompt": "W1 w2\n"}])
    write_lines("hh.jsonl", [{"d": "\n\nHuman: w3\n\nAssistant: w4\n\nHuman: w5\n\nAssistant: w6"}, {"d": "w7"}])
    hh = {"path": "hh.jsonl", "layout": "hh_transcript", "columns": {"prompt": "d"}}
    config = make_config({"prompts": [{"path": "prompts.jsonl"}, hh]})
    pool = build_prompt_pool(config, tokenizer, config.data.prompts)
    assert pool.prompts["prompt"].tolist() == ["w1  w2", "Human: w3\n\nAssistant: w4\n\nHuman: w5"]
    assert tokenizer.convert_ids_to_tokens(pool.prompts["prompt_ids"][1]) == (
        ["<|user|>", "w3", "<|assistant|>", "w4", "<|user|>", "w5", "<|assistant|>"]
    )
    assert list(zip(pool.left_out["reason"], pool.left_out["origin"], strict=True)) == [
        ("empty", "prompts.jsonl, line 2"),
        ("duplicate", "prompts.jsonl, line 3"),
        ("malformed", "hh.jsonl, line 2"),
    ]


def test_prompts_of_another_set_are_taken_out_whatever_their_case(tokenizer, make_config, write_lines):
    write_lines("prompts.jsonl", [{"prompt": "w1"}, {"prompt": "w2"}])
    config = make_config({})
    pool = build_prompt_pool(config, tokenizer, config.data.prompts)
    rest = without_prompts(pool, pd.DataFrame({"prompt": [" W1"]}), "held_out")
    assert rest.prompts["prompt"].tolist() == ["w2"]
    assert rest.left_out["reason"].tolist() == ["held_out"]


def test_each_prompt_comes_once_before_any_of_its_domain_comes_again():
    pool = pool_of(a=16, b=8)
    drawn = pd.concat([draw(pool, iteration, domain_weights={"a": 2.0}, count=6) for iteration in range(1, 9)])
    assert drawn["domain"].value_counts().to_dict() == {"a": 32, "b": 16}
    assert (drawn["prompt_id"].value_counts() == 2).all()


def test_a_draw_follows_from_seed_and_iteration_alone():
    pool = pool_of(a=20, b=5)
    pd.testing.assert_frame_equal(draw(pool, 4), draw(pool, 4))
    assert draw(pool, 4)["prompt_id"].tolist() != draw(pool, 5)["prompt_id"].tolist()
    assert draw(pool, 4)["prompt_id"].tolist() != draw(pool, 4, seed=6)["prompt_id"].tolist()


def test_general_prompts_get_their_fraction_and_none_without_one():
    pool = pool_of(a=40, sft=40)
    shares = [draw(pool, iteration, count=10, general_fraction=0.2)["is_general"].sum() for iteration in range(1, 6)]
    assert shares == [2] * 5
    assert not draw(pool, 1, count=10)["is_general"].any()
    assert len(draw(pool_of(a=40), 1, count=10, general_fraction=0.2)) == 10


def test_a_pool_smaller_than_the_count_is_cycled_and_repeats_are_numbered():
    drawn = draw(pool_of(a=3), 2, count=8)
    assert len(drawn) == 8
    assert not drawn.duplicated(["prompt_id", "repeat"]).any()
    assert set(drawn["prompt_id"]) == {"a0", "a1", "a2"}


def test_a_domain_of_weight_zero_is_never_drawn():
    assert set(draw(pool_of(a=9, b=9), 1, domain_weights={"b": 0.0})["domain"]) == {"a"}


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"c": 1.0}, r"names \['c'\]"), ({"a": -1.0}, "not negative"), ({"a": 0.0, "b": 0.0}, "not all 0")],
)
def test_wrong_domain_weights_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        domain_shares(["a", "b"], weights)


def test_an_empty_pool_is_refused():
    with pytest.raises(DataError, match="pool is empty"):
        draw(pool_of(), 1)
