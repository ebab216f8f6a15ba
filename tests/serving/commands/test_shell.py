"""Words of shell scripts, files that they write, and long scripts."""

from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.commands import find
from outrider.serving.commands.find import find_command
from outrider.serving.commands.forms.shell import END, shell_words, written_files
from outrider.serving.commands.words import commands_in


def test_words_are_those_of_a_shell() -> None:
    script = """a 'b c'"d \\"e\\"" f\\ g '' h#i # it's a comment\n--flag x\nnext"""
    assert shell_words(script) == [
        *(END, "a", 'b cd "e"', "f g", "", "h#i"),
        *("--flag", "x"),
        *(END, "next"),
    ]


def test_files_of_here_documents_are_no_part_of_the_script() -> None:
    script = "cat > a/b.yaml <<'EOF'\nmodel: m\nEOF\nbash <<X\nvllm serve m\nX\ncat <<NEVER > c\n"
    kept, files = written_files(script)
    assert files == {"a/b.yaml": "model: m\n"}
    assert find_command("x", script)[1] == ["m"]
    assert "NEVER" in kept


def test_a_written_script_is_read_if_the_text_has_no_other_command() -> None:
    script = "cat > run.sh <<EOF\nvllm serve org/model -tp 2\nEOF\nsbatch run.sh\n"
    assert find_command("x", script)[1] == ["org/model", "-tp", "2"]


def test_a_file_of_flags_comes_before_the_command_s_own() -> None:
    written = "tee x.yaml <<EOF\nmodel: org/other\nseed: 3\nEOF\n"
    command = "vllm serve org/model --config ./x.yaml --seed 4"
    assert find_command("x", written + command)[1] == ["org/model", "--seed", "3", "--seed", "4"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [("A=8", ["-tp", "8"]), ("A=", []), ("A=''", [])],
)
def test_words_that_stand_for_a_set_variable(setting: str, words: list[str]) -> None:
    assert find_command("x", f"{setting}\nvllm serve m ${{A:+-tp $A}}")[1] == ["m", *words]


def test_words_that_depend_on_an_unknown_variable_are_refused() -> None:
    with pytest.raises(OutriderError, match=r"\$\{A:\+-tp: contains a shell variable"):
        find_command("x", "A=$B\nvllm serve m ${A:+-tp $A}")


@pytest.mark.parametrize("word", ["$1", "`nproc`", "%(ENV_TP)s"])
def test_other_references_are_refused(word: str) -> None:
    with pytest.raises(OutriderError, match="contains a shell variable; replace it"):
        find_command("x", f"vllm serve m -tp {word}")


def test_a_specifier_of_systemd_is_refused() -> None:
    unit = "[Service]\nExecStart=/usr/bin/vllm serve /models/%i --served-model-name {}\n"
    with pytest.raises(OutriderError, match=r"/models/%\(i\)s: contains"):
        find_command("x", unit.format("r1"))
    plain = unit.replace("/models/%i", "org/model").format("%i")
    assert find_command("x", plain)[1] == ["org/model"]


def test_a_variable_is_added_to_and_a_command_may_be_one() -> None:
    script = 'CMD="vllm serve org/model"\nCMD+=" -tp 8"\nexec $CMD\n'
    assert find_command("x", script)[1] == ["org/model", "-tp", "8"]


class _Counted(list[str]):
    """Counts the words that are taken out of it."""

    taken = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.taken += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Any:
        for word in super().__iter__():
            self.taken += 1
            yield word


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve m " + "--port 1 " * 1000,
        "docker run " + "x/vllm " * 1000 + "vllm serve m",
        "vllm serve m --headless\n" * 1000,
    ],
)
def test_every_word_is_looked_at_a_few_times(script: str) -> None:
    words = _Counted(shell_words(script))
    assert [*commands_in(words)]
    assert words.taken < 10 * len(words)


@pytest.mark.parametrize(
    "line", ["\\\n", "A=x\n", ";\n", "'' ", "- \\\n", "cat <<A\nA\n", "[", "\t\n", "A=(", '{"a":']
)
def test_many_of_anything_are_read(line: str) -> None:
    text = "vllm serve org/model\n" + line * (300_000 // len(line))
    assert find_command("x", text)[1][0] == "org/model"


def test_ten_megabytes_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(find, "shell_words")
    monkeypatch.delattr(find, "documents_in")
    with pytest.raises(OutriderError, match=r"more than 1000000 characters.*give the part"):
        find_command("x", "vllm serve m " + "\\\n --port 1" * 1_000_000)


def test_of_a_long_log_only_the_arguments_are_read() -> None:
    log = "INFO step\n" * 200_000 + "INFO non-default args: {'model_tag': 'org/model', 'seed': 3}\n"
    assert find_command("x", log)[1] == ["org/model", "--seed", "3"]


def test_arrays_that_multiply_are_refused() -> None:
    script = "A=(" + "x " * 2000 + ")\nvllm serve m " + '"${A[@]}" ' * 2000
    with pytest.raises(OutriderError, match="the array A makes the script longer than 1000000"):
        find_command("x", script)
