"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, name, text) =>
    Object.assign(document.createElement(tag), { className: name, textContent: text });

  // Sorting: a button in each heading; the first click puts the best on top.
  const value = (row, column) => row.cells[column].dataset.v ?? "";
  const sort = (table, head, column) => {
    const first = head.dataset.best === "up" ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    const sign = order === "ascending" ? 1 : -1;
    const rows = all("tbody tr", table).sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (column ? x - y : x.localeCompare(y));
    });
    all("th[aria-sort]", table).forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    table.tBodies[0].append(...rows);
  };
  all("table.sortable").forEach((table) => {
    const heads = all("tr", table.tHead).pop().cells;
    [...heads].forEach((head, column) => {
      const button = make("button", "sort", "");
      button.type = "button";
      button.setAttribute("aria-label", "Sort by " + head.dataset.title);
      button.addEventListener("click", () => sort(table, head, column));
      head.prepend(button);
    });
  });

  // Filtering: rows and figures of methods whose name holds every word.
  const box = document.querySelector("#filter");
  if (box) {
    const said = document.querySelector("#filtered");
    const names = new Set(all("[data-m]").map((each) => each.dataset.m));
    box.closest(".tools").hidden = names.size < 4;
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      const fits = (name) => words.every((word) => name.toLowerCase().includes(word));
      all("[data-m]").forEach((each) => { each.hidden = !fits(each.dataset.m); });
      const left = [...names].filter(fits).length;
      said.textContent = words.length ? `${left} of ${names.size} shown` : "";
    });
  }

  // Copying what stands before a button.
  all("button.copy").forEach((button) => {
    const source = document.getElementById(button.dataset.from);
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  });

  // The drawing itself in place of its compressed copy.
  all("a.svg").forEach((link) => {
    link.href = link.closest("figure").querySelector("img").src;
    link.download = link.download.replace(/z$/, "");
  });

  // A link to something folded unfolds it.
  const unfold = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    for (let each = target; each; each = each.parentElement)
      if (each.tagName === "DETAILS") each.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
