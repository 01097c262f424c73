"""Encoder-decoders: their arithmetic, and the texts that they write."""

import copy
import itertools
import json
import pickle

import numpy as np
import pytest
from support import encoder_decoders as oracle
from support import quotients
from support.comparisons import assert_same_bits, assert_same_parameters
from support.errors import refused

from attnpy import _families, checkpoints
from attnpy.models import EncoderDecoder
from attnpy.positions import relative_bias

KINDS = pytest.mark.parametrize("kind", oracle.ENCODER_DECODERS)
VARIANTS = [
    *((kind, {}) for kind in oracle.ENCODER_DECODERS),
    ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": None}),
    ("bart", {"scale_embedding": True, "activation_function": "relu"}),
]
SOURCE = np.array([7, 1, 29, 4, 4, 0, 18, 11, 3])
TARGET = np.array([2, 13, 5, 5, 28, 8])
LENGTHS, TARGET_LENGTHS = [4, 9, 1], [6, 2, 3]


def made(kind, dtype=np.float64, **changes):
    """A model of a family with random weights, these, and its configuration."""
    config = {**oracle.ENCODER_DECODERS[kind], **changes}
    if config.get("num_decoder_layers", 1) is None:
        config["num_decoder_layers"] = config["num_layers"]
    tensors = oracle.tensors(config)
    model = EncoderDecoder.from_config(config, dtype=dtype)
    checkpoints.load(model, tensors, _families.FAMILIES[kind].checkpoint)
    return model, tensors, config


def batches():
    sources = np.stack([SOURCE, SOURCE[::-1], (SOURCE + 5) % 30])
    targets = np.stack([TARGET, TARGET[::-1], (TARGET + 9) % 30])
    return sources, targets


@pytest.mark.quick
@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
def test_scores_are_those_of_the_formulas(kind, changes):
    model, tensors, config = made(kind, **changes)
    expected = oracle.scores(tensors, config, SOURCE, TARGET)
    scores = model.logits(model(SOURCE, TARGET))
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(scores, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.quick
@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
def test_a_text_has_the_same_bits_alone_in_a_batch_and_token_by_token(kind, changes):
    model = made(kind, np.float32, **changes)[0]
    model.pack()
    sources, targets = batches()
    found = model(sources, targets, lengths=LENGTHS, target_lengths=TARGET_LENGTHS)
    states = model.encode(sources, lengths=LENGTHS)
    context = model.project_context(states, lengths=LENGTHS)
    caches = model.new_caches(3, 6)
    steps = [
        model.decode(targets[:, i : i + 1], context, caches=caches) for i in range(6)
    ]
    whole = np.concatenate(steps, axis=1)
    for b, (n, m) in enumerate(zip(LENGTHS, TARGET_LENGTHS, strict=True)):
        alone = model(sources[b, :n], targets[b, :m], num_threads=1)
        assert_same_bits(found[b, :m], alone)
        assert_same_bits(np.ascontiguousarray(whole[b, :m]), alone)
        one = model(sources[b], targets[b], lengths=n, target_lengths=m)
        assert_same_bits(one[:m], alone)


@KINDS
def test_a_target_goes_on_in_chunks_of_several_lengths(kind):
    model = made(kind, np.float32)[0]
    sources, targets = batches()
    context = model.project_context(model.encode(sources))
    whole, caches = model.decode(targets, context), model.new_caches(3, 6)
    first = model.decode(targets[:, :3], context, caches=caches, lengths=[1, 3, 2])
    rest = np.stack([row[n : n + 3] for row, n in zip(targets, [1, 3, 2], strict=True)])
    second = model.decode(rest, context, caches=caches)
    for b, n in enumerate([1, 3, 2]):
        assert_same_bits(first[b, :n], whole[b, :n])
        assert_same_bits(second[b], np.ascontiguousarray(whole[b, n : n + 3]))
    assert caches[0].lengths.tolist() == [4, 6, 5]


@pytest.mark.quick
@pytest.mark.parametrize("past", [None, np.array([5, 5]), np.array([200, 7])])
def test_rows_of_biases_are_views_of_one_line(past):
    model = EncoderDecoder.from_config(oracle.T5, rng=np.random.default_rng(0))
    for side, longest in itertools.product(("encoder", "decoder"), (0, 1, 9)):
        table = getattr(model, f"{side}_relative_bias")
        expected = relative_bias(
            table,
            longest,
            longest if past is None else int(past.max()) + longest,
            max_distance=model.max_distance,
            bidirectional=side == "encoder",
            q_offset=0 if past is None else past,
        )
        found = model._bias(side, longest, past, longest)
        assert_same_bits(np.broadcast_to(found, expected.shape), expected)
    assert model._bias("encoder", 100_000).shape[-1] == 100_000  # 40 GB each


def test_a_source_serves_several_targets():
    model = made("t5", np.float32)[0]
    sources, targets = batches()
    states = model.encode(sources, lengths=LENGTHS)
    context = model.project_context(states, lengths=LENGTHS)
    found = model.decode(np.repeat(targets, 4, axis=0), context)
    assert_same_bits(found, np.repeat(model.decode(targets, context), 4, axis=0))


def test_weights_and_states_are_those_of_both_sides():
    model = made("bart")[0]
    sources, targets = batches()
    result = model(
        sources, targets, lengths=LENGTHS, target_lengths=TARGET_LENGTHS,
        return_weights=True, return_hidden_states=True,
    )  # fmt: skip
    assert_same_bits(
        result.output,
        model(sources, targets, lengths=LENGTHS, target_lengths=TARGET_LENGTHS),
    )
    assert result.cross_weights.shape == (3, 3, 2, 6, 9)
    assert result.weights.shape == (3, 3, 2, 6, 6)
    assert result.hidden_states.shape == (4, 3, 6, 12)
    for b, (n, m) in enumerate(zip(LENGTHS, TARGET_LENGTHS, strict=True)):
        alone = model(sources[b, :n], targets[b, :m], return_weights=True)
        np.testing.assert_allclose(
            result.cross_weights[:, b, :, :m, :n], alone.cross_weights, atol=1e-12
        )
        assert (result.cross_weights[:, b, :, :m, n:] == 0).all()
    own = model.encode(sources, lengths=LENGTHS, return_weights=True, heads=[1])
    assert own.weights.shape == (2, 3, 1, 9, 9)
    with pytest.raises(TypeError, match="unexpected keyword argument 'caches'"):
        model(SOURCE, TARGET, caches=[])


# ---- Scores of texts -----------------------------------------------------------------


def scorer(n_labels=3, dtype=np.float64, **changes):
    """A BART with a head that scores texts, its weights and its configuration."""
    config = {**oracle.BART, "num_labels": n_labels, **changes}
    tensors = oracle.classifier(config, n_labels)
    model = EncoderDecoder.from_config(config, classifier=True, dtype=dtype)
    checkpoints.load(model, tensors, "bart")
    return model, tensors, config


@pytest.mark.quick
@pytest.mark.parametrize(
    ("n_labels", "changes"),
    [(3, {}), (1, {"eos_token_id": 4}), (2, {"decoder_start_token_id": 7})],
)
def test_scores_of_texts_are_those_of_the_formulas(n_labels, changes):
    model, tensors, config = scorer(n_labels, **changes)
    assert model.num_labels == n_labels
    assert model.scored_token == config["eos_token_id"]
    end = config["eos_token_id"]
    for ids in ([0, 9, end], [end], [0, end, 5, 5, end, end], [0, end, 8, 3]):
        expected = oracle.text_scores(tensors, config, ids)
        np.testing.assert_allclose(model.classify(ids), expected, rtol=1e-11)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scores_of_a_text_have_the_same_bits_in_any_company(dtype):
    model = scorer(dtype=dtype)[0]
    model.pack()
    ids = np.array([[0, 9, 2, 2, 2, 2], [0, 2, 5, 5, 8, 2], [0, 2, 7, 2, 8, 8]])
    lengths = [3, 6, 4]
    scores = model.classify(ids, lengths=lengths)
    assert scores.shape == (3, 3)
    assert scores.dtype == np.float32
    for row, text, n in zip(scores, ids, lengths, strict=True):
        assert_same_bits(model.classify(text[:n], num_threads=1), row)
        assert_same_bits(model.classify(text, lengths=n), row)
    twin = pickle.loads(pickle.dumps(model))
    assert_same_bits(twin.classify(ids, lengths=lengths), scores)
    assert model.classify(np.zeros((0, 3), int)).shape == (0, 3)
    assert "num_labels=3" in repr(model)


def test_texts_and_options_of_a_classifier_are_judged():
    model = scorer()[0]
    for ids, lengths in (([0, 5], None), ([[0, 5, 2]], [2]), ([], None), ([2], 0)):
        with refused(ValueError, "source_ids"):
            model.classify(np.array(ids, int), lengths=lengths)
    with refused(ValueError, "source_ids"):
        model.classify([0, 30, 2])
    with refused(ValueError, "lengths"):
        model.classify([0, 2], lengths=3)
    with refused(ValueError, "classifier"):
        made("bart")[0].classify([0, 2])
    for kind in ("t5", "mbart", "marian"):
        config = oracle.ENCODER_DECODERS[kind]
        with refused(ValueError, "classifier"):
            EncoderDecoder.from_config(config, classifier=True)
    for wrong in ([2, 3], None, -1):
        config = {**oracle.BART, "eos_token_id": wrong}
        with pytest.raises(ValueError, match="expected eos_token_id to be an integer"):
            EncoderDecoder.from_config(config, classifier=True)
        EncoderDecoder.from_config(config)
    unsaid = EncoderDecoder.from_config(oracle.BART, classifier=True)
    assert unsaid.num_labels == 3  # as their configuration has it
    sizes = {"vocab_size": 30, "num_labels": 2}
    for name, options in {
        "start": {"scored_token": 2},
        "scored_token": {"start": 2},
        "num_labels": {"start": 2, "scored_token": 2, "num_labels": 0},
    }.items():
        with refused(ValueError, name):
            EncoderDecoder(1, 8, 2, 8, **{**sizes, **options})
    with refused(ValueError, "scored_token"):
        EncoderDecoder(1, 8, 2, 8, vocab_size=30, scored_token=30)


def test_a_classifier_is_saved_and_quantised(tmp_path):
    model = scorer()[0]
    ids = [0, 9, 4, 2, 2, 8, 2]
    expected = model.classify(ids)
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["architectures"] == ["BartForSequenceClassification"]
    again = EncoderDecoder.from_pretrained(tmp_path, classifier=True, dtype="auto")
    assert_same_bits(again.classify(ids), expected)
    with pytest.raises(ValueError, match=r"without unless classifier=True, got class"):
        EncoderDecoder.from_pretrained(tmp_path)
    below = EncoderDecoder.from_pretrained(tmp_path, ignore_head=True, dtype="auto")
    assert_same_bits(below.encode(ids), model.encode(ids))
    small = EncoderDecoder.from_pretrained(tmp_path, classifier=True, weights="int8")
    np.testing.assert_allclose(small.classify(ids), expected, atol=0.2)
    model.start = 5
    with refused(ValueError, "model"):
        model.save_pretrained(tmp_path / "other")


# ---- Texts ---------------------------------------------------------------------------


def log_probabilities(tensors, config):
    """What the oracle says of the next token, by the tokens so far."""

    def logs(text, source=SOURCE):
        scores = oracle.scores(tensors, config, source, np.array(text))[-1]
        top = scores.max()
        return scores - top - np.log(np.exp(scores - top).sum())

    return logs


def shown(text, stops):
    """A text as `generate` gives it, without what repeats its end."""
    ends = [i for i, token in enumerate(text) if token in stops]
    return [int(token) for token in text[: ends[0] + 1 if ends else len(text)]]


@pytest.mark.quick
@KINDS
def test_greedy_texts_take_the_best_token(kind):
    model, tensors, config = made(kind)
    logs = log_probabilities(tensors, config)
    text = [model.start]
    for _ in range(8):
        text.append(int(np.argmax(logs(text))))
        if text[-1] in model.stop:
            break
    new = model.generate(SOURCE, 8)
    assert new.tolist() == text[1:]
    sources = np.stack([SOURCE, SOURCE])
    lengths = [9, 5]
    both = model.generate(sources, 8, lengths=lengths)
    for row, n in zip(both, lengths, strict=True):
        assert shown(row, model.stop) == model.generate(SOURCE[:n], 8).tolist()


SEARCHES = list(
    itertools.product([2, 3, 5], [1.0, 0.0, -0.7, 2.0], [False, True, "never"])
)


@KINDS
@pytest.mark.parametrize(("n_beams", "penalty", "early"), SEARCHES[::5])
def test_a_search_finds_the_texts_of_a_plain_search(kind, n_beams, penalty, early):
    model, tensors, config = made(kind)
    logs = log_probabilities(tensors, config)
    for stops, n_most in (([3, 17, 20, 28], 7), ([], 3), ([0, 1, 2], 1)):
        best = oracle.search(
            logs, [model.start], n_most, n_beams, stops, penalty, early
        )
        found = model.generate(
            SOURCE, n_most, stop=stops, num_beams=n_beams, length_penalty=penalty,
            early_stopping=early, num_return_sequences=n_beams, return_scores=True,
        )  # fmt: skip
        assert len(best) == n_beams
        for text, score, (expected, known) in zip(*found, best, strict=True):
            assert shown(text, stops) == known
            assert score == pytest.approx(expected, abs=1e-10)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["t5", "marian"])
def test_a_search_of_several_sources_is_that_of_each(kind):
    model = made(kind, np.float32)[0]
    rng = np.random.default_rng(3)
    sources, lengths = rng.integers(0, 30, (6, 9)), [9, 1, 4, 7, 2, 9]
    options = {"num_beams": 3, "num_return_sequences": 2, "return_scores": True}
    options |= {"stop": [*range(0, 30, 4)], "early_stopping": True}
    found = model.generate(sources, 9, lengths=lengths, **options)
    ends = set()
    for b, n in enumerate(lengths):
        alone = model.generate(sources[b, :n], 9, num_threads=1, **options)
        assert_same_bits(found.scores[b], alone.scores)
        for one, other in zip(found.tokens[b], alone.tokens, strict=True):
            assert shown(one, options["stop"]) == shown(other, options["stop"])
        ends.add(alone.tokens.shape[-1])
    assert len(ends) > 1  # searches that end at different moments


def test_rules_are_kept():
    model = made("t5")[0]

    def write(**options):
        return model.generate(SOURCE, 8, stop=[28], **options).tolist()

    free = write()
    assert len(free) == 8  # or else rules below would mean nothing
    assert free[0] not in write(suppress_tokens=[free[0]])
    later = write(begin_suppress_tokens=[free[0]])
    assert later[0] != free[0]
    assert write(forced_bos=9)[0] == 9
    assert write(forced_bos=9, begin_suppress_tokens=[9])[:1] == [9]
    assert write(forced_eos=6)[-1] == 6
    assert write(forced_eos=[28])[-1] == 28
    for beams in (1, 3):
        pairs = write(no_repeat_ngram_size=2, num_beams=beams)
        known = list(itertools.pairwise([model.start, *pairs]))
        assert len(set(known)) == len(known)
        single = write(no_repeat_ngram_size=1, num_beams=beams)
        assert len({model.start, *single}) == 9
        assert free[:2] != write(bad_words=[free[:2]], num_beams=beams)[:2]
    last = next(i for i in range(1, 8) if free[i] not in free[:i])
    short = model.generate(SOURCE, 8, stop=free[last])
    assert short.tolist() == free[: last + 1]
    long = model.generate(SOURCE, 8, stop=free[last], min_tokens=last + 2)
    assert free[last] not in long[: last + 2].tolist()
    assert write(repetition_penalty=50.0) != free
    assert write(repetition_penalty=1.0, min_tokens=0, bad_words=[]) == free


def test_beginnings_may_be_given():
    model = made("t5")[0]
    free = model.generate(SOURCE, 6, stop=[])
    again = model.generate(SOURCE, 4, start=[model.start, *free[:2]], stop=[])
    assert again.tolist() == free[2:].tolist()
    sources = np.stack([SOURCE, SOURCE])
    both = model.generate(sources, 3, start=[[0, 5], [0, 9]], stop=[])
    for row, start in zip(both, ([0, 5], [0, 9]), strict=True):
        assert row.tolist() == model.generate(SOURCE, 3, start=start, stop=[]).tolist()
    assert model.generate(SOURCE, 3, start=4).shape == (3,)
    for wrong in ([], [[0, 1]] * 3, 30, [[[0]]]):
        with refused(ValueError, "start"):
            model.generate(sources, 3, start=wrong)
    model.start = None
    with refused(ValueError, "start"):
        model.generate(SOURCE, 3)


def test_texts_are_drawn():
    model = made("t5", np.float32)[0]
    free = model.generate(SOURCE, 5)
    drawn = model.generate(
        SOURCE, 5, temperature=2.0, top_k=9, top_p=0.95, num_return_sequences=7,
        stop=[], rng=np.random.default_rng(1),
    )  # fmt: skip
    assert drawn.shape == (7, 5)
    assert len({tuple(row) for row in drawn.tolist()}) > 3
    cold = model.generate(SOURCE, 5, temperature=1e-6, rng=np.random.default_rng(1))
    assert cold.tolist() == free.tolist()
    with refused(ValueError, "rng"):
        model.generate(SOURCE, 5, temperature=1.0)


def test_shapes_are_those_of_the_arguments():
    model = made("t5", np.float32)[0]
    sources = np.stack([SOURCE, SOURCE])
    search = {"num_beams": 3, "stop": []}
    assert model.generate(SOURCE, 4, **search).shape == (4,)
    assert model.generate(sources, 4, **search).shape == (2, 4)
    several = {**search, "num_return_sequences": 2}
    assert model.generate(SOURCE, 4, **several).shape == (2, 4)
    found = model.generate(sources, 4, **several, return_scores=True)
    assert (found.tokens.shape, found.scores.shape) == ((2, 2, 4), (2, 2))
    assert "tokens" in repr(found)
    one = {"num_return_sequences": 1, "stop": []}
    assert model.generate(sources, 4, **one).shape == (2, 1, 4)
    none = np.zeros((0, 3), int)
    assert model.generate(none, 4, stop=[]).shape[0] == 0
    assert model.generate(none, 4, num_beams=2, stop=[]).shape[0] == 0


@pytest.mark.quick
@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_that_are_no_numbers_are_refused(num_beams):
    model = made("t5")[0]
    next(iter(model.parameters().values()))[...] = np.nan
    with refused(ValueError, "logits"):
        model.generate(SOURCE, 4, num_beams=num_beams, stop=[])


def test_settings_of_the_model_are_used_unless_others_are_given():
    model = made("t5")[0]
    model.generation = {"num_tokens": 5, "num_beams": 3, "length_penalty": 0.0}
    options = {"num_beams": 3, "length_penalty": 0.0, "stop": [3, 17, 20]}
    expected = model.generate(SOURCE, 5, **options)
    assert_same_bits(model.generate(SOURCE, stop=[3, 17, 20]), expected)
    greedy = model.generate(SOURCE, num_beams=1, stop=[])
    none = dict.fromkeys(("num_beams", "length_penalty", "temperature", "bad_words"))
    assert_same_bits(model.generate(SOURCE, stop=[3, 17, 20], **none), expected)
    model.generation = {}
    assert_same_bits(model.generate(SOURCE, 5, stop=[]), greedy)
    usual = {**none, "length_penalty": 1.0, "early_stopping": False}
    assert_same_bits(model.generate(SOURCE, 5, stop=[], **usual), greedy)
    with refused(ValueError, "num_tokens"):
        model.generate(SOURCE)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("num_tokens", {"num_tokens": 0}),
        ("num_beams", {"num_beams": 0}),
        ("num_beams", {"num_beams": 2.5}),
        ("length_penalty", {"length_penalty": np.nan, "num_beams": 2}),
        ("length_penalty", {"length_penalty": 1e308, "num_beams": 2}),
        ("length_penalty", {"length_penalty": -1e308, "num_beams": 2}),
        ("early_stopping", {"early_stopping": "always", "num_beams": 2}),
        ("num_return_sequences", {"num_return_sequences": 3, "num_beams": 2}),
        ("num_return_sequences", {"num_return_sequences": 2}),
        ("temperature", {"temperature": 1.0, "num_beams": 2}),
        ("temperature", {"temperature": -1.0}),
        ("length_penalty", {"length_penalty": 2.0}),
        ("early_stopping", {"early_stopping": True}),
        ("top_k", {"top_k": 3}),
        ("top_p", {"top_p": 0.5}),
        ("repetition_penalty", {"repetition_penalty": 0}),
        ("bad_words", {"bad_words": [5]}),
        ("bad_words", {"bad_words": [[30]]}),
        ("bad_words", {"bad_words": [[]]}),
        ("forced_bos", {"forced_bos": 30}),
        ("forced_eos", {"forced_eos": [-1]}),
        ("suppress_tokens", {"suppress_tokens": ["x"]}),
        ("return_scores", {"return_scores": True}),
        ("stop", {"stop": 30}),
    ],
)
def test_wrong_settings_are_refused_by_name(name, options):
    model = made("t5", np.float32)[0]
    with refused(ValueError, name):
        model.generate(SOURCE, **{"num_tokens": 4, **options})


def test_unknown_settings_and_kinds_are_refused():
    model = made("bart", np.float32)[0]
    for name, text in (
        ("num_beam", "argument 'num_beam'$"),
        ("min_length", "argument 'min_length': write min_tokens="),
        ("decoder_start_token_id", "'decoder_start_token_id': write start="),
    ):
        with pytest.raises(TypeError, match=text):
            model.generate(SOURCE, 4, **{name: 2})
    with refused(ValueError, "generation"):
        EncoderDecoder(1, 4, 1, 4, vocab_size=9, generation={"max_length": 3})
    for name in ("source_ids", "target_ids"):
        ids = {"source_ids": SOURCE, "target_ids": TARGET, name: [30]}
        with refused(ValueError, name):
            model(**ids)
    with refused(ValueError, "source_ids"):
        model(np.zeros(17, int), TARGET)
    with refused(ValueError, "target_ids"):
        model.generate(SOURCE, 17)
    for lengths in ("lengths", "target_lengths"):
        with refused(ValueError, lengths):
            model(*batches(), **{lengths: [10, 1, 1]})
    with refused(ValueError, "caches"):
        context = model.encode(SOURCE)
        model.decode(TARGET, context, caches=model.new_caches(2, 9))


LEARNED = {"positions": "learned", "max_length": 9, "position_offset": 2}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("max_length", {"positions": "learned"}),
        ("max_length", {"max_length": 9}),
        ("positions", {"positions": "rotary", "max_length": 9}),
        ("padding_id", {"padding_id": 1}),
        ("padding_id", {"padding_id": 1, **LEARNED}),
        ("num_buckets", {"num_buckets": 7}),
        ("start", {"start": -1}),
        ("token_ids", {"start": 9}),
        ("stop", {"stop": 9}),
        ("scale", {"scale": 0}),
    ],
)
def test_wrong_arguments_of_a_model_are_refused(name, options):
    with refused(ValueError, name):
        EncoderDecoder(1, 4, 1, 4, vocab_size=9, **options)


# ---- Gradients -----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
@pytest.mark.parametrize("logits", [False, True])
def test_gradients_are_difference_quotients(kind, changes, logits):
    model = made(kind, **changes)[0]
    options = {"lengths": LENGTHS, "target_lengths": TARGET_LENGTHS}
    for some in ({}, options):
        sources, targets = batches()
        output, pullback = model.vjp(sources, targets, logits=logits, **some)
        vectors = model(sources, targets, **some)
        assert_same_bits(output, model.logits(vectors) if logits else vectors)
        grad = np.random.default_rng(1).standard_normal(output.shape)
        if some:
            exists = np.arange(6) < np.array(TARGET_LENGTHS)[:, None]
            grad *= exists[..., None]
        found = pullback(grad)
        names = set(model.parameters())
        assert set(found) == (names if logits else names - {"output", "output_bias"})

        def run(some=some, grad=grad, sources=sources, targets=targets):
            result = model(sources, targets, **some)
            return np.sum((model.logits(result) if logits else result) * grad)

        for name, array in model.parameters().items():
            if name in found:
                quotients.assert_gradient(run, array, found[name], name)
    again = model.vjp(sources, targets, logits=logits, checkpoint=True, **options)[1]
    for name, array in again(grad).items():
        assert_same_bits(array, found[name])


# ---- Folders -------------------------------------------------------------------------

numpy_files = pytest.importorskip("safetensors.numpy")


def write(folder, kind, generation=None, **changes):
    """A folder of a family."""
    config = {**oracle.ENCODER_DECODERS[kind], **changes}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(oracle.tensors(config), folder / "model.safetensors")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return config


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "changes"), [case for case in VARIANTS if None not in case[1].values()]
)
def test_what_is_saved_is_read_again(tmp_path, kind, changes):
    generation = {"num_beams": 3, "max_length": 9, "decoder_start_token_id": 4}
    generation |= {"eos_token_id": [5, 6], "bad_words_ids": [[3]], "do_sample": True}
    config = write(tmp_path / "a", kind, generation, **changes)
    model = EncoderDecoder.from_pretrained(tmp_path / "a")
    assert (model.start, model.stop) == (4, (5, 6))
    model.save_pretrained(tmp_path / "b")
    again = EncoderDecoder.from_pretrained(tmp_path / "b", packed=False)
    assert_same_parameters(again, model)
    assert (again.start, again.stop) == (4, (5, 6))
    assert again.generation == model.generation
    assert_same_bits(again(SOURCE, TARGET), model(SOURCE, TARGET))
    tensors = oracle.tensors(config)
    saved = checkpoints.read(tmp_path / "b")
    assert set(saved) == set(tensors)
    for name, array in saved.items():
        assert_same_bits(array, tensors[name])
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(same(SOURCE, TARGET), model(SOURCE, TARGET))
    assert repr(again).startswith("EncoderDecoder(num_layers=2, embed_dim=12")


def test_a_t5_without_a_matrix_of_scores_has_the_embeddings(tmp_path):
    config = write(tmp_path, "t5", tie_word_embeddings=False)
    tensors = oracle.tensors(config)
    del tensors["lm_head.weight"]
    numpy_files.save_file(tensors, tmp_path / "model.safetensors")
    model = EncoderDecoder.from_pretrained(tmp_path)
    assert_same_bits(model.parameters()["output"].T, tensors["shared.weight"])
    assert model.logit_scale is None


def test_biases_of_scores_may_be_missing_and_copies_be_there(tmp_path):
    config = write(tmp_path, "bart")
    tensors = oracle.tensors(config)
    del tensors["final_logits_bias"]
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_tokens.weight"
        tensors[name] = tensors["model.shared.weight"]
    numpy_files.save_file(tensors, tmp_path / "model.safetensors")
    assert not EncoderDecoder.from_pretrained(tmp_path).output_bias.any()
    tensors[name] = tensors[name] + 1
    numpy_files.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"expected shared\.weight again, as they are"):
        EncoderDecoder.from_pretrained(tmp_path)


def test_heads_of_other_tasks_are_refused(tmp_path):
    config = write(tmp_path, "bart", architectures=["BartForSequenceClassification"])
    tensors = oracle.tensors(config)
    tensors["classification_head.dense.weight"] = np.zeros((12, 12), np.float32)
    numpy_files.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="expected no head of BartForSequenceCl"):
        EncoderDecoder.from_pretrained(tmp_path)
    EncoderDecoder.from_pretrained(tmp_path, ignore_head=True)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_may_be_integers(tmp_path, weights):
    write(tmp_path, "t5")
    model = EncoderDecoder.from_pretrained(tmp_path, weights=weights)
    plain = EncoderDecoder.from_pretrained(tmp_path)
    near = model.logits(model(SOURCE, TARGET)), plain.logits(plain(SOURCE, TARGET))
    assert 0 < np.abs(near[0] - near[1]).max() < 0.3
    assert model.generate(SOURCE, 4, num_beams=2, stop=[]).shape == (4,)
    rounding = EncoderDecoder.from_pretrained(
        tmp_path, weights=weights, activations="int8"
    )
    expected = EncoderDecoder.from_pretrained(tmp_path, packed=False)
    expected.quantize(bits=int(weights[3:]), activations="int8")
    states = rounding(SOURCE, TARGET)
    assert_same_bits(states, expected(SOURCE, TARGET))
    assert (states != model(SOURCE, TARGET)).any()
    with pytest.raises(ValueError, match=r"^activations: expected 'float' without"):
        EncoderDecoder.from_pretrained(tmp_path, activations="int8")


SAID = {
    "max_length": 12,
    "min_length": 3,
    "num_beams": 4,
    "length_penalty": 0.6,
    "early_stopping": "never",
    "no_repeat_ngram_size": 3,
    "repetition_penalty": 1.2,
    "bad_words_ids": [[29]],
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 2,
    "suppress_tokens": [3],
    "begin_suppress_tokens": [4],
    "num_return_sequences": 2,
}
ASKED = {
    "num_tokens": 11,
    "min_tokens": 2,
    "num_beams": 4,
    "length_penalty": 0.6,
    "early_stopping": "never",
    "no_repeat_ngram_size": 3,
    "repetition_penalty": 1.2,
    "bad_words": [[29]],
    "forced_bos": 7,
    "forced_eos": 2,
    "suppress_tokens": [3],
    "begin_suppress_tokens": [4],
    "num_return_sequences": 2,
}


@pytest.mark.quick
@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_settings_of_a_folder_are_those_of_generate(tmp_path, place):
    ends = {"eos_token_id": 2, "decoder_start_token_id": 2}
    if place == "config.json":
        write(tmp_path, "bart", **SAID, **ends)
    else:
        write(tmp_path, "bart", {**SAID, **ends}, num_beams=7)
    model = EncoderDecoder.from_pretrained(tmp_path)
    assert model.generation == ASKED
    model.save_pretrained(tmp_path / "b")
    assert EncoderDecoder.from_pretrained(tmp_path / "b").generation == ASKED


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({"max_new_tokens": 5, "max_length": 30}, {"num_tokens": 5}),
        ({"min_new_tokens": 5, "min_length": 3}, {"min_tokens": 5}),
        ({"do_sample": False, "temperature": 0.5, "top_k": 3}, {}),
        (
            {"do_sample": True},
            {"temperature": 1.0, "top_k": 50, "top_p": None},
        ),
        (
            {"do_sample": True, "temperature": 0.5, "top_k": 0, "top_p": 0.9},
            {"temperature": 0.5, "top_k": None, "top_p": 0.9},
        ),
        ({"use_cache": True, "pad_token_id": 3, "typical_p": 1.0}, {}),
        ({"num_beam_groups": 1, "diversity_penalty": 0.0, "min_p": None}, {}),
    ],
)
def test_settings_have_their_meaning_in_transformers(tmp_path, said, asked):
    write(tmp_path, "t5", said)
    model = EncoderDecoder.from_pretrained(tmp_path)
    assert (model.generation, model.start, model.stop) == (asked, None, ())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num_beam_groups": 2}, "expected no num_beam_groups, got 2"),
        ({"stop_strings": ["x"]}, r"expected no stop_strings, got \['x'\]"),
        ({"x_y": 1}, "expected no x_y, got 1"),
        ({"num_beams": "4"}, "expected num_beams to be an integer from 1"),
        ({"decoder_start_token_id": 99}, "expected decoder_start_token_id below 30"),
        ({"early_stopping": 1}, "expected early_stopping to be a boolean or 'never'"),
    ],
)
def test_settings_that_are_not_here_are_refused_by_name(tmp_path, said, words):
    write(tmp_path, "t5", said)
    with pytest.raises(ValueError, match=rf"generation_config.json: {words}"):
        EncoderDecoder.from_pretrained(tmp_path)


def test_what_a_model_has_in_its_configuration_is_judged_too():
    config = oracle.T5
    with pytest.raises(ValueError, match="config: expected no encoder_no_repeat_ngram"):
        EncoderDecoder.from_config({**config, "encoder_no_repeat_ngram_size": 3})
    model = EncoderDecoder.from_config({**config, "task_specific_params": {"x": {}}})
    assert model.generation == {}
    with pytest.raises(ValueError, match="expected model_type = t5, mt5, bart, mbart"):
        EncoderDecoder.from_config({**config, "model_type": "led"})
