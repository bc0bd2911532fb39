"""Prefect tasks: one file a stage; thin, retryable, safe to repeat."""

from tasks.baseline import evaluate_abilities, evaluate_baseline
from tasks.experience import build_experience
from tasks.gate import carry_out, decide_round, evaluate_policy
from tasks.metrics import record_metrics
from tasks.opening import closed_at_the_end, open_run, prepare_quickstart_world, read_config
from tasks.preflight import check_config, prepare_data
from tasks.report import conclude
from tasks.reward_model import train_and_validate_reward_model
from tasks.rollouts import generate_rollouts
from tasks.run import Run
from tasks.scoring import score_rollouts
from tasks.standing import fall_back, remaining_iterations, remaining_rounds, sound_policy, start_policy
from tasks.update import update_policy
from tasks.validation import validate_rollouts

__all__ = [
    "Run",
    "build_experience",
    "carry_out",
    "check_config",
    "closed_at_the_end",
    "conclude",
    "decide_round",
    "evaluate_abilities",
    "evaluate_baseline",
    "evaluate_policy",
    "fall_back",
    "generate_rollouts",
    "open_run",
    "prepare_data",
    "prepare_quickstart_world",
    "read_config",
    "record_metrics",
    "remaining_iterations",
    "remaining_rounds",
    "score_rollouts",
    "sound_policy",
    "start_policy",
    "train_and_validate_reward_model",
    "update_policy",
    "validate_rollouts",
]
