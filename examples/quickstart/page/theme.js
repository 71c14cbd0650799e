// Sets the theme that the user has chosen before the page is drawn.
try {
  document.documentElement.dataset.theme = localStorage.getItem("botapi.theme") ?? "";
} catch {} // the browser blocks its store
