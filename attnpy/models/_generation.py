"""Settings of generation: arguments of `generate`, and generation_config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import numpy as np

from attnpy import _checks
from attnpy._families.fields import KINDS
from attnpy._families.rules import ends
from attnpy._files import folder_at
from attnpy._quoting import joined, named, quoted
from attnpy.checkpoints.reading import is_there, read_json
from attnpy.models import sampling
from attnpy.models._score_rules import ScoreRules

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    class GenerationOptions(TypedDict, total=False):
        """The settings of `generate`."""

        num_beams: int
        length_penalty: float
        early_stopping: bool | Literal["never"]
        num_return_sequences: int
        min_tokens: int
        temperature: float
        top_k: int | None
        top_p: float | None
        repetition_penalty: float
        no_repeat_ngram_size: int
        bad_words: Sequence[Sequence[int]]
        forced_bos: int | None
        forced_eos: int | Sequence[int] | None
        suppress_tokens: Sequence[int] | None
        begin_suppress_tokens: Sequence[int] | None


def _is_real(value: object) -> bool:
    kinds = int, float, np.integer, np.floating
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    return math.isfinite(value)


def _is_words(value: object) -> bool:
    fits = KINDS["tokens"][0]
    return isinstance(value, (list, tuple)) and all(
        isinstance(word, (list, tuple)) and len(word) > 0 and fits(list(word))
        for word in value
    )


def _is_stopping(value: object) -> bool:
    return isinstance(value, bool) or value == "never"


Test = tuple[Callable[[Any], bool], str]
COUNT, SIZE, FLAG = KINDS["count"], KINDS["size"], KINDS["flag"]
TOKENS = KINDS["tokens"]
STOPPING: Test = _is_stopping, "a boolean or 'never'"
REAL: Test = _is_real, "a finite number"
NOT_NEGATIVE: Test = lambda x: _is_real(x) and x >= 0, "a finite number, 0 or more"
WORDS: Test = _is_words, "a list of lists of tokens"


class Setting(NamedTuple):
    """A setting: its name in Hugging Face's files, what it has to be, its default."""

    field: str
    test: Test
    default: Any = None


SETTINGS = {
    "num_tokens": Setting("max_new_tokens", SIZE),
    "min_tokens": Setting("min_new_tokens", COUNT, 0),
    "num_beams": Setting("num_beams", SIZE, 1),
    "length_penalty": Setting("length_penalty", REAL, 1.0),
    "early_stopping": Setting("early_stopping", STOPPING, False),
    "num_return_sequences": Setting("num_return_sequences", SIZE),
    "temperature": Setting("temperature", NOT_NEGATIVE, 0.0),
    "top_k": Setting("top_k", COUNT),
    "top_p": Setting("top_p", NOT_NEGATIVE),
    "repetition_penalty": Setting("repetition_penalty", KINDS["number"], 1.0),
    "no_repeat_ngram_size": Setting("no_repeat_ngram_size", COUNT, 0),
    "bad_words": Setting("bad_words_ids", WORDS, ()),
    "forced_bos": Setting("forced_bos_token_id", COUNT),
    "forced_eos": Setting("forced_eos_token_id", TOKENS),
    "suppress_tokens": Setting("suppress_tokens", TOKENS),
    "begin_suppress_tokens": Setting("begin_suppress_tokens", TOKENS),
}
SAMPLING = "temperature", "top_k", "top_p"

# Fields that are made other settings of.
OTHERS: dict[str, Test] = {
    "max_length": SIZE,
    "min_length": COUNT,
    "do_sample": FLAG,
    "decoder_start_token_id": COUNT,
    "bos_token_id": COUNT,
    "eos_token_id": TOKENS,
}
# Fields that are refused, but for these values, which change nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "constraints": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_decoder_ids": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_p": (0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "prompt_lookup_num_tokens": (),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "sequence_bias": (),
    "stop_strings": (),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}
# Fields that do not change what is written: caches, what a call returns, padding.
HARMLESS = frozenset(
    (
        "_from_model_config",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_lookbehind",
        "cache_config",
        "cache_implementation",
        "compile_config",
        "disable_compile",
        "is_assistant",
        "low_memory",
        "max_cache_len",
        "max_matching_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "pad_token_id",
        "prefill_chunk_size",
        "return_dict_in_generate",
        "return_legacy_cache",
        "target_lookbehind",
        "transformers_version",
        "use_cache",
    )
)


class Said(NamedTuple):
    """What a file says of generation."""

    options: dict[str, Any]
    first: int | None
    last: int | list[int] | None
    path: str

    def start(self, vocab_size: int) -> int | None:
        """Return the token to begin with."""
        if self.first is not None and self.first >= vocab_size:
            raise ValueError(
                f"{self.path}: expected decoder_start_token_id below {vocab_size}, got "
                f"{self.first}"
            )
        return self.first

    def stop(self, vocab_size: int) -> tuple[int, ...]:
        """Return the tokens that end a text."""
        return ends(self.last, vocab_size)


def checked(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return settings by name, after checks of their kinds; `name` has them."""
    if not isinstance(options, Mapping):
        raise TypeError(f"{name}: expected a mapping, got {type(options).__name__}")
    for key, value in options.items():
        if key not in SETTINGS:
            raise ValueError(
                f"{name}: expected settings of {', '.join(SETTINGS)}, got {quoted(key)}"
            )
        fits, words = SETTINGS[key].test
        if value is not None and not fits(value):
            raise ValueError(f"{key}: expected {words}, got {quoted(value)}")
    return dict(options)


def from_folder(folder: str | os.PathLike[str]) -> Said | None:
    """Return what a folder's generation_config.json says, if there is one."""
    path = folder_at(folder) / "generation_config.json"
    return read(read_json(path), str(path)) if is_there(path) else None


def read(config: Mapping[str, Any], path: str, is_model: bool = False) -> Said:
    """Return the settings of a file, or all that is wrong in one error.

    That of a model has other fields, too, which are judged elsewhere.
    """
    tests = OTHERS | {setting.field: setting.test for setting in SETTINGS.values()}
    values, faults = {}, []
    for name, value in config.items():
        if value is None or name in HARMLESS:
            continue
        if name in tests:
            fits, words = tests[name]
            if fits(value):
                values[name] = value
            else:
                faults.append(f"expected {name} to be {words}, got {quoted(value)}")
        elif name in NEUTRAL:
            if value not in NEUTRAL[name]:
                faults.append(f"expected no {name}, got {quoted(value)}")
        elif not is_model:
            faults.append(f"expected no {named(name)}, got {quoted(value)}")
    if faults:
        raise ValueError(f"{named(path)}: {joined(faults)}")
    found = {
        own: values[setting.field]
        for own, setting in SETTINGS.items()
        if setting.field in values and own not in SAMPLING
    }
    # Their lengths have the token that a text begins with.
    if "max_length" in values and "max_new_tokens" not in values:
        found["num_tokens"] = max(values["max_length"] - 1, 1)
    if "min_length" in values:
        shortest = max(values["min_length"] - 1, 0)
        found["min_tokens"] = max(found.get("min_tokens", 0), shortest)
    if values.get("do_sample"):
        found["temperature"] = values.get("temperature", 1.0)
        found["top_k"] = values.get("top_k", 50) or None
        found["top_p"] = values.get("top_p")
    first = values.get("decoder_start_token_id", values.get("bos_token_id"))
    return Said(found, first, values.get("eos_token_id"), path)


def written(
    options: Mapping[str, Any], start: int | None, stop: tuple[int, ...]
) -> dict[str, Any]:
    """Return the contents of a generation_config.json."""
    fields = {
        SETTINGS[own].field: value
        for own, value in checked(options, "generation").items()
        if value is not None and own not in SAMPLING
    }
    if options.get("temperature"):
        fields["do_sample"] = True
        fields["temperature"] = options["temperature"]
        fields["top_k"] = options.get("top_k") or 0
        if options.get("top_p") is not None:
            fields["top_p"] = options["top_p"]
    for name in ("eos_token_id", "decoder_start_token_id"):
        value = list(stop) if name.startswith("eos") else start
        fields[name] = None if value == [] else value
    return fields


def effective(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings: those given, those of the model, and the defaults.

    None is not given, except where it is the default.
    """
    defaults = {own: setting.default for own, setting in SETTINGS.items()}
    said = {own: x for own, x in checked(usual, "generation").items() if x is not None}
    options = {
        own: x
        for own, x in checked(given, "generate()").items()
        if x is not None or defaults[own] is None
    }
    if "temperature" not in said:
        sampling.checked_temperature(*map(options.get, SAMPLING))
    found = {**defaults, **said, **options}
    for name in ("length_penalty", "early_stopping"):
        value = options.get(name, defaults[name])
        if value != defaults[name] and found["num_beams"] == 1:
            raise ValueError(
                f"{name}: expected num_beams above 1 beside it, as it is for a search, "
                f"got {quoted(value)} alone"
            )
    return found


def rules(
    options: Mapping[str, Any], stops: NDArray[np.int64], vocab_size: int
) -> ScoreRules:
    """Return the rules for scores that settings ask for."""
    given = options["bad_words"] or ()
    words = tuple(_tokens(word, "bad_words", vocab_size) for word in given)
    forced = options["forced_bos"]
    if forced is not None:
        (forced,) = _tokens(forced, "forced_bos", vocab_size)
    return ScoreRules(
        stops=tuple(stops.tolist()),
        min_tokens=options["min_tokens"],
        repetition_penalty=options["repetition_penalty"],
        no_repeat_ngram_size=options["no_repeat_ngram_size"],
        bad_words=words,
        forced_bos=forced,
        **{
            name: _tokens(options[name], name, vocab_size)
            for name in ("forced_eos", "suppress_tokens", "begin_suppress_tokens")
        },
    )


def _tokens(value: Any, name: str, vocab_size: int) -> tuple[int, ...]:
    """Return tokens of a vocabulary."""
    given = [] if value is None else value
    array = _checks.integers(given, name, 0, vocab_size - 1)
    return tuple(array.reshape(-1).tolist())


def check_beams(options: Mapping[str, Any]) -> None:
    """Refuse settings that have no meaning for a search with beams."""
    n_beams, several = options["num_beams"], options["num_return_sequences"]
    if options["temperature"] != 0:
        raise ValueError(
            f"temperature: expected 0 with num_beams = {n_beams}, which draws nothing, "
            f"got {options['temperature']}"
        )
    if several is not None and several > n_beams:
        raise ValueError(
            f"num_return_sequences: expected at most num_beams = {n_beams}, got "
            f"{several}"
        )
