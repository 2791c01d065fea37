"""Reads the environment once, at the root, into frozen groups; a bad value is one line that names the variable and what is expected.

Nothing below the roots (`main`, `cli`, `launcher`) imports this: they are handed the values they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.domain.errors import PlacetError
from app.domain.limits import CONCURRENT_MAX, REQUESTS_PER_MINUTE_MAX

PROJECT = Path(__file__).resolve().parent.parent
BOOTSTRAP_KEY_LENGTH = 24  # characters at least
WORKERS_MAX = 64
DATABASE_SCHEMES = ("postgresql://", "postgres://", "postgresql+asyncpg://")
EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "PLACET_HOST": "a host name or address to listen on, such as 127.0.0.1",
        "PLACET_PORT": "a port from 1 to 65535, or 0 for any free one",
        "PLACET_WORKERS": f"a number of processes from 1 to {WORKERS_MAX}",
        "PLACET_DATA_DIR": "a folder's path",
        "PLACET_CHECKOUT": "a folder's path",
        "PLACET_BOOTSTRAP_KEY": f"at least {BOOTSTRAP_KEY_LENGTH} visible ASCII characters without blanks",
        "PLACET_POLICY_DIR": "a folder that is there and holds a policy bundle",
        "PLACET_DEMO": "true or false",
        "PLACET_SINGLE_ROLE": "true or false",
        "DATABASE_URL": "postgresql://user:password@host:port/database",
        "PLACET_MIGRATION_URL": "postgresql://owner:password@host:port/database, and DATABASE_URL beside it",
        "PLACET_REQUESTS_PER_MINUTE": f"a number of requests from 1 to {REQUESTS_PER_MINUTE_MAX}",
        "PLACET_CONCURRENT_REQUESTS": f"a number of requests from 1 to {CONCURRENT_MAX}",
        "PLACET_LOG_LEVEL": "one of debug, info, warning, error",
        "PLACET_WORKER_SLOT": "a number that the launcher gives",
    }
)


class SettingsInvalid(PlacetError):
    """A variable of the environment has a value that can't be used."""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Listening:
    host: str
    port: int  # 0: any free one
    workers: int


@dataclass(frozen=True, slots=True)
class Database:
    """`url` None: the launcher starts an embedded PostgreSQL. In a worker it is always set, and `migration_url` never."""

    url: str | None = field(repr=False)
    migration_url: str | None = field(repr=False)
    single_role: bool


@dataclass(frozen=True, slots=True)
class Folders:
    data: Path | None  # None: `launcher.data_folder` chooses
    checkout: Path | None  # set by `./run`
    policy: Path


@dataclass(frozen=True, slots=True)
class Start:
    bootstrap_key: SecretStr | None
    demo: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Of keys that have none of their own."""

    requests_per_minute: int
    concurrent: int


@dataclass(frozen=True, slots=True)
class Settings:
    listening: Listening
    database: Database
    folders: Folders
    start: Start
    limits: Limits
    log_level: LogLevel
    worker_slot: int | None  # None: not a worker


def load_settings() -> Settings:
    """Read the environment.

    Raises: SettingsInvalid, a line for each variable that is wrong; no value that may be a secret is repeated.
    """
    try:
        read = _Environment()
    except ValidationError as error:
        raise SettingsInvalid(
            "\n".join(_complaint(dict(fault)) for fault in error.errors(include_url=False, include_context=False))
        ) from None
    if read.migration_url is not None and read.database_url is None:
        raise SettingsInvalid("PLACET_MIGRATION_URL is set without DATABASE_URL; set both to use a server of your own, or neither")
    return Settings(
        listening=Listening(read.host, read.port, read.workers),
        database=Database(_reveal(read.database_url), _reveal(read.migration_url), read.single_role),
        folders=Folders(_absolute(read.data_dir), _absolute(read.checkout), read.policy_dir.expanduser().absolute()),
        start=Start(read.bootstrap_key, read.demo),
        limits=Limits(read.requests_per_minute, read.concurrent_requests),
        log_level=read.log_level,
        worker_slot=read.worker_slot,
    )


def _complaint(fault: Mapping[str, Any]) -> str:
    name = str(fault["loc"][0])
    secret = name in ("PLACET_BOOTSTRAP_KEY", "DATABASE_URL", "PLACET_MIGRATION_URL")
    given = "" if secret else f" `{fault['input']}`"
    return f"{name}{given} can't be used; expected {EXPECTED.get(name, fault['msg'])}"


def _reveal(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None


def _absolute(path: Path | None) -> Path | None:
    return path.expanduser().absolute() if path is not None else None


def _database_url(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().startswith(DATABASE_SCHEMES):
        raise ValueError("no PostgreSQL URL")
    return secret


def _strong(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if len(text) < BOOTSTRAP_KEY_LENGTH or not all("!" <= character <= "~" for character in text):
        raise ValueError("too weak")
    return secret


def _folder(path: Path) -> Path:
    if not path.expanduser().is_dir():
        raise ValueError("no folder")
    return path


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, case_sensitive=True)

    host: str = Field(default="127.0.0.1", validation_alias="PLACET_HOST", min_length=1)
    port: int = Field(default=8080, validation_alias="PLACET_PORT", ge=0, le=65535)
    workers: int = Field(default=1, validation_alias="PLACET_WORKERS", ge=1, le=WORKERS_MAX)
    data_dir: Path | None = Field(default=None, validation_alias="PLACET_DATA_DIR")
    checkout: Path | None = Field(default=None, validation_alias="PLACET_CHECKOUT")
    bootstrap_key: Annotated[SecretStr, AfterValidator(_strong)] | None = Field(default=None, validation_alias="PLACET_BOOTSTRAP_KEY")
    policy_dir: Annotated[Path, AfterValidator(_folder)] = Field(
        default=PROJECT / "policies" / "shop", validation_alias="PLACET_POLICY_DIR"
    )
    demo: bool = Field(default=True, validation_alias="PLACET_DEMO")
    single_role: bool = Field(default=False, validation_alias="PLACET_SINGLE_ROLE")
    database_url: DatabaseUrl | None = Field(default=None, validation_alias="DATABASE_URL")
    migration_url: DatabaseUrl | None = Field(default=None, validation_alias="PLACET_MIGRATION_URL")
    requests_per_minute: int = Field(default=30_000, validation_alias="PLACET_REQUESTS_PER_MINUTE", ge=1, le=REQUESTS_PER_MINUTE_MAX)
    concurrent_requests: int = Field(default=128, validation_alias="PLACET_CONCURRENT_REQUESTS", ge=1, le=CONCURRENT_MAX)
    log_level: LogLevel = Field(default=LogLevel.INFO, validation_alias="PLACET_LOG_LEVEL")
    worker_slot: int | None = Field(default=None, validation_alias="PLACET_WORKER_SLOT", ge=0)
