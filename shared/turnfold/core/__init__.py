"""The rules: pure functions of values, without I/O, time or chance."""
