"""Plays the story against the running service and says whether it went as told."""

from __future__ import annotations

import asyncio

import httpx

from app.demo.stage import ANSWER_WITHIN_S, Stage, WentOtherwise
from app.demo.story import STORY, TOOLS, Act
from app.demo.telling import Played, Teller, document
from app.demo.tenant import DemoTenant, StoryImpossible, make_demo_tenant
from app.launcher.running_service import address_of, readiness_at
from app.settings import Settings


def play(settings: Settings, address: str | None, *, as_json: bool) -> bool:
    """Play every act, also after one that went otherwise; return whether all went as told.

    Raises: StoryImpossible, DatabaseUnsuitable; nothing was asked of the service then.
    """
    where = running_at(settings, address)
    return asyncio.run(_play(settings, where, as_json))


def running_at(settings: Settings, address: str | None) -> str:
    """Give the address of the service, which answers and is ready.

    Raises: StoryImpossible.
    """
    where = address or address_of(settings.listening)
    if where is None:
        raise StoryImpossible(
            "PLACET_PORT is 0, so nobody knows where the service listens; name it: placet demo --url http://127.0.0.1:8080"
        )
    checks = readiness_at(where)
    if checks is None:
        raise StoryImpossible(f"no Placet answers at {where}; start it with `./run` (or `placet serve`), or name another with --url")
    wrong = "; ".join(f"{name}: {said}" for name, said in checks.items() if said != "ok")
    if wrong:
        raise StoryImpossible(f"the service at {where} isn't ready ({wrong}); `placet doctor` says what to do")
    return where


async def _play(settings: Settings, where: str, as_json: bool) -> bool:
    tenant = await make_demo_tenant(settings, TOOLS)
    teller = Teller()
    if not as_json:
        teller.say(f"The tenant `{tenant.name}` was made for this story; it is told to {where}.")
    all_played: list[Played] = []
    headers = {"authorization": f"Bearer {tenant.agent}"}
    async with httpx.AsyncClient(base_url=where, headers=headers, timeout=ANSWER_WITHIN_S, trust_env=False) as client:
        for number, act in enumerate(STORY, 1):
            played = await _act(client, tenant, number, act)
            all_played.append(played)
            if as_json:
                print(document(played), flush=True)
            else:
                teller.tell(played)
        chain = await _chain(client, tenant)
    failed = [each.number for each in all_played if each.otherwise is not None]
    if not as_json:
        numbers = ", ".join(str(number) for number in failed)
        said = f"All {len(all_played)} acts went as told." if not failed else f"Not as told: act {numbers} of {len(all_played)}."
        teller.say(f"{said} {chain}")
    return not failed


async def _act(client: httpx.AsyncClient, tenant: DemoTenant, number: int, act: Act) -> Played:
    stage = Stage(client, f"{tenant.name}-{act.name}")
    otherwise = None
    try:
        await act.play(stage)
    except WentOtherwise as told:
        otherwise = str(told)
    except (LookupError, TypeError) as lacking:  # the service may be of another version or serve a changed bundle
        otherwise = f"an answer isn't of the shape that the act looks into ({type(lacking).__name__}: {lacking})"
    return Played(number, act, tuple(stage.told), tuple(stage.remarks), otherwise)


async def _chain(client: httpx.AsyncClient, tenant: DemoTenant) -> str:
    """Say what an auditor sees of it all."""
    try:
        answer = await client.get("/audit/verification", headers={"authorization": f"Bearer {tenant.auditor}"})
        found = answer.json()
        return f"{found['rows']} rows of the audit chain `{found['chain']}`, {'verified' if found['verified'] else 'BROKEN'}."
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return "The audit chain couldn't be verified just now; try `placet audit verify`."
