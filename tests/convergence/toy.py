"""A policy whose whole distribution can be written down: 8 tokens, responses of exactly 3, so 512 sequences.

The KL-regularised optimum for a reward r and a coefficient β is pi*(y) ∝ pi_ref(y) · exp(r(y) / β).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.protocols import GenerationRequest, RolloutTensors, Sampling
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.experience.build import Estimation, Judgement, build_experience
from rlhf_core.models.loading import load_tokenizer
from rlhf_core.workers.inline import InlineWorkers
from tests.rlhf_core.engines.trainer_case import learnt_from

VOCAB, LENGTH = 8, 3
PROMPT = (1, 2)
SEQUENCES = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
"""`[512, 3]`, in the order of `index_of`."""


def index_of(responses: Tensor) -> Tensor:
    """The place of each response `[batch, 3]` in `SEQUENCES`."""
    return responses @ torch.tensor([VOCAB * VOCAB, VOCAB, 1])


def make_toy_model(folder: Path) -> Path:
    """Write a random Llama over 8 tokens; its logits are spread enough that the reference is not uniform."""
    words = {f"t{i}": i for i in range(VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")), eos_token="t7", pad_token="t7"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=16,
            tie_word_embeddings=False,
            initializer_range=0.15,
            bos_token_id=1,
            eos_token_id=7,
            pad_token_id=7,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def reward_table() -> Tensor:
    """A fixed reward for each of the 512 sequences, float64, mean 0 and standard deviation 1.

    A sum of what each token and each pair of neighbours is worth.
    """
    draw = torch.Generator().manual_seed(5)
    by_place = torch.randn(LENGTH, VOCAB, generator=draw, dtype=torch.float64)
    by_pair = torch.randn(VOCAB, VOCAB, generator=draw, dtype=torch.float64)
    first, second, third = SEQUENCES.T
    rewards = by_place[0, first] + by_place[1, second] + by_place[2, third]
    rewards = rewards + 0.5 * (by_pair[first, second] + by_pair[second, third])
    return (rewards - rewards.mean()) / rewards.std(correction=0)


@torch.no_grad()
def log_probabilities(policy: Any) -> Tensor:
    """`[512]` float64: log pi(y) of every sequence after the prompt."""
    ids = torch.cat([torch.tensor(PROMPT).expand(len(SEQUENCES), -1), SEQUENCES], dim=1)
    logprobs = policy(input_ids=ids).logits[:, len(PROMPT) - 1 : -1].double().log_softmax(dim=-1)
    return logprobs.gather(2, SEQUENCES[:, :, None]).squeeze(2).sum(dim=1)


@dataclass
class Toy:
    """A run on the toy policy; `beta` never changes."""

    config: RunConfig
    beta: float
    rewards: Tensor
    group_size: int
    rollouts_per_update: int

    def __post_init__(self) -> None:
        self.workers = InlineWorkers(self.config, torch.device("cpu"))
        policy = self.workers.policy_model()
        self.reference = log_probabilities(policy)
        self.engine = TransformersRollout(
            policy, load_tokenizer(self.config.model), batch_size=self.rollouts_per_update
        )
        self.engine.eos_ids = frozenset()

    def distance(self) -> float:
        """Exact KL(pi‖pi*), in nats."""
        optimum = (self.reference + self.rewards / self.beta).log_softmax(dim=0)
        logprobs = log_probabilities(self.workers.policy_model())
        return float((logprobs.exp() * (logprobs - optimum)).sum())

    def update(self, number: int) -> None:
        """Sample, judge, and learn once through the product's own code."""
        count = self.rollouts_per_update
        requests = [GenerationRequest(PROMPT, seed=number * count + row) for row in range(count)]
        sampled = self.engine.generate(requests, Sampling(max_new_tokens=LENGTH, temperature=1.0))
        responses = torch.tensor([generation.response_ids for generation in sampled])
        everywhere = torch.ones_like(responses, dtype=torch.bool)
        prompts = torch.tensor(PROMPT).expand(count, -1)
        rollouts = RolloutTensors(prompts, torch.ones_like(prompts, dtype=torch.bool), responses, everywhere)
        said = self.workers.evaluate_rollouts(rollouts)
        judged = Judgement(
            scores=self.rewards[index_of(responses)].float(),
            is_truncated=torch.zeros(count, dtype=torch.bool),
            group_ids=torch.arange(count) // self.group_size,
        )
        how = Estimation(kl_coef=self.beta, iteration=number + 1, config=self.config)
        built, _ = build_experience(said, judged, everywhere, how)
        experience = learnt_from(rollouts, said, built.advantages, built.returns)
        control = ControlState(kl_coef=self.beta, ptx_coef=0.0)
        self.workers.update(experience, [], control, iteration=number + 1, seed=number)


def toy_run(model: Path, kind: str, *, updates: int, rollouts: int, algorithm: dict[str, Any]) -> RunConfig:
    """Settings under which nothing but β holds the policy back: no rescaled reward, no limits, no early stops."""
    optimizer = {"warmup_steps": 5, "max_grad_norm": 1.0, "floor_fraction": 0.02}
    return RunConfig.model_validate(
        {
            "name": "toy",
            "rounds": 1,
            "iterations_per_round": updates,
            "data": {"prompts": [{"path": "none"}]},
            "model": {"policy": str(model)},
            "reward": {"scorer": "callable", "callable": {"path": "math:sqrt"}},
            "rollout": {
                "prompts_per_iteration": rollouts // 8,
                "samples_per_prompt": 8,
                "max_new_tokens": LENGTH,
                "min_response_tokens": 1,
            },
            "algorithm": {"kind": kind, "kl_placement": "reward", **algorithm},
            "ppo": {
                "actor": {"learning_rate": 1e-2, **optimizer},
                "critic": {"learning_rate": 1e-2, "value_clip_range": 100.0, **optimizer},
                "epochs": 2,
                "mini_batch_rollouts": rollouts,
                "micro_batch_rollouts": rollouts,
                "ptx": {"enabled": False},
                "loss_kl": {"coef": 0.0},
                "kl_shaping": {"token_limit_nats": None},
                "epoch_stop": {"max_kl_nats": 1e3, "max_clip_fraction": 1.0, "min_mean_abs_advantage": 0.0},
            },
        }
    )
