// load imports what is not needed for the first paint, after that. It tries again
// until it succeeds.
export async function load(imports) {
  await painted;
  for (let pause = 1000; ; pause *= 2) {
    try {
      return await Promise.all(imports());
    } catch {
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

// A page in the background paints nothing.
const painted = new Promise((resolve) => {
  new PerformanceObserver((list) => {
    if (list.getEntriesByName("first-contentful-paint").length > 0) resolve();
  }).observe({ type: "paint", buffered: true });
  setTimeout(resolve, 1000);
});
