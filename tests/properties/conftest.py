"""How many examples are tried: the same few in the suite, many others with `--hypothesis-profile=long`."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "short",
    deadline=None,
    max_examples=20,
    stateful_step_count=40,
    derandomize=True,  # what CI finds, everybody finds
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("short"), max_examples=5_000, derandomize=False)
settings.load_profile("short")
