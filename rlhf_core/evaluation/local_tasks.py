"""Benchmark items from local files, in the formats and with the prompts of the field (E2).

A benchmark becomes two files, `<name>.jsonl` with the chosen items and `<name>.yaml`, a task of lm-evaluation-harness
that reads them; `lm_eval --include_path FOLDER --tasks NAME` runs the same items. Prompts are those of the harness's
tasks `mmlu` (Hendrycks et al. 2021) and `hellaswag` (Zellers et al. 2019); few-shot examples stand in the prompt.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlhf_core.config.evaluation import BenchmarkConfig
from rlhf_core.data.store import write_bytes
from rlhf_core.errors import DataError
from rlhf_core.seeding import derive_seed

_LETTERS = ("A", "B", "C", "D")
_METRICS = {"mmlu_csv": ("acc",), "hellaswag_jsonl": ("acc", "acc_norm")}


@dataclass(frozen=True)
class LocalItem:
    """`prompt` is followed by a space and one of `choices`; `answer` is the right one's index."""

    item_id: str
    stratum: str
    prompt: str
    choices: tuple[str, ...]
    answer: int


def write_local_task(config: BenchmarkConfig, root: Path, folder: Path, final: Path, seed: int) -> int:
    """Choose the fixed subset and write its items and its task into `folder`; return the number of items.

    Args:
        config: a benchmark with a local `path`, relative to `root`.
        root: `data.root`.
        folder: where the files are written.
        final: where the folder will stand; the task names its data there.
        seed: `evaluation.seed`, of the subset.

    Raises:
        DataError: the file is missing, empty or malformed; names file, line and what was expected.
    """
    items = load_items(config, root)
    chosen = stratified_subset([item.stratum for item in items], config.items, seed)
    rows = [json.dumps(items[index].__dict__, ensure_ascii=False) for index in chosen]
    write_bytes(folder / f"{config.name}.jsonl", ("\n".join(rows) + "\n").encode())
    task = task_definition(config, final / f"{config.name}.jsonl")
    write_bytes(folder / f"{config.name}.yaml", yaml.safe_dump(task, sort_keys=False).encode())
    return len(chosen)


def load_items(config: BenchmarkConfig, root: Path) -> list[LocalItem]:
    """All items of a benchmark with a local `path`, relative to `root`."""
    path = root / str(config.path)
    if config.format == "mmlu_csv":
        return load_mmlu(path, config.fewshot, by_text=config.answers == "texts")
    return load_hellaswag(path, config.fewshot)


def available_items(benchmarks: Iterable[BenchmarkConfig], root: Path) -> dict[str, int]:
    """Items in the files of each benchmark with a local path, by its name.

    Raises:
        DataError: as `write_local_task`.
    """
    return {one.name: len(load_items(one, root)) for one in benchmarks if one.path is not None}


def task_definition(config: BenchmarkConfig, items: Path) -> dict[str, Any]:
    """The harness's task over a file of items."""
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in _METRICS[config.format]]
    return {
        "task": config.name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(items)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": metrics,
        "metadata": {"version": 1.0},
    }


def stratified_subset(strata: Sequence[str], items: int | None, seed: int) -> list[int]:
    """Indices, ascending, of a subset that keeps each stratum's share (largest remainders); all if `items` suffices."""
    if items is None or items >= len(strata):
        return list(range(len(strata)))
    members: dict[str, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    names = sorted(members)
    exact = {name: items * len(members[name]) / len(strata) for name in names}
    counts = {name: int(exact[name]) for name in names}
    tie_breaks = dict(zip(names, np.random.default_rng(derive_seed(seed, "ties")).permutation(len(names)), strict=True))
    by_remainder = sorted(names, key=lambda name: (counts[name] - exact[name], tie_breaks[name]))
    for name in by_remainder[: items - sum(counts.values())]:
        counts[name] += 1
    chosen: list[int] = []
    for name in names:
        rng = np.random.default_rng(derive_seed(seed, "subset", name))
        chosen += [members[name][place] for place in rng.permutation(len(members[name]))[: counts[name]]]
    return sorted(chosen)


def load_mmlu(path: Path, fewshot: int, *, by_text: bool = False) -> list[LocalItem]:
    """Items of `test/<subject>_test.csv`, with the first `fewshot` rows of `dev/<subject>_dev.csv` as examples.

    The options are listed and a letter is the answer; `by_text` lists none and takes each option's text as an answer,
    as the harness's `mmlu_continuation` does, for models too small to know letters.
    """
    files = sorted((path / "test").glob("*.csv"))
    if not files:
        raise DataError(
            f"{path} has no test/*.csv. An mmlu_csv benchmark is a folder with test/SUBJECT_test.csv (and "
            "dev/SUBJECT_dev.csv for few-shot), each row: question, A, B, C, D, letter. "
            "Check the benchmark's path and data.root."
        )
    items: list[LocalItem] = []
    for file in files:
        subject = file.stem.removesuffix("_test")
        kind = "" if by_text else "multiple choice "
        header = f"The following are {kind}questions (with answers) about {subject.replace('_', ' ')}.\n\n"
        shots = _mmlu_shots(path / "dev" / f"{subject}_dev.csv", fewshot, by_text=by_text)
        for number, (question, *choices, letter) in enumerate(_mmlu_rows(file), start=1):
            prompt = header + shots + _mmlu_question(question, choices, by_text=by_text)
            answers = tuple(choices) if by_text else _LETTERS
            items.append(LocalItem(f"{subject}/{number}", subject, prompt, answers, _LETTERS.index(letter)))
    return items


def _mmlu_shots(file: Path, fewshot: int, *, by_text: bool) -> str:
    if fewshot == 0:
        return ""
    rows = _mmlu_rows(file)
    if len(rows) < fewshot:
        raise DataError(f"{file} has {len(rows)} examples, fewer than fewshot={fewshot}. Lower fewshot.")
    shots: list[str] = []
    for question, *choices, letter in rows[:fewshot]:
        answer = choices[_LETTERS.index(letter)] if by_text else letter
        shots.append(f"{_mmlu_question(question, choices, by_text=by_text)} {answer}\n\n")
    return "".join(shots)


def _mmlu_question(question: str, choices: Sequence[str], *, by_text: bool) -> str:
    if by_text:
        return f"Question: {question.strip()}\nAnswer:"
    lines = [f"{letter}. {choice}" for letter, choice in zip(_LETTERS, choices, strict=True)]
    return "\n".join([question.strip(), *lines, "Answer:"])


def _mmlu_rows(file: Path) -> list[list[str]]:
    if not file.is_file():
        raise DataError(f"{file} is missing. Few-shot needs it; give the file, or set the benchmark's fewshot to 0.")
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    for number, row in enumerate(rows, start=1):
        if len(row) != 6 or row[5] not in _LETTERS:
            raise DataError(
                f"{file}, row {number}: expected question, A, B, C, D and a letter A to D without a header; "
                f"found {len(row)} fields ending in {row[-1:]!r}."
            )
    if not rows:
        raise DataError(f"{file} is empty. Give at least one row, or remove the file.")
    return rows


def load_hellaswag(path: Path, fewshot: int) -> list[LocalItem]:
    """Items of a JSON-lines file with activity_label, ctx, endings, label; the first `fewshot` rows become examples."""
    if not path.is_file():
        raise DataError(f"{path} is missing. Check the benchmark's path and data.root.")
    items: list[LocalItem] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            items.append(_hellaswag_item(line, f"{path}, line {number}", len(items)))
    if len(items) <= fewshot:
        raise DataError(f"{path} has {len(items)} items; it needs more than fewshot={fewshot}.")
    shots = "".join(f"{item.prompt} {item.choices[item.answer]}\n\n" for item in items[:fewshot])
    return [LocalItem(i.item_id, i.stratum, shots + i.prompt, i.choices, i.answer) for i in items[fewshot:]]


def _hellaswag_item(line: str, where: str, index: int) -> LocalItem:
    try:
        row = json.loads(line)
        label, endings, activity = int(row["label"]), [str(one) for one in row["endings"]], str(row["activity_label"])
        context = f"{row['ctx_a']} {row['ctx_b'].capitalize()}" if "ctx_b" in row else str(row["ctx"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: expected JSON with activity_label, ctx, endings (a list) and label; "
            f"{type(error).__name__}: {error}."
        ) from error
    if len(endings) < 2 or not 0 <= label < len(endings) or not all(ending.strip() for ending in endings):
        raise DataError(f"{where}: label {label} names none of its {len(endings)} endings, or an ending is empty.")
    prompt = _clean(f"{activity}: {context}")
    return LocalItem(str(row.get("ind", index)), activity, prompt, tuple(map(_clean, endings)), label)


def _clean(text: str) -> str:
    """Remove the marks of WikiHow's headings, as lm-evaluation-harness does for this data set."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")
