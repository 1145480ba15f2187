"""Each kind of figure as layers of Vega-Lite."""
