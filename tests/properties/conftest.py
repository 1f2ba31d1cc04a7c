"""How many examples are tried: few in the suite, many with `--hypothesis-profile=long`."""

from hypothesis import HealthCheck, settings

settings.register_profile("short", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("short"), max_examples=5_000)
settings.load_profile("short")
