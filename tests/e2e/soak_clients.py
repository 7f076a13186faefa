"""The clients of a soak: threads that work with one server, remember what it acknowledged and check its answers."""
import hashlib
import http.client
import random
import threading
import traceback
import uuid

import grpc

from soak_calls import DEADLINE_S, LONG_S, CountedApi
from soon import soon
from test_server_kills import request
from wire import message, unpacked, wait_for

SERVED = ("small-int8", "small-ternary", "small")
PROMPTS = ("The keeper of the light", "He counted the boats,", "The tide turned", "x")
# Whether the converted model has a record to verify against.
TARGETS = {"MODEL_FORMAT_INT8": True, "MODEL_FORMAT_TERNARY": True, "MODEL_FORMAT_NF4": False}
KEPT = 8  # models or datasets per client; it deletes older ones
KEPT_JOBS = 100  # of all clients: the server keeps no more after the first minutes, so its memory must not grow
SUCCEEDED = 7  # JobState
INTERRUPTED = 2  # UploadState


class Client(threading.Thread):
    """Calls `turn` repeatedly. An RPC error, already counted, ends the turn; any other exception fails the soak."""
    pause_s = 0.05

    def __init__(self, soak, seed):
        super().__init__(daemon=True)
        self.soak, self.random = soak, random.Random(seed)
        self.api = CountedApi(soak.server.grpc, soak.calls, soak.life)

    def run(self):
        while not self.soak.stopping.is_set():
            self.soak.life.up.wait()
            try:
                self.turn(self.api)
            except grpc.RpcError:
                pass
            except Exception:
                self.soak.failures.append(traceback.format_exc(limit=6)[-2000:])
            self.soak.stopping.wait(self.random.uniform(0, 2 * self.pause_s))
        self.api.close()

    def finish(self, api, operation):
        """Waits for an operation that the last call of `api` began. Returns None if a kill of the server ended it."""
        life = api.connected  # the server's life in which the operation began; a kill may already have ended this life
        try:
            return wait_for(api, operation, LONG_S)
        except AssertionError:
            if self.soak.life.number != life:
                return None
            raise


class Jobs(Client):
    """Creates, pauses, resumes, cancels, deletes and reads jobs; each answer must be consistent with the earlier
    ones."""

    def turn(self, api):
        try:
            self.soak.traffic.operate(api, max_open=6, max_kept=KEPT_JOBS)
        except grpc.RpcError as error:
            # Traffic itself handles these codes where they are expected.
            assert error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION), error


class Watches(Client):
    """Reads the events of a job from the first: they must come in order and without a gap."""
    pause_s = 0.2

    def turn(self, api):
        jobs = list(self.soak.traffic.acknowledged)
        if not jobs or self.random.random() < 0.2:
            api.look_at("ServerService", "WatchLoad", 1, interval={"nanos": 100_000_000})
            return
        events = api.look_at("FineTuneService", "WatchJob", 5, name=self.random.choice(jobs))
        assert events[0].WhichOneof("event") == "snapshot"
        assert [event.sequence for event in events[1:]] == list(range(1, len(events))), "a watch has a gap"


class Plans(Client):
    pause_s = 0.5

    def turn(self, api):
        done = self.finish(api, api.call("FineTuneService", "PlanJob", spec=request(0).spec))
        if done is None:
            return
        answer = unpacked(done, "PlanJobResponse")
        assert answer.memory_total_bytes > 0 and answer.max_steps > 0


class Lists(Client):
    def turn(self, api):
        service, method = self.random.choice([
            ("FineTuneService", "ListJobs"), ("ModelService", "ListModels"), ("DatasetService", "ListDatasets"),
            ("UploadService", "ListUploads"), ("google.longrunning.Operations", "ListOperations"), ("ServerService", "GetLoad"),
            ("ServerService", "GetServerInfo"), ("FineTuneService", "ListCheckpoints")])
        fields = {"page_size": self.random.choice((1, 10, 100))} if method.startswith("List") else {}
        if method == "ListCheckpoints":
            jobs = [name for name in list(self.soak.traffic.acknowledged) if name not in self.soak.traffic.deleting]
            if not jobs:
                return
            fields["name"] = self.random.choice(jobs)
        api.call(service, method, **fields)


class Answers(Client):
    """The same greedy prompt must get the same answer whatever runs beside it, unary or streamed, also after abandoned
    streams."""

    def turn(self, api):
        model, prompt = self.random.choice(SERVED), self.random.choice(PROMPTS)
        fields = {"model": model, "text": prompt, "stopping": {"max_tokens": 16, "ignore_eos": True}}
        kind = self.random.choice(("Generate", "GenerateStream", "leave", "Score", "Tokenize", "Chat"))
        if kind == "Generate":
            text = api.call("InferenceService", "Generate", timeout=LONG_S, **fields).outputs[0].text
        elif kind == "GenerateStream":
            replies = api.read("InferenceService", "GenerateStream", request=fields)
            assert replies[-1].WhichOneof("event") == "usage", "the stream ended without its usage message"
            text = "".join(reply.delta.text for reply in replies if reply.WhichOneof("event") == "delta")
        elif kind == "leave":
            api.look_at("InferenceService", "GenerateStream", 0, request=fields)
            return
        elif kind == "Score":
            text = repr(api.call("InferenceService", "Score", model=model, text=prompt * 3, timeout=LONG_S).mean_loss)
        elif kind == "Tokenize":
            text = repr(list(api.call("InferenceService", "Tokenize", model=model, text=prompt).token_ids))
        else:
            chat = {"messages": [{"role": "user", "content": prompt}]}
            text = api.call("InferenceService", "Chat", timeout=LONG_S, request={
                "model": model, "chat": chat, "stopping": {"max_tokens": 8, "ignore_eos": True}}).outputs[0].text
        self.check(("Generate" if kind == "GenerateStream" else kind, model, prompt), text)

    def check(self, asked, text):
        if asked[1] == "small":
            return  # f32: rounding may differ with the batch
        want = self.soak.answers.setdefault(asked, text)
        assert text == want, f"{asked}: got {text!r}, earlier {want!r}"


class Uploads(Client):
    """Uploads datasets, some of them interrupted and resumed, or cancelled; deletes the oldest."""
    pause_s = 0.3

    def turn(self, api):
        name, upload_id = f"rows-{uuid.uuid4().hex[:16]}", uuid.uuid4().hex
        rows = b"".join(b'{"text": "%s"}\n' % self.random.randbytes(40).hex().encode() for _ in range(self.random.randrange(100, 4000)))
        digest = hashlib.sha256(rows).hexdigest()
        kind = self.random.choice(("whole", "whole", "resumed", "cancelled"))
        sent = 0
        if kind != "whole":
            sent = self.random.randrange(1, len(rows))
            if not self.interrupt(api, name, upload_id, rows[:sent]):
                return
        if kind == "cancelled":
            api.call("UploadService", "CancelUpload", upload_id=upload_id)
            return
        header = {"name": name, "upload_id": upload_id, **({"resume_offset": sent} if sent else {})}
        chunks = [{"chunk": rows[at:at + (64 << 10)]} for at in range(sent, len(rows), 64 << 10)]
        messages = [message("UploadDatasetRequest", **one) for one in ({"header": header}, *chunks, {"finish": {"sha256": digest}})]
        answer = api.send("DatasetService", "UploadDataset", iter(messages))
        assert (answer.name, answer.sha256, answer.bytes) == (name, digest, len(rows))
        self.soak.datasets[name] = digest
        mine = [one for one in list(self.soak.datasets) if one.startswith("rows-")]
        if len(mine) > KEPT:
            del self.soak.datasets[mine[0]]
            api.call("DatasetService", "DeleteDataset", name=mine[0])

    def interrupt(self, api, name, upload_id, content):
        """Sends `content`, then drops the connection. Returns whether the server received all of the content."""
        api.renew()
        hang, life = threading.Event(), api.connected
        invoke, _ = api.bind(api.channel.stream_unary, "DatasetService", "UploadDataset")

        def messages():
            yield message("UploadDatasetRequest", header={"name": name, "upload_id": upload_id})
            for at in range(0, len(content), 1 << 20):
                yield message("UploadDatasetRequest", chunk=content[at:at + (1 << 20)])
            hang.wait(LONG_S)

        def reached(condition):
            def look():
                if self.soak.life.number != life:
                    return "interrupted"
                try:
                    return condition(api.call("UploadService", "GetUpload", upload_id=upload_id)) and "reached"
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.NOT_FOUND:
                        raise
                    return None
            return soon(look, f"upload {upload_id} to arrive, or to be interrupted", DEADLINE_S, 0.02) == "reached"
        call = invoke.future(messages(), timeout=LONG_S)
        try:
            if not reached(lambda upload: upload.committed_bytes == len(content)):
                return False
        finally:
            call.cancel()
            hang.set()
        return reached(lambda upload: upload.state == INTERRUPTED)


class Models(Client):
    """Converts, loads, prompts, verifies and unloads models; imports an upload now and then; deletes old models, also
    those of jobs."""
    pause_s = 0.5

    def turn(self, api):
        if self.random.random() < 0.2:
            self.bring_in(api)
        else:
            self.convert(api)
        self.clean_up(api)

    def keep(self, api, name, of):
        digest = api.call("ModelService", "GetModel", name=name).digest
        want = self.soak.digests.setdefault(of, digest)
        assert digest == want, f"{name}: the same work produced different weights"
        self.soak.models[name] = digest

    def convert(self, api):
        target, name = self.random.choice(list(TARGETS)), f"made-{uuid.uuid4().hex[:16]}"
        operation = api.call("ModelService", "ConvertModel", model="small", name=name, target=target, request_id=uuid.uuid4().hex)
        if self.finish(api, operation) is None:
            return
        self.keep(api, name, target)
        if self.finish(api, api.call("ModelService", "LoadModel", name=name)) is None:
            return
        try:
            answer = api.call("InferenceService", "Generate", timeout=LONG_S, model=name, text=PROMPTS[0],
                              stopping={"max_tokens": 8, "ignore_eos": True})
            assert len(answer.outputs[0].token_ids) == 8
            if TARGETS[target]:
                verified = self.finish(api, api.call("ModelService", "VerifyModel", name=name))
                assert verified is None or unpacked(verified, "VerifyModelResponse").equal
        finally:
            api.call("ModelService", "UnloadModel", name=name)
        api.call("google.longrunning.Operations", "DeleteOperation", name=operation.name)

    def bring_in(self, api):
        name, digest = f"sent-{uuid.uuid4().hex[:16]}", hashlib.sha256()
        messages = [{"header": {"name": name}}]
        for path in sorted(self.soak.model_directory.iterdir()):
            data = path.read_bytes()
            digest.update(data)
            messages.append({"file": {"path": path.name, "size_bytes": len(data)}})
            messages += [{"chunk": data[at:at + (1 << 20)]} for at in range(0, len(data), 1 << 20)]
        messages.append({"finish": {"sha256": digest.hexdigest()}})
        upload = api.send("ModelService", "UploadModel", iter([message("UploadModelRequest", **one) for one in messages]))
        operation = api.call("ModelService", "ImportModel", upload_id=upload.upload_id, name=name, dtype="MODEL_FORMAT_F32",
                             request_id=uuid.uuid4().hex)
        if self.finish(api, operation) is not None:
            self.keep(api, name, "import")

    def clean_up(self, api):
        mine = list(self.soak.models)
        with self.soak.traffic.lock:
            theirs = [job.output_model for job in self.soak.traffic.jobs.values() if job.state == SUCCEEDED]
        theirs = [name for name in theirs if name not in self.soak.deleted_models]
        for name in (*mine[:-KEPT], *theirs[:-KEPT]):
            self.soak.models.pop(name, None)
            self.soak.deleted_models.add(name)
            try:
                api.call("ModelService", "DeleteModel", name=name)
            except grpc.RpcError as error:
                assert error.code() != grpc.StatusCode.NOT_FOUND, f"the model {name} is gone"
                raise


class Probes(Client):
    """Requests the HTTP port as a kubelet and a Prometheus do, with a new connection each time."""
    pause_s = 0.2

    def turn(self, api):
        path = self.random.choice(("/livez", "/readyz", "/metrics"))
        connection = http.client.HTTPConnection(self.soak.server.http, timeout=DEADLINE_S)
        try:
            with api.counted("GET " + path):
                connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
        except (OSError, http.client.HTTPException):  # counted
            return
        finally:
            connection.close()
        assert answer.status == 200, f"{path}: {answer.status}"


ALL = (Jobs, Jobs, Watches, Plans, Lists, Answers, Answers, Uploads, Models, Probes)
