"""The critic: a transformer body with one value per position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core.errors import ConfigError
from rlhf_core.models.value_context import ContextHeads

VALUE_HEAD = "value_head.safetensors"
_CONTEXT = "context."
_SCORE_NAMES = ("score.weight", "classifier.weight")


class ValueModel(nn.Module):
    """Body and scalar head. No language-model head is held. The head starts at 0 and works in float32.

    With `context` the head is hierarchical: what the sentence and the text so far are worth is added (A6).
    """

    def __init__(self, body: PreTrainedModel, context: ContextHeads | None = None) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(cast(int, body.config.hidden_size), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.context = context

    def values(
        self, hidden: Float[Tensor, "tokens hidden"], ids: Int[Tensor, " tokens"], lengths: Sequence[int]
    ) -> Float[Tensor, " tokens"]:
        """Return the value after each token, in reward units; it depends on the token's own sequence up to there.

        Args:
            hidden: of sequences that lie one after another.
            ids: their tokens.
            lengths: of the sequences.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            values = self.head(hidden).squeeze(-1)
            return values if self.context is None else values + self.context(hidden, ids, lengths)

    def load_head(self, folder: Path) -> None:
        """Take what the folder holds: a saved critic's heads, a reward model's score for the token's head, or nothing.

        Raises:
            ConfigError: a weight has another shape, a file is damaged, or the folder is of a critic of the other kind
                or with other weights of sentence and text.
        """
        weights = read_score_head(folder)
        if weights is None:
            return
        stored = {name.removeprefix(_CONTEXT): w for name, w in weights.items() if name.startswith(_CONTEXT)}
        if (folder / VALUE_HEAD).is_file():
            self._require_same_kind(stored, folder)
        self.set_head(weights)
        if self.context is not None and stored:
            self.context.load_state_dict(stored)

    def set_head(self, weights: dict[str, Tensor]) -> None:
        """Take `weight` `[1, hidden]` and, where given, `bias` `[1]`.

        Raises:
            ConfigError: the weight has another shape.
        """
        expected, found = tuple(self.head.weight.shape), tuple(weights["weight"].shape)
        if expected != found:
            raise ConfigError(
                f"the score head has shape {found}, the critic needs {expected}. Use a reward model with num_labels=1 "
                "and the critic's hidden size, or set model.critic_init=policy."
            )
        with torch.no_grad():
            self.head.weight.copy_(weights["weight"])
            if "bias" in weights:
                self.head.bias.copy_(weights["bias"])

    def save(self, folder: Path) -> None:
        """Write the body as a Hugging Face folder and the heads beside it."""
        self.body.save_pretrained(folder)
        heads = dict(self.head.state_dict())
        if self.context is not None:
            heads |= {_CONTEXT + name: tensor for name, tensor in self.context.state_dict().items()}
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in heads.items()}, folder / VALUE_HEAD)

    def _require_same_kind(self, stored: dict[str, Tensor], folder: Path) -> None:
        own = {} if self.context is None else self.context.state_dict()
        kinds = ["hierarchical" if context else "flat" for context in (own, stored)]
        shapes = [{name: tuple(tensor.shape) for name, tensor in context.items()} for context in (own, stored)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"{folder} holds a critic with a {kinds[1]} value head ({shapes[1] or 'no further parts'}); expected a "
                f"{kinds[0]} one ({shapes[0] or 'no further parts'}). Set model.value_head={kinds[1]}, or give another "
                "folder."
            )
        if own and not torch.equal(own["weights"].cpu(), stored["weights"]):
            raise ConfigError(
                f"{folder} holds a critic whose sentence and text count {stored['weights'].tolist()}; expected "
                f"model.value_head_weights={own['weights'].tolist()}. Set them to what the critic was trained with."
            )


def read_score_head(folder: Path) -> dict[str, Tensor] | None:
    """Return `weight` and perhaps `bias` of a saved critic's head or a reward model's score; None where there is none.

    Of a hierarchical critic also what its further heads hold, as `context.…`.

    Raises:
        ConfigError: a weight file is damaged.
    """
    if (folder / VALUE_HEAD).is_file():
        return _read(folder / VALUE_HEAD, None)
    for path in sorted(folder.glob("*.safetensors")):
        for name in _SCORE_NAMES:
            found = _read(path, {"weight": name})
            if found:
                return found
    return None


def _read(path: Path, names: dict[str, str] | None) -> dict[str, Tensor]:
    """The tensors that `names` calls by other names, or all by their own."""
    try:
        with cast(Any, safe_open(path, framework="pt")) as file:
            held = set(file.keys())
            wanted = {name: name for name in held} if names is None else names
            return {ours: file.get_tensor(theirs) for ours, theirs in wanted.items() if theirs in held}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Save the model again.") from error
