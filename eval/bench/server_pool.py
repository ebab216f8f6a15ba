"""The servers of one engine mode: one without speculation, and one that base and custom share.

    with open_fleet(target, serving, speculators, k=3, mode="eager", log_dir=logs) as fleet:
        for variant in fleet.variants:
            complete(fleet.server(variant).url, ...)

The same engine started twice can differ by a factor of two on a shared machine. So base and custom
are compared in one engine, whose drafter weights are exchanged between blocks or requests in
milliseconds; flags, compiled code and memory are the same for both. Only the comparison with no
speculation crosses engines, as does that with a speculator whose weights cannot be exchanged: one
of another kind or shape, or without weights. Where the machine holds them, all servers are up at
once. A target that fills its GPUs leaves room for one, and the servers alternate.

Variants of one engine may draft different numbers of tokens. The engine is then started with a
schedule of drafts that has all of them, and `server` sets the variant's own before its requests
(serving/vllm_hooks/step_recorder.py). With data parallelism or EPLB that is not possible, and every
number and speculator has a server of its own. Such an engine at k is as fast as one started at k
(benchmarks/results/serving.md). Without a plan it rotates through 1..depth drafts, for
eval/bench/step_times.py.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from outrider.eval.results.parts import CURRENT, SAME_K
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.server import Server
from outrider.serving.speculator import Speculator
from outrider.serving.vllm_hooks.step_recorder import Drafts, Step, StepFile
from outrider.serving.vllm_hooks.version import runs_on_cpu

PLAIN, SPECULATING = "none", "speculating"
EXTRAS = (SAME_K, CURRENT)

DraftPlan = Mapping[str, Drafts]
"""Drafts per step of base, custom and those of EXTRAS that are measured."""


class Fleet:
    """The variants' servers.

    For one stream of requests at a time: `server` may exchange weights, and start and stop servers.
    """

    def __init__(
        self,
        target: TargetConfig,
        serving: ServingConfig,
        speculators: Mapping[str, Speculator | Path],
        plan: DraftPlan | None,
        log_dir: Path,
        side_by_side: bool,
        depth: int | None = None,
    ) -> None:
        """`speculators` are base and custom.

        Of those that share an engine, the first is loaded at its start. `plan` None needs `depth`,
        the largest number of drafts.
        """
        self._speculators = {PLAIN: Speculator("none")} | {
            v: Speculator.of(each) for v, each in speculators.items()
        }
        self.variants = tuple(self._speculators)
        self._one_number = not serving.engine.changes_drafters
        """Every number of drafts and every speculator has a server of its own."""
        self._exchanging = set() if self._one_number else _exchanging(self._speculators)
        self._variants_of: dict[str, list[str]] = {}
        for variant in self.variants:
            self._variants_of.setdefault(self._name(variant), []).append(variant)
        self.groups = (
            (self.variants,) if side_by_side else tuple(map(tuple, self._variants_of.values()))
        )
        """Variants that can be measured in turn without starting a server in between."""
        self.server_names = tuple(self._variants_of)
        self._target, self._serving, self._plan, self._depth = target, serving, plan, depth
        self._log_dir, self._side_by_side = Path(log_dir), side_by_side
        mode = serving.engine.mode
        self._steps = {
            name: StepFile(self._log_dir / f"steps_{mode}_{name}.jsonl")
            for name in (*self.server_names, *EXTRAS)
        }
        self._up: dict[str, Server] = {}
        self._loaded: Path | None = None
        self._started_with: dict[str, tuple[int, ...]] = {}
        self._drafting: dict[str, Drafts] = {}
        self._fresh: set[str] = set()

    def server(self, variant: str) -> Server:
        """The variant's server: ready, its weights in place, and the other server idle.

        Its prefix cache is empty, so call this before every block. An exchange empties the cache;
        without this, a variant that follows another with the same weights would find the prompts
        of the block before in it, and one that follows an exchange never would.
        """
        name = self._name(variant)
        if name not in self._up:
            if not self._side_by_side:
                self.stop()
            self.start([name])
        directory = self._speculator(variant).directory
        if name == SPECULATING and directory != self._loaded:
            assert directory is not None  # variants of this server have weights
            self._up[name].swap(directory)
            self._loaded = directory
        else:
            self._up[name].reset_prefix_cache()
        drafts = self.drafts(variant)
        if drafts is not None and self._changes_drafts(name):
            if drafts != self._drafting.get(name):
                self._steps[name].draft(drafts)
            self._drafting[name] = drafts
        return self._up[name]

    def drafts(self, variant: str) -> Drafts | None:
        """Drafts per step of the variant; None without speculation, and while servers rotate."""
        if self._name(variant) == PLAIN or self._plan is None:
            return None
        return self._plan[variant]

    @property
    def swap_seconds(self) -> float:
        """Seconds that the last exchange of weights took; 0 before the first."""
        return max((server.swap_seconds or 0.0 for server in self._up.values()), default=0.0)

    @property
    def extras(self) -> tuple[str, ...]:
        """Those of EXTRAS that are in the plan; they run in base's server."""
        return tuple(name for name in EXTRAS if name in (self._plan or {}))

    def rotate(self, numbers: Sequence[int]) -> None:
        """Lets speculating servers draft each of these numbers in turn, until `draft`."""
        for name in self.server_names:
            if name != PLAIN:
                self._steps[name].draft(*numbers)

    def draft(self, plan: DraftPlan) -> None:
        """Sets the number of drafts of every variant.

        On a CPU a server that was started with a schedule of drafts stays up. On a GPU the schedule
        decides which CUDA graphs are captured: with other numbers, the server is stopped, and
        started when it is next needed.
        """
        if plan == self._plan:
            return
        self._plan = plan
        for name in [*self._up]:
            if name == PLAIN:
                continue
            stays = self._changes_drafts(name) and runs_on_cpu()
            if not stays and self._numbers(name) != self._started_with[name]:
                self._up.pop(name).stop()

    def engines(self, variants: Sequence[str]) -> list[list[str]]:
        """The variants, grouped by server."""
        by_server: dict[str, list[str]] = {}
        for variant in variants:
            by_server.setdefault(self._name(variant), []).append(variant)
        return list(by_server.values())

    def needs_warm_up(self, variant: str) -> bool:
        """Whether the variant's server is up and has not been warmed up."""
        return self._name(variant) in self._fresh

    def is_fresh(self, variant: str) -> bool:
        """Like `needs_warm_up`, but true only once after each start."""
        name = self._name(variant)
        fresh = name in self._fresh
        self._fresh.discard(name)
        return fresh

    def new_steps(self, variant: str) -> list[Step]:
        """The steps of the variant's server since the last call."""
        return self._steps[self._name(variant)].new()

    def start(self, names: Sequence[str]) -> None:
        """Starts servers side by side and waits for all of them."""
        for place, name in enumerate(names):
            self._up[name] = self._new_server(name, place)
            self._up[name].start()
        for name in names:
            self._up[name].wait()
            self._fresh.add(name)
        if SPECULATING in names:
            self._loaded = self._speculator(self._variants_of[SPECULATING][0]).directory

    def restart(self) -> None:
        """Stops all servers and, where they can be up at once, starts them again."""
        self.stop()
        if self._side_by_side:
            self.start(self.server_names)

    def stop(self) -> None:
        """Stops all servers."""
        while self._up:
            _, server = self._up.popitem()
            server.stop()

    def _new_server(self, name: str, place: int) -> Server:
        engine, port = self._serving.engine, self._serving.port
        numbers = self._started_with[name] = self._numbers(name)
        schedule = covering(numbers, engine.max_num_seqs) if self._changes_drafts(name) else None
        return Server(
            self._target,
            self._steps[name].recorded(self._serving),
            None if name == PLAIN else self._speculator(self._variants_of.get(name, [name])[0]),
            None if name == PLAIN else max(numbers),
            log_path=self._log_dir / f"server_{engine.mode}_{name}.log",
            port=port and port + place,
            k_per_batch_size=schedule,
        )

    def _numbers(self, name: str) -> tuple[int, ...]:
        """The numbers of drafts that the server of that name makes, ascending."""
        if name == PLAIN:
            return ()
        if self._plan is None:
            assert self._depth is not None
            fixed = self._one_number or self._speculator(self._variants_of[name][0]).fixed_k
            return tuple(range(self._depth if fixed else 1, self._depth + 1))
        numbers: set[int] = set()
        for variant, drafts in self._plan.items():
            if self._name(variant) == name:
                numbers |= {drafts} if isinstance(drafts, int) else {k for _, _, k in drafts}
        return tuple(sorted(numbers))

    def _changes_drafts(self, name: str) -> bool:
        """Whether the server of that name was started with more than one number of drafts."""
        return len(self._started_with.get(name, ())) > 1

    def _speculator(self, variant: str) -> Speculator:
        return self._speculators["base" if variant in EXTRAS else variant]

    def _name(self, variant: str) -> str:
        """Name of the variant's server.

        Variants without speculation share one, and those whose weights can be exchanged another.
        Speculators of two kinds, or of two shapes, have a server each.
        """
        speculator = self._speculator(variant)
        if not speculator.speculates:
            return PLAIN
        drafter = "base" if variant in EXTRAS and not self._one_number else variant
        return SPECULATING if drafter in self._exchanging else drafter


def _exchanging(speculators: Mapping[str, Speculator]) -> set[str]:
    """The variants that take turns in one engine: custom, and base if it can be exchanged."""
    able = [name for name, each in speculators.items() if each.abilities.live_swap]
    if not able:
        return set()
    first = speculators[able[-1]]
    return {able[-1]} | {name for name in able if first.swaps_with(speculators[name])}


def covering(numbers: Sequence[int], seats: int) -> list[tuple[int, int, int]]:
    """A schedule that has all `numbers` of drafts, the largest for most batch sizes.

    vLLM captures CUDA graphs for the numbers in the schedule.
    """
    *others, most = sorted(numbers)
    rows = [(size, size, number) for size, number in enumerate(others[: seats - 1], 1)]
    return [*rows, (len(rows) + 1, seats, most)]


@contextlib.contextmanager
def open_fleet(
    target: TargetConfig,
    serving: ServingConfig,
    speculators: Mapping[str, Speculator | Path],
    k: int | DraftPlan,
    mode: str,
    log_dir: Path,
    side_by_side: bool = True,
) -> Iterator[Fleet]:
    """The servers of one engine mode, with k drafts; they are stopped at the end."""
    serving = serving.with_engine(mode=mode)
    plan = dict.fromkeys(speculators, k) if isinstance(k, int) else k
    fleet = Fleet(target, serving, speculators, plan, log_dir, side_by_side)
    try:
        fleet.restart()
        yield fleet
    finally:
        fleet.stop()


class ServerPool:
    """The servers of an evaluation, started once for step timing, verification and blocks.

    One engine mode is up at a time, until another is needed.
    """

    def __init__(
        self,
        target: TargetConfig,
        serving: ServingConfig,
        speculators: Mapping[str, Speculator | Path],
        depth: int,
        log_dir: Path,
        side_by_side: bool = True,
    ) -> None:
        self._target, self._serving, self._speculators = target, serving, speculators
        self._depth, self._log_dir, self._side_by_side = depth, log_dir, side_by_side
        self._fleet: Fleet | None = None
        self._mode: str | None = None

    @property
    def engine(self) -> EngineConfig:
        """The settings of all servers."""
        return self._serving.engine

    def fleet(self, mode: str, plan: DraftPlan | None = None) -> Fleet:
        """The servers of `mode`, drafting as planned or, without plan, rotating through 1..depth.

        They start, unless they are up.
        """
        if self._fleet is None or self._mode != mode:
            self.close()
            serving = self._serving.with_engine(mode=mode)
            self._fleet = Fleet(
                self._target,
                serving,
                self._speculators,
                plan,
                self._log_dir,
                self._side_by_side,
                self._depth,
            )
            self._mode = mode
            self._fleet.restart()
        elif plan is not None:
            self._fleet.draft(plan)
        return self._fleet

    def close(self) -> None:
        """Stops the servers that are up."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.stop()

    def __enter__(self) -> "ServerPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
