"""The Python client's extras `pandas` and `notebook`, and rows of the package `datasets`. The tests of
test_nibble_client_package.py run this file in environments that have them."""
import os

import pytest

import client_package

nibble_client = client_package.load()
import pandas  # noqa: E402

from nibble_client import errors, frames, notebook, v1  # noqa: E402


@pytest.fixture(params=["sync", "async"])
def client(request, shared):
    with client_package.connect(request.param, shared.grpc) as client:
        client.kind = request.param
        yield client


def test_frame_is_uploaded_without_its_missing_values(client):
    frame = pandas.DataFrame({"prompt": [f"Number {i}? " for i in range(2500)], "completion": ["yes"] * 2500,
                              "note": [None, float("nan"), pandas.NaT, pandas.NA, 1] * 500})
    dataset = client.datasets.upload(frame, f"frame-{client.kind}")
    assert dataset.rows == 2500 and nibble_client.enum_name(dataset, "format") == "prompt_completion"
    frame.loc[7, "completion"] = None
    with pytest.raises(errors.DatasetFormatError) as caught:
        client.datasets.upload(frame, f"missing-{client.kind}")
    assert "8" in caught.value.violations[0].field
    frame["when"] = pandas.Timestamp("2026-01-01")
    with pytest.raises(errors.FieldError, match=r"rows\[0\]: .*Timestamp is not a JSON value"):
        client.datasets.upload(frame, f"times-{client.kind}")


@pytest.mark.skipif("NIBBLE_CLIENT_DATASETS" not in os.environ, reason="needs the package datasets")
def test_dataset_of_hugging_face_is_uploaded(client, tmp_path):
    import datasets

    rows = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}."}]} for i in range(50)]
    made = datasets.Dataset.from_list(rows)
    assert client.datasets.upload(made, f"hub-{client.kind}").rows == 50
    assert client.datasets.upload(made.to_iterable_dataset(), f"hub-stream-{client.kind}").sha256 == \
        client.datasets.get(f"hub-{client.kind}").sha256
    with pytest.raises(errors.FieldError, match="wanted a list of dicts"):
        client.datasets.upload(datasets.DatasetDict(train=made), f"hub-dict-{client.kind}")


def test_metrics_of_a_job_are_a_frame(client):
    job = client.jobs.create(method="qlora", base_model="small", train_dataset="page", eval_dataset="page", max_steps=6, eval_every=3,
                             micro_batch=2, max_seq_len=96, r=4)
    seen, plot = [], notebook.LossPlot()
    client.jobs.wait(job.name, on_event=lambda event: (seen.append(event), plot(event)))
    metrics = client.jobs.metrics(job.name)
    steps = [event.step for event in seen if event.WhichOneof("event") == "step"]
    assert list(metrics.index) == [0, 1, 2, 3, 4, 5, 6] and metrics.index.name == "step"
    assert list(metrics["loss"].dropna()) == [step.loss for step in steps]
    assert list(metrics["eval_loss"].dropna().index) == [0, 3, 6] and metrics.loc[6, "eval_loss_int8"] > 0
    assert {float(value) for value in metrics["loss"].dropna()} == set(plot.steps.values())
    assert plot.state == "succeeded" and set(plot.evaluations) == {"trained", "int8"}
    assert plot.to_png().startswith(b"\x89PNG\r\n")
    table = frames.events(seen)
    assert list(table["sequence"]) == [event.sequence for event in seen] and str(table["time"].dt.tz) == "UTC"
    assert {"state", "step", "eval", "model"} <= set(table["kind"]) and table["text"].iloc[-1] == "running -> succeeded"


def test_repeated_step_has_the_values_of_its_last_attempt():
    events = [v1.JobEvent(sequence=n + 1, step={"step": step, "loss": loss}) for n, (step, loss) in enumerate([(1, 3), (2, 2), (2, 1.5)])]
    assert list(frames.metrics(events)["loss"]) == [3, 1.5]
    assert len(frames.metrics([])) == 0 and len(frames.events([])) == 0


def test_callbacks_of_a_notebook_replace_what_they_show(monkeypatch):
    import IPython.display

    shown = []

    class Handle:
        def update(self, content):
            shown.append(content)

    monkeypatch.setattr(IPython.display, "display", lambda content, display_id: shown.append(content) or Handle())
    progress = notebook.Progress()
    for done in range(101):
        progress("upload", done, 100)
    assert 2 <= len(shown) < 20 and "100 %" in shown[-1].data, "a bar is drawn a few times a second, and at its end"
    plot = notebook.LossPlot()
    for step in range(1, 100):
        plot(v1.JobEvent(sequence=step, step={"step": step, "loss": 1 / step}))
    before = len(shown)
    plot(v1.JobEvent(sequence=100, state={"to": v1.JOB_STATE_FAILED}))
    assert len(shown) == before + 1 and shown[-1].data.startswith(b"\x89PNG")
