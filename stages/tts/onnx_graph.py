"""Cutting an ONNX model in two, and reading tensors inside it, without the `onnx` package.

An ONNX file is one protobuf message (https://onnx.ai/onnx/repo-docs/IR.html). Only the outer shape
of it matters here: the graph is field 7 of the model; its nodes, initializers, inputs and outputs
are fields 1, 5, 11 and 12. Messages are copied byte for byte, never decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from voicepipe.errors import ComponentError

_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_FLOAT = 1

_Bytes = bytes | memoryview


class MalformedModel(ValueError):
    """The bytes are no ONNX model, or not one of the expected kind."""


def _varint(buffer: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(buffer) or shift > 63:
            raise MalformedModel("truncated protobuf")
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(buffer: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """(field number, payload, whole field with its key) of each field of a message."""
    at = 0
    while at < len(buffer):
        start = at
        key, at = _varint(buffer, at)
        body = at
        match key & 7:
            case 0:
                _, at = _varint(buffer, at)
            case 1:
                at += 8
            case 2:
                size, body = _varint(buffer, at)
                at = body + size
            case 5:
                at += 4
            case wire:
                raise MalformedModel(f"unknown protobuf wire type {wire}")
        if at > len(buffer):
            raise MalformedModel("truncated protobuf")
        yield key >> 3, buffer[body:at], buffer[start:at]


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    size, head = len(payload), bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + payload


def _float_tensor(name: str, rank: int) -> bytes:
    """ValueInfoProto of a float tensor whose dimensions are free."""
    shape = _field(2, _field(1, b"") * rank)
    return _field(1, name.encode()) + _field(2, _field(1, bytes([1 << 3, _FLOAT]) + shape))


def _text(payload: memoryview) -> str:
    try:
        return bytes(payload).decode()
    except UnicodeDecodeError as error:
        raise MalformedModel("a name is no text") from error


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: memoryview


def _node(body: memoryview, raw: memoryview) -> _Node:
    text: dict[int, list[str]] = {1: [], 2: [], 3: [""], 4: [""]}
    for number, payload, _ in _fields(body):
        if number in text:
            text[number].append(_text(payload))
    return _Node(text[3][-1], text[4][-1], tuple(text[1]), tuple(text[2]), raw)


class Graph:
    """The parts of an ONNX model that are needed to take it apart."""

    def __init__(self, model: bytes) -> None:
        """Raises `MalformedModel` when `model` is no ONNX model."""
        self._head: list[memoryview] = []
        self._rest: list[memoryview] = []
        self._inputs: list[memoryview] = []
        self._outputs: list[memoryview] = []
        self._initializers: dict[str, memoryview] = {}
        self.nodes: list[_Node] = []
        graph = memoryview(b"")
        for number, payload, raw in _fields(memoryview(model)):
            if number == _GRAPH:
                graph = payload
            else:
                self._head.append(raw)
        for number, payload, raw in _fields(graph):
            match number:
                case 1:
                    self.nodes.append(_node(payload, raw))
                case 5:
                    name = next((_text(p) for n, p, _ in _fields(payload) if n == 8), "")
                    self._initializers[name] = raw
                case 11:
                    self._inputs.append(raw)
                case 12:
                    self._outputs.append(raw)
                case _:
                    self._rest.append(raw)
        if not self.nodes:
            raise MalformedModel("no graph in it")

    def outputs_of(self, kind: str) -> list[str]:
        """The tensors made by operators of this kind, in graph order."""
        return [name for node in self.nodes if node.kind == kind for name in node.outputs]

    def split(self, scope: str, *, also: Sequence[str]) -> tuple[bytes, bytes, list[str]]:
        """Cut before the nodes whose name starts with `scope`.

        Returns the model before the cut (its outputs: the tensors that cross the cut, then
        `also`), the model after it (its inputs: the crossing tensors, rank 3), and the names of
        the crossing tensors, in the order in which they are used.
        """
        after: list[_Node] = []
        made: set[str] = set()
        for node in self.nodes:  # nodes are in topological order, so one pass is enough
            if node.name.startswith(scope) or made.intersection(node.inputs):
                after.append(node)
                made.update(node.outputs)
        if not after or len(after) == len(self.nodes):
            raise MalformedModel(f"no part of it is called {scope!r}")
        known = made.union(self._initializers, {""})
        crossing = list(dict.fromkeys(x for n in after for x in n.inputs if x not in known))
        dropped = {id(node) for node in after}
        before = [node for node in self.nodes if id(node) not in dropped]
        outs = [_field(_OUTPUT, _field(1, name.encode())) for name in [*crossing, *also]]
        ins = [_field(_INPUT, _float_tensor(name, rank=3)) for name in crossing]
        return (
            self._build(before, self._inputs, outs),
            self._build(after, ins, self._outputs),
            crossing,
        )

    def _build(
        self, nodes: list[_Node], inputs: Sequence[_Bytes], outputs: Sequence[_Bytes]
    ) -> bytes:
        used = {name for node in nodes for name in node.inputs}
        weights = [raw for name, raw in self._initializers.items() if name in used]
        parts = [*(node.raw for node in nodes), *self._rest, *weights, *inputs, *outputs]
        return b"".join(self._head) + _field(_GRAPH, b"".join(parts))


def with_output(model: bytes, name: str) -> bytes:
    """The model with its inner tensor `name` as a further output.

    A protobuf message that occurs twice is merged, so the addition is simply appended.
    """
    return model + _field(_GRAPH, _field(_OUTPUT, _field(1, name.encode())))


def session(model: bytes, *, n_threads: int, what: str) -> Any:
    """An onnxruntime session on the CPU. Raises `ComponentError` naming `what` when it fails."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A thread that spins while it waits steals the core from the other stages.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ComponentError(
            f"{what}: onnxruntime cannot load it ({reason}): fetch it again"
        ) from error


def read_model(path: Path) -> bytes:
    """The bytes of a model file. Raises `ComponentError` when there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ComponentError(
            f"{path}: cannot read the model ({error.strerror}): "
            "fetch it with `voicepipe models fetch` or give the right path"
        ) from error
