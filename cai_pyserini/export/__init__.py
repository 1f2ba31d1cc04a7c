"""Exports of document impacts and encoders to formats that other systems read."""
