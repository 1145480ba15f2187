"""The script of a sweep's page, which is complete without it."""

from randquant._internal.html import scatter

STYLE = (
    scatter.STYLE
    + """\
.scatter .mark:focus { outline: none; }
.scatter .chosen .point { stroke: var(--ink); stroke-width: 2.6; }
.scatter .chosen .level { stroke: var(--ink); stroke-width: 2.6; }
.scatter svg.live { cursor: crosshair; touch-action: pan-y pinch-zoom; }
.legend button, .runs th button {
  font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
}
.legend button { display: inline-flex; align-items: center; min-height: 28px; }
.legend button[aria-pressed="false"] { text-decoration: line-through; opacity: 0.5; }
.runs th button { text-align: inherit; padding: 6px 0; }
.runs th[aria-sort="ascending"] button::after { content: " ↑"; }
.runs th[aria-sort="descending"] button::after { content: " ↓"; }
.runs th:last-child, .runs td:last-child { text-align: left; }
.runs tr.chosen > * { background: color-mix(in oklab, var(--blue) 16%, var(--paper)); }
.runs tbody th { white-space: nowrap; color: var(--ink); }
.runs td, .runs th { white-space: nowrap; }
#panel { border-top: 2px solid var(--ink); padding: 10px 0 28px; min-height: 270px; }
#panel p { font: 13px/1.5 var(--sans); color: var(--soft); margin: 0; }
#panel dl { display: grid; grid-template-columns: auto 1fr; gap: 4px 16px; margin: 0; }
#panel dt, #panel dd { font: 13px/1.45 var(--sans); margin: 0; overflow-wrap: anywhere; }
#panel dt { color: var(--soft); }
[hidden] { display: none !important; }
@media (max-width: 820px) { #panel { min-height: 0; } }
@media print { #panel { display: none; } }
"""
)

SCRIPT = """
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const table = document.querySelector("table.runs");
  const drawing = document.querySelector(".scatter > svg");
  if (!table || !drawing) return;
  const rows = all("tbody tr", table), heads = all("thead th", table), marks = all(".mark");
  const panel = document.getElementById("panel"), off = new Set();
  let chosen = null;
  const row = mark => rows.find(each => each.dataset.run === mark.dataset.run);
  const seen = mark => !off.has(mark.closest(".series").dataset.series);
  panel.hidden = false;

  function show(mark) {
    if (mark === chosen) return;
    all(".chosen").forEach(each => each.classList.remove("chosen"));
    if (chosen) chosen.tabIndex = -1;
    chosen = mark;
    mark.tabIndex = 0;
    mark.classList.add("chosen");
    const line = row(mark), list = document.createElement("dl");
    line.classList.add("chosen");
    [...line.children].forEach((cell, at) => {
      if (!cell.textContent) return;
      const name = document.createElement("dt"), value = document.createElement("dd");
      name.textContent = heads[at].textContent;
      value.textContent = cell.textContent;
      list.append(name, value);
    });
    panel.replaceChildren(list);
  }

  function nearest(event) {
    let best = null, least = 26;
    for (const mark of marks.filter(seen)) {
      const box = mark.lastElementChild.getBoundingClientRect();
      const level = box.width > 60 ? 8 : 0;  // a point beside a line comes first
      const x = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const y = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const far = Math.hypot(x, y) + level + Math.hypot(
        level ? 0 : (box.left + box.right) / 2 - event.clientX,
        level ? 0 : (box.top + box.bottom) / 2 - event.clientY) / 100;
      if (far < least) [best, least] = [mark, far];
    }
    return best;
  }

  drawing.classList.add("live");
  for (const kind of ["pointermove", "pointerdown"])
    drawing.addEventListener(kind, event => { const mark = nearest(event); if (mark) show(mark); });
  drawing.removeAttribute("role");
  marks.forEach((mark, at) => {
    mark.tabIndex = at ? -1 : 0;
    mark.addEventListener("focus", () => show(mark));
  });
  const order = () => marks.filter(seen).sort((a, b) => rank(a) - rank(b));
  const places = new Map(rows.map((each, at) => [each.dataset.run, at]));
  const rank = mark => places.get(mark.dataset.run);
  drawing.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const list = order(), at = list.indexOf(chosen);
    const next = list[Math.min(list.length - 1, Math.max(0, at + step))];
    if (next) { event.preventDefault(); next.focus(); }
  });
  rows.forEach(each => each.addEventListener("click", () => {
    const mark = marks.find(one => one.dataset.run === each.dataset.run);
    if (mark) show(mark);
  }));

  all(".legend li[data-series]").forEach(item => {
    const button = document.createElement("button"), key = item.dataset.series;
    button.append(...item.childNodes);
    button.setAttribute("aria-pressed", "true");
    item.append(button);
    button.addEventListener("click", () => {
      off.has(key) ? off.delete(key) : off.add(key);
      button.setAttribute("aria-pressed", String(!off.has(key)));
      all(".series").forEach(each => {
        each.style.display = off.has(each.dataset.series) ? "none" : "";
      });
      rows.forEach(each => { each.hidden = off.has(each.dataset.series); });
    });
  });

  const value = cell => {
    const text = cell.textContent.replace(/,/g, "").replace("\\u2212", "-").trim();
    return text === "" ? null : text === "\\u221e" ? Infinity : isNaN(text) ? text : Number(text);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? (a === b ? 0 : a - b) : String(a).localeCompare(String(b));
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = rows.map(each => [value(each.children[at]), each]);
      keyed.sort(([a], [b]) =>  // empty cells last, either way
        a === null || b === null ? (a === null) - (b === null) : (down ? -1 : 1) * compare(a, b));
      table.tBodies[0].append(...keyed.map(([, each]) => each));
    });
  });
})();
"""
