"""The error of whoever gave something wrong."""


class WrongValue(ValueError):
    """Something given was wrong: what was given, what is allowed, what to do. A notebook shows the sentence alone."""

    def _render_traceback_(self) -> list[str]:
        return [f"ValueError: {self}"]
