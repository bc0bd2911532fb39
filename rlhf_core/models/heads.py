"""The critic: a transformer body with one value per position."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core.errors import ConfigError

VALUE_HEAD = "value_head.safetensors"
_SCORE_NAMES = ("score.weight", "classifier.weight")


class ValueModel(nn.Module):
    """Body and scalar head. No language-model head is held. The head starts at 0 and works in float32."""

    def __init__(self, body: PreTrainedModel) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(cast(int, body.config.hidden_size), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def values(self, hidden: Float[Tensor, "tokens hidden"]) -> Float[Tensor, " tokens"]:
        """Return the value of each hidden state, in reward units."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.float()).squeeze(-1)

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
        """Write the body as a Hugging Face folder and the head beside it."""
        self.body.save_pretrained(folder)
        head = {name: tensor.detach().cpu().contiguous() for name, tensor in self.head.state_dict().items()}
        save_file(head, folder / VALUE_HEAD)


def read_score_head(folder: Path) -> dict[str, Tensor] | None:
    """Return `weight` and perhaps `bias` of a saved critic's head or a reward model's score; None where there is none.

    Raises:
        ConfigError: a weight file is damaged.
    """
    if (folder / VALUE_HEAD).is_file():
        return _read(folder / VALUE_HEAD, {"weight": "weight", "bias": "bias"})
    for path in sorted(folder.glob("*.safetensors")):
        for name in _SCORE_NAMES:
            found = _read(path, {"weight": name})
            if found:
                return found
    return None


def _read(path: Path, names: dict[str, str]) -> dict[str, Tensor]:
    try:
        with cast(Any, safe_open(path, framework="pt")) as file:
            held = set(file.keys())
            return {ours: file.get_tensor(theirs) for ours, theirs in names.items() if theirs in held}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Save the model again.") from error
