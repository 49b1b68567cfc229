"use strict";
// Draws the figures, in the colours of the page's scheme and the arrangement and width that the page has room for.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 700px)");
  const config = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };
  const places = [...document.querySelectorAll("[data-figure]")];

  function patch(place, layout) {
    const style = getComputedStyle(document.body);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const changes = {
      width: place.clientWidth,
      "font.color": ink,
      "hoverlabel.bgcolor": style.getPropertyValue("--card").trim(),
      "hoverlabel.bordercolor": line,
      "hoverlabel.font.color": ink,
      // A finger that scrolls the page over a figure must not zoom it.
      dragmode: narrow.matches ? false : "zoom",
      ...layout.meta[narrow.matches ? "narrow" : "wide"],
    };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      changes[`${axis}.gridcolor`] = line;
      changes[`${axis}.linecolor`] = line;
      changes[`${axis}.tickcolor`] = line;
    }
    return changes;
  }

  async function draw(place) {
    const { data, layout } = figures[place.dataset.figure];
    for (const [path, value] of Object.entries(patch(place, layout))) {
      const keys = path.split(".");
      const last = keys.pop();
      keys.reduce((part, key) => (part[key] ??= {}), layout)[last] = value;
    }
    try {
      await Plotly.newPlot(place, data, layout, config);
    } catch (error) {
      place.textContent = `This figure could not be drawn: ${error}`;
      place.classList.add("failure");
    }
  }

  function redress() {
    // A figure without a width is not shown, and plotly cannot lay it out.
    const shown = places.filter((each) => each.layout && each.clientWidth);
    for (const place of shown) Plotly.relayout(place, patch(place, place.layout));
  }

  let width = document.body.clientWidth;
  window.addEventListener("resize", () => {
    if (document.body.clientWidth === width) return; // a phone's address bar changes the height only
    width = document.body.clientWidth;
    requestAnimationFrame(redress);
  });
  dark.addEventListener("change", redress);
  Promise.all(places.map(draw)).then(() => {
    document.body.dataset.ready = "true";
  });
})();
