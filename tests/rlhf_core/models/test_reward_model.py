import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_core.config.models import ModelConfig
from rlhf_core.errors import ConfigError
from rlhf_core.models.reward_model import DialogueForm, RewardModel, load_reward_model, new_reward_model
from rlhf_core.numerics import head_matmul
from tests.tiny_model import make_tiny_model

CPU = torch.device("cpu")
FORM = DialogueForm(max_tokens=64)
TEXTS = ["the cat", "where is the river ?", "a", "polite thanks for the question and the answer"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", pad_is_eos=True)


@pytest.fixture(scope="module")
def reward_model(folder) -> RewardModel:
    """An untrained body with a random head."""
    made = new_reward_model(ModelConfig(policy=str(folder)), AutoTokenizer.from_pretrained(folder), FORM, CPU)
    torch.nn.init.normal_(made.model.score.weight, generator=torch.Generator().manual_seed(0))
    return made


def dialogues(reward_model: RewardModel) -> list[list[int]]:
    return [
        reward_model.encode_dialogue(text, reply) for text in TEXTS for reply in ("yes", "the river is blue and wide")
    ]


def test_a_new_model_scores_everything_zero(folder):
    fresh = new_reward_model(ModelConfig(policy=str(folder)), AutoTokenizer.from_pretrained(folder), FORM, CPU)
    assert not fresh.score_dialogues(dialogues(fresh), 3).any()


def test_case_E07_a_score_does_not_depend_on_its_batch(reward_model):
    texts = dialogues(reward_model)
    alone = torch.cat([reward_model.score_dialogues([ids], 1) for ids in texts])
    assert alone.std() > 1e-3
    for batch_size in (3, 8):
        torch.testing.assert_close(reward_model.score_dialogues(texts, batch_size), alone, rtol=0, atol=1e-4)


def test_case_E02_the_score_is_read_at_eos_though_it_is_the_pad_token(reward_model):
    tokenizer = reward_model.tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    for ids in dialogues(reward_model):
        assert ids[-1] == tokenizer.eos_token_id
        with torch.no_grad():
            hidden = reward_model.body(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
            want = hidden @ reward_model.model.score.weight[0]
        torch.testing.assert_close(reward_model.score_dialogues([ids], 1)[0], want, rtol=0, atol=1e-5)


def test_pairs_that_share_a_prompt_score_as_the_two_dialogues_do(reward_model):
    rows = [(text, "yes", "the river is blue and wide") for text in TEXTS]
    found = reward_model.score_pairs([reward_model.encode_pair(*row) for row in rows], 3)
    want = [[reward_model.encode_dialogue(p, c), reward_model.encode_dialogue(p, r)] for p, c, r in rows]
    separate = torch.stack([reward_model.score_dialogues(pair, 2) for pair in want])
    torch.testing.assert_close(found, separate, rtol=0, atol=1e-4)


def test_a_dialogue_is_cut_from_the_front(reward_model, folder):
    short = RewardModel(reward_model.model, reward_model.tokenizer, DialogueForm(max_tokens=8))
    whole = reward_model.encode_dialogue(TEXTS[3], "the river is blue")
    assert len(whole) > 8
    assert short.encode_dialogue(TEXTS[3], "the river is blue") == whole[-8:]


def test_the_saved_folder_scores_alike_in_plain_transformers_and_when_loaded(reward_model, tmp_path):
    reward_model.save(tmp_path)
    texts = dialogues(reward_model)
    want = reward_model.score_dialogues(texts, 4)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    width = max(map(len, texts))
    ids = torch.tensor([row + [plain.config.pad_token_id] * (width - len(row)) for row in texts])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in texts])
    with torch.no_grad():
        torch.testing.assert_close(plain(input_ids=ids, attention_mask=mask).logits[:, 0], want, rtol=0, atol=1e-4)
    loaded = load_reward_model(str(tmp_path), FORM, CPU)
    torch.testing.assert_close(loaded.score_dialogues(texts, 4), want)


def test_bfloat16_autocast_keeps_float32_weights_and_scores(reward_model, monkeypatch):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: True)
    half = RewardModel(reward_model.model, reward_model.tokenizer, DialogueForm(64, autocast="bfloat16"))
    texts = dialogues(reward_model)
    scores, want = half.score_dialogues(texts, 4), reward_model.score_dialogues(texts, 4)
    assert scores.dtype == torch.float32 and not torch.equal(scores, want)
    torch.testing.assert_close(scores, want, rtol=0, atol=0.2)


def test_a_language_model_is_no_reward_model(folder):
    with pytest.raises(ConfigError, match=r"no reward model .*score\.weight"):
        load_reward_model(str(folder), FORM, CPU)


def test_a_reward_model_without_tokenizer_is_refused(reward_model, tmp_path):
    reward_model.model.save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match="tokenizer"):
        load_reward_model(str(tmp_path), FORM, CPU)


def test_an_architecture_without_score_head_is_refused(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    BertForSequenceClassification(
        BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=1
        )
    ).save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match="no head named `score`"):
        new_reward_model(ModelConfig(policy=str(tmp_path)), None, FORM, CPU)
