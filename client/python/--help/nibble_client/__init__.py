"""Client of Nibble, a server that fine-tunes language models in low precision and serves them.

    from nibble_client import Client

    with Client("127.0.0.1:50051") as client:
        print(client.chat("tuned-int8", "When does the ferry leave?"))

AsyncClient has the same methods as coroutines. `v1` has the messages of the API, whose protos describe every field.
"""
from nibble_client import errors as errors
from nibble_client import v1 as v1
from nibble_client._async.client import AsyncAnswerStream as AsyncAnswerStream
from nibble_client._async.client import AsyncClient as AsyncClient
from nibble_client._sync.client import AnswerStream as AnswerStream
from nibble_client._sync.client import Client as Client
from nibble_client.answers import Answer as Answer
from nibble_client.connection import Retry as Retry
from nibble_client.connection import Tls as Tls
from nibble_client.errors import NibbleError as NibbleError
from nibble_client.messages import enum_name as enum_name

__version__ = "0.1.0"
