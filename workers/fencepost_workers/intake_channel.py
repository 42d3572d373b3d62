"""How the intake takes messages from Redis: at every moment each is in the queue or marked as taken.

Celery's own transport takes a message with a blocking pop and marks it afterwards. A process that is frozen
or cut off while its pop waits takes the next message with it; one that dies between the two loses what it
holds. A hint that is lost is published again; here it would be the only copy. So the waiting moves an element
of the queue onto itself, which loses nothing wherever it is cut, and one script takes and marks.

What is taken is put into an envelope of ours there, so that no entry, whatever a stranger may have left, can
end the process. Delivered again it comes in a new envelope under a new tag: an answer to an earlier delivery
says nothing of a later one.
"""

from __future__ import annotations

import time
import uuid
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import loads

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
    _Channel, _QoS, _Transport = kombu_redis.Channel, kombu_redis.QoS, kombu_redis.Transport

FORM: Final = "fencepost-entry"
TEXT, HEX = "text", "hex"

# KEYS: the queue, by priority, and kombu's two keys of what is delivered; ARGV: tag, queue, time.
_TAKE: Final = r"""
for i = 1, #KEYS - 2 do
  local item = redis.call('RPOP', KEYS[i])
  if item then
    local form = 'text'
    local ours, was = false, nil
    if string.find(item, '"fencepost-entry"', 1, true) then
      ours, was = pcall(cjson.decode, item)
    end
    if ours and type(was) == 'table' and type(was.headers) == 'table' and type(was.body) == 'string'
       and (was.headers['fencepost-entry'] == 'text' or was.headers['fencepost-entry'] == 'hex')
       and not string.find(was.body, '[\128-\255]') then  -- of ours none holds such bytes
      item, form = was.body, was.headers['fencepost-entry']
    elseif string.find(item, '[\128-\255]') then
      item = string.gsub(item, '.', function (c) return string.format('%02x', string.byte(c)) end)
      form = 'hex'
    end
    local message = {body = item, headers = {['fencepost-entry'] = form},
      properties = {delivery_tag = ARGV[1], delivery_info = {exchange = '', routing_key = ARGV[2]}}}
    redis.call('HSET', KEYS[#KEYS - 1], ARGV[1], cjson.encode({message, '', ARGV[2]}))
    redis.call('ZADD', KEYS[#KEYS], ARGV[3], ARGV[1])
    return cjson.encode(message)
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
        with self.conn_or_acquire() as client:
            taken: bytes | None = client.eval(_TAKE, len(keys), *keys, str(uuid.uuid4()), queue, time.time())
        return taken


class Transport(_Transport):
    """Kombu's transport for Redis with such channels."""

    Channel = Channel


def entry(message: Any) -> bytes:
    """The bytes that lay in the queue, of a message that came by this channel."""
    body: bytes = message.body or b""
    if message.headers.get(FORM) == HEX:
        try:
            return bytes.fromhex(body.decode())
        except ValueError:  # somebody forged our envelope
            return body
    return body
