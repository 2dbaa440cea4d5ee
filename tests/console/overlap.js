// The texts of a row that are written over one another.
(() => {
  const box = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return range.getBoundingClientRect();
  };
  const over = [];
  for (const row of document.querySelectorAll("li, tbody tr, header.view, .bar, h2")) {
    const cells = [...row.children].filter((cell) => cell.checkVisibility() && cell.textContent.trim()).map((cell) => [cell, box(cell)]);
    for (const [i, [cell, a]] of cells.entries()) {
      for (const [other, b] of cells.slice(i + 1)) {
        const [wide, high] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
        if (wide > 1 && high > 4) over.push(`${cell.textContent.trim().slice(0, 30)} | ${other.textContent.trim().slice(0, 30)}`);
      }
    }
  }
  return over;
})();
