"""OpenVINO: BERT as PyTorch exports it, decoders as graphs of its own operators."""

from __future__ import annotations

import functools

import numpy as np

from .. import children
from . import exported, folders

HINTS = {"float32": "f32", "bfloat16": "bf16"}


class Net:
    """Operators of a model over its arrays (out, in), which become constants."""

    def __init__(self, name):
        from openvino import opset13

        self.ops = opset13
        self.weights, self.config = folders.read(name)
        self.head_dim = self.config["hidden_size"] // self.config["num_attention_heads"]

    def constant(self, value, dtype=np.float32):
        return self.ops.constant(np.asarray(value, dtype))

    def shape(self, *sizes):
        return self.constant(sizes, np.int64)

    def weight(self, name):
        return self.constant(self.weights[name])

    def linear(self, x, module):
        """A product, and the bias where there is one."""
        weight = self.weight(f"{module}.weight")
        x = self.ops.matmul(x, weight, transpose_a=False, transpose_b=True)
        bias = self.weights.get(f"{module}.bias")
        return x if bias is None else self.ops.add(x, self.constant(bias))

    def heads(self, x):
        """(B, L, H D) -> (B, H, L, D)."""
        x = self.ops.reshape(x, self.shape(0, 0, -1, self.head_dim), special_zero=True)
        return self.ops.transpose(x, self.shape(0, 2, 1, 3))

    def joined(self, x):
        """(B, H, L, D) -> (B, L, H D)."""
        x = self.ops.transpose(x, self.shape(0, 2, 1, 3))
        return self.ops.reshape(x, self.shape(0, 0, -1), special_zero=True)

    def gather(self, array, indices):
        return self.ops.gather(array, indices, self.constant(0, np.int64))

    def attend(self, query, key, value, mask):
        if mask is None:
            return self.ops.scaled_dot_product_attention(query, key, value)
        return self.ops.scaled_dot_product_attention(query, key, value, mask)


@functools.cache
def openvino_core():
    import openvino

    return openvino.Core()


def compiled(model, case, n_threads):
    """The model for this dtype and number of threads, and nobody's CPU to itself."""
    config = {
        "INFERENCE_PRECISION_HINT": HINTS[case.dtype],
        "KV_CACHE_PRECISION": HINTS[case.dtype],  # 8 bits unless it is said
        "INFERENCE_NUM_THREADS": n_threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if children.quiet():  # beside others in one process, which share the calling thread
        config["ENABLE_CPU_PINNING"] = False
    return openvino_core().compile_model(model, "CPU", config)


# ---- BERT ----------------------------------------------------------------------------


def encoder_calls(name, case, n_threads):
    """(name, call) of each way; a call gives the vectors, (B, L, E) or (N, E)."""
    ids, exists = case.ids(), case.exists()

    def request(batch, length):
        model = openvino_core().read_model(exported.graph(folders.folder(name)))
        model.reshape({key: [batch, length] for key in exported.INPUTS})
        return compiled(model, case, n_threads).create_infer_request()

    def call(run, *arrays):
        inputs = exported.inputs(*arrays)
        return lambda: run.infer(inputs, share_inputs=True, share_outputs=True)[0]

    yield "static shapes", call(request(*ids.shape), ids, exists)
    yield "dynamic shapes", call(request(-1, -1), ids, exists)
    if case.ragged:
        alone = request(1, -1)
        calls = [
            call(alone, ids[i : i + 1, :length], exists[i : i + 1, :length])
            for i, length in enumerate(case.lengths())
        ]
        yield (
            "sentence by sentence",
            lambda: np.concatenate([np.array(one()[0]) for one in calls]),
        )


# ---- Decoders ------------------------------------------------------------------------


def rms_norm(net, x, module):
    ops = net.ops
    mean = ops.reduce_mean(ops.power(x, net.constant(2)), net.shape(-1), keep_dims=True)
    root = ops.sqrt(ops.add(mean, net.constant(net.config["rms_norm_eps"])))
    x = ops.multiply(x, ops.divide(net.constant(1), root))
    return ops.multiply(net.weight(f"{module}.weight"), x)


def rotary_tables(net, positions):
    """cos and sin of the angles of positions (B, L): (B, 1, L, D) each."""
    ops = net.ops
    half = np.arange(0, net.head_dim, 2) / net.head_dim
    frequencies = net.config["rope_theta"] ** -half  # (D / 2,)
    angles = ops.matmul(
        net.constant(frequencies[None, :, None]),
        ops.unsqueeze(ops.convert(positions, "f32"), net.constant(1, np.int64)),
        *(False, False),
    )
    angles = ops.transpose(angles, net.shape(0, 2, 1))  # (B, L, D / 2)
    angles = ops.concat([angles, angles], -1)
    axis = net.constant(1, np.int64)
    return ops.unsqueeze(ops.cos(angles), axis), ops.unsqueeze(ops.sin(angles), axis)


def turned(net, x, tables):
    """Rotary positions of x (B, H, L, D)."""
    ops, half = net.ops, net.head_dim // 2

    def part(begin, end):
        ends = net.shape(begin), net.shape(end), net.shape(1), net.shape(3)
        return ops.slice(x, *ends)

    other = ops.multiply(part(half, np.iinfo(np.int64).max), net.constant([[[[-1]]]]))
    other = ops.concat([other, part(0, half)], -1)
    cos, sin = tables
    return ops.add(ops.multiply(x, cos), ops.multiply(other, sin))


class Memory:
    """The variables of a stateful model: keys and values of all calls so far."""

    def __init__(self, net, beams):
        self.net, self.beams, self.sinks = net, beams, []

    def extended(self, x, title):
        """All rows of a variable with the new ones, x (B, Hk, L, D)."""
        from openvino import PartialShape, Type
        from openvino.op.util import Variable, VariableInfo

        ops, kv_heads = self.net.ops, self.net.config["num_key_value_heads"]
        info = VariableInfo()
        info.data_shape = PartialShape([-1, kv_heads, -1, self.net.head_dim])
        info.data_type, info.variable_id = Type.f32, title
        variable = Variable(info)
        batch = self.net.gather(ops.shape_of(self.beams), self.net.shape(0))
        sizes = [batch, *(self.net.shape(n) for n in (kv_heads, 0, self.net.head_dim))]
        empty = ops.broadcast(self.net.constant(0), ops.concat(sizes, 0))
        kept = self.net.gather(ops.read_value(empty, variable), self.beams)
        rows = ops.concat([kept, x], 2)
        self.sinks.append(ops.assign(rows, variable))
        return rows


def repeated(net, x, group):
    """(B, Hk, Lk, D) -> (B, Hk group, Lk, D), as models write it."""
    if group == 1:
        return x
    x = net.ops.unsqueeze(x, net.constant(2, np.int64))
    sizes = net.shape(1, 1, group, 1, 1)
    x = net.ops.broadcast(x, sizes, broadcast_spec="BIDIRECTIONAL")
    kv_heads = net.config["num_key_value_heads"]
    sizes = net.shape(0, kv_heads * group, -1, net.head_dim)
    return net.ops.reshape(x, sizes, special_zero=True)


def decoder(name):
    """A stateful model of ids and positions (1, L), and beams (1,): the scores (V,)."""
    from openvino import Model, Type

    net = Net(name)
    ops = net.ops
    ids, positions = (ops.parameter([-1, -1], Type.i64) for _ in range(2))
    beams = ops.parameter([-1], Type.i32)
    memory = Memory(net, beams)
    table = net.weight("model.embed_tokens.weight")
    x = net.gather(table, ids)
    tables = rotary_tables(net, positions)
    zero, one = (net.constant(n, np.int64) for n in (0, 1))
    before = ops.squeeze(ops.gather(positions, net.shape(0), one), net.shape(0, 1))
    n_new = net.gather(ops.shape_of(ids, output_type="i64"), one)
    places = ops.range(zero, ops.add(before, n_new), one, "i64")  # (Lk,)
    seen = ops.less_equal(
        ops.unsqueeze(places, net.shape(0, 1, 2)),  # (1, 1, 1, Lk)
        ops.unsqueeze(positions, net.shape(1, 3)),  # (1, 1, L, 1)
    )
    for i in range(net.config["num_hidden_layers"]):
        x = decoder_layer(net, x, f"model.layers.{i}", tables, memory, seen)
    x = ops.gather(x, net.shape(-1), one)
    x = rms_norm(net, x, "model.norm")
    head = net.weights.get("lm_head.weight")
    head = table if head is None else net.constant(head)
    scores = ops.matmul(x, head, transpose_a=False, transpose_b=True)
    return Model([ops.result(scores)], memory.sinks, [ids, positions, beams])


def decoder_layer(net, x, at, tables, memory, seen):
    ops = net.ops
    group = net.config["num_attention_heads"] // net.config["num_key_value_heads"]
    normed = rms_norm(net, x, f"{at}.input_layernorm")
    query, key, value = (
        net.heads(net.linear(normed, f"{at}.self_attn.{part}_proj"))
        for part in ("q", "k", "v")
    )
    query, key = turned(net, query, tables), turned(net, key, tables)
    key = repeated(net, memory.extended(key, f"{at}.key"), group)
    value = repeated(net, memory.extended(value, f"{at}.value"), group)
    attended = net.joined(net.attend(query, key, value, seen))
    x = ops.add(x, net.linear(attended, f"{at}.self_attn.o_proj"))
    normed = rms_norm(net, x, f"{at}.post_attention_layernorm")
    gate = ops.swish(net.linear(normed, f"{at}.mlp.gate_proj"))
    hidden = ops.multiply(gate, net.linear(normed, f"{at}.mlp.up_proj"))
    return ops.add(x, net.linear(hidden, f"{at}.mlp.down_proj"))


@functools.lru_cache(maxsize=1)
def decoder_run(name, case, n_threads):
    """The compiled model; one of Qwen2-0.5B's is 2 GB."""
    return compiled(decoder(name), case, n_threads)


def decoder_calls(name, case, n_threads):
    """(name, call) of each way; a call gives the scores after the last token, (V,).

    A model's memory cannot be cut: to decode, that of the prompt is copied back before
    the first token.
    """
    run = decoder_run(name, case, n_threads)
    request = run.create_infer_request()
    ids = case.ids()[None]  # (1, L)
    beams = np.zeros(1, np.int32)

    def step(tokens, begin):
        places = np.arange(begin, begin + tokens.shape[1])[None]
        inputs = [tokens, places, beams]
        return request.infer(inputs, share_inputs=True, share_outputs=True)[0][0, -1]

    def prefill():
        request.reset_state()
        return np.array(step(ids[:, : case.n_prompt], 0))

    states = {}

    def decode():
        for state in request.query_state():
            state.state = states[state.name]
        for begin, end in case.steps():
            scores = step(ids[:, begin:end], begin)
        return np.array(scores)

    if case.n_new == 0:
        yield "stateful", prefill
        return
    import openvino

    prefill()
    for state in request.query_state():
        states[state.name] = openvino.Tensor(np.array(state.state.data))
    yield "stateful", decode
