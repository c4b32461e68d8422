"""Sentences as a recipe has them: recipes, repetitions, mixes, splits, where subjects and attractors are."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from experiments import table1_sva
from experiments.text import sva_data
from experiments.text.recipe import Recipe
from experiments.text.sva_recipe import SvaRecipe
from experiments.text.task import HATEXPLAIN, SVA
from qkdyn.config import as_dict, digest
from qkdyn.errors import DataError, InputError
from qkdyn.text.sva import LABELS, hash_split, read_sva
from text.made import made_posts, write, write_data

COLUMNS = "source\tsentence\tverb_pos\tsubj_index\tverb_index\tn_diff_intervening"
RECIPE = SvaRecipe(n_ctx=16, positions=17)
SENTENCES = replace(RECIPE, rows="sentences", relevant="subject_and_verb", split="published")
NOUNS = ("key", "cat", "dog", "king")


def preambles():
    """The keys of the cabinet, and so on: numbered so that all differ, half of them picked for an attractor."""
    for number in range(400):
        noun, plural, attractor = NOUNS[number % 4], number % 3 == 0, number % 2
        other = NOUNS[(number + 1) % 4] + "s" * (plural != attractor)
        words = f"n{number} the {noun + 's' * plural} of the {other}".split()
        yield "hard:1" if attractor else "val", words, LABELS[plural], 3, attractor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Preambles, each with a verb as a sentence; the first twice, then with another label."""
    home = tmp_path_factory.mktemp("sva")
    lines, whole = [COLUMNS], [COLUMNS]
    for source, words, label, subject, attractors in preambles():
        lines.append("\t".join([source, " ".join(words), label, str(subject), str(len(words) + 1), str(attractors)]))
        verb = "is" if label == "VBZ" else "are"
        whole.append(
            "\t".join(
                [source, " ".join([*words, verb, "."]), label, str(subject), str(len(words) + 1), str(attractors)]
            )
        )
    lines += [lines[1], lines[1].replace("VBP", "VBZ")]
    (home / "preambles.tsv").write_text("\n".join(lines) + "\n")
    (home / "sentences.tsv").write_text("\n".join(whole) + "\n")
    return home


def test_preambles_are_read_once_each_and_know_their_subject_and_attractors(folder):
    data = SVA.load(RECIPE, folder)
    assert len(data.train) + len(data.validation) + len(data.test) == 400
    assert data.notes == (
        "2 repeated texts left out, so that no two splits share one; 1 of them had another label than the first",
    )
    assert list(data.sha256) == ["preambles.tsv"] and set(data.agreement) == {"validation", "test"}
    test = hash_split(read_sva(folder, "preamble")[:400]).test
    own = data.agreement["test"]
    assert (own.attractors == [sentence.attractors for sentence in test]).all() and own.known.all()
    assert (own.natural == [sentence.source == "val" for sentence in test]).all() and own.chosen.all()
    assert (own.label == data.test.label).all() and set(own.rules) == {"majority", "subject", "inverse"}
    assert own.rules["subject"].all()
    # An attractor's opposite is right, and where the last noun is none of them the rule is wrong.
    assert (own.rules["inverse"] == (own.attractors == 1)).all()
    # The subject is the third word, its attractor the sixth, the query token the seventh.
    assert (np.argwhere(own.places[:, 0])[:, 1] == 2).all() and own.places[:, 0].sum() == len(test)
    assert (np.argwhere(own.places[:, 1])[:, 1] == 5).all() and (own.places[:, 1].sum(1) == own.attractors).all()
    assert (own.allowed.sum(1) == 7).all() and (data.test.length == 7).all()
    assert (data.test.relevant.argmax(1) == 2).all() and (data.test.relevant.sum(1) == 1).all()


def test_the_natural_mix_is_learned_from_and_chosen_by_and_all_sources_are_measured(folder):
    every, natural = SVA.load(RECIPE, folder), SVA.load(replace(RECIPE, mix="natural"), folder)
    assert 0.3 < len(natural.train) / len(every.train) < 0.7 and natural.vocabulary < every.vocabulary
    for split in ("validation", "test"):
        assert len(getattr(natural, split)) == len(getattr(every, split))
        own = natural.agreement[split]
        assert (own.chosen == own.natural).all() and own.natural.any() and not own.natural.all()
    few = SVA.load(RECIPE, folder, limit=9)
    assert len(few.train) == len(few.test) == len(few.agreement["test"].natural) == 9
    assert few.vocabulary == every.vocabulary


def test_no_sentence_of_the_mix_is_an_error(folder, tmp_path):
    (tmp_path / "sentences.tsv").write_text((folder / "sentences.tsv").read_text().replace("val\t", "other\t"))
    with pytest.raises(DataError, match="of source val or agr_50_mostcommon_10K, .* --protocol controlled_all") as told:
        SVA.load(replace(RECIPE, mix="natural"), tmp_path)
    name = re.search("--protocol ([a-z_]+)", str(told.value))
    assert name is not None and table1_sva.PROTOCOLS[name[1]].trained.recipe.mix == "all"


def kept(path, folder, keep, **change):
    """A file with those lines of the preambles that are kept, by their number, and other sources."""
    head, *lines = (folder / "preambles.tsv").read_text().splitlines()
    path.write_text("\n".join([head, *(line for n, line in enumerate(lines) if keep(n))]) + "\n")
    return path.parent


def test_preambles_alone_are_enough_for_preambles(folder, tmp_path):
    (tmp_path / "sva").mkdir()
    kept(tmp_path / "sva/preambles.tsv", folder, lambda n: True)
    alone, both = SVA.load(RECIPE, tmp_path), SVA.load(RECIPE, folder)
    assert np.array_equal(alone.train.tokens, both.train.tokens) and alone.sha256 == both.sha256
    with pytest.raises(DataError, match=r"lacks agr_50_mostcommon_10K\.tsv\)"):
        SVA.load(SENTENCES, tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"lacks agr_50_mostcommon_10K\.tsv, and preambles\.tsv, which would do"):
        SVA.load(RECIPE, tmp_path / "none")


def test_too_few_sentences_are_an_error_that_names_file_and_split(folder, tmp_path):
    splits = hash_split(read_sva(folder, "preamble")[:400])
    for count, what in ((1, "validate by"), (0, "learn from")):
        # One sentence of those to learn from or to test on.
        text = " ".join((splits.train if count else splits.test)[0].words)
        lines = (folder / "preambles.tsv").read_text().splitlines()
        (tmp_path / "preambles.tsv").write_text("\n".join([lines[0], *(ln for ln in lines if text in ln)][:2]) + "\n")
        with pytest.raises(
            DataError, match=rf"preambles\.tsv leaves no sentence to {what}: it has 1 of different words.*more"
        ):
            SVA.load(RECIPE, tmp_path)
    # None of the natural mix to choose epochs by.
    picked = {" ".join(s.words) for s in splits.validation if s.source == "val"}
    lines = (folder / "preambles.tsv").read_text().splitlines()
    (tmp_path / "preambles.tsv").write_text("\n".join(ln for ln in lines if ln.split("\t")[1] not in picked) + "\n")
    assert picked and len(SVA.load(RECIPE, tmp_path).validation) == len(splits.validation) - len(picked)
    with pytest.raises(DataError, match=r"preambles\.tsv has no sentence to validate by of source val or agr"):
        SVA.load(replace(RECIPE, mix="natural"), tmp_path)


def test_counts_of_attractors_that_cannot_be_are_noted(folder, tmp_path):
    text = (folder / "sentences.tsv").read_text()
    assert text.count("\tVBZ\t3\t7\t0") > 9
    # More than the two words between subject and verb, no more than all that come before the verb.
    (tmp_path / "sentences.tsv").write_text(text.replace("\tVBZ\t3\t7\t0", "\tVBZ\t3\t7\t4", 3))
    (note,) = SVA.load(replace(SENTENCES, split="hash"), tmp_path).notes
    assert note == "3 sentences count more attractors than there are words between subject and verb"


@pytest.mark.parametrize(
    ("posts", "passes"),
    [(157_721, 1), (10**6, 1), (21_233, 7), (64, 2464), (32, 4929), (10, 4929), (1, 4929), (33, 2464)],
)
def test_an_epoch_of_fewer_sentences_has_as_many_updates(posts, passes):
    recipe = replace(table1_sva.PROTOCOLS["as_coded"].trained.recipe, batch=32)
    assert recipe.epoch_size == 157_721 and recipe.passes(posts) == passes
    # Within half a pass.
    updates, wanted = passes * -(-posts // 32), -(-157_721 // 32)
    assert posts > 157_721 or abs(updates - wanted) <= -(-posts // 64) + 1


# The columns of the published file, in its order.
UPSTREAM = "sentence orig_sentence pos_sentence subj verb subj_pos has_rel has_nsubj verb_pos subj_index verb_index "
UPSTREAM += "n_intervening last_intervening n_diff_intervening distance max_depth all_nouns nouns_up_to_verb"


@pytest.fixture
def upstream(tmp_path):
    """The same sentences as the published file has them, with one whose subject comes after its verb."""
    lines = [UPSTREAM.replace(" ", "\t")]
    for _, words, label, subject, attractors in preambles():
        verb = "is" if label == "VBZ" else "are"
        tags = ["CD", "DT", "NN" if label == "VBZ" else "NNS", "IN", "DT"]
        tags += ["NNS" if words[-1].endswith("s") else "NN", label, "."]
        fields = dict.fromkeys(UPSTREAM.split(), "0")
        fields |= {
            "sentence": "rare words",
            "orig_sentence": " ".join([*words, verb, "."]),
            "pos_sentence": " ".join(tags),
        }
        fields |= {"verb_pos": label, "subj_index": str(subject), "verb_index": str(len(words) + 1)}
        lines.append("\t".join((fields | {"n_diff_intervening": str(attractors)}).values()))
    fields |= {"orig_sentence": "there are keys", "pos_sentence": "EX VBP NNS", "subj_index": "3", "verb_index": "2"}
    lines.append("\t".join((fields | {"verb_pos": "VBP"}).values()))
    (tmp_path / "agr_50_mostcommon_10K.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("protocol", ["controlled", "controlled_all"])
def test_the_published_file_is_itself_the_natural_mix(upstream, protocol):
    recipe = replace(table1_sva.PROTOCOLS[protocol].trained.recipe, n_ctx=16, positions=17)
    data = SVA.load(recipe, upstream)
    # All that have a beginning before the verb are learned from, and all are chosen by.
    assert len(data.train) + len(data.validation) + len(data.test) == 400
    assert list(data.sha256) == ["agr_50_mostcommon_10K.tsv"]
    for split in ("validation", "test"):
        own = data.agreement[split]
        assert own.natural.all() and own.chosen.all() and own.known.all()
        assert (own.places[:, 1].sum(1) == own.attractors).all() and set(own.attractors) == {0, 1}
    # The verb is not seen: six words and the query token.
    assert (data.test.length == 7).all()


def test_whole_sentences_are_split_as_published_where_the_published_file_is(folder, monkeypatch):
    data = SVA.load(SENTENCES, folder)
    assert data.notes[0].startswith("400 sentences in place of the 1,577,211") and len(data.notes) == 1
    assert "not comparable" in data.notes[0] and list(data.sha256) == ["sentences.tsv"]
    # Fewer sentences than published are passed over more often, so that an epoch has as many updates.
    size = round(2.4 * len(data.train))
    longer = SVA.load(replace(SENTENCES, epoch_size=size), folder)
    assert longer.notes[1].endswith(
        f"passed over 2 times in an epoch, which thereby has about as many updates as one of {size:,} sentences"
    )
    assert SENTENCES.passes(5) == 1 and replace(SENTENCES, epoch_size=3).passes(5) == 1
    # Subject and verb are relevant, the subject alone is asked for.
    assert (data.test.relevant[:, [2, 6]] == 1).all() and (data.test.relevant.sum(1) == 2).all()
    assert (data.agreement["test"].places[:, 0].sum(1) == 1).all()
    monkeypatch.setattr(sva_data, "PUBLISHED_ROWS", 400)
    monkeypatch.setattr(sva_data, "PUBLISHED_TEST", 250)
    monkeypatch.setattr(sva_data, "PUBLISHED_VALIDATION", 60)
    monkeypatch.setattr(sva_data, "published_split", lambda sentences: (sentences[:40], sentences[39:]))
    splits, notes = sva_data.split(read_sva(folder), SENTENCES)
    assert list(map(len, splits)) == [40, 60, 250]
    assert splits.test[0].words[0] == "n39" and splits.validation[0].words[0] == "n289"
    assert "test is the first 250" in notes[0] and notes[1].endswith("0 of validation, 1 of test")
    assert sva_data.split(read_sva(folder), replace(SENTENCES, split="hash"))[1] == []


def test_recipes_of_posts_are_what_they_were(folder):
    # The digest that committed records of HateXplain carry: nothing of sentences is in it.
    assert not {"outputs", "stream", "optimizer", "momentum", "edges", "sure", "rows"} & set(as_dict(Recipe()))
    assert digest(Recipe()) != digest(SvaRecipe())
    own = Recipe()
    assert (own.outputs, own.stream, own.optimizer) == (len(HATEXPLAIN.labels), True, "adamw")
    assert (own.levels.attention, own.levels.probability, own.levels.ac_probability) == (0.33, 0.33, None)
    other = SvaRecipe(confidence=0.1, sure=None, ac_probability=0.1)
    assert (other.levels.attention, other.levels.probability, other.levels.ac_probability) == (0.1, 0.1, 0.1)
    assert other.levels.edges == (0, 0.1, 0.5, 1.1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rows": "words"}, "rows must be one of sentences, preambles"),
        ({"relevant": "subject_and_verb"}, "a preamble has no verb"),
        ({"split": "published"}, "split hash"),
        ({"stream": 1.5}, "stream must be True or False"),
        ({"outputs": 1}, "outputs must be an integer >= 2"),
        ({"optimizer": "sgd", "momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"momentum": 0.9}, "momentum must be 0 under adamw"),
        ({"clip": 0.0}, "clip must be a finite number > 0"),
        ({"edges": (0.0, 0.5, 0.1, 1.1)}, "edges must be four rising numbers"),
        ({"epoch_size": 0}, "epoch_size must be an integer >= 1"),
        ({"sure": 1.5}, "sure must be"),
        ({"ac_probability": -0.1}, "ac_probability must be"),
    ],
)
def test_recipes_that_mean_nothing_are_refused(changed, said):
    with pytest.raises(InputError, match=said):
        SvaRecipe(**changed)
    SvaRecipe(optimizer="sgd", momentum=0.9, clip=None, sure=None)


def test_posts_whose_words_are_trained_on_are_counted(tmp_path):
    dataset, divisions = made_posts(60)
    first, second = (dataset[divisions[split][0]] for split in ("val", "test"))
    write_data(tmp_path)
    assert not any("kept as published" in note for note in HATEXPLAIN.load(Recipe(), tmp_path).notes)
    shown = dataset[divisions["train"][0]]
    for post in (first, second):
        post |= {name: shown[name] for name in ("post_tokens", "rationales", "annotators")}
    write(tmp_path / "hatexplain/dataset.json", json.dumps(dataset))
    told = "posts whose words a post of training has too, kept as published: 1 of validation, 1 of test"
    assert HATEXPLAIN.load(Recipe(), tmp_path).notes[-1] == told
