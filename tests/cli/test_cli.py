"""The commands as a user runs them: one message and status for a mistake, and the JSON line."""

import contextlib
import importlib
import itertools
import json
import os
import pty
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import outrider
from outrider.cli import main
from outrider.cli.printing import print_result
from outrider.common.files import write_json
from outrider.common.process_tree import wait_until
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.registry import STAGES
from tests.cli.commands import COMMANDS, assert_one_message, json_line, run, start
from tests.cli.workplace import write_workplace
from tests.data.logs import write_log
from tests.eval.sample_results import history_report

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, nano_r1) -> Path:
    return write_workplace(tmp_path_factory.mktemp("workplace"), nano_r1, {})


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["--recipe", "nowhere.yaml"],
            ["nowhere.yaml: no such recipe", "`outrider train --help` lists them"],
        ),
        (
            ["--recipe", "log.jsonl"],
            ["log.jsonl: a log, not a recipe; `outrider init log.jsonl --target MODEL` writes one"],
        ),
        (["--recipe", "s3://logs/a.jsonl"], ["s3://logs/a.jsonl: a log, not a recipe"]),
        (["--recipe", "."], [".: a folder without a recipe; `outrider init . --target MODEL`"]),
        (
            ["--recipe", "mine.yaml", "training.epoch=3"],
            ["command line, training.epoch=3", "did you mean `training.epochs`?"],
        ),
        (
            ["--recipe", "mine.yaml", "training.epochs=many"],
            ["training.epochs = 'many'", "valid integer"],
        ),
        (
            ["--recipe", "mine.yaml", "traffic.path=gone.jsonl"],
            ["traffic.path = ", "gone.jsonl", "no such file or folder"],
        ),
        (
            ["--recipe", "mine.yaml", "target.model=gone"],
            ["target.model = 'gone': no such directory"],
        ),
        (
            ["--recipe", "mine.yaml", "privacy.mode=surrogate", "privacy.key_file=gone.key"],
            ["privacy.key_file = ", "gone.key", "no such file", "/dev/urandom"],
        ),
        (
            ["--recipe", "mine.yaml", "privacy.regenerate=true"],
            [
                "privacy.regenerate = true has nothing to regenerate with privacy.mode = 'off'; "
                "set privacy.mode: surrogate"
            ],
        ),
        (
            ["--recipe", "mine.yaml", "eval.task=posixpath:jion"],
            ["eval.task = 'posixpath:jion'", "no attribute 'jion'"],
        ),
        (
            ["--recipe", "mine.yaml", "--stages", "learn"],
            ["no stage `learn`", "ingest, split, capture, train, evaluate, export"],
        ),
        (
            ["--recipe", "mine.yaml", "--stages", "train", "name=empty"],
            ["train needs the output of split"],
        ),
        (
            ["--recipe", "mine.yaml", "--runs", "/proc/runs"],
            ["/proc/runs/mine: cannot write here", "--runs DIR"],
        ),
    ],
)
def test_a_mistake_is_one_message_and_status_1(workplace, words, parts):
    assert_one_message(run("train-speculator", *words, cwd=workplace), *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["train"],
            ["no recipe: give the path", "`outrider train --help` lists them", "outrider init"],
        ),
        (
            ["train", "mine.yaml", "--dryrun"],
            ["Did you mean --dry-run?", "section.key=value"],
        ),
        (["train", "mine.yaml", "--api-key=s3cret"], ["Unknown option: --api-key=***"]),
        (["trian", "mine.yaml"], ['Unknown command "trian". Did you mean "train"?']),
        (["export", "mine.yaml"], ["--to requires an argument"]),
        (["eval"], ["nothing to evaluate: give a recipe, or --compare"]),
        (
            ["eval", "mine.yaml", "--again", "--server", "http://localhost:1"],
            ["--again: --server measures everything again anyway"],
        ),
        (["eval", "--html", "page.html"], ["--html page.html needs --compare RUN_A RUN_B"]),
    ],
)
def test_a_wrong_command_line_is_one_message_and_status_2(workplace, words, parts):
    assert_one_message(run("outrider", *words, cwd=workplace), *parts, status=2)


def test_only_verbs_that_take_keys_of_a_recipe_suggest_them(workplace):
    for verb in ("doctor", "deploy", "export"):
        message = run("outrider", verb, "--foo", cwd=workplace).stderr
        assert ("section.key=value" in message) == (verb == "export")


def test_the_shipped_recipes_are_listed_in_one_help(workplace):
    """Messages and the help of all other verbs refer to it."""
    lists = [
        verb
        for verb in main.VERBS
        if "smollm2/arithmetic" in run("outrider", verb, "--help", cwd=workplace).stdout
    ]
    assert lists == ["train"]


def test_the_version_has_a_line_for_each_package(workplace):
    finished = run("outrider", "--version", cwd=workplace, COLUMNS="80")
    first, *packages = finished.stdout.splitlines()
    assert first.startswith(f"outrider {outrider.__version__}")
    assert packages[0].startswith("torch ")
    assert all(len(line.split()) == 2 for line in packages)


def test_an_unexpected_error_is_a_traceback_and_where_to_report_it(workplace, monkeypatch):
    monkeypatch.setattr(main, "command_app", lambda: lambda *words, **options: 1 / 0)
    finished = run("outrider", "train", "mine.yaml", cwd=workplace)
    assert finished.returncode == 1
    *_, error, message = finished.stderr.splitlines()
    assert error.startswith("ZeroDivisionError")
    assert message.startswith("outrider train: an error in Outrider") and "report it" in message


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (
            {"num_nextn_predict_layers": 0},
            ["train", "mine.yaml", "target.model="],
            "num_nextn_predict_layers is 0",
        ),
        ({"vocab_size": 4000}, ["eval", "mine.yaml", "--speculator="], "vocab_size = 4000, but"),
    ],
)
def test_weights_that_do_not_fit_are_known_before_the_first_stage(
    workplace, tmp_path, nano_r1, change, words, message
):
    config = json.loads((nano_r1 / "config.json").read_text()) | change
    (shutil.copytree(nano_r1, tmp_path / "x") / "config.json").write_text(json.dumps(config))
    words = [*words[:2], f"{words[2]}{tmp_path}/x", "name=unfit"]
    finished = run("outrider", *words, cwd=workplace)
    assert_one_message(finished, f"{tmp_path}/x/config.json: {message}")
    assert not (workplace / "runs" / "unfit" / "stages").exists()


def test_a_reader_that_ends_is_no_error(workplace):
    command = Path(sys.executable).with_name("outrider")
    line = f"{command} doctor --json | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    for _ in range(3):
        done = subprocess.run(["bash", "-c", line], cwd=workplace, capture_output=True, text=True)
        assert int(done.stdout) in (0, 1, 141), "1: a finding"
        assert "Traceback" not in done.stderr


def test_help_and_recipes_do_not_import_torch():
    script = (
        "import sys, outrider.cli.main, outrider.pipeline.recipe.load as load\n"
        "load.load_recipe('r1/social_chat')\n"
        "outrider.cli.main.sys.argv = ['outrider', 'inspect', '--help']\n"
        "try:\n    outrider.cli.main.main()\nexcept SystemExit:\n    pass\n"
        "heavy = ('torch', 'transformers', 'datasets', 'vllm', 'deepspeed')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert finished.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("verb", main.VERBS)
def test_help_fills_its_lines_and_describes_every_option(workplace, verb):
    """At 80 columns a description breaks only where the next word does not fit."""
    page = run("outrider", verb, "--help", cwd=workplace, COLUMNS="80").stdout
    rows = [line[1:-2] for line in page.splitlines() if line.startswith("│")]
    assert rows
    for row, following in itertools.pairwise(rows):
        start = len(following) - len(following.lstrip())
        if start > 8:  # not a new option
            assert len(f"{row.rstrip()} {following.split()[0]}") > len(row)
    assert not [row for row in rows if row.split()[-1].startswith("--")]


def test_quiet_leaves_the_json_line(workplace):
    words = ["train", "mine.yaml", "--stages", "ingest", "name=quiet"]
    told = run("outrider", *words, "--quiet", cwd=workplace)
    assert (told.returncode, told.stderr) == (0, "")
    assert json.loads(told.stdout)["stages"] == ["ingest"]
    # A run directory names its own recipe.
    again = run("outrider", "train", "runs/quiet", "--stages", "ingest", cwd=workplace)
    assert again.returncode == 0 and "ingest    nothing changed" in again.stderr
    assert_one_message(
        run("outrider", "train", "mine.yaml", "--stages", "x", "--quiet", cwd=workplace),
        "no stage `x`",
    )


def test_a_new_recipe_trains(workplace, nano_r1):
    words = ["init", "log.jsonl", "--target", str(nano_r1)]
    told = run("outrider", *words, cwd=workplace)
    assert told.returncode == 0, told.stderr
    assert "outrider train log.yaml --dry-run" in told.stdout and "40 exchanges" in told.stdout
    recipe = yaml.safe_load((workplace / "log.yaml").read_text())
    assert recipe["effort"] == "standard" and recipe["speculator"]["kind"] == "mtp"
    assert "speculator.kind = mtp: the target's own layer" in told.stdout
    assert "speculator.kind" not in told.stderr
    assert "what lookup would deliver without training" in told.stdout
    assert "n-gram lookup  new" in told.stdout
    dry = run("outrider", "train", "log.yaml", "--dry-run", "--quiet", cwd=workplace)
    assert json_line(dry)["recipe"] == "log"
    assert_one_message(run("outrider", *words, cwd=workplace), "log.yaml: already exists")


def test_brackets_in_a_changed_key_are_printed_as_they_are(workplace):
    words = ["train", "mine.yaml", "--stages", "ingest", "name=brackets"]
    assert run("outrider", *words, cwd=workplace).returncode == 0
    again = run("outrider", *words, "traffic.model='nano-r1 [/x]'", cwd=workplace)
    assert again.returncode == 1 and "Traceback" not in again.stderr
    assert "recipe.traffic.model: None -> 'nano-r1 [/x]'" in again.stderr


def test_a_server_that_does_not_answer_is_named(workplace):
    words = ["eval", "mine.yaml", "name=server", "--server", "http://127.0.0.1:1"]
    finished = run("outrider", *words, cwd=workplace)
    assert_one_message(finished, "http://127.0.0.1:1/v1/models does not name a model")
    assert "nothing is captured yet" in finished.stderr


@pytest.mark.slow
def test_the_same_from_python(workplace, nano_r1, monkeypatch):
    monkeypatch.chdir(workplace)
    recipe = outrider.init("log.jsonl", nano_r1, to="python.yaml", effort="trial")
    assert outrider.inspect(recipe, first=30)["exchanges"] == 30
    assert outrider.plan(recipe, runs="python")["parameters"]["trained"] > 0
    longer = outrider.plan(recipe, runs="python", training={"epochs": 3})
    assert longer == outrider.plan(recipe, "training.epochs=3", runs="python")
    with pytest.raises(outrider.OutriderError, match=r"training\.epoch.*training\.epochs"):
        outrider.plan(recipe, runs="python", training={"epoch": 3})
    split = {"heldout_fraction": 0.3}
    run = outrider.train(recipe, runs="python", stages="ingest,split", split=split)
    assert run.root == workplace / "python" / "python"
    assert run.result_of("split")["heldout"]["sequences"] > 0
    with pytest.raises(outrider.OutriderError, match="train needs the output of capture"):
        outrider.train(run.root, stages="train")
    with pytest.raises(outrider.OutriderError, match="needs the output of"):
        outrider.evaluate(recipe, runs="python")
    with pytest.raises(outrider.OutriderError, match="needs the output of"):
        outrider.export(recipe, "bundle", runs="python")


def test_three_scripts_are_other_names_of_verbs_and_the_reference_names_each_once():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    aliases = ["train-speculator", "evaluate-speculator", "export-speculator"]
    assert [*scripts] == ["outrider", *aliases]
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for alias in aliases:
        assert page.count(alias) == 1
        module, _, function = scripts[alias].partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_installed_package_is_typed_and_has_the_version_of_pyproject(tmp_path):
    words = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    # From a copy: setuptools writes its build folder next to pyproject.toml.
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "build", "runs", "tests", "docs", "benchmarks")
    shutil.copytree(ROOT, source, ignore=ignored)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *words, str(source)], check=True)
    (wheel,) = tmp_path.glob("outrider-*.whl")
    assert wheel.name.split("-")[1] == outrider.__version__
    assert "outrider/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_a_wrong_target_gets_a_recipe_only_with_force(workplace, nano_r1):
    rows = [json.loads(line) for line in (workplace / "log.jsonl").read_text().splitlines()]
    for row in rows:
        row["response"]["usage"] = {"prompt_tokens": 1, "completion_tokens": 1}
        row["response"]["model"] = "r1-distill"
    write_log(workplace / "other.jsonl", rows)
    words = ["init", "other.jsonl", "--target", str(nano_r1)]
    refused = run("outrider", *words, cwd=workplace)
    assert_one_message(refused, "probably not written this log (model in the log: r1-distill)")
    assert "--force" in refused.stderr and not (workplace / "other.yaml").exists()
    forced = run("outrider", *words, "--force", cwd=workplace)
    first = forced.stdout.splitlines()[0]
    assert first.startswith("warning: this target has probably not written this log")
    assert "of the gain" not in forced.stdout and (workplace / "other.yaml").exists()
    inspected = run("outrider", "inspect", "other.yaml", cwd=workplace)
    assert inspected.stdout.splitlines()[0] == first and "of the gain" not in inspected.stdout


def test_init_prints_nothing_before_its_result(workplace, nano_r1):
    words = ["init", "log.jsonl", "--target", str(nano_r1), "--to", "plain.yaml"]
    printed = run("outrider", *words, cwd=workplace).stderr
    assert printed in {"", "replaying what lookup would deliver: up to a minute\n"}


@pytest.mark.parametrize(
    ("logs", "target", "parts"),
    [
        ("empty", None, ["empty'", "or an empty folder"]),
        ("gone", None, ["gone'", "no such file or folder"]),
        ("bad.jsonl", None, ["no usable row", "bad.jsonl:1", "docs/how-to/log-formats.md"]),
        ("log.jsonl", "gone", ["target.model = 'gone': no such directory"]),
        *(
            ("log.jsonl", name, [f"target.model = '{name}': no such directory (/"])
            for name in ("./missing", "../m", "/m", "~/m", "~m", "owner/", "a b/c")
        ),
        ("log.jsonl", "log.jsonl", ["'log.jsonl': a file, not a directory"]),
        ("log.jsonl", "gpt2", ["GPT2LMHeadModel: not a supported target: its hidden"]),
    ],
)
def test_what_cannot_be_trained_on_is_known_at_once(workplace, nano_r1, logs, target, parts):
    (workplace / "empty").mkdir(exist_ok=True)
    (workplace / "bad.jsonl").write_text("not json\n")
    (workplace / "gpt2").mkdir(exist_ok=True)
    (workplace / "gpt2" / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    words = ["init", logs, "--target", target or str(nano_r1), "--to", "new.yaml"]
    assert_one_message(run("outrider", *words, cwd=workplace), *parts)
    assert not (workplace / "new.yaml").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["init", "log.jsonl", "--to", "wrong.yaml", "--target", "./missing"],
        ["init", "gone.jsonl", "--target", "nano_r1"],
        ["inspect", "traffic.path=log.jsonl", "target.model=~/missing"],
        ["train", "mine.yaml", "target.model=../missing", "--dry-run"],
    ],
)
def test_a_wrong_path_is_known_before_the_slow_imports(workplace, words):
    script = (
        "import sys, outrider.cli.main as main\n"
        f"sys.argv = {['outrider', *words]}\n"
        "try:\n    main.main()\nexcept SystemExit as end:\n    print(end.code)\n"
        "print([name for name in ('torch', 'scipy', 'datasets', 'vllm') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=workplace)
    assert done.stdout == "1\n[]\n" and "no such" in done.stderr


def test_init_creates_no_folder(workplace, nano_r1):
    words = ["init", "log.jsonl", "--target", str(nano_r1), "--to", "new_folder/mine.yaml"]
    finished = run("outrider", *words, cwd=workplace)
    assert_one_message(finished, "new_folder/mine.yaml: no folder new_folder")
    assert not (workplace / "new_folder").exists()


def test_a_dry_run_writes_the_resolved_recipe_and_says_what_each_stage_would_do_and_cost(workplace):
    words = ["train", "mine.yaml", "--dry-run", "name=dry", "eval.k=3"]
    printed = json_line(run("outrider", *words, cwd=workplace))
    assert list(printed["dry_run"]) == list(STAGES)
    assert "x 388 bytes" in printed["price"]["features"]["text"]
    assert (
        yaml.safe_load(Path(printed["run_dir"], "recipe.resolved.yaml").read_text())["eval"]["k"]
        == 3
    )
    assert not Path(printed["run_dir"], "stages").exists()


@pytest.mark.parametrize(("option", "printed"), [((), False), (("--json",), True)])
def test_a_dry_run_prints_its_json_to_a_terminal_only_if_asked(workplace, option, printed):
    ours, theirs = pty.openpty()
    words = ["train", "mine.yaml", "--dry-run", "name=terminal", *option]
    command = [COMMANDS / "outrider", *words]
    finished = subprocess.Popen(command, cwd=workplace, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO ends a terminal's output
        while read := os.read(ours, 4096):
            shown += read
    _, tables = finished.communicate(timeout=120)
    os.close(ours)
    assert finished.returncode == 0, tables
    assert (b'"dry_run"' in shown) is printed
    assert (b"recipe.resolved.yaml" in tables) is not printed


@pytest.mark.parametrize(
    ("is_terminal", "as_json", "printed"),
    [
        (True, False, "verdict  ship\nk        3\nname     a\u2400b\n"),
        (True, True, '{"verdict": "ship", "k": 3, "bundle": null, "name": "a\\u0000b"}\n'),
        (False, False, '{"verdict": "ship", "k": 3, "bundle": null, "name": "a\\u0000b"}\n'),
    ],
)
def test_a_result_is_json_for_programs_and_lines_for_people(
    capsys, monkeypatch, is_terminal, as_json, printed
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    print_result({"verdict": "ship", "k": 3, "bundle": None, "name": "a\x00b"}, as_json)
    assert capsys.readouterr().out == printed


def test_a_recipe_s_code_is_named_before_it_runs_and_a_dry_run_runs_none(workplace):
    file = workplace / "answers_of_others.py"
    file.write_text("import sys\nprint('it runs', file=sys.stderr)\ndef solved(*texts): ...\n")
    words = ["train", "mine.yaml", "--stages=ingest", "eval.task=answers_of_others:solved"]
    dry = run("outrider", *words, "--dry-run", cwd=workplace)
    assert str(file) in dry.stderr and "it runs" not in dry.stderr
    real = run("outrider", *words, "name=task", cwd=workplace)
    assert real.returncode == 0, real.stderr
    assert real.stderr.index(str(file)) < real.stderr.index("it runs")


def test_stages_are_kept_until_their_inputs_change_and_the_change_is_named(workplace):
    words = ["--recipe", "mine.yaml", "--stages", "split,ingest", "name=kept"]
    first = start("train-speculator", *words, cwd=workplace)
    assert json_line(first)["stages"] == ["ingest", "split"]
    again = run("train-speculator", *words, "split.heldout_fraction=0.3", cwd=workplace)
    assert "ingest    nothing changed" in again.stderr
    assert "split     recipe.split.heldout_fraction: 0.2 -> 0.3" in again.stderr
    run_dir = Path(json_line(again)["run_dir"])
    assert sorted(path.name for path in (run_dir / "logs").iterdir()) == ["attempt_1", "attempt_2"]
    assert (run_dir / "provenance.json").is_file()


def test_a_terminated_run_ends_with_75_and_the_same_command_goes_on(workplace):
    words = ["--recipe", "mine.yaml", "--stages", "ingest", "name=stopped"]
    going = subprocess.Popen(
        [COMMANDS / "train-speculator", *words],
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = workplace / "runs" / "stopped" / "stages" / "ingest.started.json"
    assert wait_until(lambda: started.is_file() or going.poll() is not None, 120)
    going.terminate()
    _, told = going.communicate(timeout=120)
    assert going.returncode == 75
    assert "stopped by SIGTERM; rerun the command to resume" in told
    assert "Traceback" not in told
    again = run("train-speculator", *words, cwd=workplace)
    assert again.returncode == 0, again.stderr
    assert "resumes where it stopped" in again.stderr


def test_speeds_are_measured_again_and_nothing_else(workplace):
    folder = workplace / "runs" / "again"
    steps = folder / "evaluation" / "steps"
    speeds = [steps / "speed_eager.json", steps / "rates_eager.json"]
    record = folder / "stages" / "evaluate.json"
    kept = [steps / "verification.json", steps / "replay_heldout_base.json"]
    for path in (*speeds, record, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    finished = run("outrider", "eval", "mine.yaml", "--again", "name=again", cwd=workplace)
    # Where the run begins: without the record, evaluate is to be done, which needs a capture.
    assert_one_message(finished, "evaluate needs the output of ")
    assert not any(path.exists() for path in (*speeds, record))
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize(
    ("words", "stage"), [([], "evaluate"), (["--speculator", "none"], "evaluate_other")]
)
def test_again_evaluates_with_what_is_kept(workplace, monkeypatch, words, stage):
    """The timed passes of that evaluation go before it begins; everything else stays."""
    run_dir = RunDirectory(workplace / "runs" / f"again_{stage}")
    speeds = ["speed_eager.json", "speed_eager_repeats.json", "rates_eager.json"]
    speeds.append("capacity_eager.json")
    kept = ["replay_heldout_base.json", "step_times_eager.json", "verification_eager.json"]
    evaluations = (run_dir.evaluation, run_dir.other_evaluation)
    for out, name in itertools.product(evaluations, (*speeds, *kept)):
        write_json(out / "steps" / name, {})
    for name in ("ingest", "split", "capture", "train", stage):
        result = {"verdict": "ship"} if name == stage else {}
        write_json(run_dir.stage_record(name), {"inputs": {}, "files": {}, "result": result})
    seen = {}

    def evaluate(stage, run, options, end):
        seen[stage.name] = [
            sorted(path.name for path in (out / "steps").iterdir()) for out in evaluations
        ]
        write_json(run.stage_record(stage.name), {"inputs": {}, "result": {"verdict": "ship"}})

    monkeypatch.setattr("outrider.pipeline.runner.run_stage", evaluate)
    command = ["outrider", "eval", "mine.yaml", *words, f"name={run_dir.root.name}"]
    finished = run(*command, "--again", cwd=workplace)
    assert (finished.returncode, json_line(finished)["verdict"]) == (0, "ship"), finished.stderr
    everything = sorted([*speeds, *kept])
    assert seen[stage] == ([everything, kept] if words else [kept, everything])


def test_runs_are_compared_without_measuring_anything(tmp_path):
    for name, whole in (("march", history_report(0, 2, 3)), ("june", history_report(90, 2, 2.4))):
        whole.write(tmp_path / name / "report.json")
    finished = run(
        "evaluate-speculator",
        "--compare",
        "june",
        "march",
        "--html",
        "pages/drift.html",
        cwd=tmp_path,
    )
    line = json_line(finished)
    assert line["runs"] == ["june", "march"] and next(iter(line["figures"])) == "verdict"
    assert [point["run"] for point in line["history"][0]["points"]] == ["march", "june"]
    assert (
        "drift: it gains less" in (tmp_path / "pages" / "drift.html").read_text()
        and "pages/drift.html" in finished.stderr
    )
