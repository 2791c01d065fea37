"""The `placet` command. What can be foreseen ends with one line that says what to do, never with a traceback.

Exit codes: 0 done, 1 it could not be done, 2 what was asked for makes no sense.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.domain.errors import PlacetError, PolicyInvalid
from app.settings import SettingsInvalid, load_settings

program = typer.Typer(
    name="placet", help="Decides tool calls before they run.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
policy = typer.Typer(help="Work on a policy bundle.", no_args_is_help=True)
program.add_typer(policy, name="policy")
audit = typer.Typer(help="Look at the audit chain.", no_args_is_help=True)
program.add_typer(audit, name="audit")


def main() -> None:
    """Run the command and end the process with its exit code."""
    try:
        program(prog_name="placet")
    except SettingsInvalid as error:
        for line in str(error).splitlines():
            complain(f"placet: {line}")
        sys.exit(2)
    except (PlacetError, OSError) as error:  # a folder that can't be read or made says which it is
        complain(f"placet: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@program.command()
def serve() -> None:
    """Start the database, if DATABASE_URL names none, and the service; Ctrl-C stops both."""
    from app.launcher import supervisor

    raise typer.Exit(supervisor.serve(load_settings()))


@program.command()
def migrate() -> None:
    """Bring the database's schema to what this version needs."""
    from app.launcher import migrating

    migrating.migrate(load_settings())
    typer.echo("the schema is up to date")


@program.command()
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document a line for each act, with the ids of its decisions")] = False,
    url: Annotated[str | None, typer.Option(help="where the service listens; by default at PLACET_HOST and PLACET_PORT")] = None,
) -> None:
    """Tell the running service a story, as a tenant made for it; it ends with 1 if an act goes otherwise than told."""
    from app.demo import play

    if not play.play(load_settings(), url, as_json=as_json):
        complain("placet: an act didn't go as told (see above); if the bundle was changed, that may be why")
        raise typer.Exit(1)


@program.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document instead of lines")] = False,
) -> None:
    """Look at everything that a start depends on, and say what to do where something is wrong; ends with 1 if it keeps from serving."""
    from app.launcher import doctor as looking

    found = looking.examine()
    if as_json:
        typer.echo(looking.document(found))
    else:
        colours = {"ok": "green", "note": "yellow", "fault": "red"}
        for each in found:
            typer.echo(f"{typer.style(f'{each.status:<5}', fg=colours[each.status])}  {each.check}: {each.said}")
            if each.remedy is not None:
                typer.echo(f"       -> {each.remedy}")
    if looking.keeps_from_serving(found):
        raise typer.Exit(1)


@program.command()
def openapi() -> None:
    """Print the contract that the service serves at /openapi.json, as YAML."""
    from app.api.openapi import as_yaml
    from app.main import contract

    typer.echo(as_yaml(contract()), nl=False)


@policy.command()
def validate(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="the bundle's folder; by default PLACET_POLICY_DIR")] = None,
) -> None:
    """Check a bundle: every fault with its file, its line and what is expected there."""
    from app.policy.compile import compile_bundle
    from app.policy.reading import load_directory

    chosen = folder if folder is not None else load_settings().folders.policy
    if not chosen.is_dir():
        complain(f"placet: `{chosen}` is not a folder; name the one that holds the bundle")
        raise typer.Exit(2)
    try:
        compiled = compile_bundle(load_directory(chosen))
    except PolicyInvalid as invalid:
        for fault in invalid.faults:
            complain(str(fault))
        raise typer.Exit(1) from None
    for note in compiled.notes:
        typer.echo(str(note))
    if compiled.notes_left_out:
        typer.echo(f"and {compiled.notes_left_out} more that are only annotations")
    typer.echo(f"{compiled.name} is valid: {len(compiled.tools)} tools ({', '.join(sorted(compiled.tools))}), digest {compiled.digest}")


@audit.command()
def verify(
    tenants: Annotated[list[str] | None, typer.Argument(metavar="[TENANT]...", help="their names; by default all tenants")] = None,
) -> None:
    """Check every audit row against the chain and its signed checkpoints; the first broken row is named, and the exit code is 1."""
    from app.api.audit import verification_document
    from app.domain.canonical import canonical
    from app.launcher import verifying

    reports = verifying.verify(load_settings(), tenants or [])
    for report in reports:
        typer.echo(canonical(verification_document(report)))
    if not all(report.verification.verified for report in reports):
        raise typer.Exit(1)


def complain(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    main()
