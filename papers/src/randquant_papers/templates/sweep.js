(() => {
  "use strict";
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const table = document.querySelector("table.runs");
  if (!table) return;
  const rows = all("tbody tr", table), heads = all("thead th", table);
  const panel = document.getElementById("panel"), figure = document.querySelector("figure.marks");
  const off = new Set();
  let chosen = null;
  const say = (name, value) => figure.view?.signal(name, value).runAsync();

  function show(row) {
    if (row === chosen) return;
    if (chosen) chosen.classList.remove("chosen");
    chosen = row;
    row.classList.add("chosen");
    say("chosen", row.dataset.run);
    const list = document.createElement("dl");
    [...row.children].forEach((cell, at) => {
      if (!cell.textContent) return;
      const name = document.createElement("dt"), value = document.createElement("dd");
      name.textContent = heads[at].textContent;
      value.textContent = cell.textContent;
      list.append(name, value);
    });
    panel.replaceChildren(list);
  }

  function nearest(event, picture) {
    let best = null, least = 26;
    for (const mark of all("[aria-roledescription]", picture)) {
      const run = mark.__data__?.datum?.run;
      if (!run) continue;
      const box = mark.getBoundingClientRect();
      const level = box.width > 60 ? 8 : 0;  // a point beside a line comes first
      const x = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const y = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const far = Math.hypot(x, y) + level + Math.hypot(
        level ? 0 : (box.left + box.right) / 2 - event.clientX,
        level ? 0 : (box.top + box.bottom) / 2 - event.clientY) / 100;
      if (far < least) [best, least] = [run, far];
    }
    return best && rows.find(row => row.dataset.run === best);
  }

  figure?.addEventListener("drawn", () => {
    const picture = figure.querySelector(".picture");
    panel.hidden = false;
    picture.tabIndex = 0;
    for (const kind of ["pointermove", "pointerdown"])
      picture.addEventListener(kind, event => {
        const row = nearest(event, picture);
        if (row) show(row);
      });
    picture.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const list = places.filter(row => !row.hidden), at = list.indexOf(chosen);
      show(list[Math.min(list.length - 1, Math.max(0, at + step))]);
    });
  });
  const places = [...rows];  // from the smallest epsilon to none, however the table is sorted
  rows.forEach(row => row.addEventListener("click", () => show(row)));

  all("figure.marks .legend li").forEach(item => {
    const button = document.createElement("button"), label = item.lastChild.textContent;
    button.append(...item.childNodes);
    button.setAttribute("aria-pressed", "true");
    item.append(button);
    button.addEventListener("click", () => {
      off.has(label) ? off.delete(label) : off.add(label);
      button.setAttribute("aria-pressed", String(!off.has(label)));
      say("off", [...off]);
      rows.forEach(row => { row.hidden = off.has(row.dataset.series); });
    });
  });

  const value = cell => {
    const text = cell.textContent.replace(/,/g, "").replace("\u2212", "-").trim();
    return text === "" ? null : text === "\u221e" ? Infinity : isNaN(text) ? text : Number(text);
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
