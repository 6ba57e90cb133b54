"""Find out whether code of the user in a compiler's settings is the culprit, before the compiler is blamed.

A pass, a partitioner or a lowering is blamed if the failure goes away without it alone, and stays with it
when inductor calls every operator in place of generating code: then what the user's code made of the graph is
wrong by itself. If only the first is seen, turning it off may merely hide a bug of the compiler, and a note
says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchrepro.engine.subsets import narrow
from torchrepro.locate.context import Inquiry
from torchrepro.locate.switches import INDUCTOR, Off, settings_of
from torchrepro.nouns.repro import Repro, shown_setting
from torchrepro.nouns.results import Confidence, Located, Part, Workaround
from torchrepro.torch_api.configs import default_of
from torchrepro.torch_api.operator_tables import LOWERINGS, TABLES
from torchrepro.user_code.settings import OPTIONS, code_settings, without_settings

_Places = Sequence[tuple[str, str]]
_NO_CODE_GENERATION = {"fallback_by_default": True}


def find_users_code(inquiry: Inquiry, found: Located) -> dict[str, object]:
    """Return whom to blame, the part and a workaround; nothing if the user's code is not the culprit."""
    repro, settings = inquiry.repro, code_settings(inquiry.repro)

    def is_gone(places: _Places) -> bool:
        return inquiry.passes(without_settings(repro, places))

    places = list(settings)
    if not places or not is_gone(places):
        return {}
    culprits = narrow(places, is_gone) if len(places) > 1 else places
    if not culprits:
        return {}
    names = " and ".join(f"{shown_setting(settings[place])} in {'.'.join(place)}" for place in culprits)
    kind = _kind(culprits[0])
    if _is_wrong_by_itself(inquiry, culprits):
        detail = f"the failure goes away without it alone{_beyond(culprits)}"
        return {
            "blamed": f"{kind} {names}",
            "part": Part(kind, names, detail),
            "workaround": Workaround(code="; ".join(map(_line_without, culprits)), verified=True),
            "confidence": Confidence.VERIFIED,
        }
    inquiry.notes.append(
        f"turning off the user's {kind} {names} hides the failure, and so does calling every operator in "
        "place of generated code: it is not blamed"
    )
    return {}


def _is_wrong_by_itself(inquiry: Inquiry, culprits: _Places) -> bool:
    """Return whether the failure stays without generated code; a lowering is generated code itself."""
    repro: Repro = inquiry.repro
    known = settings_of(INDUCTOR, repro).keys()
    if _is_lowering(culprits) or repro.compiler.name != INDUCTOR or not _NO_CODE_GENERATION.keys() <= known:
        return True
    return not inquiry.passes(Off({INDUCTOR: _NO_CODE_GENERATION}).applied_to(repro))


def _beyond(culprits: _Places) -> str:
    return "" if _is_lowering(culprits) else ", and stays with it when every operator is called as it is"


def _is_lowering(culprits: _Places) -> bool:
    return any(table == LOWERINGS for table, _ in culprits)


def _kind(place: tuple[str, str]) -> str:
    table, name = place
    if table in TABLES:
        return table.removesuffix("s")
    return next((word for word in ("pass", "partitioner") if word in name), "setting")


def _line_without(place: tuple[str, str]) -> str:
    """Return what a user writes to do without a setting."""
    table, name = place
    if table == OPTIONS:
        return f"torch.compile without the option {name}"
    if table in TABLES:
        return f"do not register a {_kind(place)} for {name}"
    return f"torch._{table}.config.{name} = {default_of(table, name)!r}"
