"use strict";
// Draws the figures, in the colours of the page's scheme and the arrangement that its width asks for.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 700px)");
  const config = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };

  function patch(layout) {
    const style = getComputedStyle(document.body);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const changes = {
      "font.color": ink,
      "hoverlabel.bgcolor": style.getPropertyValue("--card").trim(),
      "hoverlabel.bordercolor": line,
      "hoverlabel.font.color": ink,
      // A finger that scrolls the page over a figure must not zoom it.
      autosize: true,
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
    for (const [path, value] of Object.entries(patch(layout))) {
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

  const places = [...document.querySelectorAll("[data-figure]")];
  const redress = async () => {
    for (const place of places.filter((each) => each.layout)) {
      await Plotly.relayout(place, patch(place.layout));
      await Plotly.Plots.resize(place); // a given height stops plotly from following the width by itself
    }
  };
  dark.addEventListener("change", redress);
  narrow.addEventListener("change", redress);
  Promise.all(places.map(draw)).then(() => {
    document.body.dataset.ready = "true";
  });
})();
