"""Answers of a model, whole or joined from the messages of a stream."""
from __future__ import annotations

from nibble_client import v1
from nibble_client.errors import malformed
from nibble_client.messages import enum_name


class Answer:
    """An answer of generate or chat. `response` is the message of the API, with logprobs and times."""

    def __init__(self, response: v1.GenerateResponse) -> None:
        if not response.outputs:
            raise malformed("an answer without an output")
        self.response = response

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.response.outputs[0].text

    @property
    def texts(self) -> list[str]:
        """The texts of all outputs (option n)."""
        return [output.text for output in self.response.outputs]

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens of the first output, including a final end token."""
        return list(self.response.outputs[0].token_ids)

    @property
    def tool_calls(self) -> list[v1.ToolCall]:
        """The calls of tools in the first output: `id`, `name` and `arguments`, which is JSON text."""
        return list(self.response.outputs[0].tool_calls)

    @property
    def finish_reason(self) -> str:
        """Why the first output ended: "stop", "length", "eos" or "tool_calls"."""
        return enum_name(self.response.outputs[0].finish, "reason")

    @property
    def usage(self) -> v1.Usage:
        return self.response.usage

    @property
    def seed(self) -> int:
        """The seed that was used; 0 for greedy."""
        return self.response.start.seed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, finish_reason={self.finish_reason!r})"


def _join_call(output: v1.GenerateOutput, piece: v1.ToolCallDelta) -> None:
    """Adds a piece of a call, which belongs to the last call of the output, and drops a malformed call."""
    if piece.name:
        output.tool_calls.add(id=piece.id, name=piece.name)
    if not output.tool_calls:
        raise malformed("a piece of a call without its beginning")
    output.tool_calls[-1].arguments += piece.arguments
    if piece.malformed:
        del output.tool_calls[-1]


class AnswerJoiner:
    """Checks the order of a stream's messages and joins them: the start is first, the usage last, and each output ends
    once, after its deltas."""

    def __init__(self, outputs: int) -> None:
        self._response = v1.GenerateResponse()
        self._outputs: dict[int, v1.GenerateOutput] = {}
        self._num_outputs = outputs
        self.started = False
        self._ended = False

    def take(self, reply: v1.GenerateReply) -> v1.GenerateDelta | None:
        """Takes the next message; returns it if it is a delta."""
        kind = reply.WhichOneof("event")
        if self._ended or (kind == "start") == self.started:
            raise malformed("the server's messages are out of order")
        self.started = True
        if kind == "start":
            self._response.start.CopyFrom(reply.start)
        elif kind == "delta":
            output = self._open_output(reply.delta.index)
            output.text += reply.delta.text
            output.token_ids.extend(reply.delta.token_ids)
            output.logprobs.extend(reply.delta.logprobs)
            for piece in reply.delta.tool_calls:
                _join_call(output, piece)
            return reply.delta
        elif kind == "finish":
            self._open_output(reply.finish.index).finish.CopyFrom(reply.finish)
        elif kind == "prompt_logprobs":
            if reply.prompt_logprobs.first_position != len(self._response.prompt_logprobs):
                raise malformed("the logprobs of the prompt are out of order")
            self._response.prompt_logprobs.extend(reply.prompt_logprobs.tokens)
        elif kind == "usage":
            ended = sum(output.HasField("finish") for output in self._outputs.values())
            if ended != self._num_outputs:
                raise malformed("the usage before the end of every output")
            self._response.outputs.extend(self._outputs[index] for index in range(self._num_outputs))
            self._response.usage.CopyFrom(reply.usage)
            self._ended = True
        return None  # a kind of message that only a newer client knows is ignored

    def end(self) -> None:
        """The stream has ended without an error."""
        if not self._ended:
            raise malformed("the stream ended without its usage")

    @property
    def answer(self) -> Answer:
        if not self._ended:
            raise RuntimeError("the answer is complete only after the last message of its stream")
        return Answer(self._response)

    def _open_output(self, index: int) -> v1.GenerateOutput:
        output = self._outputs.setdefault(index, v1.GenerateOutput(index=index))
        if not 0 <= index < self._num_outputs or output.HasField("finish"):
            raise malformed("the server's messages are out of order")
        return output


class ScoreJoiner:
    """Joins the messages of ScoreStream."""

    def __init__(self) -> None:
        self._response = v1.ScoreResponse()
        self._ended = False

    def take(self, reply: v1.ScoreReply) -> None:
        kind = reply.WhichOneof("event")
        if self._ended or (kind == "tokens" and reply.tokens.first_position != len(self._response.tokens)):
            raise malformed("the server's messages are out of order")
        if kind == "tokens":
            self._response.tokens.extend(reply.tokens.tokens)
        elif kind == "finish":
            self._response.mean_loss = reply.finish.mean_loss
            self._response.perplexity = reply.finish.perplexity
            self._response.usage.CopyFrom(reply.finish.usage)
            self._response.weights_digest = reply.finish.weights_digest
            self._ended = True

    def end(self) -> v1.ScoreResponse:
        if not self._ended:
            raise malformed("the stream ended without its finish")
        return self._response
