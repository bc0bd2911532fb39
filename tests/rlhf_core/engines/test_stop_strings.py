from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rlhf_core.engines.stop_strings import StopStrings
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    return AutoTokenizer.from_pretrained(folder)


def test_no_stop_text_never_stops(tokenizer):
    assert not StopStrings((), tokenizer).is_reached([5, 6, 7])
    assert not StopStrings(("",), tokenizer).is_reached([5, 6, 7])


def test_a_stop_text_over_several_tokens_is_seen_when_its_last_token_comes(tokenizer):
    ids = list(range(20, 26))
    text = tokenizer.decode(ids[1:4])
    stops = StopStrings((text,), tokenizer)
    assert [stops.is_reached(ids[:count]) for count in range(1, 5)] == [False, False, False, True]
