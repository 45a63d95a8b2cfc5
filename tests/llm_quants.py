"""What quantised blocks mean, value by value, as in the `dequantize_row_*` of ggml-quants.c."""

from __future__ import annotations

import struct
from collections.abc import Callable

Block = bytes


def half(block: Block, at: int) -> float:
    (value,) = struct.unpack_from("<e", block, at)
    return float(value)


def q4_0(b: Block) -> list[float]:
    d, qs = half(b, 0), b[2:18]
    return [d * ((q & 15) - 8) for q in qs] + [d * ((q >> 4) - 8) for q in qs]


def q4_1(b: Block) -> list[float]:
    d, m, qs = half(b, 0), half(b, 2), b[4:20]
    return [d * (q & 15) + m for q in qs] + [d * (q >> 4) + m for q in qs]


def q5_0(b: Block) -> list[float]:
    d, high, qs = half(b, 0), int.from_bytes(b[2:6], "little"), b[6:22]
    low = [q & 15 for q in qs] + [q >> 4 for q in qs]
    return [d * ((q | (high >> n & 1) << 4) - 16) for n, q in enumerate(low)]


def q8_0(b: Block) -> list[float]:
    d = half(b, 0)
    return [d * q for q in struct.unpack_from("<32b", b, 2)]


def scale_min_k4(n: int, q: bytes) -> tuple[int, int]:
    """`get_scale_min_k4`: the 6-bit scale and minimum of the n-th 32 values."""
    if n < 4:
        return q[n] & 63, q[n + 4] & 63
    return (
        (q[n + 4] & 15) | (q[n - 4] >> 6) << 4,
        (q[n + 4] >> 4) | (q[n] >> 6) << 4,
    )


def q4_k(b: Block) -> list[float]:
    d, low, scales, qs = half(b, 0), half(b, 2), b[4:16], b[16:144]
    values: list[float] = []
    for n in range(8):
        scale, minimum = scale_min_k4(n, scales)
        part = qs[n // 2 * 32 : n // 2 * 32 + 32]
        values += [d * scale * (q >> 4 if n % 2 else q & 15) - low * minimum for q in part]
    return values


def q5_k(b: Block) -> list[float]:
    d, low, scales, high, qs = half(b, 0), half(b, 2), b[4:16], b[16:48], b[48:176]
    values: list[float] = []
    for n in range(8):
        scale, minimum = scale_min_k4(n, scales)
        part = qs[n // 2 * 32 : n // 2 * 32 + 32]
        for q, h in zip(part, high, strict=True):
            value = (q >> 4 if n % 2 else q & 15) + 16 * (h >> n & 1)
            values.append(d * scale * value - low * minimum)
    return values


def q6_k(b: Block) -> list[float]:
    ql, qh, scales, d = b[:128], b[128:192], struct.unpack_from("<16b", b, 192), half(b, 208)
    values = [0.0] * 256
    for part in range(2):
        for n in range(32):
            low, lower = ql[part * 64 + n], ql[part * 64 + n + 32]
            high = qh[part * 32 + n]
            for quarter, nibble in enumerate((low & 15, lower & 15, low >> 4, lower >> 4)):
                q = (nibble | (high >> 2 * quarter & 3) << 4) - 32
                scale = scales[part * 8 + quarter * 2 + n // 16]
                values[part * 128 + quarter * 32 + n] = d * scale * q
    return values


KINDS: dict[str, tuple[Callable[[Block], list[float]], tuple[int, ...]]] = {
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q8_0": (q8_0, (0,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}
"""By kind: the values of a block, and where its half-precision scales are."""
