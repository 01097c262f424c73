"""Makes PyTorch's own functions and modules use attnpy within a block.

Names are replaced while any thread is in a block of `accelerate`. The replacement
checks whether the calling thread is in one, and whether attnpy supports the call;
otherwise it calls PyTorch's function.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, _fused_sdp_choice, nn
from torch._C import _is_torch_function_mode_enabled
from torch._compile import _disable_dynamo
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.backends.cuda import flash_sdp_enabled, math_sdp_enabled
from torch.nn import functional
from torch.nn.attention.bias import CausalBias
from torch.nn.modules.module import register_module_module_registration_hook
from torch.overrides import (
    _get_current_function_mode_stack,
    _get_overloaded_args,
    has_torch_function,
)

from attnpy import _checks
from attnpy.integrations.torch import _kernels, _tensors, _transformers_norms
from attnpy.integrations.torch._attention import attend_at_once, is_traced
from attnpy.integrations.torch._blocks import (
    Block,
    Options,
    innermost,
    process,
    thread,
)
from attnpy.integrations.torch._report import Report
from attnpy.integrations.torch._rms_norm import rms_norm
from attnpy.integrations.torch._sdpa import attend_as_torch, known_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_STANDING_FOR_OTHERS = (FakeTensor, FunctionalTensor)


def accelerate(
    module: nn.Module | None = None,
    /,
    *,
    attention: bool = True,
    linear: bool = True,
    norms: bool = True,
    activations: bool = True,
    pack: bool = True,
    num_threads: int | None = None,
    report: bool = False,
) -> Any:
    """Make PyTorch use attnpy on the CPU: within a `with` statement, or in a module.

    A model then gives the same bits for a row whatever its batch, its padding and the
    number of threads, unless it mixes experts, and is faster. It needs no change: the
    operators beneath its modules are computed by attnpy, in training and inference, in
    float64, float32, bfloat16 and float16.

    Parameters
    ----------
    module : torch.nn.Module, optional
        Accelerate calls of this module and of its children, by hooks, in all threads.
        The backward pass is accelerated only if it runs in a block or after `enable`.
    attention : bool, optional
        `torch.nn.functional.scaled_dot_product_attention`,
        `torch.nn.MultiheadAttention`, `torch.nn.TransformerEncoderLayer`.
    linear : bool, optional
        Products: `torch.nn.Linear`, ``@``, `torch.matmul`, `torch.addmm`, `torch.bmm`
        and the like, and the sums over rows by which embeddings are pooled.
    norms : bool, optional
        `torch.nn.LayerNorm`, `torch.nn.RMSNorm`, and the RMSNorm modules of
        Transformers' models.
    activations : bool, optional
        GELU and its approximation, SiLU, tanh.
    pack : bool, optional
        Keep a copy of each `torch.nn.Parameter` that a product reads, in the order in
        which it is read. It is made when a parameter is used a second time without a
        change, doubles its memory, and lives as long as the parameter. Changes no bit.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.
    report : bool, optional
        Count what attnpy computes, and what is left to PyTorch and why, and print it at
        the end.

    Returns
    -------
    context manager, or Handle
        A block may be entered in several threads, each accelerated while it is in its
        own block, and nested; the innermost block counts. It gives the `Report`, or
        None. For a module, a handle with the methods ``remove()`` and ``report``.

    Raises
    ------
    TypeError, ValueError
        If `num_threads` is not an integer, or less than 1, a flag no bool, or `module`
        no module.

    See Also
    --------
    enable : for all of a process.
    check_invariance : finds what depends on the batch.

    Notes
    -----
    Results differ from PyTorch's by rounding, and in the weights that dropout drops;
    gradients of attention's gradients are refused.

    Operators are replaced where PyTorch looks up kernels for the CPU, beneath autograd,
    autocast, `torch.func`, modes and subclasses, which therefore work as before. That
    also counts for the backward pass, which is accelerated if it runs within the block.
    Left to PyTorch are other devices, integers, complex, sparse, nested and quantized
    tensors, tensors without elements, convolutions of images whose windows overlap, and
    sums of whole tensors. Compiled code has kernels of its own: `torch.compile` keeps
    its speed and its bits. Other threads keep PyTorch's bits. A call of one of these
    operators that is left costs 1 to 4 microseconds more, outside of blocks as well
    until the last one ends; if other threads run then, also after that.

    Attention and `torch.rms_norm` are replaced by name: the names in PyTorch, and those
    by which other modules have imported `scaled_dot_product_attention` or
    `multi_head_attention_forward`. A function kept under another name, such as an
    argument's default, stays PyTorch's. The RMSNorm classes of Transformers get another
    ``forward`` as long as names are replaced; a class is known by what its methods do,
    so that subclasses and classes that were changed are computed as they say. Left to
    PyTorch are, besides the above, subclasses, other modes, `torch.func` and
    forward-mode derivatives, and calls for which `torch.nn.attention.sdpa_kernel`
    leaves PyTorch no kernel. While a subclass or mode handles a call by its
    `__torch_function__`, names mean PyTorch's functions in all threads; compiled with
    ``fullgraph=True`` such a call is refused.

    Packed weights follow every change that PyTorch knows of, those by the attribute
    ``data`` of parameters, and the steps of optimizers. A call also compares 16 numbers
    of a weight, to notice if its memory was written to by other means, as by an array
    of NumPy that shares it. ``pack=False`` notices each number.

    `torch.compile` compiles a function separately for calls in a block.
    `torch.jit.script` is refused within a block. `torch.export` within a block exports
    the operator ``attnpy::attention``, which exists where `attnpy.integrations.torch`
    is imported.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import accelerate
    >>> layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    >>> x = torch.randn(2, 10, 64)
    >>> with accelerate(), torch.no_grad():
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x), atol=1e-5)
    True
    """
    if num_threads is not None:
        num_threads = _checks.count(num_threads, "num_threads")
    options = _options(
        attention=attention,
        linear=linear,
        norms=norms,
        activations=activations,
        pack=pack,
        num_threads=num_threads,
    )
    counts = Report() if _checks.flag(report, "report") else None
    if module is None:
        return _block(options, counts)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"module: expected a torch.nn.Module, got {type(module).__name__}; options "
            "are keywords"
        )
    return Handle(module, options, counts)


def _options(*, num_threads: int | None, **flags: bool) -> Options:
    """Check the options of a block."""
    if num_threads is not None:
        num_threads = _checks.count(num_threads, "num_threads")
    flags = {name: _checks.flag(flag, name) for name, flag in flags.items()}
    return Options(num_threads=num_threads, **flags)


def _install(options: Options) -> None:
    if options.linear or options.norms or options.activations:
        _kernels.install()


@contextmanager
def _block(options: Options, counts: Report | None) -> Iterator[Report | None]:
    block = Block(options, counts, _names)
    _install(options)
    try:
        try:
            block.open()
            yield counts
        finally:
            block.close()
    finally:
        block.close()  # Ctrl-C may have interrupted the first time
        if not _names.blocks:
            _kernels.remove()
    if counts is not None:
        print(counts)


class Handle:
    """What `accelerate` returns for a module, to undo it.

    Attributes
    ----------
    report : Report, or None
        Of all calls of the module so far, if it was asked for.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import accelerate
    >>> model = torch.nn.Linear(8, 4)
    >>> handle = accelerate(model, report=True)
    >>> y = model(torch.ones(3, 8))
    >>> handle.report.computed
    {'addmm': 1}
    >>> handle.remove()
    """

    def __init__(
        self, module: nn.Module, options: Options, report: Report | None
    ) -> None:
        self.report = report
        self._options = options
        self._standing = Block(options, report, _names)  # keeps names and kernels
        _install(options)
        _names.blocks.add(self._standing)
        _names.settle()
        self._hooks = []
        for one in (module, *module.children()):
            self._hooks += [
                one.register_forward_pre_hook(self._begin, prepend=True),
                one.register_forward_hook(self._end, always_call=True),
            ]

    def _begin(self, *_: Any) -> None:
        block = Block(self._options, self.report, _names)
        block.siblings.append(block)

    def _end(self, *_: Any) -> None:
        for block in reversed(thread.blocks):
            if block.options is self._options:
                block.siblings.remove(block)
                return

    def remove(self) -> None:
        """Let the module's calls be PyTorch's again. A second call changes nothing."""
        for hook in self._hooks:
            hook.remove()
        _names.blocks.discard(self._standing)
        _names.settle()
        if not _names.blocks:
            _kernels.remove()


def enable(
    *,
    attention: bool = True,
    linear: bool = True,
    norms: bool = True,
    activations: bool = True,
    pack: bool = True,
    num_threads: int | None = None,
) -> None:
    """Make PyTorch use attnpy on the CPU, in all threads, until `disable` is called.

    Parameters
    ----------
    attention, linear, norms, activations, pack, num_threads
        As of `accelerate`, whose blocks count more in their threads. A second call
        replaces the options of the first one.

    Raises
    ------
    TypeError, ValueError
        As `accelerate`.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import disable, enable
    >>> enable()
    >>> y = torch.nn.Linear(8, 4)(torch.ones(3, 8))  # by attnpy
    >>> disable()
    """
    options = _options(
        attention=attention,
        linear=linear,
        norms=norms,
        activations=activations,
        pack=pack,
        num_threads=num_threads,
    )
    _install(options)
    block = Block(options, None, _names)
    _names.blocks.add(block)
    before, process[:] = process[:], [block]
    _names.blocks.difference_update(before)
    _names.settle()


def disable() -> None:
    """Undo `enable`. Without it nothing changes.

    Examples
    --------
    >>> from attnpy.integrations.torch import disable
    >>> disable()
    """
    before, process[:] = process[:], []
    _names.blocks.difference_update(before)
    _names.settle()
    if not _names.blocks:
        _kernels.remove()


# ---- What is for attnpy --------------------------------------------------------------


def _is_ours(*tensors: Tensor | None) -> bool:
    """Tell whether these are plain tensors on the CPU."""
    compiling = torch.compiler.is_compiling()
    block = innermost()
    if block is None or not block.options.attention or (is_traced() and not compiling):
        return False
    for x in tensors:
        if x is None or _tensors.is_plain(x):
            continue
        if not (compiling and isinstance(x, _STANDING_FOR_OTHERS) and x.is_cpu):
            return False
    return True


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute scaled_dot_product_attention."""
    tensors = (query, key, value)
    block, collected = innermost(), thread.weights
    if block is None or not block.options.attention:
        return NotImplemented
    if not getattr(query, "is_cpu", True):  # before anything that takes time
        return NotImplemented
    # What is compiled cannot ask.
    if not torch.compiler.is_compiling() and not math_sdp_enabled():
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        if not _has_kernel(*arguments, scale=scale, enable_gqa=enable_gqa):
            return NotImplemented
    options: dict[str, Any] = {"scale": scale, "num_threads": block.options.num_threads}
    if attn_mask is not None:
        attn_mask, is_causal = known_mask(attn_mask, is_causal)
    if is_causal:
        options["causal"] = "top_left"
    if attn_mask is None and dropout_p == 0 and collected is None:
        output = attend_at_once(query, key, value, options, as_torch=True)
        if output is not None:
            return output
    if not _is_ours(*tensors, attn_mask):
        return NotImplemented
    if any(x is None or x.numel() == 0 for x in tensors):
        return NotImplemented  # of nothing PyTorch does not check the shapes
    output, weights, _ = attend_as_torch(
        tensors, attn_mask, dropout_p, enable_gqa, options, collected is not None
    )
    if collected is not None and weights is not None:
        collected.append(weights)
    return output


def _has_kernel(*arguments: Any, **options: Any) -> bool:
    """Tell whether `sdpa_kernel` leaves PyTorch a kernel for a call."""
    if type(arguments[3]) is CausalBias:
        return bool(flash_sdp_enabled())
    return int(_fused_sdp_choice(*arguments, **options)) >= 0


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *arguments: Any,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    **options: Any,
) -> Any:
    """Compute multi_head_attention_forward with its weights.

    Without them it calls scaled_dot_product_attention by itself. So it does here, and
    the weights are those of that call.
    """
    if not need_weights or not _is_ours(query):
        return NotImplemented
    if options.get("attn_mask") is None and options.get("is_causal"):
        return NotImplemented  # an error
    options["is_causal"] = False  # a hint, which the mask makes true
    collected: list[Tensor] = []
    before = thread.weights
    try:
        try:
            thread.weights = collected
            output, _ = _PYTORCH["multi_head_attention_forward"](
                query, key, value, *arguments, need_weights=False, **options
            )
        finally:
            thread.weights = before
    finally:
        thread.weights = before  # Ctrl-C may have interrupted the first time
    if len(collected) != 1:
        return NotImplemented
    (weights,) = collected
    if average_attn_weights:
        weights = weights.mean(dim=1)
    return output, weights.squeeze(0) if query.dim() == 2 else weights


def _self_attention(
    x: Tensor,
    num_heads: int,
    projections: tuple[Tensor, Tensor, Tensor, Tensor],
    mask: Tensor | None,
    mask_type: int | None,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return output (B, L, E) and weights (B, H, L, L) of a layer that is not trained.

    The projections are weight and bias of queries, keys and values, and of the output.
    A mask is not 0 where a key is hidden: of type 0 it is (L, L), of type 1 (B, L), of
    type 2 (B, H, L, L).
    """
    qkv_weight, qkv_bias, out_weight, out_bias = projections
    qkv = functional.linear(x, qkv_weight, qkv_bias)  # (B, L, 3 * E)
    heads = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    if mask is not None:
        mask = ~mask.bool()
        mask = mask[:, None, None, :] if mask_type == 1 else mask
    block = innermost()
    options = {"num_threads": block and block.options.num_threads}
    attended, weights, _ = attend_as_torch(
        heads.unbind(), mask, 0.0, False, options, need_weights
    )  # (B, H, L, D)
    joined = attended.transpose(1, 2).flatten(2)  # (B, L, E)
    return functional.linear(joined, out_weight, out_bias), weights


def _native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Compute what nn.MultiheadAttention does at once where nothing is trained."""
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    if (
        query is not key
        or key is not value
        or not _is_untrained(query, mask, *projections)
    ):
        return NotImplemented
    output, weights = _self_attention(
        query, num_head, projections, mask, mask_type, need_weights
    )
    if weights is not None and average_attn_weights:
        weights = weights.mean(dim=1)
    return output, weights


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """Compute what nn.TransformerEncoderLayer does at once where nothing is trained."""
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    if not _is_untrained(src, mask, *projections):
        return NotImplemented
    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)

    def norm(x: Tensor, parameters: tuple[Tensor, Tensor]) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], *parameters, eps)

    def attend(x: Tensor) -> Tensor:
        return _self_attention(x, num_heads, projections, mask, mask_type, False)[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else hidden.relu_()
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = attend(norm(src, first)).add_(src)
        return feed_forward(norm(src, second)).add_(src)
    src = norm(attend(src).add_(src), first)
    return norm(feed_forward(src).add_(src), second)


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    block = innermost()
    if block is None or not block.options.norms:
        return NotImplemented
    return rms_norm(block.options, input, normalized_shape, weight, eps)


def _is_untrained(*tensors: Tensor | None) -> bool:
    """Tell whether tensors are for attnpy, and as a native function takes them."""
    return (
        _is_ours(*tensors)
        and not torch.is_autocast_enabled("cpu")
        and not any(x is not None and x.numel() == 0 for x in tensors)
        and not (torch.is_grad_enabled() and any(map(_tensors.needs_gradient, tensors)))
    )


# ---- Names ---------------------------------------------------------------------------


_OURS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attend,
    "multi_head_attention_forward": _multi_head_attention,
    "_native_multi_head_attention": _native_multi_head_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "rms_norm": _rms_norm,
}
_HOMES = {  # the modules of those that are not in `torch`
    "scaled_dot_product_attention": functional,
    "multi_head_attention_forward": functional,
    "script": torch.jit,
}
_PYTORCH: dict[str, Callable[..., Any]] = {
    name: getattr(_HOMES.get(name, torch), name) for name in (*_OURS, "script")
}


def _or_pytorch(
    name: str, ours: Callable[..., Any], theirs: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the function for a name: attnpy's, or where that is none, PyTorch's."""

    @functools.wraps(theirs)
    def call(*arguments: Any, **keywords: Any) -> Any:
        given = (*arguments, *keywords.values())
        handled = has_torch_function(given) or _is_torch_function_mode_enabled()
        if handled and not _are_handlers_neutral(given):
            return _by_handlers(theirs, arguments, keywords)
        try:
            result = ours(*arguments, **keywords)
        except (TypeError, ValueError):  # PyTorch says what is wrong, or does it
            result = NotImplemented
        block = innermost()
        if block is not None and block.report is not None:
            left = result is NotImplemented
            block.report.add(name, "see the page on PyTorch" if left else None)
        if result is not NotImplemented:
            return result
        if handled and any(type(x) is CausalBias for x in given):
            return _by_handlers(theirs, arguments, keywords)
        return theirs(*arguments, **keywords)

    call.__prepare_scriptable__ = _refuse_script  # type: ignore[attr-defined]
    return call


_NEUTRAL = ("torch.utils._device", "torch.fx.", "torch._export.", "torch.export.")


def _are_handlers_neutral(given: tuple[Any, ...]) -> bool:
    """Tell whether no `__torch_function__` has anything to say about attention.

    The modes for a default device and of `torch.export` have not, and of a CausalBias
    attnpy knows the meaning.
    """
    modes = _get_current_function_mode_stack()
    return all(type(mode).__module__.startswith(_NEUTRAL) for mode in modes) and all(
        type(x) in (Tensor, CausalBias) for x in _get_overloaded_args(given)
    )


def _by_handlers(
    theirs: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Call PyTorch's function, which calls `__torch_function__` of a mode or subclass.

    That compares the function it gets with what PyTorch's names mean.
    """
    if torch.compiler.is_compiling():
        return _between_graphs(theirs, arguments, keywords)
    return _names.call_with_pytorchs(theirs, arguments, keywords)


@_disable_dynamo
def _uncompiled(*arguments: Any) -> Any:
    return _names.call_with_pytorchs(*arguments)


def _between_graphs(*arguments: Any) -> Any:
    return _uncompiled(*arguments)


vars(
    _between_graphs
).update(  # what torch.compiler.disable would set, without its import
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="accelerate: expected no tensor subclass or mode with a "
    "__torch_function__ in what is compiled with fullgraph=True in a block, got a call "
    "of attention with one",
)


def _refuse_script() -> Any:
    raise RuntimeError(
        "accelerate: expected torch.jit.script to be called outside of the block, "
        "as a script cannot use attnpy, got a call within"
    )


@functools.wraps(torch.jit.script)
def _script(obj: Any, *arguments: Any, _frames_up: int = 0, **keywords: Any) -> Any:
    """Script what attention is not in, and refuse modules before they are begun.

    A module that fails halfway can never be scripted again.
    """
    script = _PYTORCH["script"]
    if innermost() is None:  # another thread is in a block
        keywords["_frames_up"] = _frames_up + 2
        return _names.call_with_pytorchs(script, (obj, *arguments), keywords)
    if isinstance(obj, nn.Module) and not isinstance(obj, torch.jit.ScriptModule):
        _refuse_script()
    return script(obj, *arguments, _frames_up=_frames_up + 1, **keywords)


_REPLACEMENTS = {
    name: _or_pytorch(name, ours, _PYTORCH[name]) for name, ours in _OURS.items()
} | {"script": _script}


class _Place(NamedTuple):
    """A name in a module."""

    names: dict[str, Any]
    name: str

    def choose(self, ours: bool) -> None:
        """Let the name mean one of the two functions, if it means the other."""
        functions = (_PYTORCH[self.name], _REPLACEMENTS[self.name])
        if self.names.get(self.name) is functions[not ours]:
            self.names[self.name] = functions[ours]


class _Method(NamedTuple):
    """The method `forward` of a class of modules."""

    kind: Any
    theirs: Callable[..., Any]
    ours: Callable[..., Any]

    def choose(self, ours: bool) -> None:
        """As a name; a method that somebody else has replaced stays theirs."""
        functions = (self.theirs, self.ours)
        if vars(self.kind).get("forward") is functions[not ours]:
            self.kind.forward = functions[ours]


@functools.cache
def _method_of(kind: Any) -> _Method | None:
    """Return the method of a class of modules, or None if it is no RMSNorm."""
    form = _transformers_norms.form_of(kind)
    if form is None:
        return None

    def forward(module: nn.Module, x: Tensor) -> Any:
        block = None if torch.compiler.is_compiling() else innermost()
        if block is None or not block.options.norms:
            return NotImplemented
        return _transformers_norms.compute(form, kind, block.options, module, x)

    return _Method(
        kind, kind.forward, _or_pytorch(kind.__name__, forward, kind.forward)
    )


_is_owned = operator.methodcaller("_is_owned")  # as threading.Condition asks a lock


class _Names:
    """The names, which mean attnpy's functions while any block is open.

    What they should mean follows from two sets, which change in one step each. So an
    exception at any point, such as that of Ctrl-C, leaves nothing to be made good but
    another `settle`.
    """

    def __init__(self) -> None:
        self.blocks: set[Block] = set()
        self.handlers: set[object] = set()  # calls that need PyTorch's names
        # A thread may come back: by a signal's handler, or a generator that is freed.
        self.lock = threading.RLock()
        self.are_ours: bool | None = False  # None: some are, some are not
        self.n_modules = 0  # when they were looked through
        self.places: list[_Place | _Method] = []
        self.hook: Any = None  # sees modules that are built while the names are ours
        self.filled: list[Any] = []  # caches, when the names were PyTorch's

    def settle(self, is_more: bool = False) -> None:
        """Let all names mean what they should, if there may be more, these too."""
        held = _is_owned(self.lock)
        try:
            with self.lock:
                if is_more and self.are_ours:
                    self._look()
                    for place in self.places:
                        place.choose(True)
                while self.are_ours is not (ours := self._should_be_ours()):
                    self._choose(ours)
        finally:  # an exception may come between the block and the lock's release
            while not held and _is_owned(self.lock):
                self.lock.release()

    def look_again(self, *_: Any) -> None:
        """Let names mean ours also in modules that were imported since."""
        if self.n_modules != len(sys.modules):
            self.settle(is_more=True)

    def call_with_pytorchs(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """Call a function while all names mean PyTorch's, in other threads as well."""
        call = object()
        try:
            try:
                self.handlers.add(call)
                self.settle()
                return function(*arguments, **keywords)
            finally:
                self.handlers.discard(call)
                self.settle()
        finally:
            self.handlers.discard(call)
            self.settle()

    def _should_be_ours(self) -> bool:
        return bool(self.blocks) and not self.handlers

    def _look(self) -> None:
        if self.n_modules != len(sys.modules):
            n_modules = len(sys.modules)
            self.places = list(_find_places())
            self.n_modules = n_modules

    def _choose(self, ours: bool) -> None:
        self.are_ours = None
        self._look()
        if ours:
            self.filled = list(_filled_caches())
            if self.hook is None:
                self.hook = register_module_module_registration_hook(self.look_again)
        elif self.hook is not None:
            self.hook.remove()
            self.hook = None
        for place in self.places:
            place.choose(ours)
        if not ours:
            for cache in _filled_caches():
                if cache not in self.filled:
                    cache.cache_clear()
        self.are_ours = ours


# What PyTorch knows about its functions. It looks up their names when it first needs
# them, and has to do so again if that was in a block.
_CACHES = (
    ("torch.overrides", "get_ignored_functions"),
    ("torch.overrides", "get_testing_overrides"),
    ("torch.overrides", "_get_overridable_functions"),
    ("torch.overrides", "_get_tensor_methods"),
    ("torch._dynamo.variables.torch", "get_overridable_functions"),
    ("torch._dynamo.trace_rules", "get_torch_obj_rule_map"),
)


def _filled_caches() -> Iterator[Any]:
    for module, name in _CACHES:
        cache: Any = getattr(sys.modules.get(module), name, None)
        if hasattr(cache, "cache_info") and cache.cache_info().currsize:
            yield cache


_names = _Names()


def _find_places() -> Iterator[_Place | _Method]:
    """Find the functions in PyTorch's modules, and where others have imported them.

    A module that was imported in a block has the replacements. Methods of classes are
    found where the classes are defined.
    """
    names = []
    for name in _PYTORCH:
        yield _Place(vars(_HOMES.get(name, torch)), name)
        if name in _HOMES:
            names.append(name)
    for module_name, module in list(sys.modules.items()):
        try:  # without loading what is lazy
            attributes = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        if module_name.partition(".")[0] == "torch":
            continue
        for name in names:
            meaning = attributes.get(name)
            if meaning is _PYTORCH[name] or meaning is _REPLACEMENTS[name]:
                yield _Place(attributes, name)
        if module_name.startswith(_transformers_norms.PACKAGES):
            for kind in list(attributes.values()):
                if isinstance(kind, type) and kind.__module__ == module_name:
                    method = _method_of(kind)
                    if method is not None:
                        yield method
