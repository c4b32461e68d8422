"""SQuAD's parts: which questions are read, a tiny run and its record, what a run costs."""

import functools
import json
import types
from dataclasses import replace

import numpy as np
import pytest

import made_squad_records as made
from experiments.squad import arms, cost, data, readings, tables, train
from experiments.squad.recipe import Recipe, Run
from experiments.squad.schema import check_record
from experiments.text.recipe import TextArm
from qkdyn.errors import DataError, InputError
from qkdyn.text.vocabulary import byte_bpe
from text.made import bpe_entries, made_squad, write

TINY = Recipe(
    vocabulary=300,
    n_layers=1,
    d_model=8,
    n_heads=2,
    d_mlp=8,
    n_ctx=168,
    questions=16,
    dev=6,
    selection=4,
    learned=4,
    batch=4,
    size=60,
    most=2,
    shapes=1,
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Vocabularies of fewer entries than GPT-2's."""
    monkeypatch.setattr(data, "byte_bpe", functools.partial(byte_bpe, expected=None))


def squad(titles, seed, questions=20):
    """A file of the articles of these titles, two paragraphs of two questions each and more."""
    content = made_squad(questions, seed)
    paragraphs = [p for article in content["data"] for p in article["paragraphs"]]
    content["data"] = [{"title": title, "paragraphs": paragraphs[i :: len(titles)]} for i, title in enumerate(titles)]
    return content


def write_squad(root, train, dev, version="v1.1"):
    entries, merges = bpe_entries()
    write(root / "gpt2_bpe" / "encoder.json", json.dumps(entries))
    write(root / "gpt2_bpe" / "vocab.bpe", "\n".join(["#version: 0.2", *merges]) + "\n")
    write(root / "squad" / f"train-{version}.json", json.dumps(train))
    write(root / "squad" / f"dev-{version}.json", json.dumps(dev))
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    titles = [*(f"Article {i}" for i in range(9)), "", ""]
    return write_squad(tmp_path_factory.mktemp("data"), squad(titles, 1, 60), squad(["Dev"], 2))


# Which questions are read.


def test_articles_are_split_and_questions_drawn(folder):
    found = data.load(TINY, folder)
    every = data.read_squad(folder / "squad/train-v1.1.json")
    kept, held = data.split_by_article(every)
    assert {q.title for q in kept}.isdisjoint({q.title for q in held} - {""}) and len(kept) + len(held) == len(every)
    untitled = [{q.context for q in part if not q.title} for part in (kept, held)]
    assert not untitled[0] & untitled[1] and held
    # One article at most is in both: untitled paragraphs are held out from some place on.
    order = list(dict.fromkeys(q.context for q in every if not q.title))
    assert untitled[1] == set(order[len(order) - len(untitled[1]) :])
    assert set(found.train.ids) <= {q.id for q in kept} and set(found.selection.ids) <= {q.id for q in held}
    assert [len(p.ids) for p in (found.train, found.selection, found.dev, found.learned)] == [16, 4, 6, 4]
    assert set(found.learned.ids) < set(found.train.ids) and found.learned.ids != found.train.ids[:4]
    assert found.vocabulary.size == 300
    assert any("name no article" in note for note in found.notes)
    assert data.load(TINY, folder).train.ids == found.train.ids
    assert data.load(replace(TINY, drawn=2), folder).train.ids != found.train.ids
    # As published: the first dev questions, no matter which articles; all of train is drawn from.
    coded = data.load(replace(TINY, chosen_by="dev", questions=10**6), folder)
    assert coded.selection.ids == tuple(q.id for q in data.read_squad(folder / "squad/dev-v1.1.json")[:4])
    assert len(coded.train.ids) == len(every)


def test_what_cannot_be_asked_is_counted_and_named(tmp_path):
    train_on, dev = squad(["A", "B", "C", "D"], 1, 40), squad(["Dev"], 2)
    one, two, three = (article["paragraphs"][0]["qas"][0] for article in train_on["data"][:3])
    one["is_impossible"], one["answers"] = True, []
    two["answers"][0]["text"] = "not there"
    three["question"] = "kuzo " * 300
    write_squad(tmp_path, train_on, dev, "v2.0")
    found = data.load(replace(TINY, chosen_by="dev", questions=100), tmp_path)
    said = "\n".join(found.notes)
    assert f"train-v2.0.json: 1 questions without an answer, left out: {one['id']}" in said
    assert f"1 questions whose first answer is not at its place in the context, left out: {two['id']}" in said
    assert f"train: 1 questions that leave no room for a context, left out: {three['id']}" in said
    assert set(found.train.ids).isdisjoint({one["id"], two["id"], three["id"]}) and len(found.train.ids) == 37
    assert "2.0" in tables.title([{"data": found.counts}], arms.protocol("quick"), "quick")
    for article in dev["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                question["answers"] = []
    write_squad(tmp_path, train_on, dev, "v2.0")
    with pytest.raises(DataError, match=r"dev-v2\.0\.json has no question with an answer"):
        data.load(TINY, tmp_path)


def test_damaged_files_are_named_before_any_training(folder, tmp_path):
    bad = squad(["A"], 1)
    bad["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 10**6
    write_squad(tmp_path, bad, squad(["Dev"], 2))
    with pytest.raises(DataError, match=r"train-v1\.1\.json: .*answer_start must be within"):
        data.load(TINY, tmp_path)
    with pytest.raises(DataError, match="leaves no question to select by"):
        write_squad(tmp_path, squad(["Article 0"], 1), squad(["Dev"], 2))
        data.load(TINY, tmp_path)
    with pytest.raises(DataError, match="files of squad were not found"):
        data.load(TINY, tmp_path / "nowhere")
    with pytest.raises(InputError, match="size must be from 257"):
        data.load(replace(TINY, vocabulary=100), folder)
    vectors = write(tmp_path / "glove.txt", "ba 1 2 3\n")
    with pytest.raises(DataError, match=r"glove\.txt has 3 numbers a word, the model 8"):
        data.load(TINY, folder, vectors)
    known = data.load(TINY, folder, write(tmp_path / "glove.txt", "ba " + "0.5 " * 7 + "1\n"))
    assert known.vectors is not None and "glove.txt" in known.notes[-1] and np.isfinite(known.vectors).all(1).sum() == 1


def test_questions_that_are_evaluated_are_not_trained_on(tmp_path):
    train_on, dev = squad(["A", "B", "C", "D"], 1, 40), squad(["Dev"], 2)
    first, second, other = (article["paragraphs"][0] for article in (*train_on["data"][:2], dev["data"][0]))
    # The same id, and the same question on the same paragraph; the same question on another is another.
    first["qas"][0]["id"] = other["qas"][0]["id"]
    train_on["data"][2]["paragraphs"].append(other | {"qas": [other["qas"][1] | {"id": "again"}]})
    second["qas"][0]["question"] = other["qas"][0]["question"]
    write_squad(tmp_path, train_on, dev)
    found = data.load(replace(TINY, chosen_by="dev", questions=100), tmp_path)
    assert "2 questions of train-v1.1.json that dev-v1.1.json has too, left out" in found.notes
    assert not {"again", other["qas"][0]["id"]} & set(found.train.ids)
    assert second["qas"][0]["id"] in found.train.ids and len(found.train.ids) == 39
    # Likewise what an article to select by has.
    out = next(title for title in map(str, range(99)) if data.zlib.crc32(title.encode()) % data.SHARE == 0)
    train_on = squad([out, "A", "B"], 1, 40)
    shown = train_on["data"][0]["paragraphs"][0]
    train_on["data"][1]["paragraphs"].append(shown | {"qas": [shown["qas"][0] | {"id": "again"}]})
    write_squad(tmp_path, train_on, squad(["Dev"], 2))
    found = data.load(replace(TINY, questions=100), tmp_path)
    assert "1 questions to train on that those to select by have too, left out" in found.notes
    assert "again" not in found.train.ids and len(found.train.ids) == 40 - sum(
        len(paragraph["qas"]) for paragraph in train_on["data"][0]["paragraphs"]
    )
    write_squad(tmp_path, dev, dev)
    with pytest.raises(
        DataError, match=r"leaves no question to train on \(20 questions of train-v1.1.json that dev-v1"
    ):
        data.load(TINY, tmp_path)


def test_too_few_and_too_long_questions_are_named_with_their_file(tmp_path):
    write_squad(tmp_path, squad(["A", "B"], 1, 8), squad(["Dev"], 2))
    own = replace(TINY, chosen_by="dev", batch=4, micro=3)
    told = r"train-v1\.1\.json leaves 8 questions to train on, and an update needs 9; take a file of more questions"
    with pytest.raises(DataError, match=told):
        data.load(own, tmp_path)
    assert len(data.load(replace(own, micro=2), tmp_path).train.ids) == 8
    dev = squad(["Dev"], 2)
    for paragraph in dev["data"][0]["paragraphs"]:
        for one in paragraph["qas"]:
            one["question"] = "why " * 300
    write_squad(tmp_path, squad(["A", "B"], 1, 20), dev)
    told = (
        r"dev-v1\.1\.json: questions of (selection|dev) must be .*, got '\d+ questions, \d+ .*, \d of these too long'"
    )
    with pytest.raises(InputError, match=told):
        data.load(replace(own, micro=1), tmp_path)


def test_the_loss_of_token_frequencies(folder):
    found = data.load(TINY, folder)
    p, V = found.train, found.vocabulary.size
    counts = np.ones(V)
    for row, n in zip(p.answer, p.answer_length, strict=True):
        for token in row[:n]:
            counts[token] += 1
    by_hand = [
        -np.log(counts[row[:n]] / counts.sum()).mean()
        for row, n in zip(found.dev.answer, found.dev.answer_length, strict=True)
    ]
    assert train.unigram_loss(p, found.dev, V) == pytest.approx(np.mean(by_hand))


# A run and its record: training and readings are made, what is asked of them and done with them is not.


class Campaign:
    """Four updates an epoch of falling loss; F1 on the selection questions is what `f1` says of each epoch."""

    f1, diverges = (0.3, 0.6, 0.5), None

    def __init__(self, job, seed, prompts, batch, epochs, measure, store, request, **named):
        assert job.steps == 2 * epochs and (seed, batch, named["by_length"]) == (7, 4, True)
        self.epochs, self.measure, self.tokens, self.seconds = epochs, measure, 100.0, 2.0

    def finish(self, run, key, heard):
        records, best = {"losses": np.zeros(0)}, (-1.0, 0)
        for epoch in range(self.epochs):
            bad = epoch + 1 == self.diverges
            new = np.array([2.0, np.nan] if bad else [4.0 - epoch, 3.0 - epoch])
            records["losses"] = np.append(records["losses"], new)
            if bad:
                break
            records = self.measure(types.SimpleNamespace(params=epoch), epoch, records)
            best = max(best, (self.f1[epoch], epoch + 1), key=lambda pair: pair[0])
            assert records["selection/f1"][-1] == pytest.approx(self.f1[epoch])
            heard(2 * epoch + 2, records)
        records["best/epoch"] = np.array(best[1])
        return types.SimpleNamespace(params=self.epochs - 1), best[1] - 1, records


def made_read(how, params, prompts, vocabulary, *, batch, widths, faithful):
    """Every question alike, by the epoch that the parameters stand for."""
    n, names = len(prompts.ids), [*made.NAMES, *made.UNIFORM, "f1", "shown"]
    found = {name: np.full(n, 0.1 * (params + 1)) for name in names if not name.startswith(("ac", "uniform_ac"))}
    found |= {"f1": np.full(n, Campaign.f1[params]), "steps": np.full(n, 3), "uniform_head_mass": np.full(n, 0.2)}
    found |= {f"head_{name}": np.tile(np.array([0.1, 0.3]), (n, 1)) for name in ("mass", "entropy")}
    return {name: v for name, v in found.items() if faithful or name not in ("comprehensiveness", "sufficiency")}


@pytest.fixture
def trained(folder, monkeypatch):
    """Trains a run of three epochs: its record as it is read back."""
    monkeypatch.setattr(train, "LanguageCampaign", Campaign)
    monkeypatch.setattr(train, "read", made_read)
    questions, run = data.load(TINY, folder), Run(TextArm("base", 3), 7)

    def record(recipe=TINY):
        found = train.train_run(recipe, run, questions, None, None, lambda share, said: None)
        found |= {"cost": cost.cost_of(recipe, run, questions)._asdict(), "arm": {"name": "base", "seed": 7}}
        check_record(json.loads(json.dumps(found)), run)
        return found

    return record


def test_a_run_leaves_a_record_as_it_is_checked(trained):
    record = trained()
    (own,) = record["runs"]
    assert own["diverged_at"] is None and own["epochs"]["training_loss"] == [3.5, 2.5, 1.5]
    assert own["epochs"]["selection"]["f1"] == [0.3, 0.6, 0.5] and own["best"]["epoch"] == 2
    # Parameters of the third epoch at the end, of the second at the best.
    assert own["end"]["dev"]["mass"] == pytest.approx(0.3) and own["best"]["dev"]["mass"] == pytest.approx(0.2)
    dev, selection = own["best"]["dev"], own["best"]["selection"]
    assert "sufficiency" in dev and "sufficiency" not in selection and np.sum(dev["dtap"]) == pytest.approx(100)
    assert dev["heads"] == [{"mass": 0.1, "entropy": 0.1}, {"mass": 0.3, "entropy": 0.3}] and dev["head_mass"] == 0.2
    for quantity in readings.QUANTITIES:
        assert quantity.name in dev and quantity.uniform in (None, *dev), quantity
    assert record["baselines"]["token_frequencies"]["loss"] > 0 and "nearest" in record["baselines"]
    assert record["tokens_per_second"] == 50 and record["data"]["train"] == 16


def test_a_run_that_diverges_is_marked(trained, monkeypatch):
    monkeypatch.setattr(Campaign, "diverges", 3)
    (own,) = trained()["runs"]
    assert own["diverged_at"] == 3 and own["epochs"]["training_loss"] == [3.5, 2.5, None]
    assert own["end"] == {"train": {}, "selection": {}, "dev": {}} and own["best"]["dev"]["mass"] == pytest.approx(0.2)
    monkeypatch.setattr(Campaign, "diverges", 1)
    (own,) = trained()["runs"]
    assert own["diverged_at"] == 1 and own["best"] == {"epoch": 0, "train": {}, "selection": {}, "dev": {}}


def test_an_epoch_that_cannot_be_read_is_never_the_best(folder, monkeypatch):
    monkeypatch.setattr(train, "read", made_read)
    reader = train.Reader(TINY, data.load(TINY, folder))
    monkeypatch.setattr(Campaign, "f1", (np.nan, 0.6))
    records = reader.epoch(types.SimpleNamespace(params=0), 0, {})
    records = reader.epoch(types.SimpleNamespace(params=1), 1, records)
    assert records["selection/f1"].tolist() == [-1.0, 0.6] and np.isnan(records["read/f1"][0])


def test_no_decay_of_token_vectors_and_rates_as_said():
    own = train.run_of(Run(TextArm("fast", 2, 5e-5, qk=20.0, embed=0.1, decay=0.05), 1))
    assert own.decay["embed"] == 0 and own.decay["qk"] == own.decay["rest"] == 0.05
    assert own.rate == 5e-5 and own.multipliers["qk"] == 20 and own.multipliers["embed"] == 0.1


# What a run costs.


def test_cost_counts_the_products_of_the_model():
    recipe = replace(TINY, n_layers=2, d_model=16, d_mlp=32, n_heads=2)
    # Two layers: four matrices d x d, two d x m, scores and values over 10 slots; then the head of 300 rows.
    by_hand = 2 * (40 * 2 * (4 * 256 + 2 * 16 * 32 + 2 * 10 * 16) + 5 * 16 * 300)
    assert cost.forward(recipe, 40, 10, 5) == by_hand
    price = cost.Cost(10, 1000, 6e9, 4e9)
    assert cost.expected(price, [], lambda: 1e10)[0] == pytest.approx((6 + 4 * cost.READS) / 10 / cost.REACHED)
    assert cost.expected(price, [(price, 8.0), (price, 12.0)], lambda: 1e10)[0] == pytest.approx(10.0)
