"""The word-level tokenizer, as Hugging Face loads it again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rlhf_core.quickstart.tokenizer import SPECIAL_TOKENS, build_tokenizer, save_tokenizer, words_of
from rlhf_core.quickstart.world import World, WorldSettings

WORLD = World(WorldSettings(), 0)
TOKENIZER = build_tokenizer(words_of(WORLD.words()))
ROWS = WORLD.sft_rows()
PASSAGES = WORLD.ptx_rows()


def test_every_text_of_the_world_is_in_the_vocabulary(tmp_path):
    texts = [row["text"] for row in PASSAGES] + [row["response"] for row in ROWS] + [row["prompt"] for row in ROWS]
    pairs = WORLD.preference_rows(WORLD.held_out_questions, 100, "eval")
    texts += [row["chosen"] for row in pairs] + [row["rejected"] for row in pairs]
    ids = {token for sequence in TOKENIZER(texts)["input_ids"] for token in sequence}
    assert TOKENIZER.unk_token_id not in ids
    assert 300 < len(TOKENIZER) < 600


@given(st.sampled_from(ROWS))
def test_a_decoded_response_reads_as_it_was_written(row):
    assert TOKENIZER.decode(TOKENIZER.encode(row["response"])) == row["response"]


def test_special_tokens_have_distinct_ids_and_survive_saving(tmp_path):
    save_tokenizer(TOKENIZER, tmp_path)
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    ids = [loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id, loaded.unk_token_id]
    assert ids == [0, 1, 2, 3]
    assert loaded.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert loaded.encode("Where does the otter live?") == TOKENIZER.encode("Where does the otter live?")


def test_the_chat_template_opens_the_answer_and_ends_it_with_eos():
    turns = [{"role": "user", "content": "Where does the otter live?"}]
    opened = TOKENIZER.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert opened == "<|user|>Where does the otter live?<|assistant|>"
    turns.append({"role": "assistant", "content": "Just river."})
    assert TOKENIZER.apply_chat_template(turns, tokenize=False) == f"{opened}Just river.<|eos|>"
