"""great-expectations suites for the borders of the pipeline (D2): what each table must be.

The library is imported on first use (it takes seconds) and with its analytics off: nothing is sent anywhere. Facts
about list columns (lengths, finiteness) are put into plain columns first, because expectations read scalars.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.config.run import ValidationConfig
from rlhf_core.data.records import SCORED_SCHEMA
from rlhf_core.errors import ValidationFailed

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

MAX_EXAMPLES = 5
LOGPROB_ROUNDING = 1e-4
"""A log-prob may exceed 0 by this much from rounding in low precision."""

SCORED_NEEDED = (
    "prompt_id", "sample_index", "domain", "prompt", "response", "prompt_ids", "response_ids", "engine_logprobs",
    "seed", "finish_reason", "ending", "policy_step", "valid",
)  # fmt: skip
"""Fields that no scored rollout may lack."""

REWARD_FIELDS = ("valid", "exclude_reason", "reward_raw", "reward")


@dataclass(frozen=True)
class CheckResult:
    """One expectation's outcome."""

    description: str
    column: str
    is_success: bool
    failed_rows: tuple[int, ...] = ()
    examples: tuple[str, ...] = ()
    is_about_table: bool = False
    """True: it says something of the table as a whole, so no row can be blamed."""


@dataclass(frozen=True)
class TableCheck:
    """A suite's outcome on one table; rows are named by their position."""

    suite: str
    rows: int
    checks: tuple[CheckResult, ...]

    @property
    def is_success(self) -> bool:
        return all(check.is_success for check in self.checks)

    @property
    def reasons(self) -> dict[int, list[str]]:
        """Position of each failed row → what it fails."""
        found: dict[int, list[str]] = {}
        for check in self.checks:
            for row in check.failed_rows:
                found.setdefault(row, []).append(check.description)
        return found


def check_table(suite: str, frame: pd.DataFrame, expectations: Sequence[Expectation]) -> TableCheck:
    """Run the expectations on the frame's rows.

    Args:
        suite: name of the suite, for reports.
        expectations: each with a `description` in words.
    """
    context = _context()
    gx = _library()
    positions = frame.reset_index(drop=True)
    asset = context.data_sources.pandas_default.add_dataframe_asset(suite)
    try:
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch(batch_parameters={"dataframe": positions})
        result = batch.validate(
            gx.ExpectationSuite(suite, expectations=list(expectations)), result_format={"result_format": "COMPLETE"}
        )
    finally:
        context.data_sources.pandas_default.delete_asset(suite)
    return TableCheck(suite, len(frame), tuple(_outcome(item) for item in result.results))


def split_rows(
    check: TableCheck, frame: pd.DataFrame, policy: ValidationConfig, place: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`(kept, quarantined)`; the quarantined rows have the column `quarantine_reasons`.

    Raises:
        ValidationFailed: the table as a whole fails, a row fails and `on_failure` is stop, or too many rows fail.
    """
    whole = [item for item in check.checks if not item.is_success and (item.is_about_table or not item.failed_rows)]
    if whole:
        raise ValidationFailed(f"{place}: {_words(whole)}. The table's columns: {list(frame.columns)}.")
    reasons = check.reasons
    if not reasons:
        return frame.reset_index(drop=True), frame.iloc[:0].assign(quarantine_reasons=pd.Series([], dtype=object))
    failed = [item for item in check.checks if not item.is_success]
    if policy.on_failure == "stop":
        raise ValidationFailed(
            f"{place}: {len(reasons)} of {len(frame)} rows fail: {_words(failed)}. "
            "Mend the data, or set validation.on_failure=quarantine to go on without these rows."
        )
    if len(reasons) > policy.max_quarantined_fraction * len(frame):
        raise ValidationFailed(
            f"{place}: {len(reasons)} of {len(frame)} rows fail, more than validation.max_quarantined_fraction="
            f"{policy.max_quarantined_fraction}: {_words(failed)}. Mend the data, or raise that limit."
        )
    rows = frame.reset_index(drop=True)
    failed_rows = sorted(reasons)
    bad = rows.loc[failed_rows].assign(quarantine_reasons=["fails: " + "; ".join(reasons[row]) for row in failed_rows])
    return rows.drop(index=failed_rows).reset_index(drop=True), bad.reset_index(drop=True)


def check_prompts(suite: str, prompts: pd.DataFrame, rollout: RolloutConfig) -> TableCheck:
    """Prompts: text and tokens are there, within the limit, each once."""
    gxe = _expectations()
    needed = ("prompt_id", "domain", "prompt", "prompt_ids")
    if not set(needed) <= set(prompts.columns):
        return check_table(suite, prompts, [_columns_exist(needed)])
    facts = prompts.assign(
        prompt_tokens=_lengths(prompts, "prompt_ids"), missing_fields=_missing_fields(prompts, needed)
    ).drop(columns="prompt_ids")
    return check_table(suite, facts, [
        _nothing_missing(),
        gxe.ExpectColumnValueLengthsToBeBetween(column="prompt", min_value=1, description="a prompt has text"),
        gxe.ExpectColumnValuesToBeBetween(
            column="prompt_tokens", min_value=1, max_value=rollout.max_prompt_tokens,
            description=f"a prompt has 1 to {rollout.max_prompt_tokens} tokens (rollout.max_prompt_tokens)",
        ),
        gxe.ExpectColumnValuesToBeUnique(column="prompt_id", description="a prompt stands once in its table"),
    ])  # fmt: skip


def check_pairs(suite: str, pairs: pd.DataFrame) -> TableCheck:
    """Preference pairs: all three texts are there, chosen and rejected differ in words, each pair once."""
    gxe = _expectations()
    needed = ("pair_id", "domain", "prompt", "chosen", "rejected")
    if not set(needed) <= set(pairs.columns):
        return check_table(suite, pairs, [_columns_exist(needed)])
    is_other = pairs["chosen"].map(_bare) != pairs["rejected"].map(_bare)
    facts = pairs.assign(differ=is_other, missing_fields=_missing_fields(pairs, needed))
    return check_table(suite, facts, [
        _nothing_missing(),
        *(gxe.ExpectColumnValueLengthsToBeBetween(column=name, min_value=1, description=f"{name} has text")
          for name in ("prompt", "chosen", "rejected")),
        gxe.ExpectColumnValuesToBeInSet(column="differ", value_set=[True],
            description="chosen and rejected differ in more than white space and case"),
        gxe.ExpectColumnValuesToBeUnique(column="pair_id", description="a pair stands once in its table"),
    ])  # fmt: skip


def check_scored(suite: str, scored: pd.DataFrame, rollout: RolloutConfig, iteration: int) -> TableCheck:
    """Scored rollouts: what the update needs to be able to trust."""
    gxe = _expectations()
    if not set(SCORED_SCHEMA.names) <= set(scored.columns):
        return check_table(suite, scored, [_columns_exist(SCORED_SCHEMA.names)])
    return check_table(suite, _scored_facts(scored), [
        _nothing_missing(),
        gxe.ExpectColumnValuesToBeInSet(
            column="iteration", value_set=[iteration], description=f"a rollout is of iteration {iteration}"),
        gxe.ExpectCompoundColumnsToBeUnique(
            column_list=["prompt_id", "sample_index"], description="(prompt_id, sample_index) is unique"),
        gxe.ExpectColumnValuesToBeBetween(
            column="prompt_tokens", min_value=1, max_value=rollout.max_prompt_tokens,
            description=f"a prompt has 1 to {rollout.max_prompt_tokens} tokens"),
        gxe.ExpectColumnValuesToBeBetween(
            column="response_tokens", min_value=1, max_value=rollout.max_new_tokens,
            description=f"a response has 1 to {rollout.max_new_tokens} tokens (rollout.max_new_tokens)"),
        gxe.ExpectColumnValuesToBeInSet(
            column="missing_logprobs", value_set=[0], description="every response token has a log-prob"),
        gxe.ExpectColumnValuesToBeInSet(
            column="wrong_logprobs", value_set=[0], description="log-probs are finite and at most 0"),
        gxe.ExpectColumnValuesToBeInSet(
            column="ending", value_set=["natural", "early", "truncated"],
            description="ending is natural, early or truncated"),
        gxe.ExpectColumnValuesToBeInSet(
            column="ending_fault", value_set=[""],
            description="a response is truncated exactly if the engine hit the length limit"),
        gxe.ExpectColumnValuesToBeInSet(
            column="reward_fault", value_set=[""],
            description="a valid rollout has finite rewards; an excluded one has a reason"),
    ])  # fmt: skip


def _scored_facts(scored: pd.DataFrame) -> pd.DataFrame:
    """The table with scalar columns about its lists and about columns that must agree."""
    tokens, logprob_tokens = _lengths(scored, "response_ids"), _lengths(scored, "engine_logprobs")
    logprobs = [np.asarray(row if row is not None else [], dtype=np.float64) for row in scored["engine_logprobs"]]
    wrong = [int((~np.isfinite(row) | (row > LOGPROB_ROUNDING)).sum()) for row in logprobs]
    return scored.drop(columns=["prompt_ids", "response_ids", "engine_logprobs"]).assign(
        missing_fields=_missing_fields(scored, SCORED_NEEDED),
        prompt_tokens=_lengths(scored, "prompt_ids"),
        response_tokens=tokens,
        missing_logprobs=[a - b for a, b in zip(tokens, logprob_tokens, strict=True)],
        wrong_logprobs=wrong,
        ending_fault=[_ending_fault(*row) for row in zip(scored["ending"], scored["finish_reason"], strict=True)],
        reward_fault=[_reward_fault(*row) for row in zip(*(scored[name] for name in REWARD_FIELDS), strict=True)],
    )


def _ending_fault(ending: Any, finish_reason: Any) -> str:
    return "" if (ending == "truncated") == (finish_reason == "length") else f"{ending} after {finish_reason}"


def _reward_fault(is_valid: Any, exclude_reason: Any, reward_raw: Any, reward: Any) -> str:
    """What is wrong with a row's rewards, in words; empty where nothing is."""
    if is_valid is None or not bool(is_valid):
        return "excluded without a reason" if pd.isna(exclude_reason) else ""
    values = {"reward_raw": reward_raw, "reward": reward}
    return ", ".join(f"{name} is {value}" for name, value in values.items() if pd.isna(value) or not np.isfinite(value))


def _bare(text: Any) -> str:
    """A text without white space and case."""
    return "".join(str(text).split()).casefold()


def _columns_exist(columns: Sequence[str]) -> Expectation:
    """The one expectation of a table that lacks columns: the others could not even be asked."""
    return _expectations().ExpectTableColumnsToMatchSet(
        column_set=list(columns), exact_match=False, description=f"the table has the columns {', '.join(columns)}"
    )


def _missing_fields(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Names of each row's null fields. One column for all of them: an expectation each would cost 25 ms each."""
    is_null = frame[list(columns)].isna().to_numpy()
    return [", ".join(name for name, null in zip(columns, row, strict=True) if null) for row in is_null]


def _nothing_missing() -> Expectation:
    return _expectations().ExpectColumnValuesToBeInSet(
        column="missing_fields", value_set=[""], description="every needed field is given"
    )


def _lengths(frame: pd.DataFrame, column: str) -> list[int]:
    return [len(row) if row is not None else 0 for row in frame[column]]


def _outcome(item: Any) -> CheckResult:
    """Our record of one of the library's results."""
    config, found = item.expectation_config, item.result
    kwargs = config.kwargs
    column = kwargs.get("column") or ", ".join(kwargs.get("column_list", []))
    description = config.description or config.type
    raised = (item.exception_info or {}).get("exception_message") if not item.success else None
    nested = [info.get("exception_message") for info in (item.exception_info or {}).values() if isinstance(info, dict)]
    message = raised or next((text for text in nested if text), None)
    if message:
        description = f"{description} (could not be checked: {message})"
    rows = tuple(int(row) for row in found.get("unexpected_index_list") or ())
    examples = tuple(str(value)[:80] for value in (found.get("partial_unexpected_list") or ())[:MAX_EXAMPLES])
    is_about_table = not item.success and not rows
    return CheckResult(description, column, bool(item.success), rows, examples, is_about_table)


def _words(failed: Sequence[CheckResult]) -> str:
    parts: list[str] = []
    for item in failed:
        rows = f" ({len(item.failed_rows)} rows, e.g. {item.examples[0]})" if item.examples else ""
        parts.append(f"not true that {item.description}{rows}")
    return "; ".join(parts)


@lru_cache(maxsize=1)
def _library() -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations

    return great_expectations


def _expectations() -> Any:
    _library()
    import great_expectations.expectations as gxe

    return gxe


@lru_cache(maxsize=1)
def _context() -> Any:
    """One in-memory context per process, without progress bars."""
    context = _library().get_context(mode="ephemeral")
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context
