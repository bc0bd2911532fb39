"""A key-value cache that never copies what it holds, and where no row's place depends on the other rows.

Prompts are read without padding, one after another; then each row's keys lie from place 0 on, and a new token is
written right after them. What a row attends to thus begins at the same place in a batch of 1 and of 32, and with widths
in steps of `WIDTH_STEP` the kernels add it up in the same order: attention gives the same bits (G4).

transformers' DynamicCache pads at the left and concatenates at each token, which on a CPU costs more than the
attention; its StaticCache attends to the whole room from the first token on.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from rlhf_core.numerics.head_matmul import autocast_dtype

WIDTH_STEP = 16
"""Widths in between made a row's attention differ by a rounding from one batch to another (measured: torch 2.13)."""


def rounded_width(tokens: int) -> int:
    """The least multiple of `WIDTH_STEP` that holds `tokens`."""
    return -(-tokens // WIDTH_STEP) * WIDTH_STEP


class RoomyLayer(CacheLayerMixin):
    """Keys and values of one layer: first those of the prompts, `[1, heads, tokens, size]`, then `[rows, heads, room,
    size]`."""

    is_sliding = False

    def __init__(self, batch: RoomyCache) -> None:
        super().__init__()
        self._batch = batch
        self._held: tuple[Tensor, Tensor] | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._held = (_as_attended(key_states), _as_attended(value_states))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self._held is None:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        rows, positions, width = self._batch.rows, self._batch.positions, self._batch.width
        for held, states in zip(self._held, (key_states, value_states), strict=True):
            held[rows, :, positions] = states[:, :, 0].to(held.dtype)
        keys, values = self._held
        return keys[: len(rows), :, :width], values[: len(rows), :, :width]

    def spread(self, index: Int[Tensor, "rows width"], room: int) -> None:
        """Give each row a room of its own and copy the prompts' tokens `index` into its beginning."""
        assert self._held is not None
        self._held = (_spread(self._held[0], index, room), _spread(self._held[1], index, room))

    def move_rows(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Copy the first `width` places of rows `sources` over those of rows `targets`."""
        assert self._held is not None
        for held in self._held:
            held[targets, :, :width] = held[sources, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._batch.width, 0

    def get_seq_length(self) -> int:
        return self._batch.width if self.is_initialized else 0

    def get_max_length(self) -> int:
        return -1


class RoomyCache(Cache):
    """One `RoomyLayer` for each layer of the model, and where the next token of each row goes."""

    def __init__(self, layers: int) -> None:
        self.rows = torch.empty(0, dtype=torch.long)
        self.positions = torch.empty(0, dtype=torch.long)
        self.width = 0
        self.roomy_layers = [RoomyLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self.roomy_layers))

    def spread(self, index: Int[Tensor, "rows width"], room: int) -> None:
        """After the prompts were read: row i holds the prompts' tokens `index[i]` and has room for `room`."""
        for layer in self.roomy_layers:
            layer.spread(index, room)

    def aim(self, positions: Int[Tensor, " rows"], longest: int) -> None:
        """The next token of row i goes to `positions[i]`, of which `longest` is the highest."""
        self.rows = torch.arange(len(positions), device=positions.device)
        self.positions = positions
        self.width = rounded_width(longest + 1)

    def move_rows(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Rows `sources`, of at most `width` tokens, take the places of rows `targets`."""
        for layer in self.roomy_layers:
            layer.move_rows(sources, targets, width)


def _as_attended(states: Tensor) -> Tensor:
    """In autocast's dtype, to which attention would convert all that is held, again and again at each token."""
    return states.to(autocast_dtype(states.device.type) or states.dtype)


def _spread(packed: Tensor, index: Tensor, room: int) -> Tensor:
    heads, size = packed.shape[1], packed.shape[3]
    # Zeros: what lies behind a row's end has the weight 0, and 0 times NaN would be NaN.
    held = packed.new_zeros(len(index), heads, room, size)
    held[:, :, : index.shape[1]] = packed[0][:, index].transpose(0, 1)
    return held
