"""The run's outcome in a sentence, the numbers behind it, and what to do next: pure functions over the run's record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlhf_core.reporting.sources import Gate, RunRecord

Tone = Literal["good", "bad", "warn", "plain"]
CLIPPED_SYMPTOM = 0.3
TRUNCATED_SYMPTOM = 0.5


@dataclass(frozen=True)
class Gain:
    """Rise of the held-out reward in standard deviations of the baseline's, with its interval."""

    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Tile:
    """One number of the headline."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


def outcome_gain(run: RunRecord) -> Gain | None:
    """The gain of the run's outcome; None before the first gate, or where the policy gave no finite reward."""
    if run.outcome is None:
        return None
    found = run.outcome.evaluation
    gain = Gain(found.reward_gain, found.reward_gain_low, found.reward_gain_high, run.confidence)
    return gain if math.isfinite(gain.value) else None


def state_sentence(run: RunRecord) -> str:
    """Whether the run is over, and how."""
    planned = f" of {run.config.iterations}" if run.config else ""
    last_message = run.events[-1]["message"] if run.events else "no event was recorded"
    return {
        "not started": "Nothing has run yet.",
        "unfinished": f"Unfinished: {run.iteration}{planned} iterations are recorded. This is the state so far.",
        "failed": f"Failed after {run.iteration}{planned} iterations: {last_message}",
        "stopped": f"Stopped by its gate after {run.iteration}{planned} iterations.",
        "finished": f"Finished: {run.iteration}{planned} iterations, {len(run.gates)} gates.",
    }[run.state]


def outcome_sentence(run: RunRecord) -> str:
    """What came of the run: reward, KL, abilities, promotion."""
    gate, gain = run.outcome, outcome_gain(run)
    if gate is None:
        return "No gate has judged a checkpoint yet, so nothing can be said about the outcome."
    parts = [f"The policy of iteration {gate.evaluation.step} {_gain_words(gain)}"]
    parts.append(f"at a KL of {gate.evaluation.held_out_kl_nats:.3g} nats per token from its start")
    parts.append(_ability_words(run, gate))
    promoted = gate.decision is not None and gate.decision.promote
    verdict = "It passed its gate and is promoted." if promoted else "It was not promoted."
    return ", ".join(parts) + ". " + verdict


def tiles(run: RunRecord) -> list[Tile]:
    """The headline's numbers, in the order of reading."""
    found = [_gain_tile(run), _kl_tile(run), *_ability_tiles(run), *_reward_model_tiles(run)]
    if run.last_decision:
        decided = sum(gate.decision is not None for gate in run.gates)
        note = f"gate {decided} of {run.config.rounds}" if run.config else f"gate {decided}"
        found.append(Tile("last gate", run.last_decision.kind.replace("_", " "), note, _decision_tone(run)))
    return [tile for tile in found if tile is not None]


def next_steps(run: RunRecord) -> list[str]:
    """What a person should do now, the most urgent first."""
    steps = [*_state_steps(run), *_gain_steps(run), *_symptom_steps(run)]
    if run.gates and not any(gate.evaluation.benchmarks for gate in run.gates):
        steps.append("No benchmark was run, so forgotten abilities go unseen: list some under evaluation.benchmarks.")
    return steps


def _state_steps(run: RunRecord) -> list[str]:
    if run.state in ("unfinished", "failed", "not started"):
        cause = "Mend the cause named in the last event, then go" if run.state == "failed" else "Go"
        return [f"{cause} on from the last checkpoint with: rlhf resume {run.folder.path}"]
    if run.best_step:
        return [f"Use the promoted policy, a Hugging Face folder: {run.folder.best}. Read its samples first."]
    if any(gate.decision is not None and gate.decision.promote for gate in run.gates):
        return [
            "A checkpoint passed its gate, but none earned more held-out reward than the starting model, which stays "
            "the best policy: train for more iterations, or with a higher learning rate."
        ]
    return ["No checkpoint passed a gate: keep the starting model, and read the gate's reasons below."]


def _gain_steps(run: RunRecord) -> list[str]:
    gain, kl = outcome_gain(run), run.last("experience/kl_exact_nats")
    if gain is None or gain.low > 0:
        return []
    if kl is not None and run.config and kl < run.config.decisions.flat_kl_nats:
        return ["Reward and policy hardly moved: lower kl.start, or raise ppo.actor.learning_rate."]
    return ["The reward's rise is within noise: train for more iterations, or raise evaluation.held_out_rollouts."]


def _symptom_steps(run: RunRecord) -> list[str]:
    kl, clipped, cut = (
        run.last(name) for name in ("experience/kl_exact_nats", "reward/clipped_fraction", "rollout/truncated_fraction")
    )
    steps: list[str] = []
    if kl is not None and run.config and kl > 1.5 * run.config.kl.target_nats:
        steps.append(
            f"KL {kl:.3g} is above 1.5 × its target {run.config.kl.target_nats:g}: raise kl.start or kl.maximum."
        )
    if clipped is not None and clipped > CLIPPED_SYMPTOM:
        steps.append(f"{clipped:.0%} of the rewards are clipped: check the scorer's scale, or raise reward.clip.")
    if cut is not None and cut > TRUNCATED_SYMPTOM:
        steps.append(f"{cut:.0%} of the responses hit the length limit: raise rollout.max_new_tokens.")
    if run.reward_model and run.reward_model.word_baseline_accuracy is not None:
        simple, own = run.reward_model.word_baseline_accuracy.value, run.reward_model.accuracy.value
        if own <= simple:
            steps.append(
                f"The reward model ({own:.1%}) does not beat word counts ({simple:.1%}): train a better one first."
            )
    return steps


def _gain_words(gain: Gain | None) -> str:
    if gain is None:
        return "gave no finite reward on the held-out prompts"
    if gain.low > 0:
        return f"earns {gain.value:+.2f} baseline standard deviations of reward on held-out prompts ({interval(gain)})"
    if gain.high < 0:
        return f"earns less reward than the baseline: {gain.value:+.2f} standard deviations ({interval(gain)})"
    return f"earns no measurably different reward: {gain.value:+.2f} standard deviations ({interval(gain)})"


def interval(gain: Gain) -> str:
    return f"{100 * gain.confidence:g} % interval {gain.low:+.2f} to {gain.high:+.2f}"


def _ability_words(run: RunRecord, gate: Gate) -> str:
    scores = gate.evaluation.benchmarks
    if not scores:
        return "with no benchmark run"
    lost = [score.name for score in scores if run.is_real_drop(score)]
    if lost:
        return f"with a proven loss on {', '.join(lost)}"
    return f"with no proven loss on {', '.join(score.name for score in scores)}"


def _gain_tile(run: RunRecord) -> Tile | None:
    gain = outcome_gain(run)
    if gain is None:
        return None
    tone: Tone = "good" if gain.low > 0 else "bad" if gain.high < 0 else "warn"
    return Tile("reward gain", f"{gain.value:+.2f} std", interval(gain), tone)


def _kl_tile(run: RunRecord) -> Tile | None:
    kl = run.last("experience/kl_exact_nats")
    if kl is None:
        return None
    if run.config is None:
        return Tile("KL per token, nats", f"{kl:.3g}")
    target, ceiling = run.config.kl.target_nats, run.config.decisions.kl_limit_nats
    tone: Tone = "bad" if kl > ceiling else "warn" if kl > 1.5 * target else "good"
    return Tile("KL per token, nats", f"{kl:.3g}", f"target {target:g}, limit {ceiling:g}", tone)


def _ability_tiles(run: RunRecord) -> list[Tile]:
    if run.outcome is None:
        return []
    return [
        Tile(
            score.name,
            f"{score.accuracy:.1%}",
            f"drop {100 * score.drop:+.1f} points, p = {score.p_value:.2g}",
            "bad" if run.is_real_drop(score) else "good",
        )
        for score in run.outcome.evaluation.benchmarks
    ]


def _reward_model_tiles(run: RunRecord) -> list[Tile]:
    facts = run.reward_model
    if facts is None:
        return []
    simple, accuracy = facts.word_baseline_accuracy, facts.accuracy
    is_weak = simple is not None and accuracy.value <= simple.value
    tone: Tone = "bad" if facts.failures else "warn" if is_weak else "good"
    note = f"{accuracy.low:.1%} to {accuracy.high:.1%}" + (f", words alone {simple.value:.1%}" if simple else "")
    return [Tile("reward model accuracy", f"{accuracy.value:.1%}", note, tone)]


def _decision_tone(run: RunRecord) -> Tone:
    kind = run.last_decision.kind if run.last_decision else ""
    tones: dict[str, Tone] = {"continue": "good", "adjust_ptx": "warn", "roll_back": "bad", "stop": "warn"}
    return tones.get(kind, "plain")
