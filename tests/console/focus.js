// What has the focus, and whether a person can see that.
(() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  const frame = element.querySelector("rect");
  const framed = !!frame && parseFloat(getComputedStyle(frame).strokeWidth) >= 3;
  return { name: element.getAttribute("aria-label") ?? element.textContent.trim(), seen: outlined || framed };
})();
