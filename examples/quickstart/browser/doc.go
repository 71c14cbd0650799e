// Package browser contains only tests. They run the quickstart and drive its pages
// in a headless Chromium, as a person would. Without Chromium, they are skipped.
package browser
