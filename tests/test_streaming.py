"""Text token by token, and conversations that go on with the caches they have."""

import numpy as np
import pytest
from support import families
from support.comparisons import assert_same_bits
from support.families import IDS, LENGTHS, batch

from attnpy import blocks, checkpoints, positions
from attnpy._linear import linear
from attnpy.models import CausalDecoder, sampling


def decoder(kind, **changes):
    config = {**families.DECODERS[kind], **changes}
    model = CausalDecoder.from_config(config)
    checkpoints.load(model, families.tensors(config), families.NAMES[kind])
    return model


@pytest.fixture
def counted(monkeypatch):
    """How many tokens each call of a model has computed."""
    counts, call = [], CausalDecoder.__call__

    def counting(self, token_ids, *, lengths=None, **options):
        n = np.size(token_ids) if lengths is None else np.sum(lengths)
        counts.append(int(n))
        return call(self, token_ids, lengths=lengths, **options)

    monkeypatch.setattr(CausalDecoder, "__call__", counting)
    return counts


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.DECODERS)
def test_a_stream_gives_what_generate_does_as_it_comes(kind, counted):
    model = decoder(kind)
    options = {"temperature": 0.7, "rng": np.random.default_rng(3)}
    expected = model.generate(IDS[:5], 6, **options)
    counted.clear()
    options["rng"] = np.random.default_rng(3)
    tokens = model.stream(IDS[:5], 6, **options)
    assert counted == []
    for i in range(6):
        token = next(tokens)
        assert (token.dtype, token.shape, token) == (np.int64, (), expected[i])
        assert len(counted) == i + 1
    assert next(tokens, None) is None
    expected = model.generate(batch(), 5, lengths=LENGTHS)
    tokens = list(model.stream(batch(), 5, lengths=LENGTHS))
    assert_same_bits(np.stack(tokens, axis=1), expected)


@pytest.mark.quick
def test_a_stream_ends_where_all_sequences_have(counted):
    model = decoder("llama")
    free = model.generate(batch(), 8, lengths=LENGTHS)
    stop = np.unique(free[:, 2])
    expected = model.generate(batch(), 8, lengths=LENGTHS, stop=stop)
    counted.clear()
    tokens = list(model.stream(batch(), 8, lengths=LENGTHS, stop=stop))
    assert len(tokens) < 8
    assert_same_bits(np.stack(tokens, axis=1), expected[:, : len(tokens)].copy())
    assert (expected[:, len(tokens) :] == expected[:, -1:]).all()
    ended = [np.isin(row, stop).argmax() for row in free]
    assert counted[0] == sum(LENGTHS)
    assert counted[1:] == [
        sum(n > i for n in ended) for i in range(len(tokens) - 1)
    ]  # nothing for sequences that have ended


@pytest.mark.quick
def test_a_callback_gets_each_token():
    model = decoder("gpt2")
    for ids, lengths in ((IDS[:3], None), (batch(), LENGTHS)):
        heard = []
        new = model.generate(ids, 4, lengths=lengths, callback=heard.append)
        assert_same_bits(np.stack(heard, axis=-1), new)

    stop = int(new[0, 0])
    ended = model.generate(batch(), 4, lengths=LENGTHS, stop=stop)
    same = model.generate(
        batch(), 4, lengths=LENGTHS, stop=stop, callback=lambda tokens: tokens.fill(1)
    )
    assert_same_bits(same, ended)

    class Enough(Exception):
        pass

    def interrupt(token):
        heard.append(token)
        if len(heard) == 2:
            raise Enough

    heard = []
    with pytest.raises(Enough):
        model.generate(IDS[:3], 9, callback=interrupt)
    assert heard == model.generate(IDS[:3], 2).tolist()
    with pytest.raises(TypeError, match="callback: expected a function, got int"):
        model.generate(IDS[:3], 2, callback=1)


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.DECODERS)
def test_a_conversation_computes_each_token_once(kind, counted):
    # Beyond its original length Phi-3 computes the keys anew.
    longer = {"original_max_position_embeddings": 32} if kind == "phi3" else {}
    model = decoder(kind, **longer)
    caches, said = model.new_caches(1, 16), IDS[:3].tolist()
    for n_new, then in ((3, [5, 8]), (1, [2]), (4, [])):
        expected = model.generate(said, n_new)
        counted.clear()
        before = int(caches[0].lengths[0])
        new = model.generate(said, n_new, caches=caches)
        assert_same_bits(new, expected)
        assert counted == [len(said) - before] + [1] * (n_new - 1)
        said += new.tolist()
        assert [cache.lengths.tolist() for cache in caches] == [[len(said) - 1]] * len(
            caches
        )
        said += then


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_conversations_of_a_batch_go_on_together(kind):
    model, n = decoder(kind), 3
    free = model.generate(batch(), n, lengths=LENGTHS)
    stop = int(free[1, 0])
    said = [row[:n].tolist() for row, n in zip(batch(), LENGTHS, strict=True)]
    caches = model.new_caches(3, 4, growable=True)
    for then in ([3], [9, 1]):
        lengths = [len(row) for row in said]
        ids = [row + [0] * (max(lengths) - len(row)) for row in said]
        new = model.generate(ids, n, lengths=lengths, stop=stop, caches=caches)
        for i, row in enumerate(said):
            assert_same_bits(new[i], model.generate(row, n, stop=stop))
            ended = np.flatnonzero(new[i] == stop)
            row += new[i, : ended[0] + 1 if ended.size else n].tolist()
        assert caches[0].lengths.tolist() == [len(row) - 1 for row in said]
        for row in said:
            row += then


def test_a_stream_that_is_left_can_go_on():
    model = decoder("llama")
    expected = model.generate(IDS[:4], 6)
    caches, said = model.new_caches(1, 12), IDS[:4].tolist()
    for token in model.stream(said, 6, caches=caches):
        said.append(int(token))
        if len(said) == 6:
            break
    assert caches[1].lengths.tolist() == [5]
    said += model.generate(said, 4, caches=caches).tolist()
    assert said[4:] == expected.tolist()
    for cache in caches:
        cache.truncate(4)  # another end of the same beginning
    said = [*IDS[:4].tolist(), 3]
    assert_same_bits(model.generate(said, 3, caches=caches), model.generate(said, 3))


def test_keys_are_computed_anew_where_positions_turn_otherwise(counted):
    model = decoder("phi3", original_max_position_embeddings=8)
    caches, said = model.new_caches(1, 16), IDS[:4].tolist()
    said += model.generate(said, 2, caches=caches).tolist()
    said += [3, 5, 9]  # from 5 tokens in the caches to 9
    expected = model.generate(said, 3)
    counted.clear()
    assert_same_bits(model.generate(said, 3, caches=caches), expected)
    assert counted == [9, 1, 1]
    assert caches[0].lengths.tolist() == [11]
    caches, said = model.new_caches(1, 16), IDS[:6].tolist()
    expected = model.generate(said, 6)
    counted.clear()
    assert_same_bits(model.generate(said, 6, caches=caches), expected)
    assert counted == [6, 1, 1, 9, 1, 1]


@pytest.mark.quick
def test_what_cannot_go_on_is_refused_at_once():
    model = decoder("gpt2")
    caches = model.new_caches(1, 8)
    model.generate(IDS[:3], 2, caches=caches)
    other = model.new_caches(1, 8)
    model.decoder.layers[1](np.zeros((1, 12), np.float32), cache=other[1])
    for error, text, given in (
        (ValueError, "token_ids: expected more tokens than the 4 that", (IDS[:4], 2)),
        (ValueError, "caches: expected room for 10 tokens, got 8", (IDS, 2)),
        (ValueError, "caches: expected B = 2 as token_ids, got 1", ([IDS, IDS], 2)),
        (ValueError, "num_tokens: expected at least 1, got 0", (IDS[:5], 0)),
        (ValueError, "token_ids: expected at least one token", (IDS[:0], 2)),
        (TypeError, "token_ids: expected integers, got a text", ("a cat", 2)),
    ):
        for call in (model.generate, model.stream):
            with pytest.raises(error, match=text):
                call(*given, caches=caches)
    assert caches[0].lengths.tolist() == [4]
    drawing = {"temperature": 1.0, "rng": np.random.default_rng(0)}
    for error, text, options in (
        (ValueError, "caches: expected the same lengths in each", {"caches": other}),
        (ValueError, "caches: expected a list with a KVC", {"caches": caches[:1]}),
        (TypeError, "caches: expected a list with a KVC", {"caches": caches[0]}),
        (ValueError, "rng: expected a numpy", {"temperature": 1.0}),
        (ValueError, "top_p: expected at most 1", {"top_p": 2.0, **drawing}),
        (ValueError, "top_p: expected a temperature", {"top_p": 0.5}),
        (ValueError, "stop: expected 0 to 29", {"stop": 30}),
        (ValueError, "lengths: expected 1 to 5", {"lengths": 0}),
    ):
        with pytest.raises(error, match=text):
            model.stream(IDS[:5], 2, **options)
    with pytest.raises(ValueError, match="at most max_length = 16 tokens"):
        model.stream(IDS, 9)


# ---- A model that is no CausalDecoder ------------------------------------------------


class Translator:
    """An encoder-decoder with random weights: 30 tokens to read, 20 to write."""

    def __init__(self):
        rng = np.random.default_rng(8)
        self.encoder = blocks.Encoder(2, 12, 3, 20, rng=rng)
        self.decoder = blocks.Decoder(2, 12, 3, 20, rng=rng)
        self.read = rng.standard_normal((30, 12), dtype=np.float32)
        self.written = rng.standard_normal((20, 12), dtype=np.float32)
        self.output = rng.standard_normal((12, 20), dtype=np.float32)
        self.positions = positions.sinusoidal(40, 12, dtype=np.float32)

    def reading(self, ids, lengths=None):
        """The states of texts (B, L) that are read, for what writes of them."""
        tokens = self.read[ids] + self.positions[: np.shape(ids)[-1]]
        states = self.encoder(tokens, kv_lengths=lengths)
        memory = self.decoder.project_context(states, context_lengths=lengths)
        return Writing(self, memory)


class Writing(sampling.LanguageModel):
    """The decoder, bound to what has been read."""

    stop = (17,)
    vocab_size = 20
    generate, stream = sampling.generate, sampling.stream

    def __init__(self, translator, memory):
        self.translator, self.memory = translator, memory

    def __call__(self, token_ids, *, lengths=None, caches=None, num_threads=None):
        whole = self.translator
        before = np.zeros((1, 1), int) if caches is None else caches[0].lengths[:, None]
        places = before + np.arange(token_ids.shape[1])
        return whole.decoder(
            whole.written[token_ids] + whole.positions[places],
            self.memory,
            caches=caches,
            kv_lengths=lengths,
            num_threads=num_threads,
        )

    def logits(self, states, *, num_threads=None):
        return linear(states, self.translator.output, num_threads=num_threads)

    def new_caches(self, batch_size, capacity):
        return self.translator.decoder.new_caches(batch_size, capacity)


def without_caches(model, ids, n):
    """What is written, with all of a text computed anew for each token."""
    new = []
    while len(new) < n and not {*new} & {*model.stop}:
        states = model(np.array([[*ids, *new]]))
        new.append(int(model.logits(states[:, -1:])[0, 0].argmax()))
    return new + new[-1:] * (n - len(new))


@pytest.mark.quick
def test_an_encoder_decoder_generates_as_it_does_without_caches(monkeypatch):
    translator, read = Translator(), batch()
    starts, n_starts, n = np.array([[1, 2], [1, 2], [1, 0]]), [2, 2, 1], 12
    model = translator.reading(read, LENGTHS)
    counts, call = [], Writing.__call__

    def counting(self, token_ids, **options):
        counts.append(token_ids.shape[1])
        return call(self, token_ids, **options)

    monkeypatch.setattr(Writing, "__call__", counting)
    new = model.generate(starts, n, lengths=n_starts)
    assert counts == [2] + [1] * (len(counts) - 1)
    texts = set()
    for i, (text, length) in enumerate(zip(read, LENGTHS, strict=True)):
        alone = translator.reading(text[np.newaxis, :length])
        start = starts[i, : n_starts[i]]
        expected = without_caches(alone, start, n)
        assert new[i].tolist() == expected
        assert alone.generate(start, n).tolist() == expected
        streamed = [int(token) for token in alone.stream(start, n)]
        assert streamed == expected[: len(streamed)]
        texts.add(tuple(expected))
    assert len(texts) == 3  # two of them differ in what is read alone
    assert [17 in text for text in new] == [False, True, False]  # where one has ended


def test_a_conversation_of_an_encoder_decoder_goes_on_in_its_caches():
    model = Translator().reading(batch()[:1])
    expected = model.generate([1], 9, stop=())
    caches = model.new_caches(1, 9)
    said = [1, *model.generate([1], 4, stop=(), caches=caches).tolist()]
    said += model.generate(said, 5, stop=(), caches=caches).tolist()
    assert said == [1, *expected.tolist()]
    with pytest.raises(ValueError, match="a KVCache for each layer, 2, got 1"):
        model.stream(said, 2, caches=caches[:1])
    with pytest.raises(ValueError, match="expected room for 12 tokens, got 9"):
        model.stream(said, 3, caches=caches)
