"""Speak to a running `voicepipe serve` from a program: the smallest client that does it right.

    python -m demos.ws_client FILE [--url ws://127.0.0.1:8765/ws] [--out reply.wav]

Says a recording in real time, as a microphone would, prints what both sides say, and writes what
was heard to a WAV file. Three rules make a good client: send what was just recorded in small
pieces, and silence too; play what comes at once; on `clear` drop what was not played yet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import wave
from pathlib import Path

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from voicepipe.frames import CALLER_RATE_HZ, Pcm
from voicepipe.transports import read_speech

PIECE_S = 0.02
GIVE_UP_S = 20.0


class Speaker:
    """Plays in real time: here onto a track instead of a sound card."""

    def __init__(self) -> None:
        self._zero_s = asyncio.get_running_loop().time()
        self.track = np.zeros(0, np.int16)

    def play(self, samples: Pcm) -> None:
        """At once, or right after what is still being played."""
        silence = np.zeros(max(0, self._now() - len(self.track)), np.int16)
        self.track = np.concatenate([self.track, silence, samples])

    def clear(self) -> None:
        self.track = self.track[: self._now()]

    def _now(self) -> int:
        return round((asyncio.get_running_loop().time() - self._zero_s) * CALLER_RATE_HZ)


async def speak(socket: ClientConnection, speech: Pcm) -> None:
    """The recording, then silence, each piece when its last sample would have been recorded."""
    loop = asyncio.get_running_loop()
    n = round(PIECE_S * CALLER_RATE_HZ)
    silence = np.zeros(round(GIVE_UP_S * CALLER_RATE_HZ), np.int16)
    said = np.concatenate([speech, silence])
    zero_s = loop.time()
    for start in range(0, len(said), n):
        await asyncio.sleep(zero_s + (start + n) / CALLER_RATE_HZ - loop.time())
        await socket.send(said[start : start + n].astype("<i2").tobytes())
    await socket.send(json.dumps({"type": "end"}))


async def listen(socket: ClientConnection, speaker: Speaker) -> None:
    """Until the first reply is over, or the server hangs up."""
    async for message in socket:
        if isinstance(message, bytes):
            speaker.play(np.frombuffer(message, "<i2").astype(np.int16))
            continue
        match json.loads(message):
            case {"type": "clear"}:
                speaker.clear()
            case {"type": "transcript", "role": role, "text": text, "final": final}:
                print(f"{role:>5}: {text}" if final else f"{role:>5}. {text}")
                if final and role == "agent":
                    return
            case {"type": "error", "code": code, "message": text}:
                print(f"error: {code}: {text}")


async def call(url: str, speech: Pcm, out: Path) -> None:
    async with connect(url) as socket:
        await socket.send(json.dumps({"type": "start", "sample_rate": CALLER_RATE_HZ}))
        speaker = Speaker()
        async with asyncio.TaskGroup() as group:
            speaking = group.create_task(speak(socket, speech))
            await listen(socket, speaker)
            speaking.cancel()
    with wave.open(str(out), "wb") as file:
        file.setparams((1, 2, CALLER_RATE_HZ, 0, "NONE", ""))
        file.writeframes(speaker.track.astype("<i2").tobytes())
    print(f"heard: {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description="say a recording to a voicepipe server")
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="ws://127.0.0.1:8765/ws")
    parser.add_argument("--out", type=Path, default=Path("reply.wav"))
    args = parser.parse_args()
    asyncio.run(call(args.url, read_speech(args.file), args.out))


if __name__ == "__main__":
    main()
