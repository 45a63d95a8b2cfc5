"""VITS (Kim et al. 2021), the model of Piper's voices, run so that its first sound comes early.

The exported model is cut into the three networks that it consists of, and the last two, which cost
most of the time, are run piece by piece:

1. the *encoder* turns the phonemes of a sentence into a prior for each latent frame (about 11 ms),
   and says how long each phoneme lasts;
2. the *flow* turns the prior into latent frames; it is convolutional and sees `FLOW_CONTEXT` frames
   around each;
3. the *decoder*, a HiFi-GAN, turns latent frames into sound; it sees `DECODER_CONTEXT` of them.

With that much context on both sides the pieces join to the sound of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages.tts import onnx_graph
from stages.tts.voice import Float32
from voicepipe.errors import ComponentError

FLOW, DECODER = "/flow/", "/dec/"
"""Scopes of the networks' nodes in every exported voice; what comes before them is the encoder."""

DECODER_CONTEXT = 12
"""Frames: HiFi-GAN V3 (kernels up to 7, dilations up to 12, first upsampling by 8) sees 11."""

FLOW_CONTEXT = 24
"""Frames: four couplings of four convolutions with kernels of 5 see 32, but of the outermost eight
nothing is left: the error is 110 dB below the sound (with 20 frames 71 dB, with 16 62 dB)."""

PIECES = (20, 60, 120)
"""Frames of the first piece, the second, and all others. The first is about 0.2 s, in which the
next is made; later ones are longer, because the context of each is decoded twice."""

FLOW_PIECE = 160
"""Frames of a later step of the flow, for the same reason; its context is larger."""

HOP = 256
"""Samples of a frame: 8 * 8 * 4, what the decoder upsamples by."""


class Vits:
    """A loaded model. Blocking; keeps nothing between calls, so that threads may share it."""

    def __init__(self, file: Path, *, n_threads: int) -> None:
        """Raises ComponentError when `file` is missing, damaged or another kind of model."""
        try:
            graph = onnx_graph.Graph(onnx_graph.read_model(file))
            lasting = graph.outputs_of("Ceil")
            encoder, rest, before_flow = graph.split(FLOW, also=lasting)
            flow, decoder, before_decoder = onnx_graph.Graph(rest).split(DECODER, also=[])
            if (len(lasting), len(before_flow), len(before_decoder)) != (1, 2, 1):
                raise onnx_graph.MalformedModel(
                    f"{before_flow} go into its flow, {before_decoder} into its decoder"
                )
        except onnx_graph.MalformedModel as error:
            raise ComponentError(f"{file}: no Piper voice ({error}): fetch it again") from error
        self._prior, self._mask = before_flow
        (self._latent,) = before_decoder
        self._encoder, self._flow, self._decoder = (
            onnx_graph.session(part, n_threads=n_threads, what=str(file))
            for part in (encoder, flow, decoder)
        )

    def speak(
        self, tokens: Sequence[int], scales: tuple[float, float, float]
    ) -> tuple[NDArray[np.int64], Iterator[Float32]]:
        """The sound of `tokens`: how many samples each lasts, shape [len(tokens)], and the pieces,
        each made when it is asked for. `scales` are noise, length and noise of the lengths."""
        feed = {
            "input": np.array([tokens], np.int64),
            "input_lengths": np.array([len(tokens)], np.int64),
            "scales": np.array(scales, np.float32),
        }
        prior, mask, frames = self._encoder.run(None, feed)
        return np.asarray(frames).reshape(-1).astype(np.int64) * HOP, self._pieces(prior, mask)

    def _pieces(self, prior: Float32, mask: Float32) -> Iterator[Float32]:
        n_frames = prior.shape[2]
        latent = prior[:, :, :0]
        start, n_pieces = 0, 0
        while start < n_frames:
            end = min(start + PIECES[min(n_pieces, len(PIECES) - 1)], n_frames)
            wanted = min(end + DECODER_CONTEXT, n_frames)
            if latent.shape[2] < wanted:
                latent = self._flowed(prior, mask, latent, wanted)
            first, last = max(0, start - DECODER_CONTEXT), wanted
            (sound,) = self._decoder.run(None, {self._latent: latent[:, :, first:last]})
            samples: Float32 = sound.reshape(-1)[(start - first) * HOP : (end - first) * HOP]
            yield samples
            start, n_pieces = end, n_pieces + 1

    def _flowed(self, prior: Float32, mask: Float32, latent: Float32, wanted: int) -> Float32:
        """`latent` continued up to frame `wanted`; further when it is no longer the beginning."""
        n_frames, start = prior.shape[2], latent.shape[2]
        end = min(max(wanted, start + FLOW_PIECE), n_frames) if start else wanted
        first, last = max(0, start - FLOW_CONTEXT), min(n_frames, end + FLOW_CONTEXT)
        window = {self._prior: prior[:, :, first:last], self._mask: mask[:, :, first:last]}
        (flowed,) = self._flow.run(None, window)
        return np.concatenate([latent, flowed[:, :, start - first : end - first]], axis=2)
