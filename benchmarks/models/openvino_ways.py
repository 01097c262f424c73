"""OpenVINO: BERT as PyTorch exports it, and decoders as it converts them itself."""

import functools

import numpy as np

from .. import children
from ..lazily import nncf, openvino, torch, transformers
from ..peers import Way
from . import exported, folders, transformers_ways

HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}


core = functools.cache(lambda: openvino.Core())


def compiled(model, dtype, n_threads):
    """The model for this dtype and number of threads, and nobody's CPU to itself."""
    config = {
        "INFERENCE_PRECISION_HINT": HINTS[dtype],
        "KV_CACHE_PRECISION": HINTS[dtype],  # 8 bits unless it is said
        "INFERENCE_NUM_THREADS": n_threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if children.quiet():  # beside others in one process, which share the calling thread
        config["ENABLE_CPU_PINNING"] = False
    return core().compile_model(model, "CPU", config)


def random_texts(name):
    """Texts for a model with random weights, (1, L) each."""
    rng, n_words = np.random.default_rng(4), folders.CONFIGS[name]["vocab_size"]
    return [rng.integers(1, n_words, (1, 64)) for _ in range(100)]


def quantized(graph, texts):
    """The graph in 8 bits by NNCF, which looks at these texts (1, L) first."""

    def write(path):
        samples = [exported.inputs(ids, np.ones(ids.shape, bool)) for ids in texts]
        found = nncf.quantize(
            core().read_model(graph),
            nncf.Dataset(samples),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(samples),
        )
        path.mkdir()
        openvino.save_model(found, path / "model.xml", compress_to_fp16=False)

    return folders.made(graph.with_name("int8-openvino"), write) / "model.xml"


def encoder_ways(case, arrays, n_threads):
    ids, exists = case.ids(), case.exists()
    graph = exported.graph(folders.folder(case.model))
    if case.dtype == "int8":
        graph = quantized(graph, random_texts(case.model))

    def request(batch, length):
        model = core().read_model(graph)
        model.reshape({key: [batch, length] for key in exported.INPUTS})
        return compiled(model, case.dtype, n_threads).create_infer_request()

    def call(run, *arrays):
        inputs = exported.inputs(*arrays)
        return lambda: run.infer(inputs, share_inputs=True, share_outputs=True)[0]

    for name, shape in (("static shapes", ids.shape), ("dynamic shapes", (-1, -1))):
        yield Way(name, call(request(*shape), ids, exists), case.read)
    if case.ragged:
        alone = request(1, -1)
        calls = [
            call(alone, ids[i : i + 1, :length], exists[i : i + 1, :length])
            for i, length in enumerate(case.lengths())
        ]

        def each():
            return np.concatenate([np.array(one()[0]) for one in calls])

        yield Way("sentence by sentence", each, case.read)


@functools.lru_cache(maxsize=1)
def decoder_run(name, case, n_threads):
    """The compiled model; one of Qwen2-0.5B's is 2 GB."""
    return compiled(decoder(name), case.dtype, n_threads)


def decoder(name):
    """Hugging Face's model as OpenVINO converts it, with keys and values as its state.

    Of ids and positions (1, L), what they see (1, 1, L, Lk), and beams (1,): the scores
    after the last token.
    """
    config = folders.CONFIGS[name]
    model = transformers_ways.read(folders.folder(name))
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    shape = (1, config["num_key_value_heads"], 2, head_dim)

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, positions, seen, past):
            cache = transformers.DynamicCache(config=self.model.config)
            pairs = zip(past[::2], past[1::2], strict=True)
            for layer, pair in zip(cache.layers, pairs, strict=True):
                layer.lazy_initialization(*pair)
                layer.keys, layer.values = pair
            scores = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=seen,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
            kept = (x for layer in cache.layers for x in (layer.keys, layer.values))
            return (scores, *kept)

    ids = torch.zeros((1, 3), dtype=torch.int64)
    seen = torch.ones((1, 1, 3, 5), dtype=torch.bool)
    past = [torch.zeros(shape) for _ in range(2 * config["num_hidden_layers"])]
    with torch.inference_mode(False), torch.no_grad():
        found = openvino.convert_model(Step(), example_input=(ids, ids, seen, past))
    return with_state(found, shape)


def with_state(model, shape):
    """The model with the inputs after its third, and outputs after its first, inside.

    As optimum-intel does it: rows of a state are chosen by beams, and it starts empty.
    """
    from openvino import PartialShape, Type, opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    beams = opset13.parameter([-1], Type.i32, name="beams")
    zero = opset13.constant(0, Type.i64)
    pairs = {}
    for i, (given, kept) in enumerate(
        zip(model.inputs[3:], model.outputs[1:], strict=True)
    ):
        parameter = given.get_node()
        parameter.set_partial_shape(PartialShape([-1, shape[1], -1, shape[3]]))
        users = given.get_target_inputs()
        chosen = opset13.gather(parameter, beams, zero)
        for user in users:
            user.replace_source_output(chosen.output(0))
        given.get_tensor().set_names({f"past {i}"})
        kept.get_tensor().set_names({f"kept {i}"})
        pairs[f"past {i}"] = f"kept {i}"
    model.add_parameters([beams])
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, pairs)
    sizes = [opset13.constant([n], Type.i64) for n in (shape[1], 0, shape[3])]
    batch = opset13.shape_of(beams)
    empty = opset13.broadcast(
        opset13.constant(0, Type.f32), opset13.concat([batch, *sizes], 0)
    )
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([empty.output(0)])
    model.validate_nodes_and_infer_types()
    return model


def decoder_ways(case, arrays, n_threads):
    """A model's memory cannot be cut: to decode, that of the prompt is copied back."""
    request = decoder_run(case.model, case, n_threads).create_infer_request()
    ids, places = case.ids()[None], np.arange(case.capacity())  # (1, L), (L,)
    seen = (places <= places[:, None])[None, None]  # (1, 1, L, Lk)
    beams = np.zeros(1, np.int32)

    def step(begin, end):
        mask = np.ascontiguousarray(seen[:, :, begin:end, :end])
        inputs = [ids[:, begin:end], places[None, begin:end], mask, beams]
        return request.infer(inputs, share_inputs=True, share_outputs=True)[0].ravel()

    def restore():
        for state in request.query_state():
            state.state = states[state.name]

    step(0, case.n_prompt)
    states = {
        state.name: openvino.Tensor(np.array(state.state.data))
        for state in request.query_state()
    }
    forget = restore if case.n_new else request.reset_state
    yield Way("stateful", case.call(forget, step), np.array)
