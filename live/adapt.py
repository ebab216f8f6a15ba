"""Keeps a live endpoint's speculator fitted to its traffic: watch, train, gate, deploy.

    with Adapter.open(loaded, state_dir, deployer) as adapter:
        adapter.run(rounds=None)                      # until it is stopped
        adapter.run(once=True)                        # until the log is used up

New rows of the log are cut into windows (data/ingest/log_tail.py). Each window is captured, and the
speculator in use and the base are replayed on it. When the one falls against the other or enough
rows are new (adapt_policy.py), a round trains on from the speculator in use. The windows that
arrive after the round's are its gate, with sessions of older windows that no round trains on.
A round that wins is deployed; one that loses stays in rounds/ as evidence.

    state_dir/journal.jsonl           every step, appended when it is done (state.py)
    state_dir/adapt/windows/w000003/  traffic/ features/ replay/, first log/: a run directory
    state_dir/adapt/rounds/r0002/     round.json gate.json speculator/ bundle/: a run directory

The next step follows from the journal, so a process that is killed repeats at most one step.
"""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.data.config import PrivacyConfig
from outrider.data.ingest.log_tail import cut, end_of, find_unread, unread_rows
from outrider.live.adapt_gate import GateVerdict, judge, watched, write_bundle
from outrider.live.adapt_policy import reason_to_train, surplus, within_budget
from outrider.live.deployer import EndpointDeployer, Serving, base_to_watch, recipe_from
from outrider.live.journal import Journal, lock
from outrider.live.state import Round, State, Window
from outrider.pipeline.recipe.load import LoadedRecipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.run_stages import StageFailed, run_stages
from outrider.pipeline.stages.adapt import ADAPT_ROUND, ADAPT_WINDOW, PLAN

MOST_BEHIND = 4
"""Windows that may wait to be captured. Rows before them are passed over: where more arrives than
can be captured, the newest traffic decides."""

POLL_S = 30.0
"""Time between two looks at the log while there is nothing to do, in seconds."""

MOST_REFUSED = 3
"""Windows in a row that may be refused. One more is an error: the log or the target is wrong."""

OLDER_WINDOWS = 20
"""Most windows of earlier rounds that a gate measures."""

KEPT_ROUNDS = 3
"""Newest rounds that keep their weights. All keep their figures."""

INTERRUPTED = 75

FOLDER = "adapt"
"""Below the endpoint's `state_dir`."""

LOG = "log"
"""Folder of a window with rows of the log, until they are sequences."""


@dataclass
class Adapter:
    """The loop. `step` does one thing and returns whether there was one to do."""

    loaded: LoadedRecipe
    folder: Path
    deployer: EndpointDeployer
    journal: Journal
    console: Console
    parity: bool = True
    """Whether the first round checks trainer against engine (draft_parity_check.py)"""
    clock: Callable[[], float] = time.time

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        loaded: LoadedRecipe,
        state_dir: Path,
        deployer: EndpointDeployer,
        console: Console | None = None,
        parity: bool = True,
        listener: Callable[[State], None] = lambda state: None,
    ) -> Iterator["Adapter"]:
        """Locks and opens `state_dir`/adapt; a second process gets an error.

        `listener` gets the journal's state after each step.
        """
        folder = state_dir / FOLDER
        with (
            Journal(state_dir / "journal.jsonl", listener=listener) as journal,
            lock(folder / "adapt.lock", "follows this traffic already; wait for it, or end it"),
        ):
            console = console or Console(stderr=True, highlight=False, soft_wrap=True)
            yield cls(loaded, folder, deployer, journal, console, parity)

    @property
    def recipe(self) -> Recipe:
        """The recipe as the user wrote it."""
        return self.loaded.recipe

    @property
    def state(self) -> State:
        """What has been done."""
        return self.journal.read()

    def run(
        self, rounds: int | None = None, once: bool = False,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """Steps until `rounds` more rounds are settled, or, with `once`, nothing is left to do."""
        before = self._settled()
        while rounds is None or self._settled() - before < rounds:
            if not self.step():
                if once:
                    return
                wait(POLL_S)

    def step(self) -> bool:
        """Does the next step; False where it has to wait for traffic or for the budget."""
        self._delete(self.state)
        state = self.state
        if (window := state.unsettled) is not None:
            self._watch(window)
            return True
        if (pending := state.pending_round) is not None:
            if not pending.trained:
                self._train(pending)
                return True
            if pending.ships:
                self._deploy(pending)
                return True
            if state.fresh:
                self._gate(pending, state.fresh)
                return True
        else:
            if self._within_budget(state):
                serving = self.deployer.serving()
                reason = reason_to_train(state, serving.name, self.recipe.adapt)
                if reason is not None:
                    self._begin_round(state, reason)
                    return True
        return self._cut(state)

    def window_run(self, number: int) -> RunDirectory:
        """The run directory of a window."""
        return RunDirectory(self.folder / "windows" / f"w{number:06d}")

    def round_run(self, number: int) -> RunDirectory:
        """The run directory of a round."""
        return RunDirectory(self.folder / "rounds" / f"r{number:04d}")

    def _cut(self, state: State) -> bool:
        adapt, path = self.recipe.adapt, self.recipe.traffic.path
        if state.position is None:
            start: dict[str, int] = {}
            if not adapt.from_start:
                with contextlib.suppress(OutriderError):  # nothing is logged yet
                    start = end_of(find_unread(path, {}))
            self.journal.append("start", position=start)
            return True
        unread = find_unread(path, state.position)
        rows = unread_rows(unread)
        if rows < adapt.window or not self._within_budget(state):
            return False
        number = len(state.windows) + 1
        skipped = max(rows - MOST_BEHIND * adapt.window, 0)
        after = cut(unread, adapt.window, self.window_run(number).root / LOG, skipped)
        self.journal.append(
            "window",
            window=number,
            rows=adapt.window,
            skipped=skipped,
            position=after,
        )
        if skipped:
            self._say(f"{skipped:,} rows passed over: more traffic than can be captured")
        return True

    def _within_budget(self, state: State) -> bool:
        return within_budget(state, self.clock(), self.recipe.adapt.gpu_hours_per_day)

    def _watch(self, window: Window) -> None:
        """Captures a window and replays the speculator in use, and the base, on it."""
        began = time.monotonic()
        (serving, followed), run = self._in_use(), self.window_run(window.n)
        traffic = followed.traffic.model_copy(
            update={"path": [str(run.root / LOG)], "general": None}
        )
        recipe = followed.model_copy(update={"traffic": traffic, "name": run.root.name})
        try:
            self._run_stage(run, recipe, ADAPT_WINDOW.name, {})
            base = base_to_watch(self.recipe, serving)
            found, ratio = watched(run, serving.directory, base, followed, serving.k)
        except OutriderError as error:
            if error.exit_code == INTERRUPTED:
                raise
            spent = self._gpu_seconds(began)
            self.journal.append(
                "refused_window", window=window.n, reason=str(error), gpu_seconds=spent
            )
            self._say(f"window {window.n} refused: {error}")
            last = list(self.state.windows.values())[-MOST_REFUSED - 1 :]
            if len(last) > MOST_REFUSED and not any(each.acceptance for each in last):
                raise
            return
        self.journal.append(
            "watched",
            window=window.n,
            release=serving.name,
            k=serving.k,
            acceptance=found.model_dump(mode="json"),
            ratio=ratio.model_dump(mode="json") if ratio else None,
            gpu_seconds=self._gpu_seconds(began),
        )
        self._say(
            f"window {window.n}: {found.observations} sequences,"
            f" acceptance length of {serving.name} {found.value:.3f}"
            + (f", {ratio.value:.3f} of the base's" if ratio else "")
        )

    def _begin_round(self, state: State, reason: str) -> None:
        number = len(state.rounds) + 1
        older = [window.n for window in state.older]
        newer = [window.n for window in state.fresh]
        self.journal.append("round", round=number, newer=newer, older=older, reason=reason)
        self._say(f"round {number}: {reason}")

    def _train(self, pending: Round) -> None:
        began = time.monotonic()
        run, (serving, followed) = self.round_run(pending.n), self._in_use()
        training = followed.training.model_copy(update={"epochs": 1})
        recipe = followed.model_copy(update={"training": training, "name": run.root.name})
        plan = {
            "number": pending.n,
            "trained_from": serving.name,
            "newer": [str(self.window_run(number).root) for number in pending.newer],
            "older": [str(self.window_run(number).root) for number in pending.older],
        }
        run.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(run.root / PLAN, plan)
        try:
            parity = self.parity and pending.n == 1
            result = self._run_stage(run, recipe, ADAPT_ROUND.name, {"parity": parity})
        except StageFailed as error:
            if error.exit_code == INTERRUPTED:
                raise
            self._settle(pending, f"the training failed: {error}", began)
            return
        spent = self._gpu_seconds(began)
        self.journal.append(
            "trained", round=pending.n, sequences=result["sequences"], gpu_seconds=spent
        )

    def _gate(self, pending: Round, windows: list[Window]) -> None:
        began = time.monotonic()
        run, (serving, recipe) = self.round_run(pending.n), self._in_use()
        runs = [self.window_run(window.n) for window in windows]
        kept = [n for n in pending.older if not self.state.windows[n].deleted]
        # Evenly spaced in time, because each costs two replays.
        older = [self.window_run(n) for n in kept[:: math.ceil(len(kept) / OLDER_WINDOWS) or 1]]
        verdict = judge(run, runs, older, serving.directory, recipe, serving.k)
        write_json(run.root / "gate.json", verdict.model_dump(mode="json"))
        if verdict.ships:
            write_bundle(run, recipe, verdict)
        self._settle(pending, verdict.reason, began, verdict, [window.n for window in windows])

    def _settle(
        self,
        pending: Round,
        reason: str,
        began: float,
        verdict: GateVerdict | None = None,
        windows: Sequence[int] = (),
    ) -> None:
        """Records the gate's verdict; None where the training failed."""
        ships = verdict is not None and verdict.ships
        self.journal.append(
            "gated",
            round=pending.n,
            ships=ships,
            reason=reason,
            windows=windows,
            acceptance=verdict.measured if verdict is not None else None,
            gpu_seconds=self._gpu_seconds(began),
        )
        self._say(f"round {pending.n} {'ships' if ships else 'does not ship'}: {reason}")

    def _deploy(self, pending: Round) -> None:
        outcome = self.deployer.deploy(self.round_run(pending.n).bundle)
        name = self.deployer.serving().name
        self.journal.append("deployed", round=pending.n, outcome=outcome, release=name)
        self._say(f"round {pending.n}: {outcome}, {name} serves")

    def _delete(self, state: State) -> None:
        """Deletes windows by retention, age and size, and what settled rounds need no more."""
        pending = state.pending_round
        if pending is not None and not pending.trained:
            return  # it reads its windows
        kept = {n: self.window_run(n) for n, each in state.windows.items() if not each.deleted}
        sizes = {number: _bytes(run.root) for number, run in kept.items()}
        keep_older = self.recipe.privacy.retention == "keep"
        if doomed := surplus(state, sizes, keep_older, self.clock(), self.recipe.adapt):
            self.journal.append("deleted", windows=doomed)
        for number, window in state.windows.items():
            run = self.window_run(number)
            if window.deleted:
                shutil.rmtree(run.root, ignore_errors=True)
            elif number < len(state.windows) or window.acceptance is not None:
                shutil.rmtree(run.root / LOG, ignore_errors=True)  # its rows are sequences now
        for each in state.rounds:
            if not each.settled:
                continue
            run = self.round_run(each.n)
            paths = [run.traffic, run.features, run.training]  # text, states and optimizer states
            if each.n <= len(state.rounds) - KEPT_ROUNDS:
                paths += [run.speculator, run.bundle]
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)

    def _in_use(self) -> tuple[Serving, Recipe]:
        """The speculator in use, and the recipe of the next step, which starts from it."""
        serving = self.deployer.serving()
        return serving, recipe_from(self._with_key(), serving)

    def _with_key(self) -> Recipe:
        """The recipe with one key for all windows: of surrogates, and of users' digests."""
        from outrider.data.privacy.guard import privacy_key

        privacy = self.recipe.privacy
        if privacy.key_file is not None:
            return self.recipe
        path = self.folder / "privacy.key"
        privacy_key(privacy, path)
        shared = PrivacyConfig.model_validate({**dict(privacy), "key_file": str(path)})
        return self.recipe.model_copy(update={"privacy": shared})

    def _run_stage(
        self, run: RunDirectory, recipe: Recipe, name: str, options: dict[str, Any]
    ) -> dict[str, Any]:
        with run.locked():
            run.begin_attempt(recipe, self.loaded.files, sys.argv)
            return run_stages(run, recipe, [name], options, self.console)[name]

    def _settled(self) -> int:
        return sum(each.settled for each in self.state.rounds)

    def _gpu_seconds(self, began: float) -> float:
        """Of work that began at a time of the monotonic clock."""
        return round(self.recipe.serving.engine.gpus * (time.monotonic() - began), 1)

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False)


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def summary(adapter: Adapter) -> dict[str, Any]:
    """The line for scripts."""
    state = adapter.state
    last = state.usable[-1].acceptance if state.usable else None
    return {
        "recipe": adapter.recipe.name,
        "windows": len(state.windows),
        "rounds": len(state.rounds),
        "shipped": sum(each.won for each in state.rounds),
        "lost": sum(each.settled and not each.won for each in state.rounds),
        "serving": adapter.deployer.serving().name,
        "acceptance_length": last.value if last else None,
        "state": str(adapter.folder),
    }
