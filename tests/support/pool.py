"""Calls of everything that takes num_threads, and how many threads each starts."""

import functools
import inspect
import os
import re
import tempfile
from pathlib import Path

import numpy as np

import attnpy
from attnpy import _attnpy, blocks, classic, layers, models, positions, training, view
from support import pictures as support_pictures
from support import public, sentences
from support.arrays import normal

# What is about the settings, not a call.
SETTINGS = {"set_num_threads", "get_num_threads"}


def taking_threads():
    """The public functions and methods with a parameter num_threads."""
    return {
        name
        for name, thing in public.callables().items()
        if name not in SETTINGS
        and not hasattr(thing, "_fields")  # the result of a call
        and (
            "num_threads" in public.parameters(thing)
            or re.search(r"\bnum_threads\b", inspect.getdoc(thing) or "")
        )
    }


def there_and_back(vjp):
    """A call of a vjp, and of the pullback with the gradient of the whole output."""

    def call(*arguments, **options):
        output, pullback = vjp(*arguments, **options)
        return pullback(np.ones_like(output))

    return call


def clipped(gradient, **options):
    """What clip_norm makes of a gradient."""
    gradients = {"x": gradient.copy()}
    training.clip_norm(gradients, 1.0, **options)
    return gradients["x"]


def stepped(gradient, **options):
    """A parameter after a step of AdamW, from 0 on."""
    parameters = {"x": np.zeros_like(gradient)}
    training.AdamW(parameters).step({"x": gradient}, **options)
    return parameters["x"]


def function_cases():
    query, key, value = (normal(4, 60, 8, seed=i) for i in range(3))
    arrays, x = (query, key, value), normal(9, 800, 24)
    long = normal(4, 600, 8)
    state = attnpy.attend_partial(long, long, long)
    yield "attention", attnpy.attention, arrays
    yield "attention_vjp", attnpy.attention_vjp, (query, *arrays)
    yield "attend_partial", attnpy.attend_partial, arrays
    yield "PartialAttention.finish", state.finish, ()
    yield "Plan", lambda *given, **n: attnpy.Plan(*given, **n)(), arrays
    yield "statistics", attnpy.statistics, (long, long)
    for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "tanh"):
        yield f"blocks.{name}", getattr(blocks, name), (x,)
    yield "blocks.activation_vjp", blocks.activation_vjp, (x, x, "gelu")
    matrix = normal(8, 8)
    additive = (*arrays, matrix, matrix, matrix[0])
    yield "classic.additive_attention", classic.additive_attention, additive
    given = (*arrays, matrix)
    yield "classic.multiplicative_attention", classic.multiplicative_attention, given
    yield "positions.Rotary.__call__", positions.Rotary(24), (x,)
    targets = np.zeros(x.shape[:-1], int)
    yield "training.cross_entropy", training.cross_entropy, (x, targets)
    ranking = training.multiple_negatives_ranking_loss
    yield "training.multiple_negatives_ranking_loss", ranking, (x[0], x[1])
    yield "training.clip_norm", clipped, (x,)
    yield "training.AdamW.step", stepped, (x,)
    yield "view.neuron_view", view.neuron_view, (query, key, [""] * 60)


def layer_cases():
    rng = np.random.default_rng(0)
    x, context = normal(6, 90, 24), normal(6, 80, 24, seed=1)
    large = normal(9, 800, 24)
    for kind in (blocks.LayerNorm, blocks.RMSNorm):
        norm, name = kind(24), f"blocks.{kind.__name__}"
        yield f"{name}.__call__", norm, (large, large)
        yield f"{name}.vjp", there_and_back(norm.vjp), (large, large)
    mha = layers.MultiHeadAttention(24, 4, rng=rng)
    mha.q_norm, mha.k_norm = blocks.RMSNorm(6), blocks.LayerNorm(6)
    network = blocks.FeedForward(24, 48, activation="swiglu", rng=rng)
    sizes = {"norm_first": True, "rng": rng}
    made = {
        "SelfAttention": layers.SelfAttention(24, 8, rng=rng),
        "MultiHeadAttention": mha,
        "blocks.FeedForward": network,
        "blocks.MixtureOfExperts": blocks.MixtureOfExperts(24, 48, 4, 2, rng=rng),
        "blocks.Linear": blocks.Linear(24, 48, rng=rng),
        "blocks.EncoderLayer": blocks.EncoderLayer(24, 4, 48, rng=rng),
        "blocks.Encoder": blocks.Encoder(2, 24, 4, 48, **sizes),
        "blocks.DecoderLayer": blocks.DecoderLayer(24, 4, 48, rng=rng),
        "blocks.Decoder": blocks.Decoder(2, 24, 4, 48, **sizes),
    }
    route = made["blocks.MixtureOfExperts"].route
    yield "blocks.MixtureOfExperts.route", route, (x,)
    for name, layer in made.items():
        given = (x, context) if "Decoder" in name else (x,)
        yield f"{name}.__call__", layer, given
        yield f"{name}.vjp", there_and_back(layer.vjp), given
    project = "project_context"
    yield f"MultiHeadAttention.{project}", mha.project_context, (context,)
    decoder = made["blocks.Decoder"]
    yield f"blocks.Decoder.{project}", decoder.project_context, (context,)

    def turned(x, **options):
        options |= {"rotary": positions.Rotary(6), "checkpoint": True}
        return there_and_back(mha.vjp)(x, **options)

    yield "vjp with positions", turned, (x,)


def model_cases():
    rng = np.random.default_rng(0)
    size = {"vocab_size": 50, "rng": rng}
    heads = {"num_labels": 3, "num_token_labels": 3, "masked_words": True}
    bert = models.BertEncoder(1, 24, 4, 48, pooler=True, **heads, **size)
    gpt = models.CausalDecoder(
        *(1, 24, 4, 48), logit_softcap=5.0, norm_after=True, num_labels=300, **size
    )
    ids, states = rng.integers(0, 50, (3, 60)), normal(600, 2, 24)
    lengths = {"lengths": [60, 20, 0]}
    yield "models.BertEncoder.__call__", bert, (ids,)
    yield "models.CausalDecoder.__call__", gpt, (ids,)
    yield "packed", lambda ids, **n: bert(ids, **lengths, **n), (ids,)
    for model in (bert, gpt):
        name = f"models.{type(model).__name__}.vjp"
        yield name, there_and_back(model.vjp), (ids,)
    image = models.ImageEncoder(
        1,
        24,
        4,
        48,
        image_size=32,
        patch_size=4,
        pooler="attention",
        num_labels=200,
        rng=rng,
    )
    pixels, tokens = normal(20, 32, 32, 3), normal(300, 65, 24)
    yield "models.ImageEncoder.__call__", image, (pixels,)
    yield "models.ImageEncoder.pool", image.pool, (tokens,)
    yield "models.ImageEncoder.classify", image.classify, (tokens,)
    text = models.CausalDecoder(
        1, 24, 4, 48, vocab_size=30, max_length=60, tied=None, rng=rng
    )
    pair = models.ImageTextModel(image, text, 300, end_token=29, rng=rng)
    words = np.full((40, 60), 29)
    yield "models.ImageTextModel.encode_images", pair.encode_images, (pixels,)
    yield "models.ImageTextModel.encode_texts", pair.encode_texts, (words,)
    vectors = normal(200, 300)
    yield "models.ImageTextModel.logits", pair.logits, (vectors, vectors)
    processor = models.ImageProcessor((32, 32))
    pictures = np.zeros((20, 32, 32, 3), np.uint8)
    classifier = models.ImageClassifier(image, processor)

    def quietly(method):
        return lambda *given, **n: method(*given, progress=False, **n)

    for name in ("scores", "predict"):
        call = quietly(getattr(classifier, name))
        yield f"models.ImageClassifier.{name}", call, (pictures,)
    encoder = models.ImageTextEncoder(pair, support_pictures.tokenizer(), processor)
    labels = ["cat"] * 200
    for name, given in (
        ("encode_images", (pictures,)),
        ("encode_texts", (labels,)),
        ("classify", (pictures, labels)),
    ):
        yield f"models.ImageTextEncoder.{name}", quietly(getattr(encoder, name)), given
    for name in ("similarity", "search"):
        yield f"models.ImageTextEncoder.{name}", getattr(encoder, name), (vectors,) * 2
    for name in ("pool", "classify"):
        yield f"models.BertEncoder.{name}", getattr(bert, name), (states,)
        vjp = there_and_back(getattr(bert, f"{name}_vjp"))
        yield f"models.BertEncoder.{name}_vjp", vjp, (states,)
    for name in ("classify_tokens", "logits"):
        yield f"models.BertEncoder.{name}", getattr(bert, name), (states,)
    yield "models.CausalDecoder.logits", gpt.logits, (states,)
    logits_vjp = there_and_back(gpt.logits_vjp)
    yield "models.CausalDecoder.logits_vjp", logits_vjp, (states,)
    yield "models.CausalDecoder.classify", gpt.classify, (states,)
    classify_vjp = there_and_back(gpt.classify_vjp)
    yield "models.CausalDecoder.classify_vjp", classify_vjp, (states,)
    yield "models.CausalDecoder.generate", gpt.generate, (ids, 2)
    yield "models.CausalDecoder.prefill", gpt.prefill, (ids[0],)

    def together(ids, **options):
        batch = models.ContinuousBatch(gpt, 9, **options)
        for row in ids:
            batch.add(row, 2)
        return list(batch)

    yield "models.ContinuousBatch", together, (ids,)

    def stream(*arguments, **options):
        return list(gpt.stream(*arguments, **options))

    yield "models.CausalDecoder.stream", stream, (ids, 2)
    head = {"num_labels": 2, "scored_token": 1}
    both = models.EncoderDecoder(1, 24, 4, 48, num_buckets=4, start=0, **head, **size)
    states = both.encode(ids)
    yield "models.EncoderDecoder.__call__", both, (ids, ids)
    yield "models.EncoderDecoder.encode", both.encode, (ids,)
    yield "models.EncoderDecoder.decode", both.decode, (ids, states)
    yield (
        "models.EncoderDecoder.project_context",
        lambda states, **n: [cache.key for cache in both.project_context(states, **n)],
        (states,),
    )
    yield "models.EncoderDecoder.logits", both.logits, (states,)
    ended = np.append(ids, np.ones((len(ids), 1), int), axis=1)
    yield "models.EncoderDecoder.classify", both.classify, (ended,)
    yield "models.EncoderDecoder.vjp", there_and_back(both.vjp), (ids, ids)
    search = functools.partial(both.generate, num_beams=3)
    yield "models.EncoderDecoder.generate", search, (ids, 2)


def sentence_cases():
    with tempfile.TemporaryDirectory() as folder:
        sentences.write(Path(folder))
        encoder = models.SentenceEncoder.from_pretrained(folder)
        unpacked = models.SentenceEncoder.from_pretrained(folder, packed=False)
    vectors, texts = normal(600, 12), ["the cat"] * 40

    def encode(texts, **options):
        return encoder.encode(texts, progress=False, **options)  # tqdm has a thread

    def search(query, corpus, **options):
        return encoder.search(query, corpus, progress=False, **options)

    yield "models.SentenceEncoder.encode", encode, (texts,)
    yield "models.SentenceEncoder.vjp", there_and_back(unpacked.vjp), (texts,)
    yield "models.SentenceEncoder.similarity", encoder.similarity, (vectors, vectors)
    yield "models.SentenceEncoder.search", search, (vectors, vectors)
    with tempfile.TemporaryDirectory() as folder:
        sentences.write_scorer(Path(folder))
        reranker = models.CrossEncoder.from_pretrained(folder)

    def predict(pairs, **options):
        return reranker.predict(pairs, progress=False, **options)

    def rank(query, documents, **options):
        return reranker.rank(query, documents, progress=False, **options)

    yield "models.CrossEncoder.predict", predict, ([("the cat", "a dog")] * 40,)
    yield "models.CrossEncoder.rank", rank, ("the cat", texts)
    both = models.EncoderDecoder(1, 24, 4, 48, vocab_size=300, num_buckets=4, start=0)
    writer = models.TextToText(both, reranker.tokenizer)
    write = functools.partial(writer.generate, num_tokens=2, progress=False)
    yield "models.TextToText.generate", write, (texts,)
    classifier = models.TextClassifier(reranker.model, reranker.tokenizer)
    for name in ("scores", "predict"):
        call = functools.partial(getattr(classifier, name), progress=False)
        yield f"models.TextClassifier.{name}", call, (texts,)
    matrices = np.ones((12, 1)), np.ones(1), np.ones((12, 7)), np.ones(7)
    several = models.M3Encoder(encoder, *matrices)
    yield "models.M3Encoder.encode", several.encode, (texts,)
    late = models.MultiVectorEncoder(encoder.model, reranker.tokenizer)

    def rank_late(query, documents, **options):
        return late.rank(query, documents, progress=False, **options)

    for name in ("queries", "documents"):
        call = functools.partial(getattr(late, f"encode_{name}"), progress=False)
        yield f"models.MultiVectorEncoder.encode_{name}", call, (texts,)
    yield (
        "models.MultiVectorEncoder.similarity",
        late.similarity,
        ([vectors], [vectors, vectors[:3]]),
    )
    yield "models.MultiVectorEncoder.rank", rank_late, ("the cat", texts)
    yield "models.maxsim", models.maxsim, (vectors, [vectors, vectors[:3]])
    heads = {"TokenClassifier": "token_classifier", "FillMask": "masked_words"}
    for owner, head in heads.items():
        with tempfile.TemporaryDirectory() as folder:
            sentences.write_with_head(Path(folder), **{head: True})
            read = getattr(models, owner).from_pretrained(folder)
        yield f"models.{owner}.predict", read.predict, ([f"{x} moon" for x in texts],)


def all_cases():
    yield from function_cases()
    yield from layer_cases()
    yield from model_cases()
    yield from sentence_cases()


def threads_of(call):
    """How many threads a child process, which begins with one, has after this call."""
    pid = os.fork()
    if pid == 0:
        status = 0
        try:
            call()
            status = len(os.listdir("/proc/self/task"))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    """Print how many threads each call takes: with num_threads 1, 3, and by default."""
    attnpy.set_num_threads(1)
    cases = list(all_cases())
    _attnpy.set_work_per_thread(1.0)
    attnpy.set_num_threads(5)
    for name, call, arguments in cases:
        taken = [
            threads_of(lambda: call(*arguments, **given))  # noqa: B023
            for given in ({"num_threads": 1}, {"num_threads": 3}, {})
        ]
        print(name, *taken, sep="|", flush=True)
