"""Train a translator in a minute, save it as a folder, and translate with it.

    python examples/translate.py
    python examples/translate.py --save numbers-en-de --pictures pictures

An encoder-decoder of the kind of Marian learns to translate numbers from English to
German, where the tens follow the ones: "twenty-one" is "ein und zwanzig". It is tested
on numbers that it has not seen. --save writes a folder with a tokenizer that
`TextToText.from_pretrained` reads, and Transformers, too. --pictures saves where each
German word looks in the English text (needs matplotlib). Needs the tokenizers package.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from attnpy import training
from attnpy.models import EncoderDecoder, TextToText

ONES = "one two three four five six seven eight nine ten eleven twelve thirteen"
ONES = [*ONES.split(), "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"]
ONES = ["zero", *ONES, "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
EINS = "ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn"
EINS = [*EINS.split(), "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn"]
EINS = ["null", *EINS, "neunzehn"]
ZEHNER = [
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
]
SPECIAL = ["<pad>", "</s>", "<unk>"]
ENGLISH = [*ONES, *TENS, "hundred", "thousand"]
GERMAN = [*EINS, *ZEHNER, "eins", "und", "hundert", "tausend"]
LARGEST = 999_999
IGNORED = -100  # a target that does not count


def english(number):
    """Write a number in words, without hyphens."""
    if number >= 1000:
        rest = f" {english(number % 1000)}" if number % 1000 else ""
        return f"{english(number // 1000)} thousand{rest}"
    if number >= 100:
        rest = f" {english(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    if number >= 20:
        ones = f" {ONES[number % 10]}" if number % 10 else ""
        return TENS[number // 10 - 2] + ones
    return ONES[number]


def german(number, last=True):
    """Write a number in the parts of its word; at its end, 1 is "eins"."""
    if number >= 1000:
        rest = f" {german(number % 1000)}" if number % 1000 else ""
        return f"{german(number // 1000, last=False)} tausend{rest}"
    if number >= 100:
        rest = f" {german(number % 100, last)}" if number % 100 else ""
        return f"{EINS[number // 100]} hundert{rest}"
    if number >= 20:
        ones = f"{EINS[number % 10]} und " if number % 10 else ""
        return ones + ZEHNER[number // 10 - 2]
    return "eins" if number == 1 and last else EINS[number]


def word_tokenizer():
    """Return what gives each word a number, and ends texts with </s>."""
    vocab = {word: i for i, word in enumerate([*SPECIAL, *ENGLISH, *GERMAN])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    split = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("-", "removed")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocab["</s>"])]
    )
    return tokenizer


def new_model(tokenizer, rng, embed_dim=64):
    """Return a model of Marian's kind with random weights."""
    sides = ("encoder", "decoder")
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
    config = {f"{side}_{name}": n for side in sides for name, n in sizes.items()}
    config |= {
        "model_type": "marian",
        "d_model": embed_dim,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 32,
        "scale_embedding": True,
        "activation_function": "swish",
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "forced_eos_token_id": None,
        "num_beams": 4,
        "max_length": 20,
    }
    model = EncoderDecoder.from_config(config, rng=rng)
    # As large as the positions are, which are added.
    model.token_embedding *= 1 / (0.02 * np.sqrt(embed_dim))
    return model


def as_arrays(tokenizer, numbers):
    """Return sources and their lengths, the decoder's inputs, and its targets."""
    texts = [[number(n) for n in numbers] for number in (english, german)]
    sources, targets = (
        [code.ids for code in tokenizer.encode_batch(side)] for side in texts
    )
    lengths = [*map(len, sources)]
    source = np.zeros((len(numbers), max(lengths)), np.int64)
    longest = max(map(len, targets))
    target = np.zeros((len(numbers), longest), np.int64)  # begins with <pad>
    wanted = np.full((len(numbers), longest), IGNORED)
    for i, (ids, words) in enumerate(zip(sources, targets, strict=True)):
        source[i, : len(ids)] = ids
        target[i, 1 : len(words)] = words[:-1]
        wanted[i, : len(words)] = words
    return source, lengths, target, wanted


def train(model, tokenizer, rng, n_steps, batch=64, lr=3e-3, report=None):
    """Train with new numbers in each step; return the losses."""
    parameters = model.parameters()
    optimizer = training.AdamW(parameters, betas=(0.9, 0.98))
    losses = []
    for step in range(n_steps):
        numbers = random_numbers(rng, batch)
        source, lengths, target, wanted = as_arrays(tokenizer, numbers)
        scores, pullback = model.vjp(source, target, lengths=lengths, logits=True)
        loss, grad = training.cross_entropy(scores, wanted, ignore_index=IGNORED)
        gradients = pullback(grad)
        training.clip_norm(gradients, 1.0)
        rate = training.warmup_cosine(
            step, lr=lr, warmup_steps=n_steps // 10, total_steps=n_steps
        )
        optimizer.step(gradients, rate)
        losses.append(loss)
        if report is not None:
            report(step + 1, loss)
    return losses


def random_numbers(rng, n):
    """Return numbers of all lengths, up to 6 digits."""
    return rng.integers(0, 10 ** rng.integers(1, 7, n)).tolist()


def share_right(translator, numbers):
    """Return the share of numbers that are translated without a mistake."""
    texts = translator.generate([english(n) for n in numbers], batch_size=64)
    right = [text == german(n) for text, n in zip(texts, numbers, strict=True)]
    return sum(right) / len(numbers)


def draw(model, tokenizer, number, path):
    """Save a picture of where each German word looks."""
    import matplotlib.pyplot as plt

    from attnpy import plot

    path.parent.mkdir(parents=True, exist_ok=True)
    source, lengths, target, _ = as_arrays(tokenizer, [number])
    looked = model(source, target, lengths=lengths, return_weights=True)
    words = [*english(number).split(), "</s>"]
    written = [*german(number).split(), "</s>"]
    figure = plot.head_grid(looked.cross_weights[:, 0], written, words)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    print(path)


def main(arguments=None):
    """Train, test, save, and translate some numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="a folder for the model")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    tokenizer = word_tokenizer()
    model = new_model(tokenizer, rng)

    def report(step, loss):
        if step % 100 == 0 or step == options.steps:
            print(f"step {step:4}  loss {loss:.4f}  {time.monotonic() - begin:.0f} s")

    begin = time.monotonic()
    train(model, tokenizer, rng, options.steps, report=report)
    if options.pictures is not None:
        draw(model, tokenizer, 765_432, options.pictures / "translate.png")
    translator = TextToText(model, tokenizer)
    if options.save is not None:
        model.save_pretrained(options.save)
        tokenizer.save(str(options.save / "tokenizer.json"))
        translator = TextToText.from_pretrained(options.save)
    share = share_right(translator, rng.integers(0, LARGEST + 1, 500).tolist())
    print(f"{share:.1%} of 500 new numbers without a mistake")
    for number in (21, 101, 765_432):
        text = english(number)
        print(f"{text} -> {translator.generate(text)}")


if __name__ == "__main__":
    main()
