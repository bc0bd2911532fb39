import math

import numpy as np
import pytest
import torch

from rlhf_core.errors import ConfigError, DataError, RemoteScorerError
from rlhf_core.rewards.scorers import CallableScorer

ROWS = [{"prompt": f"p{i}", "response": "x" * i} for i in range(5)]


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Write a module into the current folder and give its import path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, body: str) -> str:
        (tmp_path / f"{name}.py").write_text(body)
        return f"{name}:score"

    return write


def test_a_function_scores_batch_by_batch_in_the_rows_order(write_module):
    path = write_module(
        "lengths", "sizes = []\ndef score(p, r):\n    sizes.append(len(r))\n    return [len(x) for x in r]\n"
    )
    scorer = CallableScorer(path, batch_size=2)
    assert scorer.score(ROWS) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert scorer.function.__globals__["sizes"] == [2, 2, 1]


@pytest.mark.parametrize("value", [np.arange(5.0), torch.arange(5.0), tuple(range(5))])
def test_arrays_and_tensors_of_numbers_will_do(write_module, value, monkeypatch):
    scorer = CallableScorer(write_module("arrays", "def score(p, r): ..."), batch_size=5)
    monkeypatch.setattr(scorer, "function", lambda prompts, responses: value)
    assert scorer.score(ROWS) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_case_N03_none_becomes_nan(write_module):
    found = CallableScorer(write_module("nones", "def score(p, r): return [None, float('inf')]"), 8).score(ROWS[:2])
    assert math.isnan(found[0]) and found[1] == math.inf


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1.0]", "returned 1 values for 5 responses"),
        ("return 3.0", "returned a float"),
        ("return None", "returned a NoneType"),
        ("return '12345'", "returned a str"),
        ("return {i: 1.0 for i in range(5)}", "returned a dict"),
        ("return [0.0, 'high', 0, 0, 0]", "value 1 is a str: 'high'"),
        ("return __import__('torch').zeros(5, 2)", "value 0 is no single number"),
        ("raise KeyError('word')", "raised KeyError: 'word'"),
    ],
)
def test_a_wrong_result_says_what_was_expected(write_module, body, message):
    name = "wrong" + str(abs(hash(body)))
    scorer = CallableScorer(write_module(name, f"def score(p, r):\n    {body}\n"), batch_size=5)
    with pytest.raises(DataError, match=message):
        scorer.score(ROWS)


def test_a_wrong_import_path_says_what_is_there(write_module):
    write_module("partial", "value = 3\ndef other(p, r): ...\n")
    with pytest.raises(ConfigError, match=r"has no 'score'. Its functions: \['other'\]"):
        CallableScorer("partial:score", 1)
    with pytest.raises(ConfigError, match="is a int; expected a function"):
        CallableScorer("partial:value", 1)
    with pytest.raises(ConfigError, match="'no_such_module_at_all' cannot be imported"):
        CallableScorer("no_such_module_at_all:score", 1)
    write_module("broken", "1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        CallableScorer("broken:score", 1)


def test_an_error_of_ours_passes_through_so_that_a_transient_one_is_retried(tmp_path, monkeypatch):
    (tmp_path / "remote_scorer.py").write_text(
        "from rlhf_core.errors import RemoteScorerError\n"
        "def score(prompts, responses):\n    raise RemoteScorerError('no answer within 5 s')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RemoteScorerError, match="no answer within 5 s"):
        CallableScorer("remote_scorer:score", 4).score([{"prompt": "a", "response": "b"}])
