"""`make containers` runs all that compose.yaml says: nothing in it is unknown to podman's part."""

from pathlib import Path

import pytest

from tests.containers.compose_file import IMAGE, in_order, of_run, read
from tests.containers.podman_arguments import Place, one_off, options_of

ROOT = Path(__file__).parents[3]
FILES = (ROOT / "compose.yaml", ROOT / "deploy" / "compose.tokens.yaml")
PLACE = Place("test", ROOT, of_run(read(*FILES), image="other", host_ports={4222: 1, 8080: 2}))
SERVICES = PLACE.compose["services"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_key_of_a_service_becomes_an_option(name: str) -> None:
    options = options_of(SERVICES[name], PLACE)

    assert "--cap-drop=ALL" in options
    assert "--security-opt=no-new-privileges:true" in options
    assert not [
        option for option in options_of(one_off(SERVICES[name]), PLACE) if "publish" in option
    ]


def test_a_key_that_is_unknown_is_an_error() -> None:
    with pytest.raises(ValueError, match="'gpus'"):
        options_of({"image": "one", "gpus": "all"}, PLACE)


def test_ports_are_published_on_loopback_and_tokens_replace_the_check_elsewhere() -> None:
    query = options_of(SERVICES["query"], PLACE)

    assert "--publish=127.0.0.1:2:8080" in query
    assert "--env=TURNFOLD_HTTP_TOKENS=/run/tokens/tokens.json" in query
    assert "--env=TURNFOLD_HTTP_CHECKED_ELSEWHERE=0" in query
    assert f"--volume={ROOT}/secrets/http:/run/tokens:ro" in query


def test_services_start_after_those_that_they_depend_on() -> None:
    order = list(in_order(SERVICES))

    assert set(order[:2]) == {"nats", "postgres"}
    assert order[2] == "migrate"
    assert "operator" not in order


def test_the_image_of_a_run_takes_the_place_of_ours_and_of_no_other() -> None:
    shipped = read(*FILES)["services"]

    ours = {name for name, service in shipped.items() if service["image"] == IMAGE}
    assert {name for name, service in SERVICES.items() if service["image"] == "other"} == ours
    assert SERVICES["postgres"]["image"] == shipped["postgres"]["image"]
