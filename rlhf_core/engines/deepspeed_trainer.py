"""One training rank under DeepSpeed: the models of `TorchTrainer`, with policy and critic as ZeRO engines."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import nn

from rlhf_core.config.ppo import OptimizerConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.engines.optimizer import ScheduledOptimizer
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.engines.zero_optimizer import ZeroAdamW
from rlhf_core.models.scoring import model_head


class DeepSpeedTrainer(TorchTrainer):
    """The process group must be up. Every method must be called by all ranks together.

    At ZeRO 3 a forward pass of the update gathers parameters module by module. Outside the update (`whole`) each rank
    gathers policy and critic in full, which needs memory for them.
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        """See `TorchTrainer`."""
        self._zero: list[ZeroAdamW] = []
        super().__init__(config, device)
        if config.cluster.sharding_stage == 3:
            import deepspeed

            cast(Any, deepspeed).zero.register_external_parameter(self._zero[0].engine.module, model_head(self.policy))

    def _make_optimizers(self) -> tuple[ScheduledOptimizer, ScheduledOptimizer | None]:
        ppo = self.config.ppo
        actor = self._shard(self._policy_scorer, self.policy, ppo.actor)
        self._policy_scorer = actor.engine
        if self.critic is None:
            return actor, None
        critic = self._shard(self._value_scorer, self.critic, ppo.critic_optimizer)
        self._value_scorer = critic.engine
        return actor, critic

    def _shard(self, module: nn.Module, model: nn.Module, settings: OptimizerConfig) -> ZeroAdamW:
        optimizer = ZeroAdamW(
            module,
            model,
            settings,
            self.config.cluster,
            total_steps=self.config.optimizer_steps,
            hidden_size=self.hidden_size,
        )
        self._zero.append(optimizer)
        return optimizer

    @contextmanager
    def whole(self, *, modify: bool = False) -> Generator[None]:
        """Every parameter is here in full; what `modify` writes into them counts from then on, rank 0's for all."""
        with ExitStack() as gathered:
            if self.config.cluster.sharding_stage == 3:
                for optimizer in self._zero:
                    gathered.enter_context(_unsharded(optimizer, modify=modify))
            yield
        if modify:
            for optimizer in self._zero:
                optimizer.adopt_weights()


@contextmanager
def _unsharded(optimizer: ZeroAdamW, *, modify: bool) -> Generator[None]:
    """All parameters of an engine, with the hooks off that would release them after each module's forward pass."""
    import deepspeed

    parameters = list(optimizer.engine.module.parameters())
    offload = optimizer.engine.optimizer.parameter_offload
    gather = cast(Any, deepspeed).zero.GatheredParameters
    with gather(parameters, modifier_rank=0 if modify else None):
        offload._remove_module_hooks()
        offload.forward_hooks.clear()
        offload.backward_hooks.clear()
        try:
            yield
        finally:
            offload.setup_zero_stage3_hooks()
