"""The trainer against Hugging Face's own padded forward, and the laws of packing."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from rlhf_core.engines.packing import pack_rollouts
from rlhf_core.engines.protocols import RolloutTensors
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import ConfigError
from rlhf_core.numerics import head_matmul
from tests.rlhf_core.engines.trainer_case import CPU, perturb, ppo, random_rollouts, run_config
from tests.tiny_model import make_tiny_model

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> TorchTrainer:
    model = make_tiny_model(tmp_path_factory.mktemp("trainer") / "model")
    rollout = {"prompts_per_iteration": 8, "max_new_tokens": 8, "temperature": TEMPERATURE}
    made = TorchTrainer(run_config(model, rollout=rollout, ppo=ppo(micro_batch_rollouts=2)), CPU)
    perturb(made.policy)
    perturb(made.critic)
    return made


@torch.no_grad()
def padded_opinion(trainer: TorchTrainer, rollouts: RolloutTensors) -> dict[str, torch.Tensor]:
    """Oracle: one padded batch through Hugging Face's forward with attention mask and positions; full logits."""
    ids = torch.cat([rollouts.prompt_ids, rollouts.response_ids], dim=1)
    mask = torch.cat([rollouts.prompt_mask, rollouts.response_mask], dim=1).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    width, response = rollouts.prompt_ids.shape[1], rollouts.response_ids
    distributions = [
        torch.distributions.Categorical(logits=model(**inputs).logits[:, width - 1 : -1].double() / TEMPERATURE)
        for model in (trainer.policy, trainer.reference)
    ]
    hidden = trainer.critic.body(**inputs).last_hidden_state
    values = trainer.critic.head(hidden).squeeze(-1)
    last = width + rollouts.response_mask.sum(1) - 1
    policy, reference = distributions
    return {
        "logprobs": policy.log_prob(response),
        "ref_logprobs": reference.log_prob(response),
        "entropy_nats": policy.entropy(),
        "kl_exact_nats": torch.distributions.kl_divergence(policy, reference),
        "values": values[:, width - 1 : -1],
        "bootstrap_values": values.gather(1, last[:, None]).squeeze(1),
    }


def test_packed_evaluation_equals_the_padded_forward_of_the_library(trainer):
    rollouts = random_rollouts()
    said, oracle = trainer.evaluate(rollouts), padded_opinion(trainer, rollouts)
    mask = rollouts.response_mask
    for name, expected in oracle.items():
        found = getattr(said, name)
        if found.ndim == 1:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(found[mask].double(), expected[mask].double(), rtol=1e-4, atol=1e-5)
            assert not found[~mask].any()


def test_policy_and_reference_differ_in_this_trial(trainer):
    assert trainer.evaluate(random_rollouts()).kl_exact_nats.max() > 1e-3


def test_case_E07_a_row_alone_and_among_others_padded_left_or_right_says_the_same(trainer):
    together = trainer.evaluate(random_rollouts())
    for padding in ({"extra_left": 7}, {"extra_right": 7}):
        padded = random_rollouts(**padding)
        said = trainer.evaluate(padded)
        for row, (prompt, response) in enumerate(
            zip(padded.prompt_mask.sum(1), padded.response_mask.sum(1), strict=True)
        ):
            alone = trainer.evaluate(
                RolloutTensors(
                    padded.prompt_ids[row : row + 1, -prompt:],
                    padded.prompt_mask[row : row + 1, -prompt:],
                    padded.response_ids[row : row + 1, :response],
                    padded.response_mask[row : row + 1, :response],
                )
            )
            for name in ("logprobs", "ref_logprobs", "values", "entropy_nats"):
                first = getattr(together, name)[row, :response]
                torch.testing.assert_close(getattr(said, name)[row, :response], first, rtol=0, atol=1e-5)
                torch.testing.assert_close(getattr(alone, name)[0], first, rtol=0, atol=1e-5)
            torch.testing.assert_close(alone.bootstrap_values[0], together.bootstrap_values[row], rtol=0, atol=1e-5)


def test_case_E02_what_fills_the_padding_does_not_matter(trainer):
    eos = trainer.tokenizer.eos_token_id
    plain, filled = (trainer.evaluate(random_rollouts(filler=filler)) for filler in (0, eos))
    assert torch.equal(plain.logprobs, filled.logprobs)
    assert torch.equal(plain.values, filled.values)


def test_training_passes_agree_with_evaluation(trainer):
    rollouts = random_rollouts()
    said, mask = trainer.evaluate(rollouts), rollouts.response_mask
    pack = pack_rollouts(rollouts, torch.arange(len(mask)))
    with trainer.training():
        logprobs, entropy = trainer.response_logprobs(pack)
        values = trainer.response_values(pack)
    torch.testing.assert_close(logprobs, said.logprobs[mask], rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, said.entropy_nats[mask], rtol=0, atol=1e-5)
    torch.testing.assert_close(values, said.values[mask], rtol=0, atol=1e-5)


def test_gradient_checkpointing_changes_no_gradient(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    gradients = []
    for is_on in (False, True):
        made = TorchTrainer(run_config(model, model={"policy": str(model), "gradient_checkpointing": is_on}), CPU)
        with made.training():
            logprobs, _ = made.response_logprobs(pack_rollouts(random_rollouts(), torch.arange(8)))
            logprobs.sum().backward()
        assert not made.policy.training
        gradients.append([p.grad for p in made.policy.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-5, atol=1e-6)


def test_bfloat16_autocast_stays_near_float32_and_keeps_float32_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: True)
    model = make_tiny_model(tmp_path / "model")
    exact, rough = (
        TorchTrainer(
            run_config(model, model={"policy": str(model), "autocast": autocast, "reference_dtype": dtype}), CPU
        )
        for autocast, dtype in (("off", "float32"), ("bfloat16", "bfloat16"))
    )
    first, second = (made.evaluate(random_rollouts()) for made in (exact, rough))
    torch.testing.assert_close(first.logprobs, second.logprobs, rtol=0, atol=0.05)
    torch.testing.assert_close(first.ref_logprobs, second.ref_logprobs, rtol=0, atol=0.05)
    assert not torch.equal(first.logprobs, second.logprobs)
    assert {p.dtype for p in rough.policy.parameters()} == {torch.float32}
    assert {p.dtype for p in rough.reference.parameters()} == {torch.bfloat16}


def test_on_a_cpu_that_only_emulates_bfloat16_autocast_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: False)
    model = make_tiny_model(tmp_path / "model")
    exact, asked = (
        TorchTrainer(run_config(model, model={"policy": str(model), "autocast": autocast}), CPU)
        for autocast in ("off", "bfloat16")
    )
    assert asked.autocast == "off"
    for name, tensor in vars(exact.evaluate(random_rollouts())).items():
        assert torch.equal(tensor, getattr(asked.evaluate(random_rollouts()), name)), name


def test_the_critic_starts_at_zero_and_holds_no_language_model_head(tmp_path):
    made = TorchTrainer(run_config(make_tiny_model(tmp_path / "model")), CPU)
    assert not made.evaluate(random_rollouts()).values.any()
    assert not any("lm_head" in name for name, _ in made.critic.named_parameters())


def test_an_architecture_that_caps_its_logits_is_refused(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    capped = Gemma2Config(
        vocab_size=346, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, final_logit_softcapping=1e-3, attn_logit_softcapping=None,
    )  # fmt: skip
    Gemma2ForCausalLM(capped).save_pretrained(model)
    with pytest.raises(ConfigError, match="changes its logits"):
        TorchTrainer(run_config(model), CPU)


def test_a_second_family_of_models_trains_packed_too(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    config = GPTNeoXConfig(
        vocab_size=346, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    GPTNeoXForCausalLM(config).save_pretrained(model)
    made = TorchTrainer(run_config(model), CPU)
    assert torch.isfinite(made.evaluate(random_rollouts()).logprobs).all()


def test_a_critic_without_a_rate_of_its_own_steps_with_five_times_the_actors(tmp_path):
    rates = ppo(actor={"learning_rate": 1e-4, "warmup_steps": 0}, critic={"warmup_steps": 0})
    trainer = TorchTrainer(run_config(make_tiny_model(tmp_path / "model"), ppo=rates), CPU)
    assert trainer.actor_optimizer.learning_rate() == pytest.approx(1e-4)
    assert trainer.critic_optimizer.learning_rate() == pytest.approx(5e-4)
