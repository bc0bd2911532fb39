"""A manifest for a folder that a test has made or changed."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.checkpoints.manifest import ManifestWriter


def write_manifest(folder: Path) -> str:
    """Record every file below the folder as it is; the SHA-256 of the manifest."""
    with ManifestWriter(folder) as manifest:
        return manifest.finish()
