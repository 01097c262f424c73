"""Attention for the models of Hugging Face Transformers.

`register` adds an implementation: `attn_implementation="attnpy"`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

try:
    import torch
    from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
    from transformers.modeling_utils import AttentionInterface, PreTrainedModel
    from transformers.utils.output_capturing import _active_collector
except ImportError as error:
    raise ImportError(
        "attnpy.integrations.huggingface: expected PyTorch and Transformers 5.2 to be "
        f"installed (pip install torch 'transformers>=5.2'), got: {error}"
    ) from error

from attnpy import _checks
from attnpy.integrations.torch import _tensors, attention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.nn import Module

__all__ = ["attention_forward", "attention_mask", "register"]


def __dir__() -> list[str]:
    return __all__


# Keywords that models pass to attention and that do not change its result: arguments of
# the whole model, and hints for other kernels.
LEFT_ALONE = frozenset(
    {
        "cache_position",
        "deterministic",
        "labels",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "mm_token_type_ids",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "seq_idx",
        "special_tokens_mask",
        "token_type_ids",
        "use_cache",
    }
)

RESERVED = "eager", "flash", "flex_attention", "sdpa"


def register(name: str = "attnpy") -> str:
    """Add attnpy's attention to the implementations that models can choose.

    Parameters
    ----------
    name : str, optional
        The name of the implementation.

    Returns
    -------
    name : str
        The same, for ``attn_implementation=register()``.

    Raises
    ------
    ValueError
        If Transformers already has that name, or gives it another meaning.

    See Also
    --------
    attention_forward : describes what is honoured, and what is refused.

    Examples
    --------
    >>> import torch
    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> from attnpy.integrations import huggingface
    >>> config = LlamaConfig(
    ...     num_hidden_layers=2,
    ...     hidden_size=64,
    ...     intermediate_size=128,
    ...     num_attention_heads=4,
    ...     num_key_value_heads=2,
    ...     vocab_size=100,
    ... )
    >>> model = AutoModelForCausalLM.from_config(
    ...     config, attn_implementation=huggingface.register()
    ... )
    >>> tokens = torch.tensor([[1, 2, 3, 4]])
    >>> scores = model(tokens).logits
    >>> model.set_attn_implementation("eager")
    >>> torch.allclose(model(tokens).logits, scores, atol=1e-5)
    True
    """
    if not (isinstance(name, str) and name.isidentifier()) or any(
        word in name for word in RESERVED
    ):
        raise ValueError(
            "name: expected letters, digits and underscores, and none of the words "
            f"{', '.join(RESERVED)}, which Transformers looks for, got {name!r}"
        )
    if AttentionInterface().get(name, attention_forward) is not attention_forward:
        raise ValueError(
            f"name: expected one that is new to Transformers, got {name!r}"
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    return name


def attention_mask(*args: Any, **options: Any) -> Tensor | None:
    """Make the mask of a call, for Transformers.

    Parameters
    ----------
    *args, **options
        The arguments of ``transformers.masking_utils.sdpa_mask``.

    Returns
    -------
    mask : Tensor, shape (B, 1, Lq, Lk), or None
        Booleans, True where a query may attend. For models that may also have their own
        attention: numbers to add to the scores, as in eager attention. None if every
        query may attend to every key.

    Raises
    ------
    ValueError
        If the model only has its own attention.
    """
    config = options.get("config")
    chosen = getattr(config, "_attn_implementation", None)
    make = sdpa_mask if _takes_booleans(type(config), chosen) else eager_mask
    # Not left out where it is causal: layers do not all know whether they are.
    mask: Tensor | None = make(*args, **{**options, "allow_is_causal_skip": False})
    return mask


def attention_forward(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of a model's layer, for Transformers.

    Parameters
    ----------
    module : Module
        The layer. Dropout applies only while it is in training mode.
    query : Tensor, shape (B, H, Lq, D)
        On the CPU, like all other tensors.
    key : Tensor, shape (B, Hk, Lk, D)
        `H` must be a multiple of `Hk`.
    value : Tensor, shape (B, Hk, Lk, Dv)
    attention_mask : Tensor, broadcast to (B, H, Lq, Lk), or None
        Booleans, True where a query may attend, or numbers to add to the scores. It
        contains everything that a model knows about visibility, so `is_causal` and
        `sliding_window` count only if it is None, as in eager attention.
    dropout : float, optional
        The probability of dropping a weight; PyTorch's generator decides which.
    scaling : float, optional
        Factor of the dot products; by default ``1 / sqrt(D)``.
    is_causal : bool, optional
        Hide the keys after each query's position; the last query sees the last key.
    sliding_window : int, optional
        A query sees the keys at a distance below this.
    softcap : float, optional
        ``c`` turns a scaled score s into ``c * tanh(s / c)``.
    position_bias : Tensor, broadcast to (B, H, Lq, Lk), optional
        Added to the scores. It may be given together with any mask.
    s_aux : Tensor, shape (H,), optional
        One more logit for each head, in the denominator of the softmax only.
    sinks : Tensor, shape (B, H, Lq, 1), optional
        The same for each query.
    indices : Tensor of int, shape (B, Lq, N), optional
        The only keys that each query may see, among those otherwise visible.
    block_indices : Tensor of int, shape (B, G, Lq, N), optional
        The same for blocks of ``module.indexer.block_size`` keys, or -1 for none, in
        `G` groups of heads.
    cu_seq_lens_q, cu_seq_lens_k : Tensor of int, shape (n + 1,), optional
        The offsets of `n` sequences that lie end to end in a batch of 1 and do not see
        each other, whatever the mask is. Both must be equal.
    output_attentions : bool, optional
        Return the weights. A model called with ``output_attentions=True`` gets them
        even if it does not pass the option on.
    **others
        Keywords that change no result, such as `position_ids`; None and False; nothing
        else.

    Returns
    -------
    output : Tensor, shape (B, Lq, H, Dv)
    weights : Tensor, shape (B, H, Lq, Lk), or None
        After dropout.

    Raises
    ------
    TypeError
        If an argument has the wrong kind, or is unknown.
    ValueError
        If a tensor is not on the CPU, shapes do not fit together, or a number is out of
        its range.

    Notes
    -----
    A query that may see nothing, such as padding on the left, has output 0; the eager
    attention of Transformers gives it the mean of all values. No other query depends on
    it.
    """
    _refuse_unknown(others, module)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"module: expected a torch.nn.Module, got {type(module).__name__}"
        )
    _refuse_tensor(query)
    for name, value_of, n_axes in (
        ("sinks", sinks, 4),
        ("indices", indices, 3),
        ("block_indices", block_indices, 4),
    ):
        _refuse_axes(value_of, name, n_axes)
    masks = [
        _of_indices(indices, key),
        _of_blocks(block_indices, module, query, key),
        _of_sequences(cu_seq_lens_q, cu_seq_lens_k, query, key),
    ]
    biases = [position_bias]
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    if attention_mask is None:
        options |= _pattern(_flag(is_causal, "is_causal"), sliding_window)
    elif _is_boolean(attention_mask):
        masks.append(attention_mask)
    else:
        biases.append(attention_mask)
    known = isinstance(dropout, (int, float)) and not isinstance(dropout, bool)
    if not known or not 0 <= dropout <= 1:
        raise (ValueError if known else TypeError)(
            f"dropout: expected a number from 0 to 1, got {dropout!r}"
        )
    if module.training and dropout > 0:
        seed = torch.randint(2**63 - 1, (), device="cpu")
        options |= {"dropout": dropout, "dropout_seed": seed}
    wanted = _flag(output_attentions, "output_attentions")
    try:
        results = attention(
            query,
            key,
            value,
            mask=_joined(torch.logical_and, masks),
            bias=_joined(torch.add, biases),
            return_weights=wanted or _are_collected(),
            return_lse=sinks is not None,
            **options,
        )
    except (TypeError, ValueError) as error:
        with _checks.renamed(scale="scaling", sinks="s_aux"):
            raise error
    output, *weights = results if isinstance(results, tuple) else (results,)
    if sinks is not None:  # of the softmax, they take their part afterwards
        lse = weights.pop()
        part = torch.sigmoid(lse[..., None] - sinks).to(output.dtype)  # (B, H, Lq, 1)
        output, *weights = (result * part for result in (output, *weights))
    return output.transpose(1, 2).contiguous(), weights[0] if weights else None


@torch.compiler.assume_constant_result  # it looks into sources
def _takes_booleans(config: Any, chosen: object) -> bool:
    """Tell whether all models of a kind of configuration pass on boolean masks.

    Others may add a mask to their own scores; models that only do that are refused.
    """
    return _judged(config, chosen, len(PreTrainedModel.__subclasses__()))


@functools.lru_cache
def _judged(config: Any, chosen: object, n_models: int) -> bool:
    """Check all models of a kind of configuration, again if there are new ones."""
    kinds = [m for m in _below(PreTrainedModel) if m.config_class is config]
    if kinds and all(map(_is_of_its_own, kinds)):
        raise ValueError(
            f"attn_implementation: expected 'eager' for models of {config.__name__}, "
            f"which have their own attention whatever is chosen, got {chosen!r}"
        )
    return bool(kinds) and all(map(_hands_on, kinds))


def _uses_interface(kind: Any) -> bool:
    """Tell whether Transformers finds its interface in a model's source."""
    return bool(getattr(kind, "_can_set_attn_implementation", bool)())


def _is_of_its_own(kind: Any) -> bool:
    # Models from elsewhere may have no source to look into.
    return kind.__module__.startswith("transformers.") and not _uses_interface(kind)


def _hands_on(kind: Any) -> bool:
    supports_sdpa = getattr(kind, "_supports_sdpa", False)
    return kind.is_backend_compatible() or (supports_sdpa and _uses_interface(kind))


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield all subclasses of a class."""
    for derived in kind.__subclasses__():
        yield derived
        yield from _below(derived)


def _refuse_unknown(others: dict[str, Any], module: Module) -> None:
    """Refuse keywords that might change the result."""
    for name, value in others.items():
        if name not in LEFT_ALONE and value is not None and value is not False:
            raise TypeError(
                f"{name}: expected a keyword that attnpy's attention knows, got one "
                f"from {type(module).__name__} that it does not; "
                "attn_implementation='eager' may"
            )


def _flag(value: bool | None, name: str) -> bool:
    return value is not None and _tensors.flag(value, name)


def _refuse_axes(value: Tensor | None, name: str, n_axes: int) -> None:
    """Refuse what is no tensor with so many axes."""
    if value is None:
        return
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    if value.dim() != n_axes:
        raise ValueError(
            f"{name}: expected {n_axes} axes, got shape {tuple(value.shape)}"
        )


def _refuse_tensor(query: Tensor) -> None:
    """Refuse tensors that need another implementation."""
    if not isinstance(query, torch.Tensor):
        raise TypeError(f"query: expected a torch.Tensor, got {type(query).__name__}")
    if not (query.is_cpu or query.is_meta):
        raise ValueError(
            f"query: expected a CPU tensor, got one on device {str(query.device)!r}, "
            "for which there is attn_implementation='sdpa'"
        )
    if query.dim() != 4:
        raise ValueError(
            f"query: expected shape (B, H, Lq, D), got {tuple(query.shape)}"
        )


def _is_boolean(mask: Tensor) -> bool:
    """Tell a boolean mask from one that is added to the scores."""
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"attention_mask: expected a tensor, got {type(mask).__name__}")
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise TypeError(
            "attention_mask: expected booleans, True where a query may attend, or "
            f"numbers to add to the scores, got {mask.dtype}"
        )
    return mask.dtype is torch.bool


def _pattern(causal: bool, sliding_window: int | None) -> dict[str, Any]:
    """Return attention's options for visibility without a mask."""
    window = None
    if sliding_window is not None:
        far = _checks.count(sliding_window, "sliding_window") - 1
        window = (far, None if causal else far)
    return {"causal": causal, "window": window}


def _of_indices(indices: Tensor | None, key: Tensor) -> Tensor | None:
    """Return the mask of chosen keys, (B, 1, Lq, Lk)."""
    if indices is None:
        return None
    seen = indices.new_zeros((*indices.shape[:2], key.shape[2]), dtype=torch.bool)
    return seen.scatter(-1, indices.long(), True)[:, None]


def _of_blocks(
    indices: Tensor | None, module: Any, query: Tensor, key: Tensor
) -> Tensor | None:
    """Return the mask of chosen blocks of keys, (B, H, Lq, Lk)."""
    if indices is None:
        return None
    size, n_keys = module.indexer.block_size, key.shape[2]
    n_blocks = -(-n_keys // size)
    indices = indices.long().masked_fill(indices < 0, n_blocks)  # a block to drop
    seen = indices.new_zeros((*indices.shape[:3], n_blocks + 1), dtype=torch.bool)
    seen = seen.scatter(-1, indices, True)[..., :n_blocks]
    seen = seen.repeat_interleave(size, dim=-1)[..., :n_keys]
    return seen.repeat_interleave(query.shape[1] // indices.shape[1], dim=1)


def _of_sequences(
    starts: Tensor | None, key_starts: Tensor | None, query: Tensor, key: Tensor
) -> Tensor | None:
    """Return the mask of sequences end to end, (L, L)."""
    if starts is None and key_starts is None:
        return None
    if starts is None or key_starts is None or not torch.equal(starts, key_starts):
        raise ValueError(
            "cu_seq_lens_k: expected those of the queries, cu_seq_lens_q, got others"
        )
    n_batches, _, n_queries, _ = query.shape
    if n_batches != 1 or not starts[-1] == n_queries == key.shape[2]:
        raise ValueError(
            "cu_seq_lens_q: expected sequences end to end in a batch of 1, with the "
            f"last one's end at the length, got the end {int(starts[-1])} for shape "
            f"{tuple(query.shape)}"
        )
    places = torch.arange(n_queries, dtype=starts.dtype, device=starts.device)
    numbers = torch.bucketize(places, starts, right=True)  # (L,)
    return numbers[:, None] == numbers


def _joined(join: Any, tensors: list[Tensor | None]) -> Tensor | None:
    """Return several tensors as one; some may be None."""
    given = [tensor for tensor in tensors if tensor is not None]
    return functools.reduce(join, given) if given else None


def _are_collected() -> bool:
    """Tell whether the model's call returns weights: not all models pass that on."""
    return any("attentions" in name for name in _active_collector.get() or ())
