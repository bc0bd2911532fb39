"""Which small figures the training section shows, with the limits that the configuration sets."""

from __future__ import annotations

from rlhf_core.config.run import RunConfig
from rlhf_core.reporting.plots import Panel


def training_panels(config: RunConfig | None) -> list[Panel]:
    """The panels in the order of reading; limits only where the configuration is known."""
    return [
        Panel(
            "response length, tokens",
            {"rollout/response_tokens_mean": "mean", "rollout/response_tokens_p95": "95 % quantile"},
            ((config.rollout.max_new_tokens, "length limit"),) if config else (),
        ),
        Panel(
            "entropy, nats per token",
            {"experience/entropy_nats": "before the update", "update/entropy_nats": "during the update"},
        ),
        Panel(
            "actor's gradient norm before clipping",
            {"update/actor_grad_norm": "actor"},
            ((config.ppo.actor.max_grad_norm, "clipped above"),) if config else (),
        ),
        Panel(
            "critic's gradient norm before clipping",
            {"update/critic_grad_norm": "critic"},
            ((config.ppo.critic.max_grad_norm, "clipped above"),) if config else (),
        ),
        Panel(
            "clip fraction of the ratio",
            {"update/clip_fraction": "clip fraction"},
            ((config.ppo.epoch_stop.max_clip_fraction, "epochs stop"),) if config else (),
        ),
        Panel(
            "KL of the update, old to new, nats per token",
            {"update/approx_kl_nats": "KL(old‖new)"},
            ((config.ppo.epoch_stop.max_kl_nats, "epochs stop"),) if config else (),
        ),
        Panel("value loss", {"update/value_loss": "value loss"}),
        Panel(
            "explained variance of the returns",
            {"experience/explained_variance": "explained variance"},
            ((1.0, "perfect critic"),),
        ),
        Panel("learning rates", {"update/actor_learning_rate": "actor", "update/critic_learning_rate": "critic"}),
        Panel("policy and ptx losses", {"update/policy_loss": "policy", "update/ptx_loss": "ptx cross-entropy"}),
        Panel("clipped share of the rewards", {"reward/clipped_fraction": "clipped"}, ((0.3, "symptom above"),)),
        Panel(
            "repetition and variety of responses",
            {"rollout/repeated_ngram_fraction": "repeated 4-grams", "rollout/distinct_2": "distinct-2"},
        ),
        *_response_panels(),
        Panel("log-probs: engine against trainer, nats", {"experience/engine_mismatch_nats": "mean |difference|"}),
    ]


def _response_panels() -> list[Panel]:
    return [
        Panel(
            "acceptance of responses",
            {"rollout/acceptance_rate": "accepted", "rollout/penalised_fraction": "kept with a penalty"},
        ),
        Panel("fluency: reference log-prob, nats per token", {"experience/fluency_nats": "mean"}),
    ]
