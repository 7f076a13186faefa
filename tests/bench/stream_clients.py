#!/usr/bin/env python3
"""Clients that stream chats from a server, each one request after another, for peers_streams.py.

usage: stream_clients.py openai|grpc ADDRESS MODEL [--first 0] [--count 32] [--begin 0] [--seconds 60] [--tokens 64]
                         [--package FOLDER]
`openai` is OpenAI's library, `grpc` the package nibble_client in FOLDER. Prints "ready", begins at the next line of its
input, sends no new request after `seconds`, and prints one JSON object: requests, errors, and its processor time. The
prompts depend only on the numbers of client and request, which begin at `first` and `begin`.
"""
import argparse
import asyncio
import hashlib
import json
import pathlib
import random
import sys
import time

TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3").read_text()


def prompt(client, number):
    """A text of 100 to 1200 characters whose beginning is its own, so that no server has it in its prefix cache."""
    draw = random.Random(f"{client}/{number}")
    length = draw.randrange(100, 1200)
    begin = draw.randrange(len(TEXT) - length)
    return f"{draw.randrange(10**9)}. Continue this text: {TEXT[begin:begin + length]}"


class Limit(Exception):
    """The server has refused the request because of a limit. The argument is the time to wait, in seconds."""


class OpenAiClient:
    def __init__(self, args):
        import openai
        self.errors = openai
        self.client = openai.AsyncOpenAI(base_url=f"http://{args.address}/v1", api_key="unused", max_retries=0, timeout=600)
        self.fields = {"model": args.model, "temperature": 0, "max_tokens": args.tokens, "stream": True,
                       "stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}}

    async def stream(self, text):
        """Yields the pieces of the answer, then (prompt tokens, tokens)."""
        try:
            stream = await self.client.chat.completions.create(messages=[{"role": "user", "content": text}], **self.fields)
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content
                if chunk.usage is not None:
                    usage = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
            yield usage
        except self.errors.RateLimitError as error:
            raise Limit(float(error.response.headers.get("retry-after-ms", 1000)) / 1000) from None


class GrpcClient:
    def __init__(self, args):
        sys.path.insert(0, args.package)
        import nibble_client
        self.errors = nibble_client.errors
        self.client = nibble_client.AsyncClient(args.address, retry=nibble_client.Retry(attempts=1))
        self.model, self.tokens = args.model, args.tokens

    async def stream(self, text):
        try:
            async with self.client.chat_stream(self.model, text, max_tokens=self.tokens, ignore_eos=True) as stream:
                async for delta in stream:
                    if delta.text:
                        yield delta.text
                usage = stream.answer.usage
                yield usage.prompt_tokens, usage.completion_tokens
        except (self.errors.QueueFull, self.errors.TenantQuota) as error:
            raise Limit(error.retry_after or 1) from None


async def ask(client, text, wanted):
    """One request: seconds to the first piece and per later token, tokens, and a digest of the answer."""
    began, first, last, digest = time.monotonic(), None, None, hashlib.sha256()
    async for piece in client.stream(text):
        if isinstance(piece, tuple):
            prompt_tokens, tokens = piece
            continue
        last = time.monotonic()
        first = first or last
        digest.update(piece.encode())
    assert first is not None, "the answer has no text"
    assert tokens == wanted, f"the answer has {tokens} tokens, wanted {wanted}"
    return {"began": began, "ended": last, "ttft": first - began, "per_token": (last - first) / (tokens - 1), "tokens": tokens,
            "prompt_tokens": prompt_tokens, "answer": digest.hexdigest()[:16]}


async def work(client, number, asked, until, wanted, requests, errors):
    """The requests of one client from number `asked`, one after another."""
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            requests.append({"client": number, "number": asked, **await ask(client, prompt(number, asked), wanted)})
            asked += 1
        except Limit as limit:
            errors.append({"at": began, "kind": "limit", "text": ""})
            await asyncio.sleep(limit.args[0])
        except Exception as error:  # every other error fails the run, which reports its kind
            errors.append({"at": began, "kind": type(error).__name__, "text": str(error)[:300]})
            await asyncio.sleep(1)


async def run(args):
    make = {"openai": OpenAiClient, "grpc": GrpcClient}[args.kind]
    clients = [make(args) for _ in range(args.count)]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    cpu, requests, errors = time.process_time(), [], []
    until = time.monotonic() + args.seconds
    await asyncio.gather(*(work(client, args.first + at, args.begin, until, args.tokens, requests, errors)
                           for at, client in enumerate(clients)))
    print(json.dumps({"requests": requests, "errors": errors, "cpu_s": time.process_time() - cpu}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["openai", "grpc"])
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=64, choices=range(2, 1024), metavar="N")
    parser.add_argument("--package")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
