"""What people copy from a terminal: commands at prompts, and what they printed."""

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import find_command
from outrider.serving.commands.forms.terminals import Typed, as_script, is_terminal, typed_in
from outrider.serving.commands.serve_command import read_serve_command
from outrider.serving.commands.surroundings import complete_text

COMPOSE = """services:
  vllm:
    image: vllm/vllm-openai:v0.14.1
    command: ["--model", "org/model", "--tensor-parallel-size", "${TP:-1}"]
"""
UNIT = """# /etc/systemd/system/vllm.service
[Service]
EnvironmentFile=/etc/default/vllm
ExecStart=/opt/bin/vllm serve org/model --tensor-parallel-size ${TP}
"""
PROMPTS = (
    "$ ",
    "me@gpu:/srv$ ",
    "root@gpu:~# ",
    "(venv) me@gpu:~/x$ ",
    "[me@gpu x]$ ",
    "~/x$ ",
    "% ",
    "me@mac vllm % ",
    "me@gpu ~/x> ",
    "gpu:~ # ",
    "/ # ",
    "sh-5.1# ",
    "bash-5.2$ ",
    "➜  vllm git:(main) ✗ ",
    "➜  ~ ",
    "❯ ",
    "~/x main*\n❯ ",
    "vllm on  main via 🐍 v3.12\n❯ ",
    "┌──(me㉿gpu)-[~/x]\n└─$ ",
    "╭─me@gpu ~/x\n╰─❯ ",
    "me@pc MINGW64 ~/x (main)\n$ ",
)


def words_in(text: str) -> list[str]:
    return find_command("copied.txt", complete_text(text, None))[1]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("last", ["", "\n"])
def test_a_file_that_a_terminal_shows_is_read_by_those_that_name_it(prompt: str, last: str) -> None:
    last = prompt.rstrip() if last else last
    served = ["--model", "org/model", "--tensor-parallel-size", "2"]
    assert words_in(f"{prompt}cat .env\nTP=2\n{prompt}cat compose.yaml\n{COMPOSE}{last}") == served
    shown = f"{prompt}systemctl cat vllm\n{UNIT}{prompt}sudo cat /etc/default/vllm\nTP=2\n{last}"
    assert words_in(shown) == served[1:]
    typed = f"{prompt}cat env\nTP=2\n{prompt}source env\n{prompt}vllm serve org/model \\\n"
    assert words_in(f"{typed}>   --tensor-parallel-size $TP\nINFO started\n{last}") == served[1:]


def test_windows_prompts_are_read() -> None:
    served = ["org/model", "--tensor-parallel-size", "2", "--speculative-config", '{"method": "x"}']
    typed = (
        'PS C:\\vllm> $Model = "org/model"\nPS C:\\vllm> $env:TP = 2\n'
        "PS C:\\vllm> vllm serve $Model `\n>>   --tensor-parallel-size $env:TP `\n"
        """>>   --speculative-config '{\\"method\\": \\"x\\"}'\nINFO started\nPS C:\\vllm>"""
    )
    assert words_in(typed) == served
    typed = (
        "C:\\Users\\me>set TP=2\n\nC:\\Users\\me>vllm serve org/model ^\n"
        "More? --tensor-parallel-size %TP%\nINFO started\n\nC:\\Users\\me>"
    )
    assert words_in(typed) == served[:3]


def test_a_command_of_several_lines_goes_on_to_its_end() -> None:
    served = ["org/model", "-tp", "2"]
    here = "$ cat > env <<'EOF'\nTP=2\nEOF\n$ . ./env\n$ vllm serve org/model -tp $TP\n"
    assert words_in(here) == served
    assert words_in(here.replace("\nTP", "\nheredoc> TP").replace("\nEOF", "\n> EOF")) == served
    quoted = """$ vllm serve org/model --hf-overrides '{\nquote>  "a": 1}' -tp 2\nINFO\n"""
    assert words_in(quoted)[-2:] == served[1:] and len(words_in(quoted)) == 5


def test_what_a_command_prints_is_read() -> None:
    text = f"$ docker compose config\n{COMPOSE.replace('${TP:-1}', '4')}"
    assert words_in(text)[-1] == "4"
    # Lines that a narrow terminal has cut are not.
    cut = "├─3285 /opt/bin/vllm serve org/model --served-model-name loc…\n"
    text = (
        f"$ systemctl status vllm\n{cut}$ systemctl cat vllm\n{UNIT}$ cat /etc/default/vllm\nTP=8\n"
    )
    assert words_in(text) == ["org/model", "--tensor-parallel-size", "8"]


def test_a_configuration_that_a_terminal_shows_is_read() -> None:
    text = "$ cat /etc/llm.yaml\nmax-num-seqs: 7\n$ vllm serve org/model --config /etc/llm.yaml\n"
    assert read_serve_command(text).values["serving"]["engine"]["max_num_seqs"] == 7


def test_of_several_commands_at_prompts_the_user_chooses() -> None:
    text = "$ vllm serve org/model -tp 2\nERROR out of memory\n$ vllm serve org/model -tp 4\n"
    with pytest.raises(OutriderError, match="2 different commands"):
        words_in(text)
    assert words_in(text.replace("-tp 4", "-tp 2")) == ["org/model", "-tp", "2"]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/model\n$ cat x\n",
        "# vllm serve org/model\n",
        "$MODEL serve\n",
        "$\n",
        "",
        "MODEL=a\nvllm serve $MODEL\n",
        "/opt/venv/bin/vllm serve org/model -tp 2 > /var/log/vllm.log 2>&1",
        "/usr/bin/vllm serve org/model\n$ echo",
        "C:\\vllm\\serve.exe org/model > log.txt",
    ],
)
def test_other_texts_are_no_terminals(text: str) -> None:
    assert not is_terminal(text) and as_script(text) == text
    assert list(typed_in(text)) == []


def test_lines_belong_to_the_command_before_them() -> None:
    assert list(typed_in("$ a \\\n> b\nc\n$ d\n\n$\n")) == [
        Typed("a \\\nb", "c"),
        Typed("d", ""),
        Typed("", ""),
    ]
