import copy
import json
import math
import shutil
import time

import pytest

from rlhf_core.engines.non_finite import NonFiniteLogits
from rlhf_core.engines.protocols import GenerationRequest, Sampling
from rlhf_core.engines.vllm_client import BadAnswer
from rlhf_core.errors import CheckpointError, ConfigError, DataError, EngineError, RolloutServerLost, StaleEngine
from rlhf_core.recovery.classify import classify, is_retryable
from tests.rlhf_core.engines.fake_vllm import EOS, FakeVllm
from tests.rlhf_core.engines.vllm_case import CANARY, SAMPLING, engine_on, first_times, make_policy, requests


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def fakes():
    made: list[FakeVllm] = []

    def make(count: int = 1, **settings) -> list[FakeVllm]:
        made.extend(FakeVllm(CANARY, **settings) for _ in range(count))
        return made[-count:]

    yield make
    for server in made:
        if not server.dead.is_set():
            server.die()


def seeds(generations):
    return [generation.response_ids[0] - 3 for generation in generations]


def test_each_request_gets_its_own_response_in_order_from_either_server(fakes, policy):
    servers = fakes(2, slowness_seconds=0.02)
    with engine_on(servers, policy) as engine:
        engine.sync(policy)
        found = engine.generate(requests(40), SAMPLING)
    assert seeds(found) == list(range(40))
    assert found[0].logprobs == (-0.5, -1.5, -2.5) and found[0].finish_reason == "eos"
    asked = sorted(body["seed"] for server in servers for body in server.asked)
    assert asked == list(range(40))
    assert all(10 <= len(server.asked) <= 30 for server in servers)
    assert all(server.most_busy <= 4 for server in servers)


def test_the_least_busy_server_is_asked_and_none_beyond_its_limit(fakes, policy):
    first, second = fakes(2, slowness_seconds=0.3)
    with engine_on([first, second], policy, batch_size=8) as engine:
        engine.sync(policy)
        engine.generate(requests(8), SAMPLING)
        assert len(first.asked) == len(second.asked) == 4
        engine._pool.put_out(engine._pool.servers[0], "away")
        engine.generate(requests(24), SAMPLING)
        assert second.most_busy == 8


def test_a_slow_server_gets_less_to_do(fakes, policy):
    slow, quick = fakes(2)
    slow.slowness_seconds, quick.slowness_seconds = 0.4, 0.01
    with engine_on([slow, quick], policy) as engine:
        engine.sync(policy)
        engine.generate(requests(60), SAMPLING)
    assert len(quick.asked) > 3 * len(slow.asked) > 0


def test_requests_say_all_that_decides_what_is_sampled(fakes, policy):
    (server,) = fakes()
    with engine_on([server], policy) as engine:
        engine.sync(policy)
        engine.generate([GenerationRequest((4, 5), 77)], Sampling(9, 0.7, ("stop",)))
    (body,) = server.asked
    expected = {"prompt": [4, 5], "seed": 77, "max_tokens": 9, "temperature": 0.7, "stop": ["stop"], "top_p": 1.0}
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert expected.items() <= body.items() and neutral.items() <= body.items()
    assert body["ignore_eos"] and body["stop_token_ids"] == [engine.tokenizer.eos_token_id]


def cut(server, body, good):
    return b'{"choices": [{"token_'


def nothing(server, body, good):
    return {"choices": []}


def twice(server, body, good):
    return {"choices": good["choices"] * 2}


def changed(**values):
    def answer(server, body, good):
        choice = copy.deepcopy(good["choices"][0])
        return {"choices": [{**choice, **values}]}

    return answer


GARBAGE = {
    "no JSON": cut,
    "fewer samples": nothing,
    "more samples": twice,
    "not a dictionary": lambda server, body, good: [1, 2],
    "no log-probs": changed(logprobs=None),
    "a log-prob missing": changed(logprobs={"token_logprobs": [-0.5, -0.5]}),
    "a token outside the vocabulary": changed(token_ids=[3, 10**6, EOS]),
    "a token that is no number": changed(token_ids=[3, "5", EOS]),
    "a negative token": changed(token_ids=[3, -1, EOS]),
    "no token": changed(token_ids=[], logprobs={"token_logprobs": []}),
    "an end in the middle": changed(token_ids=[3, EOS, 5]),
    "aborted": changed(token_ids=[3, 4, 5], finish_reason="abort"),
    "too long": changed(token_ids=[3] * 9, logprobs={"token_logprobs": [-1.0] * 9}, finish_reason="length"),
    "a foreign stop text": changed(token_ids=[3, 4, 5], stop_reason="never asked"),
    "refused": lambda server, body, good: (400, {"error": "no"}),
    "failed inside": lambda server, body, good: (500, {"error": "no"}),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_asked_for_again(kind, fakes, policy):
    (server,) = fakes()
    server.answer = first_times(2, GARBAGE[kind])
    with engine_on([server], policy, request_retries=2) as engine:
        engine.sync(policy)
        found = engine.generate(requests(6), SAMPLING)
    assert seeds(found) == list(range(6))
    assert len(server.asked) == 18


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_without_end_is_a_typed_error_that_a_retry_may_heal(kind, fakes, policy):
    (server,) = fakes()
    server.answer = GARBAGE[kind]
    with engine_on([server], policy, request_retries=1) as engine:
        engine.sync(policy)
        with pytest.raises(EngineError, match="failed 2 times") as caught:
            engine.generate(requests(6), SAMPLING)
    assert isinstance(caught.value, RolloutServerLost if kind == "failed inside" else BadAnswer)
    assert is_retryable(caught.value)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf, None, -9999.0])
def test_case_N05_logprobs_that_are_no_numbers_name_the_request(value, fakes, policy):
    (server,) = fakes()

    def bad(server, body, good):
        return (
            changed(logprobs={"token_logprobs": [-1.0, value, -1.0]})(server, body, good) if body["seed"] == 3 else good
        )

    server.answer = bad
    with engine_on([server], policy, request_retries=1) as engine:
        engine.sync(policy)
        with pytest.raises(NonFiniteLogits) as caught:
            engine.generate(requests(6), SAMPLING)
    assert (caught.value.request_index, caught.value.token_index) == (3, 1)
    assert classify(caught.value) == "non_finite"


def test_a_server_that_dies_in_mid_batch_leaves_its_requests_to_the_others(fakes, policy):
    dying, living = fakes(2, slowness_seconds=0.05)

    def answer(server, body, good):
        if server.asked[5:6] == [body]:  # counting them would not do: several come together
            server.die()
        return good

    dying.answer = answer
    with engine_on([dying, living], policy) as engine:
        engine.sync(policy)
        found = engine.generate(requests(30), SAMPLING)
    assert seeds(found) == list(range(30))
    assert dying.dead.is_set() and len(living.asked) >= 24


def test_a_hung_server_is_left_and_the_others_finish(fakes, policy):
    hung, living = fakes(2)

    def answer(server, body, good):
        time.sleep(3)
        return good

    hung.answer = answer
    with engine_on([hung, living], policy, request_seconds=0.5) as engine:
        engine.sync(policy)
        started = time.monotonic()
        found = engine.generate(requests(12), SAMPLING)
        assert time.monotonic() - started < 2.5
    assert seeds(found) == list(range(12))


def test_without_any_server_the_worker_is_lost(fakes, policy):
    servers = fakes(2)
    with engine_on(servers, policy) as engine:
        engine.sync(policy)
        for server in servers:
            server.die()
        with pytest.raises(RolloutServerLost, match="no vLLM server is left") as caught:
            engine.generate(requests(5), SAMPLING)
    assert classify(caught.value) == "remote"
    with engine_on(servers, policy) as engine, pytest.raises(RolloutServerLost, match="no vLLM server can be reached"):
        engine.sync(policy)


def test_a_server_that_is_back_serves_again_after_the_next_sync(fakes, policy, tmp_path):
    first, second = fakes(2)
    first.on_load = {"problem": ""}
    with engine_on([first, second], policy) as engine:
        engine.sync(policy)
        engine._pool.put_out(engine._pool.servers[0], "away")
        engine.generate(requests(8), SAMPLING)
        assert not first.asked
        engine.sync(make_policy(tmp_path, step=2))
        engine.generate(requests(8), SAMPLING)
        assert first.asked


def test_every_server_is_given_the_weights_before_it_samples_and_only_when_they_change(fakes, policy, tmp_path):
    servers = fakes(2)
    with engine_on(servers, policy) as engine:
        engine.sync(policy)
        engine.sync(policy)
        assert len(engine.sync_seconds) == 1
        engine.sync(make_policy(tmp_path, step=2))
        assert len(engine.sync_seconds) == 2 and all(seconds > 0 for seconds in engine.sync_seconds)
    order = [call.split("?")[0] for call in servers[0].calls if not call.startswith("/v1")]
    assert order == ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"] * 2
    assert servers[1].calls.count("/collective_rpc") == 2


def test_a_step_that_was_written_anew_after_a_rollback_is_sent_again(fakes, tmp_path):
    servers = fakes()
    with engine_on(servers, make_policy(tmp_path, step=1)) as engine:
        engine.sync(make_policy(tmp_path, step=2))
        shutil.rmtree(tmp_path / "step-000002")
        other = make_policy(tmp_path / "other", step=3)
        engine.sync(other.model_copy(update={"path": other.path.rename(tmp_path / "step-000002")}))
        assert len(engine.sync_seconds) == 2


def test_one_stale_server_among_several_is_refused_before_anything_is_sampled(fakes, policy):
    good, stale = fakes(2)
    stale.canary = [CANARY[0] + 2e-3, *CANARY[1:]]
    with engine_on([good, stale], policy) as engine:
        with pytest.raises(StaleEngine, match=r"differ by 2\.00e-03 nats \(allowed: 1e-03\)") as caught:
            engine.sync(policy)
        assert stale.url in str(caught.value)
        with pytest.raises(EngineError, match="no policy yet"):
            engine.generate(requests(1), SAMPLING)
    assert not good.asked and not stale.asked
    assert is_retryable(caught.value)


def test_a_failed_sync_leaves_no_engine_at_the_policy_before(fakes, policy, tmp_path):
    (server,) = fakes()
    with engine_on([server], policy) as engine:
        engine.sync(policy)
        server.canary = [logprob - 1 for logprob in CANARY]
        with pytest.raises(StaleEngine):
            engine.sync(make_policy(tmp_path, step=2))
        with pytest.raises(EngineError, match="no policy yet"):
            engine.generate(requests(1), SAMPLING)
    assert not server.asked


def test_a_small_difference_is_measured_and_allowed(fakes, policy):
    near, nearer = fakes(2)
    near.canary = [CANARY[0] - 4e-4, *CANARY[1:]]
    with engine_on([near, nearer], policy) as engine:
        engine.sync(policy)
        assert engine.canary_nats == pytest.approx(4e-4)


@pytest.mark.parametrize("canary", [[math.nan, *CANARY[1:]], [-math.inf, *CANARY[1:]]])
def test_a_canary_that_is_no_number_is_refused(canary, fakes, policy):
    (server,) = fakes()
    server.canary = canary
    with engine_on([server], policy) as engine, pytest.raises(StaleEngine, match="differ by nan"):
        engine.sync(policy)


def test_what_a_server_sampled_that_lost_the_weights_meanwhile_is_not_used(fakes, policy):
    (server,) = fakes()

    def restarts_with_old_weights(server, body, good):
        server.canary = [logprob - 1 for logprob in CANARY]
        return good

    with engine_on([server], policy) as engine:
        engine.sync(policy)
        server.answer = restarts_with_old_weights
        with pytest.raises(StaleEngine):
            engine.generate(requests(3), SAMPLING)


def test_a_server_that_refuses_the_weights_is_named(fakes, policy):
    (server,) = fakes()
    server.on_load = {"problem": "model.safetensors is damaged"}
    with engine_on([server], policy) as engine, pytest.raises(StaleEngine, match=r"refuses the weights.*is damaged"):
        engine.sync(policy)
    assert not any(call.startswith("/resume") for call in server.calls)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("has_extension", "--worker-extension-cls"),
        ("is_dev", "VLLM_SERVER_DEV_MODE=1"),
        ("is_tempered", "--logprobs-mode processed_logprobs"),
    ],
)
def test_a_server_that_was_started_wrongly_is_refused_with_the_words_that_it_lacks(name, words, fakes, policy):
    (server,) = fakes()
    setattr(server, name, False)
    with engine_on([server], policy) as engine, pytest.raises(ConfigError, match=words):
        engine.sync(policy)


def test_a_key_that_is_refused_is_a_matter_of_the_configuration(fakes, policy, monkeypatch):
    (server,) = fakes()
    monkeypatch.setattr(server, "respond", lambda path, body: (401, {}))
    with engine_on([server], policy) as engine, pytest.raises(ConfigError, match="RLHF_VLLM_API_KEY"):
        engine.sync(policy)


def test_a_checkpoint_without_recorded_logprobs_is_refused(fakes, tmp_path):
    policy = make_policy(tmp_path, canary=[])
    with engine_on(fakes(), policy) as engine, pytest.raises(CheckpointError, match="micro-inference"):
        engine.sync(policy)


def test_the_server_is_sent_the_hashes_of_the_manifest(fakes, policy, monkeypatch):
    (server,) = fakes()
    sent = []
    respond = server.respond
    monkeypatch.setattr(server, "respond", lambda path, body: sent.append(body) or respond(path, body))
    with engine_on([server], policy) as engine:
        engine.sync(policy)
    (call,) = [body for body in sent if "method" in body]
    folder, hashes = call["args"]
    manifest = json.loads((policy.path / "MANIFEST.json").read_text())["files"]
    assert folder == str(policy.path / "policy")
    assert json.loads(hashes) == {"model.safetensors": manifest["policy/model.safetensors"]["sha256"]}


def test_what_cannot_be_asked_for_is_refused(fakes, policy):
    (server,) = fakes()
    with engine_on([server], policy) as engine:
        with pytest.raises(EngineError, match="no policy yet"):
            engine.generate(requests(1), SAMPLING)
        engine.sync(policy)
        with pytest.raises(DataError, match=r"request 1 .* empty prompt"):
            engine.generate([*requests(1), GenerationRequest((), 5)], SAMPLING)
        with pytest.raises(ConfigError, match="noise"):
            engine.generate(requests(1), Sampling(4, 1.0, noise_std=0.1))
        with pytest.raises(ConfigError):
            engine.generate(requests(1), Sampling(4, 0.0))
        assert engine.generate([], SAMPLING) == []
    assert not server.asked


def test_case_E06_why_a_response_ended_comes_from_the_server_not_from_the_batch(fakes, policy):
    (server,) = fakes()
    ends = {
        0: {"token_ids": [3] * 5, "finish_reason": "length", "stop_reason": None},
        1: {"token_ids": [3] * 4 + [EOS], "finish_reason": "stop", "stop_reason": EOS},
        2: {"token_ids": [3] * 4, "finish_reason": "stop", "stop_reason": "!"},
        3: {"token_ids": [3] * 4 + [EOS], "finish_reason": "length", "stop_reason": None},
    }

    def answer(server, body, good):
        end = ends[body["seed"]]
        return {"choices": [{**end, "logprobs": {"token_logprobs": [-1.0] * len(end["token_ids"])}}]}

    server.answer = answer
    with engine_on([server], policy) as engine:
        engine.sync(policy)
        found = engine.generate(requests(4), Sampling(5, 1.0, ("!",)))
    assert [one.finish_reason for one in found] == ["length", "eos", "stop_sequence", "eos"]
    assert [len(one.response_ids) for one in found] == [5, 5, 4, 5]


def test_a_client_that_was_closed_meanwhile_is_a_lost_server_and_no_crash(fakes, policy):
    """Requests under way when our server is started anew end with their old client."""
    (server,) = fakes()
    with engine_on([server], policy) as engine:
        client = engine._pool.servers[0].client
        client.close()
        assert not client.is_ready()
        with pytest.raises(RolloutServerLost, match="cannot be reached"):
            client.complete({"prompt": [1], "seed": 1})


def test_case_E03_a_stop_text_is_a_natural_end_and_another_text_is_garbage(fakes, policy):
    (server,) = fakes()
    server.answer = changed(token_ids=[3, 4, 5], stop_reason="User:")
    with engine_on([server], policy, request_retries=0) as engine:
        engine.sync(policy)
        (found,) = engine.generate(requests(1), Sampling(8, 1.0, ("User:",)))
        assert found.finish_reason == "stop_sequence" and server.asked[-1]["stop"] == ["User:"]
        with pytest.raises(BadAnswer, match="stop_reason='User:'"):
            engine.generate(requests(1), Sampling(8, 1.0, ("Human:",)))
