"""quantize(): torch.nn.MultiheadAttention, and the modules that contain it."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from attnpy.integrations.torch import (  # noqa: E402
    QuantizedLinear,
    QuantizedMultiheadAttention,
    accelerate,
    check_invariance,
    quantize,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention(*arguments, **options):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(*arguments, **options).eval()
    with torch.no_grad():
        for bias in (layer.in_proj_bias, layer.out_proj.bias):
            if bias is not None:  # zeros by default
                bias.copy_(normal(*bias.shape))
    return layer


def quantized(model, **options):
    model = copy.deepcopy(model)
    quantize(model, **options)
    return model


def dequantized(model, like):
    """The same model with the tensors that its integers stand for."""
    other = copy.deepcopy(like)
    for name, parameter in other.named_parameters():
        weight = model
        for part in name.split("."):
            weight = getattr(weight, part)
        is_tensor = isinstance(weight, torch.Tensor)
        parameter.data = weight.data if is_tensor else weight.dequantize()
    return other


KINDS = (
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 24, "vdim": 40, "batch_first": True},
    {"kdim": 24, "vdim": 40, "bias": False, "add_bias_kv": True},
)


def arguments_of(kind, n=3):
    """Queries, keys and values of a batch."""
    sizes = (n, 5, 32), (n, 7, kind.get("kdim", 32)), (n, 7, kind.get("vdim", 32))
    tensors = [normal(*shape, seed=i) for i, shape in enumerate(sizes)]
    return tensors if kind.get("batch_first") else [x.transpose(0, 1) for x in tensors]


CAUSAL = torch.ones(5, 7, dtype=torch.bool).triu(3)
PADDING = torch.arange(7) >= torch.tensor([[7], [4], [2]])
MASKS = (
    {},
    {"attn_mask": CAUSAL},
    {"attn_mask": CAUSAL, "is_causal": True},
    {"key_padding_mask": PADDING},
    {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
    {"attn_mask": normal(12, 5, 7)},
    {"attn_mask": normal(5, 7), "key_padding_mask": normal(3, 7)},
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"bits": 4, "group": 64}])
def test_results_are_those_of_the_dequantised_matrices(kind, options):
    layer, tensors = attention(32, 4, **kind), arguments_of(kind)
    ours = quantized(layer, **options)
    assert type(ours) is QuantizedMultiheadAttention
    assert type(ours.out_proj) is QuantizedLinear
    theirs = dequantized(ours, layer)
    for mask in MASKS:
        for needs in (
            {},
            {"need_weights": False},
            {"average_attn_weights": False},
        ):
            more = mask | needs
            if "is_causal" in mask:  # PyTorch without weights ignores the mask then
                more = {k: x for k, x in more.items() if k != "need_weights"}
            found, weights = ours(*tensors, **more)
            expected, exact = theirs(*tensors, **more)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
            assert (weights is None) == (exact is None)
            if weights is not None:
                torch.testing.assert_close(weights, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_without_an_axis_of_batches(kind):
    layer = attention(32, 4, **kind)
    ours = quantized(layer)
    theirs = dequantized(ours, layer)
    tensors = [x[1] for x in arguments_of(kind | {"batch_first": True})]
    for mask in (
        {},
        {"key_padding_mask": PADDING[1], "attn_mask": CAUSAL},
        {"attn_mask": normal(4, 5, 7), "average_attn_weights": False},
    ):
        for found, expected in zip(
            ours(*tensors, **mask), theirs(*tensors, **mask), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_error_is_small():
    layer, x = attention(256, 4, batch_first=True), normal(2, 20, 256)
    exact = layer(x, x, x)[0]
    for options, limit in (
        ({}, 0.01),
        ({"activations": "int8"}, 0.02),
        ({"bits": 4}, 0.15),
    ):
        error = quantized(layer, **options)(x, x, x)[0] - exact
        relative = float((error.std() / exact.std()).detach())
        assert 1e-4 < relative < limit


@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_batch(kind, activations):
    ours = quantized(attention(32, 4, **kind), activations=activations)
    tensors = arguments_of(kind)
    axis = 0 if kind.get("batch_first") else 1
    output, weights = ours(*tensors, key_padding_mask=PADDING)
    for i in range(3):
        alone = [x.narrow(axis, i, 1) for x in tensors]
        one, some = ours(*alone, key_padding_mask=PADDING[i : i + 1])
        assert torch.equal(one, output.narrow(axis, i, 1))
        assert torch.equal(some, weights[i : i + 1])
        with accelerate(report=True, num_threads=2) as report:
            within, _ = ours(
                *alone, key_padding_mask=PADDING[i : i + 1], need_weights=False
            )
        assert torch.equal(within, one)
        assert report.computed == {
            "quantized linear": 4,
            "quantized attention": 1,
        }


@pytest.mark.parametrize("same", [(0, 0, 0), (0, 1, 1), (0, 1, 0)])
def test_tensors_may_be_one_object(same):
    ours = quantized(attention(32, 4))
    both = normal(2, 5, 3, 32)
    tensors = [both[i] for i in same]
    several = [x.clone() for x in tensors]
    # Such as self-attention, for which PyTorch multiplies once.
    assert torch.equal(ours(*tensors)[0], ours(*several)[0])


def same_results(found, expected):
    return all(
        (x is None and y is None) or torch.equal(x, y)
        for x, y in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [x for x in KINDS if "add_bias_kv" not in x])
def test_one_run_of_all_steps_has_the_bits_of_steps(
    kind, dtype, activations, monkeypatch
):
    if dtype is torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    ours = quantized(attention(32, 4, **kind).to(dtype), activations=activations)
    calls = []
    steps = type(ours)._in_steps
    monkeypatch.setattr(
        type(ours), "_in_steps", lambda *x: calls.append(1) or steps(*x)
    )
    q, k, v = (x.to(dtype) for x in arguments_of(kind))
    tokens = 1 if kind.get("batch_first") else 0
    several = [
        ((q, k, v), MASKS),
        ((q, *(x.narrow(tokens, 0, 0) for x in (k, v))), ({},)),
    ]
    if "kdim" not in kind:
        several.append(((q, k, k), MASKS))
        several += [(x, ({},)) for x in ((q, q, q), (q, q, q + 1), (q[:0],) * 3)]
    for tensors, masks in several:
        for mask in masks:
            for needs in (
                {},
                {"need_weights": False},
                {"average_attn_weights": False},
            ):
                with torch.no_grad():
                    found = ours(*tensors, **mask, **needs)
                assert not calls
                query = tensors[0].clone().requires_grad_()
                expected = ours(query, *tensors[1:], **mask, **needs)
                assert calls.pop() == 1
                assert same_results(found, expected)


def test_queries_that_see_no_key_get_zeros():
    ours = quantized(attention(32, 4, batch_first=True))
    x, hidden = normal(2, 5, 32), torch.tensor([[False] * 5, [True] * 5])
    output, weights = ours(x, x, x, key_padding_mask=hidden)
    assert torch.equal(output[1], ours.out_proj.bias.expand(5, 32))
    assert not weights[1].any() and weights[0].any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_dequantised_matrices(kind):
    layer = attention(32, 4, **kind)
    ours = quantized(layer)
    theirs = dequantized(ours, layer)
    grads = []
    for model in (ours, theirs):
        tensors = [x.clone().requires_grad_() for x in arguments_of(kind)]
        output, weights = model(*tensors, key_padding_mask=PADDING)
        (output.square().sum() + weights.square().sum()).backward()
        grads.append([x.grad for x in tensors])
        kept = dict(ours.named_parameters())
        grads[-1] += [dict(model.named_parameters())[name].grad for name in kept]
    assert all("weight" not in name for name in kept)
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_dropout_is_for_training():
    ours = quantized(attention(32, 4, dropout=0.5, batch_first=True))
    x = normal(2, 5, 32)
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    ours.train()
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(ours(x, x, x)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_other_dtypes(dtype):
    if dtype is torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    layer = attention(32, 4, batch_first=True, add_bias_kv=True)
    ours, x = quantized(layer), normal(2, 5, 32)
    exact = ours(x, x, x)[0]
    with torch.autocast("cpu", dtype=dtype):
        found = ours(x, x, x, attn_mask=torch.zeros(5, 5))[0]
    moved = ours.to(dtype)
    assert moved.in_proj_weight.dtype is moved.out_proj.weight.dtype is dtype
    z = x.to(dtype)
    for output in (found, moved(z, z, z)[0]):
        assert output.dtype is dtype
        torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [8, 4])
def test_states_go_both_ways(kind, bits):
    layer, tensors = attention(32, 4, **kind), arguments_of(kind)
    ours = quantized(layer, bits=bits)
    expected = ours(*tensors)[0]
    names = ("q_proj", "k_proj", "v_proj") if "kdim" in kind else ("in_proj",)
    state = ours.state_dict()
    assert {name for name in state if "weight" in name} == {
        f"{name}.{part}"
        for name in (*(f"{x}_weight" for x in names), "out_proj.weight")
        for part in ("codes", "scale")
    }
    if names == ("in_proj",):
        assert state["in_proj_weight.codes"].shape == (32 * bits // 8, 96)
    torch.manual_seed(1)
    for given in (state, layer.state_dict()):
        other = quantized(nn.MultiheadAttention(32, 4, **kind).eval(), bits=bits)
        assert not torch.equal(other(*tensors)[0], expected)
        file = io.BytesIO()
        torch.save(given, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        assert str(other.load_state_dict(loaded)) == "<All keys matched successfully>"
        assert torch.equal(other(*tensors)[0], expected)
    wrong = dict(state)
    del wrong[f"{names[-1]}_weight.scale"]
    with pytest.raises(RuntimeError, match=f"{names[-1]}_weight: expected either it"):
        ours.load_state_dict(wrong)
    assert torch.equal(ours(*tensors)[0], expected)


def test_copies_and_pickles():
    ours, x = quantized(attention(32, 4)), normal(5, 3, 32)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (copy.deepcopy(ours), torch.load(file, weights_only=False)):
        assert type(other) is QuantizedMultiheadAttention
        assert torch.equal(other(x, x, x)[0], ours(x, x, x)[0])


def test_weights_are_tensors_for_pytorch():
    # As in pooling by attention, which calls the function with weights of modules.
    layer = attention(32, 4)
    ours, x = quantized(layer), normal(5, 3, 32)
    assert ours.in_proj_weight.shape == (96, 32)
    assert len(ours.in_proj_weight.quantized) == 3
    matrix = ours.in_proj_weight.dequantize()
    assert torch.equal(
        nn.functional.linear(x, ours.in_proj_weight), nn.functional.linear(x, matrix)
    )
    for block in (False, True):
        with accelerate(linear=block):
            found, _ = nn.functional.multi_head_attention_forward(
                *(x, x, x, 32, 4, ours.in_proj_weight, ours.in_proj_bias, None, None),
                *(False, 0.0, ours.out_proj.weight, ours.out_proj.bias, False),
            )
        torch.testing.assert_close(found, ours(x, x, x)[0], rtol=1e-4, atol=1e-5)
    for change in (
        ours._reset_parameters,
        lambda: setattr(ours, "in_proj_weight", nn.Parameter(matrix)),
        lambda: ours.in_proj_weight.data,
    ):
        with pytest.raises((TypeError, AttributeError), match=r"weight: .* change"):
            change()


def test_bad_calls_are_refused():
    ours = quantized(attention(32, 4, batch_first=True))
    x = normal(3, 5, 32)
    square = torch.zeros(5, 5, dtype=torch.bool)
    for call, error, message in (
        (lambda: ours(None, x, x), TypeError, "query: expected a torch.Tensor, got No"),
        (
            lambda: ours(x, x[..., :8], x),
            ValueError,
            r"key: expected shape \(\.\.\., 32",
        ),
        (lambda: ours(x, x, x.double()), TypeError, "value: expected float32"),
        (lambda: ours(x, x, x.half()), TypeError, "value: expected the query's dtype"),
        (lambda: ours(x, x[0], x[0]), ValueError, "key: expected 3 axes, or 2 in que"),
        (lambda: ours(x[0, 0], x[0, 0], x[0, 0]), ValueError, "query: expected 3 axes"),
        (
            lambda: ours(x, x[:, 1:], x),
            ValueError,
            "as many keys as values, got shapes",
        ),
        (
            lambda: ours(x[:1], x, x),
            ValueError,
            "query, key, value: expected one batch",
        ),
        (
            lambda: ours(x, x, x, is_causal=True),
            ValueError,
            "attn_mask: expected a mask",
        ),
        (
            lambda: ours(x, x, x, attn_mask=square[1:]),
            ValueError,
            r"attn_mask: .*\(5, 5",
        ),
        (lambda: ours(x, x, x, attn_mask=square.int()), TypeError, "attn_mask: .*bool"),
        (
            lambda: ours(x, x, x, attn_mask=3),
            TypeError,
            "attn_mask: expected a torch.T",
        ),
        (
            lambda: ours(x, x, x, square[:, :3].T[:, :4]),
            ValueError,
            r"key_padding_mask: expected shape \(3, 5\), got \(3, 4\)",
        ),
        (lambda: ours(x.to("meta"), x, x), ValueError, "query: expected a CPU tensor"),
        (
            lambda: ours.double(),
            TypeError,
            "QuantizedMultiheadAttention: expected float",
        ),
        (lambda: ours.to("meta"), ValueError, "stay on the CPU.*got device 'meta'"),
        (
            QuantizedMultiheadAttention,
            TypeError,
            "expected attnpy.integrations.torch.q",
        ),
        (lambda: torch.func.vmap(ours)(x, x, x), TypeError, "query: .*torch.func"),
        (lambda: torch.export.export(ours, (x, x, x)), TypeError, "torch.export"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_function_chooses_whole_modules():
    seen = []

    def nothing(module, name):
        seen.append((type(module), name))
        return False

    layer = nn.TransformerDecoderLayer(32, 4, 64)
    with pytest.raises(ValueError, match="got none in a TransformerDecoderLayer"):
        quantize(layer, filter_fn=nothing)
    assert seen == [
        (nn.MultiheadAttention, "self_attn"),
        (nn.MultiheadAttention, "multihead_attn"),
        (nn.Linear, "linear1"),
        (nn.Linear, "linear2"),
    ]
    quantize(layer, filter_fn=lambda _, name: name != "multihead_attn")
    assert type(layer.self_attn) is QuantizedMultiheadAttention
    assert type(layer.self_attn.out_proj) is QuantizedLinear
    assert type(layer.multihead_attn) is nn.MultiheadAttention
    assert type(layer.multihead_attn.out_proj) is not QuantizedLinear


def test_shared_matrices_stay_shared():
    first, second = attention(32, 4), attention(32, 4)
    second.in_proj_weight = first.in_proj_weight
    second.out_proj = first.out_proj
    model = nn.ModuleList([first, second])
    quantize(model)
    assert second.in_proj_weight is first.in_proj_weight
    assert second.out_proj is first.out_proj
    x = normal(5, 3, 32)
    assert torch.equal(first(x, x, x)[0], second(x, x, x)[0])


def test_an_attention_that_cannot_be_quantised_is_not_changed():
    for name in ("in_proj_weight", "out_proj.weight"):
        layer = nn.TransformerEncoderLayer(32, 4, 64)
        with torch.no_grad():
            layer.self_attn.get_parameter(name)[3, 5] = torch.nan
        with pytest.raises(ValueError, match=rf"^self_attn\.{name}: expected finite"):
            quantize(layer)
        assert type(layer.self_attn) is nn.MultiheadAttention
        assert type(layer.linear1) is nn.Linear


# ---- Modules that contain it ---------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoders(batch_first, norm_first):
    # In inference PyTorch has functions that read the weights of all these at once, and
    # makes nested tensors of a padded batch.
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, batch_first=batch_first, norm_first=norm_first
    )
    for chosen in (
        None,
        lambda _, name: "linear" in name,
        lambda _, name: "at" in name,
    ):
        ours = quantized(layer, filter_fn=chosen)
        stacks = [
            nn.TransformerEncoder(one, 2).eval()
            for one in (ours, dequantized(ours, layer))
        ]
        x = normal(3, 7, 32)
        x = x if batch_first else x.transpose(0, 1)
        causal = nn.Transformer.generate_square_subsequent_mask(7)
        for more in (
            {},
            {"src_key_padding_mask": PADDING},
            {"mask": causal, "is_causal": True},
        ):
            for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
                with context():
                    found, expected = (stack(x, **more) for stack in stacks)
                if more and "mask" not in more:  # padding may have any result
                    hidden = PADDING if batch_first else PADDING.T
                    found = found.masked_fill(hidden[..., None], 0)
                    expected = expected.masked_fill(hidden[..., None], 0)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bits_of_encoders_do_not_depend_on_the_batch():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = quantized(nn.TransformerEncoder(layer, 2).eval(), activations="int8")
    with accelerate():
        assert check_invariance(model, {"src": normal(4, 7, 32)}) == []


def test_decoders_and_whole_transformers():
    torch.manual_seed(0)
    plain = nn.Transformer(32, 4, 1, 1, 64, batch_first=True).eval()
    ours = quantized(plain)
    assert sum(type(m) is QuantizedMultiheadAttention for m in ours.modules()) == 3
    assert not [n for n, _ in ours.named_parameters() if "proj_weight" in n]
    theirs = dequantized(ours, plain)
    source, target = normal(2, 7, 32), normal(2, 5, 32, seed=1)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad():
        found, expected = (
            model(source, target, tgt_mask=mask, tgt_is_causal=True)
            for model in (ours, theirs)
        )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_compiled_encoders_call_it():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    ours, x = quantized(layer), normal(2, 7, 32)
    with torch.no_grad():
        compiled = torch.compile(ours, backend="eager")
        torch.testing.assert_close(compiled(x), ours(x), rtol=0, atol=1e-6)
