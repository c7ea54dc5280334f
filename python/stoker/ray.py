"""Builds a cache on the nodes of a Ray cluster, onto the disks of the nodes that will train.

Owns who builds what: one builder a node (a Ray actor that holds the node's CPUs), the parts of lost nodes, the commit on all
nodes. What is built is `stoker build --worker`'s, byte for byte the cache of one machine. Only metadata passes the object
store: part records, receipts, indexes and tables, in bounded pieces; no shard, no tensor. Ray is imported by `build` alone.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import _build, _ray_node
from ._options import listed, number, path, paths, refused, whole
from ._ray_progress import Line, added, following, total
from ._stoker import __version__
from .errors import BuildError, ConfigError, StokerError

# Bytes of metadata in one object: small beside any object store, large beside the cost of a call.
PIECE_BYTES = 8 << 20

# Between two looks at the cluster.
TICK_SECONDS = 0.5

# How long builders may take to end; they promise 5 s.
STOP_SECONDS = 8.0

# How often the builder of one node may die before the build is given up. A picture that kills a builder is found by the next one.
DEATHS_MAX = 3

_NODES = "give a list of names, as `ray start --node-name` said them"
_PLACEMENT = "give a list of partitions for each node, as stoker.place makes it"
_CPUS = "give a number above 0, or leave it out for all CPUs of a node"

AnyPath = str | os.PathLike[str]


def build(
    input: AnyPath | Iterable[AnyPath],
    *,
    model: AnyPath,
    output: AnyPath,
    nodes: Sequence[str] | None = None,
    placement: Sequence[Iterable[int]] | None = None,
    workers: int | None = None,
    num_cpus: float | None = None,
    commit_to: AnyPath | None = None,
    timeout: float = 600.0,
    progress: bool | Callable[[dict[str, Any]], object] = True,
    **options: Any,
) -> dict[str, Any]:
    """Build a cache on a Ray cluster: each node its share, onto its own disk; then commit it on every node.

    input, model   as of `stoker.build`, and so are all further `options`; every node must see them under the same names
    output         the cache's folder on each node. `{node}` in it stands for the node's name, where nodes share a file system
    nodes          names of the nodes, in the order of the ranks that will read (`ray start --node-name`; a node's address
                   unless it has a name). By default all that have a CPU, in the order of their names
    placement      which partitions each of the nodes shall have, as of `Reader`: then a node that is lost is waited for.
                   By default partition p goes to node p mod K, and what a lost node had is built by the others
    workers        in how many parts the partitions are built, each taken over by another node as a whole; by default one each
    num_cpus       CPUs that a builder asks for, and its threads unless `threads` says otherwise; by default all of the node
    commit_to      a folder here that also gets the cache, without shards
    timeout        seconds to wait for a node that is not there, or whose CPUs are in use
    progress       a line on stderr; or a function that is called twice a second with a dict of counts like that of
                   `stoker.build`, summed over the nodes, with those of each node that is there in `nodes`

    Gives what `commit` reports, with `placement` (of `Reader`, in the order of the ranks) and `nodes` (name, Ray's id, address
    and output of each). The same call again does only what is missing. Ctrl-C, and an exception of `progress`, stop the builders; what is
    done stays. Connects to the cluster that RAY_ADDRESS names, or that runs here, unless `ray.init` was called before.
    """
    for name in ("worker", "dry_run", "prune"):
        if name in options:
            raise ConfigError(f"no option of a build on a cluster: `{name}`", "use stoker.build, or stoker.commit")
    inspect.signature(_build.build).bind(input, model=model, output=output, **options)
    options = {**options, "input": paths("input", input), "model": path("model", model)}
    output = path("output", output, "give the cache's folder on each node")
    if nodes is not None:
        nodes = [path("nodes", name, _NODES) for name in listed("nodes", nodes, _NODES)]
    if placement is not None:
        rows = [listed("placement", row, _PLACEMENT) for row in listed("placement", placement, _PLACEMENT)]
        placement = [[whole("placement", number, _PLACEMENT, 0) for number in row] for row in rows]
    if workers is not None:
        whole("workers", workers, "give a number above 0, or leave it out for one part a partition", 1)
    if num_cpus is not None and number("num_cpus", num_cpus, _CPUS, 0) == 0:
        raise refused("num_cpus", num_cpus, _CPUS)
    if commit_to is not None:
        commit_to = path("commit_to", commit_to, "leave it out, or name a folder")
    number("timeout", timeout, "give a number of seconds, at least 0", 0)
    if not isinstance(progress, bool) and not callable(progress):
        raise refused("progress", progress, "give True, False or a function")
    run = _Run(options, output, nodes, placement, workers, num_cpus, timeout, progress)
    try:
        return run.run(commit_to)
    finally:
        run.end()


class _Lost(Exception):
    """A node, or the builder on it, is gone."""

    def __init__(self, member: _Member, why: Exception) -> None:
        super().__init__(member.name)
        self.member, self.why = member, why


class _Member:
    """A node of the build, and the one call that its builder is busy with."""

    def __init__(self, name: str, output: str, deadline: float, restart: bool) -> None:
        self.name = name
        self.output = output
        self.deadline = deadline
        self.restart = restart
        # What Ray says of the node, its CPUs, and the builder there.
        self.info: dict[str, Any] = {}
        self.cpus = 0.0
        self.actor: Any = None
        self.call: tuple[str, Any, tuple[Any, ...]] | None = None
        # Where its folder is, once a builder there has answered; whether this one has; how many have died since they had.
        self.folder: list[Any] | None = None
        self.met = False
        self.deaths = 0
        # Parts that it shall have, and those that it has; not known before it was asked.
        self.parts: set[int] = set()
        self.done: set[int] | None = None
        # What earlier builds did, what the running one does, and the question for that.
        self.past: dict[str, Any] = {}
        self.doing: dict[str, Any] = {}
        self.asked: Any = None

    def ask(self, what: str, *args: Any) -> None:
        self.call = (what, getattr(self.actor, what).remote(*args), args)

    def is_asked(self, *what: str) -> bool:
        return self.call is not None and self.call[0] in what


class _Run:
    """One call of `build`."""

    def __init__(
        self,
        options: dict[str, Any],
        output: str,
        nodes: Sequence[str] | None,
        placement: Sequence[Iterable[int]] | None,
        workers: int | None,
        num_cpus: float | None,
        timeout: float,
        progress: bool | Callable[[dict[str, Any]], object],
    ) -> None:
        self._ray = _ray()
        self._options = options
        self._output = output
        self._workers = workers
        self._cpus = num_cpus
        self._timeout = timeout
        self._placement = None if placement is None else [sorted(set(row)) for row in placement]
        restart = bool(options.pop("restart", False))
        self._plan: dict[str, Any] | None = None
        self._began = time.monotonic()
        self._line = Line(progress is True)
        self._report = progress if callable(progress) else None
        there = self._there()
        if len(there) < sum(info["Alive"] for info in self._ray.nodes()):
            raise ConfigError(
                f"several nodes have one name, among these: `{', '.join(sorted(there))}`",
                "start each with a name of its own: ray start --node-name",
            )
        if nodes is None:
            nodes = sorted((name for name, info in there.items() if info["Resources"].get("CPU", 0) >= 1), key=_natural)
        if not nodes or len(set(nodes)) < len(nodes):
            raise ConfigError(f"no nodes, or one twice: `{', '.join(nodes)}`", "name each node once")
        if self._placement is not None and len(self._placement) != len(nodes):
            raise ConfigError(f"the placement is of {len(self._placement)} nodes, there are `{len(nodes)}`", "give nodes")
        deadline = time.monotonic() + timeout
        # In the order of the ranks; members are those of them that are not lost for good.
        self._order = [_Member(name, output.replace("{node}", name), deadline, restart) for name in nodes]
        self._members = list(self._order)

    def run(self, commit_to: AnyPath | None) -> dict[str, Any]:
        while True:
            self._settle()
            try:
                with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
                    return self._commit(Path(folder), commit_to)
            except _Lost as lost:
                self._lose(lost.member, lost.why)

    def end(self) -> None:
        """Stop what still builds, and leave no actor."""
        try:
            calls = [member.call[1] for member in self._members if member.call and member.is_asked("plan", "build")]
            for member in self._members:
                if member.actor is not None:
                    member.actor.stop.remote()
            if calls:
                self._ray.wait(calls, num_returns=len(calls), timeout=STOP_SECONDS)
        finally:
            for member in self._members:
                self._kill(member)
            self._line.end()

    # Building: each look deals what nobody has, and gives every idle builder its next call.

    def _settle(self) -> None:
        """Return when every part is built by a node that is there."""
        while True:
            self._deal()
            for member in list(self._members):
                self._step(member)
            calls = {member.call[1]: member for member in self._members if member.call}
            if not calls and self._is_settled():
                return
            if calls:
                ready, _ = self._ray.wait(list(calls), timeout=TICK_SECONDS)
                for ref in ready:
                    self._take(calls[ref])
            else:
                time.sleep(TICK_SECONDS)
            self._show("plan" if self._plan is None else "build")

    def _is_settled(self) -> bool:
        whole = all(member.done is not None and member.parts <= member.done for member in self._members)
        # A node that was lost just now has left parts that nobody has.
        return whole and len(self._dealt()) == self._workers

    def _dealt(self) -> set[int]:
        return set().union(*(member.parts for member in self._members))

    def _deal(self) -> None:
        """Give each part that no node has to one: where it is built already, else at its home, else where least is."""
        if self._plan is None or self._placement is not None or any(member.done is None for member in self._members):
            return
        owned = self._dealt()
        for part in range(self._workers or 0):
            if part not in owned:
                holders = [member for member in self._members if part in (member.done or ())] or self._members
                home = self._order[part % len(self._order)]
                fewest = min(holders, key=lambda member: len(member.parts))
                (home if home in holders else fewest).parts.add(part)

    def _step(self, member: _Member) -> None:
        if not member.met and time.monotonic() > member.deadline:
            raise BuildError(
                f"no builder ran within {self._timeout:.0f} s on node `{member.name}`",
                "what is done stays: run it again when the node is there and its CPUs are free, or with other nodes",
            )
        if member.call is not None:
            return
        if member.actor is None:
            self._connect(member)
        elif self._plan is None:
            if not any(other.is_asked("plan") for other in self._members):
                member.ask("plan", self._options)
        elif member.done is None:
            member.ask("finished", self._plans(), self._workers)
        elif member.parts - member.done:
            options = {**self._options, "restart": member.restart}
            if member.cpus >= 1:
                options.setdefault("threads", int(member.cpus))
            member.ask("build", options, sorted(member.parts - member.done), self._workers)

    def _connect(self, member: _Member) -> None:
        """Put a builder on a node that is there; else wait for it, or do without it."""
        info = self._there().get(member.name)
        if info is None and member.folder and self._placement is None:
            self._members.remove(member)
            self._line.note(f"node {member.name} is lost; the others build its {len(member.parts)} parts")
            if not self._members:
                raise BuildError(f"all nodes are lost, the last one: `{member.name}`", "what is done stays: run it again")
        elif info is not None:
            member.info = info
            cpus = info["Resources"].get("CPU", 0)
            member.cpus = cpus if self._cpus is None else self._cpus
            if member.cpus > cpus:
                raise ConfigError(f"node {member.name} has fewer CPUs than num_cpus asks for: `{cpus:g}`", "give less")
            place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(info["NodeID"], soft=False)
            # Threads: one builds, the others answer meanwhile.
            actor = self._ray.remote(_ray_node.Node).options(
                num_cpus=member.cpus, max_concurrency=4, max_restarts=0, max_task_retries=0, scheduling_strategy=place
            )
            member.actor = actor.remote(member.output)
            member.ask("hello")

    def _take(self, member: _Member) -> None:
        """What a builder has answered."""
        assert member.call is not None
        what, ref, args = member.call
        member.call = None
        try:
            answer = self._get(member, ref)
        except _Lost as lost:
            self._lose(member, lost.why)
            return
        if what == "hello":
            self._meet(member, *answer)
        elif what == "plan":
            self._use(answer)
        elif what == "finished":
            # The first build would drop what is unfinished, and with it finished parts.
            member.done = set() if member.restart else set(answer)
        elif what == "build":
            member.done = (member.done or set()) | set(args[1])
            member.restart = False
            member.past = added(member.past, following(member.doing, {**member.doing, "stage": "commit"}))
            member.doing, member.asked = {}, None

    def _meet(self, member: _Member, release: str, folder: list[Any]) -> None:
        if release != __version__:
            raise ConfigError(
                f"node {member.name} has stoker {release}, the driver has `{__version__}`", "install the same one everywhere"
            )
        member.folder, member.met = folder, True
        for other in self._members:
            if other is not member and other.folder == folder:
                raise ConfigError(
                    f"nodes {other.name} and {member.name} have one folder: `{member.output}`",
                    "give an output on each node's own disk, or put {node} into it",
                )

    def _use(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        count = plan["partitions"]
        self._workers = min(self._workers or count, count)
        if self._placement is not None:
            for member, row in zip(self._order, self._placement):
                member.parts = {partition % self._workers for partition in row}
                if row != [partition for partition in range(count) if partition % self._workers in member.parts]:
                    raise ConfigError(
                        f"the placement of node {member.name} is not of whole parts of {count} partitions: `{row}`",
                        "leave out workers, or give the table of this cache",
                    )
            lacking = set(range(count)).difference(*self._placement)
            if lacking:
                raise ConfigError(f"no node of the placement has these partitions: `{sorted(lacking)}`", "place all")

    def _lose(self, member: _Member, why: Exception) -> None:
        """Forget the builder of a node: it may have died alone, or with the node."""
        if "No module named 'stoker" in str(why):
            raise ConfigError(f"stoker is not installed on node `{member.name}`", "install the same release everywhere")
        self._kill(member)
        member.done, member.doing = None, {}
        if not member.met:
            # The node may be gone and not known to be: Ray refuses at once, until it knows.
            time.sleep(TICK_SECONDS)
            return
        member.met = False
        member.deadline = time.monotonic() + self._timeout
        member.deaths += 1
        if member.deaths > DEATHS_MAX:
            raise BuildError(f"node {member.name}: the builder died {member.deaths} times: `{why}`", "look at Ray's logs there")

    # Committing: small files come here, are put together, and go to all nodes, which do the same.

    def _commit(self, folder: Path, commit_to: AnyPath | None) -> dict[str, Any]:
        parts = {member: folder / "parts" / f"{number:05}" for number, member in enumerate(self._members)}
        listed = self._all("collect", lambda member: member.actor.files.remote(sorted(member.parts), self._workers))
        reads = {member: map(member.actor.read.remote, _ray_node.cut(listed[member], PIECE_BYTES)) for member in listed}
        self._each("collect", reads, lambda member, chunks: _ray_node.write(parts[member], chunks))
        held = [path for member, path in parts.items() if member.parts]
        report = _build.commit(held, output=folder / "cache" if commit_to is None else commit_to)
        self._all("commit", lambda member: member.actor.receive.remote())
        for piece in _pieces(folder / "parts"):
            shared = self._ray.put(_ray_node.read(folder / "parts", piece))
            self._all("commit", lambda member, shared=shared: member.actor.write.remote(shared))  # type: ignore[misc]
        prints = self._all("commit", lambda member: member.actor.commit.remote())
        for member, fingerprint in prints.items():
            if fingerprint != report["fingerprint"]:
                raise BuildError(f"node {member.name} committed another cache: `{fingerprint}`", "run it again")
        return self._reported(report)

    def _reported(self, report: dict[str, Any]) -> dict[str, Any]:
        assert self._plan is not None
        del report["not_held"]
        count, workers = self._plan["partitions"], self._workers or 1
        report["seconds"] = time.monotonic() - self._began
        report["output"] = self._output
        report["placement"] = [
            [partition for partition in range(count) if partition % workers in member.parts] for member in self._members
        ]
        report["nodes"] = [
            {
                "name": member.name,
                "id": member.info["NodeID"],
                "address": member.info["NodeManagerAddress"],
                "output": member.output,
            }
            for member in self._members
        ]
        return report

    def _all(self, stage: str, ask: Callable[[_Member], Any]) -> dict[_Member, Any]:
        """What all builders answer to one call each."""
        answers: dict[_Member, Any] = {}
        self._each(stage, {member: iter([ask(member)]) for member in self._members}, answers.__setitem__)
        return answers

    def _each(self, stage: str, calls: dict[_Member, Iterator[Any]], take: Callable[[_Member, Any], object]) -> None:
        """Take the answers to all calls of each builder. One is under way at a time: `calls` makes the next when asked for it."""
        waiting = {next(calls[member], None): member for member in calls}
        waiting.pop(None, None)
        while waiting:
            ready, _ = self._ray.wait(list(waiting), timeout=TICK_SECONDS)
            self._show(stage)
            for ref in ready:
                member = waiting.pop(ref)
                take(member, self._get(member, ref))
                upcoming = next(calls[member], None)
                if upcoming is not None:
                    waiting[upcoming] = member

    # Ray.

    def _there(self) -> dict[str, dict[str, Any]]:
        """The nodes that are alive, by name."""
        return {info["NodeName"]: info for info in self._ray.nodes() if info["Alive"]}

    def _get(self, member: _Member, ref: Any) -> Any:
        """The answer to a call; what went wrong on a node names it."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, StokerError):
                raise type(cause)(f"node {member.name}: {cause.message}", cause.hint) from None
            raise BuildError(f"node {member.name}: {type(cause).__name__}: `{cause}`", "look at Ray's logs there") from error
        except errors.RayError as error:
            raise _Lost(member, error) from error

    def _kill(self, member: _Member) -> None:
        if member.actor is not None:
            self._ray.kill(member.actor)
        member.actor = member.asked = member.call = None

    def _plans(self) -> list[str]:
        assert self._plan is not None
        return [self._plan["image_plan_id"], self._plan["text_plan_id"]]

    def _show(self, stage: str) -> None:
        for member in self._members:
            if member.asked is None and member.is_asked("plan", "build"):
                member.asked = member.actor.progress.remote()
            elif member.asked is not None and self._ray.wait([member.asked], timeout=0)[0]:
                ref, member.asked = member.asked, None
                try:
                    member.doing = following(member.doing, self._ray.get(ref))
                except self._ray.exceptions.RayError:
                    # The call that it is busy with says so too.
                    continue
        there = {member.name: added(member.past, member.doing) for member in self._members if member.met}
        doing = total(stage, there, len(self._order))
        self._line.show(doing)
        if self._report is not None:
            self._report(doing)


def _ray() -> Any:
    """Ray, connected to a cluster."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ConfigError("Ray is not installed", "pip install ray") from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise ConfigError("no Ray cluster runs here", "ray start --head, or set RAY_ADDRESS") from error
    return ray


def _pieces(folder: Path) -> Iterator[list[tuple[str, int, int]]]:
    """All files below a folder, in runs of bounded size."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return _ray_node.cut([(str(path.relative_to(folder)), path.stat().st_size) for path in files], PIECE_BYTES)


def _natural(name: str) -> list[str | int]:
    """Sorts `node-2` before `node-10`."""
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]
