"""One update: epochs over an iteration's rollouts, an actor and a critic step for each mini-batch (P1, P3, P5, P7, P9).

PPO trains a critic beside the actor; the other algorithms have none, and differ only in what the advantages are.
The actor's graph and gradients are gone before the critic's are made, so memory holds one model's at a time. Every
decision (skip, stop) is taken on numbers summed over all ranks, so that ranks cannot part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from rlhf_core.config.ppo import PPOConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.optimizer import ScheduledAdamW, StepResult
from rlhf_core.engines.packing import Pack, pack_documents, pack_rollouts
from rlhf_core.engines.protocols import ExperienceTensors
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import DataError, NumericsError
from rlhf_core.numerics.aggregation import token_weights
from rlhf_core.numerics.checks import require_finite
from rlhf_core.numerics.ptx_loss import ptx_loss
from rlhf_core.numerics.reductions import AllReduce, identity
from rlhf_core.numerics.value_loss import clipped_value_loss
from rlhf_core.numerics.value_normalisation import normalise_returns
from rlhf_core.update.actor_loss import ActorBatch, actor_loss, actor_loss_settings
from rlhf_core.update.epoch_stop import epoch_stop_reason, mini_batch_stop_reason
from rlhf_core.update.micro_batching import accumulate, most_over_ranks
from rlhf_core.update.minibatches import micro_batches, mini_batches
from rlhf_core.update.ptx_documents import PtxDocuments
from rlhf_core.update.tally import Tally

_RATIO_TOLERANCE = {"off": 1e-2, "bfloat16": 0.5}
"""Largest |ratio - 1| before the first step, by the precision used: log-probs of bfloat16 move by tenths of a nat."""


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
        all_reduce: AllReduce = identity,
    ) -> None:
        """Prepare; nothing is changed yet.

        Args:
            trainer: its models and optimizers are updated.
            experience: rows of this iteration; every row has response tokens.
            ptx_documents: token lists, consumed in order.
            control: β, `ptx_coef` and the factor on both learning rates.
            iteration: from 1; the mini-batch's size may depend on it (P8).
            all_reduce: sums over ranks.

        Raises:
            NumericsError: an input is NaN or infinite at a response token.
            DataError: there are no rollouts, or one has no response tokens.
        """
        self._trainer, self._control, self._all_reduce = trainer, control, all_reduce
        self._config: PPOConfig = trainer.config.ppo
        self._mini_batch_rollouts = self._config.mini_batch_in(iteration)
        self._loss_settings = actor_loss_settings(trainer.config, control, trainer.vocab_size)
        self._documents = PtxDocuments(ptx_documents, self._config.ptx, control.ptx_coef)
        self._experience = _placed(trainer, experience)
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
            trainer.value_stats = trainer.value_stats.including(self._experience.returns, mask, all_reduce)
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
        mask = self._experience.rollouts.response_mask[rows]
        token_count = float(self._sum(mask.sum()))
        sequence_count = float(self._sum(torch.tensor(len(rows))))
        documents = self._documents.of_step(self._tally.mini_batches)
        ptx_tokens = float(self._sum(torch.tensor(sum(len(document) - 1 for document in documents))))

        def actor(pack: Pack, micro: Tensor) -> dict[str, Tensor]:
            shares = self._token_shares(micro, token_count=token_count, sequence_count=sequence_count)
            return self._actor_backward(pack, micro, shares, token_count)

        parts, ptx_parts = self._accumulated(
            rows, actor, self._trainer.actor_optimizer, documents=documents, ptx_tokens=ptx_tokens
        )
        metrics = self._reduced(parts)
        if is_first:
            self._require_ratio_of_one(metrics["update/ratio_first_deviation"])
        if ptx_parts:
            self._tally.add_means(self._reduced(ptx_parts), ptx_tokens)
        step = self._step(self._trainer.actor_optimizer, "actor")
        if not step.is_skipped:
            self._tally.add_means(metrics, token_count)
        if self._trainer.critic_optimizer is not None:
            critic = partial(self._critic_backward, token_count=token_count)
            value_metrics = self._reduced(self._accumulated(rows, critic, self._trainer.critic_optimizer)[0])
            if not self._step(self._trainer.critic_optimizer, "critic").is_skipped:
                self._tally.add_means(value_metrics, token_count)
        self._tally.mini_batches += 1
        return None if step.is_skipped else metrics["update/approx_kl_nats"]

    def _accumulated(
        self,
        rows: list[int],
        backward: Callable[[Pack, Tensor], dict[str, Tensor]],
        optimizer: ScheduledAdamW,
        *,
        documents: Sequence[Sequence[int]] = (),
        ptx_tokens: float = 0.0,
    ) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        """Gather one model's gradients in micro-batches that fit; the metrics of the rollouts' and of the documents'.

        A try that ran out of memory leaves nothing behind: no gradient, no metric, no count.
        """
        batch, packs = self._trainer.update_batch, list[Pack]()

        def jobs(size: int) -> list[Callable[[], dict[str, Tensor]]]:
            most = most_over_ranks(-(-len(rows) // size), len(self._lengths), self._all_reduce)
            cuts = micro_batches(rows, self._lengths, size, at_least=most)
            micros = [torch.tensor(cut, device=self._trainer.device) for cut in cuts]
            packs[:] = [pack_rollouts(self._experience.rollouts, micro) for micro in micros]
            chunk = max(1, len(documents) * size // batch.configured)
            return [partial(backward, pack, micro) for pack, micro in zip(packs, micros, strict=True)] + [
                partial(self._ptx_backward, documents[start : start + chunk], ptx_tokens)
                for start in range(0, len(documents), chunk)
            ]

        parts = accumulate(
            jobs, batch, discard=optimizer.discard_gradients, all_reduce=self._all_reduce, work="the update"
        )
        self._tally.add_tokens(
            real=sum(sum(pack.lengths) for pack in packs), computed=sum(len(pack.ids) for pack in packs)
        )
        return parts[: len(packs)], parts[len(packs) :]

    def _token_shares(self, micro: Tensor, *, token_count: float, sequence_count: float) -> Tensor:
        """What each of the micro-batch's response tokens counts, `[targets]`: 1, or by the length of its response."""
        mask = self._experience.rollouts.response_mask[micro]
        return token_weights(
            mask,
            self._trainer.config.algorithm.loss_aggregation,
            token_count=token_count,
            sequence_count=sequence_count,
        )[mask].float()

    def _actor_backward(self, pack: Pack, rows: Tensor, shares: Tensor, token_count: float) -> dict[str, Tensor]:
        logprobs, entropy = self._trainer.response_logprobs(pack)
        names = ("old_logprobs", "ref_logprobs", "advantages", "importance")
        batch = ActorBatch(logprobs, entropy, **{name: self._flat(name, rows) for name in names}, shares=shares)
        loss, metrics = actor_loss(batch, self._loss_settings, token_count=token_count)
        own = batch.old_logprobs if self._experience.policy_logprobs is None else self._flat("policy_logprobs", rows)
        metrics["update/ratio_first_deviation"] = (logprobs.detach() - own).expm1().abs().amax().double()
        loss.backward()
        return metrics

    def _ptx_backward(self, documents: Sequence[Sequence[int]], tokens: float) -> dict[str, Tensor]:
        """Add the documents' pretraining loss to the actor's gradients; `tokens` are those of all documents."""
        pack = pack_documents(documents, self._trainer.device)
        logprobs, _ = self._trainer.response_logprobs(pack, temperature=1.0)
        loss, metrics = ptx_loss(logprobs, torch.ones_like(logprobs, dtype=torch.bool), tokens)
        (self._control.ptx_coef * loss).backward()
        return metrics

    def _critic_backward(self, pack: Pack, rows: Tensor, token_count: float) -> dict[str, Tensor]:
        values = self._trainer.response_values(pack)
        everywhere = torch.ones_like(values, dtype=torch.bool)
        stats, old_values = self._trainer.value_stats, self._flat("old_values", rows)
        values, returns = (normalise_returns(x, everywhere, stats) for x in (values, self._flat("returns", rows)))
        # In the critic's own units, which the old values had under the old statistics: so the first step clips nothing.
        old_values = normalise_returns(old_values, everywhere, self._old_value_stats)
        loss, metrics = clipped_value_loss(
            values,
            old_values,
            returns,
            everywhere,
            value_clip_range=self._config.critic.value_clip_range,
            token_count=token_count,
        )
        loss.backward()
        return metrics

    def _step(self, optimizer: ScheduledAdamW, name: str) -> StepResult:
        result = optimizer.step(self._control.learning_rate_factor, self._all_reduce)
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

        All ranks refuse together.
        """
        autocast = self._trainer.autocast
        if not self._sum(torch.tensor(not deviation <= _RATIO_TOLERANCE[autocast])):
            return
        self._trainer.actor_optimizer.discard_gradients()
        raise NumericsError(
            f"before the first step a token's ratio differs from 1 by {deviation:.3g} on this rank; allowed are "
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
        """Before whitening, over the response tokens of all ranks."""
        mask = self._experience.rollouts.response_mask
        size = (self._experience.returns - self._experience.old_values)[mask].abs().double()
        total, count = self._sum(torch.stack([size.sum(), mask.sum().double()])).tolist()
        return total / count

    def _flat(self, name: str, rows: Tensor) -> Tensor:
        """The rows' response tokens of one tensor, in the order of a pack's targets."""
        return getattr(self._experience, name)[rows][self._experience.rollouts.response_mask[rows]]

    def _sum(self, number: Tensor) -> Tensor:
        return self._all_reduce(number.double())

    def _reduced(self, parts: list[dict[str, Tensor]]) -> dict[str, float]:
        """Metrics of all micro-batches and ranks: sums, and the maximum of the two that are no means."""
        result: dict[str, float] = {}
        for name in parts[0]:
            column = torch.stack([part[name] for part in parts])
            is_maximum = name in ("update/ratio_max", "update/ratio_first_deviation")
            result[name] = float(column.max() if is_maximum else self._sum(column.sum()))
        return result


def _placed(trainer: TorchTrainer, experience: ExperienceTensors) -> ExperienceTensors:
    fields = {name: value for name, value in vars(experience).items() if isinstance(value, Tensor)}
    return ExperienceTensors(
        rollouts=trainer.placed(experience.rollouts),
        **{name: tensor.to(trainer.device) for name, tensor in fields.items()},
    )
