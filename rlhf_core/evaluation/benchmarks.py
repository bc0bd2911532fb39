"""Benchmarks by lm-evaluation-harness, item by item (E2)."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import yaml

from rlhf_core.config.evaluation import BenchmarkConfig, EvaluationConfig
from rlhf_core.engines.protocols import TokenScorer
from rlhf_core.errors import ConfigError, DataError
from rlhf_core.evaluation.local_tasks import stratified_subset

ITEM_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("task", pa.string()),
        ("item_id", pa.string()),
        ("stratum", pa.string()),
        ("correct", pa.bool_()),
        ("margin", pa.float64()),
        ("answer", pa.int32()),
        ("loglikelihoods", pa.list_(pa.float64())),
    ]
)
"""One answered item. `margin`: the right choice's score minus the best wrong one's; nats, by character for acc_norm."""

MARGIN_LIMIT = 1000.0
"""Margins are kept within ± this; a right choice whose likelihood is NaN or 0 has the lower end and counts as wrong."""

_STRATUM_FIELDS = ("stratum", "subject", "activity_label", "category")


def answer_benchmarks(
    scorer: TokenScorer,
    tokenizer: Any,
    evaluation: EvaluationConfig,
    tasks: Path,
    advance: Callable[[int], None],
) -> pd.DataFrame:
    """Answer every benchmark's fixed items; rows as in `ITEM_SCHEMA`, in an order that never changes.

    Args:
        scorer: of the policy.
        tokenizer: its tokenizer.
        evaluation: benchmarks, batch size and seed.
        tasks: folder that `write_local_task` filled for the benchmarks with a local path.
        advance: called with the number of log-likelihood requests just done.

    Raises:
        ConfigError: a hub task is unknown, or is not multiple choice.
        DataError: a hub task's data cannot be loaded.
    """
    frames = [ITEM_SCHEMA.empty_table().to_pandas()]
    if evaluation.benchmarks:
        # The harness takes seconds to import, which runs without benchmarks need not pay.
        from datasets import disable_progress_bars

        from rlhf_core.evaluation.harness_model import HarnessModel

        disable_progress_bars()
        answerer = HarnessModel(scorer, tokenizer, batch_size=evaluation.batch_size, advance=advance)
        for benchmark in evaluation.benchmarks:
            frames.append(_answer(answerer, benchmark, tasks, evaluation.seed))
    return pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)


def _answer(answerer: Any, benchmark: BenchmarkConfig, tasks: Path, seed: int) -> pd.DataFrame:
    from lm_eval.evaluator import evaluate

    with tempfile.TemporaryDirectory() as cache:
        loaded = _local_tasks(benchmark, tasks, Path(cache)) if benchmark.path else _hub_tasks(benchmark, seed)
        parts: dict[str, Any] = loaded["tasks"]
        for name, task in parts.items():
            if task.OUTPUT_TYPE != "multiple_choice":
                raise ConfigError(
                    f"evaluation.benchmarks: {name} of {benchmark.name} is a {task.OUTPUT_TYPE!r} task; the gate "
                    "compares multiple-choice items. Choose a multiple-choice task, such as mmlu or hellaswag."
                )
        subset = None if benchmark.path else _hub_subset(parts, benchmark.items, seed)
        if subset is not None:
            loaded["tasks"] = parts = {name: task for name, task in parts.items() if subset[name]}
        # Its bar of context building would run across the run's own.
        with contextlib.redirect_stderr(io.StringIO()):
            result: Any = evaluate(answerer, loaded, samples=subset, bootstrap_iters=0, log_samples=True)
        samples: Mapping[str, Sequence[Mapping[str, Any]]] = result["samples"]
        rows = [row for name in sorted(parts) for row in _rows(benchmark, name, parts[name], samples[name])]
    return pd.DataFrame(rows)


def _local_tasks(benchmark: BenchmarkConfig, tasks: Path, cache: Path) -> Any:
    from lm_eval.tasks import TaskManager

    definition = yaml.safe_load((tasks / f"{benchmark.name}.yaml").read_text())
    items = str((tasks / f"{benchmark.name}.jsonl").absolute())
    definition["dataset_kwargs"] = {"data_files": {"test": items}, "cache_dir": str(cache)}
    return TaskManager(include_defaults=False).load([definition])


def _hub_tasks(benchmark: BenchmarkConfig, seed: int) -> Any:
    from lm_eval.tasks import TaskManager

    manager = TaskManager()
    if benchmark.name not in manager.all_tasks:
        raise ConfigError(
            f"evaluation.benchmarks: lm-evaluation-harness knows no task {benchmark.name!r}. "
            "`lm-eval ls tasks` lists them; or give `format` and `path` of local items."
        )
    try:
        loaded = manager.load([benchmark.name])
    except (OSError, ValueError) as error:
        raise DataError(
            f"benchmark {benchmark.name}: its data set cannot be loaded from the hub ({error}). Check the connection, "
            "or give `format` and `path` of local items."
        ) from error
    for task in loaded["tasks"].values():
        task.set_config("num_fewshot", benchmark.fewshot)
        task.set_fewshot_seed(seed)
    return loaded


def _hub_subset(tasks: Mapping[str, Any], items: int | None, seed: int) -> dict[str, list[int]] | None:
    """Indices of the fixed subset by task; strata are tasks, and within a single task its documents' subject field."""
    names = sorted(tasks)
    places = [(name, index) for name in names for index in range(len(tasks[name].eval_docs))]
    if items is None or items >= len(places):
        return None
    if len(names) == 1:
        strata = [_stratum(names[0], doc) for doc in tasks[names[0]].eval_docs]
    else:
        strata = [name for name, _ in places]
    subset: dict[str, list[int]] = {name: [] for name in names}
    for chosen in stratified_subset(strata, items, seed):
        name, index = places[chosen]
        subset[name].append(index)
    return subset


def _stratum(task: str, doc: Mapping[str, Any]) -> str:
    return next((str(doc[field]) for field in _STRATUM_FIELDS if field in doc), task)


def _rows(
    benchmark: BenchmarkConfig, name: str, task: Any, samples: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for sample in sorted(samples, key=lambda one: one["doc_id"]):
        if sample["doc_id"] in seen:  # a task with several filters logs an item once for each
            continue
        seen.add(sample["doc_id"])
        doc = sample["doc"]
        choices = [str(choice) for choice in task.doc_to_choice(doc)]
        likelihoods = [float(response[0]) for response in sample["filtered_resps"]][: len(choices)]
        answer = _answer_index(task, doc, choices, benchmark.name)
        metric = next((one for one in ("acc_norm", "acc") if one in sample["metrics"]), None)
        if metric is None:
            raise ConfigError(f"evaluation.benchmarks: {name} reports neither acc nor acc_norm. Choose another task.")
        by_character = metric == "acc_norm"
        margin = choice_margin(likelihoods, [len(choice) for choice in choices] if by_character else None, answer)
        yield {
            "benchmark": benchmark.name,
            "task": name,
            "item_id": str(doc.get("item_id", sample["doc_id"])),
            "stratum": _stratum(name, doc),
            "correct": bool(sample[metric]) and margin > -MARGIN_LIMIT,
            "margin": margin,
            "answer": answer,
            "loglikelihoods": likelihoods,
        }


def _answer_index(task: Any, doc: Mapping[str, Any], choices: Sequence[str], benchmark: str) -> int:
    answer = task.doc_to_text(doc) if getattr(task, "multiple_input", 0) else task.doc_to_target(doc)
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise ConfigError(
            f"evaluation.benchmarks: an item of {benchmark} has no single right choice ({answer!r}). Take another task."
        )
    return answer


def choice_margin(likelihoods: Sequence[float], lengths: Sequence[int] | None, answer: int) -> float:
    """Score of the right choice minus the best wrong one's, within ± `MARGIN_LIMIT`; scores by `lengths` if given."""
    scores = list(likelihoods)
    if lengths is not None:
        scores = [score / length for score, length in zip(scores, lengths, strict=True)]
    if not math.isfinite(scores[answer]):
        return -MARGIN_LIMIT
    wrong = [score for place, score in enumerate(scores) if place != answer and not math.isnan(score)]
    return min(max(scores[answer] - max(wrong, default=-math.inf), -MARGIN_LIMIT), MARGIN_LIMIT)
