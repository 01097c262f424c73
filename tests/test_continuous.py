"""Texts that are continued together have the tokens that each has alone."""

import gc
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.comparisons import assert_same_bits
from support.errors import refused
from support.interrupts import interrupted_everywhere
from support.processes import assert_runs

from attnpy.models import CausalDecoder, ContinuousBatch, Prefix, continuous
from attnpy.positions import Rotary

RNG = np.random.default_rng(0)


def make(**options):
    options = {"rotary": Rotary(8), **options}
    return CausalDecoder(
        2, 32, 4, 64, vocab_size=50, num_kv_heads=2, norm="rms",
        activation="swiglu", bias=False, tied=False, rng=np.random.default_rng(0),
        **options,
    )  # fmt: skip


MODEL = make()
PREFIX = RNG.integers(0, 50, 150)
WINDOWED = make(window=[(100, 0), None])


def collect(batch):
    """The tokens of each text, in order."""
    found = {number: [] for number in batch.numbers}
    for number, token in batch:
        found[number].append(token)
    return found


def free(batch):
    gc.collect()
    return [pool.num_free for pool in batch.pools]


@pytest.mark.quick
@pytest.mark.parametrize("model", [MODEL, WINDOWED], ids=["all", "windows"])
@pytest.mark.parametrize("prompt_tokens", [7, 300])
def test_each_text_has_the_tokens_that_it_has_alone(model, prompt_tokens):
    batch = ContinuousBatch(model, 12, prompt_tokens=prompt_tokens)
    texts = [RNG.integers(0, 50, n) for n in (1, 3, 200, 130, 128, 5, 90)]
    numbers = [batch.add(text, 20 + i) for i, text in enumerate(texts)]
    found = collect(batch)
    for i, (number, text) in enumerate(zip(numbers, texts, strict=True)):
        assert found[number] == model.generate(text, 20 + i).tolist()
    assert free(batch) == [12, 12]


def expected(text, prefix=()):
    """The tokens of a text alone, up to one that ends it."""
    ids, num_tokens, stop, seed = text
    options = {}
    if seed is not None:
        options = {"temperature": 1.0, "rng": np.random.default_rng(seed)}
    ids = [*prefix, *ids]
    return [int(t) for t in MODEL.stream(ids, num_tokens, stop=stop, **options)]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_schedule_of_texts(data):
    """Texts are added, cancelled, forked and evicted at any time."""
    draw = data.draw
    n_pages = draw(st.integers(4, 12))
    batch = ContinuousBatch(
        MODEL, n_pages, prompt_tokens=draw(st.sampled_from([1, 5, 64, 300]))
    )
    prefix = batch.prefill(PREFIX) if draw(st.booleans()) else None
    wanted, found = {}, {}
    for _ in range(draw(st.integers(1, 25))):
        actions = ["add", "step", "step", "step", "cancel", "evict", "fork"]
        action = draw(st.sampled_from(actions))
        numbers = batch.numbers
        if action == "step":
            try:
                for number, token in batch.step():
                    found[number].append(token)
            except MemoryError as error:
                assert "prefixes" in str(error)
                prefix = None
        elif action == "add":
            seed = draw(st.one_of(st.none(), st.integers(0, 9)))
            length, n = (
                draw(st.sampled_from([1, 2, 60, 130, 250])),
                draw(st.integers(1, 15)),
            )
            ids = np.random.default_rng(length + n).integers(0, 50, length)
            text = ids, n, draw(st.sampled_from([(), (1, 2, 3, 4, 5)])), seed
            begins = prefix if draw(st.booleans()) else None
            options = {} if seed is None else {
                "temperature": 1.0, "rng": np.random.default_rng(seed)
            }  # fmt: skip
            try:
                number = batch.add(ids, n, stop=text[2], prefix=begins, **options)
            except MemoryError as error:
                assert str(error).startswith("pages: expected")
                continue
            past = () if begins is None else PREFIX
            wanted[number], found[number] = expected(text, past), []
        elif numbers:
            number = draw(st.sampled_from(numbers))
            if action == "cancel":
                batch.cancel(number)
                wanted[number] = wanted[number][: len(found[number])]
            elif action == "evict":
                batch.evict(number)
            else:
                new = batch.fork(number)
                wanted[new], found[new] = wanted[number], list(found[number])
    prefix = begins = None  # texts that have it need its pages no more than the rest
    for number, token in batch:
        found[number].append(token)
    assert found == wanted
    gc.collect()
    assert free(batch) == [n_pages] * 2


def test_texts_share_the_pages_of_a_prefix():
    batch = ContinuousBatch(MODEL, 8)
    prefix = batch.prefill(PREFIX)
    assert free(batch) == [6, 6]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        batch.add([3, seed], 9, prefix=prefix, temperature=1.0, rng=rng)
    batch.step()
    assert free(batch) == [0, 0]  # the last page of each is its own
    found = collect(batch)
    for seed, tokens in found.items():
        rng = np.random.default_rng(seed)
        alone = MODEL.generate([*PREFIX, 3, seed], 9, temperature=1.0, rng=rng)
        assert tokens == alone.tolist()[1:]
    assert free(batch) == [6, 6]
    del prefix
    assert free(batch) == [8, 8]


def test_a_prefix_of_the_model_is_put_in_pages_once():
    batch, prefix = ContinuousBatch(MODEL, 9), MODEL.prefill(PREFIX)
    for _ in range(3):
        batch.add([3, 4], 9, prefix=prefix)
    assert free(batch) == [7, 7]
    for tokens in collect(batch).values():
        assert tokens == MODEL.generate([*PREFIX, 3, 4], 9).tolist()
    with refused(ValueError, "prefix"):
        ContinuousBatch(MODEL, 9, dtype="float16").add([3], 9, prefix=prefix)
    with refused(ValueError, "prefix"):
        ContinuousBatch(make(window=(5, 0)), 9).add([3], 9, prefix=Prefix(
            PREFIX, MODEL.prefill(PREFIX)._caches
        ))  # fmt: skip


def test_keys_of_int8():
    batch = ContinuousBatch(MODEL, 9, dtype="int8")
    prefix = batch.prefill(PREFIX)
    batch.add([3, 4], 9, prefix=prefix)
    ids = [*PREFIX.tolist(), 3, 4]
    caches = MODEL.new_caches(1, 300, dtype="int8")
    assert collect(batch)[0] == MODEL.generate(ids, 9, caches=caches).tolist()


def test_a_text_that_can_never_have_its_pages_is_refused():
    batch = ContinuousBatch(MODEL, 2)
    batch.add([1, 2], 9)
    with pytest.raises(MemoryError, match="pages: expected 3 for the 257 tokens"):
        batch.add(np.ones(200, int), 58)
    assert batch.add(np.ones(200, int), 57) == 1
    with pytest.raises(MemoryError, match="pages: expected 3 for the prefix"):
        batch.prefill(np.ones(300, int))
    assert len(collect(batch)[0]) == 9


def test_a_text_waits_for_pages_without_losing_another():
    batch = ContinuousBatch(MODEL, 2)
    one, other = batch.add(np.ones(150, int), 9), batch.add([4, 5], 9)
    batch.step()
    assert [len(batch._running), len(batch._waiting)] == [1, 1]
    found = collect(batch)
    assert found[other] == MODEL.generate([4, 5], 9).tolist()
    assert found[one] == MODEL.generate(np.ones(150, int), 9).tolist()[1:]


def test_prefixes_that_have_all_pages_are_an_error_and_not_for_ever():
    batch = ContinuousBatch(MODEL, 2)
    prefix = batch.prefill(PREFIX)
    batch.add([4, 5], 9)
    with pytest.raises(MemoryError, match="pages: expected free ones for text 0"):
        batch.step()
    del prefix
    gc.collect()
    assert collect(batch)[0] == MODEL.generate([4, 5], 9).tolist()


def test_windows_give_pages_back():
    windowed = make(window=(100, 0))
    batch = ContinuousBatch(windowed, 4, prompt_tokens=64)
    ids = RNG.integers(0, 50, 1000)
    batch.add(ids, 20)
    most = 0
    tokens = []
    while batch.numbers:
        tokens += [token for _, token in batch.step()]
        most = max(most, 4 - batch.pools[0].num_free)
    assert tokens == windowed.generate(ids, 20).tolist()
    assert most <= 3


def test_windows_and_a_prefix_keep_what_was_promised():
    """The prefix keeps its pages, so that texts that leave them need their own."""
    windowed = make(window=[(100, 0), (300, 0)])
    ids = RNG.integers(0, 50, 1100)
    for n_pages in (12, 15):
        batch = ContinuousBatch(windowed, n_pages, prompt_tokens=64)
        prefix = batch.prefill(ids)
        for first in range(2):
            batch.add([first], 300, prefix=prefix)
        found = collect(batch)
        for first, tokens in found.items():
            assert tokens == windowed.generate([*ids, first], 300).tolist()
        del prefix
        assert free(batch) == [n_pages] * 2
    batch = ContinuousBatch(windowed, 11, prompt_tokens=64)
    with pytest.raises(MemoryError, match="pages: expected 12 for the 1400 tokens"):
        batch.add([1], 300, prefix=batch.prefill(ids))


def test_more_tokens_of_prompts_need_no_more_pages_than_promised():
    windowed = make(window=(100, 0))
    batch = ContinuousBatch(windowed, 6, prompt_tokens=8)
    texts = [RNG.integers(0, 50, 500) for _ in range(2)]
    for text in texts:
        batch.add(text, 5)
    batch.step()
    batch.prompt_tokens = 500
    for text, tokens in zip(texts, collect(batch).values(), strict=True):
        assert tokens == windowed.generate(text, 5).tolist()
    for error, wrong in ((ValueError, 0), (TypeError, "a"), (TypeError, 2.5)):
        with refused(error, "prompt_tokens"):
            batch.prompt_tokens = wrong
    batch = ContinuousBatch(MODEL, 6, prompt_tokens=8)
    batch.prompt_tokens = 500
    batch.add(texts[0], 5)
    assert len(batch.step()) == 1


def test_an_interrupt_loses_no_text():
    """A call has done nothing, or all of its work; so texts have their tokens."""
    model = CausalDecoder(1, 8, 2, 8, vocab_size=9, rng=np.random.default_rng(0))
    seeds = [None, 1, 2]

    def drawn(seed):
        if seed is None:
            return {}
        return {"temperature": 1.0, "rng": np.random.default_rng(seed)}

    alone = [model.generate([3, 4], 4, **drawn(seed)).tolist() for seed in seeds]

    def calls():
        batch.step()
        batch.add([3, 4], 4)
        batch.evict(2)
        batch.fork(1)
        batch.cancel(0)

    def begin():
        nonlocal batch
        batch = ContinuousBatch(model, 9, prompt_tokens=2)
        for seed in seeds:
            batch.add([3, 4], 4, **drawn(seed))
        batch.step()

    batch = None
    begin()
    # No handler runs where a `with` of a lock ends, as tracing does.
    inside, files = [ContinuousBatch.step], [continuous.__file__]
    for _ in interrupted_everywhere(calls, never_in=inside, files=files):
        texts = {text.number: text for text in (*batch._running, *batch._waiting)}
        assert len(texts) == len(batch._running) + len(batch._waiting)
        assert {1, 2} <= texts.keys()  # and 0, unless it was cancelled
        assert batch._next == max(texts) + 1
        assert len(list(batch)) <= 4 * len(texts)
        for number, text in texts.items():
            same = {0: 0, 1: 1, 2: 2, 3: 0, 4: 1}[number]
            assert text.tokens == [3, 4, *alone[same]]
        assert batch.pools[0].num_free == 9
        begin()


def test_an_interrupt_before_generators_advance_draws_nothing_twice(monkeypatch):
    batch, advance = ContinuousBatch(MODEL, 9), ContinuousBatch._advance

    def interrupted(self):
        if self._states:
            monkeypatch.undo()
            raise KeyboardInterrupt
        advance(self)

    batch.add([1, 2], 9, temperature=1.0, rng=np.random.default_rng(1))
    text = batch._waiting[0]
    monkeypatch.setattr(ContinuousBatch, "_advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch.step()
    assert len(collect(batch)[0]) == 8
    alone = MODEL.generate([1, 2], 9, temperature=1.0, rng=np.random.default_rng(1))
    assert text.tokens == [1, 2, *alone]


def test_threads_wait_for_each_other():
    batch = ContinuousBatch(MODEL, 12)
    texts, numbers = [[seed, 1 + seed] for seed in range(12)], {}
    found, ready = {number: [] for number in range(12)}, threading.Event()

    def add(part):
        ready.wait()
        for text in part:
            numbers[batch.add(text, 5)] = text

    threads = [threading.Thread(target=add, args=(texts[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    ready.set()
    while sum(map(len, found.values())) < 60:
        for number, token in batch.step():
            found[number].append(token)
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(12))
    for number, text in numbers.items():
        assert found[number] == MODEL.generate(text, 5).tolist()


def test_a_call_inside_another_one_is_refused():
    """As one of a signal handler is, which cannot wait for what it interrupts."""
    said, model = [], make()
    batch = ContinuousBatch(model, 12)
    batch.add([1, 2], 5)
    whole = model.logits

    def logits(*arguments, **options):
        with pytest.raises(RuntimeError, match="expected no call inside another one"):
            batch.add([1], 3)
        said.append(1)
        return whole(*arguments, **options)

    vars(model)["logits"] = logits
    assert collect(batch)[0] == MODEL.generate([1, 2], 5).tolist()
    assert len(said) == 5


CHILD = """
import os
from test_continuous import *

batch = ContinuousBatch(MODEL, 12)
batch.add([1, 2], 5)
batch.step()
whole = MODEL.generate([1, 2], 5).tolist()
batch._turn.acquire()  # as a thread has it that the child has not
pid = os.fork()
if pid == 0:
    os._exit(collect(batch)[0] != whole[1:])
batch._turn.release()
assert os.waitpid(pid, 0)[1] == 0
assert collect(batch)[0] == whole[1:]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_goes_on_with_texts_of_a_step_that_was_under_way():
    assert_runs(CHILD)


def test_texts_may_reach_the_last_position():
    model = make(rotary=None, max_length=40)
    batch = ContinuousBatch(model, 4, prompt_tokens=30)
    texts = [[3, 4], [5] * 30, [6] * 39]
    batch.add(texts[0], 39)
    found = {0: []}
    for _ in range(35):
        found[0] += [token for _, token in batch.step()]
    for text in texts[1:]:
        found[batch.add(text, 41 - len(text))] = []
    for number, token in batch:
        found[number].append(token)
    for number, text in enumerate(texts):
        alone = model.generate(text, 41 - len(text))
        assert found[number] == alone.tolist()
    ids = np.array([[1, 2, 3] * 4, [5] * 12])
    assert_same_bits(model.generate(ids, 29, draft="lookup"), model.generate(ids, 29))


def test_memory_returns_after_two_thousand_texts():
    model = CausalDecoder(1, 8, 2, 8, vocab_size=9, rng=np.random.default_rng(0))
    batch, n_done = ContinuousBatch(model, 300), 0
    for i in range(2_000):
        batch.add([i % 9, 1], 1 + i % 3)
        if i % 250 == 249:
            for number in batch.numbers[::10]:
                batch.cancel(number)
            n_done += sum(1 for _ in batch)
    assert n_done > 2_000
    assert (batch.numbers, free(batch)) == ([], [300])
    assert (batch._running, batch._waiting) == ([], [])


def test_an_error_of_the_model_changes_nothing():
    model = make()
    batch = ContinuousBatch(model, 9)
    for n in (3, 150):
        rng = np.random.default_rng(n)
        batch.add(np.ones(n, int), 9, temperature=1.0, rng=rng)
    found = {0: [], 1: []}
    for _ in range(3):
        for number, token in batch.step():
            found[number].append(token)
    good = model.output.copy()
    model.output[...] = np.nan
    with refused(ValueError, "logits"):
        batch.step()
    model.output[...] = good
    for number, token in batch:
        found[number].append(token)
    for number, n in enumerate((3, 150)):
        rng = np.random.default_rng(n)
        alone = MODEL.generate(np.ones(n, int), 9, temperature=1.0, rng=rng)
        assert_same_bits(np.array(found[number]), alone)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("error", "name", "wrong"),
    [
        (TypeError, "model", lambda _: ContinuousBatch(None, 9)),
        (ValueError, "num_pages", lambda _: ContinuousBatch(MODEL, 0)),
        (ValueError, "prompt_tokens", lambda _: ContinuousBatch(
            MODEL, 9, prompt_tokens=0)),
        (ValueError, "token_ids", lambda batch: batch.add([], 9)),
        (ValueError, "token_ids", lambda batch: batch.add([[1]], 9)),
        (ValueError, "num_tokens", lambda batch: batch.add([1], 0)),
        (ValueError, "rng", lambda batch: batch.add([1], 9, temperature=1.0)),
        (TypeError, "prefix", lambda batch: batch.add([1], 9, prefix=[1])),
        (ValueError, "number", lambda batch: batch.cancel(3)),
        (TypeError, "number", lambda batch: batch.evict("a")),
        (TypeError, "rng", lambda batch: batch.fork(batch.add([1], 2), rng=3)),
        (ValueError, "model", lambda _: ContinuousBatch(make(rotary=Rotary(
            8, scaling={"rope_type": "dynamic", "factor": 2.0,
                        "original_max_position_embeddings": 32})), 9)),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(error, name, wrong):
    with refused(error, name):
        wrong(ContinuousBatch(MODEL, 9))
