// Plotly's own widget, loaded when it is first shown and once a page: it weighs 5 MB, and anywidget gives up on a model
// whose code is not there after two seconds, which a busy machine needs for two of them.
const shared = (globalThis.dpvizPlotly ??= { widget: undefined, initialized: new WeakMap() });

async function load(model) {
  const carrier = await model.widget_manager.get_model(model.get("_code"));
  const url = URL.createObjectURL(new Blob([carrier.get("source")], { type: "text/javascript" }));
  return (await import(url)).default;
}

async function widgetOf(model) {
  shared.widget ??= load(model);
  if (!shared.initialized.has(model)) {
    const widget = (await shared.widget)();
    widget.initialize({ model });
    shared.initialized.set(model, widget);
  }
  return shared.initialized.get(model);
}

export default {
  async render({ model, el }) {
    const widget = await widgetOf(model);
    const remove = widget.render({ model, el });
    window.dispatchEvent(new Event("resize"));
    return remove;
  },
};
