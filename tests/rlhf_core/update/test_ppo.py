"""Laws of one PPO update on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.data.refs import ControlState
from rlhf_core.engines.packing import pack_rollouts
from rlhf_core.engines.protocols import ExperienceTensors, RolloutTensors
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import DataError, NumericsError
from rlhf_core.numerics import head_matmul
from rlhf_core.update.ppo import PpoUpdate
from tests.rlhf_core.engines.trainer_case import (
    CONTROL,
    CPU,
    LENGTHS,
    parameters,
    perturb,
    ppo,
    random_experience,
    random_rollouts,
    run_config,
)
from tests.tiny_model import make_tiny_model

DOCUMENTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16], [17, 18]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("ppo") / "model")


def make_trainer(model: Path, *, rollout: dict[str, Any] | None = None, **changes: Any) -> TorchTrainer:
    sections = {"rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8} | (rollout or {}), "ppo": ppo(**changes)}
    if changes.get("ptx", {}).get("enabled"):
        sections["data"] = {"prompts": [{"path": "p.jsonl"}], "ptx": [{"path": "t.txt"}]}
    trainer = TorchTrainer(run_config(model, **sections), CPU)
    perturb(trainer.critic)
    return trainer


def updated(
    trainer: TorchTrainer,
    experience: ExperienceTensors | None = None,
    *,
    documents: list[list[int]] | None = None,
    control: ControlState = CONTROL,
) -> dict[str, float]:
    experience = experience or random_experience(trainer, random_rollouts())
    return PpoUpdate(trainer, experience, documents or [], control).run(seed=3)


def assert_equal_models(first: TorchTrainer, second: TorchTrainer, *, atol: float) -> None:
    for left, right in ((first.policy, second.policy), (first.critic, second.critic)):
        for name, parameter in parameters(left).items():
            torch.testing.assert_close(parameter, parameters(right)[name], rtol=0, atol=atol, msg=name)


def sgd_like(model: Path, **changes: Any) -> TorchTrainer:
    """One mini-batch of all rows and an epsilon so large that AdamW's step is proportional to the gradient."""
    optimizer = {"learning_rate": 1e-1, "warmup_steps": 0, "epsilon": 1.0, "max_grad_norm": 1e9}
    return make_trainer(
        model,
        actor=optimizer,
        critic=optimizer,
        epochs=1,
        mini_batch_rollouts=8,
        **({"micro_batch_rollouts": 8} | changes),
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_add_up_to_the_gradient_of_the_whole_mini_batch(model, size):
    whole, cut = sgd_like(model), sgd_like(model, micro_batch_rollouts=size)
    start = parameters(whole.policy)
    metrics, cut_metrics = updated(whole), updated(cut)
    assert (metrics.pop("update/micro_batch_rollouts"), cut_metrics.pop("update/micro_batch_rollouts")) == (8, size)
    assert_equal_models(whole, cut, atol=1e-6)
    assert max(float((p - start[n]).abs().max()) for n, p in parameters(whole.policy).items()) > 1e-4
    assert metrics == pytest.approx(cut_metrics, rel=1e-4, abs=1e-5)


def test_the_step_is_that_of_the_loss_written_out_over_the_padded_batch(model):
    """Oracle: AdamW of torch on the clipped objective, computed from the library's padded logits."""
    trainer, other = sgd_like(model), sgd_like(model)
    experience = random_experience(trainer, random_rollouts())
    rollouts, mask = experience.rollouts, experience.rollouts.response_mask
    ids = torch.cat([rollouts.prompt_ids, rollouts.response_ids], dim=1)
    attended = torch.cat([rollouts.prompt_mask, mask], dim=1).long()
    inputs = {"input_ids": ids, "attention_mask": attended, "position_ids": (attended.cumsum(1) - 1).clamp(min=0)}
    first = rollouts.prompt_ids.shape[1] - 1
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, betas=(0.9, 0.95), eps=1.0, weight_decay=0.0)
                  for m in (other.policy, other.critic)]  # fmt: skip

    logits = other.policy(**inputs).logits[:, first:-1]
    logprobs = logits.log_softmax(-1).gather(-1, rollouts.response_ids[..., None]).squeeze(-1)
    ratio, advantages = (logprobs - experience.old_logprobs)[mask].exp(), experience.advantages[mask]
    (-torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()).backward()
    values = other.critic.head(other.critic.body(**inputs).last_hidden_state).squeeze(-1)[:, first:-1][mask]
    old, returns = experience.old_values[mask], experience.returns[mask]
    clipped = old + (values - old).clamp(-0.2, 0.2)
    (0.5 * torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()).backward()
    for optimizer in optimizers:
        optimizer.step()

    updated(trainer, experience)
    assert_equal_models(trainer, other, atol=2e-6)


@pytest.mark.parametrize("padding", [{"extra_right": 64}, {"extra_left": 7, "filler": 3}])
def test_case_E09_padding_changes_no_metric_and_no_parameter(model, padding):
    plain, padded = make_trainer(model), make_trainer(model)
    metrics = updated(plain, random_experience(plain, random_rollouts()))
    padded_metrics = updated(padded, random_experience(padded, random_rollouts(**padding)))
    assert metrics == pytest.approx(padded_metrics, rel=1e-6, abs=1e-9)
    assert_equal_models(plain, padded, atol=1e-7)


def test_case_N01_a_nan_outside_the_mask_changes_nothing(model):
    plain, poisoned = make_trainer(model), make_trainer(model)
    experience = random_experience(plain, random_rollouts())
    metrics = updated(plain, experience)
    hidden = ~experience.rollouts.response_mask
    names = ("old_logprobs", "ref_logprobs", "old_values", "advantages", "returns", "importance")
    bad = {name: getattr(experience, name).masked_fill(hidden, float("nan")) for name in names}
    assert updated(poisoned, ExperienceTensors(experience.rollouts, **bad)) == metrics
    assert_equal_models(plain, poisoned, atol=0.0)


def test_a_nan_inside_the_mask_is_refused_before_anything_moves(model):
    trainer = make_trainer(model)
    experience = random_experience(trainer, random_rollouts())
    experience.advantages[0, 0] = float("nan")
    with pytest.raises(NumericsError, match="advantages"):
        updated(trainer, experience)


def test_the_first_ratio_is_one_and_no_padding_goes_through_the_models(model):
    metrics = updated(make_trainer(model))
    assert metrics["update/ratio_first_deviation"] < 1e-5
    assert metrics["update/padded_fraction"] == 0.0
    assert metrics["update/stop_epoch_limit"] == 1.0
    assert metrics["update/epochs"] == 2.0
    assert metrics["update/optimizer_steps"] == 4.0


def test_case_K01_the_first_ratio_is_one_at_temperature_0_6_and_another_temperature_is_noticed(model):
    trainer = make_trainer(model, rollout={"temperature": 0.6})
    perturb(trainer.policy, scale=0.1)
    experience = random_experience(trainer, random_rollouts())
    trainer.temperature = 1.0
    with pytest.raises(NumericsError, match="temperature"):
        updated(trainer, experience)
    assert all(p.grad is None for p in trainer.policy.parameters())
    trainer.temperature = 0.6
    assert updated(trainer, experience)["update/ratio_first_deviation"] < 1e-4


def test_the_ratio_is_against_the_distribution_that_sampled_where_it_is_not_the_policys(model):
    still = {"learning_rate": 0.0, "warmup_steps": 0}
    trainer = make_trainer(model, actor=still, epochs=1, mini_batch_rollouts=8)
    said = random_experience(trainer, random_rollouts())
    noise = 0.3 * torch.randn(said.old_logprobs.shape, generator=torch.Generator().manual_seed(4))
    explored = ExperienceTensors(
        **(vars(said) | {"old_logprobs": said.old_logprobs + noise, "policy_logprobs": said.old_logprobs})
    )
    metrics = updated(trainer, explored)
    ratios = (-noise[said.rollouts.response_mask]).exp()
    assert metrics["update/ratio_mean"] == pytest.approx(float(ratios.mean()), rel=1e-5)
    assert metrics["update/ratio_max"] == pytest.approx(float(ratios.max()), rel=1e-5)
    assert metrics["update/ratio_first_deviation"] < 1e-5
    with pytest.raises(NumericsError, match="another policy"):
        updated(trainer, ExperienceTensors(**(vars(explored) | {"policy_logprobs": None})))
    with pytest.raises(NumericsError, match="another policy"):
        updated(trainer, ExperienceTensors(**(vars(explored) | {"policy_logprobs": explored.old_logprobs})))


@pytest.mark.parametrize("has_units", [True, False])
def test_the_first_ratio_may_differ_as_the_precision_really_used_lets_it(model, monkeypatch, has_units):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_units)
    trainer = TorchTrainer(run_config(model, model={"policy": str(model), "autocast": "bfloat16"}), CPU)
    experience = random_experience(trainer, random_rollouts())
    experience.old_logprobs.add_(0.1)
    if has_units:
        assert updated(trainer, experience)["update/ratio_first_deviation"] > 0.05
    else:
        with pytest.raises(NumericsError, match="autocast off"):
            updated(trainer, experience)


def test_the_policy_moves_towards_tokens_with_positive_advantage(model):
    trainer = make_trainer(model)
    before = random_experience(trainer, random_rollouts())
    updated(trainer, before)
    mask = before.rollouts.response_mask
    gain = (trainer.evaluate(before.rollouts).logprobs - before.old_logprobs)[mask] * before.advantages[mask]
    assert gain.mean() > 0


def test_case_N07_a_nan_gradient_skips_the_step_and_leaves_parameters_bit_identical(model):
    trainer = make_trainer(model, epochs=1, mini_batch_rollouts=8, micro_batch_rollouts=8)
    experience = random_experience(trainer, random_rollouts())
    spoiled = next(trainer.policy.parameters())
    handle = spoiled.register_hook(lambda gradient: gradient * float("nan"))
    before, critic_before = parameters(trainer.policy), parameters(trainer.critic)
    metrics = updated(trainer, experience)
    handle.remove()
    assert all(torch.equal(before[name], p) for name, p in parameters(trainer.policy).items())
    assert not all(torch.equal(critic_before[name], p) for name, p in parameters(trainer.critic).items())
    assert metrics["update/skipped_updates"] == 1.0
    assert metrics["update/optimizer_steps"] == 0.0
    assert trainer.actor_optimizer.moments() == {}
    assert updated(trainer, experience)["update/skipped_updates"] == 0.0
    assert trainer.actor_optimizer.skipped_in_row == 0


def test_case_N07_too_many_skips_in_a_row_raise(model):
    trainer = make_trainer(model, epochs=4, max_skipped_updates=2)
    next(trainer.critic.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(NumericsError, match="3 updates in a row"):
        updated(trainer)


def test_the_learning_rate_factor_multiplies_both_rates(model):
    trainer = make_trainer(model)
    half = updated(trainer, control=CONTROL.model_copy(update={"learning_rate_factor": 0.5}))
    full = updated(make_trainer(model))
    for name in ("update/actor_learning_rate", "update/critic_learning_rate"):
        assert half[name] == pytest.approx(full[name] / 2)


def test_case_N08_without_warm_up_the_first_step_moves_and_the_logged_rate_is_the_one_used(model):
    settings = {"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0}
    trainer = make_trainer(model, actor=settings, epochs=1, mini_batch_rollouts=8, micro_batch_rollouts=8)
    before = parameters(trainer.policy)
    metrics = updated(trainer)
    moved = max(float((p - before[name]).abs().max()) for name, p in parameters(trainer.policy).items())
    assert metrics["update/actor_learning_rate"] == 1e-3
    assert moved == pytest.approx(1e-3, rel=1e-2)  # Adam's first step has the size of the rate.


def test_case_K06_a_learning_rate_of_zero_moves_nothing(model):
    still = {"learning_rate": 0.0, "warmup_steps": 0}
    trainer = make_trainer(model, actor=still, critic=still)
    before = parameters(trainer.policy)
    metrics = updated(trainer)
    assert all(torch.equal(before[name], p) for name, p in parameters(trainer.policy).items())
    assert metrics["update/approx_kl_nats"] < 1e-12


def test_a_kl_over_the_limit_ends_the_update_at_once_and_metrics_say_so(model):
    stop = {"max_kl_nats": 1e-6, "max_clip_fraction": 1.0, "min_mean_abs_advantage": 0.0}
    metrics = updated(make_trainer(model, epoch_stop=stop))
    assert metrics["update/stop_kl"] == 1.0
    assert metrics["update/optimizer_steps"] == 2.0
    assert metrics["update/epochs"] == 1.0


def test_small_advantages_before_whitening_end_the_epochs(model):
    trainer = make_trainer(model, epoch_stop={"max_kl_nats": 9.0, "min_mean_abs_advantage": 0.01})
    experience = random_experience(trainer, random_rollouts())
    flat = ExperienceTensors(**(vars(experience) | {"returns": experience.old_values + 1e-3}))
    metrics = updated(trainer, flat)
    assert metrics["update/stop_small_advantages"] == 1.0
    assert metrics["update/epochs"] == 1.0


PTX = {"enabled": True, "documents_per_update": 2, "max_tokens": 8}


def test_ptx_adds_its_weighted_gradient_to_the_same_step(model):
    """Oracle: a step with the gradient of the update without ptx plus γ times that of the cross-entropy."""
    control = CONTROL.model_copy(update={"ptx_coef": 0.3})
    plain, mixed, reference = sgd_like(model), sgd_like(model, ptx=PTX), sgd_like(model)
    optimizer = torch.optim.AdamW(reference.policy.parameters(), lr=0.1, betas=(0.9, 0.95), eps=1.0, weight_decay=0.0)
    metrics = updated(mixed, documents=DOCUMENTS, control=control)
    total, count = 0.0, 0
    for document in DOCUMENTS[:2]:
        ids = torch.tensor([document])
        logprobs = reference.policy(ids).logits[0, :-1].log_softmax(-1)
        total = total - logprobs.gather(-1, ids[0, 1:, None]).sum()
        count += len(document) - 1
    (0.3 * total / count).backward()
    ptx_gradient = {name: p.grad.clone() for name, p in reference.policy.named_parameters()}
    reference.policy.zero_grad()
    experience = random_experience(reference, random_rollouts())
    captured: dict[str, torch.Tensor] = {}
    for name, parameter in plain.policy.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: captured.__setitem__(name, p.grad.clone()))
    updated(plain, experience)
    for name, parameter in reference.policy.named_parameters():
        parameter.grad = captured[name] + ptx_gradient[name]
    optimizer.step()
    for name, parameter in parameters(reference.policy).items():
        torch.testing.assert_close(parameters(mixed.policy)[name], parameter, rtol=0, atol=2e-6)
    assert metrics["update/ptx_loss"] == pytest.approx(float(total.detach()) / count, rel=1e-5)


def test_ptx_reads_documents_in_order_in_every_kth_step_and_cuts_them(model):
    trainer = make_trainer(model, ptx=PTX | {"every_updates": 2, "documents_per_update": 1})
    control = CONTROL.model_copy(update={"ptx_coef": 0.1})
    assert "update/ptx_loss" in updated(trainer, documents=[[5] * 100, [6, 7]], control=control)
    with pytest.raises(DataError, match="from number 1 on"):
        updated(trainer, documents=[[5, 6]], control=control)


def test_ptx_off_by_its_coefficient_takes_no_documents(model):
    assert "update/ptx_loss" not in updated(make_trainer(model, ptx=PTX))


def test_rows_without_response_tokens_are_refused(model):
    trainer = make_trainer(model)
    experience = random_experience(trainer, random_rollouts())
    rollouts = RolloutTensors(
        **(vars(experience.rollouts) | {"response_mask": experience.rollouts.response_mask.clone()})
    )
    rollouts.response_mask[3] = False
    with pytest.raises(DataError, match="1 of them without response tokens"):
        updated(trainer, ExperienceTensors(**(vars(experience) | {"rollouts": rollouts})))


def test_entropy_bonus_raises_entropy(model):
    def entropy_after(coefficient: float) -> float:
        trainer = make_trainer(model, entropy_coef=coefficient)
        perturb(trainer.policy, scale=0.3)
        experience = random_experience(trainer, random_rollouts())
        updated(trainer, experience)
        return float(trainer.evaluate(experience.rollouts).entropy_nats.sum())

    assert entropy_after(1.0) > entropy_after(0.0)


def test_the_case_has_ragged_lengths():
    assert len(set(LENGTHS)) > 4


def group_trainer(model: Path, kind: str, **changes: Any) -> TorchTrainer:
    """A trainer of an algorithm without a critic, whose one mini-batch holds all rows."""
    optimizer = {"learning_rate": 1e-1, "warmup_steps": 0, "epsilon": 1.0, "max_grad_norm": 1e9}
    settings = ppo(**({"actor": optimizer, "epochs": 1, "mini_batch_rollouts": 8, "micro_batch_rollouts": 8} | changes))
    rollout = {"prompts_per_iteration": 2, "samples_per_prompt": 4, "max_new_tokens": 8}
    algorithm = {"kind": kind, "loss_aggregation": "sequence"}
    return TorchTrainer(run_config(model, rollout=rollout, algorithm=algorithm, ppo=settings), CPU)


@pytest.mark.parametrize("kind", ["grpo", "rloo", "reinforce_plus_plus"])
def test_algorithms_without_a_critic_hold_none_and_move_the_policy(model, kind):
    trainer = group_trainer(model, kind)
    assert trainer.critic is None and trainer.critic_optimizer is None
    start = parameters(trainer.policy)
    metrics = updated(trainer)
    assert max(float((p - start[n]).abs().max()) for n, p in parameters(trainer.policy).items()) > 1e-4
    assert not [name for name in metrics if "critic" in name or "value" in name]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sequence_means_add_up_over_micro_batches_of_unequal_token_counts(model, size):
    whole, cut = group_trainer(model, "grpo"), group_trainer(model, "grpo", micro_batch_rollouts=size)
    updated(whole), updated(cut)
    for name, parameter in parameters(whole.policy).items():
        torch.testing.assert_close(parameter, parameters(cut.policy)[name], rtol=0, atol=1e-6, msg=name)


def test_grpo_of_equal_rewards_moves_nothing_but_by_its_kl(model):
    trainer = group_trainer(model, "grpo", loss_kl={"coef": 0.0})
    experience = random_experience(trainer, random_rollouts())
    start = parameters(trainer.policy)
    flat = ExperienceTensors(**(vars(experience) | {"advantages": torch.zeros_like(experience.advantages)}))
    updated(trainer, flat, control=ControlState(kl_coef=0.05, ptx_coef=0.0))
    for name, parameter in parameters(trainer.policy).items():
        torch.testing.assert_close(parameter, start[name], rtol=0, atol=1e-6, msg=name)


def test_one_epoch_at_ratio_one_is_the_policy_gradient(model):
    """Law: at ratio 1 the clipped objective's gradient is that of the mean of advantage × log-prob."""
    trainer, other = sgd_like(model, loss_kl={"coef": 0.0}), sgd_like(model, loss_kl={"coef": 0.0})
    experience = random_experience(trainer, random_rollouts())
    rollouts, mask = experience.rollouts, experience.rollouts.response_mask
    logprobs, _ = other.response_logprobs(pack_rollouts(rollouts, torch.arange(len(mask))))
    (-(logprobs * experience.advantages[mask]).sum() / mask.sum()).backward()
    other.actor_optimizer.step()
    updated(trainer, experience)
    for name, parameter in parameters(trainer.policy).items():
        torch.testing.assert_close(parameter, parameters(other.policy)[name], rtol=0, atol=1e-6, msg=name)


def test_the_mini_batch_grows_with_its_schedule(model):
    trainer = make_trainer(model, epochs=1, mini_batch_rollouts=4, mini_batch_schedule=[[5, 8]])
    experience = random_experience(trainer, random_rollouts())
    steps = {
        iteration: PpoUpdate(trainer, random_experience(trainer, experience.rollouts), [], CONTROL, iteration=iteration)
        .run(seed=1)["update/optimizer_steps"]
        for iteration in (4, 5)
    }  # fmt: skip
    assert steps == {4: 2.0, 5: 1.0}


def test_case_N06_returns_that_grow_keep_the_normalised_value_loss_bounded_and_values_in_reward_units(model):
    """Returns go from 4 to 20: without normalisation the squared error grows 25-fold, with it the loss stays small."""
    losses: dict[bool, list[float]] = {}
    for is_normalised in (False, True):
        optimizer = {
            "learning_rate": 3e-3,
            "warmup_steps": 0,
            "normalise_values": is_normalised,
            "value_clip_range": 9.0,
        }
        trainer = make_trainer(model, critic=optimizer, epochs=4, mini_batch_rollouts=8, micro_batch_rollouts=8)
        losses[is_normalised] = []
        for level in (4.0, 8.0, 12.0, 16.0, 20.0):
            experience = random_experience(trainer, random_rollouts())
            returns = (level + 0.1 * experience.returns) * experience.rollouts.response_mask
            metrics = updated(trainer, ExperienceTensors(**(vars(experience) | {"returns": returns})))
            losses[is_normalised].append(metrics["update/value_loss"])
    assert max(losses[True]) < 3.0
    assert max(losses[False]) > 10.0
    assert trainer.value_stats.mean == pytest.approx(12.0, abs=0.2)
    values = trainer.evaluate(random_rollouts()).values[random_rollouts().response_mask]
    assert float(values.mean()) == pytest.approx(20.0, abs=4.0)


def test_the_order_of_responses_changes_nothing(model):
    ordered, shuffled = sgd_like(model), sgd_like(model)
    experience = random_experience(ordered, random_rollouts())
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    fields = {name: tensor[order] for name, tensor in vars(experience).items() if isinstance(tensor, torch.Tensor)}
    rollouts = RolloutTensors(**{name: tensor[order] for name, tensor in vars(experience.rollouts).items()})
    metrics = updated(ordered, experience)
    assert updated(shuffled, ExperienceTensors(rollouts, **fields)) == pytest.approx(metrics, rel=1e-5, abs=1e-7)
    assert_equal_models(ordered, shuffled, atol=1e-6)
