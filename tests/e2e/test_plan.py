"""Compares the predictions of `jobs plan` with the figures of the run."""
import json
import pathlib
import re

import pytest

import small_model
from conftest import ROOT, Server

METHODS = {"qlora": ["--method", "qlora", "--rank", 16], "bitnet_qat": ["--method", "bitnet_qat"],
           "full": ["--method", "full"], "int8_mixed": ["--method", "int8_mixed"],
           "int8_qt": ["--method", "int8_qt"], "lora": ["--method", "lora", "--rank", 16]}


def plan_and_run(server, name, base, dataset, method, *flags):
    flags = [*METHODS[method], "--base", base, "--dataset", dataset, *flags]
    plan = server.json("jobs", "plan", *flags)
    events = server.lines("jobs", "create", *flags, "--output", name, "--watch", timeout=1800)
    steps = [event for event in events if event.get("type") == "step"]
    job = server.json("jobs", "get", events[-1]["job_id"])
    assert job["state"] == "SUCCEEDED", job
    peak = max(job["progress"]["peak_memory_bytes"], max(step["peak_memory_bytes"] for step in steps))
    print(f"{method}: planned {plan['memory_total_bytes'] / 2**20:.0f} MiB ({ {k: v >> 20 for k, v in plan['memory'].items()} }), peak "
          f"{peak / 2**20:.0f} MiB: {plan['memory_total_bytes'] / peak - 1:+.1%}; planned {plan['tokens']} tokens, "
          f"took {sum(step['tokens'] for step in steps)}")
    return plan, steps, peak


@pytest.mark.parametrize("method", METHODS)
def test_plan_predicts_memory_steps_and_tokens(shared, method):
    plan, steps, peak = plan_and_run(shared, f"planned-{method}", "small", "page", method, "--micro-batch", 4, "--seq-len", 128,
                                     "--max-steps", 3, "--save-every", 0)
    assert abs(plan["memory_total_bytes"] - peak) <= 0.25 * peak
    assert sum(plan["memory"].values()) == plan["memory_total_bytes"]
    assert plan["max_steps"] == len(steps) == 3
    assert abs(plan["tokens"] - sum(step["tokens"] for step in steps)) <= 0.25 * plan["tokens"]
    assert {warning["reason"] for warning in plan["warnings"]} >= {"NO_EVALUATION"}
    again = shared.json("jobs", "plan", *METHODS[method], "--base", "small", "--dataset", "page", "--max-steps", 3)
    assert again["eta_s"] > 0  # a comparable job has run now


def weights_a_token(config):
    hidden, ffn, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads = 2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"]  # q and o, k and v
    return config["num_hidden_layers"] * hidden * (heads * head_dim + 3 * ffn) + config["vocab_size"] * hidden


def test_time_on_another_base_is_scaled_by_the_weights_and_marked_as_rough(tmp_path, model_directory, text_file):
    server = Server(tmp_path / "state").start()
    try:
        server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        deeper = small_model.write(tmp_path / "deeper", num_hidden_layers=7)
        server.run("models", "import", deeper, "--name", "deeper", "--dtype", "f32")
        server.run("datasets", "upload", text_file, "--name", "page")
        flags = [*METHODS["qlora"], "--dataset", "page", "--micro-batch", 2, "--seq-len", 128, "--max-steps", 1000]
        assert server.json("jobs", "plan", "--base", "small", *flags)["eta_s"] is None  # nothing has run here
        server.run("jobs", "create", "--base", "small", *flags[:-1], 2, "--watch")
        small, other = (server.json("jobs", "plan", "--base", base, *flags) for base in ("small", "deeper"))
        assert small["eta_s"] > 0 and "ETA_ROUGH" not in {warning["reason"] for warning in small["warnings"]}
        assert "ETA_ROUGH" in {warning["reason"] for warning in other["warnings"]} and other["tokens"] == small["tokens"]
        scale = weights_a_token({**small_model.CONFIG, "num_hidden_layers": 7}) / weights_a_token(small_model.CONFIG)
        assert other["eta_s"] == pytest.approx(small["eta_s"] * scale, abs=0.01 * scale)
        none = server.json("jobs", "plan", *METHODS["bitnet_qat"], "--base", "small", "--dataset", "page", "--max-steps", 3)
        assert none["eta_s"] is None  # jobs of another method are not comparable
    finally:
        server.stop()


def test_epoch_has_the_planned_steps(shared):
    flags = ["--base", "small", "--dataset", "page", "--micro-batch", 16, "--seq-len", 256, "--save-every", 0]
    plan = shared.json("jobs", "plan", *METHODS["qlora"], *flags)
    events = shared.lines("jobs", "create", *METHODS["qlora"], *flags, "--output", "epoch", "--watch")
    steps = [event for event in events if event.get("type") == "step"]
    assert plan["max_steps"] == len(steps)
    assert plan["tokens"] == sum(step["tokens"] for step in steps)
    assert plan["trainable_tokens"] == sum(step["trainable_tokens"] for step in steps)


def test_plan_and_run_name_the_same_rows(shared, tmp_path):
    rows = [{"prompt": "The keeper", "completion": " walked"}, {"prompt": "Down", "completion": " to the harbour" * 40},
            {"prompt": "A keeper " * 200, "completion": " walked"}]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared.run("datasets", "upload", tmp_path / "long.jsonl", "--name", "long")
    flags = [*METHODS["qlora"], "--base", "small", "--dataset", "long", "--seq-len", 64, "--max-steps", 1]
    planned = {warning["reason"]: warning for warning in shared.json("jobs", "plan", *flags)["warnings"]}
    assert planned["ROWS_TRUNCATED"]["row_ids"] == [2, 3]
    assert planned["ROWS_WITHOUT_LOSS"]["row_ids"] == [3]
    events = shared.lines("jobs", "create", *flags, "--output", "long-rows", "--watch")
    warnings = {event["reason"]: event for event in events if event.get("type") == "warning"}
    for reason in ("ROWS_TRUNCATED", "ROWS_WITHOUT_LOSS"):
        assert warnings[reason]["row_ids"] == planned[reason]["row_ids"]
        assert warnings[reason]["message"] == planned[reason]["message"]


def test_upload_preview_plan_and_run_warn_of_empty_answers(shared, tmp_path):
    def chat(answer):
        return {"messages": [{"role": "user", "content": "Who walks?"}, {"role": "assistant", "content": answer}]}
    rows = [chat("The keeper"), chat(""), chat("The keeper"), chat("")]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    uploaded = shared.json("datasets", "upload", tmp_path / "answers.jsonl", "--name", "answers")
    (want,) = uploaded["warnings"]
    assert want["reason"] == "EMPTY_ANSWERS" and want["row_ids"] == [2, 4]
    assert want["message"].startswith("2 of 4 rows have an answer without text")
    again = shared.run("datasets", "upload", tmp_path / "answers.jsonl", "--name", "answers").stdout
    assert "warning: 2 of 4 rows" in again and "(lines 2, 4) (EMPTY_ANSWERS)" in again, again
    listed = {entry["name"]: entry["warnings"] for entry in shared.json("datasets", "list")["datasets"]}
    assert listed["answers"] == [want] and listed["page"] == []

    assert want in shared.json("datasets", "preview", "answers", "--model", "small", "-n", 4)["warnings"]
    flags = [*METHODS["qlora"], "--base", "small", "--dataset", "answers", "--seq-len", 64, "--max-steps", 1]
    assert want in shared.json("jobs", "plan", *flags)["warnings"]
    events = shared.lines("jobs", "create", *flags, "--output", "answers-tuned", "--watch")
    assert want in [{key: event[key] for key in want} for event in events if event.get("type") == "warning"]

    alpaca = [{"instruction": "Who walks?", "output": output} for output in ("", "The keeper")]
    (tmp_path / "alpaca.json").write_text(json.dumps(alpaca))
    shown = shared.run("datasets", "upload", tmp_path / "alpaca.json", "--format", "alpaca", "--name", "alpaca").stdout
    assert "warning: 1 of 2 rows" in shown and "(element 1) (EMPTY_ANSWERS)" in shown, shown
    (tmp_path / "alpaca.csv").write_text('instruction,output\n"Who\nwalks?",The keeper\nWho?,\n')
    shown = shared.run("datasets", "upload", tmp_path / "alpaca.csv", "--format", "csv", "--name", "alpaca-csv").stdout
    assert "warning: 1 of 2 rows" in shown and "(line 4) (EMPTY_ANSWERS)" in shown, shown


def test_T1_plan_and_run_name_rows_of_the_evaluation_set(shared, tmp_path):
    rows = [{"prompt": "The keeper", "completion": " walked"}, {"prompt": "Down", "completion": " to the harbour" * 40}]
    for name, chosen in (("plain", rows[:1]), ("questions", rows)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
        shared.run("datasets", "upload", tmp_path / f"{name}.jsonl", "--name", name)
    flags = [*METHODS["qlora"], "--base", "small", "--dataset", "plain", "--eval-dataset", "questions", "--seq-len", 64, "--max-steps", 1]
    want = {"reason": "ROWS_TRUNCATED", "row_ids": [2],
            "message": 'eval_dataset "questions": 1 of 2 rows are longer than data.max_seq_len 64 and are truncated'}
    assert want in shared.json("jobs", "plan", *flags)["warnings"]
    events = shared.lines("jobs", "create", *flags, "--output", "questions-tuned", "--watch")
    assert want in [{key: event[key] for key in want} for event in events if event.get("type") == "warning"]


def test_T1_preview_plan_and_run_name_merged_boundaries(shared, tmp_path):
    """In the second row the token " p" begins in the prompt and ends in the completion."""
    small_model.write(tmp_path / "merging")
    path = tmp_path / "merging/tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["Ġp"] = 259
    tokenizer["model"]["merges"] = [["Ġ", "p"]]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    shared.run("models", "import", tmp_path / "merging", "--name", "merging")
    rows = [{"prompt": "Sentiment:", "completion": " positive"}, {"prompt": "Sentiment: ", "completion": "positive"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared.run("datasets", "upload", tmp_path / "rows.jsonl", "--name", "sentiment")
    shown = shared.json("datasets", "preview", "sentiment", "--model", "merging")
    assert shown["rows"][0]["token_ids"] == shown["rows"][1]["token_ids"] and shown["rows"][0]["mask"] == shown["rows"][1]["mask"]
    assert sum(shown["rows"][1]["mask"]) == len(" positive"), "one token per byte except for ' p', plus the end token"
    previewed = shown["warnings"]
    assert [(warning["reason"], warning["row_ids"]) for warning in previewed] == [("PROMPT_BOUNDARY_MERGED", [2])]
    flags = [*METHODS["qlora"], "--base", "merging", "--dataset", "sentiment", "--seq-len", 64, "--max-steps", 1]
    assert previewed[0] in shared.json("jobs", "plan", *flags)["warnings"]
    events = shared.lines("jobs", "create", *flags, "--output", "sentiment-tuned", "--watch")
    warnings = [event for event in events if event.get("type") == "warning"]
    assert [{key: event[key] for key in previewed[0]} for event in warnings] == previewed


def test_T9_preview_plan_and_run_name_rows_that_begin_with_the_bos(shared, tmp_path):
    small_model.write(tmp_path / "begins")
    path = tmp_path / "begins/tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    begin = {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
                                   "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                                   "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [256], "tokens": ["<|begin|>"]}}}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    shared.run("models", "import", tmp_path / "begins", "--name", "begins")
    rows = [{"text": "A keeper walked."}, {"text": "<|begin|>A keeper walked."}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared.run("datasets", "upload", tmp_path / "rows.jsonl", "--name", "begun")
    shown = shared.json("datasets", "preview", "begun", "--model", "begins")
    assert shown["rows"][0]["token_ids"] == shown["rows"][1]["token_ids"], "the token is there once"
    assert shown["rows"][1]["token_ids"].count(256) == 1
    assert [(warning["reason"], warning["row_ids"]) for warning in shown["warnings"]] == [("BOS_IN_TEXT", [2])]
    flags = [*METHODS["qlora"], "--base", "begins", "--dataset", "begun", "--seq-len", 64, "--max-steps", 1]
    assert shown["warnings"][0] in shared.json("jobs", "plan", *flags)["warnings"]
    events = shared.lines("jobs", "create", *flags, "--output", "begun-tuned", "--watch")
    warnings = [event for event in events if event.get("type") == "warning"]
    assert [{key: event[key] for key in shown["warnings"][0]} for event in warnings] == shown["warnings"]


def test_plan_of_few_steps_warns_and_a_refusal_for_memory_names_what_reduces_it(make_server, model_directory, text_file):
    server = make_server("--train_memory_bytes", 64 << 20)
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    flags = [*METHODS["qlora"], "--base", "small", "--dataset", "page", "--micro-batch", 2, "--seq-len", 128, "--epochs", 0.1,
             "--packing", "none"]
    plan = server.json("jobs", "plan", *flags)
    assert plan["epochs"] == pytest.approx(0.1, abs=0.05) and plan["spec"]["data"]["packing"] == "none"
    warnings = {warning["reason"]: warning["message"] for warning in plan["warnings"]}
    assert re.match(r"0\.1\d* passes over the data take only \d+ steps: ", warnings["FEW_STEPS"])
    assert "MiB of memory, all trainers together may use 64.0 MiB" in warnings["MEMORY"]
    assert re.search(r"^passes over the data +0\.1", server.run("jobs", "plan", *flags).stdout, re.M)
    refused = server.run("jobs", "create", *flags, check=False)
    assert refused.returncode == 7 and "OUT_OF_DEVICE_MEMORY" in refused.stderr
    assert "--micro-batch" in refused.stderr and "--seq-len" in refused.stderr


def test_plan_is_refused_where_its_job_would_be(shared):
    refused = shared.run("jobs", "plan", "--method", "bitnet_qat", "--base", "small-int8", "--dataset", "page", check=False)
    assert refused.returncode != 0 and "base_model" in refused.stderr
    assert shared.run("jobs", "plan", "--method", "qlora", "--base", "small", "--dataset", "none", check=False).returncode != 0


@pytest.mark.full
@pytest.mark.parametrize("method, options", [
    ("qlora", {}), ("qlora", {"merge_aware_int8": True}), ("qlora", {"use_dora": True}), ("lora", {}),
    ("lora", {"modules_to_save": ["embed_tokens", "norm"]}), ("qlora", {"modules_to_save": ["embed_tokens", "norm"]}),
    ("qlora", {"merge_aware_int8": True, "modules_to_save": ["embed_tokens"]}), ("full", {}), ("int8_mixed", {}), ("int8_qt", {}),
    ("int8_mixed", {"master_dtype": "COMPUTE_DTYPE_BF16"}), ("int8_mixed", {"master_dtype": "COMPUTE_DTYPE_BF16", "preset": "torchao"}),
    ("int8_qt", {"compute": "INT8_QT_COMPUTE_FLOAT"}), ("bitnet_qat", {}),
    ("bitnet_qat", {"preset": "bitnet-tips", "init": "WEIGHT_INIT_RANDOM"}),
    ("bitnet_qat", {"preset": "bitnet-2b4t", "init": "WEIGHT_INIT_RANDOM"}),
    ("bitnet_qat", {"master_dtype": "COMPUTE_DTYPE_BF16"}), ("bitnet_qat", {"warmup_lambda": {"steps": 5}}),
], ids=json.dumps)
def test_plan_of_a_real_model_predicts_its_peak(tmp_path, method, options):
    """SmolLM2-135M on ragged rows: short and long paragraphs, packed; and its shape from random weights."""
    text = (ROOT / "build/deps/paths.cmake").read_text()
    gguf = re.search(r'NIBBLE_SMOLLM2_GGUF\D*?"([^"]+)"', text).group(1).replace("${CMAKE_CURRENT_LIST_DIR}", str(ROOT / "build/deps"))
    server = Server(tmp_path / "state").start()
    try:
        server.run("models", "import", gguf, "--name", "smollm2", "--dtype", "bf16")
        prose = pathlib.Path("/usr/share/common-licenses/GPL-3").read_text()
        rows = [part.strip() for part in prose.split("\n\n") if len(part.strip()) > 40]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
        server.run("datasets", "upload", tmp_path / "rows.jsonl", "--name", "rows")
        flags = ["--micro-batch", 4, "--seq-len", 256, "--max-steps", 8, "--save-every", 0]
        if options:
            (tmp_path / "spec.json").write_text(json.dumps({method: options}))
            flags += ["--spec", tmp_path / "spec.json"]
        plan, _, peak = plan_and_run(server, "planned", "smollm2", "rows", method, *flags)
        assert abs(plan["memory_total_bytes"] - peak) <= 0.25 * peak
    finally:
        server.stop()
