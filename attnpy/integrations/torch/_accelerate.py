"""PyTorch's own functions and modules, made to use attnpy for a while.

Names are replaced while anybody is in a block of `accelerate`. What they then name asks
whether this thread is, and whether a call is for attnpy; else PyTorch's function runs.
"""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import functional

from attnpy import _checks
from attnpy.integrations.torch import _tensors
from attnpy.integrations.torch._attention import attend_at_once, is_traced
from attnpy.integrations.torch._sdpa import attend_as_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STANDING_FOR_OTHERS = (FakeTensor, FunctionalTensor)


class _Settings:
    """What holds in a block of accelerate()."""

    def __init__(self, num_threads: int | None) -> None:
        self.num_threads = num_threads


class _Thread(threading.local):
    """The blocks of accelerate() that a thread is in, and who wants weights there."""

    blocks: tuple[_Settings, ...] = ()
    weights: list[Tensor] | None = None


_thread = _Thread()


@contextmanager
def accelerate(*, num_threads: int | None = None) -> Iterator[None]:
    """Make PyTorch use attnpy for attention on the CPU, within a `with` statement.

    `torch.nn.functional.scaled_dot_product_attention`, `torch.nn.MultiheadAttention`,
    `torch.nn.TransformerEncoderLayer` and what is made of these, in training and not.

    Parameters
    ----------
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    context manager
        It may be entered in several threads, where each is accelerated while it is in a
        block of its own, and in blocks within others, of which the innermost counts.

    Raises
    ------
    TypeError, ValueError
        If `num_threads` is not an integer, or less than 1.

    Notes
    -----
    What is not for attnpy goes to PyTorch as ever: other devices, dtypes and layouts,
    nested tensors, subclasses, other modes, `torch.func`, forward-mode derivatives,
    tensors without elements, and calls that are errors. Results differ from PyTorch's
    by rounding, and by which weights dropout drops; gradients of gradients are refused.

    Names are replaced: those of PyTorch, and those by which other modules have imported
    `scaled_dot_product_attention` or `multi_head_attention_forward`. A function that
    somebody keeps under another name, such as an argument's default, stays PyTorch's.

    `torch.compile` compiles a function again where it is called in a block, and calls
    in one what it compiled there. `torch.export` within a block exports the operator
    ``attnpy::attention``, which exists where `attnpy.integrations.torch` is imported.

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
    block = _Settings(num_threads)
    _names.replace()
    try:
        _thread.blocks = (*_thread.blocks, block)
        yield
    finally:
        _thread.blocks = tuple(one for one in _thread.blocks if one is not block)
        _names.restore()


# ---- What is for attnpy --------------------------------------------------------------


def _is_ours(*tensors: Tensor | None) -> bool:
    """Tell whether these are tensors on the CPU that are nothing else besides."""
    compiling = torch.compiler.is_compiling()
    if not _thread.blocks or (is_traced() and not compiling):
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
    blocks, collected = _thread.blocks, _thread.weights
    if not blocks:
        return NotImplemented
    options: dict[str, Any] = {"scale": scale, "num_threads": blocks[-1].num_threads}
    if is_causal:
        options["causal"] = "top_left"
    if attn_mask is None and dropout_p == 0 and collected is None:
        output = attend_at_once(query, key, value, options, as_torch=True)
        if output is not None:
            return output
    if not _is_ours(*tensors, attn_mask) or any(x.numel() == 0 for x in tensors):
        return NotImplemented  # of nothing PyTorch does not check the shapes
    output, weights, _ = attend_as_torch(
        tensors, attn_mask, dropout_p, enable_gqa, options, collected is not None
    )
    if collected is not None and weights is not None:
        collected.append(weights)
    return output


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
    before, _thread.weights = _thread.weights, collected
    try:
        output, _ = _PYTORCH["multi_head_attention_forward"](
            query, key, value, *arguments, need_weights=False, **options
        )
    finally:
        _thread.weights = before
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
    options = {"num_threads": _thread.blocks[-1].num_threads}
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


def _is_untrained(*tensors: Tensor | None) -> bool:
    """Tell whether tensors are for attnpy, and as a native function takes them."""
    return (
        _is_ours(*tensors)
        and not torch.is_autocast_enabled("cpu")
        and not any(x is not None and x.numel() == 0 for x in tensors)
        and not (torch.is_grad_enabled() and any(map(_tensors.needs_gradient, tensors)))
    )


# ---- Names ---------------------------------------------------------------------------


class _Place(NamedTuple):
    """A name in a module."""

    names: dict[str, Any]
    name: str

    def change(self, old: object, new: object) -> None:
        """Let the name mean something else, if it still means what it did."""
        if self.names.get(self.name) is old:
            self.names[self.name] = new


_OURS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attend,
    "multi_head_attention_forward": _multi_head_attention,
    "_native_multi_head_attention": _native_multi_head_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
_PYTORCH: dict[str, Callable[..., Any]] = {
    name: getattr(torch if name.startswith("_") else functional, name) for name in _OURS
}


def _or_pytorch(name: str) -> Callable[..., Any]:
    """Return the function for a name: attnpy's, or where that is none, PyTorch's."""
    ours, theirs = _OURS[name], _PYTORCH[name]

    @functools.wraps(theirs)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            result = ours(*arguments, **keywords)
        except (TypeError, ValueError):  # PyTorch says what is wrong, or does it
            result = NotImplemented
        return theirs(*arguments, **keywords) if result is NotImplemented else result

    return call


_REPLACEMENTS = {name: _or_pytorch(name) for name in _OURS}


class _Names:
    """The names, which mean attnpy's functions while there is any block."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_blocks = 0
        self.n_modules = 0  # when they were looked through
        self.places: list[_Place] = []
        self.compiler_was_there = False

    def replace(self) -> None:
        """Begin a block."""
        with self.lock:
            self.n_blocks += 1
            if self.n_blocks > 1:
                return
            self.compiler_was_there = _COMPILER in sys.modules
            if self.n_modules != len(sys.modules):
                self.n_modules = len(sys.modules)
                self.places = list(_find_places())
            for place in self.places:
                place.change(_PYTORCH[place.name], _REPLACEMENTS[place.name])

    def restore(self) -> None:
        """End a block."""
        with self.lock:
            self.n_blocks -= 1
            if self.n_blocks > 0:
                return
            for place in self.places:
                place.change(_REPLACEMENTS[place.name], _PYTORCH[place.name])
            if _COMPILER in sys.modules and not self.compiler_was_there:
                sys.modules[_COMPILER].clear_lru_cache()


# What torch.compile knows about functions of PyTorch. It looks up their names when it
# is first imported, and has to do so again if that was in a block.
_COMPILER = "torch._dynamo.trace_rules"
_names = _Names()


def _find_places() -> Iterator[_Place]:
    """Find PyTorch's functions in its modules, and where others have imported them."""
    yield from (_Place(vars(torch), name) for name in _OURS if name.startswith("_"))
    names = [name for name in _OURS if not name.startswith("_")]
    yield from (_Place(vars(functional), name) for name in names)
    for module_name, module in list(sys.modules.items()):
        try:  # without loading what is lazy
            attributes = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        found = [name for name in names if attributes.get(name) is _PYTORCH[name]]
        if found and module_name.partition(".")[0] != "torch":
            yield from (_Place(attributes, name) for name in found)
