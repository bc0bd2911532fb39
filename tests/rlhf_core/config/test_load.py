"""A configuration is read as written, and a wrong one is refused with the field's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlhf_core.config.load import config_hash, dump_config, load_config, presets
from rlhf_core.errors import ConfigError

MINIMAL = {
    "name": "x",
    "data": {
        "prompts": [{"path": "p.jsonl"}],
        "preferences": {"train": [{"path": "q.jsonl"}]},
        "ptx": [{"path": "t.txt"}],
    },
    "model": {"policy": "m"},
}


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_a_dumped_configuration_reads_back_as_itself(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    again = load_config(write(tmp_path, dump_config(config)))
    assert again == config and config_hash(again) == config_hash(config)


def test_every_preset_is_valid_by_hub_and_by_local_files():
    for name in presets():
        assert load_config(name, ["data.root=somewhere"]).name
        if "or_hub" in presets()[name].read_text():
            hub = load_config(name)
            assert all(source.path.startswith("hub:") for source in hub.data.prompts)


def test_overrides_reach_nested_fields_and_later_ones_win(tmp_path):
    path = write(tmp_path, MINIMAL)
    config = load_config(path, ["ppo.actor.learning_rate=5e-7", "rounds=3", "rounds=4", "data.prompts.0.limit=7"])
    assert (config.ppo.actor.learning_rate, config.rounds, config.data.prompts[0].limit) == (5e-7, 4, 7)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("ppo.actor.learning_rat=1", ["ppo.actor.learning_rat", "did you mean 'learning_rate'"]),
        ("ppo.clip_range=3", ["ppo.clip_range", "less than 1", "found 3"]),
        ("rollout.max_new_tokens=many", ["rollout.max_new_tokens", "integer", "'many'", "length limit"]),
        ("kl.target_nats=0", ["kl.target_nats", "greater than 0"]),
        ("ppo.micro_batch_rollouts=3", ["micro_batch_rollouts=3", "[1, 2, 4, 8]"]),
        ("rounds", ["dotted.key=value"]),
        ("name.x=1", ["below a plain value"]),
        ("data.prompts.3.path=z", ["index from 0 to 0"]),
        ("rounds=[", ["not valid YAML"]),
        ("model.policy=null", ["model.policy"]),
        ("name=../escape", ["name"]),
    ],
)
def test_a_wrong_override_names_the_field_and_the_cure(tmp_path, override, words):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, MINIMAL), [override])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("content", "word"), [("- 1", "a list"), ("", "nothing"), ("a: [", "not valid YAML"), ("name: x", "missing")]
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, word):
    with pytest.raises(ConfigError, match=word):
        load_config(write(tmp_path, content))


def test_an_unknown_name_lists_the_presets():
    with pytest.raises(ConfigError, match="smollm2_hh"):
        load_config("no-such-thing")


def test_a_folder_or_binary_file_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"data": {"prompts": [{"path": "p"}], "preferences": {"train": [{"path": "q"}]}}}, "ppo.ptx.enabled"),
        ({"data": {"prompts": [{"path": "p"}], "ptx": [{"path": "t"}]}}, "no reward model"),
        ({"reward": {"scorer": "callable"}}, "reward.callable"),
        ({"decisions": {"tolerated_drop": 0.1}}, "tolerated_drop"),
        ({"rollout": {"max_new_tokens": 3}}, "min_response_tokens=5"),
        ({"kl": {"start": 0.9}}, "kl.start"),
        ({"evaluation": {"benchmarks": [{"name": "mmlu", "format": "mmlu_csv"}]}}, "path"),
        ({"data": MINIMAL["data"] | {"general_fraction": 0.1}}, "data.sft"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_the_way_out(tmp_path, change, word):
    with pytest.raises(ConfigError, match=word):
        load_config(write(tmp_path, MINIMAL | change))
