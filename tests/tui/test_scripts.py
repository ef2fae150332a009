"""Keys pressed on a screen over a session: what it says after each, and what the run is asked for."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from amptui.records.answers import REQUEST_KINDS, RequestMade
from amptui.records.findings import ModuleRange, ModulesTraced, PrecisionMeasured, PrecisionsCompared
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import LossScaleChanged, Note, PhaseChanged, Record, RunFailed
from amptui.tui.layout import PANELS as PANEL_NAMES
from amptui.tui.run_screen import RunScreen
from tests.golden import Goldens
from tests.telemetry import record_samples as samples
from tests.telemetry.record_samples import faster, measured
from tests.telemetry.simulated_ranks import SimulatedRanks
from tests.tui.overlays.opened import xray as xray_record
from tests.tui.watching import (
    FINISHED,
    RESUMED,
    STOPPED,
    Script,
    answer,
    elsewhere,
    end,
    feed,
    paused,
    run,
    step,
    switched,
    transcript,
)

NO_TF32 = {"bf16": "no bfloat16", "tf32": "no TF32"}
OBSERVED = dict.fromkeys(sorted(REQUEST_KINDS - {"stop"}), "this run is only observed")
IN_BF16 = feed("it runs in bf16", switched(6, "fp32", "bf16"), step(6, "bf16"))
IMPORTING = PhaseChanged(time=0.0, phase="importing", detail="importing torch")
XRAY = replace(xray_record(), time=0.0)
TRACED = ModulesTraced(
    time=0.0,
    step=7,
    precision="fp16",
    loss_scale=65536.0,
    asked=True,
    first=ModuleRange(name="features.3", kind="Conv2d", way="forward", dtype="float16", largest=float("inf")),
    nearest=(),
    modules=12,
    seconds=None,
)
WRITTEN = CheckpointWritten(
    time=0.0,
    step=6,
    name="step-000000006.pt",
    size_bytes=12 * 1024**2,
    reason="asked",
    blocked_seconds=0.012,
    seconds=0.4,
)
RANKS = SimulatedRanks(2, seed=1)
MEASURED_RANKS: list[Record] = [
    RANKS.started(0.0),
    *RANKS.samples(1, 0.0),
    samples.device(0.0, "fp32", 2**30),
    samples.window(5, time=0.0),
    LossScaleChanged(time=0.0, step=5, previous=2.0**16, current=2.0**15, reason="backoff"),
]
FAILED = RunFailed(time=0.0, step=6, error="no such layer; check build_model()", traceback="Traceback ...")
FLOOR = feed(
    "the loss scale collapses",
    LossScaleChanged(time=0.0, step=5, previous=2.0**-9, current=2.0**-10, reason="backoff"),
    paused("the scale is at its floor"),
)
EVERY_PAIR = "exhxgxixtxehghihthegigtgeitiete"
"""The keys of the pages, with h for the help's, in an order that has each behind each other once."""
ROWS = (measured("fp32"), faster())
BEGUN = (measured("fp32", blocks=0), measured("bf16", blocks=0))
IN_FLOAT8 = (measured("bf16"), measured("fp8", speedup=1.25, speedup_low=1.21, speedup_high=1.29))


def in_turns(
    rounds: int = 0, rows: tuple[PrecisionMeasured, ...] = BEGUN, **changes: str
) -> PrecisionsCompared:
    progress: dict[str, Any] = {"over": False, "reason": "running", "chosen": "fp32", **changes}
    return samples.compared(time=0.0, rounds=rounds, rows=rows, **progress)


PRECISIONS = {
    "p asks for AMP and it is switching until the run has switched": Script(
        run(), ["p", IN_BF16, answer("precision")]
    ),
    "p twice returns to the first precision": Script(run(), ["p", "p"]),
    "a precision can be chosen before the run has begun": Script([], ["m", "4"]),
    "an unsupported precision is refused with the reason": Script(
        run(unsupported=NO_TF32), ["p", answer("precision", "unavailable", "no bfloat16"), "m", "3"]
    ),
    "m opens a menu that asks for the chosen precision": Script(run(), ["m", "5", "m escape"]),
    "at the end a pending switch is no longer shown": Script(run(), ["p", end(FINISHED)]),
    "a switch that another screen asks for is shown and not reported": Script(
        run(),
        [
            "p",
            elsewhere(RequestMade("precision", precision="tf32")),
            feed("it runs in TF32", switched(6, "fp32", "tf32"), step(6, "tf32")),
            answer("precision"),
        ],
    ),
    "a failed switch is reported only where it was asked for": Script(
        run(),
        [
            "p",
            answer("precision", "failed", "the first step failed"),
            "l",
            elsewhere(RequestMade("precision", precision="tf32")),
            answer("precision", "unavailable", "no TF32 here"),
        ],
    ),
}

PAUSES = {
    "space pauses and resumes": Script(run(), ["space", "space"]),
    "space resumes a run that was paused before": Script(run(paused()), ["space", "space"]),
    "after another screen resumed, space pauses again": Script(
        run(),
        [
            "space",
            feed("it is paused", paused()),
            answer("pause"),
            elsewhere(RequestMade("pause", paused=False)),
            feed("it goes on", RESUMED),
            answer("pause"),
            "space",
        ],
    ),
    "after the end keys ask for nothing": Script(
        run(), [end(FINISHED), "p", "s", "c", "x", "n", "m 2", "space", "question_mark"]
    ),
}

PAGES = {
    "l changes the axis and back": Script(run(count=40), ["l", "l"]),
    "zoom has two limits and can be reset": Script(
        run(count=40), ["minus", "plus equals_sign minus", " ".join(["plus"] * 18), "0"]
    ),
    "zoom and axis keys reach the charts": Script(run(count=40), ["g", "plus l", "escape"]),
    "tab goes through the panels with something to show and escape shows all": Script(
        run(), [*["tab"] * 6, "tab escape"]
    ),
    "tab goes on from an empty panel that f enlarged": Script([], ["f", "tab"]),
    "tab goes to the loss scale, the device and the ranks of a distributed run": Script(
        run(*MEASURED_RANKS, world_size=2),
        [*["tab"] * (len(PANEL_NAMES) + 1), feed("one rank", *run(world_size=1)), "tab"],
    ),
    "f leads from each page to the float16 panel": Script(
        run(), ["f", *(f"{key} f" for key in ("e", "t", "i", "g", "question_mark")), "f"]
    ),
    "a question and a search lead nowhere": Script(
        run(),
        [*("m", "e i", "escape q", "e i", "escape"), *("t slash", "e i", "escape escape", "g slash e i")],
    ),
    "e shows events while the run goes on": Script(
        run(), ["e", feed("it is paused", paused()), "p", "escape"]
    ),
    "any key closes the help": Script(run(), ["question_mark", "p"]),
    "the help goes on with a glossary": Script(run(), ["question_mark end", "question_mark"]),
    "a run that is observed shows the keys that work": Script(
        run(observed=True, refuses=OBSERVED), ["question_mark", "escape"]
    ),
    "an unknown key does nothing": Script(run(), ["z f5 ctrl+p pageup up"]),
    "o without another optimizer says so": Script(run(), ["o"]),
}

XRAYS = {
    "x asks for an X-ray that opens when it arrives": Script(
        run(),
        [
            *("x", feed("a step", step(6)), feed("it arrives", XRAY), answer("x-ray")),
            *("escape", feed("a step", step(7))),
        ],
    ),
    "an X-ray waits for another overlay": Script(
        run(), ["x e", feed("it arrives", XRAY), answer("x-ray"), "escape", "escape"]
    ),
    "where none can be taken, x closes no page": Script(
        run(refuses={"x-ray": "this run is only observed"}), ["e x"]
    ),
    "x on a page closes it": Script(run(), ["e x", feed("it arrives", XRAY), answer("x-ray")]),
    "another screen's X-ray does not open": Script(
        run(), [elsewhere(RequestMade("x-ray")), feed("it arrives", XRAY), answer("x-ray")]
    ),
    "x in an X-ray takes another in its place": Script(
        run(),
        [
            *("x", feed("it arrives", XRAY), answer("x-ray"), "right x"),
            *(feed("the next one", replace(XRAY, step=1300)), answer("x-ray"), "escape"),
        ],
    ),
    "an X-ray that failed says why and leaves the keys where they are": Script(
        run(), ["x", answer("x-ray", "failed", "CUDA out of memory in the X-ray")]
    ),
    "X-rays and traces need a step": Script(
        run(paused()), [*("x", "n", feed("it goes on", RESUMED), end(FINISHED)), "x", "n"]
    ),
    "after the end, x shows the last one": Script(run(XRAY), [end(FINISHED), "x"]),
}

MEASURED = {
    "n asks for a trace and shows its verdict": Script(
        run(), ["n", "x", feed("it arrives", TRACED), answer("trace"), "g"]
    ),
    "a verdict over a page names e where that leads to the details": Script(
        run(), ["n g", feed("it arrives", TRACED), answer("trace")]
    ),
    "a verdict over the events does not name e": Script(
        run(), ["n e", feed("it arrives", TRACED), answer("trace")]
    ),
    "f measures at once, and once": Script(run(), ["f", "f f", answer("histogram"), "tab f"]),
    "a histogram that cannot be measured says why": Script(
        run(samples.window(1, time=0.0), count=20), ["f", answer("histogram", "failed", "out of memory")]
    ),
    "where none can be measured, f asks for nothing": Script(
        run(refuses={"histogram": "amptui only observes this script"}, observed=True), ["f"]
    ),
    "a paused run measures nothing": Script(run(paused()), ["f"]),
}

COLLAPSED = {
    **{
        f"{key} goes on as chosen": Script(run(precision="fp16"), [FLOOR, key])
        for key in ("1", "2", "3", "d")
    },
    "the question opens once for each pause": Script(
        run(precision="fp16"),
        [
            *(FLOOR, "escape", feed("a note", Note(time=0.0, severity="info", text="still there"))),
            *("space", "escape", "space 3"),
            *(feed("it goes on", RESUMED, step(6, "fp16")), answer("pause"), FLOOR),
        ],
    ),
    "the question waits for the open overlay and closes with the pause": Script(
        run(precision="fp16"), ["e", FLOOR, "escape", feed("it goes on", RESUMED)]
    ),
    "quitting in the question asks and returns to it": Script(
        run(precision="fp16"), [FLOOR, "q", "n", "q y"]
    ),
    "a pause by a user opens no question": Script(run(), [feed("it is paused", paused())]),
}

COMPARISONS = {
    "c compares FP32 and AMP, and its result is reported": Script(
        run(),
        [
            *("c", feed("it begins", in_turns()), answer("comparison")),
            *(feed("two rounds", in_turns(2, ROWS)), feed("it is over", samples.compared(time=0.0))),
            *(feed("a step", step(6)), "l"),
        ],
    ),
    "c again ends it": Script(run(in_turns(2, ROWS)), ["c"]),
    "an earlier result is not reported again": Script(run(samples.compared(time=0.0)), ["l"]),
    "another screen's comparison refuses it": Script(
        run(), ["c", feed("another's", in_turns()), answer("comparison", "comparison running")]
    ),
    "stopped before its first pair it says so": Script(
        run(in_turns()),
        [feed("it is stopped", samples.compared(time=0.0, rows=BEGUN, rounds=0, reason="stopped"))],
    ),
    "in FP8 it compares with bf16": Script(
        run(precision="fp8"),
        ["c", feed("in turns", in_turns(2, IN_FLOAT8, baseline="bf16", chosen="fp8"))],
    ),
    "p during a comparison switches from the precision before it": Script(
        run(), ["c", feed("it begins", in_turns()), IN_BF16, "p"]
    ),
    "a comparison that is asked for in a pause waits for its end": Script(
        run(paused()), ["c", feed("it goes on", RESUMED), end(FINISHED), "c"]
    ),
}

CHECKPOINTS = {
    "s asks for a checkpoint until that is written": Script(
        run(),
        [
            *("s", "s", feed("a step", step(6))),
            feed("one that was due", replace(WRITTEN, step=4, reason="interval")),
            *(feed("it is written", WRITTEN), answer("checkpoint")),
        ],
    ),
    "a full disk is reported": Script(run(), ["s", answer("checkpoint", "failed", "the disk is full")]),
    "a checkpoint can be written during a pause": Script(
        run(paused()), ["s", feed("it is written", WRITTEN), answer("checkpoint")]
    ),
    "a checkpoint is refused while the run stops and after its end": Script(
        run(), [feed("it stops", PhaseChanged(time=0.0, phase="stopping")), "s", end(STOPPED), "s"]
    ),
}

EARLY = {
    "what keys ask for is kept until the run begins, in that order": Script(
        [IMPORTING], ["p c x n f s", feed("it begins", *run()), feed("a step", step(6))]
    ),
    "in a run that begins in AMP the kept switch is to FP32": Script(
        [], ["p", feed("it begins", *run(precision="bf16"))]
    ),
    "a pause is asked for at once and keeps the others waiting": Script(
        [], ["x space", feed("it begins, paused", *run(paused()))]
    ),
    "a run that ends before it begins is asked for nothing": Script(
        [IMPORTING], ["p s", end(replace(FAILED, step=0))]
    ),
}

LEAVING = {
    **{
        f"{key} asks and {no} goes back": Script(run(), [key, no])
        for key, no in (("q", "n"), ("ctrl+q", "enter"))
    },
    "q asks in an attached screen too": Script(run(), ["q", "n"], {"attached": True}),
    **{
        f"yes stops and leaves once the trainer has, {attached=}": Script(
            run(), ["q y", end(STOPPED)], {"attached": attached}
        )
        for attached in (False, True)
    },
    "the question offers to detach": Script(run(), ["q d"]),
    "the end of the run closes the question": Script(run(), ["q", end(FINISHED)]),
    "d leaves a run that has not begun": Script([], ["d"]),
    "d leaves at once and asks for nothing": Script(run(), ["d"]),
    "d leaves a run that stops": Script(run(), ["q y", "d"]),
    "ctrl+c in an attached screen detaches": Script(run(), ["ctrl+c"], {"attached": True}),
    "ctrl+c stops, twice at once, and three times leaves": Script(run(), ["ctrl+c", "ctrl+c", "ctrl+c"]),
    **{
        f"ctrl+c works over {key}": Script(run(), [f"{key} ctrl+c", end(STOPPED)])
        for key in ("question_mark", "m", "e", "q")
    },
    "a stop that was asked for elsewhere is shown and the screen stays": Script(
        run(),
        [
            feed("it stops", PhaseChanged(time=0.0, phase="stopping", detail="writing the checkpoint")),
            end(STOPPED),
        ],
    ),
    **{
        f"after the end {key} quits without a question": Script(run(), [end(FINISHED), "l", key])
        for key in ("q", "d", "ctrl+c")
    },
    "a run that ended is not detached from": Script(run(), [end(FINISHED), "ctrl+c"], {"attached": True}),
    "a failure after steps keeps the screen open": Script(run(), [end(FAILED), "e escape", "t", "escape q"]),
    "a stop from outside leaves too": Script(
        run(), [elsewhere(RequestMade("stop", reason="SIGTERM")), end()]
    ),
    "the reason of its end is asked for once and shown, also below a page": Script(
        run(), [end(), "e"], {"why_ended": iter(["the run is of another version"]).__next__}
    ),
    "a run that disappears is lost, and nothing is pending": Script(run(), ["p x s", end(), "p", "q"]),
}

ALL_PAGES = {
    "every page leads to every other, and back to the panels": Script(
        run(XRAY, paused()), [{"h": "question_mark"}.get(key, key) for key in EVERY_PAIR] + ["escape"]
    ),
}

SCRIPTS: Mapping[str, Mapping[str, Script]] = {
    "precision": PRECISIONS,
    "pause": PAUSES,
    "pages": PAGES,
    "x-ray": XRAYS,
    "measured": MEASURED,
    "collapsed": COLLAPSED,
    "comparison": COMPARISONS,
    "checkpoint": CHECKPOINTS,
    "early": EARLY,
    "leaving": LEAVING,
    "all pages": ALL_PAGES,
}


@pytest.mark.parametrize(
    "topic", [pytest.param(name, marks=[pytest.mark.ci] if name == "all pages" else []) for name in SCRIPTS]
)
def test_the_screen_says_what_was_approved(
    topic: str, goldens: Goldens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunScreen, "MESSAGE_SECONDS", 3600.0)
    transcripts = [f"# {name}\n{asyncio.run(transcript(script))}" for name, script in SCRIPTS[topic].items()]
    goldens.check(f"scripts/{topic}", "\n\n".join(transcripts))
