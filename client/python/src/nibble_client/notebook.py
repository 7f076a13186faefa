"""Displays for notebooks: progress bars, a live plot of the loss, and the trained tokens of a preview in colour.

Progress and LossPlot need the extra `notebook`. Both are callbacks, for either client:

    client.models.convert("tuned", to="int8", name="tuned-int8", on_progress=Progress())
    client.jobs.wait(job.name, on_event=LossPlot())
    Mask(client.datasets.preview("notes", "base"))
"""
from __future__ import annotations

import html
import io
import threading
import time
from typing import Any

from nibble_client import v1
from nibble_client.messages import enum_name, short_name
from nibble_client.watching import FINAL

# Colours that differ in lightness too, for readers who do not see hues.
_TRAINED = "background:#fdb863;color:#000"
_CONTEXT = "color:#666"
_SHOW_S = 0.2  # between two updates of a bar
_PLOT_S = 1.0  # between two drawings of a plot


class _Shown:
    """One output of a cell, which is replaced by the next. Thread-safe, because an upload reports in its own thread."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._handle: Any = None
        self._next = 0.0
        self._lock = threading.Lock()

    def is_due(self, now: bool) -> bool:
        """Whether to show again: now, or because enough time has passed."""
        with self._lock:
            if not now and time.monotonic() < self._next:
                return False
            self._next = time.monotonic() + self._every
            return True

    def show(self, content: Any) -> None:
        from IPython.display import display

        with self._lock:
            if self._handle is None:
                self._handle = display(content, display_id=True)  # type: ignore[no-untyped-call]
            else:
                self._handle.update(content)


class Progress:
    """A bar for each stage of an operation or an upload (`on_progress`)."""

    def __init__(self) -> None:
        self._shown = _Shown(_SHOW_S)
        self.stages: dict[str, tuple[int, int]] = {}  # finished part and size of each stage, in their order

    def __call__(self, stage: str, done: int, total: int) -> None:
        is_new = stage not in self.stages
        self.stages[stage] = (done, total)
        if self._shown.is_due(is_new or done == total):
            from IPython.display import HTML

            self._shown.show(HTML(self.to_html()))  # type: ignore[no-untyped-call]

    def to_html(self) -> str:
        rows = []
        last = len(self.stages) - 1
        for number, (stage, (done, total)) in enumerate(self.stages.items()):
            if number < last:  # the next stage has begun
                done = total = 1
            value, percent = "", ""  # a bar without a value shows only that work is in progress
            if total > 0:
                value, percent = f'max="{total}" value="{min(done, total)}"', f"{100 * min(done, total) // total} %"
            rows.append(f"<tr><td>{html.escape(stage)}</td><td><progress {value}></progress></td>"
                        f"<td>{percent}</td></tr>")
        return f"<table>{''.join(rows)}</table>"


class LossPlot:
    """The loss of each step and each evaluation while a job runs (`on_event` of jobs.wait)."""

    def __init__(self) -> None:
        self._shown = _Shown(_PLOT_S)
        self.steps: dict[int, float] = {}
        self.evaluations: dict[str, dict[int, float]] = {}  # loss by step, for each form of the model
        self.state = ""

    def __call__(self, event: v1.JobEvent) -> None:
        kind = event.WhichOneof("event")
        is_final = False
        if kind == "step":
            self.steps[event.step.step] = event.step.loss
        elif kind == "eval":
            self.evaluations.setdefault(enum_name(event.eval, "subject"), {})[event.eval.step] = event.eval.eval_loss
        elif kind == "state":
            self.state = short_name(v1.Job.DESCRIPTOR.fields_by_name["state"].enum_type, event.state.to)
            is_final = event.state.to in FINAL
        if self._shown.is_due(is_final):
            from IPython.display import Image

            self._shown.show(Image(data=self.to_png(), format="png"))  # type: ignore[no-untyped-call]

    def to_png(self) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 3.5), layout="tight")
        axes = figure.subplots()
        axes.plot(*_line(self.steps), color="#888888", linewidth=1, label="training")
        for subject, losses in self.evaluations.items():
            axes.plot(*_line(losses), marker="o", label=f"evaluation, {subject}")
        last = max(self.steps, default=0)
        loss = f", loss {self.steps[last]:.4f}" if last else ""
        axes.set(xlabel="step", ylabel="loss (nats per token)", title=f"{self.state or 'waiting'}: step {last}{loss}")
        axes.legend(loc="upper right")
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=100)
        return png.getvalue()


class Mask:
    """The rows of a preview, with the tokens that count in the loss in colour."""

    def __init__(self, preview: v1.PreviewDatasetResponse) -> None:
        self._preview = preview

    def _repr_html_(self) -> str:
        rows = [self._row(row) for row in self._preview.rows]
        warnings = [f"<li>{html.escape(each.reason)}: {html.escape(each.message)}</li>"
                    for each in self._preview.warnings]
        return (f"<p>{self._preview.trainable_tokens} of {self._preview.tokens} tokens are trained "
                f'(<span style="{_TRAINED}">in colour</span>) in these {len(rows)} of {self._preview.total_rows} rows.'
                f"</p>{''.join(rows)}<ul>{''.join(warnings)}</ul>")

    def __str__(self) -> str:
        """The rows as plain text, with each trained token in brackets."""
        return "\n".join(f"row {row.row}: " + "".join(
            f"[{text}]" if trained else text for text, trained in zip(row.token_texts, row.trained, strict=True))
            for row in self._preview.rows)

    @staticmethod
    def _row(row: v1.PreviewRow) -> str:
        tokens = "".join(
            f'<span style="{_TRAINED if trained else _CONTEXT}" title="token {token}">{_visible(text)}</span>'
            for text, trained, token in zip(row.token_texts, row.trained, row.token_ids, strict=True))
        return f'<div>row {row.row}</div><div style="white-space:pre-wrap;font-family:monospace">{tokens}</div>'


def _line(losses: dict[int, float]) -> tuple[list[int], list[float]]:
    steps = sorted(losses)
    return steps, [losses[step] for step in steps]


def _visible(text: str) -> str:
    """A token's text, with the end of a line as a character that a colour can show."""
    return html.escape(text).replace("\n", "⏎\n")
