"""The file of an endpoint: paths, defaults, and messages for mistakes."""

from pathlib import Path

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.live.endpoint_file import SHIPPED_ENDPOINTS, CanaryPolicy, load_endpoint

REPLICAS = """
- {name: one, data: "unix:one.sock"}
- {name: two, data: "http://10.0.0.2:8000", admin: "unix:/run/b.admin.sock", role: canary}
"""


def changed(folder: Path, **values: object) -> Path:
    tree = {"state_dir": "/run/e", "replicas": yaml.safe_load(REPLICAS)} | values
    path = folder / "resume.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return path


def mistake(path: Path) -> str:
    with pytest.raises(OutriderError) as caught:
        load_endpoint(path)
    return str(caught.value)


def test_relative_paths_are_relative_to_the_file_and_sockets_to_the_state(tmp_path) -> None:
    path = changed(
        tmp_path,
        state_dir="state",
        router={"listen": "unix:front.sock"},
    )
    endpoint = load_endpoint(path)
    state = tmp_path / "state"
    assert (endpoint.name, endpoint.state_dir) == ("resume", state)
    one, two = endpoint.replicas
    assert (one.data, one.admin) == (f"unix:{state}/one.sock", f"unix:{state}/one.admin.sock")
    assert (two.data, two.admin) == ("http://10.0.0.2:8000", "unix:/run/b.admin.sock")
    assert (endpoint.stable, endpoint.canary) == ([one], [two])
    assert endpoint.router.listen == f"unix:{state}/front.sock"
    assert endpoint.envoy_admin == f"unix:{state}/envoy.sock"


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED_ENDPOINTS.glob("*.yaml")))
def test_shipped_endpoints_load_by_name_and_are_listed_for_another(name, tmp_path) -> None:
    assert f"give the path of its file or a shipped name: {name}" in mistake(tmp_path / "none")
    endpoint = load_endpoint(name)
    assert endpoint.name == name
    assert endpoint.stable and endpoint.canary


def test_a_mistyped_key_is_named_with_its_line_and_the_nearest_key(tmp_path) -> None:
    path = changed(tmp_path, policy={"min_request": 3})
    assert mistake(path) == (
        f"{path}:10: policy.min_request: no such key; did you mean `policy.min_requests`? "
        f"`policy` has: {', '.join(sorted(CanaryPolicy.model_fields))}"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"replicas": [{"name": "a", "data": "unix:/a", "role": "canary"}]},
            "at least one has `role: stable`",
        ),
        (
            {"replicas": [{"name": n, "data": "unix:/a"} for n in "ab"]},
            "unix:/a: used twice; names and addresses must differ",
        ),
        (
            {"replicas": [{"name": "a", "data": "unix:/a", "admin": "http://10.0.0.2:80"}]},
            "http://10.0.0.2:80': any user of the machine can listen on a port",
        ),
        (
            {"replicas": [{"name": "a", "data": "unix:/a", "admin": "unix:/a"}]},
            "unix:/a: used twice",
        ),
        (
            {"replicas": [{"name": "a", "data": "https://10.0.0.2:80"}]},
            "https is not supported",
        ),
        ({"replicas": [{"name": "a", "data": "/a.sock"}]}, "not an address; write unix:"),
        ({"replicas": [{"name": "a", "data": "unix:/" + "x" * 107}]}, "the path has 108 bytes"),
        ({"policy": {"shares": [5, 25]}}, "shares rise from above 0 to 100 percent"),
        ({"policy": {"margin": float("nan")}}, "policy.margin = '.nan'"),
        ({"router": {"sticky_header": "authorization"}}, "must not be a secret"),
        ({"router": {"listen": "unix:one.sock"}}, "one.sock: used twice"),
        ({"router": {"listen": "unix:envoy.sock"}}, "envoy.sock: used twice"),
        ({"router": {"sticky_header": "a b"}}, "router.sticky_header = 'a b'"),
        ({"name": "Bad Name"}, "name = 'Bad Name'"),
        ({"state_dir": 3}, "state_dir = 3"),
    ],
)
def test_a_mistake_names_key_value_and_fix(tmp_path, values, message) -> None:
    assert message in mistake(changed(tmp_path, **values))


def test_the_token_is_made_with_the_private_state_folder(tmp_path) -> None:
    endpoint = load_endpoint(changed(tmp_path, state_dir="state"))
    token = endpoint.admin_token()
    assert (tmp_path / "state" / "admin.token").read_text() == token == endpoint.admin_token()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
