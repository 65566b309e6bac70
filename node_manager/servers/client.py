"""Administration of a server: redis-py with hiredis, with this project's errors. Not for frames: udo_protocol/queue/connection.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from udo_protocol.errors import ServerLost, Unauthorized
from udo_protocol.queue.connection import Login, ReplyError, ServerLoading


@contextmanager
def administered(socket: Path, login: Login, timeout_s: float) -> Iterator[redis.Redis]:
    """A client of the server on this socket, for a few commands. It does not retry: a server that was lost and is back is another one.

    ServerLost without an answer in time, ServerLoading while the server reads its file, Unauthorized, ReplyError if it refuses a command.
    """
    client = redis.Redis(
        unix_socket_path=str(socket),
        username=login.user,
        password=login.password,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        yield client
    except BusyLoadingError as e:
        raise ServerLoading(f"the server on {socket} is back, but still reading its file") from e
    except (AuthenticationError, NoPermissionError) as e:
        raise Unauthorized(f"the server on {socket} refuses {login.user}: {e}") from e
    except ResponseError as e:
        raise ReplyError(str(e)) from e
    except RedisError as e:
        raise ServerLost(f"no server answers on {socket}: {e}; is the node manager running? (udo status)") from e
    finally:
        client.close()
