"""Keeps a reader's measures where people and their tools look: JSON lines, Prometheus text, a loopback endpoint.

Owns the writing, in one thread that takes nothing from training but its turn. Invariant: the Prometheus file is always
whole (it is replaced, never rewritten), and the endpoint listens on the loopback interface only.
"""

from __future__ import annotations

import http.server
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

from .errors import ConfigError, StokerError

_LOG = logging.getLogger("stoker")


class Measured(Protocol):
    """What can be watched: a Reader, or anything with its stats()."""

    def stats(self) -> dict[str, Any]: ...


class Monitor:
    """Watches a reader until it is closed.

    jsonl       a file that gets one JSON object each interval, appended
    prometheus  a file that holds the last measures as Prometheus text, for a textfile collector
    port        serves the same on http://127.0.0.1:PORT/metrics; 0 takes a free port, which is then `port`
    interval    seconds between two readings
    labels      labels of every metric, such as {"rank": "3"}

    A read that hangs is logged as a warning with the file it waits for, once each time it happens.
    """

    def __init__(
        self,
        reader: Measured,
        *,
        jsonl: str | os.PathLike[str] | None = None,
        prometheus: str | os.PathLike[str] | None = None,
        port: int | None = None,
        interval: float = 10.0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if interval <= 0:
            raise ConfigError(f"an interval is above 0 seconds: `{interval}`")
        self._reader = reader
        self._jsonl = None if jsonl is None else os.fspath(jsonl)
        self._prometheus = None if prometheus is None else os.fspath(prometheus)
        self._interval = interval
        self._labels = dict(labels or {})
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._hung: frozenset[str] = frozenset()
        self._server = None if port is None else _serve(self, port)
        self._thread = threading.Thread(target=self._run, name="stoker-monitor", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int | None:
        """The endpoint's port, if there is one."""
        return None if self._server is None else self._server.server_address[1]

    def text(self) -> str:
        """The measures of now as Prometheus text."""
        return prometheus_text(self._reader.stats(), self._labels)

    def write(self) -> None:
        """Write the measures of now to the files."""
        stats = self._reader.stats()
        self._warn(stats)
        if self._jsonl is not None:
            line = json.dumps({"time": time.time(), **self._labels, **stats}, separators=(",", ":"))
            with open(self._jsonl, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        if self._prometheus is not None:
            written = f"{self._prometheus}.{os.getpid()}.tmp"
            with open(written, "w", encoding="utf-8") as file:
                file.write(prometheus_text(stats, self._labels))
            os.replace(written, self._prometheus)

    def close(self) -> None:
        """Write once more and end. In a fork, which has no thread of it, this does nothing."""
        if self._ended.is_set() or self._pid != os.getpid():
            return
        self._ended.set()
        self._thread.join()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stoker.Monitor of {self._reader!r}, every {self._interval:g} s>"

    def _run(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(self._interval)
            try:
                self.write()
            except (OSError, StokerError) as error:
                # Training goes on without its measures; whoever wants them sees why they are not there.
                _LOG.warning("stoker cannot write its measures: %s", error)

    def _warn(self, stats: Mapping[str, Any]) -> None:
        hung = {read["path"]: read["seconds"] for read in stats.get("slow_reads", ())}
        for path in hung.keys() - self._hung:
            _LOG.warning("stoker has waited %.0f s for a read of `%s`", hung[path], path)
        self._hung = frozenset(hung)


def prometheus_text(stats: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Each number of `stats` as a gauge, and the length of a list; a text is a gauge of 1 with a label `value`."""
    lines = []
    for name, value in sorted(_flat(stats, "stoker")):
        shown = dict(labels)
        if isinstance(value, str):
            shown["value"], value = value, 1
        inside = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in shown.items())
        lines.append(f"# TYPE {name} gauge\n{name}{f'{{{inside}}}' if inside else ''} {value:.10g}\n")
    return "".join(lines)


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}_{''.join(c if c.isalnum() else '_' for c in key)}"
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        elif isinstance(value, list):
            yield name, len(value)
        elif value is not None:
            yield name, value


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _serve(monitor: Monitor, port: int) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/metrics":
                self.send_error(404)
                return
            try:
                body = monitor.text().encode()
            except StokerError as error:
                self.send_error(503, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not news."""

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on the loopback port `{port}`: {error}", "take another port, or 0") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="stoker-metrics", daemon=True).start()
    return server
