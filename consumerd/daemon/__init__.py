"""Assembly, life cycle, health and the HTTP surface: the only place that knows concrete classes."""
