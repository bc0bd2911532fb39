"""A small synthetic world with a small trained model: everything that a run needs, made on the spot."""

from rlhf_core.quickstart.cache import QuickstartSettings, QuickstartWorld, ensure_quickstart_world
from rlhf_core.quickstart.world import World, WorldSettings

__all__ = ["QuickstartSettings", "QuickstartWorld", "World", "WorldSettings", "ensure_quickstart_world"]
