"""How the intake takes messages from Redis: at every moment each is in the queue or marked as taken.

Celery's own transport takes a message with a blocking pop and marks it afterwards. A process that is frozen
or cut off while its pop waits takes the next message with it; one that dies between the two loses what it
holds. A hint that is lost is published again; here it would be the only copy. So the waiting moves an element
of the queue onto itself, which loses nothing wherever it is cut, and one script takes and marks.

What is taken is put into an envelope of ours there, so that no entry, whatever a stranger may have left, can
end the process. Delivered again it comes in a new envelope under a new tag: an answer to an earlier delivery
says nothing of a later one. An entry that is too long to be read comes as its first bytes and its size, so
that it stops neither the server nor this process.
"""

from __future__ import annotations

import time
import uuid
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import loads

from fencepost_workers.broker import Rotating
from fencepost_workers.intake_entry import MAX_ENTRY, Cut

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    class _Channel:
        client: Any
        connection: Any
        connection_errors: tuple[type[Exception], ...]
        active_queues: Any
        brpop_timeout: int | None
        priority_steps: list[int]
        unacked_key: str
        unacked_index_key: str
        _queue_cycle: Any
        qos: Any

        def _q_for_pri(self, queue: str, pri: int) -> str: ...
        def _flush_brpop_reauth(self) -> None: ...
        def conn_or_acquire(self) -> AbstractContextManager[Any]: ...

    _QoS = virtual.QoS

    class _Transport:
        pass

else:
    _Channel, _QoS, _Transport = Rotating, kombu_redis.QoS, kombu_redis.Transport

FORM: Final = "fencepost-entry"
TEXT, HEX, CUT = "text", "hex", "cut"
MAX_BINARY: Final = 1024 * 1024
"""Bytes of an entry that is no plain ASCII. The script takes some 0.3 µs for each, and stops the server."""
KEPT: Final = 2000
"""Bytes that are kept of an entry that is too long to be read."""
UNACKED: Final = "unacked_intake"
"""Where the intakes of a database mark what they hold. Under kombu's own names, shared by all consumers, the
sweep of one restores what another holds, by its own visibility timeout."""

# KEYS: the queue, by priority, and the two keys of what is delivered; ARGV: tag, queue, time, and in bytes:
# the longest entry, the longest binary one, what is kept of a longer one.
# The server does nothing else meanwhile and cannot be stopped: so nothing is done for each byte but in C, and
# nothing is parsed but a string that this script wrote (a stranger's JSON may be ten million tables).
_TAKE: Final = r"""
local function hexed(text)
  local digits = {}
  for code = 0, 255 do digits[string.char(code)] = string.format('%02x', code) end
  return (string.gsub(text, '.', digits))
end
local function plain(text)  -- a search for one byte at a time is many times faster than for a set of them
  for code = 0, 255 do
    if (code < 32 and code ~= 9 and code ~= 10 and code ~= 13) or code > 126 then
      if string.find(text, string.char(code), 1, true) then return false end
    end
  end
  return true
end
local longest, binary, kept = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local function unwrapped(item)
  if #item > 2 * longest + 4096 then return end  -- plain text at most doubles in JSON, and so does hex
  local head = string.sub(item, 1, 4096)
  local form = string.match(head, '^{"headers": ?{"fencepost%-entry": ?"([%w:-]+)"')
  local _, quote = string.find(head, '"body": ?"')
  if not form or not quote then return end
  local ours, body = pcall(cjson.decode, string.sub(item, quote, -2))
  if ours and type(body) == 'string' and plain(body) then return body, form end
end
for i = 1, #KEYS - 2 do
  local item = redis.call('RPOP', KEYS[i])
  if item then
    local body, form = unwrapped(item)
    if not body then
      local limit = longest
      if #item <= longest then
        if plain(item) then
          body, form = item, 'text'
        elseif #item <= binary then
          body, form = hexed(item), 'hex'
        else
          limit = binary
        end
      end
      if not body then
        body = hexed(string.sub(item, 1, kept))
        form = string.format('cut:%d:%d:%s', #item, limit, ARGV[1])
      end
    end
    -- In this order, which kombu keeps when it puts it back into the queue: see `unwrapped`.
    local message = '{"headers":{"fencepost-entry":"' .. form .. '"},"properties":{"delivery_tag":'
      .. cjson.encode(ARGV[1]) .. ',"delivery_info":{"exchange":"","routing_key":' .. cjson.encode(ARGV[2])
      .. '}},"body":' .. cjson.encode(body) .. '}'
    redis.call('HSET', KEYS[#KEYS - 1], ARGV[1], '[' .. message .. ',"",' .. cjson.encode(ARGV[2]) .. ']')
    redis.call('ZADD', KEYS[#KEYS], ARGV[3], ARGV[1])
    return message
  end
end
return false
"""


class QoS(_QoS):
    """What is delivered and not answered; the script has marked it already."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Count it."""
        virtual.QoS.append(self, message, delivery_tag)


class Channel(_Channel):
    """A channel that consumes one queue, the intake's."""

    QoS = QoS
    _in_poll: Any
    _brpop_sent_at: float

    def _brpop_start(self, timeout: int | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        # One key can be waited for: messages with a priority are found when the wait is over, each second.
        key = self._q_for_pri(queues[0], 0)
        self._in_poll, self._brpop_sent_at = self.client.connection, time.monotonic()
        wait = timeout or self.brpop_timeout or 1
        self.client.connection.send_command("BLMOVE", key, key, "RIGHT", "RIGHT", wait)

    def _brpop_read(self, **options: Any) -> bool:
        try:
            try:
                self.client.parse_response(self.client.connection, "BLMOVE", **options)
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            found = self._take_all()
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        if not found:
            raise Empty
        return True

    def _take_all(self) -> int:
        """Take what may be held at once; how many that was. Nothing on the way out, when no queue is left."""
        found = 0
        for queue in self.active_queues:
            while self.qos.can_consume() and (taken := self._take(queue)) is not None:
                found += 1
                self.connection._deliver(loads(taken.decode()), queue)  # noqa: SLF001 - as kombu's channel does
        return found

    def _take(self, queue: str) -> bytes | None:
        keys = [self._q_for_pri(queue, step) for step in self.priority_steps]
        keys += [self.unacked_key, self.unacked_index_key]
        said = [str(uuid.uuid4()), queue, time.time(), MAX_ENTRY, MAX_BINARY, KEPT]
        with self.conn_or_acquire() as client:
            taken: bytes | None = client.eval(_TAKE, len(keys), *keys, *said)
        return taken


class Transport(_Transport):
    """Kombu's transport for Redis with such channels."""

    Channel = Channel


def entry(message: Any) -> tuple[bytes, Cut | None]:
    """The bytes that lay in the queue, of a message that came by this channel; whether there were more."""
    body: bytes = message.body or b""
    form, *cut = str(message.headers.get(FORM)).split(":")
    try:
        if form == HEX:
            return bytes.fromhex(body.decode()), None
        if form == CUT:
            size, limit, tag = cut
            return bytes.fromhex(body.decode()), Cut(int(size), int(limit), tag)
    except ValueError:  # somebody forged our envelope
        pass
    return body, None
