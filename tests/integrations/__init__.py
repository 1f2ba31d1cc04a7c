import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before anything imports it
