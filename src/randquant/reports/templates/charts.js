"use strict";
(() => {
  const { View, parse, expr } = randquantVega;
  const figures = [...document.querySelectorAll("figure.chart")];
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  function tell(handler, event, item, value) {
    tip.replaceChildren();
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const pairs = typeof value === "object" ? Object.entries(value) : [["", value]];
    for (const [name, text] of pairs) {
      const line = document.createElement("p");
      line.textContent = name ? `${name}: ${text}` : text;
      tip.append(line);
    }
    const box = tip.getBoundingClientRect(), far = document.documentElement.clientWidth - box.width;
    const up = event.clientY - box.height - 14;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, far - 4))}px`;
    tip.style.top = `${up > 4 ? up : event.clientY + 22}px`;
  }

  function draw(figure) {
    const place = figure.querySelector(".picture"), still = place.querySelector("svg");
    const { width, height } = still.viewBox.baseVal, ratio = height / width;
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const stage = document.createElement("div");
    const view = new View(parse(spec, null, { ast: true }), {
      expr, renderer: "svg", container: stage, hover: true, tooltip: tell,
      loader: { load: () => Promise.reject(), sanitize: () => Promise.reject() },
    });
    const fit = () => view.width(place.clientWidth).height(Math.round(place.clientWidth * ratio));
    fit().runAsync().then(() => {
      place.replaceChildren(stage);
      figure.view = view;
      figure.dispatchEvent(new Event("drawn"));
      let known = place.clientWidth;
      new ResizeObserver(() => {
        if (!place.clientWidth || place.clientWidth === known) return;
        known = place.clientWidth;
        fit().runAsync();
      }).observe(place);
    });
  }

  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });
  figures.forEach(figure => seen.observe(figure));
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
