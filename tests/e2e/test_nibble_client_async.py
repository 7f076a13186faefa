"""What only the asynchronous Python client does: calls at the same time, and tasks that are cancelled."""
import asyncio

import pytest

import client_package
from soon import soon

nibble_client = client_package.load()
errors, v1 = nibble_client.errors, nibble_client.v1
LONG = {"n": 16, "max_tokens": 900, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
def observer(shared):
    with nibble_client.Client(shared.grpc) as client:
        yield client


def run(shared, work, **options):
    """Runs work(client) in an event loop of its own."""
    async def main():
        async with nibble_client.AsyncClient(shared.grpc, **options) as client:
            return await work(client)
    return asyncio.run(main())


def test_answers_of_one_client_are_computed_at_the_same_time(shared, observer):
    async def work(client):
        return await asyncio.gather(*(client.generate("small-int8", f"Boat {i}", max_tokens=40) for i in range(20)))

    answers = run(shared, work)
    assert [answer.text for answer in answers] == [observer.generate("small-int8", f"Boat {i}", max_tokens=40).text for i in range(20)]


def test_cancelled_task_ends_its_request(shared, observer):
    before = observer.server_load().generated_tokens_total

    async def work(client):
        async def read():
            async for _ in client.generate_stream("small", "A boat", **LONG):
                begun.set()

        begun = asyncio.Event()
        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The client still works.
        return (await client.server_info()).version

    assert run(shared, work) == "0.1.0"
    soon(lambda: observer.server_load().requests_running == 0, seconds=20)
    assert observer.server_load().generated_tokens_total - before < 16 * 900


def test_cancelled_upload_can_be_resumed(shared, observer, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "The keeper counted the boats."}\n' * 200_000)

    async def work(client):
        half, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_progress(stage, done, total):
            if done > total // 2:
                loop.call_soon_threadsafe(half.set)
                soon(lambda: task.done())  # holds the upload until it is cancelled

        task = asyncio.create_task(client.datasets.upload(file, "cancelled", upload_id="cancelled", on_progress=on_progress))
        await half.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(shared, work)
    soon(lambda: observer.uploads.get("cancelled").state == v1.UPLOAD_STATE_INTERRUPTED)
    assert observer.datasets.upload(file, "cancelled", upload_id="cancelled", resume=True).rows == 200_000


def test_watch_that_is_left_early_frees_its_stream(shared, observer):
    """The server has room for few watches (--max_watches); a client that leaves many must not fill it."""
    job = observer.jobs.create(method="qlora", base_model="small", train_dataset="page", max_steps=5000, micro_batch=2, max_seq_len=96)

    async def work(client):
        for _ in range(300):
            async for event in client.jobs.watch(job.name):
                assert event.sequence == 1
                break

    run(shared, work)
    observer.jobs.cancel(job.name)


def test_upload_does_not_stop_the_event_loop(shared):
    """Rows are written, and files are read, in other threads."""
    async def work(client):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await client.datasets.upload(({"text": "boat " * 50 + str(i)} for i in range(100_000)), "beside")
        ticking.cancel()
        return ticks

    assert run(shared, work) > 20, "the event loop stood still during the upload"
