"""Right and wrong uses of all that is public, for type checkers; nothing runs this.

A line that checkers must refuse ends with ``# wrong``; they must accept all others.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import attnpy
import attnpy.integrations.autograd
import attnpy.integrations.dask
import attnpy.integrations.huggingface
import attnpy.integrations.jax
import attnpy.integrations.onnx
import attnpy.integrations.sklearn
import attnpy.integrations.torch

Array = NDArray[Any]
Two = tuple[Array, Array]
Three = tuple[Array, Array, Array]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


# ---- Functions -----------------------------------------------------------------------


def weights(w: Array) -> None:
    quantised = attnpy.quantize(w, bits=4, group=64, activations="int8")
    assert_type(quantised, attnpy.QuantizedWeight)
    assert_type(attnpy.QuantizedWeight.from_blocks(w, w), attnpy.QuantizedWeight)
    attnpy.QuantizedWeight.from_blocks(
        w,
        w,
        w,
        bits=4,
        group=32,
        zero=8,
        values=w,
        coarse_scale=w,
        coarse_minimum=w,
        groups_per_block=8,
        activations="float",
        dtype="float16",
    )
    assert_type(quantised.dequantize(), Array)
    assert_type(quantised.shape, tuple[int, int])
    assert_type(quantised.activations, Literal["float", "int8"])
    assert quantised.ndim == 2
    assert_type([quantised.bits, quantised.group, quantised.nbytes], list[int])
    attnpy.quantize(w, bits=3)  # wrong
    attnpy.quantize(w, group="row")  # wrong
    attnpy.quantize(w, activations="int4")  # wrong


def attention(q: Array, flag: bool) -> None:
    assert_type(attnpy.attention(q, q, q), Array)
    assert_type(attnpy.attention([[1.0]], [[1.0]], [[1.0]], causal=True), Array)
    assert_type(attnpy.attention(q, q, q, return_weights=True), Two)
    assert_type(attnpy.attention(q, q, q, return_lse=True), Two)
    assert_type(attnpy.attention(q, q, q, return_weights=True, return_lse=True), Three)
    assert_type(attnpy.attention(q, q, q, return_weights=False), Array)
    assert_type(attnpy.attention(q, q, q, return_weights=flag), Array | Two)
    assert_type(attnpy.attention(q, q, q, return_lse=flag), Array | Two)
    both = attnpy.attention(q, q, q, return_weights=flag, return_lse=flag)
    assert_type(both, Array | Two | Three)
    attnpy.attention(
        q,
        q,
        q,
        mask=q > 0,
        bias=0.5,
        causal="top_left",
        window=(3, None),
        q_offset=[0, 1],
        kv_lengths=3,
        key_scale=q,
        value_scale=None,
        seq_offsets=([0, 3], None),
        page_table=None,
        scale=1,
        softcap=30.0,
        sinks=[0.0],
        dropout=0.1,
        dropout_seed=1,
        out=q,
        num_threads=1,
    )
    attnpy.attenton(q, q, q)  # wrong
    attnpy.attention(q, q)  # wrong
    attnpy.attention(q, q, q, q)  # wrong
    attnpy.attention(q, q, None)  # wrong
    attnpy.attention(q, q, q, is_causal=True)  # wrong
    attnpy.attention(q, q, q, causal="bottom-right")  # wrong
    attnpy.attention(q, q, q, window=3)  # wrong
    attnpy.attention(q, q, q, window=(1.5, 2))  # wrong
    attnpy.attention(q, q, q, scale="sqrt")  # wrong
    attnpy.attention(q, q, q, dropout=None)  # wrong
    attnpy.attention(q, q, q, dropout_seed=0.5)  # wrong
    attnpy.attention(q, q, q, out=[[1.0]])  # wrong
    attnpy.attention(q, q, q, num_threads=2.0)  # wrong
    attnpy.attention(q, q, q, return_weights="yes")  # wrong
    attnpy.attention(q, q, q, tier="scalar")  # wrong
    attnpy.attention(q, q, q).weights  # wrong
    output, weights, lse = attnpy.attention(q, q, q, return_weights=True)  # wrong
    attnpy.attention(q, q, q, return_weights=flag).shape  # wrong


def gradients(q: Array, name: str) -> None:
    found = attnpy.attention_vjp(q, q, q, q, wanted=("query", "bias"), bias=0, sinks=1)
    assert_type(found, attnpy.AttentionGradients)
    assert_type(found.query, Array | None)
    assert_type(found.key, Array | None)
    assert_type(found.value, Array | None)
    assert_type(found.bias, Array | None)
    assert_type(found.sinks, Array | None)
    attnpy.attention_vjp(q, q, q, q, output=q, lse=q, grad_lse=q, causal=True)
    attnpy.attention_vjp(q, q, q)  # wrong
    attnpy.attention_vjp(q, q, q, q, return_lse=True)  # wrong
    attnpy.attention_vjp(q, q, q, q, wanted=3)  # wrong
    found.scale  # wrong
    found.query.shape  # wrong
    found.query = q  # wrong


def partial(q: Array, flag: bool) -> None:
    state = attnpy.attend_partial(q, q, q, causal=True, q_offset=3)
    assert_type(state, attnpy.PartialAttention)
    state = attnpy.attend_partial(q, q, q, state, first_key=4)
    assert_type(state.finish(), Array)
    assert_type(state.finish(sinks=[0.0], return_lse=True, num_threads=1), Two)
    assert_type(state.finish(return_lse=flag), Array | Two)
    assert_type(state.totals, Array)
    assert_type(state.next_key, int)
    assert_type(state.dtype, np.dtype[Any])
    attnpy.attend_partial(q, q, q, q)  # wrong
    attnpy.attend_partial(q, q, q, sinks=[0.0])  # wrong
    state.finish(True)  # wrong
    state.finish().lse  # wrong
    state.end()  # wrong


def plan(q: Array, flag: bool) -> None:
    plan = attnpy.Plan(q, q, q, causal=True, kv_lengths=3, window=(None, 0))
    assert_type(plan, attnpy.Plan[Array])
    assert_type(plan(), Array)
    assert_type(attnpy.Plan(q, q, q, return_lse=True)(), Two)
    assert_type(attnpy.Plan(q, q, q, return_weights=True)(), Two)
    assert_type(attnpy.Plan(q, q, q, return_weights=True, return_lse=True)(), Three)
    assert_type(attnpy.Plan(q, q, q, return_weights=flag)(), Array | Two)
    assert_type(attnpy.Plan(q, q, q, return_lse=flag)(), Array | Two)
    either: list[attnpy.Plan[Array | Two]] = [plan]
    assert_type(either[0](), Array | Two)
    assert_type([plan.query, plan.key, plan.value, plan.output], list[Array])
    assert_type([plan.bias, plan.weights, plan.lse], list[Array | None])
    assert_type([plan.q_offset, plan.kv_lengths], list[Integers | None])
    assert_type(plan.mask, Booleans | None)
    plan.foo()  # wrong
    plan.scale  # wrong
    plan(q)  # wrong
    plan().lse  # wrong
    plan.output = q  # wrong
    attnpy.Plan(q, q, [[1.0]])  # wrong
    attnpy.Plan(q, q, q, kausal=True)  # wrong
    a_pair: attnpy.Plan[Two] = attnpy.Plan(q, q, q)  # wrong


def other_functions(q: Array, found: dict[str, Any]) -> None:
    assert_type(attnpy.merge([q, q], [q, q]), Two)
    assert_type(attnpy.statistics(q, q).entropy, Array | None)
    assert_type(attnpy.statistics(q, q, q, top_k=3, causal=True).output, Array | None)
    explained = attnpy.explain(q, q, q, causal=True, measure=True)
    assert_type(explained, attnpy.Explanation)
    assert_type([explained.seconds, explained.share_of_peak], list[float | None])
    assert_type([explained.tier, explained.products], list[str])
    assert_type(explained.shares_keys, bool)
    numbers = [explained.tile_tasks, explained.row_tasks, explained.num_threads]
    numbers += [explained.blocks, explained.blocks_skipped, explained.blocks_masked]
    numbers += [explained.scores, explained.scores_visible, explained.nbytes]
    numbers += [explained.multiplications, explained.workspace]
    assert_type(numbers, list[int])
    assert_type(attnpy.Plan(q, q, q).explain(), attnpy.Explanation)
    assert_type(attnpy.get_num_threads(), int)
    assert_type(attnpy.show_config(mode="dicts"), dict[str, Any])
    attnpy.show_config()
    attnpy.set_num_threads(2)
    attnpy.set_spin_time(100)
    assert_type(attnpy.get_spin_time(), int)
    attnpy.set_portable(True)
    assert_type(attnpy.get_portable(), bool)
    attnpy.register_threadpoolctl()
    assert_type(attnpy.__version__, str)
    attnpy.merge(q)  # wrong
    attnpy.explain(q, q, q, tier="scalar")  # wrong
    attnpy.merge([q], [q]).shape  # wrong
    attnpy.statistics(q)  # wrong
    attnpy.statistics(q, q, topk=3)  # wrong
    attnpy.statistics(q, q).received.shape  # wrong
    attnpy.set_num_threads("2")  # wrong
    attnpy.set_num_threads()  # wrong
    attnpy.set_spin_time(0.5)  # wrong
    attnpy.set_portable(None)  # wrong
    attnpy.show_config(mode="table")  # wrong
    attnpy.show_config()["tier"]  # wrong
    attnpy.transformer  # wrong
    attnpy.numpy  # wrong


# ---- Layers --------------------------------------------------------------------------


def layers(x: Array, flag: bool, rng: np.random.Generator) -> None:
    head = attnpy.SelfAttention(6, 2, value_head_dim=3, dtype="float64", rng=rng)
    assert_type(head, attnpy.layers.SelfAttention)
    assert_type(head(x), Array)
    assert_type(head(x, x, x, causal=True, return_weights=True), Two)
    assert_type(head(x, return_weights=flag), Array | Two)
    output, pullback = head.vjp(x, dropout=0.5, dropout_seed=1, wanted=["bias"])
    assert_type(pullback(output), attnpy.layers.LayerGradients)
    assert_type(pullback(output).parameters, dict[str, Array])
    assert_type(pullback(output).x, Array)
    head(x, heads=[0])  # wrong
    head(x, return_weights=True).shape  # wrong
    attnpy.SelfAttention(6)  # wrong
    attnpy.SelfAttention(6, 2, rng=0)  # wrong
    pullback(output).weights  # wrong

    mha = attnpy.MultiHeadAttention(6, 2, num_kv_heads=1, dtype=np.float32)
    assert_type(mha, attnpy.layers.MultiHeadAttention)
    assert_type(mha(x), Array)
    assert_type(mha(x, causal=True, heads=0, return_weights=True), Two)
    assert_type(mha(x, average_weights=True, return_weights=flag), Array | Two)
    assert_type(mha.vjp(x, causal=True, scale=0.5, rotary=None)[0], Array)
    assert_type(mha.heads, list[attnpy.SelfAttention])
    assert_type([mha.head_dim, mha.value_head_dim], list[int])
    assert_type(mha.parameters(), dict[str, Array])
    assert_type(mha.state_dict(), dict[str, Array])
    mha.load_state_dict({"W_q": [[1.0]]})
    mha.pack()
    mha.quantize(bits=4, group=64, activations="int8")
    mha.quantize(bits=3)  # wrong
    cache = mha.new_cache(1, 8, growable=True)
    assert_type(cache, attnpy.KVCache)
    assert_type(mha(x, cache=cache), Array)
    assert_type(mha(x, mha.project_context(x)), Array)
    mha.W_q = x
    mha.b_q = None
    mha.q_norm = attnpy.norms.RMSNorm(2)
    mha.sinks = np.zeros(2)
    mha.W_q = None  # wrong
    mha.W_v = [[1.0]]  # wrong
    mha.weight = x  # wrong
    mha.head_dim = 3  # wrong
    mha.q_norm = "rms"  # wrong
    mha.sinks = True  # wrong
    mha.forward(x)  # wrong
    mha(x, is_causal=True)  # wrong
    mha(x, cache=[cache])  # wrong
    mha(x, return_weights=True).shape  # wrong
    mha(x, return_weights=flag).shape  # wrong
    mha.vjp(x, cache=cache)  # wrong
    mha.vjp(x, kausal=True)  # wrong
    mha.load_state_dict([x])  # wrong
    mha.parameters()["W_q"].W_k  # wrong
    attnpy.MultiHeadAttention("6", 2)  # wrong
    attnpy.MultiHeadAttention(6, 2, dropout=0.1)  # wrong


def caches(x: Array) -> None:
    cache = attnpy.cache.KVCache(2, 1, 8, 16, dtype=np.float16)
    cache.append(x, x)
    cache.truncate(3)
    cache.truncate([3, 2])
    cache.reset()
    assert_type(cache.copy(), attnpy.KVCache)
    cache.select([1, 1])
    cache.select(rows=[1])  # wrong
    assert_type([cache.key, cache.value], list[Array])
    scales: list[Array | None] = [cache.key_scale, cache.value_scale]
    assert_type(len(scales), int)
    assert_type(cache.lengths, Integers)
    assert_type(cache.capacity, int)
    assert_type(attnpy.cache.hadamard([1.0, 2.0]), Array)
    attnpy.cache.hadamard(x, 4)  # wrong
    cache.append(x)  # wrong
    cache.clear()  # wrong
    cache.lengths = x  # wrong
    cache.max_length = 3  # wrong
    attnpy.KVCache(2, 1, 8)  # wrong
    assert_type(cache.fork([0, 0, 1], capacity=9), attnpy.KVCache)
    pool = attnpy.pages.PagePool(10, 1, 16)
    paged = attnpy.pages.PagedKVCache(pool, 2)
    assert_type(paged.fork(0), attnpy.pages.PagedKVCache)
    assert_type(paged.page_table, Integers)
    assert_type(pool.num_free, int)
    paged.release([3, 4])
    attnpy.pages.PagedKVCache(10, 2)  # wrong


def blocks(x: Array, flag: bool) -> None:
    ModelOutput = attnpy.blocks.ModelOutput
    layer = attnpy.blocks.EncoderLayer(6, 2, 8, activation="swiglu", norm="rms")
    assert_type(layer(x, causal=True), Array)
    assert_type(layer(x, return_weights=True, heads=[0]), attnpy.blocks.ModelOutput)
    assert_type(layer(x, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    assert_type(layer.vjp(x, wanted=["bias"], bias=x)[0], Array)
    layer(x, context=x)  # wrong
    layer(x, heads=[0])  # wrong
    layer(x, return_weights=flag).shape  # wrong
    attnpy.blocks.EncoderLayer(6, 2, 8, activation="swish")  # wrong
    attnpy.blocks.EncoderLayer(6, 2, 8, norm="batch")  # wrong

    encoder = attnpy.blocks.Encoder(2, 6, 2, 8, shared=True, norm_first=True)
    assert_type(encoder(x), Array)
    assert_type(encoder(x, return_weights=True, layers=0).weights, Array | None)
    assert_type(encoder(x, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    assert_type(
        encoder(x, return_hidden_states=flag), Array | attnpy.blocks.ModelOutput
    )
    both = encoder(x, return_weights=flag, return_hidden_states=flag, heads=0)
    assert_type(both, Array | attnpy.blocks.ModelOutput)
    assert_type(encoder(x, return_hidden_states=True).hidden_states, Array | None)
    assert_type(encoder.layers, list[attnpy.blocks.EncoderLayer])
    assert_type(encoder.vjp(x, checkpoint=True)[0], Array)
    encoder.layers[0].cross_attention  # wrong
    encoder.layers[0].norm_3 = encoder.norm  # wrong
    encoder.layer = encoder.layers  # wrong
    encoder(x, return_weights=True).shape  # wrong
    encoder(x, layers=[0])  # wrong
    encoder(x, output_hidden_states=True)  # wrong
    encoder(x, return_hidden_states=flag).shape  # wrong
    attnpy.blocks.Encoder(2, 6, 2, 8, causal=True)  # wrong

    one = attnpy.blocks.DecoderLayer(6, 2, 8, cross_attention=True)
    assert_type(one(x, x, context_lengths=3, cache=one.new_cache(1, 8)), Array)
    assert_type(one(x, x, return_weights=True), attnpy.blocks.ModelOutput)
    assert_type(one(x, x, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    assert_type(one.vjp(x, x, mask=x > 0)[0], Array)
    one(x, x, caches=[])  # wrong
    one.vjp(x, x, causal=True)  # wrong

    decoder = attnpy.blocks.Decoder(2, 6, 2, 8, causal=True)
    assert_type(decoder.new_caches(1, 8), list[attnpy.KVCache])
    assert_type(decoder(x, x, caches=decoder.new_caches(1, 8)), Array)
    assert_type(decoder(x, decoder.project_context(x)), Array)
    assert_type(decoder(x, x, return_weights=True), attnpy.blocks.ModelOutput)
    assert_type(decoder(x, x, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    assert_type(decoder.vjp(x, x)[1](x).context, Array | None)
    assert_type(decoder.parameters(), dict[str, Array])
    decoder(x, x, caches=one.new_cache(1, 8))  # wrong
    decoder(x, x, kv_cache=None)  # wrong
    decoder(x, x, heads=0)  # wrong
    decoder.pack(1)  # wrong

    network = attnpy.blocks.FeedForward(6, 8, activation="gelu", bias=False)
    assert_type(network(x, residual=x), Array)
    assert_type(network.vjp(x)[0], Array)
    assert_type(network.W_gate, Array | None)
    network(x, x)  # wrong
    attnpy.blocks.FeedForward(6, 8, activation=np.tanh)  # wrong
    mixture = attnpy.blocks.MixtureOfExperts(6, 8, 4, 2, shared_dim=3, router_bias=True)
    assert_type(mixture(x, residual=x), Array)
    assert_type(mixture.vjp(x)[1](x).x, Array)
    assert_type(mixture.route(x)[0], NDArray[np.int64])
    assert_type(mixture.experts[0], attnpy.blocks.FeedForward)
    mixture(x, x)  # wrong
    mixture.route(x, mixed=True)  # wrong
    attnpy.blocks.MixtureOfExperts(6, 8, 4)  # wrong
    attnpy.blocks.Encoder(1, 6, 2, 8).vjp(x, dropout=0.1, dropout_seed=3)
    attnpy.blocks.Encoder(1, 6, 2, 8)(x, dropout=0.1)  # wrong
    projection = attnpy.blocks.Linear(6, 3, bias=False)
    assert_type(projection(x, num_threads=1), Array)
    assert_type(projection.vjp(x)[1](x).x, Array)
    assert_type(projection.b, Array | None)
    projection(x, x)  # wrong
    attnpy.blocks.Linear(6)  # wrong
    table = attnpy.blocks.Embedding(9, 6)
    assert_type(table([1, 2]), Array)
    assert_type(table.vjp([1, 2])[1](x), dict[str, Array])
    table.pack()  # wrong
    attnpy.blocks.Embedding(9, 6, padding_idx=0)  # wrong
    assert_type(ModelOutput(x).cross_weights, Array | None)
    assert_type(ModelOutput(x, x).hidden_states, Array | None)
    ModelOutput(x).output.weights  # wrong


def norms_and_activations(x: Array) -> None:
    norm = attnpy.norms.LayerNorm(6, bias=False)
    assert_type(norm(x, x), Array)
    assert_type(norm.vjp(x)[1](x).parameters, dict[str, Array])
    assert_type(norm, attnpy.blocks.LayerNorm)
    other = attnpy.norms.RMSNorm(6, eps=1e-6)
    assert_type(other(x), Array)
    assert_type(other.vjp(x)[0], Array)
    assert_type(other, attnpy.blocks.RMSNorm)
    assert_type(other.state_dict(), dict[str, Array])
    other.bias  # wrong
    attnpy.norms.RMSNorm(6, bias=True)  # wrong
    attnpy.norms.LayerNorm((6,))  # wrong
    attnpy.norms.BatchNorm(6)  # wrong

    assert_type(attnpy.blocks.relu(x), Array)
    assert_type(attnpy.blocks.gelu(x), Array)
    assert_type(attnpy.blocks.gelu_tanh(x), Array)
    assert_type(attnpy.blocks.silu(x), Array)
    assert_type(attnpy.blocks.quick_gelu(x), Array)
    assert_type(attnpy.blocks.relu2(x), Array)
    assert_type(attnpy.blocks.tanh([1.0, 2.0]), Array)
    assert_type(attnpy.blocks.activation_vjp(x, x, "gelu"), Array)
    attnpy.blocks.swish(x)  # wrong
    attnpy.blocks.gelu(x, approximate="tanh")  # wrong
    attnpy.blocks.gelu(None)  # wrong
    attnpy.blocks.activation_vjp(x, x)  # wrong
    attnpy.blocks.activation_vjp(x, x, "swiglu")  # wrong


# ---- What goes with attention --------------------------------------------------------


def masks(x: Array) -> None:
    assert_type(attnpy.masks.causal(3), Booleans)
    assert_type(attnpy.masks.window(3, 3, (1, None)), Booleans)
    assert_type(attnpy.masks.padding([1, 2], 3), Booleans)
    assert_type(attnpy.masks.document([0, 0, 1]), Booleans)
    assert_type(attnpy.masks.document_ids([2, 1]), Integers)
    assert_type(attnpy.masks.prefix_lm(3, 1), Booleans)
    assert_type(attnpy.masks.show(attnpy.masks.causal(3)), str)
    attnpy.masks.causal("3")  # wrong
    attnpy.masks.causal(3) & "mask"  # wrong
    attnpy.masks.show(x, 3)  # wrong
    attnpy.masks.random(3)  # wrong
    attnpy.masks.padding([1, 2])  # wrong
    attnpy.masks.padding(lengths=[1, 2], num_keys=3)  # wrong
    attnpy.masks.window(3, 3, 1)  # wrong


def positions(x: Array) -> None:
    assert_type(attnpy.positions.sinusoidal(3, 4, base=100.0), Array)
    assert_type(attnpy.positions.query_positions(2, 3), Integers)
    assert_type(attnpy.positions.Learned(8, 4)([0, 1]), Array)
    attnpy.positions.Learned(8, 4).parameters()  # wrong
    rotary = attnpy.positions.Rotary(8, scaling={"rope_type": "linear", "factor": 2})
    assert_type(rotary(x), Array)
    assert_type(rotary.tables([0, 1]), Two)
    assert_type(rotary.frequencies, Floats)
    relative = attnpy.positions.Disentangled(x, max_distance=9, p2c=False)
    assert_type(relative.rows([0, 1]), Integers)
    assert_type(attnpy.layers.MultiHeadAttention(4, 2)(x, relative=relative), Array)
    assert_type(attnpy.blocks.EncoderLayer(4, 2, 4)(x, relative=relative), Array)
    attnpy.positions.Disentangled(x, relative=True)  # wrong
    attnpy.positions.Disentangled(x).buckets(3)  # wrong
    assert_type(attnpy.positions.alibi_slopes(4), Array)
    assert_type(attnpy.positions.alibi_bias(4, 3, 3), Array)
    assert_type(attnpy.positions.relative_buckets(3, 3, num_buckets=8), Integers)
    assert_type(attnpy.positions.relative_bias(x, 3, 3), Array)
    attnpy.positions.Rotary(8, scaling="linear")  # wrong
    attnpy.positions.Rotary(8, theta=100.0)  # wrong
    attnpy.positions.sinusoidal(3)  # wrong
    attnpy.positions.sinusoidal(3, 4, base="100")  # wrong
    attnpy.positions.alibi(4, 3, 3)  # wrong
    rotary.rotate(x)  # wrong


def of_old(x: Array, flag: bool) -> None:
    additive = attnpy.classic.additive_attention
    multiplicative = attnpy.classic.multiplicative_attention
    assert_type(additive(x, x, x, x, x, x), Array)
    assert_type(additive(x, x, x, x, x, x, return_weights=True), Two)
    assert_type(additive(x, x, x, x, x, x, return_weights=flag), Array | Two)
    assert_type(multiplicative(x, x, x, x, mask=x > 0), Array)
    assert_type(multiplicative(x, x, x, x, return_weights=True), Two)
    assert_type(multiplicative(x, x, x, x, return_weights=flag), Array | Two)
    additive(x, x, x, x, x)  # wrong
    multiplicative(x, x, x, x, causal=True)  # wrong
    multiplicative(x, x, x, x, return_weights=flag).shape  # wrong


def random() -> None:
    assert_type(attnpy.random.dropout_mask((2, 3, 3), 0.1, 1), Booleans)
    attnpy.random.dropout_mask(3, 0.1, 1)  # wrong
    attnpy.random.dropout_mask((2, 3, 3), 0.1)  # wrong
    attnpy.random.default_rng(0)  # wrong


# ---- Models, checkpoints, training ---------------------------------------------------


def bert(ids: Integers, flag: bool) -> None:
    model = attnpy.models.BertEncoder(2, 6, 2, 8, vocab_size=100, pooler=True)
    assert_type(model(ids, lengths=[3]), Array)
    assert_type(model(ids, return_weights=True), attnpy.blocks.ModelOutput)
    assert_type(model(ids, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    states, pullback = model.vjp(ids, checkpoint=True)
    assert_type(pullback(states), dict[str, Array])
    assert_type(model.pool(states), Array)
    assert_type(model.pool_vjp(states)[0], Array)
    assert_type(model.classify(states), Array)
    assert_type(model.classify_tokens(states), Array)
    assert_type(model.logits(states), Array)
    assert_type(model.classify(states, lengths=[2, 1]), Array)
    assert_type(model.classify_vjp(states)[0], Array)
    assert_type(model.max_tokens, int)
    assert_type(model.embed_dim, int)
    made = attnpy.models.BertEncoder.from_config({"model_type": "bert"}, pooler=True)
    assert_type(made, attnpy.models.BertEncoder)
    read = attnpy.models.BertEncoder.from_pretrained("folder", dtype="float16")
    assert_type(read, attnpy.models.BertEncoder)
    attnpy.models.BertEncoder.from_pretrained("folder", ignore_head=True)
    attnpy.models.BertEncoder.from_pretrained("folder", heads=False)  # wrong
    attnpy.checkpoints.load(model, {}, "bert", ignore_head=True)
    read.load_state_dict(model.state_dict())
    assert_type(read.parameters(), dict[str, Array])
    read.pack()
    assert_type(model(ids, token_mask=ids > 0, return_hidden_states=True).output, Array)
    model(ids, attention_mask=ids)  # wrong
    model(ids, mask=ids > 0)  # wrong
    model(ids, heads=0)  # wrong
    model(ids, return_weights=True).shape  # wrong
    model(ids, return_weights=flag).shape  # wrong
    model.generate(ids, 3)  # wrong
    model.max_tokens = 3  # wrong
    model.embed_dim = 3  # wrong
    attnpy.models.BertEncoder(2, 6, 2, 8)  # wrong
    attnpy.models.BertEncoder(2, 6, 2, 8, vocab_size=100, activation="GELU")  # wrong
    attnpy.models.BertEncoder.from_config("bert")  # wrong
    attnpy.models.BertEncoder.from_pretrained(3)  # wrong
    attnpy.models.Bert  # wrong


def decoder(ids: Integers, flag: bool, rng: np.random.Generator) -> None:
    model = attnpy.models.CausalDecoder(
        2, 6, 2, 8, vocab_size=100, norm="rms", sinks=True, activation="swiglu_oai"
    )
    caches = model.new_caches(1, 8)
    states = model(ids, caches=caches)
    assert_type(states, Array)
    assert_type(model(ids, return_weights=True), attnpy.blocks.ModelOutput)
    assert_type(model(ids, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    assert_type(model.logits(states), Array)
    assert_type(model.logits_vjp(states)[0], Array)
    assert_type(model.vjp(ids, logits=True)[1](states), dict[str, Array])
    assert_type(attnpy.models.sample(model.logits(states), top_k=3, rng=rng), Integers)
    assert_type(model.generate(ids, 3, temperature=0.5, top_p=0.9), Integers)
    assert_type(model.stop, tuple[int, ...])
    model.stop = (1, 2)
    model.stop = "</s>"  # wrong
    model.generate(ids, 3, stop=())
    prefix = model.prefill([1, 2])
    assert_type(prefix, attnpy.models.Prefix)
    model.generate(ids, 3, prefix=prefix, num_samples=2, draft="lookup")
    model.generate(ids, 3, draft=model, num_draft_tokens=4)
    model.generate(ids, 3, draft="other")  # wrong
    batch = attnpy.models.ContinuousBatch(model, 8)
    assert_type(batch.add([1, 2], 3, prefix=batch.prefill([4])), int)
    assert_type(batch.step(), list[tuple[int, int]])
    assert_type(batch.numbers, list[int])
    assert_type(batch.prompt_tokens, int)
    batch.cancel(0)
    batch.evict(1)
    assert_type(prefix.token_ids, Integers)
    assert_type(model.new_page_pools(9), list[attnpy.pages.PagePool])
    batch.cancel(0.5)  # wrong
    for token in model.stream(ids, 3, caches=caches):
        assert_type(token, Integers)
    model.pack()
    model.quantize(group="column")
    attnpy.models.CausalDecoder.from_pretrained("folder", weights="int4")
    attnpy.models.CausalDecoder.from_pretrained("folder", weights=4)  # wrong
    model.load_state_dict(model.state_dict())
    assert_type(model.parameters(), dict[str, Array])
    made = attnpy.models.CausalDecoder.from_config({"model_type": "gpt2"}, rng=rng)
    assert_type(made, attnpy.models.CausalDecoder)
    assert_type(made.vocab_size, int)
    read = attnpy.models.CausalDecoder.from_pretrained("folder", packed=False)
    assert_type(read, attnpy.models.CausalDecoder)
    model(ids, cache=caches)  # wrong
    model(ids, layers=0)  # wrong
    model(ids, caches=caches[0])  # wrong
    model.generate(ids)  # wrong
    model.generate(ids, 3, top_k=0.5)  # wrong
    model.generate(ids, 3).text  # wrong
    model.logits(states, ids)  # wrong
    model.pooler_weight  # wrong
    model.pooler_weight = states  # wrong
    model.decoder = model  # wrong
    attnpy.models.sample(states, temperature="high")  # wrong
    attnpy.models.sample(states, 0.5)  # wrong


def encoder_decoder(ids: Integers, flag: bool, rng: np.random.Generator) -> None:
    model = attnpy.models.EncoderDecoder(
        2, 6, 2, 8, vocab_size=100, positions="learned", max_length=9, start=0, stop=[1]
    )
    states = model.encode(ids, lengths=3)
    assert_type(states, Array)
    assert_type(model(ids, ids), Array)
    assert_type(model(ids, ids, return_weights=True), attnpy.blocks.ModelOutput)
    assert_type(model(ids, ids, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    context = model.project_context(states, lengths=3)
    assert_type(context, list[attnpy.KVCache])
    vectors = model.decode(ids, context, caches=model.new_caches(1, 9))
    assert_type(vectors, Array)
    assert_type(model.logits(vectors), Array)
    assert_type(model.vjp(ids, ids, logits=True)[1](vectors), dict[str, Array])
    assert_type(model.classify(ids, lengths=3), Array)
    assert_type(model.num_labels, int | None)
    assert_type(model.generate(ids, 3, num_beams=2, length_penalty=0.6), Integers)
    assert_type(model.generate(ids, temperature=1.0, top_k=3, rng=rng), Integers)
    found = model.generate(ids, num_beams=3, return_scores=True, bad_words=[[1]])
    assert_type(found.tokens, Integers)
    assert_type(found.scores, "NDArray[np.float64]")
    model.generation["num_beams"] = 4
    assert_type(model.start, int | None)
    assert_type(model.vocab_size, int)
    model.pack()
    model.quantize()
    model.load_state_dict(model.state_dict())
    assert_type(model.parameters(), dict[str, Array])
    made = attnpy.models.EncoderDecoder.from_config({"model_type": "t5"}, rng=rng)
    assert_type(made, attnpy.models.EncoderDecoder)
    read = attnpy.models.EncoderDecoder.from_pretrained(
        "folder", classifier=True, weights="int8", activations="int8"
    )
    assert_type(read, attnpy.models.EncoderDecoder)
    read.save_pretrained("other")
    model(ids)  # wrong
    model.encode(ids, target_ids=ids)  # wrong
    model.generate(ids, num_beam=3)  # wrong
    model.generate(ids, early_stopping="always")  # wrong
    model.generate(ids, return_scores=True)[2]  # wrong
    attnpy.models.EncoderDecoder(2, 6, 2, 8)  # wrong
    attnpy.models.EncoderDecoder(2, 6, 2, 8, vocab_size=9, positions="rope")  # wrong


def text_to_text(both: attnpy.models.EncoderDecoder, tokenizer: Any) -> None:
    writer = attnpy.models.TextToText(both, tokenizer, prefix="summarize: ")
    assert_type(writer.generate(["a", "b"], 9, num_beams=4), str | list[Any])
    read = attnpy.models.TextToText.from_pretrained("folder", task="summarization")
    read.quantize(activations="int8")
    attnpy.models.TextToText(
        both, tokenizer, source_language="eng_Latn", target_language="fra_Latn"
    )
    assert_type(read, attnpy.models.TextToText)
    assert_type(read.prefix, str)
    assert_type(read.max_length, int | None)
    read.generate("a", batch_size=2, early_stopping=True)
    read.generate(3)  # wrong
    read.generate("a", beams=3)  # wrong
    attnpy.models.TextToText(tokenizer=tokenizer)  # wrong


def sentences(bert: attnpy.models.BertEncoder, tokenizer: Any) -> None:
    model = attnpy.models.SentenceEncoder(bert, tokenizer, pooling="cls")
    vectors = model.encode(["a", "b"], batch_size=8, normalize=True)
    assert_type(vectors, Array)
    assert_type(model.encode("a", task="separation"), Array)
    assert_type(model.similarity(vectors, vectors), Array)
    assert_type(model.search("a", vectors).indices, Integers)
    assert_type(model.search("a", ["b", "c"]).scores, Array)
    read = attnpy.models.SentenceEncoder.from_pretrained("folder", max_length=64)
    read.quantize()
    assert_type(read, attnpy.models.SentenceEncoder)
    assert_type(
        read.vjp(["a"], dropout=0.1, dropout_seed=1)[1](vectors), dict[str, Array]
    )
    assert_type(read.encode("text", truncate_dim=64, normalize=True), Array)
    read.encode("text", truncate_dim="64")  # wrong
    model.encode(3)  # wrong
    model.encode(["a"], batchsize=8)  # wrong
    model.search("a")  # wrong
    model.search("a", vectors).passages  # wrong
    attnpy.models.SentenceEncoder("folder", tokenizer)  # wrong
    attnpy.models.SentenceEncoder(bert, tokenizer, truncation_side="end")  # wrong


def labels(bert: attnpy.models.BertEncoder, tokenizer: Any) -> None:
    model = attnpy.models.TextClassifier(bert, tokenizer, label_names=["a", "b"])
    assert_type(model.scores(["a", "b"], batch_size=8), Array)
    model.predict("a")
    read = attnpy.models.TextClassifier.from_pretrained(
        "folder", function="none", weights="int8", activations="int8"
    )
    assert_type(read.label_names, tuple[str, ...])
    read.quantize(bits=4)
    read.save_pretrained("other")
    model.predict(3)  # wrong
    attnpy.models.TextClassifier(bert, tokenizer, function="tanh")  # wrong
    tagger = attnpy.models.TokenClassifier(bert, tokenizer, ignore_labels=[])
    tagger.predict(["a", "b"], aggregation_strategy="simple", batch_size=8)
    tagger.predict("a", aggregation_strategy="word")  # wrong
    tagger.save_pretrained("other")
    attnpy.models.TokenClassifier.from_pretrained(
        "folder", ignore_labels=["O"], weights="int4"
    ).quantize()
    filler = attnpy.models.FillMask(bert, tokenizer, mask_token="[MASK]")
    filler.predict("a [MASK]", top_k=3)
    filler.predict("a [MASK]", top_k="3")  # wrong
    filler.save_pretrained("other")
    filler.save_pretrained(3)  # wrong
    several = attnpy.models.M3Encoder.from_pretrained("bge-m3", max_length=512)
    several.quantize(bits=8, group="column", activations="int8")
    several.quantize(bits=2)  # wrong
    attnpy.models.M3Encoder.from_pretrained("bge-m3", weights="int2")  # wrong
    found = several.encode(["a"], sparse=False, batch_size=8)
    assert_type(found, attnpy.models.M3Vectors)
    assert_type(found.dense, Array | None)
    assert_type([found.sparse, found.multi_vector], list[Any])
    several.encode(["a"], colbert=True)  # wrong
    assert_type(attnpy.models.lexical_score({1: 0.5}, {1: 0.5}), float)
    late = attnpy.models.MultiVectorEncoder.from_pretrained(
        "GTE-ModernColBERT-v1", document_length=1000, weights="int8"
    )
    assert_type(late.encode_queries("a", batch_size=8), Array)
    assert_type(late.encode_documents(["a"], num_threads=1), list[Array])
    assert_type(late.similarity(late.encode_queries("a"), [[[1.0]]]), Array)
    late.rank("a", ["b"], 2, return_documents=True)
    late.rank("a", late.encode_documents(["b"]))
    late.save_pretrained("other")
    late.quantize(bits=4)
    late.quantize(bits=2)  # wrong
    late.encode_queries("a", is_query=True)  # wrong
    late.encode_documents(3)  # wrong
    late.rank(["a"], ["b"])  # wrong
    attnpy.models.MultiVectorEncoder(bert, tokenizer, query_length="9")  # wrong
    attnpy.models.maxsim([[1.0]], [[[1.0]]], mean=True)
    attnpy.models.FillMask.from_pretrained(
        "folder", dtype="float16", weights="int8"
    ).quantize()


def pairs(bert: attnpy.models.BertEncoder, tokenizer: Any) -> None:
    model = attnpy.models.CrossEncoder(bert, tokenizer, activation_fn="sigmoid")
    assert_type(model.predict([("a", "b"), ("a", "c")], batch_size=8), Array)
    assert_type(model.predict(("a", "b"), activation_fn=np.exp), Array)
    found = model.rank("a", ["b", "c"], top_k=1, return_documents=True)
    assert_type(found[0]["corpus_id"], int)
    assert_type(found[0]["score"], float)
    read = attnpy.models.CrossEncoder.from_pretrained(
        "folder", max_length=64, weights="int8"
    )
    read.quantize(activations="int8")
    assert_type(read, attnpy.models.CrossEncoder)
    assert_type(read.num_labels, int)
    found[0]["index"]  # wrong
    model.predict(3)  # wrong
    model.predict([("a", "b")], softmax=True)  # wrong
    model.rank("a", ["b"], topk=3)  # wrong
    attnpy.models.CrossEncoder("folder", tokenizer)  # wrong


def pictures_and_texts(x: Array, tokenizer: Any, flag: bool) -> None:
    image = attnpy.models.ImageEncoder(1, 8, 2, 8, image_size=(8, 12), pooler="norm")
    assert_type(image(x), Array)
    assert_type(image(x, return_weights=True), attnpy.blocks.ModelOutput)
    assert_type(image(x, return_weights=flag), Array | attnpy.blocks.ModelOutput)
    assert_type(image.pool(image(x)), Array)
    assert_type(image.classify(image(x), num_threads=1), Array)
    assert_type(image.grid, tuple[int, int])
    assert_type(image.patch_size, tuple[int, int])
    assert_type(image.pooler_bias, Array | None)
    folder = attnpy.models.ImageEncoder.from_pretrained("folder", classifier=True)
    folder.save_pretrained("other")
    attnpy.models.ImageEncoder(1, 8, 2, 8, pooler="mean")  # wrong
    image(x, lengths=[3])  # wrong
    text = attnpy.models.CausalDecoder(1, 8, 2, 8, vocab_size=9, tied=None)
    model = attnpy.models.ImageTextModel(image, text, 4, end_token="largest")
    assert_type(model.encode_images(x), Array)
    assert_type(model.projection_dim, int)
    assert_type(model.logits(x, model.encode_texts([[1, 2]])), Array)
    attnpy.models.ImageTextModel(text, image)  # wrong
    attnpy.models.ImageTextModel(image, text, end_token="first")  # wrong
    processor = attnpy.models.ImageProcessor((8, 12), resample="bicubic")
    assert_type(processor(x).dtype, np.dtype[np.float32])
    classifier = attnpy.models.ImageClassifier(image, processor, label_names=["a"])
    assert_type(classifier.scores([x, x], batch_size=2), Array)
    classifier.predict(x)
    classifier.quantize(bits=4)
    attnpy.models.ImageClassifier.from_pretrained("folder", weights="int4")
    attnpy.models.ImageClassifier(image)  # wrong
    encoder = attnpy.models.ImageTextEncoder(model, tokenizer, processor)
    assert_type(encoder.encode_texts("a"), Array)
    encoder.quantize()
    assert_type(encoder.classify(x, ["a", "b"], template="{}"), Array)
    assert_type(encoder.search("a", x, top_k=3).indices, Integers)
    encoder.search("a")  # wrong
    encoder.classify(x)  # wrong


def checkpoints(model: attnpy.models.BertEncoder) -> None:
    tensors = attnpy.checkpoints.read("model.safetensors")
    assert_type(tensors, attnpy.checkpoints.Checkpoint)
    assert_type(tensors["a"], Array)
    assert_type(tensors.rows("a", 0, 3), Array)
    assert_type(tensors.describe("a"), tuple[tuple[int, ...], str])
    assert_type(tensors.metadata, dict[str, str])
    attnpy.checkpoints.load(model, tensors, "bert", prefix="bert.")
    assert_type(attnpy.checkpoints.read_config("folder"), dict[str, Any])
    family = attnpy.checkpoints.FAMILIES["bert"]
    assert_type(family, attnpy.checkpoints.Family)
    assert_type(family.prefixes, tuple[str, ...])
    assert_type(family.names["a"], tuple[str, ...])
    assert_type(family.classifier["a"], tuple[str, ...])
    assert_type(family.token_classifier["a"], tuple[str, ...])
    assert_type(family.masked_words["a"], tuple[str, ...])
    assert_type(family.axes["a"], int)
    assert_type(attnpy.checkpoints.to_torch(model.encoder), dict[str, Array])
    assert_type(model.config, dict[str, Any] | None)
    model.save_pretrained("folder")
    model.save_pretrained(3)  # wrong
    attnpy.checkpoints.to_torch("layer")  # wrong
    assert_type(family.renamed, tuple[tuple[str, str], ...])
    assert_type(family.ignored + family.optional + family.one_less, tuple[str, ...])
    assert_type(
        family.zero + family.beside + family.by_head + family.stacked, tuple[str, ...]
    )
    assert_type(family.interleaved, tuple[str, ...])
    assert_type(dict(family.instead), dict[str, str])
    assert_type(dict(family.gated), dict[str, tuple[str, ...]])
    assert_type(family.refused["a"] + family.tied["a"], str)
    tensors["a"] = tensors["b"]  # wrong
    tensors.tensor("a")  # wrong
    tensors.rows("a", 0)  # wrong
    attnpy.checkpoints.load(tensors, model, "bert")  # wrong
    attnpy.checkpoints.load(model, tensors)  # wrong
    attnpy.checkpoints.save(model)  # wrong
    family.prefix  # wrong


def gguf_files(path: str) -> None:
    file = attnpy.checkpoints.load_gguf(path)
    assert_type(file, attnpy.checkpoints.GgufFile)
    assert_type(attnpy.checkpoints.GgufFile(path).path, str)
    assert_type(file["a"], Array)
    assert_type(file.rows("a", 0, 3), Array)
    assert_type(file.describe("a"), tuple[tuple[int, ...], str])
    assert_type(file.type_of("a"), str)
    kept = file.quantized("a", start=3, stop=9, activations="int8")
    assert_type(kept, attnpy.QuantizedWeight)
    assert_type(file.metadata, dict[str, Any])
    assert_type(file.stop, tuple[int, ...])
    assert_type(file.tokenizer(), Any)
    assert_type(file.chat_template, str | None)
    said = [{"role": "user", "content": "Hi"}]
    assert_type(file.apply_chat_template(said), str)
    file.apply_chat_template(said, add_generation_prompt=False)
    assert_type(file.split_halves({"a": 2}), attnpy.checkpoints.GgufFile)
    for source in (path, file):
        read = attnpy.models.CausalDecoder.from_gguf(source, dtype="float16")
        assert_type(read, attnpy.models.CausalDecoder)
    attnpy.models.CausalDecoder.from_gguf(path, packed=False, progress=True)
    attnpy.models.CausalDecoder.from_gguf(path, weights="file", activations="int8")
    attnpy.models.CausalDecoder.from_gguf(path, logits=False)  # wrong
    attnpy.models.CausalDecoder.from_gguf(path, weights="int8")  # wrong
    attnpy.models.CausalDecoder.from_gguf(path, activations="int4")  # wrong
    file.apply_chat_template("Hi")  # wrong
    file["a"] = file["b"]  # wrong


def training(model: attnpy.models.CausalDecoder, x: Array, ids: Integers) -> None:
    loss, grad = attnpy.training.cross_entropy(x, ids, label_smoothing=0.1)
    assert_type(loss, float)
    assert_type(grad, Array)
    losses, _ = attnpy.training.cross_entropy(x, ids, reduction="none")
    assert_type(losses, Floats)
    loss, grad, grad = attnpy.training.cosine_similarity_loss(x, x, [1.0])
    ranking = attnpy.training.multiple_negatives_ranking_loss
    assert_type(ranking(x, x, scale=10.0, num_threads=1), tuple[float, Array, Array])
    ranking(x, x, x)  # wrong
    attnpy.training.cosine_similarity_loss(x, x)  # wrong
    gradients = model.parameters()
    optimizer = attnpy.training.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.95))
    optimizer.step(gradients, lr=0.5, num_threads=1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert_type(attnpy.training.clip_norm(gradients, 1.0, num_threads=1), float)
    lr = attnpy.training.warmup_cosine(3, lr=0.1, warmup_steps=10, total_steps=100)
    assert_type(lr, float)
    attnpy.training.save("file", model.parameters(), optimizer, step=3)
    assert_type(attnpy.training.load("file", model.parameters(), optimizer), int)
    loss.backward()  # wrong
    losses.item("mean", 3.5, None)  # wrong
    optimizer.zero_grad()  # wrong
    optimizer.step()  # wrong
    optimizer.step(x)  # wrong
    attnpy.training.AdamW(model)  # wrong
    attnpy.training.AdamW(model.parameters(), betas=0.9)  # wrong
    attnpy.training.SGD(model.parameters())  # wrong
    attnpy.training.cross_entropy(x, ids, reduction="max")  # wrong
    attnpy.training.clip_norm(gradients)  # wrong
    attnpy.training.warmup_cosine(3, 0.1)  # wrong
    attnpy.training.save(model.parameters(), "file")  # wrong


# ---- Pictures ------------------------------------------------------------------------


def pictures(x: Array, words: list[str]) -> None:
    attnpy.plot.heat_map(x, words, words, annotate=True, title="a")
    attnpy.plot.score_map(x, vmin=-1.0, label="logits")
    attnpy.plot.head_grid(x, words, reduction="mean")
    attnpy.plot.score_grid(x, mask=x > 0)
    attnpy.plot.mask_image(attnpy.masks.causal(3))
    attnpy.plot.position_image(x)
    attnpy.plot.patch_map(x, opacity=0.5, title="attention")
    assert_type(attnpy.plot.attention_rollout(x), Floats)
    attnpy.plot.patch_map(x, opacity="half")  # wrong
    attnpy.plot.entropy(x)
    assert_type(attnpy.plot.entropy_bits(x), Floats)
    found = attnpy.statistics(x, x)
    attnpy.plot.statistics.overview(found, scale="linear")
    attnpy.plot.statistics.received(x)
    attnpy.plot.statistics.entropy(x)
    attnpy.plot.statistics.distance(x, title="far")
    attnpy.plot.heatmap(x)  # wrong
    attnpy.plot.heat_map(x, words, words, words)  # wrong
    attnpy.plot.heat_map(x, words, cmap="Blues")  # wrong
    attnpy.plot.heat_map(x, reduction="min")  # wrong
    attnpy.plot.heat_map(x, annotate="yes")  # wrong
    attnpy.plot.entropy_bits(x).plot()  # wrong
    attnpy.plot.statistics.overview(x)  # wrong
    attnpy.plot.statistics.received(x, scale="linearly")  # wrong
    attnpy.plot.statistics.top(x)  # wrong


def views(x: Array, words: list[str], model: attnpy.models.BertEncoder) -> None:
    view = attnpy.view.head_view(x, words, layer=1, heads=[0, 1])
    assert_type(view, attnpy.view.View)
    view.save("page.html")
    tokenizer: Any = None
    assert_type(attnpy.view.head_view(model, tokenizer, "text"), attnpy.view.View)
    assert_type(attnpy.view.model_view(x, words, words), attnpy.view.View)
    assert_type(attnpy.view.model_view(model, tokenizer, "text"), attnpy.view.View)
    assert_type(attnpy.view.neuron_view(x, x, words, causal=True), attnpy.view.View)
    view.show()  # wrong
    view.save()  # wrong
    attnpy.view.head_view(x)  # wrong
    attnpy.view.head_view(x, words, heads=0)  # wrong
    attnpy.view.model_view(model, tokenizer, 3)  # wrong
    attnpy.view.neuron_view(x, x, words, window=3)  # wrong
    attnpy.view.HeadView  # wrong


def diagrams() -> None:
    diagram = attnpy.diagrams.scaled_dot_product_attention()
    assert_type(diagram, attnpy.diagrams.Diagram)
    diagram.save("attention.svg")
    assert_type(attnpy.diagrams.multi_head_attention(), attnpy.diagrams.Diagram)
    assert_type(attnpy.diagrams.encoder_decoder(), attnpy.diagrams.Diagram)
    diagram.show()  # wrong
    diagram.save(3)  # wrong
    attnpy.diagrams.transformer()  # wrong


# ---- Other libraries, of whose arrays checkers may know nothing ----------------------


def integrations(x: Any, flag: bool) -> None:
    attnpy.integrations.autograd.attention(x, x, x, causal=True)
    attnpy.integrations.dask.attention(x, x, x, combine="tree", return_lse=flag)
    attnpy.integrations.huggingface.register("attnpy")
    attnpy.integrations.huggingface.attention_mask(x)
    attnpy.integrations.huggingface.attention_forward(x, x, x, x, None, sinks=x)
    attnpy.integrations.jax.dot_product_attention(x, x, x, is_causal=True)
    attnpy.integrations.jax.dot_product_attention(x, x, x, return_residual=flag)
    print(attnpy.integrations.onnx.Attention)
    vectorizer = attnpy.integrations.sklearn.SentenceVectorizer("folder", batch_size=8)
    assert_type(vectorizer.fit(["a"]).transform(["a"]), Array)
    attnpy.integrations.torch.attention(x, x, x, bias=x, return_weights=flag)
    output, lse = attnpy.integrations.torch.attention(x, x, x, return_lse=True)
    attnpy.integrations.torch.scaled_dot_product_attention(x, x, x, is_causal=True)
    with attnpy.integrations.torch.accelerate(num_threads=2):
        pass
    attnpy.integrations.torch.enable(linear=False)
    attnpy.integrations.torch.disable()
    found = attnpy.integrations.torch.check_invariance(x, {"x": x}, num_threads=(1, 2))
    assert_type(found, list[attnpy.integrations.torch.Difference])
    attnpy.integrations.torch.quantize(x, bits=4, filter_fn=lambda _, name: name > "a")
    attnpy.integrations.torch.quantize(x, bits=3)  # wrong
    print(attnpy.integrations.torch.QuantizedLinear)
    print(attnpy.integrations.torch.QuantizedMultiheadAttention)
    handle: attnpy.integrations.torch.Handle = attnpy.integrations.torch.accelerate(x)
    assert_type(handle.report, attnpy.integrations.torch.Report | None)
    handle.remove()
    attnpy.integrations.autograd.attention(x, x, x, is_causal=True)  # wrong
    attnpy.integrations.dask.attention(x, x, x, combine="ring")  # wrong
    attnpy.integrations.dask.attention(x, x, x, sequence_offsets=x)  # wrong
    attnpy.integrations.huggingface.register(3)  # wrong
    attnpy.integrations.jax.dot_product_attention(x, x)  # wrong
    attnpy.integrations.jax.dot_product_attention(x, x, x, causal=True)  # wrong
    attnpy.integrations.sklearn.SentenceVectorizer()  # wrong
    attnpy.integrations.torch.attention(x, x, x, is_causal=True)  # wrong
    attnpy.integrations.torch.attention(x, x, x, window=3)  # wrong
    attnpy.integrations.torch.sdpa(x, x, x)  # wrong
    attnpy.integrations.torch.enable(True)  # wrong
    attnpy.integrations.tensorflow  # wrong
