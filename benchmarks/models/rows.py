"""Rows of whole models: which case, against which peers, and what it should reach."""

from __future__ import annotations

from ..cases import Case, prefill
from ..rows import PEERS, Own, Row
from .decoders import Tokens
from .encoders import Sentences
from .generation import Generation
from .in_transformers import InTransformers
from .sentences import Texts
from .training import Step

ENCODERS = (
    *("torch", "transformers", "onnxruntime", "openvino", "ctranslate2", "numpy"),
)
DECODERS = ("transformers", "openvino", "llamacpp")

# (B, L, ragged): against OpenVINO in float32, or else a share of the peak.
SENTENCES = {
    (1, 16, False): (1.3, 60),
    (1, 128, False): (1.2, 78),
    (1, 512, False): (1.2, 85),
    (32, 128, False): (1.2, 85),
    (32, 128, True): (1.2, 85),
}


def sentences_name(batch, length, ragged):
    return f"{batch} x 8..{length}" if ragged else f"{batch} x {length}"


def model_rows(native_bf16):
    """all-MiniLM-L6-v2: one sentence, and many, some of which are padded."""
    for shape, (ratio, share) in SENTENCES.items():
        case = Sentences(*shape)
        yield Row(
            "models",
            f"MiniLM float32 {sentences_name(*shape)}",
            case,
            ((("openvino", ratio), ("peak", share)),),
            peers=ENCODERS,
            quick=shape == (1, 16, False),
        )
    for shape in SENTENCES:
        yield Row(
            "models",
            f"MiniLM bfloat16 {sentences_name(*shape)}",
            Sentences(*shape, dtype="bfloat16"),
            ((("openvino", 1.15), ("own", 1.7)), ("error/openvino", 1.0)),
            peers=ENCODERS,
            own=("float32", Own(Sentences(*shape))),
            native=native_bf16,
        )


def decoder_rows(native_bf16, counts=(0, 8)):
    """A prompt of 256 tokens in one call, and 8 calls of a token after it."""
    for model in ("Llama shape", "Qwen2-0.5B"):
        for n_new in counts:
            for dtype in ("float32", "bfloat16"):
                share = ("bandwidth" if n_new else "peak", 85)
                half = dtype == "bfloat16"
                own = ("float32", Own(Tokens(model, 256, n_new)))
                yield Row(
                    "tokens" if n_new else "prompts",
                    f"{model} {dtype}, {f'{n_new} after ' if n_new else ''}256",
                    Tokens(model, 256, n_new, dtype),
                    ((("fastest", 1.15 if n_new else 1.3), share),),
                    peers=DECODERS,
                    own=own if half else None,
                    limit="bandwidth" if n_new else "fma",
                    unit="tokens/s",
                    native=half and native_bf16,
                    quick=model == "Llama shape" and not half,
                )


def default_rows(native_bf16):
    """Two threads, where those of the peers wait as their users meet them."""
    rows = [
        *(("", prefill(*shape)) for shape in ((1, 1, 16, 16), (1, 8, 32, 64))),
        *(("", prefill(1, 8, length, 64)) for length in (64, 256, 1024)),
        ("", prefill(8, 12, 128, 64)),
        ("decode ", Case(1, 12, 12, 1, 512, 64)),
        ("decode ", Case(1, 32, 8, 1, 4096, 128)),
    ]
    for kind, case in rows:
        lengths = f"1:{case.n_keys}" if kind else str(case.n_queries)
        name = f"{kind}{case.batch}x{case.heads}x{lengths}x{case.dim}"
        yield default_row(name, case, PEERS, quick=case.n_keys == 16)
    for row in (*model_rows(native_bf16), *decoder_rows(native_bf16)):
        small = row.group != "models" or row.case.batch == 1
        if small and "Qwen2" not in row.name:
            yield default_row(row.name, row.case, row.peers, unit=row.unit)


def default_row(name, case, rivals, unit="GFLOP/s", quick=False):
    return Row(
        "defaults",
        name,
        case,
        (("fastest", 1.0),),
        peers=rivals,
        limit=None,
        unit=unit,
        thread_counts=(2,),
        waiting="default",
        quick=quick,
    )


def generation_rows():
    for model, n_prompt, n_new in (
        ("GPT-2 small", 64, 32),
        ("Llama-like", 64, 32),
        ("Llama-like", 8, 8),
    ):
        yield Row(
            "generation",
            f"{model}, {n_new} tokens after {n_prompt}",
            Generation(model, n_prompt, n_new),
            peers=("torch",),
            limit=None,
            unit="tokens/s",
            quick=n_new == 8,
        )


def training_rows():
    """A step of a character GPT, and one of a smaller one."""
    for case, targets in (
        (Step(6, 384, 6, 256, 16), ((("torch", 1.5), ("peak", 70)),)),
        (Step(2, 128, 4, 64, 8), ()),
    ):
        sizes = f"{case.n_layers} layers, E {case.embed_dim}"
        yield Row(
            "training",
            f"GPT, {sizes}, {case.batch}x{case.length} characters",
            case,
            targets,
            peers=("torch",),
            unit="tokens/s",
            quick=case.n_layers == 2,
        )


def transformers_rows():
    """Models of Transformers with attnpy's attention, against PyTorch's."""
    models = {
        "BERT-base 8 x 512": None,
        "Llama shape, 1024": Tokens("Llama shape", 1024),
        "Llama shape, 8 after 1024": Tokens("Llama shape", 1024, 8),
    }
    for name, tokens in models.items():
        for by in ("attn_implementation", "accelerate()"):
            yield Row(
                "integrations",
                f"{name}, {by}",
                InTransformers(tokens, by),
                (("transformers", 1.0),),
                peers=("transformers",),
                limit=None,
                unit="tokens/s",
                needs=("torch", "transformers"),
            )


def text_rows():
    for n in (200, 2000):
        yield Row(
            "sentences",
            f"{n} texts",
            Texts(n),
            (("sentence_transformers", 2.0), ("fastembed", 1.5)),
            peers=("sentence_transformers", "fastembed", "fastembed_sorted"),
            unit="tokens/s",
            needs=("tokenizers",),
            quick=n == 200,
        )
