"""Keeps a live endpoint's speculator fitted to its traffic: watch, train, gate, deploy.

    with open_adapter(loaded, endpoint) as adapter:
        adapter.run(rounds=None)                      # until it is stopped
        adapter.run(once=True)                        # until the log is exhausted

New rows of the log are cut into windows (data/ingest/log_tail.py). Each window is captured, and the
speculator in use and the base are replayed on it. When the speculator in use loses ground to the
base, or enough new rows have arrived (policy.py), a round trains that speculator further. The gate
measures the round on windows that arrive later and on held-back sessions of older windows. A
round that wins is deployed; one that loses stays in rounds/ as evidence.

    state_dir/journal.jsonl           every step, appended when it is done (state.py)
    state_dir/adapt/windows/w000003/  log/, then traffic/ features/ replay/: a run directory
    state_dir/adapt/rounds/r0002/     round.json gate.json speculator/ bundle/: a run directory
"""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from outrider.adapt.gate import judge_round, measure_window, write_bundle
from outrider.adapt.metrics import metrics_publisher
from outrider.adapt.policy import reason_to_train, surplus_windows, within_budget
from outrider.adapt.state import AdaptState, Round, TrafficWindow
from outrider.common.errors import OutriderError
from outrider.common.files import Locked, lock, write_json
from outrider.common.inert import printable
from outrider.data.ingest.log_tail import cut_window, end_of, find_unread, unread_rows
from outrider.live.controller import open_controller
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import replicas_of
from outrider.live.journal import Journal
from outrider.live.releases import Releases
from outrider.live.state import PROMOTED, read_state
from outrider.pipeline.recipe.load import LoadedRecipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import INTERRUPTED, StageFailed, run_stages
from outrider.pipeline.stage import Options
from outrider.pipeline.stages.adapt import ADAPT_ROUND, ADAPT_WINDOW, PLAN
from outrider.speculators.base import base_of
from outrider.speculators.kinds import drafter_kind_of
from outrider.speculators.kinds.protocol import KPerBatchSize

MOST_BEHIND = 4
"""Maximum number of windows that may wait for capture. Beyond that, older rows are skipped."""

POLL_S = 30.0
"""Seconds between two checks of the log while there is nothing to do."""

MOST_REFUSED = 3
"""Maximum number of consecutive refused windows; the next one's error is raised."""

OLDER_WINDOWS = 20
"""Maximum number of windows from earlier rounds that a gate measures."""

KEPT_ROUNDS = 3
"""Number of newest rounds whose weights are kept. Figures of all rounds are kept."""

FOLDER = "adapt"
"""Folder in the endpoint's `state_dir`."""

LOG = "log"
"""Subfolder of a window for its log rows, until they are ingested."""

BASE = "base"
"""Name of the speculator in use before the first release."""


@dataclass(frozen=True)
class ServedRelease:
    """The speculator in use."""

    name: str
    """Name of its release, or `BASE`."""
    directory: Path
    """Directory of its weights; the target's directory for the target's own drafter."""
    k: int
    """Drafts per step."""
    k_per_batch_size: KPerBatchSize | None = None
    """Drafts per step by batch size, if the release has such a schedule."""


def release_in_use(endpoint: Endpoint) -> ServedRelease:
    """The release in use; before the first one, a stable replica's speculator."""
    name = read_state(endpoint).serving
    if name is not None:
        release = Releases(endpoint.releases).get(name)
        schedule = release.manifest["num_speculative_tokens_per_batch_size"]
        return ServedRelease(name, release.directory, release.k, schedule)
    status = replicas_of(endpoint)[endpoint.stable[0].name].status()
    return ServedRelease(BASE, Path(status.directory), status.k)


class Adapter:
    """The adaptation loop; the journal determines each `step`."""

    def __init__(
        self,
        loaded: LoadedRecipe,
        endpoint: Endpoint,
        journal: Journal[AdaptState],
        console: Console,
    ) -> None:
        self.loaded = loaded
        self.endpoint = endpoint
        self.journal = journal
        self.console = console
        self.folder = endpoint.state_dir / FOLDER
        self.recipe = _with_key(loaded.recipe, self.folder / "privacy.key")
        self.wait: Callable[[float], None] = time.sleep
        self._step_began = 0.0

    def run(self, rounds: int | None = None, once: bool = False) -> None:
        """Takes steps until `rounds` more rounds settle or, if `once`, until idle."""
        before = self._settled()
        while rounds is None or self._settled() - before < rounds:
            if not self.step():
                if once:
                    return
                self.wait(POLL_S)

    def step(self) -> bool:
        """Takes the next step; returns False if it lacks traffic or budget."""
        self._step_began = time.monotonic()
        state = self._delete(self.journal.read())
        newest = state.windows.get(len(state.windows))
        if newest is not None and not newest.settled:
            self._watch(newest)
            return True
        if state.pending_round is None:
            return self._begin_round(state) or self._cut(state)
        return self._advance(state, state.pending_round) or self._cut(state)

    def _advance(self, state: AdaptState, pending: Round) -> bool:
        """Trains, deploys or gates a round; returns False if its gate lacks a window."""
        if not pending.trained:
            self._train(pending)
        elif pending.ships:
            self._deploy(pending)
        elif state.fresh:
            self._gate(state, pending)
        else:
            return False
        return True

    def window_run(self, number: int) -> RunDirectory:
        """The run directory of a window."""
        return RunDirectory(self.folder / "windows" / f"w{number:06d}")

    def round_run(self, number: int) -> RunDirectory:
        """The run directory of a round."""
        return RunDirectory(self.folder / "rounds" / f"r{number:04d}")

    def _cut(self, state: AdaptState) -> bool:
        """Cuts the next window off the log; returns False if it lacks rows or budget."""
        adapt = self.recipe.adapt
        path = self.recipe.traffic.path
        try:
            unread = find_unread(path, state.position or {})
        except OutriderError as error:  # nothing is logged yet, or the storage does not answer
            self._say(f"waiting for the log: {error}")
            unread = []
        if state.position is None:
            self.journal.append("start", position={} if adapt.from_start else end_of(unread))
            return True
        rows = unread_rows(unread)
        if rows < adapt.window or not within_budget(state, adapt):
            return False
        number = len(state.windows) + 1
        # Capture costs a pass of the target per token, so traffic may come faster than it.
        skipped = max(rows - MOST_BEHIND * adapt.window, 0)
        after = cut_window(unread, adapt.window, self.window_run(number).root / LOG, skipped)
        self.journal.append(
            "window", window=number, rows=adapt.window, skipped=skipped, position=after
        )
        if skipped:
            self._say(f"{skipped:,} rows skipped: more traffic than can be captured")
        return True

    def _watch(self, window: TrafficWindow) -> None:
        """Captures a window and replays the serving speculator and the base."""
        run = self.window_run(window.n)
        serving, followed = self._in_use()
        traffic = followed.traffic.model_copy(
            update={"path": [str(run.root / LOG)], "general": None}
        )
        recipe = followed.model_copy(update={"traffic": traffic, "name": run.root.name})
        try:
            self._run_stage(run, recipe, ADAPT_WINDOW.name, {})
            acceptance, ratio = measure_window(
                window=run,
                serving_dir=serving.directory,
                base_dir=self._base_to_watch(serving),
                recipe=followed,
                k=serving.k,
            )
        except OutriderError as error:
            if error.exit_code == INTERRUPTED:
                raise
            self._refuse(window, error)
            return
        self._record(
            "watched",
            window=window.n,
            release=serving.name,
            acceptance=acceptance.model_dump(mode="json"),
            ratio=ratio.model_dump(mode="json") if ratio else None,
        )
        self._say(
            f"window {window.n}: {acceptance.observations} sequences,"
            f" acceptance length of {serving.name} {acceptance.value:.3f}"
            + (f", {ratio.value:.3f} of the base's" if ratio else "")
        )

    def _refuse(self, window: TrafficWindow, error: OutriderError) -> None:
        """Leaves a window out; raises its error if the windows before it were refused too."""
        state = self._record("refused_window", window=window.n, reason=str(error))
        self._say(f"window {window.n} refused: {error}")
        newest = list(state.windows.values())[-MOST_REFUSED - 1 :]
        if len(newest) > MOST_REFUSED and not any(window.acceptance for window in newest):
            raise error

    def _begin_round(self, state: AdaptState) -> bool:
        """Begins a round; returns False without a reason or budget."""
        if not within_budget(state, self.recipe.adapt):
            return False
        reason = reason_to_train(state, release_in_use(self.endpoint).name, self.recipe.adapt)
        if reason is None:
            return False
        number = len(state.rounds) + 1
        older = [window.n for window in state.older]
        newer = [window.n for window in state.fresh]
        self.journal.append("round", round=number, newer=newer, older=older, reason=reason)
        self._say(f"round {number}: {reason}")
        return True

    def _train(self, pending: Round) -> None:
        run = self.round_run(pending.n)
        serving, followed = self._in_use()
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
        # The first round compares the trainer's drafts with the engine's (draft_parity_check.py).
        options: Options = {"parity": pending.n == 1}
        try:
            result = self._run_stage(run, recipe, ADAPT_ROUND.name, options)
        except StageFailed as error:
            if error.exit_code == INTERRUPTED:
                raise
            self._settle(pending, False, f"the training failed: {error}")
            return
        self._record("trained", round=pending.n, sequences=result["sequences"])

    def _gate(self, state: AdaptState, pending: Round) -> None:
        """Measures a trained round on the windows that have arrived since."""
        run = self.round_run(pending.n)
        serving, recipe = self._in_use()
        older = [number for number in pending.older if not state.windows[number].deleted]
        # Only some windows, evenly spaced in time, because each costs two replays.
        stride = math.ceil(len(older) / OLDER_WINDOWS) or 1
        verdict = judge_round(
            run,
            windows=[self.window_run(window.n) for window in state.fresh],
            older=[self.window_run(number) for number in older[::stride]],
            serving_dir=serving.directory,
            recipe=recipe,
            k=serving.k,
        )
        write_json(run.root / "gate.json", verdict.model_dump(mode="json"))
        if verdict.ships:
            write_bundle(run, recipe, verdict, serving.k_per_batch_size)
        self._settle(pending, verdict.ships, verdict.reason)

    def _settle(self, pending: Round, ships: bool, reason: str) -> None:
        """Records the gate's verdict."""
        self._record("gated", round=pending.n, ships=ships, reason=reason)
        self._say(f"round {pending.n} {'ships' if ships else 'does not ship'}: {reason}")

    def _deploy(self, pending: Round) -> None:
        """Deploys a round's bundle; retries in the next step if `Locked`."""
        try:
            outcome = self._outcome(self.round_run(pending.n).bundle)
        except Locked as busy:
            self._say(str(busy))
            self.wait(POLL_S)
            return
        self.journal.append("deployed", round=pending.n, outcome=outcome)
        self._say(f"round {pending.n}: {outcome}")

    def _outcome(self, bundle: Path) -> str | None:
        """Deploys a bundle unless an interrupted deployment already did; returns the outcome."""
        with open_controller(self.endpoint, self._say) as controller:
            serving = controller.recover().serving
            # A process killed between promotion and entry finds its bundle in use already.
            if serving and controller.add_release(bundle).name == serving:
                return PROMOTED
            return controller.deploy(bundle).outcome

    def _delete(self, state: AdaptState) -> AdaptState:
        """Deletes surplus windows and what settled rounds no longer need; returns the state."""
        pending = state.pending_round
        if pending is not None and not pending.trained:
            return state  # the round's training reads the windows
        sizes = {
            number: _bytes_in(self.window_run(number).root)
            for number, window in state.windows.items()
            if not window.deleted
        }
        keep_older = self.recipe.privacy.retention == "keep"
        doomed = surplus_windows(state, sizes, keep_older, self.recipe.adapt)
        if doomed:
            # Recorded first: a killed process deletes the rest of them in its next step.
            state = self.journal.append("deleted", windows=doomed)
        for number, window in state.windows.items():
            self._delete_from_window(window, is_newest=number == len(state.windows))
        for ended in state.settled_rounds:
            self._delete_from_round(ended, is_old=ended.n <= len(state.rounds) - KEPT_ROUNDS)
        return state

    def _delete_from_window(self, window: TrafficWindow, is_newest: bool) -> None:
        root = self.window_run(window.n).root
        if window.deleted:
            shutil.rmtree(root, ignore_errors=True)
        elif not is_newest or window.acceptance is not None:
            shutil.rmtree(root / LOG, ignore_errors=True)  # its rows have been ingested

    def _delete_from_round(self, ended: Round, is_old: bool) -> None:
        run = self.round_run(ended.n)
        paths = [run.traffic, run.features, run.training]  # text, states and optimizer states
        if is_old:
            paths += [run.speculator, run.bundle]
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)

    def _in_use(self) -> tuple[ServedRelease, Recipe]:
        """The speculator in use, and the recipe that continues its training."""
        serving = release_in_use(self.endpoint)
        recipe = self.recipe
        target = recipe.target.training_directory()
        is_target = serving.directory.resolve() == target.resolve()  # the target's own drafter
        speculator = recipe.speculator.of_kinds([drafter_kind_of(serving.directory).name])
        base = None if is_target else str(serving.directory)
        # Windows are replayed at the K in use, which may exceed the recipe's depth.
        depth = max(speculator.depth, serving.k)
        speculator = speculator.model_copy(update={"base": base, "depth": depth})
        return serving, recipe.model_copy(update={"speculator": speculator})

    def _base_to_watch(self, serving: ServedRelease) -> Path | None:
        """The base with which the speculator in use is compared.

        None if the base has no weights, is itself in use, or is of another kind (windows hold
        only the states that the kind in use reads).
        """
        recipe = self.recipe
        base = base_of(recipe.speculator.base, recipe.target.training_directory()).directory
        if base is None or base.resolve() == serving.directory.resolve():
            return None
        return (
            base if drafter_kind_of(base).name == drafter_kind_of(serving.directory).name else None
        )

    def _run_stage(
        self, run: RunDirectory, recipe: Recipe, name: str, options: Options
    ) -> Mapping[str, object]:
        with run.locked():  # no other command may use the run directory
            run.begin_attempt(recipe, self.loaded.files, sys.argv)
            results = run_stages(
                run=run, recipe=recipe, names=[name], options=options, console=self.console
            )
        return results[name]

    def _settled(self) -> int:
        return len(self.journal.read().settled_rounds)

    def _record(self, event: str, **facts: object) -> AdaptState:
        """Adds a journal entry with the step's GPU-seconds; returns the state after it."""
        seconds = self.recipe.serving.engine.gpus * (time.monotonic() - self._step_began)
        return self.journal.append(event, **facts, gpu_seconds=round(seconds, 1))

    def _say(self, line: str) -> None:
        self.console.print(printable(line), markup=False)


@contextlib.contextmanager
def open_adapter(
    loaded: LoadedRecipe, endpoint: Endpoint, console: Console | None = None
) -> Iterator[Adapter]:
    """Yields the adapter, holding its lock; raises `Locked` if already running."""
    doing = "follows this traffic already; wait for it, or stop it"
    with (
        Journal(endpoint.journal, AdaptState(), listener=metrics_publisher(endpoint)) as journal,
        lock(endpoint.state_dir / FOLDER / "adapt.lock", doing),
    ):
        console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        yield Adapter(loaded, endpoint, journal, console)


def _with_key(recipe: Recipe, path: Path) -> Recipe:
    """The recipe with a privacy key that all windows share."""
    from outrider.data.privacy.guard import privacy_key

    if recipe.privacy.key_file is not None:
        return recipe
    privacy_key(recipe.privacy, path)
    privacy = recipe.privacy.model_copy(update={"key_file": str(path)})
    return recipe.model_copy(update={"privacy": privacy})


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def adapter_summary(adapter: Adapter) -> dict[str, object]:
    """Returns the summary that is printed as one line for scripts."""
    state = adapter.journal.read()
    acceptance = state.usable[-1].acceptance if state.usable else None
    shipped = sum(ended.won for ended in state.settled_rounds)
    return {
        "recipe": adapter.recipe.name,
        "windows": len(state.windows),
        "rounds": len(state.rounds),
        "shipped": shipped,
        "lost": len(state.settled_rounds) - shipped,
        "serving": release_in_use(adapter.endpoint).name,
        "acceptance_length": acceptance.value if acceptance else None,
        "state": str(adapter.folder),
    }
