"""What the runtime and the stages make of `rollout.engine: vllm`, with a small server in vLLM's place."""

import json

import pytest

from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.config.run import RunConfig
from rlhf_core.data import prepare
from rlhf_core.data.store import read_table
from rlhf_core.engines.protocols import Sampling
from rlhf_core.errors import EngineError, RunFolderError, StaleEngine
from rlhf_core.evaluation.stage import run_baseline
from rlhf_core.recovery.changed_settings import accepted_changes
from rlhf_core.rollout.stage import REJECTED, ROLLOUTS, run_stage
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run
from tests.flows.tiny_run import settings
from tests.rlhf_core.engines.fake_vllm import FakeVllm
from tests.tiny_model import make_tiny_world


@pytest.fixture
def runtime(tmp_path):
    server = FakeVllm([])
    world = make_tiny_world(tmp_path / "world")
    rollout = {"engine": "vllm", "vllm": {"urls": [server.url]}, "prompts_per_iteration": 6, "batch_size": 2}
    config = RunConfig.model_validate(settings(world, tmp_path, rollout=rollout))
    folder = prepare_run(config, resume=False)
    opened = open_runtime(folder.path)
    try:
        prepare.run_stage(opened)
        yield opened, server
    finally:
        close_runtime(folder.path)
        server.die()


def policy_of(runtime, server):
    policy = start_policy(runtime)
    server.canary = json.loads((policy.path / "state.json").read_text())["micro_inference"]
    return policy


def test_rollouts_and_held_out_responses_come_from_the_servers(runtime):
    opened, server = runtime
    policy = policy_of(opened, server)
    stored = run_stage(opened, policy, 1)
    frame = read_table(stored.path / ROLLOUTS)
    drawn = len(server.asked)
    assert len(frame) == 6 and drawn == 6 + len(read_table(stored.path / REJECTED))
    assert frame["engine_logprobs"].iloc[0] == [-0.5, -1.5, -2.5]
    assert stored.metrics["rollout/canary_nats"] == 0.0
    assert len(opened.take_sync_seconds()) == 1 and opened.take_sync_seconds() == []
    run_baseline(opened)
    assert len(server.asked) == drawn + 8
    assert server.calls.count("/collective_rpc") == 1, "the same policy is not sent twice"


def test_a_stale_server_leaves_no_rollouts(runtime):
    opened, server = runtime
    policy = policy_of(opened, server)
    server.canary = [logprob - 0.01 for logprob in server.canary]
    with pytest.raises(StaleEngine):
        run_stage(opened, policy, 1)
    assert not server.asked and not (opened.folder.iteration(1) / "rollouts").exists()


def test_after_a_drop_the_servers_are_given_the_weights_again(runtime):
    opened, server = runtime
    policy = policy_of(opened, server)
    engine = opened.rollout_engine(policy)
    opened.drop()
    with pytest.raises(EngineError, match="is closed"):
        engine.generate([], Sampling(1, 1.0))
    assert opened.sync_metrics() == {} and opened.take_sync_seconds() == []
    opened.rollout_engine(policy)
    assert server.calls.count("/collective_rpc") == 2


def test_servers_may_move_while_a_run_stands_still_but_not_their_precision(runtime):
    opened, _ = runtime
    moved = opened.config.model_dump(mode="json")
    moved["rollout"]["vllm"] |= {"urls": ["http://10.0.0.9:8000"], "request_seconds": 5}
    changes = accepted_changes(opened.folder, opened.config, RunConfig.model_validate(moved))
    assert set(changes) == {"rollout.vllm.urls", "rollout.vllm.request_seconds"}
    moved["rollout"]["vllm"]["dtype"] = "bfloat16"
    with pytest.raises(RunFolderError, match=r"differ in: rollout\.vllm\.dtype"):
        accepted_changes(opened.folder, opened.config, RunConfig.model_validate(moved))
