"""Messages to people through Apprise: Slack, DingTalk, e-mail, JSON over HTTP and others (F5).

An address holds a secret: it is read when a message is sent, and neither it nor a library's word on it goes anywhere.
Nothing here fails or holds up a run: a channel that refuses, hangs or has a wrong address gives a warning.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import apprise

from rlhf_core.config.notifications import NotificationConfig
from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.data.store import RunFolder
from rlhf_core.notifications.messages import Happening, Message, compose
from rlhf_core.notifications.redaction import parts_of_url, redact, secrets_in

logger = logging.getLogger(__name__)
THREAD = "notification"
"""Name of the threads that send."""


@dataclass(frozen=True)
class Channel:
    """An Apprise URL, and the name of the place that it was read from, which may be said aloud."""

    source: str
    url: str

    def __repr__(self) -> str:
        return f"Channel({self.source})"


@dataclass(frozen=True)
class Delivery:
    """What became of a message on one channel; `fault` is empty where it went through."""

    source: str
    fault: str


def split_urls(source: str, value: str) -> list[Channel]:
    """The channels of one source; several URLs have blanks between them."""
    return [Channel(source, url) for url in value.split()]


def channels_from_environment(
    config: NotificationConfig, environment: Mapping[str, str] | None = None
) -> tuple[list[Channel], list[str]]:
    """Channels that the environment names, and a fault for each variable that is not set."""
    known = os.environ if environment is None else environment
    channels: list[Channel] = []
    faults: list[str] = []
    for name in config.urls_from.env:
        found = split_urls(f"environment variable {name}", known.get(name, ""))
        channels += found
        if not found:
            faults.append(f"environment variable {name} is not set; export it with an Apprise URL.")
    return channels, faults


def send(message: Message, channels: Sequence[Channel], timeout_seconds: float) -> list[Delivery]:
    """Send to all channels at once; returns after `timeout_seconds` at the latest, whatever they do.

    Threads are daemons and not those of a pool, so that one that hangs does not hold up the process's end either.
    """
    _keep_libraries_silent()
    faults: dict[int, str] = {}

    def deliver(number: int, channel: Channel) -> None:
        faults[number] = _deliver(message, channel, timeout_seconds)

    threads = [
        threading.Thread(target=deliver, args=(number, channel), name=THREAD, daemon=True)
        for number, channel in enumerate(channels)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {timeout_seconds:g} s"
    return [Delivery(channel.source, faults.get(number, late)) for number, channel in enumerate(channels)]


def notify(
    folder: RunFolder,
    happening: Happening,
    config: NotificationConfig,
    channels: Sequence[Channel],
) -> None:
    """Tell people, once for each (run, attempt, kind); what was told is kept in `notifications.jsonl`.

    A message that no channel took is not held to be told: the same happening may be told again later.
    """
    if happening.kind not in config.kinds or not channels or was_told(folder, happening):
        return
    secrets = known_secrets(channels)
    deliveries = send(compose(happening, secrets), channels, config.timeout_seconds)
    for delivery in deliveries:
        if delivery.fault:
            logger.warning(
                "the %s notification did not go through (%s): %s. The run goes on. Try the channel: rlhf notify-test",
                happening.kind,
                delivery.source,
                delivery.fault,
            )
    append_json_line(
        folder.notifications,
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": happening.run,
            "attempt": happening.attempt,
            "kind": happening.kind,
            "channels": len(deliveries),
            "delivered": sum(not delivery.fault for delivery in deliveries),
        },
    )


def was_told(folder: RunFolder, happening: Happening) -> bool:
    """Whether at least one channel took a message of the same run, attempt and kind."""
    return any(
        (row.get("run"), row.get("attempt"), row.get("kind")) == happening.key and row.get("delivered")
        for row in read_json_lines(folder.notifications)
    )


def known_secrets(channels: Sequence[Channel]) -> set[str]:
    """What no message may hold: the channels' addresses and their parts, and the environment's secrets."""
    return secrets_in(os.environ).union(*(parts_of_url(channel.url) for channel in channels))


def _deliver(message: Message, channel: Channel, timeout_seconds: float) -> str:
    """Send on one channel; the fault in words without the address, or an empty text."""
    try:
        sender = apprise.Apprise()
        if not sender.add(channel.url):
            return "its value is no Apprise URL, e.g. slack://…, dingtalk://…, mailto://…, json://…"
        for service in sender:
            # Asked one by one: Apprise's own dispatcher has a pool whose threads the interpreter waits for at its end.
            service.socket_connect_timeout = service.socket_read_timeout = timeout_seconds
            if not service.notify(
                title=message.title, body=message.text, notify_type=apprise.NotifyType.INFO, body_format="text"
            ):
                return "the receiver refused it or cannot be reached"
    except Exception as error:  # a library's fault of any kind becomes a warning; it must not end a run
        return redact(f"{type(error).__name__}: {error}", parts_of_url(channel.url))
    return ""


def _keep_libraries_silent() -> None:
    """Apprise and what it sends with log whole addresses when they cannot read or reach them."""
    for name in ("apprise", "urllib3.connectionpool", "urllib3.util.retry", "requests"):
        logging.getLogger(name).addFilter(_is_not_of_a_channel)  # a filter that is there is not added again


def _is_not_of_a_channel(record: logging.LogRecord) -> bool:
    return record.threadName != THREAD
