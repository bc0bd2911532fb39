"""The policy as lm-evaluation-harness sees it. Importing this module imports the harness, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from rlhf_core.engines.protocols import TokenScorer
from rlhf_core.errors import ConfigError


class HarnessModel(TemplateLM):
    """Answers the harness's log-likelihood requests with shared contexts; tokenises as its own HFLM does."""

    def __init__(self, scorer: TokenScorer, tokenizer: Any, *, batch_size: int, advance: Callable[[int], None]) -> None:
        """`advance` is called with the number of requests just answered."""
        super().__init__()
        self.advance = advance
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.batch_size = batch_size

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id if begin is None else begin

    @property
    def max_length(self) -> int:
        return self.scorer.max_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Tokens of a text, with the tokenizer's own special tokens unless asked otherwise or already there."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return self.tokenizer.encode(string, **options)

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        return self.scorer.loglikelihoods(pairs, batch_size=self.batch_size, advance=self.advance)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of whole texts, in windows of the model's length, each token seen with what fits before it."""
        pairs: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, continuation in map(make_disjoint_window, windows):
                pairs.append((None, context, continuation))
                owners.append(owner)
        sums = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(pairs), strict=True):
            sums[owner] += value
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Refused: the gate compares answers item by item through log-likelihoods.

        Raises:
            ConfigError: always; names the task.
        """
        names = sorted({str(request.task_name) for request in requests})
        raise ConfigError(
            f"evaluation.benchmarks: {', '.join(names)} asks for generated text, and the gate scores multiple-choice "
            "items alone. Choose a multiple-choice task, such as mmlu, hellaswag or arc_easy."
        )
