"""A key-value cache that never copies what it holds: room is taken once, and rows that are done make place.

transformers' DynamicCache concatenates at each token, which on a CPU costs more than the attention itself; its
StaticCache attends to the whole room from the first token on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class RoomyLayer(CacheLayerMixin):
    """Keys and values of one layer, `[rows, heads, room, head_dim]`, of which the first `length` places are in use."""

    is_sliding = False

    def __init__(self, room: int, length: int = 0) -> None:
        super().__init__()
        self.room = room
        self.length = length
        self.rows = 0
        self._keys = torch.empty(0)
        self._values = torch.empty(0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.rows = key_states.shape[0]
        self._keys = key_states.new_empty(*key_states.shape[:2], self.room, key_states.shape[3])
        self._values = value_states.new_empty(*value_states.shape[:2], self.room, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self._keys[: self.rows, :, self.length : end] = key_states
        self._values[: self.rows, :, self.length : end] = value_states
        self.length = end
        return self._keys[: self.rows, :, :end], self._values[: self.rows, :, :end]

    def repeat_rows(self, index: Tensor) -> None:
        """Row i becomes a copy of row `index[i]`: prompts that several responses share are read once."""
        self.rows = len(index)
        self._keys, self._values = self._keys[index], self._values[index]

    def move_rows(self, sources: Tensor, targets: Tensor, rows: int) -> None:
        """Copy rows `sources` over rows `targets`, then forget the rows from `rows` on."""
        for held in (self._keys, self._values):
            held[targets, :, : self.length] = held[sources, :, : self.length]
        self.rows = rows

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class RoomyCache(Cache):
    """One `RoomyLayer` for each layer of the model."""

    def __init__(self, layers: int, room: int) -> None:
        self.roomy_layers = [RoomyLayer(room) for _ in range(layers)]
        super().__init__(layers=list(self.roomy_layers))

    def repeat_rows(self, index: Tensor) -> None:
        for layer in self.roomy_layers:
            layer.repeat_rows(index)

    def move_rows(self, sources: Tensor, targets: Tensor, rows: int) -> None:
        for layer in self.roomy_layers:
            layer.move_rows(sources, targets, rows)
