"""Facts and messages become token segments."""
