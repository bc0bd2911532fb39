"""The random Llama that both sides train, with a tokenizer that knows three special tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, EOS = 0, 1
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_model_folder(folder: Path, *, layers: int, seed: int = 0) -> Path:
    """Write the model (135M parameters with 30 layers) into `folder` unless it is there; returns the folder."""
    if (folder / "tokenizer.json").is_file():
        return folder
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = models.WordLevel({"<pad>": PAD, "<eos>": EOS, "<bos>": 2}, unk_token="<bos>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )
    tokenizer.chat_template = _TEMPLATE
    tokenizer.padding_side = "left"
    tokenizer.save_pretrained(folder)
    return folder
