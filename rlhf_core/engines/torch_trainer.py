"""One training rank in plain torch: policy, critic, frozen reference and two optimizers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from rlhf_core.config.run import RunConfig
from rlhf_core.data.store import RunFolder
from rlhf_core.engines.memory import BatchSize, in_batches
from rlhf_core.engines.optimizer import ScheduledAdamW, ScheduledOptimizer
from rlhf_core.engines.packing import Pack, pack_rollouts
from rlhf_core.engines.protocols import ExperienceTensors, RolloutEvaluation, RolloutTensors
from rlhf_core.errors import ConfigError
from rlhf_core.models.loading import load_critic, load_policy, load_reference, load_tokenizer
from rlhf_core.models.packed_attention import body_hidden
from rlhf_core.models.precision import Autocast, autocast_context, effective_autocast
from rlhf_core.models.scoring import PolicyScorer, ValueScorer, model_body, model_head
from rlhf_core.numerics.kl import compare_with_reference
from rlhf_core.numerics.running_stats import RunningStats
from rlhf_core.numerics.value_normalisation import denormalise_values

_PROBE_TOLERANCE_NATS = 1e-3


class TorchTrainer:
    """Holds the models and computes with them; what an update does with the results is not known here.

    Dropout is off everywhere and models are in eval mode, so a log-prob computed twice is the same (F6).
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        """Load all models in the state of the SFT model.

        Raises:
            ConfigError: a model cannot be loaded, or does something to its logits that training would miss.
        """
        self.config, self.device = config, device
        self.temperature = config.rollout.temperature
        self.policy = load_policy(config.model.policy, config.model, device)
        self.reference = load_reference(config.model.policy, config.model, device)
        self.critic = load_critic(_critic_source(config), config.model, device) if config.algorithm.has_critic else None
        self.tokenizer = load_tokenizer(config.model)
        autocast = config.model.autocast
        self._policy_scorer: Any = PolicyScorer(self.policy, autocast)
        self._value_scorer: Any = None if self.critic is None else ValueScorer(self.critic, autocast)
        self.vocab_size = model_head(self.policy).shape[0]
        """Rows of the language-model head."""
        _require_plain_logits(self.policy, device)
        self.actor_optimizer, self.critic_optimizer = self._make_optimizers()
        self.value_stats = RunningStats()
        """Of the returns that the critic was trained on; stays empty unless values are normalised (A6)."""
        self.update_batch, self.evaluation_batch = (BatchSize(config.ppo.micro_batch_rollouts) for _ in range(2))
        """Rollouts per pass of an update, and of an evaluation, which needs less memory (F4)."""

    def _make_optimizers(self) -> tuple[ScheduledOptimizer, ScheduledOptimizer | None]:
        """Of policy and critic."""
        steps, width = self.config.optimizer_steps, self.hidden_size
        actor = ScheduledAdamW(self.policy, self.config.ppo.actor, total_steps=steps, hidden_size=width)
        if self.critic is None:
            return actor, None
        settings = self.config.ppo.critic_optimizer
        return actor, ScheduledAdamW(self.critic, settings, total_steps=steps, hidden_size=width)

    @property
    def hidden_size(self) -> int:
        """Width of the policy."""
        return cast(int, self.policy.config.get_text_config().hidden_size)

    @contextmanager
    def whole(self, *, modify: bool = False) -> Generator[None]:
        """Every parameter of policy and critic is here in full, for work outside an update.

        Args:
            modify: what is written into them meanwhile counts from then on.
        """
        yield

    @property
    def autocast(self) -> Autocast:
        """The precision that the products really run in."""
        return effective_autocast(self.device, self.config.model.autocast)

    def response_logprobs(self, pack: Pack, *, temperature: float | None = None) -> tuple[Tensor, Tensor]:
        """Return `(logprobs, entropy)` of the pack's targets, `[targets]` float32, nats; both carry gradients."""
        return self._policy_scorer(pack, self.temperature if temperature is None else temperature)

    def response_values(self, pack: Pack) -> Float[Tensor, " targets"]:
        """Return the critic's value before each target, in reward units; carries gradients. 0 without a critic."""
        return self._values(pack)[pack.predictors]

    @torch.no_grad()
    def evaluate(self, rollouts: RolloutTensors) -> RolloutEvaluation:
        """Return what the models say of the rollouts, at the rollout temperature (K01)."""
        with self.whole():
            return self._evaluate(rollouts)

    def _evaluate(self, rollouts: RolloutTensors) -> RolloutEvaluation:
        mask = rollouts.response_mask.cpu()
        results = {name: torch.zeros(mask.shape) for name in ("logprobs", "ref_logprobs", "entropy", "kl", "values")}
        bootstrap = torch.zeros(mask.shape[0])
        on_device = self.placed(rollouts)

        def evaluate_rows(chosen_rows: range) -> None:
            rows = torch.arange(chosen_rows.start, chosen_rows.stop)
            pack = pack_rollouts(on_device, rows.to(self.device), with_last=True)
            values = self._values(pack)
            with self._autocast():
                hidden, ref_hidden = (
                    body_hidden(model_body(model), pack.ids, pack.positions, pack.lengths)[pack.predictors]
                    for model in (self.policy, self.reference)
                )
                heads = (model_head(self.policy), model_head(self.reference))
                said = compare_with_reference(hidden, ref_hidden, heads, pack.targets, temperature=self.temperature)
            columns = (said.logprobs, said.ref_logprobs, said.entropy_nats, said.kl_exact_nats, values[pack.predictors])
            for result, column in zip(results.values(), columns, strict=True):
                chosen = torch.zeros(mask[rows].shape)
                chosen[mask[rows]] = column.float().cpu()
                result[rows] = chosen
            bootstrap[rows] = values[pack.ends].float().cpu()

        in_batches(len(mask), self.evaluation_batch, evaluate_rows, work="evaluating rollouts")
        return RolloutEvaluation(
            logprobs=results["logprobs"],
            ref_logprobs=results["ref_logprobs"],
            entropy_nats=results["entropy"],
            kl_exact_nats=results["kl"],
            values=results["values"],
            bootstrap_values=bootstrap,
        )

    @contextmanager
    def training(self) -> Generator[None]:
        """Mark the models as training where activations are recomputed: transformers does that in train mode alone."""
        models: list[Any] = [self.policy] if self.critic is None else [self.policy, self.critic]
        for model in models:
            model.train(self.config.model.gradient_checkpointing)
        try:
            yield
        finally:
            for model in models:
                model.eval()

    def placed(self, rollouts: RolloutTensors) -> RolloutTensors:
        """The rollouts on this rank's device."""
        return RolloutTensors(**{name: tensor.to(self.device) for name, tensor in vars(rollouts).items()})

    def placed_experience(self, experience: ExperienceTensors) -> ExperienceTensors:
        """The same on this rank's device."""
        fields = {name: value for name, value in vars(experience).items() if isinstance(value, Tensor)}
        return ExperienceTensors(
            rollouts=self.placed(experience.rollouts),
            **{name: tensor.to(self.device) for name, tensor in fields.items()},
        )

    def _values(self, pack: Pack) -> Float[Tensor, " tokens"]:
        """The critic's value after each token of the pack; 0 without a critic."""
        if self.critic is None:
            return torch.zeros(len(pack.ids), device=self.device)
        return denormalise_values(self._value_scorer(pack), self.value_stats)

    def _autocast(self) -> torch.autocast:
        return autocast_context(self.device, self.config.model.autocast)


def _critic_source(config: RunConfig) -> str | Path:
    """What the critic starts from (A6)."""
    if config.model.critic_init == "policy":
        return config.model.policy
    return config.reward_model.path or RunFolder(config.folder).reward_model / "model"


@torch.no_grad()
def _require_plain_logits(policy: PreTrainedModel, device: torch.device) -> None:
    """Compare packed hidden states × head with the model's own forward on a few tokens.

    Raises:
        ConfigError: they differ: the architecture scales or caps its logits, or does not follow the positions given.
    """
    vocab = model_head(policy).shape[0]
    first, second = ([(7 * i + start) % vocab for i in range(4)] for start in (1, 3))
    ids = torch.tensor(first + second, device=device)
    positions = torch.tensor([*range(4), *range(4)], device=device)
    hidden = body_hidden(model_body(policy), ids, positions, (4, 4))
    packed = (hidden @ model_head(policy).T).log_softmax(dim=-1)
    everywhere = torch.ones(2, 4, dtype=torch.long, device=device)
    padded = cast(Any, policy)(ids.view(2, 4), attention_mask=everywhere).logits.log_softmax(dim=-1)
    gap = float((packed.view_as(padded) - padded).abs().max())
    if not gap <= _PROBE_TOLERANCE_NATS:
        raise ConfigError(
            f"{type(policy).__name__}: log-probs from hidden states differ by {gap:.3g} nats from the model's own: "
            "this architecture changes its logits after the head, or its positions. Training supports plain heads only "
            "(Llama, Qwen, …)."
        )
