"""The report's style sheet: light and dark, and a colour and a dash for each policy."""

from __future__ import annotations

_LIGHT = ("#1f6fd6", "#d9541e", "#12875b", "#a86f00", "#c2447c", "#5b4bb5", "#4f6472", "#7a8b1c")
_DARK = ("#5ea2ff", "#ff8a5c", "#3ecf98", "#e7b23c", "#f07fb0", "#a99bff", "#9fb4c2", "#c3d45c")
_DASHES = ("", "7 4", "2 3", "10 3 2 3", "4 4", "12 5", "1 4", "6 2 2 2")
SERIES_MAX = len(_LIGHT)

_BASE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #16202b; --soft: #5a6875;
  --line: #e2e6eb; --good: #0d7a4f; --bad: #b3361b; --tint: #edf4fe; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1419; --card: #182028; --ink: #e8edf2;
  --soft: #9aa8b5; --line: #2b3641; --good: #4cd29a; --bad: #ff8d6e; --tint: #1b2c42; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 4px; }
h3 { font-size: 14px; font-weight: 600; margin: 0 0 6px; }
p { margin: 4px 0 12px; max-width: 76ch; }
.soft, figcaption { color: var(--soft); }
.lead { font-size: 17px; margin: 18px 0; }
.lead b { color: var(--good); }
.lead b.bad { color: var(--bad); }
.cards { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.card, figure, .scroll { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.card { padding: 12px 14px; }
.card .what { color: var(--soft); font-size: 13px; }
.card .value { font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; }
.card .than { font-size: 13px; color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); }
.charts { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
figure { margin: 0; padding: 14px 14px 8px; min-width: 0; }
figcaption { font-size: 13px; margin-top: 4px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
svg text.y, svg text.name { text-anchor: end; } svg text.x { text-anchor: middle; }
svg text.name, svg text.word { fill: var(--ink); font-size: 13.5px; }
.grid line { stroke: var(--line); }
.lines polyline { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
.lines .s0 { stroke-width: 2.8; }
figure.wide { max-width: 660px; }
.pair line { stroke: var(--good); stroke-width: 3; opacity: .45; }
.pair .disc { fill: var(--good); } .pair .ring { fill: var(--card); stroke: var(--soft);
  stroke-width: 2; }
.pair.worse line { stroke: var(--bad); } .pair.worse .disc { fill: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
table { font-size: 13.5px; }
th, td { padding: 8px 9px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { font-size: 12.5px; font-weight: 600; color: var(--soft);
  white-space: normal; vertical-align: bottom; }
tbody th, th:first-child { text-align: left; font-weight: 600; }
tbody tr:last-child > * { border-bottom: 0; }
tr.chosen { background: var(--tint); }
td.best { font-weight: 700; color: var(--good); }
.legend { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 4px 18px;
  margin: 24px 0 0; padding: 10px 14px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.legend label { display: inline-flex; gap: 7px; align-items: center; cursor: pointer; }
.legend svg { width: 30px; height: 10px; }
.legend input { accent-color: var(--soft); }
.legend input:focus-visible { outline: 2px solid var(--ink); outline-offset: 2px; }
ul, dl { color: var(--soft); max-width: 90ch; overflow-wrap: anywhere; }
dt { color: var(--ink); font-weight: 600; } dd { margin: 0 0 8px; }
@media print { .legend { position: static; } figure, .card { break-inside: avoid; } }
"""


def css() -> str:
    """The whole style sheet."""
    light = " ".join(f"--c{n}: {colour};" for n, colour in enumerate(_LIGHT))
    dark = " ".join(f"--c{n}: {colour};" for n, colour in enumerate(_DARK))
    parts = [
        _BASE,
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n",
    ]
    for n, dash in enumerate(_DASHES):
        dashed = f" stroke-dasharray: {dash};" if dash else ""
        parts += [
            f".lines .s{n}, .legend .s{n} {{ stroke: var(--c{n});{dashed} }}\n",
            f"rect.s{n}, .lines circle.s{n} {{ fill: var(--c{n}); stroke: none; }}\n",
            f"body:has(#t{n}:not(:checked)) .lines .s{n} {{ display: none; }}\n",
        ]
    return "".join(parts)
