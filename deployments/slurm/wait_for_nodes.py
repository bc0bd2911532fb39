"""Wait until the expected number of nodes has joined the Ray cluster at RAY_ADDRESS; for batch scripts."""

from __future__ import annotations

import argparse
import logging
import sys
import time


def alive_nodes() -> set[str]:
    """Addresses of the nodes that Ray counts as alive."""
    import ray  # waits: the command line's help needs none of it

    return {str(node["NodeManagerAddress"]) + "/" + str(node["NodeID"])[:8] for node in ray.nodes() if node["Alive"]}


def connect(deadline: float) -> None:
    """Become a driver of the cluster; the head may need a while to listen.

    Raises:
        ConnectionError: it does not listen in time.
    """
    import ray

    while True:
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
            return
        except (ConnectionError, RuntimeError) as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(f"no Ray cluster answers: {error}") from error
            time.sleep(1)


def main(arguments: list[str] | None = None) -> int:
    """0 when the nodes are there, 1 when they are not in time; says which are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--timeout-seconds", type=float, required=True)
    given = parser.parse_args(arguments)
    deadline = time.monotonic() + given.timeout_seconds
    try:
        connect(deadline)
    except ConnectionError as error:
        print(f"{error}. See the head's output above.", file=sys.stderr)
        return 1
    while len(found := alive_nodes()) < given.nodes:
        if time.monotonic() >= deadline:
            print(
                f"{len(found)} of {given.nodes} nodes joined within {given.timeout_seconds:g} s: "
                f"{', '.join(sorted(found))}. See the output of the missing ones for why, or raise "
                "RLHF_JOIN_TIMEOUT_SECONDS.",
                file=sys.stderr,
            )
            return 1
        time.sleep(1)
    print(f"{len(found)} nodes joined")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
