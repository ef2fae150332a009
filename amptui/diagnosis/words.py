"""The words of every finding: by subject and state a long wording and a short one, with its numbers.

Each surface takes the long one where it fits, else the short one; nobody writes a third.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import TypeAlias

from amptui.base import units
from amptui.diagnosis.finding_fields import FIELDS, NUMBERS, interval_ends
from amptui.diagnosis.labels import precision_label
from amptui.records.run import COLLAPSE_SKIPS
from amptui.telemetry.finding import Finding, Grade

SIGNS: Mapping[Grade, str] = {"good": "✔", "neutral": "·", "warning": "⚠", "error": "✖", "unknown": "?"}

_Wording: TypeAlias = str | tuple[str, ...]
"""The long and the short one; one alone is both. A third explains the state where an event is opened.

What stands in [brackets] is left out where a number or a name in it is not known.
"""


def long_words(finding: Finding) -> str:
    """What was found, in a sentence without its label."""
    return _words(finding, 0)


def short_words(finding: Finding) -> str:
    """The same where room is scarce: ``1.65×``, ``worst 0.999 in features.12``."""
    return _words(finding, 1)


def explanation(finding: Finding) -> str:
    """A sentence or two on what it means and what to do; empty where the others say it all."""
    return _words(finding, 2)


def explained_words(finding: Finding) -> str:
    """The sentence and, behind it, what it follows from."""
    why = explanation(finding)
    return f"{long_words(finding)} ({why})" if why else long_words(finding)


def _words(finding: Finding, which: int) -> str:
    words = _WORDS[finding.subject].get(finding.state, units.NOT_MEASURED)
    words = (words, words) if isinstance(words, str) else words
    if which >= len(words):
        return ""
    fields, text = _Fields(finding), ""
    for part, is_optional, names in _parts(words[which]):
        if not is_optional or all(fields[name] not in units.EMPTY for name in names):
            text += part.format_map(fields)
    return text


@cache
def _parts(words: str) -> list[tuple[str, bool, list[str]]]:
    """The parts of a wording, whether each may be left out, and the names in it."""
    parts = enumerate(re.split(r"\[(.*?)\]", words))
    return [(part, i % 2 == 1, re.findall(r"{(\w+)}", part)) for i, part in parts]


class _Fields(dict[str, str]):
    """What the words name, made as they ask for it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self._finding = finding

    def __missing__(self, name: str) -> str:
        finding = self._finding
        if name in FIELDS:
            return FIELDS[name](finding)
        return NUMBERS[name](finding.numbers.get(name)) if name in NUMBERS else finding.names.get(name, "")


# --------------------------------------------------------------------------------------- the words

_LEAVE_FLOAT16 = "; use bf16 or FP32[; {where}]"
_NO_SCALE_HELPS = "no loss scale helps"
_LOSS_ALONE = "the outputs of all modules are finite: look at the loss and the labels"
_GO_BACK = "go back to a checkpoint, if there is one"
_LOSS_EXPLAINED = (
    "A trace tells where it began: in the input, the weights, or a module's output. A module that exceeds "
    "float16's range needs FP32 (autocast disabled) or bf16."
)
_GENTLER = "a lower learning rate or clipped gradients (--clip-norm)"

_BEGAN: Mapping[str, _Wording] = {
    "bad input": (
        "NaN or Inf in the input batch ({place}); look at the data, no precision helps",
        "NaN or Inf in the input batch: look at the data",
    ),
    "weights lost": (
        f"NaN or Inf in the weights[: {{lost}}]; {_GO_BACK}",
        "NaN or Inf in the weights[: {layer}]",
        f"They stay so in every precision. After that, look at the data of that step, or try {_GENTLER}.",
    ),
    "buffers lost": (
        f"NaN or Inf in the buffers[: {{lost}}]; {_GO_BACK}",
        "NaN or Inf in the buffers[: {layer}]",
    ),
    "overflowed": (
        "the forward pass overflowed: {kind} in {output}; run it in FP32 (autocast disabled) or use bf16",
        "the forward pass overflowed[ in {layer}]",
        "float16 ends at 65,504, and this layer's output is larger: no loss scale helps.",
    ),
    "not finite": (
        "{kind} in {output}: not a float16 problem, check this module and its inputs",
        "{kind}[ in {layer}]",
    ),
    "gradients not finite": (
        (
            "{kind} in {output}; [at scale {scale} ]the scaler skips such steps; "
            "if they persist, use bf16 or FP32"
        ),
        "{kind} in gradients[ in {layer}]",
    ),
    "cause unknown": (
        "NaN or Inf, cause unknown, because the model's {unseen} were not seen",
        "NaN or Inf, cause unknown",
    ),
}
"""Where NaN or Inf began."""

_SCALER: Mapping[str, _Wording] = {
    **_BEGAN,
    "none": (
        "no overflow in {steps} steps; GradScaler does not detect underflow",
        "no overflow in {steps} steps",
    ),
    "none recently": (
        "no overflow in the last {recent} steps; GradScaler does not detect underflow",
        "no overflow in {recent} steps",
    ),
    "occasional": (
        (
            "{recent_skips} of the last {recent} steps skipped: normal, "
            "an occasional overflow tells the scaler to halve its scale"
        ),
        "{recent_skips} of {recent} steps skipped",
    ),
    "frequent": (
        "{recent_skips} of the last {recent} steps skipped: too many, lower the learning rate or use bf16",
        "{recent_skips} of {recent} steps skipped",
    ),
    "calibrating": (
        (
            "{recent_skips} skipped, calibrating: normal, "
            "the scale starts high on purpose and halves until the gradients fit"
        ),
        "{recent_skips} skipped, calibrating",
    ),
    "skipped mostly": (
        "{recent_skips} of {recent} fp16 steps skipped: lower the learning rate, or use bf16",
        "{recent_skips} of {recent} steps skipped",
    ),
    "collapsing": (
        f"{{in_a_row}} steps skipped in a row, the loss scale keeps falling{_LEAVE_FLOAT16}",
        "{in_a_row} skipped in a row",
    ),
    "collapsed": (
        f"[{{skipped_steps}}: ]the loss scale has collapsed{_LEAVE_FLOAT16}",
        "[{skipped_steps}: ]scale collapsed",
    ),
    "loss not finite": (
        f"the loss was NaN or Inf: {_NO_SCALE_HELPS}",
        "the loss was NaN or Inf",
        _LOSS_EXPLAINED,
    ),
    "loss alone not finite": (f"the loss was NaN or Inf, {_LOSS_ALONE}", "the loss was NaN or Inf"),
}
"""What a loss scaler did."""

_SKIPS: Mapping[str, _Wording] = {
    **_SCALER,
    "calibrating": (
        "calibration, normal",
        "calibration",
        "The scale starts high on purpose and halves until the gradients fit: nothing to do.",
    ),
    "occasional": (
        "normal",
        "normal",
        "A gradient exceeded float16's range; the scaler will double its scale again later: nothing to do.",
    ),
    "collapsing": (
        f"the scale keeps falling{_LEAVE_FLOAT16}",
        "the scale keeps falling",
        f"After {COLLAPSE_SKIPS} skips in a row another halving is unlikely to help.",
    ),
    "collapsed": (
        f"the scale has collapsed{_LEAVE_FLOAT16}",
        "the scale has collapsed",
        "Below 1 the scaler shrinks gradients; at 0 the next step would turn every weight into NaN.",
    ),
}
"""What skipped steps mean, beside which steps and scales they were."""

_STORM: Mapping[str, _Wording] = {
    **_BEGAN,
    "loss not finite": (_NO_SCALE_HELPS, _NO_SCALE_HELPS, _LOSS_EXPLAINED),
    "loss alone not finite": (_LOSS_ALONE, "look at the loss and the labels"),
    "loss applied": (
        f"the step changed the weights: lower the learning rate, or {_GO_BACK}",
        "the step changed the weights",
        f"Outside float16 no scaler skips such a step. If the loss does not recover, try {_GENTLER}.",
    ),
    "gradients skipped": (
        "the scaler skips such steps",
        "skipped",
        "Times the loss scale they exceeded float16's range: nothing to do while that is rare.",
    ),
    "gradients applied": (
        f"the step changed the weights to NaN or Inf: {_GO_BACK}",
        "the weights are NaN or Inf",
        f"Outside float16 no scaler skips such a step. After that, try {_GENTLER}.",
    ),
    "buffers": (
        f"stays NaN or Inf in every precision: {_GO_BACK}",
        "stays NaN or Inf",
        "Skipped steps update buffers such as BatchNorm's running statistics too, and no scaler checks them.",
    ),
}
"""What NaN or Inf means, beside where and how often it was."""

_STORED = "{kinds} ({stored}) stay {dtype}"
_MOVED = "[; activations {activations_change}]"
_BUSY = (
    "[the GPU is busy {busy} of the time]"
    "[the GPU takes {device_seconds}; launching takes the host {launching} of that]"
    "[the loop waits for data {waiting} of the step]"
)

_WORST = "lowest cosine {cosine}[ in {layer}], losses {apart}"
_MOST_IN = "[, most in {place} ({worst_share})][, {zeros}]"
_SHARE, _AT_SCALE = "{share} of the gradient norm", "at loss scale {scale}[ ({overflowing_scale} overflows)]"

_SLOW = "{who}[ ({place})] is slow"
_WAIT = "{who} {makes} the others wait: {doing} for {duration}"

_NO_SPEED: Mapping[str, _Wording] = {
    "open": ("speed-up unclear so far: {range}", "unclear: {range}"),
    "disturbed": ("step times too uneven for a speed-up[: press {c}]", "uneven step times[: press {c}]"),
    "never ran": "not tried yet",
    "reference never ran": ("not compared with {than} yet[: press {c}]", "not compared yet[: press {c}]"),
    "too few steps": ("too few steps to compare yet", "too few steps"),
    "no steps": "no steps yet",
    "unsupported": ("{label} is not supported on this device", "{label} not supported"),
    "observed": ("{family} needs watch() in the script", "needs watch()"),
}
"""Why there is no speed-up, and what to press."""

_SPEED, _ENDS = "the speed[ of {than_other}]", "{ratio} ({ends})"

_WORDS: Mapping[str, Mapping[str, _Wording]] = {
    "worth": {
        **_NO_SPEED,
        "try": "press {p} to try {family}[, {c} to measure it]",
        "never ran": "{family} not tried yet",
        "rough": (f"{{times}} {_SPEED}, rough[: press {{c}}]", "{times}, rough[: press {c}]"),
        **{
            state: (f"{verdict}: {{ratio}} {_SPEED} ({{ends}})[, {{memory}}]", f"{verdict}: {_ENDS}")
            for state, verdict in {
                "faster": "worth it",
                "little": "little gain",
                "slower": "slower",
            }.items()
        },
        "same": (f"no gain in speed: {_ENDS}[; {{memory}}]", f"no gain: {_ENDS}"),
        "same, launch": (
            (f"no gain in speed: {_ENDS}, launch-bound: try torch.compile or a larger batch[; {{memory}}]"),
            "no gain: {ratio}, launch-bound: try compiling",
        ),
        "same, input": (
            f"no gain in speed: {_ENDS}, input-bound: speed up data loading first[; {{memory}}]",
            "no gain: {ratio}, input-bound: speed up loading",
        ),
    },
    "safety": {
        "safe": ("safe: gradients agree", "safe"),
        "no trouble": ("safe so far: {steps} steps", "safe so far"),
        "would agree": ("likely safe: gradients agree", "likely safe"),
        "would be safe": ("likely safe: underflow {share}", "likely safe"),
        "unknown": "{counted_steps} so far",
    },
    "speed": {
        **_NO_SPEED,
        **dict.fromkeys(
            ("faster", "slower", "same"), ("{times} the speed of {than}[: {bound}-bound]", "{ratio}")
        ),
        "first impression": ("{times} the speed of {than}, rough: few steps", "{ratio} rough"),
    },
    "memory": {
        **dict.fromkeys(("less", "more", "same"), ("{less_percent} peak memory", "{less_percent}")),
    },
    "memory use": {
        "before AMP": f"AMP can shrink only activations, {{activations}} of {{peak}}; {_STORED}",
        "no peak": f"{_STORED}; activations and peak are not measured on a CPU",
        "fell": f"peak fell by {{change}}{_MOVED}; {_STORED}",
        **{
            f"{state}{most}": f"peak {words}: {owner}{_MOVED}"
            for state, words in {"same": "barely changed", "rose": "rose by {change}"}.items()
            for most, owner in {
                "": _STORED,
                ", stored": "{stored} of {peak} are {kinds}, which stay {dtype}",
                ", other": "{other} of {peak} is other memory: data on the device, batches, workspaces",
            }.items()
        },
        "unknown": "most of the memory is probably weights, gradients and optimizer state, which stay FP32",
    },
    "limit": {
        "too few steps": "too few steps timed yet",
        "compute": (
            "compute-bound[: {can} {step_share} of the step][: at most {most}]",
            "compute-bound",
            _BUSY,
        ),
        "communication": (
            "compute- or communication-bound: passes and communication take {step_share} of the step",
            "compute- or communication-bound",
            _BUSY,
        ),
        "input": (
            (
                "input-bound: {step_share} of the step waits for data[ in any precision: at most {most}]; "
                "speed up data loading first"
            ),
            "input-bound: {step_share}",
            "[the GPU waits for data or copies it {waiting} of the step, the host waits {input_seconds}]",
        ),
        "launch": (
            "launch-bound: little to gain; try torch.compile, CUDA graphs or a larger batch",
            "launch-bound",
            (
                "[the host takes {launch_seconds} to launch kernels that the GPU runs in {device_seconds}]"
                "[, idle {idle} of the time]"
                "[the GPU is busy {busy} of the time][, and {casts}'s casts add kernel launches]"
            ),
        ),
        "unknown": (
            "the GPU idles, cause unknown",
            "the GPU idles",
            "the GPU is idle {idle} of the time, which neither data nor the host explains",
        ),
    },
    "overflow": {
        **_SCALER,
        "finite": "no NaN or Inf",
        "not finite gradients": "NaN or Inf in {gradients} gradients",
        "never ran": "no {about} steps yet",
    },
    "forward": {
        **_BEGAN,
        "would overflow": (
            "{output} would overflow float16: {distance}",
            "fp16 would overflow in {place}",
        ),
        "fits": (
            "nothing overflowed in {modules} modules; nearest: {output}, {distance}",
            "largest {largest} of 65,504",
        ),
        "unknown": ("nothing overflowed in {modules} modules", "nothing overflowed"),
    },
    "float16": {
        **_SCALER,
        **dict.fromkeys(
            ("survives", "outweighed", "kept"),
            (f"{_SHARE} underflows {_AT_SCALE}{_MOST_IN}", "{share} underflows"),
        ),
        "underflows": (
            f"{_SHARE} {{underflows}} {_AT_SCALE}{_MOST_IN}; use bf16",
            "{share} of the norm underflows; use bf16",
        ),
        "not finite": (
            "{gradients} gradients are NaN or Inf in {precision}: not a float16 problem",
            "NaN or Inf in {precision} already",
        ),
        "all zero": ("all gradients are zero{flushed}", "all gradients are zero"),
        "overflow": (
            "overflow in fp16 at {scale}: {gradients} gradients are NaN or Inf; the scaler skips this step",
            "overflow at {scale}",
        ),
        "empty": "no gradients",
    },
    "agreement": {
        "agree": (
            f"gradients agree in {{layers}}, {_WORST}",
            "lowest cosine {cosine}[ in {layer}]",
        ),
        **{
            state: (
                f"gradients {state} in {{layers}}, {_WORST}[; {{caution}}]",
                f"gradients {state}: cosine {{cosine}}[ in {{layer}}]",
            )
            for state in ("differ", "disagree")
        },
        "FP32 loss not finite": (
            "the loss is {other_loss} even in FP32: not a problem of {precision}",
            "the loss is not finite in FP32 either",
        ),
        "AMP loss not finite": (
            "the loss is {loss} in {precision} but {other_loss} in FP32{overflowed}",
            "the loss is finite in FP32 only",
        ),
        "overflow": (
            (
                "overflow at scale {scale}: the scaler would skip this step and halve its scale: "
                "NaN or Inf in {bad_layers}"
            ),
            "NaN or Inf[ in {layer}]",
        ),
        "not finite": ("{precision}: NaN or Inf in {bad_layers}", "NaN or Inf[ in {layer}]"),
        "nothing to compare": ("no layer has a gradient to compare", "no gradients to compare"),
    },
    "loss": {
        "not finite": ("the loss is {loss}[ since step {step}]", "the loss is {loss}"),
        "dropped": ("the loss of a batch was {loss}, no step was taken with it", "{loss}, no step taken"),
        "validation not finite": ("the validation loss is {loss}", "validation {loss}"),
        "finite": "finite: {loss}",
        "same": ("{loss}, {than} {other_loss}: the same within noise", "same within noise"),
        **{
            state: (
                f"{{loss}}, {{than}} {{other_loss}}: {state} by more than the noise",
                "{loss}, not {other_loss}",
            )
            for state in ("higher", "lower")
        },
    },
    "final loss": {
        "differ": "{sides}: final {which} {difference} ({interval}). They differ by more than the seeds do",
        "not shown": (
            "{sides}: final {which} {difference} ({interval}). "
            "No difference shown: the seeds differ by as much"
        ),
        "diverged": "{sides}: the final {which} is NaN or Inf in {runs}",
        **{
            state: f"{{sides}}: {{no_verdict}}: {why}"
            for state, why in {
                "few seeds": "{few}; a verdict needs 2 or more in each group",
                "no spread": "all seeds of a group ended at the same loss",
                "no loss": "a run has no loss",
                "not comparable": "it was not the same training, see below",
                "running": "a run still trains",
            }.items()
        },
    },
    "skips": _SKIPS,
    "storm": _STORM,
    "pause": {
        "no checkpoint": (
            "there is no checkpoint to go back to: quit, check the data, restart with a smaller --lr"
        ),
        "checkpoint": "to go back to {place}: quit, then amptui train --resume",
    },
    "weights": {
        **_BEGAN,
        "bad input": (
            "NaN or Inf in the input batch and in the weights; look at the data",
            "NaN or Inf in the input batch: look at the data",
        ),
        "finite": "finite",
    },
    "lost rank": {
        cause: f"{{who}}[ on {{host}}] {what}[: {{detail}}]"
        for cause, what in {
            "killed": "was killed",
            "hung": "hung",
            "out of memory": "ran out of memory",
            "failed": "failed",
        }.items()
    },
    "replicas": {
        "agree": "replicas agree again: {what}",
        **{
            state: (f"replicas disagree: {difference}", difference)
            for state, difference in {
                "loss scale": "{who} {has} {rank_scale}, the others {usual}",
                "found Inf": "{who} found Inf and skipped a step that the others took",
                "missed Inf": "{who} found no Inf and took a step that the others skipped",
            }.items()
        },
    },
    "progress": {
        "awaited": _WAIT,
        "over": _WAIT,
        "stacks": ("no progress: stacks of {stacks}[; {silent} did not answer]", "no progress"),
    },
    "cost": {
        "slow": (
            "about {seconds} a step on this CPU, {minutes} an epoch[: try {cheaper}]",
            "{minutes} an epoch on this CPU",
        ),
    },
    "rank speed": {
        "input": (
            f"{_SLOW}: it waits {{seconds}} for data, the other ranks {{others_seconds}}",
            "{who} slow: data wait {seconds}, others {others_seconds}",
        ),
        "compute": (
            f"{_SLOW}: forward and backward take {{seconds}}, {{others_seconds}} on the other ranks",
            "{who} slow: compute {seconds}, others {others_seconds}",
        ),
        "clocks": (
            (
                f"{_SLOW}: clock held at {{held_clock}} of {{others_clock}} by {{reasons}}"
                "[; compute {seconds}, others {others_seconds}]"
            ),
            "{who} slow: clock {clock}, others {others_clock}",
        ),
        "equal": ("no rank is slower than the others", "equally fast"),
        "equal again": ("the ranks are equally fast again", "equally fast again"),
        "equal where measured": (
            "data wait and clocks are the same on all ranks; {parallel} hides which rank computes slowly",
            "equal data wait and clocks",
        ),
    },
}
"""By subject and state."""


SUBJECTS: Mapping[str, str] = {
    "overflow": "overflow",
    "forward": "outputs",
    "float16": "underflow",
    "agreement": "gradients",
    "loss": "loss",
    "limit": "bottleneck",
}
"""The labels of subjects beside their words; others are labels themselves."""


# ------------------------------------------------------------------------------- what it is from


def speed_words(speed: Finding, without: str = "") -> str:
    """``1.71× the speed of FP32 (1.68 to 1.74)``; ``without`` an interval other words stand there."""
    interval = interval_ends(speed.numbers.get("low"), speed.numbers.get("high"))
    if speed.state == "open":  # its words name the interval
        return long_words(speed)
    return f"{long_words(speed)} {f'({interval})' if interval else without}".rstrip()


def measured_at(finding: Finding) -> str:
    """``step 1,204 in AMP fp16 at loss scale 65,536``: what a measurement of one step is of."""
    if finding.step is None:
        return ""
    where = f" in {precision_label(finding.precision)}" if finding.precision else ""
    # The words on underflow name the scale themselves.
    scale = None if finding.subject == "float16" else finding.loss_scale
    at = "" if scale is None else f" at loss scale {units.count(scale)}"
    return f"step {units.count(finding.step)}{where}{at}"


def age_words(steps: int) -> str:
    """``300 steps ago``."""
    return f"{units.counted(steps, 'step')} ago"


def evidence_words(finding: Finding) -> str:
    """What it is from, and its age if it is old."""
    age = age_words(finding.age_steps or 0) if finding.freshness == "old" else ""
    why = explanation(finding) if finding.subject == "limit" else ""
    return "; ".join(filter(None, (why, measured_at(finding), age)))
