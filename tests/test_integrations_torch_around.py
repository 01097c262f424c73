"""accelerate() among PyTorch's other parts: each works with it as without."""

import multiprocessing
import os
import threading

import pytest

torch = pytest.importorskip("torch")

from support.torch_tools import Wrapper, one_thread  # noqa: E402, F401
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from attnpy.integrations.torch import accelerate, disable, enable  # noqa: E402


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.RMSNorm(16), nn.Linear(16, 4)
    )


# ---- Processes -----------------------------------------------------------------------


class Products(Dataset):
    def __init__(self):
        self.layer = network()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad():
            square = torch.full((300, 300), float(index)) @ torch.ones(300, 300)
            return self.layer(square[:1, :8] / 300)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_compute(start):
    data = Products()
    expected = list(DataLoader(data, batch_size=2))
    with accelerate():
        list(DataLoader(data, batch_size=2))  # starts threads, which a fork loses
        loader = DataLoader(
            data, batch_size=2, num_workers=1, multiprocessing_context=start
        )
        found = list(loader)
    torch.testing.assert_close(found, expected)
    if start == "spawn":
        return  # such a worker has no block and no `enable`
    enable()
    try:
        found = list(loader)
    finally:
        disable()
    torch.testing.assert_close(found, expected)


def train_a_part(rank, store, results):
    """Train on this process's part of the data."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(store, 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with accelerate():
        for _ in range(3):
            optimizer.zero_grad()
            model(normal(4, 8, seed=rank)).square().sum().backward()
            optimizer.step()
    results.put([one.detach().numpy().tolist() for one in model.parameters()])
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(
    not torch.distributed.is_available(), reason="PyTorch without distributed"
)
def test_two_processes_train_one_model(tmp_path):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [
        spawn.Process(
            target=train_a_part, args=(rank, str(tmp_path / "store"), results)
        )
        for rank in range(2)
    ]
    for one in processes:
        one.start()
    first, second = results.get(timeout=300), results.get(timeout=300)
    for one in processes:
        one.join()
    assert first == second
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        losses = [model(normal(4, 8, seed=rank)).square().sum() for rank in range(2)]
        (sum(losses) / 2).backward()
        optimizer.step()
    for one, other in zip(first, model.parameters(), strict=True):
        torch.testing.assert_close(
            torch.tensor(one), other.detach(), atol=1e-4, rtol=1e-4
        )


def test_threads_in_blocks_and_outside_of_them_meet():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, batch_first=True, dropout=0.0)
    x, wrong = normal(3, 7, 32), []
    plain = layer(x).detach()
    with accelerate():
        ours = layer(x).detach()

    def work(number):
        for i in range(number, number + 8):
            if i % 2:
                with accelerate():
                    found, expected = layer(x), ours
            else:
                found, expected = layer(x), plain
            torch.autograd.grad(found.sum(), list(layer.parameters()))
            if not torch.equal(found, expected):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


# ---- Transforms, modes and other modules ---------------------------------------------


def test_transforms_of_functions():
    model, x = network(), normal(6, 8)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    def derivatives():
        return (
            torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x),
            torch.func.hessian(lambda x: loss(parameters, x))(x[0]),
            torch.func.jacrev(model)(x[0]),
            torch.func.jacfwd(model)(x[0]),
            torch.func.jvp(model, (x,), (x,)),
        )

    expected = derivatives()
    with accelerate():
        found = derivatives()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    model, x = network(), normal(5, 8)

    def step():
        model.zero_grad()
        with torch.autocast("cpu", dtype):
            y = model(x)
        y.float().square().sum().backward()
        return [y.detach(), *(one.grad.clone() for one in model.parameters())]

    expected = step()
    with accelerate():
        found = step()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, atol=0.1, rtol=0.1)


def test_compiled_models_keep_their_bits():
    model, x = network(), normal(5, 8)
    expected = model(x)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with accelerate():
        found = compiled(x)
        found.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.filterwarnings("ignore")
def test_quantized_modules_keep_their_bits():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    quantized = torch.ao.quantization.quantize_dynamic(
        model, {nn.Linear}, dtype=torch.qint8
    )
    x = normal(3, 16)
    integers = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    expected, mean = quantized(x), torch.mean(integers, 1)
    with accelerate():
        assert torch.equal(quantized(x), expected)
        assert torch.equal(torch.mean(integers, 1).dequantize(), mean.dequantize())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_matrices_keep_their_bits(layout):
    matrix = normal(5, 6).relu().to_sparse()
    matrix = matrix.to_sparse_csr() if layout == "csr" else matrix
    dense = normal(6, 3, seed=1)

    def products():
        added = torch.addmm(torch.ones(5, 3), matrix, dense)
        return matrix @ dense, added, torch.sparse.mm(matrix, dense)

    expected = products()
    with accelerate():
        assert all(map(torch.equal, products(), expected))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors(layout):
    nested = torch.nested.nested_tensor([normal(3, 8), normal(5, 8)], layout=layout)
    torch.manual_seed(0)
    linear, norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def results():
        results = functional.gelu(linear(nested)), functional.silu(nested), norm(nested)
        return [row for one in results for row in one.unbind()]

    expected = results()
    with accelerate():
        torch.testing.assert_close(results(), expected)


class Named(torch.Tensor):
    """A subclass with nothing of its own."""


MET = []


class Wrapped(Wrapper):
    """Notes the operators that it meets."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        MET.append(func.name())
        args = [one.tensor if isinstance(one, cls) else one for one in args]
        found = func(*args, **(kwargs or {}))
        return cls(found) if isinstance(found, torch.Tensor) else found


CALLS = {
    "aten::mm": lambda x: x @ torch.eye(8),
    "aten::gelu": functional.gelu,
    "aten::silu": functional.silu,
    "aten::native_layer_norm": lambda x: functional.layer_norm(x, (8,)),
    "aten::rsqrt": lambda x: functional.rms_norm(x, (8,)),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", CALLS)
def test_subclasses_meet_the_operators_that_they_meet_without(name):
    x = normal(3, 8)
    MET.clear()
    CALLS[name](Wrapped(x))
    expected = list(MET)
    MET.clear()
    with accelerate():
        assert type(CALLS[name](x.as_subclass(Named))) is Named
        CALLS[name](Wrapped(x))
    assert expected == MET
    assert name in expected


def test_tensors_without_memory():
    with accelerate():
        with torch.device("meta"):
            assert network()(torch.ones(2, 8)).is_meta
        with FakeTensorMode():
            found = network()(torch.ones(2, 8))
            found.sum().backward()
    assert found.shape == (2, 4)


def orthogonal():
    return nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))


def spectral():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).eval()


def pruned():
    return prune.l1_unstructured(nn.Linear(8, 8), "weight", 0.5)


@pytest.mark.parametrize("make", [orthogonal, spectral, pruned])
def test_weights_that_are_computed(make):
    torch.manual_seed(0)
    layer, x = make(), normal(3, 8)
    expected = layer(x)
    with accelerate():
        for _ in range(3):
            torch.testing.assert_close(layer(x), expected)


def test_adapters_that_are_merged_into_a_packed_weight_and_taken_out():
    torch.manual_seed(0)
    base = nn.Linear(20, 12).requires_grad_(False)
    down, up = nn.Linear(20, 2, bias=False), nn.Linear(2, 12, bias=False)
    x, difference = normal(5, 20), (up.weight @ down.weight).detach()
    with accelerate(), torch.no_grad():
        for _ in range(3):
            plain, adapted = base(x), base(x) + up(down(x))
        base.weight.data += difference
        for _ in range(3):
            torch.testing.assert_close(base(x), adapted)
        base.weight.data -= difference
        for _ in range(3):
            torch.testing.assert_close(base(x), plain)
