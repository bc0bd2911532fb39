"""AdamW whose states, gradients or parameters DeepSpeed shards over ranks (ZeRO 0 to 3), seen as one optimizer.

Moments go out and come in as whole tensors by parameter name, so that a checkpoint does not depend on the number of
ranks or on the stage that wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlhf_core.config.cluster import ClusterConfig
from rlhf_core.config.ppo import OptimizerConfig
from rlhf_core.engines.optimizer import MOMENTS, ScheduledOptimizer, StepResult, adamw
from rlhf_core.numerics.reductions import AllReduce, identity

_BUCKET_ELEMENTS = 200_000_000
_SHARDED = tuple(moment for moment in MOMENTS if moment != "step")


class ZeroAdamW(ScheduledOptimizer):
    """One DeepSpeed engine. Every method that touches tensors must be called by all ranks together."""

    def __init__(
        self,
        module: nn.Module,
        model: nn.Module,
        config: OptimizerConfig,
        cluster: ClusterConfig,
        *,
        total_steps: int,
        hidden_size: int,
    ) -> None:
        """Hand `module` to DeepSpeed; the process group must be up.

        Args:
            module: what runs forward in training, around `model`.
            model: its parameters are optimized, under their names in it.
            config: rates, schedule and limits.
            cluster: stage and offload.
            total_steps: length of the cosine, warm-up included.
            hidden_size: of the model, for the rule `inverse_sqrt`.
        """
        import deepspeed

        super().__init__(model, config, total_steps=total_steps, hidden_size=hidden_size)
        self._stage, self._limit = cluster.sharding_stage, config.max_grad_norm
        initialize = cast(Any, deepspeed.initialize)
        self.engine: Any = initialize(
            model=module,
            optimizer=adamw(self._parameters.values(), config),
            config=deepspeed_settings(cluster, config.max_grad_norm, sum(map(math.prod, self._shapes.values()))),
            dist_init_required=False,
        )[0]
        self._ranks = int(torch.distributed.get_world_size())
        if self._stage:
            self._begin_states()

    @torch.no_grad()
    def _begin_states(self) -> None:
        """Give AdamW its moments now, as 0.

        Torch makes them in the first step, group by group; DeepSpeed looks for those of all groups after the first
        group's, and would not find the second's ever after.
        """
        zero, state = self.engine.optimizer, self.engine.basic_optimizer.state
        flats = zero.fp32_partitioned_groups_flat if self._stage == 3 else zero.single_partition_of_fp32_groups
        for flat in flats:
            state[flat] = {moment: torch.zeros_like(flat) for moment in _SHARDED} | {"step": torch.tensor(0.0)}
        if self._stage < 3:
            zero._lazy_init_hp_params_optimizer_state()

    def backward(self, loss: Tensor) -> None:
        # DeepSpeed averages over ranks; a loss here is the rank's share of a sum.
        self.engine.backward(loss * self._ranks)

    def step(self, learning_rate_factor: float = 1.0, all_reduce: AllReduce = identity) -> StepResult:
        rate = self.learning_rate(learning_rate_factor)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        if self._stage:
            self.engine.step()
            norm = float(self.engine.get_global_grad_norm())
            is_finite = not self.engine.optimizer.overflow
        else:
            norm, is_finite = self._plain_step()
        self._count(is_finite=is_finite)
        return StepResult(
            grad_norm=norm if is_finite else math.nan,
            learning_rate=rate,
            is_clipped=is_finite and norm > self._limit,
            is_skipped=not is_finite,
        )

    def _plain_step(self) -> tuple[float, bool]:
        """Stage 0: DeepSpeed sums the gradients, and torch steps; DeepSpeed itself would step on a NaN."""
        if self._ranks > 1:  # of one rank it would only copy them back and forth
            self.engine.buffered_allreduce_fallback(elements_per_buffer=_BUCKET_ELEMENTS)
        held = [p for p in self._parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([cast(Tensor, p.grad) for p in held])
        is_finite = bool(norm.isfinite())
        if is_finite:
            if float(norm) > self._limit:
                torch.nn.utils.clip_grads_with_norm_(held, self._limit, norm)
            self.engine.basic_optimizer.step()
        self.engine.basic_optimizer.zero_grad(set_to_none=True)
        return float(norm), is_finite

    def discard_gradients(self) -> None:
        if not self._stage:
            self.engine.basic_optimizer.zero_grad(set_to_none=True)
            return
        # What DeepSpeed itself does with gradients that it refuses.
        optimizer = self.engine.optimizer
        if self._stage == 3:
            optimizer._overflow_clean_up(optimizer.loss_scale)
            return
        optimizer.zero_grad(set_to_none=True)
        if optimizer.cpu_offload:
            optimizer.reset_cpu_buffers()
            return
        for group in optimizer.averaged_gradients:
            optimizer.averaged_gradients[group] = None
            optimizer.all_grad_tensors[group] = None

    def adopt_weights(self) -> None:
        """Take the model's weights, just written from outside, as those to go on from."""
        if self._stage:
            self.engine.optimizer.refresh_fp32_params()

    @torch.no_grad()
    def moments(self) -> dict[str, Tensor]:
        if not self.steps:
            return {}
        found: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            for moment in _SHARDED:
                found[f"{name}/{moment}"] = self._full(parameter, moment).detach().cpu().view(self._shapes[name])
            found[f"{name}/step"] = torch.tensor(float(self.steps))
        return found

    @torch.no_grad()
    def restore(
        self, moments: Mapping[str, Tensor], *, steps: int, skipped_in_row: int, stalled_since: int | None
    ) -> None:
        for name, parameter in self._parameters.items():
            for moment in _SHARDED:
                stored = moments.get(f"{name}/{moment}")
                whole = torch.zeros(self._shapes[name]) if stored is None else stored
                self._put(parameter, moment, whole)
        for state in cast("dict[Any, dict[str, Any]]", self.engine.basic_optimizer.state).values():
            if "step" in state:
                state["step"] = torch.full_like(state["step"], float(steps))
        self.steps, self.skipped_in_row, self.stalled_since = steps, skipped_in_row, stalled_since

    def _full(self, parameter: nn.Parameter, moment: str) -> Tensor:
        from deepspeed.utils import safe_get_full_optimizer_state

        if not self._stage:
            return self.engine.basic_optimizer.state[parameter][moment]
        return cast(Any, safe_get_full_optimizer_state)(parameter, moment)

    def _put(self, parameter: nn.Parameter, moment: str, whole: Tensor) -> None:
        from deepspeed.utils.tensor_fragment import (
            safe_get_local_optimizer_state,
            safe_set_full_optimizer_state,
            safe_set_local_optimizer_state,
        )

        whole = whole.to(parameter.device, torch.float32)
        if not self._stage:
            state = self.engine.basic_optimizer.state[parameter]
            state.setdefault("step", torch.tensor(0.0))
            state[moment] = whole.clone()
        elif self._stage < 3:
            cast(Any, safe_set_full_optimizer_state)(parameter, whole, moment)
        else:
            # DeepSpeed's own setter of whole states does not know the padding of the last rank's share.
            share = int(cast(Any, safe_get_local_optimizer_state)(parameter, moment).numel())
            padded = torch.zeros(share * self._ranks, device=whole.device)
            padded[: whole.numel()] = whole.flatten()
            rank = torch.distributed.get_rank()
            cast(Any, safe_set_local_optimizer_state)(parameter, padded[rank * share : (rank + 1) * share], moment)


def deepspeed_settings(cluster: ClusterConfig, max_grad_norm: float, parameters: int) -> dict[str, Any]:
    """DeepSpeed's configuration. Sizes of batches are the update's business, so it is told of one row at a time.

    Args:
        cluster: stage and offload.
        max_grad_norm: limit of the gradient's norm.
        parameters: of the model; buffers larger than it would only cost memory.
    """
    bucket = min(parameters + parameters % 2, _BUCKET_ELEMENTS)  # DeepSpeed asks for an even number
    zero: dict[str, Any] = {
        "stage": cluster.sharding_stage,
        "overlap_comm": False,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if cluster.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if cluster.offload_parameters:
        zero["offload_param"] = {"device": "cpu"}
    if cluster.sharding_stage == 3:
        zero |= {
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": bucket,
            "stage3_max_live_parameters": max(bucket, parameters),
        }
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }
