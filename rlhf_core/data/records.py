"""Columns of the tables that stages exchange as Parquet."""

from __future__ import annotations

import pyarrow as pa

_INTS = pa.list_(pa.int32())
_FLOATS = pa.list_(pa.float32())

PROMPT_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("domain", pa.string()),
        ("prompt", pa.string()),
        ("prompt_ids", _INTS),
    ]
)
"""`prompt` is the user's text, `prompt_ids` the tokens after the chat template."""

ROLLOUT_SCHEMA = pa.schema(
    [
        ("iteration", pa.int32()),
        ("prompt_id", pa.string()),
        ("sample_index", pa.int32()),
        ("domain", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("prompt_ids", _INTS),
        ("response_ids", _INTS),
        ("engine_logprobs", _FLOATS),
        ("seed", pa.int64()),
        ("finish_reason", pa.string()),
        ("ending", pa.string()),
        ("attempts", pa.int32()),
        ("rejected_by", pa.string()),
        ("policy_step", pa.int32()),
    ]
)
"""A sampled response. `response_ids` hold the EOS if the policy sampled it. `rejected_by` is null for accepted ones."""

REPLACED_SCHEMA = pa.schema(
    [
        ("iteration", pa.int32()),
        ("prompt_id", pa.string()),
        ("sample_index", pa.int32()),
        ("domain", pa.string()),
        ("prompt", pa.string()),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("rejected_by", pa.string()),
        ("token_ids", _INTS),
    ]
)
"""A safe reply, `chosen`, and the response in whose place it stands; `token_ids` are prompt, reply and EOS."""

SCORED_SCHEMA = pa.schema(
    [
        *ROLLOUT_SCHEMA,
        ("reward_raw", pa.float64()),
        ("reward", pa.float64()),
        ("valid", pa.bool_()),
        ("exclude_reason", pa.string()),
    ]
)
"""`reward_raw` is the scorer's, `reward` the normalised, clipped and penalised one."""

SAMPLED_TENSORS = (
    "prompt_ids",
    "response_ids",
    "prompt_mask",
    "response_mask",
    "old_logprobs",
    "ref_logprobs",
    "old_values",
    "rewards",
    "advantages",
    "returns",
    "importance",
)
"""Tensors of `experience.safetensors`; prompts left-padded, responses right-padded, one row per rollout.

Iterations with exploration noise have `policy_logprobs` besides: the trainer's own, where `old_logprobs` are the
engine's, of the noisy distribution.
"""
