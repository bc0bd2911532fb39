import pytest
from pydantic import ValidationError

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.config.vllm import VllmConfig


def rollout(**vllm):
    return RolloutConfig.model_validate({"engine": "vllm", "vllm": vllm})


@pytest.mark.parametrize("url", ["ftp://host", "10.0.0.5:8000", "http://", "file:///etc/passwd"])
def test_an_address_must_be_http(url):
    with pytest.raises(ValidationError, match=r"no http\(s\) address"):
        VllmConfig(urls=(url,))


def test_a_password_in_an_address_is_refused_without_being_repeated():
    with pytest.raises(ValidationError, match="holds a password") as caught:
        VllmConfig(urls=("http://me:geheim@host:8000",))
    assert "geheim" not in caught.value.errors()[0]["msg"]


def test_a_server_is_named_once():
    with pytest.raises(ValidationError, match="twice"):
        VllmConfig(urls=("http://a:1", "http://a:1/"))
    assert VllmConfig(urls=("http://a:1/", "http://b:1")).urls == ("http://a:1", "http://b:1")


def test_the_canary_is_as_sharp_as_the_precision_allows():
    assert VllmConfig().canary_limit_nats == 1e-3
    assert VllmConfig(dtype="bfloat16").canary_limit_nats > 0.37
    assert VllmConfig(dtype="bfloat16", canary_nats=0.5).canary_limit_nats == 0.5


def test_arguments_that_the_run_sets_itself_are_refused():
    with pytest.raises(ValidationError, match="--port, which the run itself sets"):
        VllmConfig(extra_arguments=("--port=1",))
    with pytest.raises(ValidationError, match="servers that are there already"):
        VllmConfig(urls=("http://a:1",), extra_arguments=("--swap-space", "1"))


def test_noise_is_refused_with_vllm_and_only_with_it():
    noise = {"exploration": {"iterations": 2}}
    with pytest.raises(ValidationError, match="which a vLLM server cannot add"):
        RolloutConfig.model_validate({"engine": "vllm", **noise})
    RolloutConfig.model_validate(noise)
    RolloutConfig.model_validate({"engine": "vllm", "exploration": {"iterations": 2, "noise_std": 0}})


def test_a_window_below_the_limits_is_refused():
    with pytest.raises(ValidationError, match=r"below max_prompt_tokens \+ max_new_tokens = 320"):
        rollout(max_model_len=319)
    assert rollout(max_model_len=320)


def test_servers_are_asked_for_all_responses_at_once():
    assert rollout().responses_per_call(500) == 500 and rollout().responses_per_call(0) == 1
    assert RolloutConfig(batch_size=8).responses_per_call(500) == 8


def test_a_cut_of_the_vocabulary_stays_refused():
    with pytest.raises(ValidationError, match="cut the vocabulary"):
        RolloutConfig.model_validate({"engine": "vllm", "top_p": 0.8})
