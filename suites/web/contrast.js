// The smallest contrast of a text that is shown, and how light the page is, as WCAG has them.
const parsed = (colour) => colour.match(/[\d.]+/g).map(Number);
const light = (colour) => {
  const [r, g, b] = parsed(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  const colour = getComputedStyle(element).backgroundColor;
  return parsed(colour)[3] === 0 ? behind(element.parentElement) : colour;
};
const written = [...document.querySelectorAll("body *")].filter((element) =>
  element.checkVisibility()
  && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
const ratios = written.map((element) => {
  const both = [light(getComputedStyle(element).color), light(behind(element))];
  return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
});
return [Math.min(...ratios), light(getComputedStyle(document.body).backgroundColor)];
