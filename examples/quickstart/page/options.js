// What the application has chosen, from page.Options: {api, keepAlive, keyHint, mostBytes,
// questions, resume}.
export const options = JSON.parse(document.querySelector("meta[name=options]").content);
