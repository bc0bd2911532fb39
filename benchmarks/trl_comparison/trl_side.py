"""TRL's own PPOTrainer on the common settings, timed by phase. Runs in TRL's environment.

Only clocks are put around TRL's functions, and a logits processor forces the lengths; the loop is TRL's.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForSequenceClassification,
    LogitsProcessor,
    LogitsProcessorList,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from trl_comparison.measure import PhaseMeter
from trl_comparison.settings import Settings, read_settings


class ForcedLengths(LogitsProcessor):
    """Allows EOS at the wanted length alone, and nothing else there."""

    def __init__(self, lengths: torch.Tensor, prompt_tokens: int, eos: int) -> None:
        self._lengths, self._prompt_tokens, self._eos = lengths, prompt_tokens, eos

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = input_ids.shape[1] - self._prompt_tokens + 1
        is_last = (self._lengths == place)[:, None]
        is_eos = torch.arange(scores.shape[1])[None, :] == self._eos
        return scores.masked_fill(is_last ^ is_eos, -torch.inf)


def main(settings_path: str, result_path: str) -> None:
    """Train and write the phases' measurements."""
    settings = read_settings(settings_path)
    torch.set_num_threads(settings.threads)
    meter = PhaseMeter()
    trainer = build_trainer(settings)
    put_clocks(trainer, meter)
    trainer.train()
    meter.write(result_path, skipped=settings.warmup_updates)


def build_trainer(settings: Settings) -> Any:
    """A PPOTrainer whose optimizer steps once per mini-batch, as ours does."""
    tokenizer = AutoTokenizer.from_pretrained(settings.model, padding_side="left")
    load: dict[str, Any] = {"dtype": torch.float32}
    policy = AutoModelForCausalLM.from_pretrained(settings.model, **load)
    if settings.is_ragged:
        force_lengths(policy, settings, tokenizer.eos_token_id)
    args = PPOConfig(
        output_dir="/tmp/trl-ppo",
        per_device_train_batch_size=settings.rollouts,
        gradient_accumulation_steps=1,
        num_mini_batches=settings.rollouts // settings.mini_batch,
        local_rollout_forward_batch_size=settings.rollouts,
        num_ppo_epochs=settings.epochs,
        response_length=settings.response_tokens,
        total_episodes=settings.rollouts * (settings.warmup_updates + settings.updates),
        stop_token="eos" if settings.is_ragged else None,
        num_sample_generations=0,
        learning_rate=1e-6,
        temperature=1.0,
        bf16=settings.dtype == "bfloat16",
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        seed=settings.seed,
    )
    value_model = AutoModelForSequenceClassification.from_pretrained(settings.model, num_labels=1, **load)
    rows = [{"input_ids": prompt} for prompt in settings.prompts()]
    return PPOTrainer(
        args=args,
        processing_class=tokenizer,
        model=policy,
        ref_model=AutoModelForCausalLM.from_pretrained(settings.model, **load),
        reward_model=tiny_reward_model(tokenizer.pad_token_id),
        value_model=value_model,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
    )


def tiny_reward_model(pad: int) -> Any:
    """A reward model that costs next to nothing: rewards are not what is compared."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_labels=1,
        pad_token_id=pad,
    )
    return LlamaForSequenceClassification(config)


def force_lengths(policy: Any, settings: Settings, eos: int) -> None:
    """Let the policy's `generate` end each row at its length."""
    generate = policy.generate
    forced = ForcedLengths(torch.tensor(settings.lengths()), settings.prompt_tokens, eos)

    def generate_forced(*args: Any, **options: Any) -> Any:
        return generate(*args, logits_processor=LogitsProcessorList([forced]), **options)

    policy.generate = generate_forced


def put_clocks(trainer: Any, meter: PhaseMeter) -> None:
    """Generation is `batch_generation`; the update starts at the first pass of the trained model and ends at `log`."""
    generation, passes, log = ppo_trainer.batch_generation, ppo_trainer.forward, trainer.log
    is_updating = False

    def timed_generation(*args: Any, **options: Any) -> Any:
        meter.enter("generation")
        result = generation(*args, **options)
        meter.enter("experience")
        return result

    def timed_pass(model: Any, *args: Any) -> Any:
        nonlocal is_updating
        if model is trainer.model and not is_updating:
            is_updating = True
            meter.enter("update")
        return passes(model, *args)

    def timed_log(*args: Any, **options: Any) -> None:
        nonlocal is_updating
        is_updating = False
        meter.enter(None)
        log(*args, **options)

    ppo_trainer.batch_generation = timed_generation
    ppo_trainer.forward = timed_pass
    trainer.log = timed_log


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
