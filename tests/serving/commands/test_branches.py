"""Branches that a script's variables decide, and arithmetic of its variables."""

import random
import subprocess

import pytest

from outrider.serving.commands.find import find_command
from outrider.serving.commands.forms.branches import with_decided_branches
from outrider.serving.commands.forms.variables import expand_variables

SCRIPT = """
DEBUG="${{DEBUG:-0}}"
N=8
{}
vllm serve org/model "${{ARGS[@]}}"
"""
IF = "if {}; then\n  ARGS+=(--seed 1)\nelse\n  ARGS+=(--seed 2)\nfi"


@pytest.mark.parametrize(
    ("test", "seed"),
    [
        ('[[ "$DEBUG" == "1" ]]', "2"),
        ('[ "$DEBUG" = 0 ]', "1"),
        ("[ $N -gt 4 ]", "1"),
        ("[[ $N -le 4 ]]", "2"),
        ('[ -n "$DEBUG" ]', "1"),
        ('[ -z "${UNSET:-}" ]', "1"),
        ('[[ "$DEBUG" != "0" ]]', "2"),
        ("(( N ))", "1"),
        ("((DEBUG))", "2"),
        ("(( $N >= 9 ))", "2"),
        ("(( 8 == N ))", "1"),
        ('[[ "$N" ]]', "1"),
    ],
)
def test_the_branch_that_is_taken_is_read(test: str, seed: str) -> None:
    script = SCRIPT.format(IF.format(test))
    assert find_command("serve.sh", script)[1] == ["org/model", "--seed", seed]


@pytest.mark.parametrize(
    "test", ['[ -n "$UNSET" ]', "command -v x", "[ -f x ]", '[[ "$DEBUG" == 1* ]]', "[ $N = $(x) ]"]
)
def test_all_branches_of_another_condition_stay(test: str) -> None:
    script = SCRIPT.format(IF.format(test))
    assert with_decided_branches(script) == script


@pytest.mark.parametrize(("value", "seed"), [("true", "1"), ("false", "2")])
def test_a_variable_is_a_condition(value: str, seed: str) -> None:
    script = f"ON={value}\n" + SCRIPT.format(IF.format('"$ON"'))
    assert find_command("serve.sh", script)[1] == ["org/model", "--seed", seed]


def test_a_default_does_not_count_after_a_branch_that_may_set_the_variable() -> None:
    script = "if [ -f x ]; then\n  K=3\nfi\nK=${K:-0}\nif (( K > 0 )); then\n  A=1\nfi"
    assert with_decided_branches(script) == script


@pytest.mark.parametrize(
    "loop",
    [
        'while getopts ":t:" opt; do\n  case "$opt" in\n    t) TP="$OPTARG" ;;\n  esac\ndone',
        'while [[ $# -gt 0 ]]; do\n  case "$1" in\n    -t) TP="$2"; shift 2 ;;\n  esac\ndone',
        "while (( $# )); do\n  for x in 1 2; do :; done\n  TP=$1\n  shift\ndone",
    ],
)
def test_the_options_of_a_script_keep_their_defaults(loop: str) -> None:
    script = f'TP="${{TP:-4}}"\n{loop}\nvllm serve org/model -tp "$TP"\n'
    assert find_command("serve.sh", script)[1] == ["org/model", "-tp", "4"]


@pytest.mark.parametrize(
    "loop",
    [
        'while [ "$i" -lt "$1" ]; do\n  vllm serve org/model -tp 4 &\ndone',
        "while (( ${#GPUS[@]} > 0 )); do\n  vllm serve org/model -tp 4 &\ndone",
        "while [ $# -gt 0 ]; do\n  vllm serve org/model -tp 4\n  shift\ndone",
    ],
)
def test_a_loop_that_starts_servers_stays(loop: str) -> None:
    assert find_command("serve.sh", loop)[1] == ["org/model", "-tp", "4"]


def test_an_argument_of_the_script_decides_no_branch() -> None:
    script = "if (( $1 > 4 )); then\n  A=1\nfi"
    assert with_decided_branches(script) == script


def test_further_branches_and_one_line() -> None:
    script = (
        "A=2\n"
        "if [ $A = 1 ]\nthen\n  B=1\nelif [ $A = 2 ]; then\n  if [ $A = 3 ]; then\n    B=9\n  fi\n"
        "  B=2\nelse\n  B=3\nfi\n"
        "if [ $B = 2 ]; then C=1; fi\n"
        "[ $B = 3 ] && C=2\n"
        "[ $B = 2 ] && D=1\n"
    )
    assert with_decided_branches(script) == "A=2\n  B=2\nC=1\n\nD=1\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("if [ $N = 8 ]; then ARGS+=(-tp 2); else ARGS+=(-tp 4); fi", ["-tp", "2"]),
        ("if [ $N = 9 ]; then ARGS+=(-tp 2); else ARGS+=(-tp 4); fi", ["-tp", "4"]),
        ("if [ -f x ]; then ARGS+=(-tp 2); fi", ["-tp", "2"]),
        ("[ -f x ] && ARGS+=(-tp 2)", ["-tp", "2"]),
        ("[ $N = 9 ] && ARGS+=(-tp 2)", []),
    ],
)
def test_no_words_of_a_branch_on_one_line_are_lost(lines: str, words: list[str]) -> None:
    assert find_command("serve.sh", SCRIPT.format(lines))[1] == ["org/model", *words]


def test_a_variable_of_an_undecided_branch_decides_nothing() -> None:
    script = "A=1\nif [ -f x ]; then\n  A=2\nfi\nif [ $A = 1 ]; then\n  B=1\nfi\n"
    assert with_decided_branches(script) == script


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("$((8 * 12))", "96"),
        ("$((NODES*$GPUS))", "16"),
        ("$(( (NODES + 1) * 2 ))", "6"),
        ("$((GPUS/3))", "2"),
        ("x$((${LOCAL:-0} * 8))", "x0"),
        ("$((UNSET * 2))", "$((UNSET * 2))"),
        ("$((2 ** 9))", "$((2 ** 9))"),
        ("$((1 / 0))", "$((1 / 0))"),
    ],
)
def test_arithmetic_of_integers_is_computed(word: str, value: str) -> None:
    assert expand_variables(word, {"NODES": "2", "GPUS": "8"}) == value


def test_arrays_have_comments_and_quotations_with_parentheses() -> None:
    script = (
        "declare -a ARGS=(\n  org/model # (the target)\n  --seed $((2 * 4))\n)\n"
        ': "${LEN:=64K}"\n'
        'ARGS+=(-sc "{\\"method\\":\\"ngram\\", \\"k\\":3}" --max-model-len $LEN)\n'
        'vllm serve "${ARGS[@]}"\n'
    )
    assert find_command("serve.sh", script)[1] == [
        *("org/model", "--seed", "8"),
        *("-sc", '{"method":"ngram", "k":3}', "--max-model-len", "64K"),
    ]


GLOBS = ["7b", "32b", "3?b", "[0-9]*b", "*b", '"8b"', "(70b", "none", "7b|32b", " 1b | 32b "]


def case_script(seed: int) -> str:
    """A script whose `case` has a value, in the layouts that people write."""
    rng = random.Random(seed)
    lines = [f'SIZE="${{1:-{rng.choice(["7b", "8b", "32b", "70b", "x"])}}}"', "R=0"]
    lines.append(rng.choice(['case "$SIZE" in', "case $SIZE in", "case ${SIZE} in  # which"]))
    for number, glob in enumerate(rng.sample(GLOBS, 4), start=1):
        lines += rng.choice(
            [
                [f"  {glob}) R={number} ;;"],
                [f"  {glob}) Q=1; R={number};;"],
                [f"  {glob})", f"    R={number}", "    ;;"],
                [f"{glob})", "    if [ $R = 0 ]; then", f"      R={number}", "    fi ;;"],
                [f"  {glob})", "    case $R in", f"      0) R={number} ;;", "    esac", "  ;;"],
            ]
        )
    return "\n".join([*lines, "esac", "echo $R"])


@pytest.mark.parametrize("seed", range(40))
def test_the_branch_of_a_case_is_the_one_that_bash_takes(seed: int) -> None:
    script = case_script(seed)
    read = with_decided_branches(script)
    assert "case" not in read
    said = [subprocess.check_output(["bash", "-c", text]) for text in (script, read)]
    assert said[0] == said[1]


def test_a_case_without_a_value_stays_and_its_variables_decide_nothing() -> None:
    script = "A=1\ncase $1 in\n  a) A=2 ;;\n  b)\n    A=3\n    ;;\nesac\n[ $A = 1 ] &&\nB=1\n"
    assert with_decided_branches(script) == script


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("${SIZE^^}", "7BX"),
        ("${SIZE,,}", "7bx"),
        ("${SIZE,}", "7bX"),
        ("${A^}", "Ab"),
        ("${B:-$SIZE}", "7bX"),
        ("${C^^}", "${C^^}"),
    ],
)
def test_words_are_expanded_as_bash_does(word: str, value: str) -> None:
    assert expand_variables(word, {"SIZE": "7bX", "A": "ab"}) == value
