"""A target from an attacker: neither its Python files nor its chat template run anything."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Place, Reject
from outrider.data.tokenize.tokens import SequenceBuilder

pytestmark = pytest.mark.attack("targets")


@pytest.fixture
def target(text_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    directory = shutil.copytree(text_target, tmp_path / "target")
    (directory / "evil.py").write_text("open('ran', 'w').close()\n")
    return directory


def change(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(values | changes))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json", "processor_config.json"])
def test_auto_map(target: Path, file: str) -> None:
    evil = {
        "AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"],
        "AutoConfig": "evil.EvilConfig",
        "AutoModel": "evil.EvilModel",
    }
    change(target / file, auto_map=evil, trust_remote_code=True)
    try:
        SequenceBuilder(target)
    except OutriderError as error:
        assert str(target) in str(error)
    assert not Path("ran").exists()
    assert "evil" not in sys.modules


SUBCLASSES = "''.__class__.__mro__[1].__subclasses__()"


@pytest.mark.parametrize(
    "template",
    [
        f"{{{{ {SUBCLASSES} }}}}",
        "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ ''['__class__'] }}{{ self.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ tojson.__globals__['__builtins__'] }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ messages.append({}) }}",
        "{{ '%s'.__mod__ }}{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{% for x in range(10**12) %}{% endfor %}",
    ],
    ids=range(12),
)
def test_a_template(target: Path, template: str) -> None:
    (target / "chat_template.jinja").write_text(template)
    exchange = Exchange(
        place=Place("log", 1),
        messages=[{"role": "user", "content": "Hi"}],
        reasoning="r",
        content="a",
    )
    try:
        text = SequenceBuilder(target).build(exchange).prompt_text
    except Reject as reject:
        text = str(reject)
    for secret in ("__globals__", "<class", "<function", "root:"):
        assert secret not in text
    assert not Path("ran").exists()
