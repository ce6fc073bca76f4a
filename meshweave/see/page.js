"use strict";
// The page says everything without this. With it, ops are filtered, a layout opens where a link leads to it, and says
// who holds an element: the one that is typed, or that the pointer is at.
(function () {
  const filter = document.getElementById("filter");
  const found = document.getElementById("found");
  const ops = Array.from(document.querySelectorAll("#program tr[data-op]"));
  filter.addEventListener("input", function () {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of ops) {
      const fits = words.every((word) => row.dataset.op.includes(word));
      row.hidden = !fits;
      count += fits ? 1 : 0;
    }
    for (const group of document.querySelectorAll("#program details")) {
      const rows = Array.from(group.querySelectorAll("tr[data-op]"));
      group.hidden = words.length > 0 && !rows.some((row) => !row.hidden);
      if (words.length > 0 && !group.hidden) group.open = true;
    }
    found.textContent = words.length > 0 ? count + " of " + ops.length + " ops" : "";
  });

  function openTarget() {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  }
  addEventListener("hashchange", openTarget);
  openTarget();

  const layouts = JSON.parse(document.getElementById("layout-data").textContent);
  function holders(layout, index) {
    return layout.held.flatMap(function (dims, rank) {
      const holds = dims.every((runs, d) => runs.some((run) => run[0] <= index[d] && index[d] < run[1]));
      return holds ? [rank] : [];
    });
  }
  for (const map of document.querySelectorAll("svg.map")) {
    const shape = layouts[Number(map.dataset.layout)].shape;
    const field = map.parentElement.querySelector("input");
    map.addEventListener("pointermove", function (event) {
      const box = map.getBoundingClientRect();
      const at = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width].slice(-shape.length);
      const index = field.value.split(",").map((part) => Number(part) || 0);
      field.value = shape.map(function (size, d) {
        const part = at[d - (shape.length - at.length)];
        return part === undefined ? index[d] || 0 : Math.max(0, Math.min(size - 1, Math.floor(part * size)));
      }).join(", ");
      field.dispatchEvent(new Event("input"));
    });
  }
  for (const field of document.querySelectorAll("input[data-layout]")) {
    const layout = layouts[Number(field.dataset.layout)];
    const answer = document.getElementById(field.getAttribute("aria-describedby"));
    field.addEventListener("input", function () {
      const index = field.value.split(",").map((part) => Number(part.trim()));
      const fits = index.length === layout.shape.length &&
        index.every((at, d) => Number.isInteger(at) && at >= 0 && at < layout.shape[d]);
      answer.textContent = !fits
        ? "an index of each dim is right: " + layout.shape.map((size) => "0.." + (size - 1)).join(", ")
        : "held by rank " + holders(layout, index).join(", ");
    });
  }
})();
