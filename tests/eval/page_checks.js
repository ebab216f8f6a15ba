// What a person would notice: an expression whose value is a list of findings, one text each; empty where the page is fine.
(() => {
  const found = [];
  const name = element => `<${element.tagName.toLowerCase()} ${element.getAttribute("class") || ""}> ${element.textContent.trim().slice(0, 40)}`;

  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  function pixel(colours) { // painted one over the other
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return canvas.getImageData(0, 0, 1, 1).data;
  }

  // Nothing sticks out of the page sideways.
  const {scrollWidth, clientWidth} = document.documentElement;
  if (scrollWidth > clientWidth) found.push(`overflow: the page is ${scrollWidth} px wide in ${clientWidth} px`);

  // Every chart has marks that one can see.
  for (const chart of document.querySelectorAll("main svg")) {
    const shapes = [...chart.querySelectorAll(".role-mark path, .role-mark rect, .role-mark line, .role-mark circle")].filter(shape => {
      const box = shape.getBoundingClientRect(), style = getComputedStyle(shape);
      const inked = [style.fill, style.stroke].some(ink => ink !== "none" && pixel([ink])[3] > 0);
      return inked && Math.max(box.width, box.height) > 3;
    });
    const title = chart.closest("figure")?.querySelector("figcaption")?.textContent ?? "a chart without a caption";
    if (shapes.length < 2) found.push(`chart: ${shapes.length} marks to be seen in "${title}"`);
    for (const label of chart.querySelectorAll("text")) {
      const size = parseFloat(getComputedStyle(label).fontSize) * chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
      if (label.textContent && size < 9) { found.push(`small: ${size.toFixed(1)} px letters in "${title}"`); break; }
    }
  }

  // Text stands out from what is behind it: WCAG's contrast, 4.5, or 3 for large letters.
  const probe = document.body.appendChild(document.createElement("div"));
  probe.style.backgroundColor = "Canvas"; // what the browser paints where the page paints nothing
  const blank = getComputedStyle(probe).backgroundColor;
  probe.remove();
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("style, script") || !element.getClientRects().length) continue;
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    const style = getComputedStyle(element), ink = element.closest("svg") ? style.fill : style.color;
    const behind = pixel([blank, ...layers]), letters = pixel([blank, ...layers, ink]);
    const [light, dark] = [luminance(behind), luminance(letters)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05), large = parseFloat(style.fontSize) >= 24;
    const line = `contrast: ${contrast.toFixed(2)} of ${ink} in ${name(element)}`;
    if (contrast < (large ? 3 : 4.5) && !seen.has(line)) { seen.add(line); found.push(line); }
  }
  return found;
})()
