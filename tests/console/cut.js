// Links of an ordinary length whose end is not shown.
(() => {
  const links = [...document.querySelectorAll(".list a, td a, th a")].filter((link) => link.checkVisibility());
  const cut = links.filter((link) => link.textContent.trim().length <= 24 && link.scrollWidth > link.clientWidth + 1 && getComputedStyle(link).overflow === "hidden");
  return cut.map((link) => link.textContent.trim());
})();
