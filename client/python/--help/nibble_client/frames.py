"""Events and metrics of jobs as pandas.DataFrames (extra `pandas`)."""
from __future__ import annotations

from collections.abc import Iterable

import pandas

from nibble_client import v1
from nibble_client.messages import enum_name, short_name

_STEP_COLUMNS = ("epoch", "loss", "lr", "grad_norm", "tokens", "trainable_tokens", "tokens_per_s", "step_ms",
                 "peak_memory_bytes")
_EVENT_COLUMNS = ("sequence", "time", "severity", "attempt", "kind", "text")


def metrics(events: Iterable[v1.JobEvent]) -> pandas.DataFrame:
    """One row for each step, which is the index: the fields of StepMetrics, and the loss of each evaluation after that
    step in `eval_loss` (the model in training), `eval_loss_int8` and `eval_loss_ternary` (the served forms). A step
    that an attempt repeated has the values of the last attempt. Step 0 is the evaluation before training."""
    rows: dict[int, dict[str, float]] = {}
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "step":
            rows.setdefault(event.step.step, {}).update({name: getattr(event.step, name) for name in _STEP_COLUMNS})
        elif kind == "eval":
            subject = enum_name(event.eval, "subject")
            column = "eval_loss" if subject == "trained" else f"eval_loss_{subject}"
            rows.setdefault(event.eval.step, {})[column] = event.eval.eval_loss
    evaluations = sorted({name for row in rows.values() for name in row} - set(_STEP_COLUMNS))
    columns = [*_STEP_COLUMNS, *evaluations]
    frame: pandas.DataFrame = pandas.DataFrame.from_dict(rows, orient="index", columns=columns).sort_index()
    frame.index.name = "step"
    return frame


def events(events: Iterable[v1.JobEvent]) -> pandas.DataFrame:
    """One row for each event: sequence, time, severity, attempt, kind ("state", "step", "eval", ...) and a text."""
    frame: pandas.DataFrame = pandas.DataFrame([(
        event.sequence, event.time.ToDatetime(), enum_name(event, "severity"), event.attempt,
        event.WhichOneof("event") or "unknown", describe_event(event)) for event in events], columns=_EVENT_COLUMNS)
    frame["time"] = pandas.to_datetime(frame["time"], utc=True)
    return frame


def describe_event(event: v1.JobEvent) -> str:
    """One line for people."""
    kind = event.WhichOneof("event")
    if kind == "state":
        states = v1.Job.DESCRIPTOR.fields_by_name["state"].enum_type
        change = f"{short_name(states, getattr(event.state, 'from'))} -> {short_name(states, event.state.to)}"
        return f"{change}: {event.state.reason.message}" if event.state.reason.message else change
    if kind == "step":
        return f"step {event.step.step}: loss {event.step.loss:.4f}, {event.step.tokens_per_s:.0f} tokens/s"
    if kind == "eval":
        return f"step {event.eval.step}: {enum_name(event.eval, 'subject')} loss {event.eval.eval_loss:.4f}"
    if kind == "checkpoint":
        return event.checkpoint.checkpoint.name
    if kind == "model":
        return f"{event.model.model} ({enum_name(event.model, 'format')})"
    if kind == "warning":
        return f"{event.warning.reason}: {event.warning.message}"
    return event.log.text if kind == "log" else ""
