// Readability checks of a page. The value of this expression is a list of findings, empty for a good page.
(() => {
  const found = [];
  const name = element => `<${element.tagName.toLowerCase()} ${element.getAttribute("class") || ""}> ${element.textContent.trim().slice(0, 40)}`;

  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  function pixel(colors) { // painted one over the other
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return canvas.getImageData(0, 0, 1, 1).data;
  }

  // No horizontal overflow.
  const {scrollWidth, clientWidth} = document.documentElement;
  if (scrollWidth > clientWidth) found.push(`overflow: the page is ${scrollWidth} px wide in ${clientWidth} px`);

  // Every chart has visible marks and readable labels.
  for (const chart of document.querySelectorAll("main svg")) {
    const shapes = [...chart.querySelectorAll(".role-mark path, .role-mark rect, .role-mark line, .role-mark circle")].filter(shape => {
      const box = shape.getBoundingClientRect(), style = getComputedStyle(shape);
      const inked = [style.fill, style.stroke].some(ink => ink !== "none" && pixel([ink])[3] > 0);
      return inked && Math.max(box.width, box.height) > 3;
    });
    const title = chart.closest("figure")?.querySelector("figcaption")?.textContent ?? "a chart without a caption";
    if (shapes.length < 2) found.push(`chart: ${shapes.length} visible marks in "${title}"`);
    for (const label of chart.querySelectorAll("text")) {
      const size = parseFloat(getComputedStyle(label).fontSize) * chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
      if (label.textContent && size < 9) { found.push(`small: ${size.toFixed(1)} px letters in "${title}"`); break; }
    }
  }

  // Text has WCAG's contrast: 4.5, or 3 for large letters.
  const probe = document.body.appendChild(document.createElement("div"));
  probe.style.backgroundColor = "Canvas"; // the browser's default background
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
