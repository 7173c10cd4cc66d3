export default {
  render({ model, el }) {
    el.style.height = "0";
    const fit = () => window.dispatchEvent(new Event("resize"));
    const hello = () => { fit(); model.send({ here: true }); };
    const later = [100, 500, 1500].map(ms => setTimeout(fit, ms));   // the plot may come after this view
    let width = 0;
    const watch = new ResizeObserver(() => {
      if (el.clientWidth !== width) { width = el.clientWidth; fit(); }
    });
    watch.observe(el);
    hello();
    return () => { watch.disconnect(); later.forEach(clearTimeout); };
  }
}
