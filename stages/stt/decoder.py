"""Whisper's text decoder, made for hypotheses that grow: a known start and a guess are checked in
one pass, and a decoding can be given up between two tokens.

CTranslate2 runs the encoder, but walks through a forced prefix token by token (as slow as
generating it) and cannot be interrupted. Here the previous hypothesis is the guess: all of its
tokens are checked at once, at the price of two to three single steps.

The modules compile as TorchScript, which runs a pass without taking Python's lock.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

from stages.stt.quantized import linear
from stages.stt.weights import Arrays
from voicepipe.protocols import Float32


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that mean something other than text."""

    start: int
    end: int
    no_speech: int
    never: Sequence[int]
    """May not come; `end` may."""
    not_first: Sequence[int]
    """May not be the first of a text."""
    zero: int
    """The time 0.00 s; those of later times follow, 20 ms apart, and nothing after them."""


NEVER = -1e9
"""Added to the logit of a token that may not be chosen."""

NEAR_END = 10
"""Positions (20 ms each). A sentence that ends in the last 200 ms heard is the last one: with what
would come after it, the decoder fills its silence by saying everything again."""


class _Norm(torch.nn.Module):
    def __init__(self, weights: Arrays, name: str) -> None:
        super().__init__()
        self.gain = _tensor(weights, f"{name}/gamma")
        self.shift = _tensor(weights, f"{name}/beta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (x.size(-1),), self.gain, self.shift)


class _Layer(torch.nn.Module):
    """One layer. `x` is [n, size]; keys and values are [n_heads, n_positions, head_size]."""

    def __init__(self, weights: Arrays, name: str, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.self_norm = _Norm(weights, f"{name}/self_attention/layer_norm")
        self.self_in = _linear(weights, f"{name}/self_attention/linear_0")
        self.self_out = _linear(weights, f"{name}/self_attention/linear_1")
        self.cross_norm = _Norm(weights, f"{name}/attention/layer_norm")
        self.cross_query = _linear(weights, f"{name}/attention/linear_0")
        self.cross_out = _linear(weights, f"{name}/attention/linear_2")
        self.feed_norm = _Norm(weights, f"{name}/ffn/layer_norm")
        self.feed_in = _linear(weights, f"{name}/ffn/linear_0")
        self.feed_out = _linear(weights, f"{name}/ffn/linear_1")

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), self.n_heads, -1).transpose(0, 1)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        """[n, size]. `causal`: query i sees only the keys up to i."""
        found = functional.scaled_dot_product_attention(
            q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), is_causal=causal
        )
        return found.squeeze(0).transpose(0, 1).reshape(q.size(1), -1)

    def forward(
        self,
        x: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cross_keys: torch.Tensor,
        cross_values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = self.self_in(self.self_norm(x)).chunk(3, dim=1)
        keys = torch.cat([keys, self.heads(k)], dim=1)
        values = torch.cat([values, self.heads(v)], dim=1)
        # Several tokens at once are the first ones there are; a single one sees all before it.
        x = x + self.self_out(self.attend(self.heads(q), keys, values, x.size(0) > 1))
        q = self.heads(self.cross_query(self.cross_norm(x)))
        x = x + self.cross_out(self.attend(q, cross_keys, cross_values, False))
        x = x + self.feed_out(functional.gelu(self.feed_in(self.feed_norm(x))))
        return x, keys, values


class _Network(torch.nn.Module):
    def __init__(self, weights: Arrays) -> None:
        super().__init__()
        self.embeddings = _tensor(weights, "embeddings/weight").half()
        self.positions = _tensor(weights, "position_encodings/encodings")
        n_heads = int(weights["num_heads"])
        self.n_heads = n_heads
        n_layers = len({name.split("/")[0] for name in weights if name.startswith("layer_")}) - 1
        self.layers = torch.nn.ModuleList(
            _Layer(weights, f"layer_{i}", n_heads) for i in range(n_layers)
        )
        self.cross_in = torch.nn.ModuleList(
            _linear(weights, f"layer_{i}/attention/linear_1") for i in range(n_layers)
        )
        self.norm = _Norm(weights, "layer_norm")
        self.head = linear(_tensor(weights, "projection/weight"))

    @torch.jit.export
    def hear(self, encoded: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Keys and values of the audio `encoded` [n_positions, size], for each layer."""
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for project in self.cross_in:
            both = project(encoded).view(len(encoded), 2, self.n_heads, -1).permute(1, 2, 0, 3)
            keys.append(both[0])
            values.append(both[1])
        return keys, values

    def forward(
        self,
        tokens: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        cross_keys: list[torch.Tensor],
        cross_values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """Hidden states [n, size] of the next n tokens, and the caches with them. Several tokens
        only at the start."""
        start = keys[0].size(1)
        x = functional.embedding(tokens, self.embeddings).float()
        x = x + self.positions[start : start + tokens.size(0)]
        more_keys: list[torch.Tensor] = []
        more_values: list[torch.Tensor] = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, keys[i], values[i], cross_keys[i], cross_values[i])
            more_keys.append(k)
            more_values.append(v)
        return self.norm(x), more_keys, more_values

    @torch.jit.export
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(hidden)
        return found


@dataclass(frozen=True, slots=True)
class Heard:
    """Audio as the decoder sees it: the keys and values of each layer."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @property
    def n_positions(self) -> int:
        return self.keys[0].size(1)

    def followed_by(self, other: Heard, n_positions: int) -> Heard:
        """This, and after it what `other` has in the next `n_positions` places."""
        start = self.n_positions
        end = start + n_positions

        def join(one: list[torch.Tensor], two: list[torch.Tensor]) -> list[torch.Tensor]:
            return [torch.cat([a, b[:, start:end]], 1) for a, b in zip(one, two, strict=True)]

        with torch.inference_mode():
            return Heard(join(self.keys, other.keys), join(self.values, other.values))


class WhisperDecoder:
    """The decoder's weights. A `Decoding` uses them for each hypothesis. Blocking, for one thread
    at a time."""

    def __init__(self, weights: Arrays, vocabulary: Vocabulary, *, n_threads: int) -> None:
        network = _Network(weights).eval()
        self.n_layers, self.n_heads = len(network.layers), network.n_heads
        self.size = network.positions.size(1)
        self.vocabulary = vocabulary
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is announced to go; torch is pinned
            self._network = torch.jit.script(network)
        self._n_threads = n_threads
        self._allowed = torch.zeros(len(network.embeddings))
        self._allowed[list(vocabulary.never)] = NEVER
        self._allowed_first = self._allowed.clone()
        self._allowed_first[list(vocabulary.not_first)] = NEVER

    def hear(self, encoded: Float32) -> Heard:
        """`encoded` is the encoder's output [n_positions, size]."""
        with self._inference():
            return Heard(*self._network.hear(torch.from_numpy(encoded)))

    def hidden(
        self, tokens: Sequence[int], cache: Cache, heard: Heard
    ) -> tuple[torch.Tensor, Cache]:
        """What the network makes of the next tokens, [n, size], and the cache with them."""
        with self._inference():
            states, keys, values = self._network(
                torch.tensor(tokens), cache.keys, cache.values, heard.keys, heard.values
            )
        return states, Cache(keys, values)

    def log_probs(self, states: torch.Tensor, *, first: bool) -> torch.Tensor:
        """[n, n_vocabulary] of the tokens after `states`; `first`: a text begins after the first
        of them."""
        with self._inference():
            logits = self._network.logits(states) + self._allowed
            if first:
                logits[0] += self._allowed_first
            found: torch.Tensor = logits.log_softmax(1)
            return found

    def choices(self, states: torch.Tensor, *, first: bool) -> Iterator[Choice]:
        """What may come after each of `states`; `first`: a text begins after the first of them."""
        zero = self.vocabulary.zero
        log_probs = self.log_probs(states, first=first)
        with self._inference():
            of_words, words = log_probs[:, :zero].max(1)
            of_times = log_probs[:, zero:].logsumexp(1)
        ends = log_probs[:, self.vocabulary.end]
        rows = zip(words.tolist(), of_words.tolist(), ends.tolist(), of_times.tolist(), strict=True)
        for row, (word, word_log_prob, end_log_prob, times_log_prob) in zip(
            log_probs, rows, strict=True
        ):
            yield Choice((word, word_log_prob), end_log_prob, times_log_prob, row[zero:], zero)

    def no_speech(self, state: torch.Tensor) -> float:
        """Probability that nobody speaks; `state` [1, size] is that of the start token."""
        with self._inference():
            return float(self._network.logits(state).softmax(1)[0, self.vocabulary.no_speech])

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Torch's number of threads belongs to the calling thread."""
        if torch.get_num_threads() != self._n_threads:
            torch.set_num_threads(self._n_threads)
        with torch.inference_mode():
            yield


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of the tokens so far, for each layer."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @classmethod
    def empty(cls, decoder: WhisperDecoder) -> Cache:
        nothing = torch.zeros(decoder.n_heads, 0, decoder.size // decoder.n_heads)
        return cls([nothing] * decoder.n_layers, [nothing] * decoder.n_layers)

    def upto(self, n_tokens: int) -> Cache:
        return Cache([k[:, :n_tokens] for k in self.keys], [v[:, :n_tokens] for v in self.values])


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates for the next token."""

    word: tuple[int, float]
    """The best one of text (or the end), and its log-probability."""
    end_log_prob: float
    times_log_prob: float
    """That any time comes."""
    times: torch.Tensor
    """Log-probability of each time [n_times]."""
    zero: int

    def time(self, earliest: int) -> tuple[int, float]:
        """The best time token from `earliest` on, and its log-probability."""
        log_prob, at = self.times[earliest - self.zero :].max(0)
        return earliest + int(at), float(log_prob)


class Decoding:
    """One hypothesis in the making: `begin` once, then `advance` until it has `ended`."""

    def __init__(
        self,
        decoder: WhisperDecoder,
        heard: Heard,
        n_heard: int,
        prompt: Sequence[int],
        known: Sequence[int],
        guess: Sequence[int],
    ) -> None:
        """Of `heard`, the first `n_heard` positions are no padding. `prompt` ends with the time at
        which the text begins; the text begins with the tokens `known` and probably goes on with
        `guess`."""
        self._decoder = decoder
        self._heard = heard
        self._last_time = decoder.vocabulary.zero + n_heard - NEAR_END
        self._prompt = list(prompt)
        self._known = list(known)
        self._guess = list(guess)
        self._cache = Cache.empty(decoder)
        self.tokens = list(known)
        """Of the text and of the times between its segments; without the end token."""
        self.log_probs: list[float] = []
        """Of the tokens after `known`."""
        self.ended = False
        """The end token has come."""
        self.no_speech = 0.0
        """Probability that nobody speaks; 0 when there are known words."""

    def begin(self) -> None:
        """Check what is given, all at once, and find the token after what is right of it."""
        given = [*self._prompt, *self._known, *self._guess]
        n_sure = len(self._prompt) + len(self._known)
        states, cache = self._decoder.hidden(given, self._cache, self._heard)
        if not self._known:
            start = self._prompt.index(self._decoder.vocabulary.start)
            self.no_speech = self._decoder.no_speech(states[start : start + 1])
        self._take(states[n_sure - 1 :], self._guess)
        self._cache = cache.upto(len(self._prompt) + len(self.tokens) - 1)

    def advance(self, n_tokens: int) -> None:
        """Up to so many tokens more."""
        for _ in range(n_tokens):
            if self.ended:
                return
            states, self._cache = self._decoder.hidden(self.tokens[-1:], self._cache, self._heard)
            self._take(states, ())

    def _take(self, states: torch.Tensor, guess: Sequence[int]) -> None:
        """Add as much of the `guess` as is right, and the token after that. `states` are those
        before the first token of the guess and after each."""
        for i, choice in enumerate(self._decoder.choices(states, first=not self.tokens)):
            token, log_prob = self._choose(choice)
            if token == self._decoder.vocabulary.end or self._says_it_again(token):
                self.ended = True
                return
            self.tokens.append(token)
            self.log_probs.append(log_prob)
            if i < len(guess) and token != guess[i]:
                return

    def _choose(self, choice: Choice) -> tuple[int, float]:
        """Whisper's rules: a segment is a time, words, and a time; times do not go back."""
        zero = self._decoder.vocabulary.zero
        last, before = [zero, zero, *self.tokens][:-3:-1]
        if last >= zero and before >= zero:
            return choice.word
        latest = max((token for token in self.tokens if token >= zero), default=zero)
        if last >= zero:
            time = choice.time(latest)
            return time if time[1] > choice.end_log_prob else (self._decoder.vocabulary.end, 0.0)
        return choice.time(latest + 1) if choice.times_log_prob > choice.word[1] else choice.word

    def _says_it_again(self, token: int) -> bool:
        """Whether what comes after this time was not heard."""
        return token >= max(self._last_time, self._decoder.vocabulary.zero + 1)


def _tensor(weights: Arrays, name: str) -> torch.Tensor:
    """A variable as floats; int8 ones are stored with a scale for each row."""
    found = torch.from_numpy(weights[name].astype("float32"))
    scale = weights.get(f"{name}_scale")
    return found if scale is None else found / torch.from_numpy(scale.astype("float32"))[:, None]


def _linear(weights: Arrays, name: str) -> torch.nn.Module:
    return linear(_tensor(weights, f"{name}/weight"), _tensor(weights, f"{name}/bias"))
