"""BERT and RoBERTa for long documents: short texts as before, and long ones as transformers' Longformer reads them."""

import numpy as np
import pytest
import torch
import transformers
from support.batches import pack
from support.family import small
from support.stories import stories

import bertkit
from bertkit.bundle.bundle import Bundle, load_bundle, save_bundle
from bertkit.bundle.changes import lengthen
from bertkit.bundle.members import FAMILIES
from bertkit.data.inputs import pack_units
from bertkit.data.records import Question
from bertkit.errors import InputError
from bertkit.tasks import TASKS
from bertkit.tasks.network import build_network
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.task import TaskSettings
from bertkit.train.finetuning import tuned_network, tuning_job
from bertkit.train.fit import fit
from bertkit.train.recipe import Optimizer, Tuning


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "s.txt").write_text("\n\n".join(stories(200, 0)) + "\n")
    return bertkit.learn_vocabulary([folder / "s.txt"], 400, folder / "v", kind="bpe").tokenizer


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
def test_within_the_window_nothing_changes(name, tokenizer):
    torch.manual_seed(0)
    network = Pretraining(small(name, vocabulary=len(tokenizer)), next_sentence=False).eval()
    longer = lengthen(Bundle(network, tokenizer, FAMILIES[name]), 300, 40)
    batch = pack([np.arange(5, 35), np.arange(7, 20)])
    with torch.no_grad():
        torch.testing.assert_close(longer.network.encoder(batch), network.encoder(batch), atol=1e-5, rtol=0)
        assert longer.network.encoder(pack([np.arange(5, 305)])).isfinite().all()


def test_what_cannot_be_lengthened_is_said(tokenizer):
    network = Pretraining(small("albert", vocabulary=len(tokenizer)))
    with pytest.raises(InputError, match=r"this model \(albert\) cannot be lengthened; expected BERT or RoBERTa"):
        lengthen(Bundle(network, tokenizer, FAMILIES["albert"]), 300, 40)


@pytest.fixture(scope="module")
def question(tokenizer):
    """A question on some 3,000 pieces, answered at their end."""
    text = " ".join(stories(80, 1))
    while len(tokenizer.pieces([text])[0]) > 2900:
        text = text[: int(len(text) * 0.97)]
    context = f"{text} The treasure lies under the mill."
    return Question("Where does the treasure lie?", context, (("under the mill", context.index("under the mill")),))


@pytest.fixture(scope="module")
def task():
    return TASKS["qa"](TaskSettings(task="qa", max_length=3400))


def test_a_long_document_is_read_as_the_reference_does(tokenizer, question, task, tmp_path):
    torch.manual_seed(0)
    config = small("longformer", vocabulary=len(tokenizer), positions=4096, window=64, layers=2)
    network = build_network(config, task).eval()
    (unit,) = task.units([question], tokenizer)
    assert len(unit) == 1 and len(unit[0]) > 2800
    save_bundle(Bundle(network, tokenizer, FAMILIES["longformer"], task=task), tmp_path / "m")
    theirs = transformers.LongformerForQuestionAnswering.from_pretrained(tmp_path / "m").eval()
    with torch.no_grad():
        mine = network.logits(pack_units([unit], task.layout))
        found = theirs(input_ids=torch.from_numpy(unit[0].ids[None]).long())
    torch.testing.assert_close(mine[:, 0], found.start_logits[0], atol=5e-5, rtol=0)
    torch.testing.assert_close(mine[:, 1], found.end_logits[0], atol=5e-5, rtol=0)


def test_an_answer_at_the_end_is_found(tokenizer, question, task, tmp_path):
    torch.manual_seed(0)
    config = small("longformer", vocabulary=len(tokenizer), positions=4096, window=32, layers=1)
    rate = Optimizer(lr=1e-2 * (32 / 768) ** 1.5)
    recipe = Tuning(task=task.settings, precision="fp32", epochs=40.0, batch=1, optimizer=rate, row_tokens=4096)
    network = tuned_network(recipe, task, Pretraining(config, next_sentence=False), [question])
    bundle = Bundle(network, tokenizer, FAMILIES["longformer"], task=task)
    device = torch.device("cpu")
    job = tuning_job(
        tmp_path / "r", recipe, task, network, tokenizer, [question], [], device, lambda to: save_bundle(bundle, to)
    )
    fit(job)
    model = bertkit.load(tmp_path / "r" / "model", device="cpu")
    assert load_bundle(tmp_path / "r" / "model").family.name == "longformer"
    assert model.ask(question.question, question.context).text == "under the mill"


def test_a_head_by_another_activation_stays_short(tokenizer):
    network = Pretraining(small("bert", vocabulary=len(tokenizer), activation="relu"), next_sentence=False)
    with pytest.raises(InputError, match="masked head is by relu; a Longformer's is by gelu"):
        lengthen(Bundle(network, tokenizer, FAMILIES["bert"]), 300, 40)
