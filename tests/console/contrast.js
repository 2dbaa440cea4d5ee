// The texts whose contrast with what is behind them is below 4.5 to 1.
(() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  // Any CSS colour as four numbers, as the browser itself paints it.
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
  const behind = (element) => {
    if (!element) return [255, 255, 255, 1];
    const colour = rgba(getComputedStyle(element).backgroundColor);
    return colour[3] === 1 ? colour : over(colour, behind(element.parentElement));
  };
  // A colour of a drawing as it is painted there, with the opacity of everything around it.
  const painted = (element, property) => {
    const style = getComputedStyle(element);
    if (style[property] === "none") return [0, 0, 0, 0];
    let [r, g, b, alpha] = rgba(style[property]);
    alpha *= Number(style[`${property}Opacity`]);
    for (let at = element; at; at = at.parentElement) alpha *= Number(getComputedStyle(at).opacity);
    return [r, g, b, alpha];
  };
  // What is drawn before a text and lies behind its middle.
  const beneath = (text) => {
    const { x, y, width, height } = text.getBoundingClientRect();
    const svg = text.ownerSVGElement;
    let ground = behind(svg.parentElement);
    for (const shape of svg.querySelectorAll("path, rect, circle, ellipse, polygon, use")) {
      const after = !(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING);
      if (after || shape.closest("defs, marker, clipPath, mask") || !shape.checkVisibility()) continue;
      const point = new DOMPoint(x + width / 2, y + height / 2).matrixTransform(shape.getScreenCTM().inverse());
      // One that is drawn elsewhere has its form there, and its colours here.
      const form = shape.matches("use") ? svg.querySelector(shape.getAttribute("href")) : shape;
      if (form.isPointInFill(point)) ground = over(painted(shape, "fill"), ground);
      if (form === shape && shape.isPointInStroke(point)) ground = over(painted(shape, "stroke"), ground);
    }
    return ground;
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *:not(svg, svg *:not(text, tspan), script, noscript)")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const drawn = element.ownerSVGElement;
    const ground = drawn ? beneath(element) : behind(element);
    const ink = over(drawn ? painted(element, "fill") : rgba(getComputedStyle(element).color), ground);
    const [more, less] = [light(ink), light(ground)].sort((a, b) => b - a);
    const ratio = (more + 0.05) / (less + 0.05);
    if (ratio < 4.5) faint.push(`${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return faint;
})();
