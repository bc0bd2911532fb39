"""Writing the quickstart's world: every data file of a run, from one seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.quickstart.facts import ATTRIBUTES, DOMAINS, Fact, draw_facts
from rlhf_core.quickstart.grammar import (
    CURT_ANSWER,
    OFF_TOPIC_SENTENCES,
    POLITE_CLOSERS,
    POLITE_OPENERS,
    RUDE_SENTENCES,
    UNSURE_SENTENCES,
    Question,
    draw_register,
    questions_about,
    write_response,
)
from rlhf_core.quickstart.items import (
    question_items,
    scene_items,
    scene_label,
    split_dev,
    write_hellaswag,
    write_mmlu,
)
from rlhf_core.quickstart.preference import Judge

EXAM_HEADER = "The following are multiple choice questions (with answers) about"
HELD_OUT_SHARE = 0.25
WRONG_ANSWER_RATE = 0.25
SMALLEST_QUALITY_GAP = 0.5


@dataclass(frozen=True)
class WorldSettings:
    """How large a world to write; counts are rows of the files."""

    subjects_per_domain: int = 20
    sft_rows: int = 7000
    ptx_rows: int = 7000
    prompt_rows: int = 600
    held_out_prompt_rows: int = 160
    preference_train_rows: int = 1600
    preference_eval_rows: int = 400


class World:
    """The facts of a seed, the questions about them, and the judge of answers."""

    def __init__(self, settings: WorldSettings, seed: int) -> None:
        """Draw the facts and split the questions; each later part has its own generator derived from the seed."""
        self.settings = settings
        self.seed = seed
        self.facts = draw_facts(self._rng("facts"), settings.subjects_per_domain)
        self.facts_by_subject: dict[str, list[Fact]] = {}
        for fact in self.facts:
            if not fact.attribute.is_routine:
                self.facts_by_subject.setdefault(fact.subject, []).append(fact)
        self.judge = Judge([fact for facts in self.facts_by_subject.values() for fact in facts])
        questions = questions_about(self.facts)
        self._rng("split").shuffle(questions)
        held_out = max(1, round(HELD_OUT_SHARE * len(questions)))
        self.held_out_questions = questions[:held_out]
        self.train_questions = questions[held_out:]
        self.questions = {question.text: question for question in questions}

    def score(self, prompt: str, response: str) -> float:
        """The true quality of a response to one of this world's prompts, in log-odds units."""
        return self.judge.score(self.questions[prompt], response)

    def respond(self, question: Question, rng: random.Random, *, wrong_rate: float = 0.0) -> str:
        """A response in a register drawn by the registers' shares."""
        facts = self.facts_by_subject[question.subject]
        return write_response(question, facts, draw_register(rng), rng, wrong_rate=wrong_rate)

    def sft_rows(self) -> list[dict[str, str]]:
        """Prompts with answers of every register; facts are right, rare facts are seldom asked for."""
        rng = self._rng("sft")
        weights = [question.weight for question in self.train_questions]
        drawn = rng.choices(self.train_questions, weights, k=self.settings.sft_rows)
        return [{"prompt": q.text, "response": self.respond(q, rng), "domain": q.domain} for q in drawn]

    def prompt_rows(self, questions: Sequence[Question], rows: int) -> list[dict[str, str]]:
        """The first distinct prompts of a split, fewer where the split has fewer."""
        return [{"prompt": q.text, "domain": q.domain} for q in questions[:rows]]

    def preference_rows(self, questions: Sequence[Question], rows: int, name: str) -> list[dict[str, str]]:
        """Pairs of answers that differ in quality, ordered by a noisy judge."""
        rng = self._rng(f"preferences/{name}")
        pairs: list[dict[str, str]] = []
        while len(pairs) < rows:
            question = rng.choice(questions)
            first, second = (self.respond(question, rng, wrong_rate=WRONG_ANSWER_RATE) for _ in range(2))
            gap = self.judge.score(question, first) - self.judge.score(question, second)
            if abs(gap) < SMALLEST_QUALITY_GAP:
                continue
            if not self.judge.prefers_first(question, first, second, rng):
                first, second = second, first
            pairs.append({"prompt": question.text, "chosen": first, "rejected": second, "domain": question.domain})
        return pairs

    def ptx_rows(self) -> list[dict[str, str]]:
        """General text: plain statements, scenes, and questions with a short answer."""
        rng = self._rng("ptx")
        weights = [fact.weight for fact in self.facts]
        return [{"text": self._passage(rng, weights)} for _ in range(self.settings.ptx_rows)]

    def words(self) -> list[str]:
        """Texts that together hold every word of this world's language."""
        texts = [
            *POLITE_OPENERS,
            *POLITE_CLOSERS,
            *RUDE_SENTENCES,
            *OFF_TOPIC_SENTENCES,
            *UNSURE_SENTENCES,
            CURT_ANSWER,
        ]
        for fact in self.facts:
            templates = (*fact.attribute.statements, *fact.attribute.questions, *fact.attribute.answers)
            texts += [fact.fill(template) for template in (*templates, fact.attribute.scene, fact.attribute.ending)]
            texts.append(scene_label(fact))
        texts += [question.text for question in self.questions.values()]
        texts += [" ".join(DOMAINS), *(" ".join(attribute.values) for attribute in ATTRIBUTES)]
        return [text.replace("{v}", " ").replace("{s}", " ") for text in texts]

    def write(self, folder: Path) -> None:
        """Write every file of the world into an existing folder."""
        settings = self.settings
        write_jsonl(folder / "sft.jsonl", self.sft_rows())
        write_jsonl(folder / "ptx.jsonl", self.ptx_rows())
        write_jsonl(folder / "prompts.jsonl", self.prompt_rows(self.train_questions, settings.prompt_rows))
        held_out = self.prompt_rows(self.held_out_questions, settings.held_out_prompt_rows)
        write_jsonl(folder / "prompts_heldout.jsonl", held_out)
        train = self.preference_rows(self.train_questions, settings.preference_train_rows, "train")
        write_jsonl(folder / "preferences_train.jsonl", train)
        evaluation = self.preference_rows(self.held_out_questions, settings.preference_eval_rows, "eval")
        write_jsonl(folder / "preferences_eval.jsonl", evaluation)
        dev, test = split_dev(question_items(self.facts, self._rng("mmlu")))
        write_mmlu(folder / "mmlu", test, dev)
        write_hellaswag(folder / "hellaswag.jsonl", scene_items(self.facts, self._rng("hellaswag")))

    def _passage(self, rng: random.Random, weights: Sequence[float]) -> str:
        fact = rng.choices(self.facts, weights)[0]
        kind = rng.random()
        if fact.attribute.questions and kind < 0.45:
            reply = f"{fact.value}." if kind < 0.25 else fact.fill(rng.choice(fact.attribute.answers))
            asked = f"{fact.fill(rng.choice(fact.attribute.questions))} Answer: {reply}"
            asked = f"Question: {asked}" if rng.random() < 0.7 else asked
            return f"{EXAM_HEADER} {fact.domain}. {asked}" if rng.random() < 0.15 else asked
        if kind < 0.65:
            scene = f"{fact.fill(fact.attribute.scene)} {fact.fill(fact.attribute.ending)}"
            return f"{scene_label(fact)}: {scene}" if rng.random() < 0.6 else scene
        others = [other for other in self.facts_by_subject[fact.subject] if other != fact]
        more = [other for other in rng.choices(others, k=rng.randint(0, 3)) if rng.random() < other.weight]
        return " ".join(one.fill(rng.choice(one.attribute.statements)) for one in (fact, *more))

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write one JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_jsonl(path: Path) -> list[dict[str, str]]:
    """Read the rows that `write_jsonl` wrote."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
