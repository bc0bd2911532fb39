"""`rlhf notify-test`: one test message, so that an operator sees that the channels work before going home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf_core.errors import ConfigError, NotificationFailed

notify_app = typer.Typer()


@notify_app.command("notify-test")
def notify_test(
    config: Annotated[str, typer.Argument(help="a preset, a YAML file, or a run's folder")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="dotted.key=value; may be repeated")] = None,
) -> None:
    """Send one test message on each channel of a configuration, and say what became of it."""
    from rlhf_core.config.load import load_config
    from rlhf_core.notifications.channels import known_secrets, send
    from rlhf_core.notifications.messages import Message
    from tasks.notify import read_channels

    place = Path(config) / "config.yaml" if Path(config).is_dir() else Path(config)
    settings = load_config(str(place), overrides or [])
    if not settings.notifications.is_on:
        raise ConfigError(
            f"{config} names no channel. Put an Apprise URL into an environment variable, e.g. RLHF_NOTIFY_URLS, and "
            "set notifications.urls_from.env to [RLHF_NOTIFY_URLS]; or use a Prefect Secret block and "
            "notifications.urls_from.prefect_secrets."
        )
    channels, faults = read_channels(settings.notifications)
    message = Message(
        title=f"rlhf: test of the notifications of {settings.name}",
        text="The channel works. Nothing is asked of you.\n"
        f"Messages follow on: {', '.join(settings.notifications.kinds) or 'nothing (notifications.kinds is empty)'}.",
    )
    deliveries = send(message.without(known_secrets(channels)), channels, settings.notifications.timeout_seconds)
    for delivery in deliveries:
        print(f"{delivery.source}: {delivery.fault or 'sent'}")
    faults += [f"{delivery.source}: {delivery.fault}" for delivery in deliveries if delivery.fault]
    if faults:
        raise NotificationFailed(
            f"{len(faults)} channel(s) did not take the message: {'; '.join(faults)}. "
            "A run goes on without them, but nobody would be told."
        )
