"""The command line: `voicepipe …`, also `python -m voicepipe …`.

Exit codes: 0 ok, 1 a gate or check failed, 2 usage, 3 a component could not start. Each failure is
one line; a traceback only with `--log-level debug`. What loads models is imported by the command
that needs it, so that `models`, `report` and `--help` answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from voicepipe.config import AgentConfig, load_config
from voicepipe.errors import UsageError, VoicepipeError
from voicepipe.protocols import Observer, Transport
from voicepipe.session import Session

BENCHMARKS = ("e2e", "llm", "stt", "tts", "turns", "overhead")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=args.log_level.upper(),
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        code: int = args.run(args)
    except VoicepipeError as error:
        if args.log_level == "debug":
            logging.getLogger(__name__).debug("failed", exc_info=error)
        print(f"voicepipe: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, metavar="FILE.toml", help="settings; argv wins")
    for stage in ("stt", "llm", "tts", "turn"):
        common.add_argument(
            f"--{stage}", metavar="URI", help=f"default {getattr(AgentConfig(), stage)}"
        )
    common.add_argument("--system", metavar="TEXT", help="system prompt")
    common.add_argument("--target-ms", type=float, metavar="MS", help="default 600")
    common.add_argument("--seed", type=int, metavar="N", help="default 0")
    common.add_argument(
        "--log-level", default="warning", choices=["debug", "info", "warning", "error"]
    )
    parser = argparse.ArgumentParser(prog="voicepipe", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, parents=[common], help=help_text)
        sub.set_defaults(run=run)
        return sub

    demo = command("demo", _demo, "recorded callers through the whole pipeline, in real time")
    demo.add_argument("--caller", type=Path, nargs="+", default=[], metavar="FILE")
    demo.add_argument("--out", type=Path, default=Path("out/demo"), metavar="DIR")
    serve = command("serve", _serve, "WebSocket server")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8765)
    serve.add_argument("--max-sessions", type=int, default=4, metavar="N")
    serve.add_argument("--record", type=Path, metavar="DIR", help="record every session")
    report = command("report", _report, "budget report of recorded sessions")
    report.add_argument("dirs", type=Path, nargs="+", metavar="DIR")
    report.add_argument("--html", type=Path, metavar="FILE")
    report.add_argument("--json", type=Path, metavar="FILE")
    report.add_argument("--compare", type=Path, metavar="DIR")
    report.add_argument("--gate", nargs="+", action="extend", default=[], metavar="NAME=LIMIT")
    bench = command("bench", _bench, "the benchmarks behind every published number")
    bench.add_argument("name", choices=BENCHMARKS)
    bench.add_argument("--json", type=Path, metavar="FILE")
    bench.add_argument("--device", choices=["cpu", "cuda"], help="of `bench llm`; default cpu")
    models = command("models", _models, "the model store")
    models.add_argument("action", choices=["list", "fetch", "verify", "path"])
    models.add_argument("names", nargs="*", metavar="NAME")
    command("doctor", _doctor, "what works on this machine, and what to do about the rest")
    command("config", _config, "the effective configuration with provenance")
    return parser


def _agent_config(args: argparse.Namespace) -> AgentConfig:
    names = ("stt", "llm", "tts", "turn", "system", "target_ms", "seed")
    return load_config(args.config, {name: getattr(args, name) for name in names})


def _demo(args: argparse.Namespace) -> int:
    from budgets import run_report  # noqa: PLC0415 - see the module's docstring
    from demos import recorded_call  # noqa: PLC0415 - as above
    from voicepipe.assemble import (  # noqa: PLC0415 - as above
        Agent,
        describe,
        listener,
        report_detectors,
    )

    config = _agent_config(args)
    transport, call = recorded_call.caller(args.caller)
    agent = Agent(config)
    directory = recorded_call.session_directory(args.out)
    asyncio.run(recorded_call.play_call(transport, call, agent, directory, describe(config), print))
    text, ok = run_report(
        [directory],
        detectors=report_detectors(),
        html=directory / "report.html",
        json=directory / "report.json",
        listen_back=listener(),
    )
    print(f"\n{text}\n{directory}: call.wav, events.jsonl, config.json, report.json, report.html")
    return 0 if ok else 1


def _serve(args: argparse.Namespace) -> int:
    from budgets import TurnLedgers  # noqa: PLC0415 - see the module's docstring
    from demos.recorded_call import session_directory  # noqa: PLC0415 - as above
    from voicepipe.assemble import Agent, RecordedSession  # noqa: PLC0415 - as above
    from voicepipe.server import serve_until_stopped  # noqa: PLC0415 - as above

    agent = Agent(_agent_config(args))

    def make_session(
        transport: Transport, observers: Sequence[Observer]
    ) -> Session | RecordedSession:
        if args.record is None:
            return agent.session(transport, observers)
        return RecordedSession(agent, session_directory(args.record), transport, observers)

    asyncio.run(
        serve_until_stopped(
            make_session,
            announce=lambda port: print(f"listening on ws://{args.host}:{port}/ws", flush=True),
            ledger_of=TurnLedgers,
            host=args.host,
            port=args.port,
            max_sessions=args.max_sessions,
        )
    )
    return 0


def _report(args: argparse.Namespace) -> int:
    from budgets import run_report  # noqa: PLC0415 - see the module's docstring
    from voicepipe.assemble import report_detectors  # noqa: PLC0415 - as above

    text, ok = run_report(
        args.dirs,
        detectors=report_detectors(),
        html=args.html,
        json=args.json,
        compare=args.compare,
        gates=args.gate,
        target_ms=args.target_ms,
    )
    print(text)
    return 0 if ok else 1


def _bench(args: argparse.Namespace) -> int:
    benchmark = import_module(f"benchmarks.{args.name}")
    if args.device is None:
        print(benchmark.run(args.json))
    elif args.name == "llm":
        print(benchmark.run(args.json, device=args.device))
    else:
        raise UsageError(f"bench {args.name}: it has no --device: only llm does")
    return 0


def _models(args: argparse.Namespace) -> int:
    from voicepipe.models import run_models_command  # noqa: PLC0415 - see the module's docstring

    print(run_models_command(args.action, args.names))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from voicepipe.doctor import doctor  # noqa: PLC0415 - see the module's docstring

    text, ok = doctor()
    print(text)
    return 0 if ok else 1


def _config(args: argparse.Namespace) -> int:
    from voicepipe.assemble import describe  # noqa: PLC0415 - see the module's docstring

    print(json.dumps(describe(_agent_config(args)), indent=2, sort_keys=True))
    return 0
