"""The pieces of a training loop: loss, optimizer, clipping, schedule, files."""

import copy
import hashlib
import json
import math
import os
import sys
import tracemalloc

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from support.arrays import layouts, normal
from support.calls import TIERS
from support.comparisons import assert_same_bits
from support.errors import refused
from support.interrupts import interrupted_everywhere
from support.processes import assert_runs

from attnpy import _parameters, checkpoints, training
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.training import AdamW, _arrays, clip_norm, cross_entropy, warmup_cosine

pytestmark = pytest.mark.quick

EPS = {"float32": 2.0**-24, "float64": 2.0**-53}


needs_safetensors = pytest.mark.skipif(
    "not __import__('importlib').util.find_spec('safetensors')"
)


def has_bfloat16():
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


# ---- Cross-entropy -------------------------------------------------------------------


def entropy_by_formula(logits, targets, smoothing=0.0, ignore_index=-100):
    """The loss of each row, and its gradient, in float64."""
    x = logits.astype(np.float64)
    top = x.max(axis=-1, keepdims=True)
    log_p = x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True))
    counted = targets != ignore_index
    wanted = np.full(x.shape, smoothing / x.shape[-1])
    chosen = np.where(counted, targets, 0)[..., np.newaxis]
    here = np.take_along_axis(wanted, chosen, -1) + 1 - smoothing
    np.put_along_axis(wanted, chosen, here, -1)
    losses = -(wanted * log_p).sum(axis=-1) * counted
    return losses, (np.exp(log_p) - wanted) * counted[..., np.newaxis]


@pytest.mark.parametrize("smoothing", [0, 0.1, 1.0])
@pytest.mark.parametrize("shape", [(5,), (1, 1), (7, 130), (2, 3, 50), (2, 1, 65, 9)])
@pytest.mark.parametrize("dtype", EPS)
def test_cross_entropy_is_its_formula(dtype, shape, smoothing):
    logits = 5 * normal(*shape, dtype=dtype)
    rng = np.random.default_rng(0)
    targets = rng.integers(0, shape[-1], shape[:-1])
    if targets.size > 1:
        targets[rng.random(targets.shape) < 0.3] = -100
        targets.flat[0] = 0
    losses, gradient = entropy_by_formula(logits, targets, smoothing)
    n_counted = np.count_nonzero(targets != -100)
    for reduction, expected, divisor in [
        ("mean", losses.sum() / n_counted, n_counted),
        ("sum", losses.sum(), 1),
        ("none", losses, 1),
    ]:
        loss, grad_logits = cross_entropy(
            logits, targets, label_smoothing=smoothing, reduction=reduction
        )
        bound = 40 * EPS[dtype]
        np.testing.assert_allclose(loss, expected, bound, bound)
        assert (grad_logits.dtype, grad_logits.shape) == (logits.dtype, logits.shape)
        np.testing.assert_allclose(grad_logits, gradient / divisor, 0, bound / divisor)
    assert isinstance(cross_entropy(logits, targets)[0], float)


def test_cross_entropy_has_the_gradient_of_its_loss():
    logits, targets = normal(4, 7, dtype="float64"), np.array([6, 0, -100, 2])
    step = 1e-6 * normal(4, 7, dtype="float64", seed=1)
    options = {"label_smoothing": 0.2}
    _, gradient = cross_entropy(logits, targets, **options)
    above, _ = cross_entropy(logits + step, targets, **options)
    below, _ = cross_entropy(logits - step, targets, **options)
    assert above - below == pytest.approx(2 * np.sum(gradient * step), rel=1e-6)


@pytest.mark.parametrize("dtype", EPS)
def test_the_loss_of_sure_predictions_is_accurate_and_never_negative(dtype):
    # log-sum-exp minus the score would have errors of the size of the scores'.
    gaps = np.linspace(0, 30, 3001)
    logits = np.stack([np.full_like(gaps, 40), 40 - gaps], axis=-1).astype(dtype)
    targets = np.zeros(len(gaps), int)
    losses, _ = cross_entropy(logits, targets, reduction="none")
    expected = np.log1p(np.exp(logits[:, 1].astype(float) - logits[:, 0]))
    assert (losses >= 0).all()
    np.testing.assert_allclose(losses, expected, 0, 3 * EPS[dtype])


def test_cross_entropy_of_targets_that_are_all_but_impossible():
    logits = np.array([[0, -60], [0, -80], [0, -800], [0, -np.inf]], np.float32)
    losses, gradient = cross_entropy(logits, [1, 1, 1, 1], reduction="none")
    np.testing.assert_allclose(losses, [60, 80, 800, np.inf], 1e-6)
    np.testing.assert_array_equal(gradient, [[1, -1]] * 4)


def test_rows_that_do_not_count_change_nothing_whatever_they_hold():
    logits, targets = normal(6, 9), np.array([3, -1, 8, -1, 0, -1])
    loss, gradient = cross_entropy(logits[::2], targets[::2])
    logits[1::2] = [[np.nan], [np.inf], [-np.inf]]
    with_them = cross_entropy(logits, targets, ignore_index=-1)
    assert with_them[0] == loss
    assert_same_bits(with_them[1][::2], gradient)
    assert not with_them[1][1::2].any()


def test_the_mean_of_no_rows_is_nan_and_has_gradient_0():
    loss, gradient = cross_entropy(np.zeros((2, 3)), [-100, -100])
    assert math.isnan(loss)
    assert_same_bits(gradient, np.zeros((2, 3)))
    loss, gradient = cross_entropy(np.zeros((0, 3), np.float32), [], reduction="sum")
    assert loss == 0
    assert_same_bits(gradient, np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("row", [[1, 2, np.inf], [-np.inf] * 3, [-np.inf, np.nan, 0]])
@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_a_row_that_is_no_distribution_is_nan_alone(row, smoothing):
    losses, gradient = cross_entropy(
        np.array([row, [1, 2, 3]]),
        [0, 0],
        label_smoothing=smoothing,
        reduction="none",
    )
    assert_same_bits(np.isnan(losses), np.array([True, False]))
    assert_same_bits(np.isnan(gradient), np.array([[True] * 3, [False] * 3]))


@pytest.mark.parametrize("dtype", EPS)
def test_cross_entropy_has_the_same_bits_for_threads_batches_and_layouts(dtype):
    logits, targets = normal(3, 70, 1030, dtype=dtype), np.full((3, 70), 5)
    options = {"label_smoothing": 0.1, "reduction": "none"}
    expected = cross_entropy(logits, targets, num_threads=1, **options)
    for n in (2, 3, 7):
        assert_same_bits(
            cross_entropy(logits, targets, num_threads=n, **options), expected
        )
    for other in [*layouts(logits), logits.astype(logits.dtype.newbyteorder())]:
        assert_same_bits(cross_entropy(other, targets, **options), expected)
    for i in range(3):
        alone = cross_entropy(logits[i], targets[i], **options)
        assert_same_bits(alone, (expected[0][i], expected[1][i]))


STEP = """
import hashlib
import numpy as np
from attnpy import training
rng = np.random.default_rng(0)
weights = {"W": rng.standard_normal((33, 70)).astype(np.float32)}
optimizer = training.AdamW(weights, lr=0.01)
logits = rng.standard_normal((33, 70)).astype(np.float32)
for step in range(5):
    loss, gradient = training.cross_entropy(
        weights["W"] + logits, np.arange(33), label_smoothing=0.1
    )
    norm = training.clip_norm({"W": gradient}, 0.1)
    rate = training.warmup_cosine(step, lr=0.01, warmup_steps=2, total_steps=5)
    optimizer.step({"W": gradient}, rate)
print(loss.hex(), norm.hex(), hashlib.sha256(weights["W"].tobytes()).hexdigest())
"""


@pytest.mark.parametrize("name", TIERS[1:])
def test_a_step_has_the_same_bits_on_each_instruction_set(name):
    assert assert_runs(STEP, ATTNPY_ISA=name) == assert_runs(STEP, ATTNPY_ISA=TIERS[0])


def test_cross_entropy_makes_one_array_of_the_size_of_the_logits():
    logits = normal(512, 1000)
    targets = np.zeros(512, int)
    tracemalloc.start()
    try:
        cross_entropy(logits, targets, label_smoothing=0.1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert logits.nbytes <= peak < 1.2 * logits.nbytes


def test_cross_entropy_takes_integers_and_leaves_its_arguments_alone():
    logits, targets = normal(2, 3), np.array([0, -100])
    before = logits.copy(), targets.copy()
    cross_entropy(logits, targets)
    assert_same_bits((logits, targets), before)
    loss, gradient = cross_entropy([[1, 2]], [0])
    assert gradient.dtype == np.float64
    assert loss == pytest.approx(math.log(1 + math.e))


def test_errors_of_cross_entropy_name_the_argument():
    logits = np.zeros((2, 3))
    with refused(TypeError, "logits"):
        cross_entropy(logits.astype(np.float16), [0, 1])
    for wrong in (np.zeros((2, 0)), 1.0):
        with refused(ValueError, "logits"):
            cross_entropy(wrong, [0, 1])
    with refused(ValueError, "targets"):
        cross_entropy(logits, [0])
    with refused(TypeError, "targets"):
        cross_entropy(logits, [0.0, 1.0])
    for wrong in (3, -1):
        with refused(ValueError, "targets"):
            cross_entropy(logits, [0, wrong])
    with refused(TypeError, "ignore_index"):
        cross_entropy(logits, [0, 1], ignore_index=[0, 1])
    for wrong in (-0.1, 1.1, math.nan):
        with refused(ValueError, "label_smoothing"):
            cross_entropy(logits, [0, 1], label_smoothing=wrong)
    with refused(ValueError, "reduction"):
        cross_entropy(logits, [0, 1], reduction="max")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", EPS)
def test_cross_entropy_is_that_of_torch(dtype, smoothing, reduction):
    torch = pytest.importorskip("torch")
    logits, targets = 3 * normal(40, 100, dtype=dtype), np.arange(40)
    targets[::7] = -100
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        theirs, torch.tensor(targets), label_smoothing=smoothing, reduction=reduction
    )
    expected.sum().backward()
    loss, gradient = cross_entropy(
        logits, targets, label_smoothing=smoothing, reduction=reduction
    )
    bound = 20 * EPS[dtype]
    np.testing.assert_allclose(loss, expected.detach().numpy(), bound, bound)
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), 0, bound)


# ---- AdamW ---------------------------------------------------------------------------

OPTIONS = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
SHAPES = {"W": (40, 30), "b": (30,), "scale": (), "none": (0, 3), "long": (3, 20000)}


def some(dtype="float32", seed=0):
    """Arrays as parameters or gradients."""
    return {
        name: np.asarray(normal(*shape, dtype=dtype, seed=seed))
        for name, shape in SHAPES.items()
    }


def adamw_by_formula(parameters, steps, no_decay, lr, betas, eps, weight_decay):
    """What the paper's algorithm makes of parameters, in float64."""
    after = {}
    for name, array in parameters.items():
        x, m, v = array.astype(np.float64), 0.0, 0.0
        for t, gradients in enumerate(steps, 1):
            g = gradients[name].astype(np.float64)
            m, v = (
                betas[0] * m + (1 - betas[0]) * g,
                betas[1] * v + (1 - betas[1]) * g**2,
            )
            decay = 0 if name in no_decay else weight_decay
            moved = m / (1 - betas[0] ** t)
            length = np.sqrt(v / (1 - betas[1] ** t)) + eps
            x = x - lr * decay * x - lr * moved / length
        after[name] = x
    return after


@pytest.mark.parametrize("no_decay", [(), ("b", "scale")])
@pytest.mark.parametrize("dtype", EPS)
def test_adamw_is_its_formula(dtype, no_decay):
    parameters, steps = some(dtype), [some(dtype, seed) for seed in range(1, 6)]
    expected = adamw_by_formula(parameters, steps, no_decay, **OPTIONS)
    arrays = dict(parameters)
    optimizer = AdamW(parameters, no_decay=no_decay, **OPTIONS)
    for gradients in steps:
        optimizer.step(gradients)
    for name, array in arrays.items():
        assert array is optimizer.parameters[name]
        assert array.dtype == dtype
        np.testing.assert_allclose(array, expected[name], 0, 40 * EPS[dtype])


@pytest.mark.parametrize("dtype", EPS)
def test_adamw_is_that_of_torch(dtype):
    torch = pytest.importorskip("torch")
    parameters = some(dtype)
    theirs = {name: torch.tensor(array) for name, array in parameters.items()}
    optimizer = AdamW(parameters, **OPTIONS)
    other = torch.optim.AdamW(theirs.values(), **OPTIONS)
    for seed in range(1, 30):
        gradients = some(dtype, seed)
        optimizer.step(gradients, lr=0.01 / seed)
        for name, tensor in theirs.items():
            tensor.grad = torch.tensor(gradients[name])
        other.param_groups[0]["lr"] = 0.01 / seed
        other.step()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(parameters[name], tensor, 0, 40 * EPS[dtype])
        for kind in ("exp_avg", "exp_avg_sq"):
            np.testing.assert_allclose(
                optimizer.state_dict()[f"{kind}.{name}"],
                other.state[tensor][kind],
                100 * EPS[dtype],
                100 * EPS[dtype],
            )


def test_the_defaults_of_adamw_are_those_of_torch():
    defaults = pytest.importorskip("torch").optim.AdamW([{"params": []}]).defaults
    optimizer = AdamW({})
    for name in OPTIONS:
        assert getattr(optimizer, name) == defaults[name]


@pytest.mark.parametrize("dtype", EPS)
def test_adamw_rounds_each_operation(dtype):
    real = np.dtype(dtype).type
    (lr, (mean, square), eps, decay), n = OPTIONS.values(), 20001
    x, g, m = (normal(n, dtype=dtype, seed=seed) for seed in range(3))
    v = m * m
    parameters = {"W": x.copy()}
    optimizer = AdamW(parameters, **OPTIONS)
    optimizer.load_state_dict({"step": 0, "exp_avg.W": m, "exp_avg_sq.W": v})
    optimizer.step({"W": g}, num_threads=2)
    m = m + (g - m) * real(1 - mean)
    v = v * real(square) + g * g * real(1 - square)
    root = np.sqrt(v) * real(1 / math.sqrt(1 - square)) + real(eps)
    x = x * real(1 - lr * decay) - m / root * real(lr / (1 - mean))
    assert_same_bits(parameters["W"], x)
    assert_same_bits(optimizer.state_dict()["exp_avg.W"], m)
    assert_same_bits(optimizer.state_dict()["exp_avg_sq.W"], v)


def test_adamw_has_the_same_bits_in_each_layout():
    start, gradient = normal(40, 500), normal(40, 500, seed=1)
    expected = start.copy()
    AdamW({"W": expected}, **OPTIONS).step({"W": gradient})
    for other in layouts(gradient):
        for parameter in layouts(start.copy()):
            AdamW({"W": parameter}, **OPTIONS).step({"W": other})
            assert_same_bits(np.ascontiguousarray(parameter), expected)


def test_adamw_writes_to_the_arrays_of_a_layer():
    mha = MultiHeadAttention(6, 2, rng=np.random.default_rng(0))
    x = normal(5, 6)
    before = mha(x)
    parameters = mha.parameters()
    AdamW(parameters).step({name: np.ones_like(a) for name, a in parameters.items()})
    assert (mha(x) != before).any()
    assert mha.W_q is parameters["W_q"]


def test_adamw_leaves_gradients_alone():
    gradients = some(seed=1)
    before = {name: array.copy() for name, array in gradients.items()}
    for array in gradients.values():
        array.flags.writeable = False
    AdamW(some()).step(gradients)
    for name, array in gradients.items():
        assert_same_bits(array, before[name])


def test_a_state_that_is_loaded_goes_on_with_the_same_bits():
    one, other = some(), some()
    first, second = AdamW(one, **OPTIONS), AdamW(other, **OPTIONS)
    for seed in range(1, 4):
        first.step(some(seed=seed))
    for name, array in other.items():
        array[...] = one[name]
    second.load_state_dict(first.state_dict())
    for seed in range(4, 7):
        first.step(some(seed=seed))
        second.step(some(seed=seed))
    for name, array in other.items():
        assert_same_bits(array, one[name])
    assert first.state_dict()["step"] == 6


def test_after_an_error_adamw_has_changed_nothing():
    parameters, optimizer = some(), None
    optimizer = AdamW(parameters)
    before = {name: array.copy() for name, array in parameters.items()}
    good = some(seed=1)
    without = {name: array for name, array in good.items() if name != "b"}
    for error, wrong in [
        (ValueError, without),
        (ValueError, {**good, "c": good["b"]}),
        (ValueError, {**good, "b": good["b"][:-1]}),
        (ValueError, {**good, "b": good["b"].astype(np.float64)}),
        (TypeError, {**good, "b": good["b"].astype(np.float16)}),
        (TypeError, {**good, "b": None}),
        (TypeError, list(good.values())),
    ]:
        with pytest.raises(error, match=r"^gradients(\['b'\])?: "):
            optimizer.step(wrong)
    with refused(ValueError, "lr"):
        optimizer.step(good, lr=-1.0)
    state = {name: array.copy() for name, array in optimizer.state_dict().items()}
    del state["exp_avg.b"]
    with pytest.raises(ValueError, match=r"^state: missing exp_avg\.b$"):
        optimizer.load_state_dict(state)
    with refused(ValueError, r"state\['step'\]"):
        optimizer.load_state_dict({**optimizer.state_dict(), "step": np.array(-1)})
    for name, array in parameters.items():
        assert_same_bits(array, before[name])
    assert all(not array.any() for array in optimizer.state_dict().values())


def test_the_message_about_gradients_has_all_names():
    optimizer = AdamW(some())
    gradients = {**some(seed=1), "c": np.zeros(3), "W": np.zeros((2, 2))}
    del gradients["b"]
    with pytest.raises(
        ValueError,
        match=r"^gradients: missing b; unexpected c; W: expected float32 \(40, 30\), "
        r"got float64 \(2, 2\)$",
    ):
        optimizer.step(gradients)


def test_what_cannot_be_trained_is_refused():
    mha = MultiHeadAttention(6, 2)
    mha.pack()
    with refused(ValueError, r"parameters\['W_q'\]"):
        AdamW(mha.parameters())
    for error, wrong in [
        (TypeError, [1.0]),
        (TypeError, np.zeros(3, np.float16)),
        (TypeError, np.zeros(3, int)),
    ]:
        with refused(error, r"parameters\['W'\]"):
            AdamW({"W": wrong})
    with refused(TypeError, "parameters"):
        AdamW([np.zeros(3)])


def test_an_array_with_two_names_is_refused_and_columns_apart_are_not():
    array = normal(6, 4)
    for one, other in [(array, array), (array, array[2:3]), (array[::2], array[:, 1:])]:
        with refused(ValueError, "parameters"):
            AdamW({"one": one, "other": other, "more": normal(3)})
    AdamW({"one": array[:, :2], "other": array[:, 2:], "more": array[:0]})
    AdamW({"one": array[::2], "other": array[1::2]})


def in_one_memory():
    """Gradients that lie in a parameter's memory, in a way that is not its own."""
    yield (
        "reversed",
        lambda optimizer: {
            name: array[::-1] for name, array in optimizer.parameters.items()
        },
    )
    yield (
        "exchanged",
        lambda optimizer: {
            "one": optimizer.parameters["other"],
            "other": optimizer.parameters["one"],
        },
    )
    yield "the same", lambda optimizer: dict(optimizer.parameters)
    yield (
        "transposed",
        lambda optimizer: {
            name: array.T for name, array in optimizer.parameters.items()
        },
    )
    for kind in ("exp_avg", "exp_avg_sq"):
        yield (
            kind,
            lambda optimizer, kind=kind: {
                name: optimizer.state_dict()[f"{kind}.{name}"]
                for name in optimizer.parameters
            },
        )
    yield (
        "moved",
        lambda optimizer: {
            name: array.base.reshape(-1)[1:40001].reshape(200, 200)
            for name, array in optimizer.parameters.items()
        },
    )


@pytest.mark.parametrize("case", list(in_one_memory()), ids=lambda case: case[0])
def test_gradients_in_memory_that_changes_are_those_of_before_the_step(case):
    def optimizer():
        base = normal(2, 40001)
        one, other = (row[:40000].reshape(200, 200) for row in base)
        made = AdamW({"one": one, "other": other}, **OPTIONS)
        made.step({"one": normal(200, 200, seed=1), "other": normal(200, 200, seed=2)})
        return made

    expected, actual = optimizer(), optimizer()
    expected.step({name: x.copy() for name, x in case[1](expected).items()})
    actual.step(case[1](actual))
    for name, array in expected.parameters.items():
        assert_same_bits(actual.parameters[name], array)
    for name, array in expected.state_dict().items():
        assert_same_bits(actual.state_dict()[name], array)


def test_a_gradient_apart_from_all_parameters_is_not_copied(monkeypatch):
    base = normal(6, 100)
    optimizer = AdamW({"one": base[0], "other": base[3:5]})
    gradients = {"one": base[1], "other": base[1:3]}
    found = _arrays.apart(gradients, optimizer.parameters.values())
    assert all(found[name] is array for name, array in gradients.items())
    gradients = {"one": base[0], "other": base[2:4]}
    found = _arrays.apart(gradients, optimizer.parameters.values())
    assert not any(np.shares_memory(base, array) for array in found.values())


def test_numbers_in_the_same_memory_are_neither_trained_nor_clipped():
    base = normal(100)
    for shape, strides in [
        ((3, 4), (0, 4)),
        ((3,), (0,)),
        ((5, 5), (4, 4)),
        ((4,), (2,)),
        ((3, 4), (12, 8)),
        ((2, 3, 4), (16, 0, 4)),
    ]:
        array = as_strided(base, shape, strides)
        with refused(ValueError, r"parameters\['W'\]"):
            AdamW({"W": array})
        with refused(ValueError, r"gradients\['W'\]"):
            clip_norm({"W": array}, 1.0)
    for shape, strides in [
        ((3, 1), (4, 0)),
        ((3, 0), (0, 0)),
        ((2, 3), (4, 8)),
        ((2, 3), (24, 8)),
        ((2, 2), (12, 8)),
        ((), ()),
    ]:
        AdamW({"W": as_strided(base, shape, strides)})
    AdamW({"W": base.reshape(10, 10).T[::-1, 1:4:2]})


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (ValueError, {"lr": -1.0}),
        (TypeError, {"lr": "0.1"}),
        (ValueError, {"betas": (0.9, 1.0)}),
        (ValueError, {"betas": (-0.1, 0.9)}),
        (ValueError, {"betas": (0.9,)}),
        (TypeError, {"betas": 0.9}),
        (ValueError, {"eps": 0.0}),
        (ValueError, {"weight_decay": -0.1}),
        (TypeError, {"weight_decay": None}),
        (ValueError, {"no_decay": ["c"]}),
        (TypeError, {"no_decay": "b"}),
    ],
)
def test_errors_of_adamw_name_the_option(error, option):
    with refused(error, next(iter(option))):
        AdamW(some(), **option)


# ---- bfloat16 ------------------------------------------------------------------------


@pytest.fixture
def bfloat16():
    return pytest.importorskip("ml_dtypes").bfloat16


def test_a_bfloat16_parameter_is_what_float32_gives_rounded(bfloat16):
    rounded = {name: np.asarray(x.astype(bfloat16)) for name, x in some().items()}
    exact = {name: x.astype(np.float32) for name, x in rounded.items()}
    one, other = AdamW(rounded, **OPTIONS), AdamW(exact, **OPTIONS)
    for seed in range(1, 9):
        gradients = some(seed=seed)
        one.step(gradients)
        other.step(gradients)
        for name, array in rounded.items():
            assert_same_bits(array, np.asarray(exact[name].astype(bfloat16)))
    state = one.state_dict()
    for name, array in other.state_dict().items():
        assert_same_bits(state[name], array)
    for name, array in exact.items():
        assert_same_bits(state[f"master.{name}"], array)
    assert state.keys() == other.state_dict().keys() | {f"master.{n}" for n in SHAPES}


def test_steps_that_bfloat16_cannot_hold_add_up(bfloat16):
    weight = np.ones(3, bfloat16)
    optimizer = AdamW({"W": weight}, lr=1e-4, weight_decay=0.0)
    for _ in range(100):  # of 0.0001 each, where the next number below 1 is 0.996
        optimizer.step({"W": np.ones(3, bfloat16)})
    assert_same_bits(weight, np.full(3, 0.99, bfloat16))


def test_a_bfloat16_gradient_is_its_numbers_in_float32(bfloat16):
    one, other = ({"W": normal(40, 500).astype(bfloat16)} for _ in range(2))
    gradient = normal(40, 500, seed=1).astype(bfloat16)
    first, second = AdamW(one, **OPTIONS), AdamW(other, **OPTIONS)
    for _ in range(2):
        first.step({"W": gradient})
        second.step({"W": gradient.astype(np.float32)})
    assert_same_bits(one["W"], other["W"])
    for layout in layouts(gradient):
        for parameter in layouts(normal(40, 500).astype(bfloat16)):
            optimizer = AdamW({"W": parameter}, **OPTIONS)
            for _ in range(2):
                optimizer.step({"W": layout})
            assert_same_bits(np.ascontiguousarray(parameter), one["W"])


def test_what_is_written_to_a_bfloat16_parameter_is_where_it_goes_on(bfloat16):
    weight = normal(300).astype(bfloat16)
    optimizer = AdamW({"W": weight}, **OPTIONS)
    optimizer.step({"W": normal(300, seed=1)})
    master = optimizer.state_dict()["master.W"].copy()
    weight[50:150] = normal(100, seed=2).astype(bfloat16)
    weight[7] = np.nan
    other = {"W": np.where(weight == master.astype(bfloat16), master, weight)}
    exact = AdamW(other, **OPTIONS)
    exact.load_state_dict(
        {n: x for n, x in optimizer.state_dict().items() if n != "master.W"}
    )
    for x in (optimizer, exact):
        x.step({"W": normal(300, seed=3)})
    assert_same_bits(optimizer.state_dict()["master.W"], other["W"])
    assert_same_bits(weight, other["W"].astype(bfloat16))


def test_gradients_in_the_memory_of_the_copy_are_those_of_before_the_step(bfloat16):
    expected, actual = (
        AdamW({"W": normal(40000).astype(bfloat16)}, **OPTIONS) for _ in range(2)
    )
    expected.step({"W": actual.state_dict()["master.W"][::-1].copy()})
    actual.step({"W": actual.state_dict()["master.W"][::-1]})
    assert_same_bits(actual.parameters["W"], expected.parameters["W"])


def test_gradients_of_other_dtypes_are_refused(bfloat16):
    optimizer = AdamW({"W": np.ones(3, bfloat16), "b": np.ones(3, np.float32)})
    good = {"W": np.ones(3, bfloat16), "b": np.ones(3, np.float32)}
    for error, wrong in [
        (ValueError, {"W": np.ones(3)}),
        (ValueError, {"W": np.ones(4, bfloat16)}),
        (ValueError, {"b": np.ones(3, bfloat16)}),
        (TypeError, {"W": np.ones(3, np.float16)}),
    ]:
        with pytest.raises(error, match=r"^gradients.*: expected .*, got"):
            optimizer.step(good | wrong)
    assert_same_bits(optimizer.parameters["W"], np.ones(3, bfloat16))
    with pytest.raises(ValueError, match=r"^state: missing master\.W$"):
        optimizer.load_state_dict(
            {n: x for n, x in optimizer.state_dict().items() if n != "master.W"}
        )


@pytest.mark.parametrize("shape", [(3, 4000), (), (0, 2)])
def test_clip_norm_scales_bfloat16_by_what_it_says(shape, bfloat16):
    gradient = np.asarray(normal(*shape).astype(bfloat16))
    exact = gradient.astype(np.float64)
    norm = math.sqrt((exact**2).sum())
    for array in (gradient.T, gradient.copy()):
        before = array.astype(np.float32)
        limit = 0.3 * norm or 1.0
        assert math.isclose(clip_norm({"W": array}, limit), norm, rel_tol=1e-12)
        wanted = before * np.float32(limit / (norm + 1e-6)) if norm else before
        assert_same_bits(array, np.asarray(wanted.astype(bfloat16)))


@needs_safetensors
def test_a_run_in_bfloat16_that_is_resumed_has_the_bits_of_one_that_is_not(
    tmp_path, bfloat16
):
    path = tmp_path / "run"

    def run():
        return AdamW({"W": normal(30, 20).astype(bfloat16)}, **OPTIONS)

    whole, first, second = run(), run(), run()
    for seed in range(6):
        whole.step({"W": normal(30, 20, seed=seed)})
        if seed < 3:
            first.step({"W": normal(30, 20, seed=seed)})
    training.save(path, first.parameters, first, step=3)
    assert training.load(path, second.parameters, second) == 3
    for seed in range(3, 6):
        second.step({"W": normal(30, 20, seed=seed)})
    assert_same_bits(second.parameters["W"], whole.parameters["W"])
    assert_same_bits(second.state_dict()["master.W"], whole.state_dict()["master.W"])


# ---- Clipping and schedule -----------------------------------------------------------


@pytest.mark.parametrize("dtype", EPS)
def test_clip_norm_is_its_formula(dtype):
    gradients = some(dtype)
    before = {name: array.copy() for name, array in gradients.items()}
    expected = math.sqrt(
        math.fsum((x.astype(np.float64) ** 2).sum() for x in before.values())
    )
    assert clip_norm(gradients, 1e6) == pytest.approx(expected, rel=1e-12)
    for name, array in gradients.items():
        assert_same_bits(array, before[name])
    norm = clip_norm(gradients, 2.0)
    assert norm == pytest.approx(expected, rel=1e-12)
    for name, array in gradients.items():
        limit = 2 / (expected + 1e-6)
        np.testing.assert_allclose(array, before[name] * limit, 4 * EPS[dtype])
    assert clip_norm(gradients, 5.0) == pytest.approx(2, rel=1e-5)


def test_clip_norm_is_that_of_torch():
    torch = pytest.importorskip("torch")
    gradients = some()
    tensors = [torch.nn.Parameter(torch.zeros(a.shape)) for a in gradients.values()]
    for tensor, array in zip(tensors, gradients.values(), strict=True):
        tensor.grad = torch.tensor(array)
    norm = torch.nn.utils.clip_grad_norm_(tensors, 0.5)
    assert clip_norm(gradients, 0.5) == pytest.approx(float(norm), rel=1e-5)
    for tensor, array in zip(tensors, gradients.values(), strict=True):
        np.testing.assert_allclose(array, tensor.grad, 1e-5)


def pairwise(numbers):
    """The sum of numbers in NumPy's order."""
    if len(numbers) > 128:
        half = len(numbers) // 2 // 8 * 8
        return pairwise(numbers[:half]) + pairwise(numbers[half:])
    total, whole = 0.0, len(numbers) // 8 * 8
    if whole:
        s = [0.0] * 8
        for i, x in enumerate(numbers[:whole]):
            s[i % 8] += x
        total = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
    for x in numbers[whole:]:
        total += x
    return total


@pytest.mark.parametrize("n", [1, 7, 8, 9, 128, 129, 143, 8191, 8192, 8193, 30000])
@pytest.mark.parametrize("dtype", EPS)
def test_clip_norm_sums_squares_in_its_order(dtype, n):
    gradient = normal(n, dtype=dtype)
    squares = [float(x) ** 2 for x in gradient]
    total = 0.0
    for start in range(0, n, 8192):
        total += pairwise(squares[start : start + 8192])
    assert clip_norm({"W": gradient}, 1e9, num_threads=2) == math.sqrt(total)


@pytest.mark.parametrize(
    ("bad", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_wrong_number_of_threads_changes_nothing(bad, error):
    parameter, gradient = np.ones(3), np.full(3, 2.0)
    optimizer = AdamW({"W": parameter})
    with pytest.raises(error, match="num_threads: expected"):
        optimizer.step({"W": gradient}, num_threads=bad)
    assert optimizer.state_dict()["step"] == 0
    assert (parameter == 1).all()
    for gradients in ({"W": gradient}, {}):
        with pytest.raises(error, match="num_threads: expected"):
            clip_norm(gradients, 1.0, num_threads=bad)
    assert (gradient == 2).all()


def test_clip_norm_has_the_same_bits_in_each_layout():
    start = normal(90, 200)
    expected = start.copy()
    norm = clip_norm({"W": expected}, 1.0)
    for array in layouts(start):
        assert clip_norm({"W": array}, 1.0) == norm
        assert_same_bits(np.ascontiguousarray(array), expected)


def test_squares_that_float32_cannot_hold_are_summed():
    gradients = {"W": np.full(4, 1e30, np.float32)}
    assert clip_norm(gradients, 1.0) == pytest.approx(2e30, rel=1e-6)
    np.testing.assert_allclose(gradients["W"], 0.5, 1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_norm_says_that_gradients_are_not_finite(value):
    assert not math.isfinite(clip_norm({"W": np.array([1, value])}, 1.0))


def test_errors_of_clip_norm_name_the_argument():
    array = np.ones(3)
    array.flags.writeable = False
    with refused(ValueError, r"gradients\['W'\]"):
        clip_norm({"W": array}, 1.0)
    other = np.ones(3)
    with refused(ValueError, "gradients"):
        clip_norm({"W": other, "V": other}, 1.0)
    with refused(ValueError, "max_norm"):
        clip_norm({"W": other}, 0.0)
    assert (other == 1).all()


@pytest.mark.parametrize("min_lr", [0.0, 0.02])
@pytest.mark.parametrize(("n_warm", "n_steps"), [(0, 50), (10, 50), (50, 50), (0, 0)])
def test_the_schedule_is_a_line_and_then_a_cosine(n_warm, n_steps, min_lr):
    for step in range(60):
        if step < n_warm:
            expected = 0.1 * (step + 1) / (n_warm + 1)
        elif step < n_steps:
            angle = math.pi * (step - n_warm) / (n_steps - n_warm)
            expected = min_lr + (0.1 - min_lr) * (1 + math.cos(angle)) / 2
        else:
            expected = min_lr
        rate = warmup_cosine(
            step, lr=0.1, warmup_steps=n_warm, total_steps=n_steps, min_lr=min_lr
        )
        assert rate == pytest.approx(expected, rel=1e-12, abs=1e-17)


def test_errors_of_the_schedule_name_the_argument():
    good = {"step": 3, "lr": 0.1, "warmup_steps": 4, "total_steps": 12, "min_lr": 0.01}
    warmup_cosine(**good)
    for error, name, wrong in [
        (ValueError, "step", -1),
        (TypeError, "step", 1.0),
        (ValueError, "lr", 0.0),
        (ValueError, "warmup_steps", -1),
        (ValueError, "total_steps", 3),
        (ValueError, "min_lr", 0.2),
        (ValueError, "min_lr", -0.1),
    ]:
        with refused(error, name):
            warmup_cosine(**{**good, name: wrong})


# ---- Files ---------------------------------------------------------------------------


class Run:
    """A little training run, of a layer whose tied matrix is in Fortran order."""

    def __init__(self, seed=0, names=("W", "b", "scale")):
        rng = np.random.default_rng(seed)
        self.parameters = {
            "W": np.asfortranarray(rng.standard_normal((8, 5)).astype(np.float32)),
            "b": rng.standard_normal(5),
            "scale": np.array(1.5),
        }
        self.parameters = {name: self.parameters[name] for name in names}
        self.optimizer = AdamW(self.parameters, lr=0.1)
        self.rng = np.random.default_rng(seed + 1)

    def go(self, n_steps):
        for _ in range(n_steps):
            self.optimizer.step(
                {
                    name: self.rng.standard_normal(a.shape).astype(a.dtype)
                    for name, a in self.parameters.items()
                }
            )

    def save(self, path, step):
        training.save(path, self.parameters, self.optimizer, step=step, rng=self.rng)

    def load(self, path):
        return training.load(path, self.parameters, self.optimizer, rng=self.rng)

    def bits(self):
        arrays = {**self.parameters, **self.optimizer.state_dict()}
        digest = hashlib.sha256(repr(self.rng.bit_generator.state).encode())
        for array in arrays.values():
            digest.update(array.tobytes())
        return digest.hexdigest()


@needs_safetensors
def test_a_run_that_is_resumed_has_the_bits_of_one_that_is_not(tmp_path):
    whole, first, second = Run(), Run(), Run(seed=7)
    whole.go(10)
    first.go(4)
    first.save(tmp_path / "run.safetensors", 4)
    assert second.load(tmp_path / "run.safetensors") == 4
    assert second.bits() == first.bits()
    second.go(6)
    assert second.bits() == whole.bits()


@needs_safetensors
def test_a_saved_file_has_the_parameters_for_other_readers(tmp_path):
    run, path = Run(), tmp_path / "run.safetensors"
    run.go(1)
    run.save(path, 1)
    tensors = checkpoints.read(path)
    for name, array in run.parameters.items():
        assert_same_bits(tensors[name], np.asarray(array, order="C"))
    alone = {name: np.zeros_like(array) for name, array in run.parameters.items()}
    assert training.load(path, alone) == 1
    for name, array in alone.items():
        assert_same_bits(array, run.parameters[name])


@needs_safetensors
@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_each_kind_of_generator_goes_on(kind, tmp_path):
    rng = np.random.Generator(getattr(np.random, kind)(5))
    rng.random(7, np.float32)  # half a word is left
    training.save(tmp_path / "run", {}, rng=rng)
    expected = rng.random(9, np.float32)
    other = np.random.Generator(getattr(np.random, kind)(6))
    training.load(tmp_path / "run", {}, rng=other)
    assert_same_bits(other.random(9, np.float32), expected)


@needs_safetensors
def test_after_an_error_of_load_nothing_has_changed(tmp_path):
    path = tmp_path / "run.safetensors"
    saved, other = Run(), Run(seed=3)
    saved.go(2)
    saved.save(path, 2)
    more = tmp_path / "more.safetensors"
    training.save(more, {**saved.parameters, "c": np.zeros(2)}, saved.optimizer)
    bare = tmp_path / "bare.safetensors"
    training.save(bare, saved.parameters, rng=saved.rng)
    foreign = tmp_path / "foreign.safetensors"
    from safetensors.numpy import save_file

    save_file({"W": np.zeros(2)}, foreign)
    before = other.bits()
    twister = np.random.Generator(np.random.MT19937(0))
    for wrong, rng, message in [
        (more, None, "unexpected c"),
        (more, other.rng, "expected a file .* state of a generator"),
        (bare, other.rng, r"missing optimizer\.step, optimizer\.exp_avg\.W"),
        (foreign, None, "expected a file of attnpy.training.save"),
        (path, twister, "expected the state of a MT19937"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            training.load(wrong, other.parameters, other.optimizer, rng=rng)
        assert str(caught.value).startswith(f"{wrong}: ")
    other.parameters["b"] = np.zeros(6)
    with pytest.raises(ValueError, match=r"b: expected shape \(6,\), got \(5,\)"):
        other.load(path)
    del other.parameters["b"]
    with pytest.raises(FileNotFoundError):
        other.load(tmp_path / "none.safetensors")
    other.parameters = other.optimizer.parameters
    assert other.bits() == before


@needs_safetensors
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_leaves_the_file_that_was_there(error, tmp_path, monkeypatch):
    path, run = tmp_path / "run.safetensors", Run()
    run.save(path, 1)
    before = path.read_bytes()
    left = []

    def fail(array):
        left.extend(os.listdir(tmp_path))  # the new file, half written
        raise error

    monkeypatch.setattr("attnpy.checkpoints.writing._data", fail)
    with pytest.raises(error):
        run.save(path, 2)
    assert len(left) == 2
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


@needs_safetensors
def test_an_interrupt_of_save_leaves_the_old_or_the_new_file(tmp_path):
    path, run = tmp_path / "run", Run(names=["b"])
    run.save(path, 1)
    old = path.read_bytes()
    run.save(path, 2)
    new, seen = path.read_bytes(), set()
    path.write_bytes(old)
    for _ in interrupted_everywhere(lambda: run.save(path, 2)):
        assert os.listdir(tmp_path) == [path.name]
        seen.add(path.read_bytes())
        path.write_bytes(old)
    assert seen == {old, new}


@needs_safetensors
def test_saved_files_are_those_of_the_format_for_every_dtype_and_layout(tmp_path):
    from safetensors.numpy import load_file

    dtypes = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    dtypes += [">f4", ">i8", *(["bfloat16"] if has_bfloat16() else [])]
    arrays = {"": np.ones(3), "ä/\0\n": np.ones(2, "f4"), "none": np.ones((2, 0, 3))}
    for dtype in dtypes:
        array = np.arange(30).reshape(2, 3, 5).astype(dtype)
        arrays |= {dtype: array, f"{dtype}.F": array.T, f"{dtype}.0": array[1, 2, 3]}
        arrays[f"{dtype}.steps"] = array[:, ::-1, ::2]
    training.save(tmp_path / "run", arrays, step=3)
    read = load_file(tmp_path / "run")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype.newbyteorder("=")
        assert read[name].tobytes() == array.astype(read[name].dtype).tobytes()
        assert read[name].shape == array.shape
    size = int.from_bytes((tmp_path / "run").read_bytes()[:8], "little")
    assert size % 8 == 0  # arrays lie as the processor reads them


FULL = """
import os, resource, signal, sys
import numpy as np
from attnpy import training
path = sys.argv[1]
training.save(path, {"W": np.zeros(10)}, step=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    training.save(path, {"W": np.zeros(1000)}, step=2)
except OSError as error:
    assert error.filename == path, error
else:
    raise SystemExit("there was room")
assert os.listdir(os.path.dirname(path)) == ["run"]
print(training.load(path, {"W": np.zeros(10)}))
"""


@needs_safetensors
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path):
    assert assert_runs(FULL, tmp_path / "run").strip() == "1"


@needs_safetensors
def test_errors_of_save_name_the_argument(tmp_path):
    layer = SelfAttention(4, 2)
    with refused(TypeError, "parameters"):
        training.save(tmp_path / "run", layer)
    with refused(ValueError, "parameters"):
        training.save(tmp_path / "run", {"optimizer.W": np.zeros(2)})
    with refused(ValueError, "step"):
        training.save(tmp_path / "run", {}, step=-1)
    for name in ("__metadata__", "\ud800"):
        with refused(ValueError, "parameters"):
            training.save(tmp_path / "run", {name: np.zeros(2)})
    with refused(TypeError, "parameters"):
        training.save(tmp_path / "run", {3: np.zeros(2)})
    for wrong in (np.zeros(2, "O"), np.zeros(2, "M8[s]"), "text", None):
        with refused(TypeError, r"parameters\['W'\]"):
            training.save(tmp_path / "run", {"W": wrong})
    with refused(TypeError, "rng"):
        training.save(tmp_path / "run", {}, rng=0)
    with pytest.raises(FileNotFoundError):
        training.save(tmp_path / "no" / "run", {})
    assert os.listdir(tmp_path) == []


def test_without_safetensors_there_is_an_error_that_says_what_to_install(
    monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    training.save(tmp_path / "run", {})  # needs nothing
    with pytest.raises(ImportError, match=r"pip install 'attnpy\[weights\]'"):
        training.load(tmp_path / "run", {})


# ---- Files from anybody --------------------------------------------------------------


def with_metadata(path, **metadata):
    """The file of a run with other metadata."""
    from safetensors.numpy import load_file, save_file

    save_file(load_file(path), path, metadata)


def state_text(kind, **changes):
    """A state of a generator as files have it, with other values at these names."""
    rng = np.random.Generator(getattr(np.random, kind)(5))
    state = json.loads(
        json.dumps(rng.bit_generator.state, default=lambda x: x.tolist())
    )
    for name, value in changes.items():
        (state["state"] if name in state["state"] else state)[name] = value
    return json.dumps(state)


def wrong_states():
    """Kinds of generators, and states that none of them can have."""
    numbers = {"PCG64": 128, "PCG64DXSM": 128}
    for kind, bits in numbers.items():
        for name in ("state", "inc"):
            for value in (-1, 2**bits, 1.0, True, "1", None, [1]):
                yield kind, name, value
    for kind, name, length, bits in [
        ("MT19937", "key", 624, 32),
        ("Philox", "counter", 4, 64),
        ("Philox", "key", 2, 64),
        ("Philox", "buffer", 4, 64),
    ]:
        good = [1] * length
        for value in (
            [*good, 1], good[1:], [-1, *good[1:]], [2**bits, *good[1:]], [good], 1, {},
            [1.5, *good[1:]], [True, *good[1:]], [None, *good[1:]], [[1], *good[1:]],
        ):  # fmt: skip
            yield kind, name, value
    for value in (-1, 625, 700, 10**8, 2**31, 2**64, 3.0, True, [3], None):
        yield "MT19937", "pos", value
    for value in (-1, -(2**31), 5, 2**31, 2**64, 3.0, True, [3], None):
        yield "Philox", "buffer_pos", value
    for kind in ("PCG64", "PCG64DXSM", "Philox", "SFC64"):
        for value in (-1, 2, 2**64, 0.0, False, None):
            yield kind, "has_uint32", value
        for value in (-1, 2**32, 1.0, None):
            yield kind, "uinteger", value
        yield kind, "more", 1
        yield kind, "bit_generator", "MT19937"
        yield kind, "bit_generator", ["PCG64"]


@needs_safetensors
def test_a_state_that_no_generator_has_is_refused_before_numpy_sees_it(tmp_path):
    path, parameters = tmp_path / "run", {"W": np.zeros(2)}
    training.save(path, {"W": np.ones(2)})
    for kind, name, value in wrong_states():
        with_metadata(path, step="1", rng=state_text(kind, **{name: value}))
        rng = np.random.Generator(getattr(np.random, kind)(6))
        before = repr(rng.bit_generator.state)
        with pytest.raises(
            ValueError, match=f"expected the state of a {kind}"
        ) as caught:
            training.load(path, parameters, rng=rng)
        assert str(caught.value).startswith(f"{path}: "), (kind, name, value)
        assert repr(rng.bit_generator.state) == before
        assert not parameters["W"].any()


@needs_safetensors
def test_the_ends_of_a_states_ranges_are_loaded(tmp_path):
    path = tmp_path / "run"
    training.save(path, {})
    for kind, name, value in [
        ("PCG64", "state", 2**128 - 1),
        ("PCG64DXSM", "inc", 2**128 - 1),
        ("MT19937", "pos", 0),
        ("MT19937", "pos", 624),
        ("MT19937", "key", [2**32 - 1] * 624),
        ("Philox", "buffer_pos", 0),
        ("Philox", "buffer_pos", 4),
        ("Philox", "counter", [2**64 - 1, 1, 2**63, 0]),
        ("SFC64", "uinteger", 2**32 - 1),
    ]:
        with_metadata(path, step="1", rng=state_text(kind, **{name: value}))
        rng = np.random.Generator(getattr(np.random, kind)(6))
        training.load(path, {}, rng=rng)
        state = rng.bit_generator.state
        loaded = state["state"][name] if name in state["state"] else state[name]
        assert np.array_equal(loaded, value)
        rng.random(2000)


@needs_safetensors
@pytest.mark.parametrize(
    "text",
    [
        "", "[" * 10**5, "[" * 5000, '{"state":' * 900 + "1" + "}" * 900, "1" * 10**4,
        "[1]", "null", "{}", '{"bit_generator": "PCG64"}', '{"state": 1}', "NaN",
        '{"bit_generator": "PCG64", "state": {}, "a": 1}', " " * 10**6 + "{}",
    ],
    ids=lambda text: f"{text[:12]}...{len(text)}",
)  # fmt: skip
def test_text_that_is_no_state_is_refused(text, tmp_path):
    path = tmp_path / "run"
    training.save(path, {})
    with_metadata(path, step="1", rng=text)
    with pytest.raises(ValueError, match="expected the state of a PCG64") as caught:
        training.load(path, {}, rng=np.random.default_rng())
    assert len(str(caught.value)) < 500


@needs_safetensors
@pytest.mark.parametrize(
    "step", ["-1", "", "1.0", " 1", "1_0", "\u0661", "9" * 16, "9" * 5000, "1\n"]
)
def test_a_step_that_save_does_not_write_is_refused(step, tmp_path):
    path = tmp_path / "run"
    training.save(path, {})
    with_metadata(path, step=step)
    with pytest.raises(ValueError, match=r"with a step, got metadata .'step'"):
        training.load(path, {})


@needs_safetensors
def test_the_last_step_that_can_be_counted_is_saved_and_no_later_one(tmp_path):
    training.save(tmp_path / "run", {}, step=2**53)
    assert training.load(tmp_path / "run", {}) == 2**53
    with refused(ValueError, "step"):
        training.save(tmp_path / "run", {}, step=2**53 + 1)


@needs_safetensors
def test_generators_that_are_not_known_are_neither_saved_nor_loaded(tmp_path):
    class Other(np.random.PCG64):
        """One whose state may be anything."""

    rng = np.random.Generator(Other(1))
    with refused(TypeError, "rng"):
        training.save(tmp_path / "run", {}, rng=rng)
    training.save(tmp_path / "run", {}, rng=np.random.default_rng())
    with refused(TypeError, "rng"):
        training.load(tmp_path / "run", {}, rng=rng)


@needs_safetensors
def test_arrays_of_other_shapes_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "run"
    training.save(path, {"W": np.zeros(10**6)})
    monkeypatch.setattr(checkpoints.Checkpoint, "__getitem__", pytest.fail)
    with pytest.raises(ValueError, match=r"W: expected shape \(3,\), got \(1000000,\)"):
        training.load(path, {"W": np.zeros(3)})


@needs_safetensors
def test_a_wrong_step_of_the_optimizer_names_the_file(tmp_path):
    path, run = tmp_path / "run", Run()
    steps = {"optimizer.step": np.array(-1)}
    from safetensors.numpy import load_file, save_file

    run.save(path, 1)
    save_file(load_file(path) | steps, path, {"step": "1"})
    with pytest.raises(ValueError, match=r"state\['step'\]: expected") as caught:
        training.load(path, run.parameters, run.optimizer)
    assert str(caught.value).startswith(f"{path}: ")


# ---- Interrupts ----------------------------------------------------------------------


@needs_safetensors
def test_an_interrupt_of_load_leaves_the_run_as_it_was_or_loads_all_of_it(tmp_path):
    path, saved = tmp_path / "run", Run(names=["b"])
    saved.go(2)
    saved.save(path, 2)
    after = saved.bits()
    other = Run(seed=3, names=["b"])
    before, kept = other.bits(), copy.deepcopy(other)

    def load():
        other.load(path)

    for interrupted in interrupted_everywhere(load, opcodes_of=[_parameters.put]):
        assert other.bits() in ((before, after) if interrupted else (after,))
        for name, array in kept.parameters.items():
            other.parameters[name][...] = array
        other.optimizer.load_state_dict(kept.optimizer.state_dict())
        other.rng.bit_generator.state = kept.rng.bit_generator.state


def test_an_interrupt_of_load_state_dict_changes_nothing_or_all():
    layer, other = MultiHeadAttention(6, 2), MultiHeadAttention(6, 2)
    new = layer.state_dict()
    old = {name: array.copy() for name, array in other.state_dict().items()}

    def load():
        other.load_state_dict(new)

    for _ in interrupted_everywhere(load, opcodes_of=[_parameters.put]):
        own = other.state_dict()
        assert any(
            all(own[name].tobytes() == state[name].tobytes() for name in own)
            for state in (old, new)
        )
        other.load_state_dict(old)
