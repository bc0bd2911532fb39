"""One update: epochs over an iteration's rollouts, an actor and a critic step for each mini-batch (P1, P3, P5, P7, P9).

PPO trains a critic beside the actor; the other algorithms have none, and differ only in what the advantages are.
The actor's graph and gradients are gone before the critic's are made, so memory holds one model's at a time. Every
decision (skip, stop) is taken on numbers summed over all ranks, so that ranks cannot part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlhf_core.config.ppo import PPOConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.optimizer import ScheduledOptimizer, StepResult
from rlhf_core.engines.packing import Pack, pack_documents, pack_rollouts
from rlhf_core.engines.protocols import ExperienceTensors
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import DataError, NumericsError
from rlhf_core.numerics.aggregation import token_weights
from rlhf_core.numerics.checks import require_finite
from rlhf_core.numerics.ptx_loss import ptx_loss
from rlhf_core.numerics.reductions import SOLO, Ranks
from rlhf_core.numerics.value_loss import clipped_value_loss
from rlhf_core.numerics.value_normalisation import normalise_returns
from rlhf_core.update.actor_loss import ActorBatch, actor_loss, actor_loss_settings
from rlhf_core.update.epoch_stop import epoch_stop_reason, mini_batch_stop_reason
from rlhf_core.update.micro_batching import accumulate
from rlhf_core.update.minibatches import mini_batches, share_rows
from rlhf_core.update.ptx_documents import PtxDocuments, share_documents
from rlhf_core.update.tally import Tally

_RATIO_TOLERANCE = {"off": 1e-2, "bfloat16": 0.5}
"""Largest |ratio - 1| before the first step, by the precision used: log-probs of bfloat16 move by tenths of a nat."""


_MAXIMA = ("update/ratio_max", "update/ratio_first_deviation")


_Part = tuple[dict[str, Tensor], float]
"""A micro-batch's metrics, and what they weigh."""


@dataclass(frozen=True)
class _MicroBatch:
    """What one forward pass sees; without weight it counts nothing."""

    pack: Pack
    rows: Tensor
    weight: float


class PpoUpdate:
    """One update in progress."""

    def __init__(
        self,
        trainer: TorchTrainer,
        experience: ExperienceTensors,
        ptx_documents: Sequence[Sequence[int]],
        control: ControlState,
        *,
        iteration: int = 1,
        ranks: Ranks = SOLO,
    ) -> None:
        """Prepare; nothing is changed yet.

        Args:
            trainer: its models and optimizers are updated.
            experience: all rows of this iteration, the same on every rank; every row has response tokens.
            ptx_documents: token lists, consumed in order.
            control: β, `ptx_coef` and the factor on both learning rates.
            iteration: from 1; the mini-batch's size may depend on it (P8).
            ranks: each takes its share of every mini-batch's rows.

        Raises:
            NumericsError: an input is NaN or infinite at a response token.
            DataError: there are no rollouts, or one has no response tokens.
        """
        self._trainer, self._control, self._ranks = trainer, control, ranks
        self._config: PPOConfig = trainer.config.ppo
        self._mini_batch_rollouts = self._config.mini_batch_in(iteration)
        self._loss_settings = actor_loss_settings(trainer.config, control, trainer.vocab_size)
        self._documents = PtxDocuments(ptx_documents, self._config.ptx, control.ptx_coef)
        self._experience = trainer.placed_experience(experience)
        mask = self._experience.rollouts.response_mask
        if not len(mask) or not bool(mask.any(dim=1).all()):
            raise DataError(
                f"the experience has {len(mask)} rollouts, {int((~mask.any(dim=1)).sum())} of them without response "
                "tokens. Leave such rows out when experience is built; without any row there is nothing to learn from."
            )
        for name in ("old_logprobs", "ref_logprobs", "old_values", "advantages", "returns", "importance"):
            require_finite(name, getattr(self._experience, name), mask)
        self._lengths: list[int] = (self._experience.rollouts.prompt_mask.sum(dim=1) + mask.sum(dim=1)).tolist()
        self._tally = Tally()
        self._out_of_memory_before = trainer.update_batch.out_of_memory_count
        self._old_value_stats = trainer.value_stats
        if self._config.critic.normalise_values and trainer.critic is not None:
            trainer.value_stats = trainer.value_stats.including(self._experience.returns, mask)
        for optimizer in (trainer.actor_optimizer, trainer.critic_optimizer):
            if optimizer is not None:
                optimizer.note_stall(control.is_reward_stalled)

    def run(self, *, seed: int) -> dict[str, float]:
        """Do all epochs and return metrics named `update/…`.

        Raises:
            NumericsError: the first mini-batch's ratio is not 1, or too many gradients in a row were not finite.
        """
        reason, epoch = None, 0
        while reason is None:
            self._tally.start_epoch()
            for rows in mini_batches(self._lengths, self._mini_batch_rollouts, seed=seed, epoch=epoch):
                is_first = self._tally.mini_batches == 0
                kl_nats = self._mini_batch(rows, is_first=is_first)
                reason = None if kl_nats is None else mini_batch_stop_reason(kl_nats, self._config.epoch_stop)
                if reason is not None:
                    break
            epoch += 1
            reason = reason or self._epoch_stop(epoch)
        batch = self._trainer.update_batch
        return self._tally.metrics(epochs=epoch, stop_reason=reason) | {
            "update/micro_batch_rollouts": float(batch.size),
            "update/out_of_memory_count": float(batch.out_of_memory_count - self._out_of_memory_before),
        }

    def _mini_batch(self, rows: list[int], *, is_first: bool) -> float | None:
        """Step actor, then critic; KL(old‖new) per token before the step, None where the actor's step was refused."""
        token_count = float(self._experience.rollouts.response_mask[rows].sum())
        documents = self._documents.of_step(self._tally.mini_batches)
        ptx_tokens = float(sum(len(document) - 1 for document in documents))
        actor, critic = self._trainer.actor_optimizer, self._trainer.critic_optimizer

        def backward(micro: _MicroBatch) -> _Part:
            metrics = self._actor_backward(micro, token_count=token_count, sequence_count=len(rows))
            return metrics, micro.weight

        parts, ptx_parts = self._accumulated(rows, backward, actor, documents=documents, ptx_tokens=ptx_tokens)
        metrics = self._reduced(parts)
        if is_first:
            self._require_ratio_of_one(metrics["update/ratio_first_deviation"])
        if ptx_parts:
            self._tally.add_means(self._reduced(ptx_parts), ptx_tokens)
        step = self._step(actor, "actor")
        if not step.is_skipped:
            self._tally.add_means(metrics, token_count)
        if critic is not None:
            value = partial(self._critic_backward, critic, token_count=token_count)
            value_metrics = self._reduced(self._accumulated(rows, value, critic)[0])
            if not self._step(critic, "critic").is_skipped:
                self._tally.add_means(value_metrics, token_count)
        self._tally.mini_batches += 1
        return None if step.is_skipped else metrics["update/approx_kl_nats"]

    def _accumulated(
        self,
        rows: list[int],
        backward: Callable[[_MicroBatch], _Part],
        optimizer: ScheduledOptimizer,
        *,
        documents: Sequence[Sequence[int]] = (),
        ptx_tokens: float = 0.0,
    ) -> tuple[list[_Part], list[_Part]]:
        """Gather one model's gradients in micro-batches that fit; the metrics of the rollouts' and of the documents'.

        A try that ran out of memory leaves nothing behind: no gradient, no metric, no count.
        """
        batch, micros = self._trainer.update_batch, list[_MicroBatch]()

        def jobs(size: int) -> list[Callable[[], _Part]]:
            micros[:] = self._micro_batches(rows, size)
            chunk = max(1, len(documents) * size // batch.configured)
            general = share_documents(documents, chunk, self._ranks)
            return [partial(backward, micro) for micro in micros] + [
                partial(self._ptx_backward, part, weight, ptx_tokens) for part, weight in general
            ]

        parts = accumulate(
            jobs, batch, discard=optimizer.discard_gradients, all_reduce=self._ranks.all_reduce, work="the update"
        )
        for micro in micros:
            real = sum(micro.pack.lengths) if micro.weight else 0
            self._tally.add_tokens(real=real, computed=len(micro.pack.ids))
        return parts[: len(micros)], parts[len(micros) :]

    def _micro_batches(self, rows: list[int], size: int) -> list[_MicroBatch]:
        """This rank's share of a mini-batch; a rank without rows of its own runs one without weight."""
        ranks = self._ranks
        found: list[_MicroBatch] = []
        for own in share_rows(rows, self._lengths, size, ranks.count)[ranks.number]:
            chosen = torch.tensor(own or rows[:1], device=self._trainer.device)
            pack = pack_rollouts(self._experience.rollouts, chosen)
            found.append(_MicroBatch(pack, chosen, weight=float(len(own) > 0)))
        return found

    def _token_shares(self, micro: Tensor, *, token_count: float, sequence_count: float) -> Tensor:
        """What each of the micro-batch's response tokens counts, `[targets]`: 1, or by the length of its response."""
        mask = self._experience.rollouts.response_mask[micro]
        return token_weights(
            mask,
            self._trainer.config.algorithm.loss_aggregation,
            token_count=token_count,
            sequence_count=sequence_count,
        )[mask].float()

    def _actor_backward(self, micro: _MicroBatch, *, token_count: float, sequence_count: float) -> dict[str, Tensor]:
        rows = micro.rows
        shares = self._token_shares(rows, token_count=token_count, sequence_count=sequence_count)
        logprobs, entropy = self._trainer.response_logprobs(micro.pack)
        names = ("old_logprobs", "ref_logprobs", "advantages", "importance")
        batch = ActorBatch(logprobs, entropy, **{name: self._flat(name, rows) for name in names}, shares=shares)
        loss, metrics = actor_loss(batch, self._loss_settings, token_count=token_count)
        own = batch.old_logprobs if self._experience.policy_logprobs is None else self._flat("policy_logprobs", rows)
        metrics["update/ratio_first_deviation"] = (logprobs.detach() - own).expm1().abs().amax().double()
        self._trainer.actor_optimizer.backward(micro.weight * loss)
        return metrics

    def _ptx_backward(self, documents: Sequence[Sequence[int]], weight: float, tokens: float) -> _Part:
        """Add the documents' pretraining loss to the actor's gradients; `tokens` are those of all documents."""
        pack = pack_documents(documents, self._trainer.device)
        logprobs, _ = self._trainer.response_logprobs(pack, temperature=1.0)
        loss, metrics = ptx_loss(logprobs, torch.ones_like(logprobs, dtype=torch.bool), tokens)
        self._trainer.actor_optimizer.backward(weight * self._control.ptx_coef * loss)
        return metrics, weight

    def _critic_backward(self, optimizer: ScheduledOptimizer, micro: _MicroBatch, *, token_count: float) -> _Part:
        rows, values = micro.rows, self._trainer.response_values(micro.pack)
        everywhere = torch.ones_like(values, dtype=torch.bool)
        stats, old_values = self._trainer.value_stats, self._flat("old_values", rows)
        values, returns = (normalise_returns(x, everywhere, stats) for x in (values, self._flat("returns", rows)))
        # In the critic's own units, which the old values had under the old statistics: so the first step clips nothing.
        old_values = normalise_returns(old_values, everywhere, self._old_value_stats)
        clip_range = self._config.critic.value_clip_range
        loss, metrics = clipped_value_loss(
            values, old_values, returns, everywhere, value_clip_range=clip_range, token_count=token_count
        )
        optimizer.backward(micro.weight * loss)
        return metrics, micro.weight

    def _step(self, optimizer: ScheduledOptimizer, name: str) -> StepResult:
        result = optimizer.step(self._control.learning_rate_factor, self._ranks.all_reduce)
        self._tally.add_step(name, result)
        if optimizer.skipped_in_row > self._config.max_skipped_updates:
            raise NumericsError(
                f"the {name}'s gradient was NaN or infinite in {optimizer.skipped_in_row} updates in a row "
                f"(ppo.max_skipped_updates={self._config.max_skipped_updates}); its parameters are as before them. "
                f"Lower ppo.{name}.learning_rate, or look at the rewards; the run goes on from the last checkpoint."
            )
        return result

    def _require_ratio_of_one(self, deviation: float) -> None:
        """P1: before the first step the policy is the one that the trainer's log-probs in the experience are of.

        The deviation is the largest of all ranks, so they refuse together.
        """
        autocast = self._trainer.autocast
        if deviation <= _RATIO_TOLERANCE[autocast]:
            return
        self._trainer.actor_optimizer.discard_gradients()
        raise NumericsError(
            f"before the first step a token's ratio differs from 1 by {deviation:.3g}; allowed are "
            f"{_RATIO_TOLERANCE[autocast]} (autocast {autocast}). Likely the old log-probs are of another policy or "
            f"temperature than the trainer's ({self._trainer.temperature}, rollout.temperature), or another "
            "precision than model.autocast. Build the experience anew from this policy."
        )

    def _epoch_stop(self, epochs_done: int) -> str | None:
        kl_nats, clip_fraction = (
            self._tally.epoch_mean(name, default=0.0) for name in ("update/approx_kl_nats", "update/clip_fraction")
        )
        return epoch_stop_reason(
            kl_nats=kl_nats,
            clip_fraction=clip_fraction,
            mean_abs_advantage=self._mean_abs_advantage(),
            epochs_done=epochs_done,
            max_epochs=self._config.epochs,
            limits=self._config.epoch_stop,
        )

    def _mean_abs_advantage(self) -> float:
        """Before whitening, over all response tokens."""
        mask = self._experience.rollouts.response_mask
        size = (self._experience.returns - self._experience.old_values)[mask].abs().double()
        return float(size.mean())

    def _flat(self, name: str, rows: Tensor) -> Tensor:
        """The rows' response tokens of one tensor, in the order of a pack's targets."""
        return getattr(self._experience, name)[rows][self._experience.rollouts.response_mask[rows]]

    def _reduced(self, parts: list[_Part]) -> dict[str, float]:
        """Metrics of all micro-batches (with their weights) and ranks: sums, and the maximum of those no means."""
        columns = {name: torch.stack([weight * part[name] for part, weight in parts]) for name in parts[0][0]}
        maxima = {name: self._ranks.maximum(columns.pop(name).max()) for name in _MAXIMA if name in columns}
        sums = self._ranks.all_reduce(torch.stack([column.sum().double() for column in columns.values()]))
        return dict(zip(columns, sums.tolist(), strict=True)) | maxima
