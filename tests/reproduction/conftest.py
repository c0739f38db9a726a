from tests.reproduction.made_up import children, undrawn

__all__ = ["children", "undrawn"]
